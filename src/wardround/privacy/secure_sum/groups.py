"""Groups of sites that each have a secure sum of their own, so that a rule between the groups' means can withstand bad
sites.

Groups are drawn once for a whole run. If they were drawn anew, the sums of two rounds, or of two arms that begin with
the same updates, would differ by single updates. In a simulation they follow from the study's seed; across hospitals
from numbers to which all of them have committed.
"""

from collections.abc import Sequence

from wardround.core import seeds
from wardround.core.errors import StudyError
from wardround.privacy.validation import LEAST_SITES


def draw_groups(seed: int, sites: Sequence[str], count: int) -> tuple[int, ...]:
    """The group of each site, in their order: 0, 1, ... Groups differ by one site at most."""
    order = seeds.generator(seed, "groups of a secure sum").permutation(len(sites))
    group_of = [0] * len(sites)
    for place, site in enumerate(order.tolist()):
        group_of[site] = place % count
    return tuple(group_of)


def refuse_small_groups(sites: int, count: int, where: str) -> None:
    if sites // count < LEAST_SITES:
        problem = f"{count} groups of {sites} sites have {sites // count} in the smallest, and a secure sum of fewer "
        problem += f"than {LEAST_SITES} hides nothing"
        most = sites // LEAST_SITES
        remedy = (
            f"Write at most {most}." if most > 1 else f"Groups need {2 * LEAST_SITES} sites at least: leave it out."
        )
        raise StudyError(where, problem, remedy)


def group_name(group: int) -> str:
    return f"group {group + 1}"
