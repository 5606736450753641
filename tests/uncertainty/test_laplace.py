"""Laplace's approximation: its matrix by autograd, its limits, and the choice of its prior."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from wardround.core import seeds
from wardround.core.errors import StudyError
from wardround.core.tree import Tree
from wardround.models import MODELS, Model, Shape, from_module
from wardround.tasks import Multilabel, class_task, findings_task
from wardround.tasks.task import moderated
from wardround.uncertainty.laplace import (
    PRIORS,
    choose_prior,
    features_of,
    fit_laplace,
    laplace_passes,
    last_layer,
    score_and_variance,
)

TABLE, IMAGES = (5,), (1, 12, 12)
PLACES: list[tuple[str, tuple[int, ...], dict[str, Any], str, int]] = [
    ("logistic", TABLE, {}, "", 5),
    ("logistic", IMAGES, {}, "1", 144),
    ("mlp", TABLE, {"hidden": (6, 4)}, "5", 4),
    ("adapter", TABLE, {"latent": 4, "hidden": (6,), "head": "private"}, "head", 6),
    ("cnn", IMAGES, {"channels": (2, 3), "hidden": 7}, "9", 7),
    ("residual", IMAGES, {"widths": (4, 8), "reduce": 2}, "head", 8),
]
ROWS = 40


def made(name: str, inputs: tuple[int, ...], settings: dict[str, Any], shape: tuple[int, bool]) -> Any:
    """A model with weights in double precision and away from zero, rows and labels."""
    model = MODELS[name](**settings)(Shape(inputs, (findings_task if shape[1] else class_task)(shape[0])))
    rng = np.random.default_rng(2)
    params, buffers = model.init(1)
    params = {key: leaf.double() + torch.tensor(rng.normal(0, 0.3, tuple(leaf.shape))) for key, leaf in params.items()}
    classes, findings = shape
    y = torch.tensor(rng.integers(-1, 2, (ROWS, classes)) if findings else rng.integers(0, classes, ROWS))
    return model, params, buffers, torch.tensor(rng.normal(size=(ROWS, *inputs))), y


SHAPES = pytest.mark.parametrize("shape", [(2, False), (3, False), (3, True)], ids=["two", "several", "findings"])


@SHAPES
@pytest.mark.parametrize(("name", "inputs", "settings", "layer", "width"), PLACES)
def test_the_last_layer_is_found_and_what_goes_into_it(
    name: str, inputs: tuple[int, ...], settings: dict[str, Any], layer: str, width: int, shape: tuple[int, bool]
) -> None:
    model, params, buffers, x, _ = made(name, inputs, settings, shape)
    assert last_layer(model, params, buffers, x) == layer
    h = features_of(model, params, buffers, layer, x)
    assert h.shape == (ROWS, width + 1)
    prefix = f"{layer}." if layer else ""
    scores = h[:, :-1] @ params[f"{prefix}weight"].mT + params[f"{prefix}bias"]
    torch.testing.assert_close(scores, model.logits(params, buffers, x, None)[0], rtol=0, atol=1e-12)
    assert (h[:, -1] == 1).all()


def precision_by_autograd(model: Model, params: Tree, buffers: Tree, x: Tensor, y: Tensor, output: int) -> Tensor:
    """Second derivatives of the summed loss by one output's weights and bias. In the last layer scores are linear in
    the weights, so that the Gauss-Newton matrix is all of it."""
    layer = last_layer(model, params, buffers, x)
    names = [f"{layer}.weight", f"{layer}.bias"]

    def loss(both: Tensor) -> Tensor:
        weight, bias = params[names[0]].clone(), params[names[1]].clone()
        weight[output], bias[output] = both[:-1], both[-1]
        scores = model.logits({**params, names[0]: weight, names[1]: bias}, buffers, x, None)[0]
        losses = model.task.row_losses(scores, y)
        known = (
            (y >= 0).sum(-1) if isinstance(model.task, Multilabel) else 1
        )  # a row's loss is a mean over the findings that it knows
        return (losses * known).sum()

    at = torch.cat([params[names[0]][output], params[names[1]][output : output + 1]])
    precision: Tensor = torch.autograd.functional.hessian(loss, at)  # type: ignore[no-untyped-call]
    return precision


@SHAPES
def test_variances_follow_from_the_second_derivatives_of_the_loss(shape: tuple[int, bool]) -> None:
    model, params, buffers, x, y = made("mlp", TABLE, {"hidden": (6, 4)}, shape)
    for full in (True, False):
        fitted = fit_laplace(model, params, buffers, x, y, prior=0.7, full=full)
        scores, variance = score_and_variance(fitted, model, params, buffers, x)
        torch.testing.assert_close(scores, model.logits(params, buffers, x, None)[0], rtol=0, atol=1e-12)
        h = features_of(model, params, buffers, fitted.layer, x)
        for output in range(scores.shape[1]):
            precision = precision_by_autograd(model, params, buffers, x, y, output)
            precision = (precision if full else torch.diag(precision.diag())) + 0.7 * torch.eye(5, dtype=torch.float64)
            expected = (h * torch.linalg.solve(precision, h.mT).mT).sum(1)
            torch.testing.assert_close(variance[:, output], expected, rtol=1e-9, atol=1e-12)


def test_more_rows_and_a_narrower_prior_make_surer() -> None:
    model, params, buffers, x, y = made("mlp", TABLE, {"hidden": (6, 4)}, (2, False))
    once = fit_laplace(model, params, buffers, x, y)
    twice = fit_laplace(model, params, buffers, torch.cat([x, x]), torch.cat([y, y]))

    def variance(fitted: Any) -> Tensor:
        return score_and_variance(fitted, model, params, buffers, x)[1]

    assert (variance(twice) < variance(once)).all()
    assert (variance(replace(once, prior=10.0)) < variance(once)).all()
    # without rows there is the prior alone: |h|^2 / prior
    none = replace(once, values=once.values * 0)
    h = features_of(model, params, buffers, once.layer, x)
    torch.testing.assert_close(variance(none)[:, 0], h.square().sum(1))
    # twice the rows with twice the prior are half the variance
    torch.testing.assert_close(variance(replace(twice, prior=2.0)), variance(once) / 2)


def test_a_finding_that_is_never_known_has_the_priors_variance() -> None:
    model, params, buffers, x, y = made("mlp", TABLE, {"hidden": (6, 4)}, (3, True))
    y[:, 1] = -1
    fitted = fit_laplace(model, params, buffers, x, y, prior=4.0)
    h = features_of(model, params, buffers, fitted.layer, x)
    torch.testing.assert_close(fitted.variance(h)[:, 1], h.square().sum(1) / 4)


def test_the_prior_is_that_under_which_validation_rows_are_most_likely() -> None:
    """A model that is far too sure of labels drawn by a coin needs the widest prior; one that is right throughout the
    narrowest."""
    model, params, buffers, x, _ = made("logistic", TABLE, {}, (2, False))
    params = {name: 20 * leaf for name, leaf in params.items()}
    right = (model.logits(params, buffers, x, None)[0][:, 0] > 0).long()
    coin = torch.arange(ROWS) % 2
    fitted = fit_laplace(model, params, buffers, x, right)
    assert choose_prior(fitted, model, params, buffers, x, coin, PRIORS).prior == min(PRIORS)
    assert choose_prior(fitted, model, params, buffers, x, right, PRIORS).prior == max(PRIORS)
    scores, variance = score_and_variance(fitted, model, params, buffers, x)
    best = choose_prior(fitted, model, params, buffers, x, coin, (0.5, 5.0, 50.0))
    losses = {}
    for prior in (0.5, 5.0, 50.0):
        variance = score_and_variance(replace(fitted, prior=prior), model, params, buffers, x)[1]
        losses[prior] = float(model.task.row_losses(moderated(scores, variance), coin).mean())
    assert best.prior == min(losses, key=lambda prior: losses[prior])


def test_unless_told_otherwise_no_prior_is_above_what_the_weights_allow() -> None:
    """Weights of 1 and -1 have a mean square of 1, so that a precision is at most 1. Rows that are all called right
    would choose the highest that there is."""
    model, params, buffers, x, _ = made("logistic", TABLE, {}, (2, False))
    weight = torch.ones_like(params["weight"])
    weight[:, ::2] = -1
    params = {**params, "weight": weight}
    right = (model.logits(params, buffers, x, None)[0][:, 0] > 0).long()
    fitted = fit_laplace(model, params, buffers, x, right)
    assert choose_prior(fitted, model, params, buffers, x, right, PRIORS).prior == max(PRIORS)
    assert choose_prior(fitted, model, params, buffers, x, right).prior == pytest.approx(1)
    large = {**params, "weight": 100 * weight}  # a mean square of 10,000 is beyond all that are tried
    assert choose_prior(fitted, model, large, buffers, x, right).prior == pytest.approx(1e-4)


def test_passes_have_the_mean_and_variance_of_the_scores() -> None:
    model, params, buffers, x, y = made("mlp", TABLE, {"hidden": (6, 4)}, (3, False))
    fitted = fit_laplace(model, params, buffers, x, y)
    scores, variance = score_and_variance(fitted, model, params, buffers, x)
    passes = laplace_passes(fitted, model, params, buffers, x, 30, seeds.generator(1, "laplace"))
    assert passes.shape == (30, ROWS, 3)
    torch.testing.assert_close(passes.mean(0), scores)
    torch.testing.assert_close(passes.var(0, correction=0), variance)
    # quantiles in an order of each output's own
    assert not torch.equal(passes[:, 0, 0].argsort(), passes[:, 0, 1].argsort())


def test_mackays_mean_probability_against_the_integral() -> None:
    """Over 100,000 quantiles of normal scores; the formula is known to be within two hundredths."""
    scores, variance = torch.meshgrid(torch.linspace(-6, 6, 25), torch.tensor([0.0, 0.5, 2.0, 8.0]), indexing="ij")
    quantiles = torch.special.ndtri((torch.arange(100_000) + 0.5) / 100_000)
    exact = torch.sigmoid(scores[..., None] + variance[..., None].sqrt() * quantiles).mean(-1)
    difference = (torch.sigmoid(moderated(scores, variance)) - exact).abs()
    assert difference.max() < 0.02
    assert difference[:, 0].max() < 1e-6


def test_no_rows_are_refused() -> None:
    model, params, buffers, x, y = made("mlp", TABLE, {"hidden": (6, 4)}, (2, False))
    with pytest.raises(StudyError, match="no training rows"):
        fit_laplace(model, params, buffers, x[:0], y[:0])


class Rounded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x))


def test_a_network_whose_scores_come_from_elsewhere_is_refused() -> None:
    model = from_module(Rounded, class_task(3))
    with pytest.raises(StudyError, match="do not come from a linear layer"):
        last_layer(model, *model.init(0), torch.ones(4, 5))
