"""The fast engine equals the slow one, for every algorithm, in every circumstance that changes the arithmetic."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.representatives import represented
from wardround import load_plan, load_study
from wardround.algorithms import ALGORITHMS
from wardround.core.errors import RunError
from wardround.data.site import Rows
from wardround.engines.serial import SERIAL
from wardround.engines.stacked.lanes import Lane, LaneOrder
from wardround.engines.stacked.stacked import STACKED
from wardround.evaluation.curves import Curves
from wardround.runs.plan import Plan
from wardround.runs.units import cut, cut_trials
from wardround.training.round_record import RoundRecord
from wardround.training.trial import Run, Trial

CIRCUMSTANCES: dict[str, dict[str, Any]] = {
    "everyone": {},
    "some, late": {"share": 0.5, "stragglers": {"share": 0.5, "policy": "keep"}},
    "some, dropped": {"share": 0.7, "stragglers": {"share": 0.4, "policy": "drop"}, "weight_decay": 0.01},
    "momentum": {"momentum": 0.9, "lr": 0.02},
    "adam": {"optimiser": "adam", "lr": 0.01},
}
MODELS: dict[str, dict[str, Any]] = {
    "logistic": {"kind": "logistic", "l2": 0.01},
    "mlp": {"kind": "mlp", "hidden": [6], "dropout": 0.3},
}
TOLERANCE = {"float64": 1e-10, "float32": 1e-5}
FEDERATED = [name for name in ALGORITHMS if name != "split"]
OFTEN = [
    *((name, "logistic", "everyone") for name in FEDERATED),
    *((name, "mlp", "everyone") for name in ("fedavg", "scaffold")),
    *((name, "logistic", "some, late") for name in ("fedprox", "scaffold")),
    *((name, "logistic", "some, dropped") for name in ("fednova", "clustered")),
    *(("fedavg", "logistic", circumstance) for circumstance in ("momentum", "adam")),
]


def study(
    algorithm: str, model: str, training: dict[str, Any], precision: str = "float64", **data: Any
) -> dict[str, Any]:
    """Five ragged sites, two seeds; rows and columns complete, so that both seeds have the same shape."""
    return {
        "name": "equal",
        "data": {"source": "heart", "hospitals": ["cleveland"], "missing": "drop", "categories": "codes", **data},
        "sites": {"partition": "dirichlet", "count": 5, "alpha": 0.7, "smallest": 12},
        "model": MODELS[model],
        "training": {"rounds": 5, "local_epochs": 2, "batch_size": 16, "lr": 0.1, "precision": precision, **training},
        "evaluation": {"seeds": {"first": 3, "count": 2}, "validation_share": 0.1},
        "arms": [{"algorithm": algorithm}],
    }


def planned(raw: dict[str, Any]) -> tuple[Plan, list[Trial]]:
    plan = load_plan(*load_study(raw))
    return plan, [plan.trial(arm, seed) for arm in plan.study.arms for seed in plan.study.evaluation.seeds]


def last_run(engine: Any, trials: list[Trial]) -> tuple[list[Run], list[list[RoundRecord]], list[dict[str, float]]]:
    state, records, curves = engine.start(trials), [], Curves(trials)
    for after, round_records in engine.rounds(trials, state):
        state = after
        records.append(round_records)
    return engine.runs(trials, state), records, curves.after(state)


def assert_equal(fast: Run, slow: Run, tolerance: float) -> None:
    pairs = [(fast.server, slow.server)]
    assert set(fast.memories) == set(slow.memories)
    pairs += [(fast.memories[site].algorithm, slow.memories[site].algorithm) for site in slow.memories]
    for tree, other in pairs:
        assert set(tree) == set(other)
        for part in other:
            for name, leaf in other[part].items():
                torch.testing.assert_close(tree[part][name], leaf, rtol=0, atol=tolerance)


def allowed(algorithm: str, circumstance: str) -> bool:
    sound = ALGORITHMS[algorithm]().sound_with
    return circumstance not in ("momentum", "adam") or circumstance in sound


@pytest.mark.parametrize(
    ("algorithm", "model", "circumstance"),
    represented(itertools.product(FEDERATED, MODELS, CIRCUMSTANCES), by=OFTEN),
)
def test_stacked_equals_serial(algorithm: str, model: str, circumstance: str) -> None:
    if not allowed(algorithm, circumstance):
        pytest.skip(f"{algorithm} is not sound with {circumstance}")
    _, trials = planned(study(algorithm, model, CIRCUMSTANCES[circumstance]))
    runs, records, curves = last_run(STACKED, trials)
    for t, trial in enumerate(trials):
        (slow,), slow_records, slow_curves = last_run(SERIAL, [trial])
        assert_equal(runs[t], slow, TOLERANCE["float64"])
        assert curves[t] == pytest.approx(slow_curves[0], abs=1e-9)
        for fast_record, slow_record in zip(records, slow_records, strict=True):
            fast, (slow_one,) = vars(fast_record[t]), slow_record
            for name, value in vars(slow_one).items():
                assert fast[name] == (pytest.approx(value, abs=1e-9) if isinstance(value, float | dict) else value), (
                    name
                )


@pytest.mark.parametrize("algorithm", represented(FEDERATED, by=["fedavg", "scaffold", "fedadam"]))
def test_single_precision_stays_within_its_tolerance(algorithm: str) -> None:
    _, trials = planned(study(algorithm, "logistic", CIRCUMSTANCES["some, late"], "float32"))
    runs, _, _ = last_run(STACKED, trials)
    for fast, trial in zip(runs, trials, strict=True):
        assert_equal(fast, last_run(SERIAL, [trial])[0][0], TOLERANCE["float32"])


@pytest.mark.parametrize("algorithm", represented(FEDERATED, by=["fedadam", "scaffold", "clustered"]))
def test_a_stack_resumes_to_the_same_bits(algorithm: str) -> None:
    _, trials = planned(study(algorithm, "mlp", CIRCUMSTANCES["some, dropped"], "float32"))
    straight, _, _ = last_run(STACKED, trials)
    steps = STACKED.rounds(trials, STACKED.start(trials))
    next(steps)
    number, leaves = STACKED.leaves(next(steps)[0])
    saved = {name: leaf.clone() for name, leaf in leaves.items()}
    resumed = STACKED.restore(trials, number, saved)
    for after, _ in STACKED.rounds(trials, resumed):
        resumed = after
    for run, other in zip(STACKED.runs(trials, resumed), straight, strict=True):
        assert_equal(run, other, 0.0)


def test_stragglers_that_are_all_dropped_change_nothing() -> None:
    _, trials = planned(study("scaffold", "logistic", {"stragglers": {"share": 1.0, "policy": "drop"}}))
    runs, records, _ = last_run(STACKED, trials)
    assert not any(leaf.any() for leaf in runs[0].server["params"].values())
    slow = last_run(SERIAL, trials[:1])[1]
    assert [vars(record[0]) for record in records] == [vars(record[0]) for record in slow]


def test_images_are_shared_and_equal_too() -> None:
    import numpy as np

    from wardround.data.records import Records
    from wardround.data.sources import Source

    def dots() -> Source:
        images = np.random.default_rng(0).integers(0, 255, (150, 1, 6, 6), dtype=np.uint8)
        label = images.reshape(150, -1)[:, :3].argmax(axis=1)
        return Source(lambda: Records(images, label, ("a", "b", "c"), np.array(["all"] * 150, dtype=object)))

    raw = study("fedprox", "mlp", {"share": 0.6})
    raw |= {"data": {"source": "dots"}}
    plan = load_plan(*load_study(raw, sources={"dots": dots}))
    trials = [plan.trial(plan.study.arms[0], seed) for seed in plan.study.evaluation.seeds]
    assert trials[0].sites[0].train.x is trials[1].sites[1].test.x  # one array for all
    runs, _, _ = last_run(STACKED, trials)
    for fast, trial in zip(runs, trials, strict=True):
        assert_equal(fast, last_run(SERIAL, [trial])[0][0], 1e-10)


def test_values_of_a_sweep_share_a_stack_and_other_settings_do_not() -> None:
    raw = study("fedprox", "logistic", {})
    raw["arms"] = [
        {"algorithm": "fedprox", "mu": [0.1, 1.0], "server_lr": 0.5},
        {"algorithm": "fedadam", "beta1": [0.5, 0.9]},
        {"name": "longer", "algorithm": "fedprox", "training": {"rounds": 6}},
    ]
    plan, _ = planned(raw)
    sizes = [(unit.engine, len(unit.members)) for unit in cut(plan, "auto")]
    assert sizes == [("stacked", 4), ("stacked", 2), ("stacked", 2), ("stacked", 2)]
    assert {unit.engine for unit in cut(plan, "serial")} == {"serial"}


def test_the_rule_of_auto_large_models_and_buffers_run_on_the_reference_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = study("fedavg", "logistic", {})
    raw["model"] = {"kind": "mlp", "hidden": [400, 300]}  # 13 x 400 + 400 x 300 + ... = 126,201 parameters
    plan, _ = planned(raw)
    assert [unit.engine for unit in cut(plan, "auto")] == ["serial", "serial"]
    assert [unit.engine for unit in cut(plan, "stacked")] == ["stacked"]
    small, _ = planned(study("fedavg", "mlp", {}))
    assert [unit.engine for unit in cut(small, "auto")] == ["stacked"]
    monkeypatch.setattr("wardround.runs.units.STACK_BYTES", 1)
    assert [len(unit.members) for unit in cut(small, "auto")] == [1, 1]


def test_batch_norm_runs_on_the_reference_engine_and_refuses_a_batch_of_one() -> None:
    from torch import nn

    from wardround.core.errors import RunError
    from wardround.models import Model, ModelBuilder, Shape, from_module

    def normed() -> ModelBuilder:
        def build(shape: Shape) -> Model:
            layers = (nn.Linear(shape.inputs[0], 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
            return from_module(lambda: nn.Sequential(*layers), shape)

        return build

    raw = study("fedavg", "logistic", {"batch_size": 10})
    raw["model"] = {"kind": "normed"}
    plan = load_plan(*load_study(raw, models={"normed": normed}))
    with pytest.raises(RunError, match="cannot run a model with buffers"):
        cut(plan, "stacked")
    sizes = {len(site.train) for seed in plan.study.evaluation.seeds for site in plan.sites_of("fedavg", seed)}
    size = next(b for b in range(5, 100) if all(n % b != 1 for n in sizes))
    raw["training"]["batch_size"] = size
    fine = load_plan(*load_study(raw, models={"normed": normed}))
    assert {unit.engine for unit in cut(fine, "auto")} == {"serial"}
    raw["training"]["batch_size"] = max(sizes) - 1
    with pytest.raises(RunError, match="leave one row for the last batch"):
        cut(load_plan(*load_study(raw, models={"normed": normed})), "auto")


def test_shares_of_a_batch_sum_to_one_and_rows_that_fill_up_have_none() -> None:
    """Sites of 5 and 3 rows in batches of 2, for two epochs: 6 and 4 steps."""
    rows = [Rows(torch.zeros(size, 1), torch.zeros(size, dtype=torch.int64)) for size in (3, 5)]
    order = LaneOrder([Lane(0, f"site {len(part)}", part, len(part), 2) for part in rows], 2)
    both = order.shares(0, 4, 2, torch.float64)
    assert both[:, 0].tolist() == [[0.5, 0.5], [0.5, 0.5], [1, 0], [0.5, 0.5]]  # 5 rows, the longest first
    assert both[:, 1].tolist() == [[0.5, 0.5], [1, 0], [0.5, 0.5], [1, 0]]
    assert order.shares(4, 6, 1, torch.float64).tolist() == [[[0.5, 0.5]], [[1, 0]]]
    assert order.shares(0, 4, 2, torch.float64) is both  # known for all rounds


@pytest.mark.parametrize("optimiser", ["sgd", "momentum", "adam"])
def test_trials_with_different_learning_rates_share_a_stack(optimiser: str) -> None:
    """Only trials that try settings do: each ends where the reference engine ends with its rate."""
    study: dict[str, Any] = {
        "name": "rates",
        "data": {"source": "heart", "hospitals": ["cleveland", "va"]},
        "training": {
            "rounds": 3,
            "optimiser": "adam" if optimiser == "adam" else "sgd",
            "momentum": 0.9 if optimiser == "momentum" else 0.0,
            "weight_decay": 0.01,
            "lr_decay": {"factor": 0.5, "every": 1, "minimum": 0.02},
        },
        "evaluation": {"validation_share": 0.2, "seeds": {"first": 1, "count": 2}},
        "tuning": {"budget": 3, "space": {"training.lr": [0.03, 0.1, 1.0]}},
        "arms": [{"algorithm": "fedprox"}],
    }
    plan = load_plan(*load_study(study))
    arm = plan.study.arms[0]
    for number, lr in enumerate((0.03, 0.1, 1.0)):
        trial = replace(arm, name=f"fedprox?trial={number}", training=replace(arm.training, lr=lr))
        for seed in (1, 2):
            plan.add_tuned(trial, seed)
    (unit,) = cut_trials(plan, "auto", [(trial, seed) for (_, seed), trial in plan.tuned.items()])
    trials = unit.trials(plan)
    assert (unit.engine, len(trials)) == ("stacked", 6)
    *_, (state, _) = STACKED.rounds(trials, STACKED.start(trials))
    for trained, run in zip(trials, STACKED.runs(trials, state), strict=True):
        *_, (alone, _) = SERIAL.rounds([trained], SERIAL.start([trained]))
        for name, leaf in alone.server["params"].items():
            torch.testing.assert_close(run.server["params"][name], leaf, atol=1e-5, rtol=1e-4)


IN_TIME: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "buffered": ("fedprox", {"asynchronous": {"buffer": 2}}, {}),
    "mixed": ("fedavg", {"asynchronous": {"buffer": 1, "most_stale": 3}}, {}),
    "some at a time": ("fedadam", {"asynchronous": {"buffer": 2, "staleness": "none"}, "share": 0.6}, {}),
    "waiting": ("scaffold", {"share": 0.6}, {"speed": {"kind": "lognormal"}}),
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", IN_TIME)
def test_rounds_on_a_clock_are_the_same_in_a_stack(name: str, model: str) -> None:
    algorithm, training, sites = IN_TIME[name]
    raw = study(algorithm, model, {"rounds": 15, "lr_decay": {"factor": 0.9, "every": 2}, **training})
    raw["sites"] |= {"away": {"share": 0.2, "length": 100}, **sites}
    plan, trials = planned(raw)
    assert [unit.engine for unit in cut(plan, "auto")] == ["stacked"]
    fast, fast_records, fast_curves = last_run(STACKED, trials)
    for t, trial in enumerate(trials):
        (slow,), slow_records, (slow_curve,) = last_run(SERIAL, [trial])
        assert_equal(fast[t], slow, 1e-10)
        assert fast_curves[t] == pytest.approx(slow_curve, abs=1e-10)
        for of_round, (slow_record,) in zip(fast_records, slow_records, strict=True):
            record = of_round[t]
            for exact in ("sites", "dropped", "time", "staleness", "bytes_down", "bytes_up"):
                assert getattr(record, exact) == getattr(slow_record, exact), exact
            for near in ("loss", "update_norm", "divergence", "change"):
                assert getattr(record, near) == pytest.approx(getattr(slow_record, near), abs=1e-10), near
    if "asynchronous" in training:
        stale = [ago for of_round in fast_records for record in of_round for ago in record.staleness.values()]
        assert max(stale) > 1


def test_a_stack_on_a_clock_is_saved_with_the_models_that_work_began_with() -> None:
    raw = study("fedavg", "logistic", {"rounds": 12, "asynchronous": {"buffer": 1}})
    _, trials = planned(raw)
    states = [STACKED.start(trials), *(state for state, _ in STACKED.rounds(trials, STACKED.start(trials)))]
    kept = STACKED.restore(trials, *STACKED.leaves(states[6]))
    assert kept.earlier.keys() == states[6].earlier.keys()
    assert kept.earlier
    for after, _ in STACKED.rounds(trials, kept):
        kept = after
    for name, leaf in states[-1].server["params"].items():
        assert torch.equal(kept.server["params"][name], leaf)


def test_rounds_that_close_at_a_deadline_run_one_site_at_a_time() -> None:
    raw = study("fedavg", "logistic", {})
    raw["sites"] |= {"speed": {"kind": "lognormal"}}
    plan, _ = planned(raw | {"deployment": {"quorum": 2, "deadline": 10}})
    assert {unit.engine for unit in cut(plan, "auto")} == {"serial"}
    with pytest.raises(RunError, match="does not support"):
        cut(plan, "stacked")
