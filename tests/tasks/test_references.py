"""Full-batch descent on pooled rows ends where scikit-learn, statsmodels and SciPy do: the same coefficients, in the
target's own units; and one step of FedAvg on all rows is one step of pooled descent."""

from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
import torch
from scipy.optimize import minimize
from scipy.special import huber
from sklearn.linear_model import PoissonRegressor, Ridge
from statsmodels.discrete.discrete_model import NegativeBinomial

from tests.small_federations import after, site, trial
from wardround.algorithms import ALGORITHMS
from wardround.core.threads import torch_threads
from wardround.core.tree import Tree
from wardround.data.site import Site
from wardround.models import Shape, built
from wardround.models.logistic import linear
from wardround.tasks import Count, Regression, Task

RNG = np.random.default_rng(11)
ROWS, SITES = 300, (60, 110, 130)
X = RNG.normal(size=(ROWS, 4)) + np.repeat([-0.3, 0.1, 0.2], SITES)[:, None]
EXPOSURE = RNG.uniform(0.5, 12.0, ROWS)
STAY = 7 + X @ [2.0, -1.0, 0.5, 0.0] + RNG.standard_t(3, ROWS)
ADMISSIONS = RNG.negative_binomial(2, 2 / (2 + EXPOSURE * np.exp(-1 + X @ [0.3, -0.2, 0.0, 0.1]))).astype(float)
COUNTED = np.column_stack([ADMISSIONS, EXPOSURE])
DESIGN = sm.add_constant(X)


def sites_of(task: Task, target: np.ndarray) -> tuple[Site, ...]:
    """With the scale that all of them have together."""
    scale = task.scale(np.sum([task.target_sums(part) for part in np.split(target, np.cumsum(SITES)[:-1])], axis=0))
    y = task.training_target(target, scale)
    places = np.split(np.arange(ROWS), np.cumsum(SITES)[:-1])
    return tuple(
        site(f"site-{number}", torch.from_numpy(X[rows]), torch.from_numpy(y[rows]))
        for number, rows in enumerate(places)
    )


def trained(
    task: Task, target: np.ndarray, algorithm: str = "pooled", l2: float = 0.0, rounds: int = 1, **training: Any
) -> Tree:
    """The shared model; all rows are one batch."""
    model = built(linear(l2=l2), Shape((X.shape[1],), task))
    settings = {"batch_size": ROWS, "local_epochs": 2500, "lr": 0.2, **training}
    with torch_threads(1):
        run = after(trial(ALGORITHMS[algorithm](), sites_of(task, target), model, **settings), rounds)
    return run.server["params"]


def coefficients(params: Tree) -> np.ndarray:
    """The intercept first."""
    return np.concatenate([params["bias"].numpy(), params["weight"].numpy().ravel()])


def in_units(params: Tree) -> np.ndarray:
    """Of the target without its centre, in its spread, back to the target itself."""
    scaled = coefficients(params)
    return np.concatenate([[scaled[0] * STAY.std() + STAY.mean()], scaled[1:] * STAY.std()])


def of_rate(params: Tree) -> np.ndarray:
    """Of the rate beside that of all rows, back to the rate itself."""
    found = coefficients(params)
    return np.concatenate([[found[0] + np.log(ADMISSIONS.sum() / EXPOSURE.sum())], found[1:]])


@pytest.mark.parametrize("l2", [0.0, 0.05])
def test_least_squares_are_ridge_regression(l2: float) -> None:
    """The mean of half the squares with l2 / 2 times the squared weights is their sum with rows x l2."""
    reference = Ridge(alpha=ROWS * l2).fit(X, STAY)
    found = in_units(trained(Regression(("stay",)), STAY, l2=l2))
    np.testing.assert_allclose(found, [reference.intercept_, *reference.coef_], rtol=0, atol=1e-5)


def test_hubers_loss_has_the_minimum_that_scipy_finds() -> None:
    delta = 1.0
    reference = minimize(  # type: ignore[call-overload]
        lambda beta: float(huber(delta * STAY.std(), STAY - DESIGN @ beta).mean()),
        np.linalg.lstsq(DESIGN, STAY, rcond=None)[0],
        method="BFGS",
        tol=1e-9,
    ).x
    found = in_units(trained(Regression(("stay",), loss="huber", delta=delta), STAY))
    np.testing.assert_allclose(found, reference, rtol=0, atol=1e-5)
    squared = in_units(trained(Regression(("stay",)), STAY))
    assert np.abs(squared - found).max() > 0.01  # patients far from the others weigh less


def test_poisson_regression_is_that_of_statsmodels() -> None:
    reference = sm.GLM(ADMISSIONS, DESIGN, family=sm.families.Poisson(), offset=np.log(EXPOSURE)).fit(tol=1e-12).params
    found = of_rate(trained(Count(("admissions",), exposure="months"), COUNTED))
    np.testing.assert_allclose(found, reference, rtol=0, atol=1e-5)


def test_a_penalised_poisson_regression_is_that_of_scikit_learn() -> None:
    """Which takes rates, weighted by their exposure, and the mean over exposure where ours is in mean counts."""
    l2 = 0.1
    alpha = l2 * ADMISSIONS.sum() / EXPOSURE.sum()
    reference = PoissonRegressor(alpha=alpha, tol=1e-10, max_iter=1000).fit(
        X, ADMISSIONS / EXPOSURE, sample_weight=EXPOSURE
    )
    found = of_rate(trained(Count(("admissions",), exposure="months"), COUNTED, l2=l2))
    np.testing.assert_allclose(found, [reference.intercept_, *reference.coef_], rtol=0, atol=1e-5)


@pytest.mark.parametrize("dispersion", [0.5, 2.0])
def test_a_negative_binomial_of_known_dispersion_is_that_of_statsmodels(dispersion: float) -> None:
    family = sm.families.NegativeBinomial(alpha=dispersion)
    reference = sm.GLM(ADMISSIONS, DESIGN, family=family, offset=np.log(EXPOSURE)).fit(tol=1e-12, maxiter=500).params
    task = Count(("admissions",), exposure="months", dispersion=dispersion)
    np.testing.assert_allclose(of_rate(trained(task, COUNTED, lr=0.5)), reference, rtol=0, atol=1e-5)


def test_a_fitted_dispersion_is_the_maximum_likelihood_of_statsmodels() -> None:
    reference = NegativeBinomial(ADMISSIONS, DESIGN, exposure=EXPOSURE).fit(disp=0, maxiter=500, gtol=1e-9).params
    params = trained(Count(("admissions",), exposure="months", dispersion="fitted"), COUNTED, lr=0.5)
    np.testing.assert_allclose(of_rate(params), reference[:-1], rtol=0, atol=1e-3)
    assert float(params["task.log_dispersion"].exp()) == pytest.approx(reference[-1], abs=1e-3)


EXAMPLES: dict[str, tuple[Task, np.ndarray]] = {
    "regression": (Regression(("stay",)), STAY),
    "huber": (Regression(("stay",), loss="huber"), STAY),
    "poisson": (Count(("admissions",), exposure="months"), COUNTED),
    "negative binomial": (Count(("admissions",), exposure="months", dispersion=0.5), COUNTED),
    "fitted": (Count(("admissions",), exposure="months", dispersion="fitted"), COUNTED),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_fedavg_with_one_step_on_all_rows_is_pooled_descent(name: str) -> None:
    task, target = EXAMPLES[name]
    steps: dict[str, Any] = {"rounds": 50, "local_epochs": 1, "l2": 0.01}
    federated, pooled = (trained(task, target, algorithm, **steps) for algorithm in ("fedavg", "pooled"))
    assert federated.keys() == pooled.keys()
    for leaf, values in pooled.items():
        torch.testing.assert_close(federated[leaf], values, rtol=0, atol=1e-10)
