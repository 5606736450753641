"""What an arm cannot keep to: guarantees of [privacy] that its sites cannot give, compression that would mislead its
algorithm. Checked with the sites' rows, before anything trains."""

from collections import Counter
from itertools import combinations

import numpy as np

from wardround.core.errors import StudyError
from wardround.core.extras import load
from wardround.privacy.secure_sum.groups import group_name
from wardround.study.schema import ExamplePrivacy, Privacy, SecureSum
from wardround.training.compression import KINDS, kind_of
from wardround.training.row_mixing import refuse_unmixable
from wardround.training.schedule import Roster, tolerance
from wardround.training.trial import Trial


def refuse_unkept(trial: Trial) -> None:
    need_extras(trial.arm, trial.privacy)
    if trial.privacy.example is not None:
        _check_example(trial, trial.privacy.example)
    if trial.privacy.site is not None and trial.privacy.site.delta >= 1 / len(trial.sites):
        problem = f"{trial.privacy.site.delta:g} is no less than one in {len(trial.sites)} sites"
        raise _wrong(trial, "site: delta", problem, "A delta of 1/n may give one of n away: write a much smaller one.")
    if trial.privacy.secure_sum is not None:
        _check_secure_sum(trial, trial.privacy.secure_sum)
    _check_compression(trial)
    _check_timing(trial)
    _check_updates_of_regions(trial)
    if trial.algorithm.needs_loss_from_zero and not trial.model.task.loss_from_zero:
        problem = "takes powers of each hospital's loss, and a loss of this outcome may be below 0"
        raise StudyError(f"arms: {trial.arm}: algorithm", problem, "Choose another algorithm, such as afl or fedprox.")


def refuse_unfit_changes(trial: Trial) -> None:
    """Changes of training rows that would silently do nothing, or cannot be made of these data."""
    if trial.training.augment is not None and trial.sites[0].train.x.dim() != 4:
        where = f"arms: {trial.arm}: training: augment"
        raise StudyError(where, "is for images, and these data are a table", "Leave `augment` out.")
    refuse_unmixable(trial)


def need_extras(arm: str, privacy: Privacy) -> None:
    """Checked before anything trains, and in a deployment before anything is sent."""
    if privacy.example is not None or privacy.site is not None:
        load("dp_accounting", "privacy", f"arms: {arm}: privacy")
    if privacy.secure_sum is not None:
        load("cryptography", "privacy", f"arms: {arm}: privacy")


def _check_example(trial: Trial, example: ExamplePrivacy) -> None:
    for number, site in enumerate(trial.sites):
        # `rule` refuses a count with too little noise, which is smallest in the first round or in the last
        rule, _ = trial.rule(number), trial.rule(number, trial.training.rounds - 1)
        if rule is not None and example.delta > 1 / (10 * rule.patients):
            problem = f"{example.delta:g} is more than one in ten times the {rule.patients} patients of {site.name}"
            remedy = "A delta of 1/n may give one of n patients away: write a much smaller one."
            raise _wrong(trial, "example: delta", problem, remedy)
        if not trial.stops(number) and any(trial.epochs(number)) and rule is not None:
            problem = f"with noise {rule.noise:g} not one round of {site.name} fits into it"
            raise _wrong(trial, "example: epsilon", problem, "Raise epsilon or the noise, or leave `noise` out.")
    for first, second in combinations(trial.sites, 2):
        both = len(np.intersect1d(first.train.people.numpy(), second.train.people.numpy())) if _named(trial) else 0
        if both:
            places = f"{first.name} and {second.name}"
            problem = f"{both} patients train at both {places}, and their two epsilons would add up"
            remedy = "Choose sites that share no patients, or give ids that tell them apart."
            raise _wrong(trial, "example", problem, remedy)


def _named(trial: Trial) -> bool:
    """Whether sites share a numbering of patients. In a deployment each hospital has its own."""
    return all(site.train.patients is not None for site in trial.sites)


def _check_secure_sum(trial: Trial, secure: SecureSum) -> None:
    from wardround.core.errors import SecureSumError
    from wardround.privacy.secure_sum.fixed_point import encoding_of
    from wardround.privacy.secure_sum.secure_sum import Terms, default_threshold

    for where, count in sorted(_summed(trial)):
        try:
            Terms(b"", tuple(site.name for site in trial.sites[:count]), secure.threshold or default_threshold(count))
        except SecureSumError as error:
            at = f" of {where}" if where else ""
            raise _wrong(trial, "secure_sum", f"in some round{at} {error.problem}", error.remedy) from None
    encoding_of(secure, len(trial.sites))
    for site in trial.sites:
        if len(site.train) > secure.most_rows:
            problem = f"{site.name} has more training rows than {secure.most_rows}"
            raise _wrong(trial, "secure_sum: most_rows", problem, "Raise it: it is a public bound of any site's rows.")


def _summed(trial: Trial) -> set[tuple[str, int]]:
    """The numbers of sites in a secure sum that occur over all rounds, with the name of the region or group."""
    rosters = [_summing(trial.roster(number)) for number in range(trial.training.rounds)]
    regions, parts = trial.algorithm.regions, trial.groups
    if regions is None and not parts:
        return {("", len(numbers)) for numbers in rosters}
    of_site = parts if regions is None else regions.of_site
    counts = [Counter(of_site[number] for number in numbers) for numbers in rosters]

    def name(part: int) -> str:
        return group_name(part) if regions is None else f"region {regions.names[part]}"

    return {(name(part), count) for by_part in counts for part, count in by_part.items()}


def _summing(drawn: Roster) -> tuple[int, ...]:
    return drawn.numbers if drawn.summing is None else drawn.summing


def _check_compression(trial: Trial) -> None:
    """Whoever compares updates with each other must not compare what compression made of them: the largest numbers of
    two updates are at other places, and random rounding points anywhere."""
    kind = kind_of(trial)
    compares = trial.algorithm.needs == "each" and not trial.algorithm.weighs_only
    if kind is not None and compares and not kind.keeps_directions:
        problem = "the algorithm compares the directions of single updates, which this compression changes"
        fitting = " or ".join(f'"{name}"' for name, other in KINDS.items() if other.keeps_directions)
        raise StudyError(f"arms: {trial.arm}: compression: kind", problem, f'Write {fitting} or "none" in this arm.')


def _check_timing(trial: Trial) -> None:
    asynchronous, at_work = trial.training.asynchronous, max(1, round(trial.training.share * len(trial.sites)))
    where = f"arms: {trial.arm}: training: asynchronous"
    if asynchronous is not None and asynchronous.buffer > at_work:
        problem = f"{asynchronous.buffer} sites fill it, and {at_work} work at a time"
        raise StudyError(f"{where}: buffer", problem, f"Write at most {at_work}.")
    if tolerance(trial.training) is not None and trial.algorithm.needs == "each":
        where = where if asynchronous is not None else f"arms: {trial.arm}: training: late"
        problem = "the rule by which updates are aggregated compares them, and these began with different models"
        raise StudyError(where, problem, "Average the updates in this arm, or leave the setting out.")


def _check_updates_of_regions(trial: Trial) -> None:
    """Whether each region has enough sites in every round for a rule that is applied in each."""
    regions, fewest = trial.algorithm.regions, trial.algorithm.fewest
    if regions is None:
        return
    rosters = [trial.roster(number) for number in range(trial.training.rounds)]
    for region, name in enumerate(regions.names):
        counts = [
            sum(regions.of_site[number] == region for number in roster.numbers if number not in roster.dropped)
            for roster in rosters
        ]
        if least := min((count for count in counts if 0 < count < fewest), default=0):
            problem = (
                f"in some round region {name} has {least} of its sites, and the rule needs {fewest} in each region"
            )
            remedy = "Lower `bad`, form larger regions, or use a rule that needs fewer sites."
            raise StudyError(f"arms: {trial.arm}: aggregation: bad", problem, remedy)


def _wrong(trial: Trial, where: str, problem: str, remedy: str) -> StudyError:
    return StudyError(f"arms: {trial.arm}: privacy: {where}", problem, remedy)
