"""How long a study will take: each kind of work is measured once, and all of it is counted."""

from typing import Any

from wardround.runs.catalog import load_study
from wardround.runs.plan import load_plan
from wardround.runs.units import ENOUGH_ROUNDS, estimate


def kinds_of(**changed: Any) -> list[tuple[int, int]]:
    """Rounds in all and rounds measured, of each kind."""
    study: dict[str, Any] = {
        "name": "long",
        "data": {"source": "heart", "hospitals": ["cleveland", "va"]},
        "training": {"rounds": 30},
        "evaluation": {"seeds": {"count": 3}},
        "arms": [{"algorithm": "fedavg"}, {"algorithm": "fedprox", "mu": [0.1, 0.2]}],
    } | changed
    kinds = estimate(load_plan(*load_study(study)))
    assert all(kind.seconds > 0 and kind.total == kind.seconds * kind.rounds for kind in kinds)
    return [(kind.rounds, kind.measured) for kind in kinds]


def test_a_stack_counts_its_rounds_once_and_kinds_are_measured_apart() -> None:
    # fedavg with three seeds is one stack, fedprox with two values and three seeds is another: 30 rounds each
    assert kinds_of() == [(30, ENOUGH_ROUNDS), (30, ENOUGH_ROUNDS)]


def test_trials_that_run_one_after_another_are_all_counted() -> None:
    # oversampling is done for one site at a time: 3 trials of fedavg, 6 of fedprox
    assert kinds_of(training={"rounds": 2, "oversample": 0.5}) == [(6, 2), (12, 2)]
