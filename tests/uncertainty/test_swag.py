"""SWAG: moments against numpy, a posterior that is known, and what training and refusals are to it."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.runs.test_uncertainty_studies import changed, planned
from tests.small_federations import after, assert_same, trial
from wardround.algorithms import ALGORITHMS
from wardround.algorithms.algorithm import Algorithm
from wardround.core import seeds, tree
from wardround.core.errors import StudyError
from wardround.core.tree import State, Tree
from wardround.engines import ENGINES
from wardround.engines.serial import leaves_of_run, restore_run
from wardround.models import Shape
from wardround.models.logistic import logistic
from wardround.models.model import Model
from wardround.runs.catalog import load_study
from wardround.runs.plan import load_plan
from wardround.study.schema import Uncertainty
from wardround.tasks import class_task
from wardround.training.trial import Run, Trial
from wardround.uncertainty.row_uncertainty import row_uncertainty
from wardround.uncertainty.swag import (
    RANK,
    SCALES,
    Swag,
    choose_scale,
    drawn_weights,
    fit_swag,
    moments,
    swag_passes,
    with_moments,
)

FIRST = 3


def models_of(algorithm: Algorithm, models: list[np.ndarray]) -> State:
    """The state after rounds that ended with these models."""
    state = algorithm.init({"w": torch.zeros(models[0].shape, dtype=torch.float64)}, 1)
    for model in models:
        step = torch.from_numpy(model) - state["params"]["w"]
        state = algorithm.aggregate(state, {"params": {"w": step}}, 1.0)
    return state


@pytest.mark.parametrize("rounds", [5, FIRST + RANK + 4])
def test_moments_are_those_of_numpy(rounds: int) -> None:
    models = list(np.random.default_rng(0).normal(5, 1e-3, size=(rounds, 2, 3)))
    fitted = fit_swag(models_of(with_moments(ALGORITHMS["fedavg"](), FIRST), models), {})
    late = np.array(models[FIRST:])
    np.testing.assert_allclose(fitted.mean["w"], late.mean(0), rtol=1e-14)
    np.testing.assert_allclose(fitted.variance["w"], late.var(0), rtol=1e-9)
    running = np.array([late[: place + 1].mean(0) for place in range(len(late))])
    assert len(fitted.deviations) == min(RANK, len(late))
    for leaves, expected in zip(fitted.deviations, (late - running)[-RANK:], strict=True):
        np.testing.assert_allclose(leaves["w"], expected, atol=1e-14)


def test_drawn_weights_have_the_covariance_of_the_paper() -> None:
    rng = np.random.default_rng(1)
    deviations = rng.normal(size=(4, 3))
    fitted = Swag(
        {"w": torch.tensor([1.0, -2.0, 0.5]).double()},
        {"w": torch.tensor([0.5, 0.1, 2.0]).double()},
        tuple({"w": torch.from_numpy(row)} for row in deviations),
        scale=3.0,
    )
    drawn = np.array([drawn_weights(fitted, rng)["w"].numpy() for _ in range(40_000)])
    expected = 9 * (np.diag([0.5, 0.1, 2.0]) + deviations.T @ deviations / 3) / 2
    np.testing.assert_allclose(drawn.mean(0), [1.0, -2.0, 0.5], atol=0.05)
    np.testing.assert_allclose(np.cov(drawn.T), expected, atol=0.03 * expected.max())


def test_a_linear_model_whose_posterior_is_known() -> None:
    """Least squares with a whitened design and noise of 1: the posterior of the weights is N(w, I / n). Steps of SGD on
    one row each, drawn anew, with the rate 2 / (n + 1) wander with that covariance (Mandt, Hoffman, Blei, JMLR 2017):
    at the optimum gradients have covariance I, and v = (1 - r)^2 v + r^2 gives v = r / (2 - r) = 1 / n. Rows with large
    errors have large inputs by chance, which leaves some per cent."""
    rng, rows = np.random.default_rng(0), 200
    x = np.linalg.qr(rng.normal(size=(rows, 3)))[0] * np.sqrt(rows)
    best, error = np.array([1.0, -1.0, 0.5]), rng.normal(size=rows)
    error -= x @ (x.T @ error) / rows
    error /= error.std()
    y, rate, w, models = x @ best + error, 2 / (rows + 1), best.copy(), []
    for row in rng.integers(rows, size=60_000):
        w = w - rate * (x[row] @ w - y[row]) * x[row]
        models.append(w)
    state = models_of(with_moments(ALGORITHMS["fedavg"](), 1000), models[::10])
    fitted = fit_swag(state, {})
    np.testing.assert_allclose(fitted.mean["w"], best, atol=0.03)
    np.testing.assert_allclose(fitted.variance["w"].numpy() * rows, np.ones(3), rtol=0.25)


def a_trial(collects: bool = True, **settings: Any) -> Trial:
    algorithm = ALGORITHMS["fedprox"](mu=0.1)
    return trial(with_moments(algorithm, 2) if collects else algorithm, rounds=6, **settings)


def test_training_is_the_same_to_the_bit_and_sends_nothing_more() -> None:
    plain, collecting = a_trial(collects=False), a_trial()
    without, run = after(plain, 6), after(collecting, 6)
    assert_same(without, replace(run, server={part: run.server[part] for part in without.server}))
    assert int(run.server["swag"]["collected"]) == 4
    assert set(collecting.algorithm.broadcast(run.server, 0)) == set(plain.algorithm.broadcast(without.server, 0))


def test_a_run_that_was_saved_goes_on_to_the_last_bit() -> None:
    experiment = a_trial()
    halfway = after(experiment, 4)
    restored = restore_run([experiment], *leaves_of_run(halfway))
    assert_same(after(experiment, 6, restored), after(experiment, 6))


def test_a_stack_collects_the_moments_of_each_of_its_runs() -> None:
    trials = [a_trial(seed=seed) for seed in (7, 8)]
    stacked = ENGINES["stacked"]
    reached = stacked.start(trials)
    for reached, _ in stacked.rounds(trials, reached):  # noqa: B007, B020
        pass
    for experiment, run in zip(trials, stacked.runs(trials, reached), strict=True):
        assert_same(after(experiment, 6), run, atol=1e-9)


def test_arms_that_collect_and_arms_that_do_not_are_never_in_one_stack() -> None:
    from wardround.runs.units import cut

    arms = [{"algorithm": "fedavg"}, {"name": "plain", "algorithm": "fedavg", "uncertainty.method": "none"}]
    study = changed(training={"rounds": 4}, uncertainty={"method": "swag"}, arms=arms)
    assert len(cut(load_plan(*load_study(study)), "auto")) == 2


def test_passes_are_scores_of_drawn_networks_and_repeat() -> None:
    model: Model = logistic()(Shape((3,), class_task(2)))
    params, buffers = model.init(0)
    server = after(a_trial(), 6).server
    fitted = fit_swag(server, params)
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    draws = partial(seeds.generator, 0, "passes", 0)
    scores = swag_passes(fitted, model, buffers, x, 5, draws())
    rng = draws()
    for own in scores:
        weights = drawn_weights(fitted, rng)
        torch.testing.assert_close(own, model.logits(weights, buffers, x, None)[0])
    # whatever the order in which a file brings the leaves back
    turned = replace(fitted, mean=dict(reversed(fitted.mean.items())))
    assert torch.equal(swag_passes(turned, model, buffers, x, 5, draws()), scores)
    assert torch.equal(swag_passes(fitted, model, buffers, x[:7], 5, draws()), scores[:, :7])


def test_the_scale_is_the_likeliest_on_validation_rows() -> None:
    """Scores of +-2 that are right in 88 of 100 rows are as sure as they should be; right in 60, they are too sure, so
    that more uncertainty fits better."""
    model: Model = logistic()(Shape((1,), class_task(2)))
    params = {name: leaf.double() for name, leaf in model.init(0)[0].items()}
    params = {name: torch.full_like(leaf, 2.0 if name == "weight" else 0.0) for name, leaf in params.items()}
    width = tree.apply(lambda leaf: torch.full_like(leaf, 0.05), params)
    fitted = Swag(params, width, (tree.zeros_like(params),) * 2)
    x = torch.tensor([[1.0], [-1.0]]).double().repeat(100, 1)

    def chosen(right: int) -> float:
        y = (x[:, 0] > 0).long()
        y[2 * right :] = 1 - y[2 * right :]
        return choose_scale(fitted, model, {}, [(x, y)], lambda: np.random.default_rng(0)).scale

    assert chosen(60) > chosen(88)
    assert {chosen(60), chosen(88)} <= set(SCALES)


def test_a_run_in_which_no_late_model_came_has_no_width() -> None:
    params: Tree = {"w": torch.ones(2)}
    fitted = fit_swag(moments(with_moments(ALGORITHMS["fedavg"](), 3).init(params, 1)), params)
    assert torch.equal(drawn_weights(fitted, np.random.default_rng(0))["w"], params["w"])


def test_nothing_is_chosen_on_the_rows_of_protected_patients(monkeypatch: pytest.MonkeyPatch) -> None:
    from wardround.uncertainty import row_uncertainty as module

    def chosen(*_: object) -> Swag:
        raise AssertionError("read validation rows")

    monkeypatch.setattr(module, "choose_scale", chosen)
    private = {"example": {"epsilon": 8.0, "delta": 1e-5, "clip": 1.0}}
    data = {"source": "heart", "scale": "ranges", "missing": "range", "public": True}
    arms = [{"algorithm": "fedavg"}]
    study = changed(
        uncertainty={"method": "swag", "passes": 3}, data=data, privacy=private, arms=arms, training={"rounds": 4}
    )
    plan = load_plan(*load_study(study))
    experiment = plan.trial(plan.study.arms[0], plan.study.evaluation.seeds.first)
    run: Run = after(experiment, 4)
    parts = row_uncertainty(experiment, run, Uncertainty(method="swag", passes=3))
    assert all(np.isfinite(part.score).all() for part in parts)
    open_study = replace(experiment, privacy=replace(experiment.privacy, example=None))
    with pytest.raises(AssertionError, match="read validation rows"):
        row_uncertainty(open_study, run, Uncertainty(method="swag", passes=3))


@pytest.mark.parametrize(
    ("arm", "changes", "problem"),
    [
        ({"algorithm": "local"}, {}, "models of their own"),
        ({"algorithm": "clustered"}, {}, "models of their own"),
        ({"algorithm": "ditto"}, {}, "models of their own"),
        ({"algorithm": "fedavg"}, {"training": {"rounds": 3}}, "needs the models of 4 rounds"),
        (
            {"algorithm": "fedavg"},
            {
                "topology": {
                    "kind": "hierarchical",
                    "regions": {"a": ["cleveland", "hungarian"], "b": ["switzerland", "va"]},
                }
            },
            "in some rounds only",
        ),
        ({"algorithm": "fedavg"}, {"model": {"kind": "adapter", "head": "private"}}, "keep parts of the model"),
    ],
    ids=["local", "clustered", "ditto", "rounds", "regions", "private head"],
)
def test_what_has_no_shared_model_of_every_round_is_refused(
    arm: dict[str, Any], changes: dict[str, Any], problem: str
) -> None:
    study = changed(**{"training": {"rounds": 4}, "uncertainty": {"method": "swag"}, "arms": [arm], **changes})
    with pytest.raises(StudyError, match=problem) as refused:
        planned(study)
    assert refused.value.where.endswith("uncertainty: method")


def test_a_bundle_draws_from_the_moments_of_its_run(tmp_path: Path) -> None:
    import wardround
    from wardround.bundles import load_bundle, make_bundle

    study = changed(
        uncertainty={"method": "swag", "passes": 5}, arms=[{"algorithm": "fedavg"}], training={"rounds": 6, "lr": 0.1}
    )
    run = wardround.run_study(study, tmp_path / "runs")
    bundle = load_bundle(make_bundle(run.folder, arm="fedavg", site="hungarian", out=tmp_path / "bundle"))
    assert bundle.uncertainty is not None
    fitted = bundle.uncertainty.swag
    assert fitted is not None
    server = tree.unflatten(tree.unflatten(_leaves(run.folder))["server"])
    for name, leaf in fit_swag(server, bundle.params).mean.items():
        assert torch.equal(fitted.mean[name], leaf)
    assert len(fitted.deviations) == 3
    assert "late rounds (SWAG)" in (bundle.path / "card.md").read_text(encoding="utf-8")


def _leaves(folder: Path) -> Tree:
    from safetensors.torch import load_file

    [file] = (folder / "models" / "fedavg").glob("*.safetensors")
    return load_file(file)
