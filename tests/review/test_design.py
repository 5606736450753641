"""Who reads what under which condition: balanced over readers, cases, outcome and time."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from wardround.review.design import checked_conditions, readings


@pytest.mark.parametrize(
    ("cases", "readers", "conditions"), [(30, 3, 3), (31, 5, 3), (20, 1, 2), (7, 4, 3), (10, 2, 1)]
)
def test_the_design_is_balanced(cases: int, readers: int, conditions: int) -> None:
    rng = np.random.default_rng(0)
    strata = rng.integers(0, 2, cases)
    design = readings(strata, readers, conditions, seed=4)
    assert len(design) == readers
    for turns in design:
        assert sorted(turn.case for turn in turns) == list(range(cases))  # each case once
        counts = Counter(turn.condition for turn in turns)
        assert max(counts.values()) - min(counts.values()) <= 1
        for stratum in np.unique(strata):
            own = Counter(turn.condition for turn in turns if strata[turn.case] == stratum)
            assert max(own.values()) - min(own.get(number, 0) for number in range(conditions)) <= 1
        blocks = [turns[begin : begin + conditions] for begin in range(0, cases - conditions + 1, conditions)]
        assert all(len({turn.condition for turn in block}) == conditions for block in blocks)  # over time
    for reader, other in pairwise(range(min(readers, conditions))):  # a case under another condition for each
        of = [{turn.case: turn.condition for turn in design[place]} for place in (reader, other)]
        assert conditions == 1 or all(of[0][case] != of[1][case] for case in range(cases))
    orders = [[turn.case for turn in turns] for turns in design]
    assert readers == 1 or orders[0] != orders[1]


def test_a_seed_repeats_a_design_and_another_changes_it() -> None:
    strata = np.zeros(12, dtype=int)
    assert readings(strata, 2, 3, 1) == readings(strata, 2, 3, 1) != readings(strata, 2, 3, 2)


def test_conditions_are_known_and_each_once() -> None:
    assert checked_conditions(["score", "alone"]) == ("alone", "score")
    assert checked_conditions(["alone", "alone"]) == checked_conditions(["blind"]) == ()
