"""Who reads which case under which condition, and in which order.

Each reader reads each case once, so that nobody remembers a case and no washout is needed. Cases are put into as many
groups as there are conditions, and group g of reader r is read under condition (g + r) modulo the number of conditions
(a Latin square): over that many readers each case is read under each condition, and each reader reads equally many
cases under each. Groups are alike in outcome, because they are dealt within each outcome.

Each reader has an order of their own in which conditions take turns: every run of as many cases as there are
conditions has each of them once, in an order by chance, so that learning and fatigue fall on all of them alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from wardround.core import seeds

CONDITIONS: Mapping[str, str] = {
    "alone": "without the model",
    "score": "with the model's score",
    "reasons": "with the model's score and reasons",
}


@dataclass(frozen=True)
class Turn:
    case: int
    condition: int


def readings(strata: np.ndarray, readers: int, conditions: int, seed: int) -> list[list[Turn]]:
    """For each reader their cases in order. `strata` is what groups of cases are to be alike in."""
    groups = dealt(strata, conditions, seeds.generator(seed, "groups of cases"))
    return [
        _in_turns((groups + reader) % conditions, conditions, seeds.generator(seed, "order of cases", reader))
        for reader in range(readers)
    ]


def dealt(strata: np.ndarray, groups: int, rng: np.random.Generator) -> np.ndarray:
    """Group of each case; sizes differ by one at most, over all cases and within each stratum."""
    order = np.concatenate([rng.permutation(np.flatnonzero(strata == stratum)) for stratum in np.unique(strata)])
    group = np.empty(len(strata), dtype=np.int64)
    group[order] = np.arange(len(strata)) % groups
    return group


def _in_turns(condition: np.ndarray, conditions: int, rng: np.random.Generator) -> list[Turn]:
    columns = [rng.permutation(np.flatnonzero(condition == number)).tolist() for number in range(conditions)]
    turns = []
    for row in zip_longest(*columns):
        here = [Turn(case, number) for number, case in enumerate(row) if case is not None]
        turns += [here[place] for place in rng.permutation(len(here))]
    return turns


def checked_conditions(names: Sequence[str]) -> tuple[str, ...]:
    """In the order of `CONDITIONS`; empty where they are not some of them, each once."""
    known = tuple(name for name in CONDITIONS if name in names)
    return known if len(known) == len(names) else ()
