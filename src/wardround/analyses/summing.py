"""Between the sites' sums and the coordinator: the protection stage of analyses."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from wardround.analyses.analysis import Blocks, Question, Sums
from wardround.core.errors import DataError, SecureSumError
from wardround.privacy.secure_sum.limbs import Limbs
from wardround.study.schema import SecureSum

COARSEST = 1e-18  # of what rounding may change in a sum
Summed = tuple[Sums, Mapping[str, Sums]]  # over all sites; of each, where they are told


def check_sums(question: Question, blocks: Blocks, sums: Sums, site: str) -> None:
    """What a site is about to send."""
    if set(sums) != set(blocks):
        raise DataError(site, f"does not answer what step {question.step} asks", "Install the same version everywhere.")
    for name, block in blocks.items():
        if sums[name].shape != block.shape:
            raise DataError(site, f"step {question.step}: {name} has another shape", "Install the same version.")
        if not np.isfinite(sums[name]).all():
            problem = f"step {question.step}: sums over its rows are no finite numbers"
            raise DataError(site, problem, "Look for extreme values in the columns of the formula.")


def add_up(by_site: Mapping[str, Sums]) -> Sums:
    """In the order of the sites."""
    first, *others = by_site.values()
    total = {name: array.copy() for name, array in first.items()}
    for sums in others:
        for name, array in sums.items():
            total[name] += array
    return total


def encoding_for(blocks: Blocks, sites: int) -> Limbs:
    """SecureSumError where the caps leave too coarse a step: results would not agree to 1e-8."""
    encoding = Limbs(sites, {name: (block.shape, block.most) for name, block in blocks.items()})
    if sites * encoding.coarsest_step > COARSEST:
        problem = f"a cap of {encoding.largest_cap:.3g} is too wide for sums that are fine enough"
        raise SecureSumError("secure sum", problem, "Declare the columns' `ranges` in [data], or lower `most_rows`.")
    return encoding


def add_up_securely(
    blocks: Blocks,
    answers: Iterable[tuple[str, Callable[[], Sums]]],
    roster: Sequence[str],
    secure: SecureSum,
    context: bytes,
) -> Sums:
    """The same sum through the masks of the protocol; no site's own sums are seen."""
    from wardround.privacy.secure_sum.simulated_sum import sum_securely

    encoding = encoding_for(blocks, len(roster))
    refuse_few(roster, secure)
    vectors = ((site, encoding.encode(answer(), site)) for site, answer in answers)
    return encoding.decode(sum_securely(vectors, roster, context, secure.threshold))


def refuse_few(roster: Sequence[str], secure: SecureSum) -> None:
    from wardround.privacy.secure_sum.secure_sum import default_threshold
    from wardround.privacy.validation import LEAST_SITES

    needed = max(LEAST_SITES, secure.threshold or default_threshold(len(roster)))
    if len(roster) < needed:
        problem = f"{len(roster)} hospitals have enough patients, and a secure sum takes {needed}"
        raise SecureSumError("secure sum", problem, "Ask more hospitals. Nothing was added up.")
