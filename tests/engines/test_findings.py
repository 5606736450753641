"""The fast engine equals the slow one where rows have findings, in figures over rounds as well."""

from typing import Any

import pytest
import torch

from tests.radiographs import a_study, finding_sites, some_radiographs, source_of
from tests.representatives import represented
from tests.small_federations import assert_same, trial
from wardround import load_plan, load_study
from wardround.algorithms import ALGORITHMS
from wardround.algorithms.fedprox import fedprox
from wardround.core.errors import RunError
from wardround.data.records import Records
from wardround.engines.serial import SERIAL
from wardround.engines.stacked.stacked import STACKED
from wardround.evaluation.curves import Curves
from wardround.models import MODELS, Shape
from wardround.runs.plan import Plan
from wardround.runs.units import cut, serial_setting
from wardround.tasks import findings_task
from wardround.training.trial import Run, Trial

EXACT = 1e-12


def finished(engine: Any, trials: list[Trial], on_training: bool = True) -> tuple[list[Run], list[dict[str, float]]]:
    state, curves = engine.start(trials), Curves(trials, on_training)
    for state, _ in engine.rounds(trials, state):  # noqa: B007, B020
        pass
    return engine.runs(trials, state), curves.after(state, True)


def planned(records: Records | None = None, **changes: Any) -> tuple[Plan, list[Trial]]:
    raw = a_study(**changes)
    raw["training"] |= {"precision": "float64"}
    records = some_radiographs(60, unknown=0.2) if records is None else records
    plan = load_plan(*load_study(raw, sources=source_of(records)))
    return plan, [plan.trial(arm, seed) for arm in plan.study.arms for seed in plan.study.evaluation.seeds]


def assert_equal_engines(trials: list[Trial], tolerance: float = EXACT) -> None:
    runs, curves = finished(STACKED, trials)
    for run, points, arm in zip(runs, curves, trials, strict=True):
        (slow,), (slow_points,) = finished(SERIAL, [arm])
        assert_same(run, slow, tolerance)
        assert points == pytest.approx(slow_points, abs=1e-10)


@pytest.mark.parametrize(
    "algorithm",
    represented([name for name in ALGORITHMS if name != "split"], by=["fedavg", "scaffold", "clustered"]),
)
def test_stacked_equals_serial_for_a_logistic_model_with_findings(algorithm: str) -> None:
    _, trials = planned(
        arms=[{"algorithm": algorithm}],
        data={"scale": "image"},
        evaluation={"seeds": {"first": 3, "count": 2}},
        model={"l2": 0.01},
    )
    assert_equal_engines(trials)


def test_stacked_equals_serial_for_a_network_with_findings() -> None:
    _, trials = planned(
        evaluation={"seeds": {"first": 3, "count": 2}}, model={"kind": "mlp", "hidden": [5], "dropout": 0.3}
    )
    assert_equal_engines(trials)


@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_ragged_sites_with_rows_of_which_nothing_is_known(model: str) -> None:
    sites = finding_sites()
    trials = [
        trial(fedprox(mu=mu), sites, MODELS[model]()(Shape((4,), findings_task(3))), seed=seed, rounds=3)
        for mu in (0.0, 0.5)
        for seed in (1, 2)
    ]
    assert_equal_engines(trials)


def test_curves_of_findings_have_the_mean_auc_with_either_engine() -> None:
    _, trials = planned()
    sides, figures = ("test", "validation", "training"), ("loss", "accuracy", "auc")
    names = {f"{side}_{figure}" for side in sides for figure in figures}
    for engine in (SERIAL, STACKED):
        _, (points,) = finished(engine, trials)
        assert set(points) == names
        assert all(0 < points[name] < 1 for name in names if not name.endswith("loss"))


def test_a_model_that_has_diverged_has_no_figures_with_either_engine() -> None:
    _, trials = planned(training={"lr": 1e30}, model={"l2": 1.0})  # each step makes the weights 1e30 times larger
    for engine in (SERIAL, STACKED):
        _, (points,) = finished(engine, trials)
        assert all(value != value for value in points.values()), points  # NaN


def test_arms_that_scale_in_different_ways_may_share_a_stack() -> None:
    """They differ in their levels only; each must train as it would alone."""
    plan, trials = planned(arms=[{"algorithm": "fedavg", "data.scale": ["none", "per-site", "image"]}])
    (unit,) = cut(plan, "auto")
    assert unit.engine == "stacked"
    assert len(unit.members) == 3
    assert_equal_engines(trials)
    weights = [run.server["params"]["1.weight"] for run in finished(STACKED, trials)[0]]
    assert not torch.equal(weights[0], weights[1])


def test_arms_on_images_of_different_sources_may_share_a_stack() -> None:
    raw = a_study(arms=[{"algorithm": "fedavg"}, {"name": "other", "algorithm": "fedavg", "data.source": "second"}])
    raw["training"] |= {"precision": "float64"}
    sources = {**source_of(some_radiographs(60)), "second": source_of(some_radiographs(70, seed=5))["made"]}
    plan = load_plan(*load_study(raw, sources=sources))
    (unit,) = cut(plan, "auto")
    assert_equal_engines(unit.trials(plan))


@pytest.mark.parametrize(
    ("training", "named"),
    [
        ({}, None),
        ({"augment": {"flip": "horizontal"}}, "training.augment"),
        ({"class_weights": "balanced"}, "training.class_weights"),
        ({"oversample": 0.5}, "training.oversample"),
        ({"mix": {"kind": "mixup"}}, "training.mix"),
    ],
)
def test_what_is_done_for_one_site_at_a_time_is_run_by_the_slow_engine(
    training: dict[str, Any], named: str | None
) -> None:
    plan, _ = planned(training=training)
    assert serial_setting(plan.study.arms[0]) == named
    assert [unit.engine for unit in cut(plan, "auto")] == ["serial" if named else "stacked"]
    assert [unit.engine for unit in cut(plan, "serial")] == ["serial"]
    if named:
        with pytest.raises(RunError, match=f"does not support {named}"):
            cut(plan, "stacked")


def test_weights_oversampling_and_augmentation_change_what_is_learned() -> None:
    _, (plain,) = planned()
    before = finished(SERIAL, [plain])[0][0].server["params"]["1.weight"]
    for training in (
        {"augment": {"noise": 0.1}},
        {"class_weights": "balanced"},
        {"oversample": 0.5},
        {"mix": {"kind": "mixup"}},
    ):
        _, (other,) = planned(training=training)
        after = finished(SERIAL, [other])[0][0].server["params"]["1.weight"]
        again = finished(SERIAL, [other])[0][0].server["params"]["1.weight"]
        assert not torch.equal(before, after)
        assert torch.equal(after, again)


def test_sites_of_a_large_model_side_by_side_give_the_same_bits_on_any_number_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, (arm,) = planned(training={"augment": {"rotate": 10.0, "noise": 0.1}}, model={"kind": "mlp", "dropout": 0.3})
    (alone,), _ = finished(SERIAL, [arm])
    monkeypatch.setattr("wardround.training.trial.SMALL_MODEL", 0)  # so that this one counts as large
    for threads in (1, 2, 3):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            (beside,), _ = finished(SERIAL, [arm])
        finally:
            torch.set_num_threads(before)
        assert_same(beside, alone)
