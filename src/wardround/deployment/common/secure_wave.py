"""A sum under masks, of a wave's updates or of an analysis' step: what both ends derive from the approved study.

Who works in a round, how many must remain and how long a vector is follow from the study, so that a coordinator cannot
ask for a sum that hides less. All trials of a wave are in one sum: each has a block of weighted values, followed by its
weight. A site without work in a trial has zeros there.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

import numpy as np

from wardround.core.errors import DeployError, SecureSumError
from wardround.core.tree import State
from wardround.deployment.common.update_checks import shapes_of
from wardround.privacy.secure_sum.fixed_point import Encoding, Whole, arrays_of, encoding_of, size_of
from wardround.privacy.secure_sum.groups import group_name
from wardround.privacy.secure_sum.secure_sum import Terms, default_threshold
from wardround.privacy.validation import LEAST_SITES
from wardround.study.schema import Study
from wardround.training.intake import weight_of
from wardround.training.trial import Trial

Trials = Mapping[int, Trial]
Adds = Mapping[str, Collection[str]]  # by site: the parts of the sum to which it contributes, as it signed them


@dataclass(frozen=True)
class Place:
    """Identifies a sum; a round has one."""

    study: str  # hash
    run: str
    wave: int
    round: int
    group: int | None = None  # where each group of sites has a sum of its own

    @property
    def context(self) -> bytes:
        parts = ["wardround", self.study, self.run, str(self.wave), str(self.round)]
        return "\x1f".join([*parts, *([] if self.group is None else [group_name(self.group)])]).encode()


def groups_in(trials: Trials) -> list[int | None]:
    """The groups of a wave, all of whose trials have the same; None stands for all of its sites together."""
    groups = next((trial.groups for trial in trials.values()), ())
    return [*sorted(set(groups))] or [None]


def group_of(trials: Trials, site: str) -> int | None:
    """A site's group; None where there are no groups."""
    trial = next(iter(trials.values()))
    names = [member.name for member in trial.sites]
    return trial.groups[names.index(site)] if trial.groups and site in names else None


def in_group(trials: Trials, group: int | None) -> dict[int, Trial]:
    """The trials as a group's sum has them: nobody else's work is asked for."""
    if group is None:
        return dict(trials)
    return {
        number: replace(
            trial,
            within=tuple(site.name for site, of in zip(trial.sites, trial.groups, strict=True) if of == group),
        )
        for number, trial in trials.items()
    }


def own_group(trials: Trials, site: str) -> dict[int, Trial]:
    return in_group(trials, group_of(trials, site))


@dataclass(frozen=True)
class Summand:
    """One thing that is added up in a sum, such as the updates of a trial."""

    key: str  # a number, as adverts and hashes of what is sent name it
    title: str
    working: tuple[str, ...]  # sites whose part counts in this round by the study
    threshold: int | None  # as the study has it


@dataclass(frozen=True)
class Summands:
    """Of one sum: all are in one vector, which counts for all of them or for none."""

    parts: tuple[Summand, ...]
    grouped: bool = False  # each group of sites has a sum of its own

    @property
    def keys(self) -> set[str]:
        return {part.key for part in self.parts}

    @property
    def expected(self) -> list[str]:
        return sorted(dict.fromkeys(name for part in self.parts for name in part.working))

    @property
    def least(self) -> int:
        """The number of sites that must remain: enough for every part, and more than half of all."""
        return max([LEAST_SITES, len(self.expected) // 2 + 1, *(_least_in(part) for part in self.parts)])


def is_secure(trials: Sequence[Trial]) -> bool:
    """All trials of a wave are secure, or none is."""
    return bool(trials) and trials[0].privacy.secure_sum is not None


def in_round(trials: Trials, round_number: int) -> dict[int, Trial]:
    """The trials that still train in this round."""
    return {n: trial for n, trial in trials.items() if 0 <= round_number < trial.training.rounds}


def working(trial: Trial, round_number: int) -> list[str]:
    """Sites whose work counts in this round by the study, including those that have spent their epsilon, which
    nobody else can know in advance. In a region, only its own sites."""
    drawn = trial.roster(round_number)
    return [trial.sites[n].name for n in drawn.numbers if n not in drawn.dropped and trial.is_near(n)]


def of_trials(trials: Trials, round_number: int) -> Summands:
    return Summands(
        tuple(
            Summand(
                str(number),
                f"arm {trial.arm}",
                tuple(working(trial, round_number)),
                None if trial.privacy.secure_sum is None else trial.privacy.secure_sum.threshold,
            )
            for number, trial in in_round(trials, round_number).items()
        ),
        any(trial.groups for trial in trials.values()),
    )


def expected_sites(trials: Trials, round_number: int) -> list[str]:
    return of_trials(trials, round_number).expected


def needed_answers(study: Study, sites: Sequence[str], summands: Summands) -> int:
    """The sites of a sum without which the study does not close a round. Of a group, all that may be away at all may be
    away."""
    expected, quorum = summands.expected, study.deployment.quorum or len(sites)
    if summands.grouped:
        return max(len(expected) - (len(sites) - quorum), 1)
    return min(quorum, len(expected))


def terms_of(place: Place, summands: Summands, roster: Collection[str], models: Mapping[str, str]) -> Terms:
    """Terms for the sites in `roster`. The threshold is computed from all expected sites, present or not.

    `models` are hashes of what is sent for each part: sites that received different models have no sum together.
    """
    expected, threshold = summands.expected, summands.least
    if not set(roster) <= set(expected) or len(roster) < threshold:
        problem = f"{len(roster)} sites are left for a secure sum that takes {threshold} of {len(expected)}"
        remedy = "Settle it with the sites that are missing, and start the coordinator again."
        raise DeployError("secure sum", problem, remedy)
    models_hash = sha256(repr(sorted(models.items())).encode()).digest()
    return Terms(place.context, tuple(roster), threshold, models_hash)


def _least_in(part: Summand, spent: Collection[str] = ()) -> int:
    """As in a simulation, where sites that have spent their epsilon are not part of the sum."""
    return part.threshold or default_threshold(len(part.working) - len(spent))


def shortfall(summands: Summands, survivors: Collection[str], adds: Adds) -> str:
    """Why these sites are too few to reveal their sum; empty if they are enough.

    `adds` are the parts to which each site contributes, as it signed them. A site that has spent its epsilon adds
    zeros, which hide nobody. A part without any contribution has nothing to hide.
    """
    for part in summands.parts:
        real = contributors(part.key, adds)
        remain = [name for name in real if name in survivors]
        spent = [name for name in part.working if name in adds and name not in real]
        needed = max(LEAST_SITES, _least_in(part, spent))
        if real and len(remain) < needed:
            return f"{len(remain)} sites add something to {part.title}, and its sum takes {needed}"
    return ""


def contributors(key: str, adds: Adds) -> list[str]:
    return [site for site, keys in adds.items() if key in keys]


def blocks(trials: Trials, round_number: int) -> Iterator[tuple[int, Encoding, int]]:
    """Each trial with its encoding and the length of its block, in the order of the vector."""
    for number, trial in sorted(in_round(trials, round_number).items()):
        secure = trial.privacy.secure_sum
        if secure is None:
            raise ValueError("a secure wave has secure trials only")
        yield number, encoding_of(secure, len(trial.sites)), block_size(trial)


def block_size(trial: Trial) -> int:
    """Of an update as integers, with its weight."""
    return size_of(shape for _, shape in shapes_of(trial).values()) + 1


def vector_of(trials: Trials, round_number: int, site: str, updates: Mapping[int, State]) -> Whole:
    """A site's contribution before masking."""
    parts = []
    for number, encoding, size in blocks(trials, round_number):
        trial, update = trials[number], updates.get(number)
        if update is None:
            parts.append(np.zeros(size, np.uint64))
            continue
        own = next(member for member in trial.sites if member.name == site)
        parts.append(encoding.encode(arrays_of(update), weight_of(trial, own), site))
    return np.concatenate(parts)


def sums_of(trials: Trials, round_number: int, total: Whole) -> dict[int, tuple[np.ndarray, float]]:
    """By trial: the sum of weighted values and the sum of weights. SecureSumError if a sum is impossible."""
    sums, start = {}, 0
    for number, encoding, size in blocks(trials, round_number):
        sums[number] = encoding.decode(total[start : start + size].copy())
        start += size
    return sums


def refuse_implausible(
    trials: Trials, sums: Mapping[int, tuple[np.ndarray, float]], survivors: Collection[str], adds: Adds
) -> None:
    """SecureSumError if the weight of a sum is not that of its sites: then one of them added something else than it
    said. No single update can be seen, so the round is lost."""
    for number, (_, weight) in sums.items():
        trial = trials[number]
        real = [site for site in trial.sites if site.name in contributors(str(number), adds) and site.name in survivors]
        expected = sum(weight_of(trial, site) for site in real)
        if not math.isclose(weight, expected, rel_tol=1e-9, abs_tol=1e-6):
            problem = f"the sum of arm {trial.arm} has another weight than the sites in it"
            raise SecureSumError("secure sum", problem, "A site broke the protocol: look into their logs.")


def masked_length(trials: Trials, round_number: int) -> int:
    """With the checksum that the protocol adds."""
    return sum(size for _, _, size in blocks(trials, round_number)) + 1
