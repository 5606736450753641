"""How sure models of numbers are: Laplace in closed form, spreads in units, and what is refused."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from statsmodels.genmod.families import NegativeBinomial, Poisson
from statsmodels.genmod.generalized_linear_model import GLM
from torch import Tensor

from tests.small_federations import after, ragged_sites, trial
from tests.uncertainty.test_rows import with_sides
from wardround.algorithms import ALGORITHMS
from wardround.core.errors import StudyError
from wardround.core.tree import Tree
from wardround.evaluation.prediction import predict
from wardround.models import MODELS, Model, Shape
from wardround.models.mlp import mlp
from wardround.study.schema import Uncertainty
from wardround.tasks import Count, Regression, Task
from wardround.training.trial import Trial
from wardround.uncertainty.laplace import (
    choose_prior,
    fit_laplace,
    laplace_passes,
    last_layer,
    score_and_variance,
    squared_errors,
)
from wardround.uncertainty.row_uncertainty import of_passes, row_uncertainty

ROWS, CENTRE, SPREAD, RATE = 120, 40.0, 8.0, 1.3
DAYS = Regression(("days",))
VISITS = Count(("visits",))
OVERDISPERSED = Count(("visits",), dispersion=0.6)
NUMBERS = pytest.mark.parametrize(
    "task", [DAYS, VISITS, OVERDISPERSED], ids=["regression", "poisson", "negative binomial"]
)


def target(task: Task, x: Tensor, rng: np.random.Generator) -> Tensor:
    """As training sees it: the value and its scale, or the count, its exposure, and the scale of both."""
    z = x.double().numpy()[:, 0]
    if task is DAYS:
        value = CENTRE + SPREAD * (0.7 * z + 0.5 * rng.normal(size=len(z)))
        return torch.tensor(np.stack([value, np.full(len(z), CENTRE), np.full(len(z), SPREAD)], axis=1))
    exposure = rng.uniform(0.5, 4, len(z))
    count = rng.poisson(exposure * RATE * np.exp(0.4 * z)).astype(float)
    return torch.tensor(np.column_stack([count, exposure, np.full(len(z), np.log(RATE)), np.full(len(z), 2.5)]))


def linear(task: Task) -> tuple[Model, Tree, Tree, Tensor, Tensor]:
    rng = np.random.default_rng(2)
    model = MODELS["linear"]()(Shape((3,), task))
    params, buffers = model.init(1)
    params = {
        name: leaf.double() + torch.tensor(rng.normal(0, 0.2, tuple(leaf.shape))) for name, leaf in params.items()
    }
    x = torch.tensor(rng.normal(size=(ROWS, 3)))
    return model, params, buffers, x, target(task, x, rng)


def test_laplace_of_a_linear_regression_is_its_exact_posterior() -> None:
    """(X'X / variance of errors + prior)^-1, by numpy, and so are the variances of scores."""
    model, params, buffers, x, y = linear(DAYS)
    fitted = fit_laplace(model, params, buffers, x, y, prior=0.3)
    design = np.column_stack([x.numpy(), np.ones(ROWS)])
    score, variance = score_and_variance(fitted, model, params, buffers, x)
    noise = float(((score[:, 0] - (y[:, 0] - CENTRE) / SPREAD) ** 2).mean())
    assert fitted.noise == pytest.approx(noise)
    posterior = np.linalg.inv(design.T @ design / noise + 0.3 * np.eye(4))
    assert variance.numpy()[:, 0] == pytest.approx(np.einsum("ni,ij,nj->n", design, posterior, design))


@pytest.mark.parametrize("task", [VISITS, OVERDISPERSED], ids=["poisson", "negative binomial"])
def test_laplace_of_a_count_has_the_information_of_statsmodels(task: Count) -> None:
    """At the likeliest coefficients, which statsmodels finds, its covariance is ours without a prior."""
    model, params, buffers, x, y = linear(task)
    design = np.column_stack([x.numpy(), np.ones(ROWS)])
    family = NegativeBinomial(alpha=task.dispersion) if task.dispersion else Poisson()
    glm = GLM(y[:, 0].numpy(), design, family, exposure=RATE * y[:, 1].numpy()).fit(tol=1e-12)
    params = {
        "weight": torch.tensor(glm.params[None, :3]),
        "bias": torch.tensor(glm.params[3:]),
    }
    fitted = fit_laplace(model, params, buffers, x, y, prior=1e-9)
    variance = score_and_variance(fitted, model, params, buffers, x)[1].numpy()[:, 0]
    covariance = glm.cov_params() / glm.scale
    assert variance == pytest.approx(np.einsum("ni,ij,nj->n", design, covariance, design), rel=1e-6)
    assert fitted.noise == 1


def test_errors_of_sites_add_up() -> None:
    model, params, buffers, x, y = linear(DAYS)
    layer = last_layer(model, params, buffers, x)
    parts = [
        squared_errors(model, params, buffers, layer, x[rows], y[rows]) for rows in (slice(0, 50), slice(50, None))
    ]
    assert sum(parts) == pytest.approx(squared_errors(model, params, buffers, layer, x, y))
    model, params, buffers, x, y = linear(VISITS)
    assert squared_errors(model, params, buffers, "", x, y) == 0


def test_the_prior_is_that_under_which_validation_rows_are_likeliest() -> None:
    """By hand: the negative log likelihood of a normal distribution whose variance is that of scores and of errors,
    and of Poisson's with the mean of exp(score), exp(score + variance / 2)."""
    for task in (DAYS, VISITS):
        model, params, buffers, x, y = linear(task)
        rng = np.random.default_rng(9)
        other = torch.tensor(rng.normal(size=(60, 3)) * 3)
        truth = target(task, other, rng)
        fitted = fit_laplace(model, params, buffers, x[:15], y[:15])
        priors = (0.01, 0.1, 1.0, 10.0)
        chosen = choose_prior(fitted, model, params, buffers, other, truth, priors)
        losses = []
        for prior in priors:
            score, variance = score_and_variance(replace(fitted, prior=prior), model, params, buffers, other)
            s, v = score[:, 0].numpy(), variance[:, 0].numpy()
            if task is DAYS:
                error = s - (truth[:, 0].numpy() - CENTRE) / SPREAD
                losses.append((np.log(v + fitted.noise) + error**2 / (v + fitted.noise)).mean() / 2)
            else:
                log_mean = s + v / 2 + np.log(RATE * truth[:, 1].numpy())
                losses.append((np.exp(log_mean) - truth[:, 0].numpy() * log_mean).mean())
        assert chosen.prior == priors[int(np.argmin(losses))]


def test_hubers_loss_has_no_likelihood() -> None:
    model, params, buffers, x, _ = linear(Regression(("days",), loss="huber"))
    with pytest.raises(StudyError, match="no likelihood"):
        fit_laplace(model, params, buffers, x, target(DAYS, x, np.random.default_rng(0)))


def test_a_dispersion_that_is_trained_is_not_in_the_last_layer() -> None:
    model, params, buffers, x, y = linear(Count(("visits",), dispersion="fitted"))
    with pytest.raises(StudyError, match="not in the last layer"):
        fit_laplace(model, params, buffers, x, y)


@NUMBERS
def test_the_spread_of_passes_is_in_units(task: Task) -> None:
    model, params, buffers, x, y = linear(task)
    fitted = fit_laplace(model, params, buffers, x, y)
    scores = laplace_passes(fitted, model, params, buffers, x, 40, np.random.default_rng(0))
    predictions = task.predictions(scores, y).numpy()
    mean, total, aleatoric, epistemic, spread = of_passes(task, predictions)
    assert mean == pytest.approx(predictions.mean(axis=0))
    assert spread == pytest.approx(predictions.std(axis=0))
    assert epistemic is spread
    variance = score_and_variance(fitted, model, params, buffers, x)[1].numpy()[:, 0]
    if task is DAYS:
        assert spread == pytest.approx(SPREAD * np.sqrt(variance), rel=1e-6)  # quantiles have exactly this variance
        assert np.isnan(aleatoric).all()
        assert np.isnan(total).all()
    else:
        dispersion = getattr(task, "dispersion", 0.0)
        assert aleatoric**2 == pytest.approx((predictions + dispersion * predictions**2).mean(axis=0))
        assert total**2 == pytest.approx(aleatoric**2 + spread**2)


def test_one_pass_has_no_spread_and_a_count_has_that_of_its_family() -> None:
    mean, total, *others = of_passes(VISITS, np.array([[4.0, 9.0]]))
    assert mean.tolist() == [4, 9]
    assert total.tolist() == [2, 3]
    assert np.isnan(others).all()
    assert np.isnan(of_passes(DAYS, np.array([[4.0, 9.0]]))[1:]).all()


def number_trial(task: Task, **options: Any) -> Trial:
    rng = np.random.default_rng(1)
    sites = tuple(
        replace(site, train=replace(site.train, y=target(task, site.train.x, rng)))
        for site in ragged_sites(2, sizes=(60, 90, 48))
    )
    model = mlp(hidden=(6,), dropout=0.3)(Shape((3,), task))
    return trial(ALGORITHMS["fedavg"](), with_sides(sites), model, 2, rounds=3, **options)


@NUMBERS
@pytest.mark.parametrize("method", ["none", "dropout", "laplace"])
def test_rows_of_a_trial_have_predictions_and_spreads_in_units(task: Task, method: Any) -> None:
    experiment = number_trial(task)
    run = after(experiment, 3)
    measured = row_uncertainty(experiment, run, Uncertainty(method=method, passes=12))
    plain = {part.site: part for part in predict(experiment, run)}
    for part in measured[1::2]:
        assert part.label.tolist() == plain[part.site].label.tolist()
        assert part.score.shape == part.spread.shape == part.label.shape
        assert np.isfinite(part.score).all()
        if method == "none":
            assert part.score == pytest.approx(plain[part.site].score)
            assert np.isnan(part.spread).all()
        else:
            assert (part.spread > 0).all()
            assert np.ptp(part.spread) > 0


def test_a_diverged_model_and_a_site_without_validation_rows_are_told_as_nothing() -> None:
    experiment = number_trial(VISITS)
    first = experiment.scored[0]
    bare = replace(first, validation=replace(first.validation, x=first.validation.x[:0], y=first.validation.y[:0]))
    bare = replace(bare, validation_rows=np.array([], dtype=np.int64))
    experiment = replace(experiment, scored=(bare, *experiment.scored[1:]))
    run = after(experiment, 2)
    empty = row_uncertainty(experiment, run, Uncertainty(method="dropout", passes=3))[0]
    assert empty.label.shape == empty.score.shape == empty.spread.shape == (0,)
    lost = replace(
        run,
        server={
            part: {name: torch.full_like(leaf, torch.nan) for name, leaf in leaves.items()}
            for part, leaves in run.server.items()
        },
    )
    for part in row_uncertainty(experiment, lost, Uncertainty(method="none")):
        assert np.isnan(part.score).all()
        assert np.isnan(part.total).all()
