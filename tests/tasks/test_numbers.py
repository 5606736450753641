"""Regression and count against scikit-learn, statsmodels and torch's own derivatives."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import gammaln
from sklearn import metrics as sklearn_metrics
from statsmodels.genmod.families import NegativeBinomial, Poisson

from wardround.core.errors import StudyError
from wardround.tasks import TASKS, Count, Regression, Task, declared_task, read_task
from wardround.tasks.summed import SummedTask

RNG = np.random.default_rng(3)
ROWS = 400
STAY = RNG.gamma(2.0, 4.0, ROWS)
PREDICTED_STAY = STAY * 0.6 + RNG.normal(3.0, 2.0, ROWS)
EXPOSURE = RNG.uniform(0.2, 3.0, ROWS)
ADMISSIONS = RNG.poisson(EXPOSURE * 1.4).astype(float)
EXPECTED = EXPOSURE * RNG.uniform(0.5, 2.5, ROWS)
CASES: list[tuple[SummedTask, np.ndarray, np.ndarray]] = [
    (Regression(("stay",)), STAY, PREDICTED_STAY),
    (Count(("admissions",)), ADMISSIONS, EXPECTED),
    (Count(("admissions",), dispersion=0.7), ADMISSIONS, EXPECTED),
]
IDS = ["regression", "poisson", "negative binomial"]
each_case = pytest.mark.parametrize(("task", "label", "score"), CASES, ids=IDS)


def test_regression_figures_are_those_of_scikit_learn() -> None:
    figures = Regression(("stay",)).figures(STAY, PREDICTED_STAY)
    slope, intercept = np.polyfit(PREDICTED_STAY, STAY, 1)
    assert figures == pytest.approx(
        {
            "mae": sklearn_metrics.mean_absolute_error(STAY, PREDICTED_STAY),
            "rmse": sklearn_metrics.root_mean_squared_error(STAY, PREDICTED_STAY),
            "r2": sklearn_metrics.r2_score(STAY, PREDICTED_STAY),
            "calibration_slope": slope,
            "calibration_intercept": intercept,
        },
        rel=1e-10,
    )


@pytest.mark.parametrize("dispersion", [0.0, 0.3, 2.0])
def test_the_deviance_is_that_of_statsmodels(dispersion: float) -> None:
    family = NegativeBinomial(alpha=dispersion) if dispersion else Poisson()
    figures = Count(("admissions",), dispersion=dispersion).figures(ADMISSIONS, EXPECTED)
    assert figures["deviance"] == pytest.approx(family.deviance(ADMISSIONS, EXPECTED) / ROWS, rel=1e-10)
    assert figures["calibration_ratio"] == pytest.approx(ADMISSIONS.sum() / EXPECTED.sum(), rel=1e-12)
    assert figures["mae"] == pytest.approx(np.abs(ADMISSIONS - EXPECTED).mean(), rel=1e-12)


@each_case
def test_figures_of_groups_and_of_resamples_are_those_of_their_rows(
    task: SummedTask, label: np.ndarray, score: np.ndarray
) -> None:
    group = RNG.integers(0, 3, ROWS)
    grouped = task.grouped_figures(group, 4, label, score)
    weights = np.stack([np.bincount(RNG.integers(0, ROWS, ROWS), minlength=ROWS) for _ in range(3)])
    resampled = task.weighted_figures(label, score)[0](weights)
    for number in range(3):
        own = task.figures(label[group == number], score[group == number])
        assert grouped[number] == pytest.approx(list(own.values()), rel=1e-10)
        repeated = np.repeat(np.arange(ROWS), weights[number])
        drawn = task.figures(label[repeated], score[repeated])
        assert resampled[number] == pytest.approx(list(drawn.values()), rel=1e-9)
    assert np.isnan(grouped[3]).all()  # it has no row
    assert [metric.name for metric in task.metrics] == list(own)


@each_case
def test_sums_of_hospitals_give_the_figures_of_all_their_rows(
    task: SummedTask, label: np.ndarray, score: np.ndarray
) -> None:
    sites = np.array_split(np.arange(ROWS), [50, 53, 300])
    sums = sum(task.row_terms(label[rows], score[rows]).sum(axis=0) for rows in sites)
    merged = {name: float(value) for name, value in task.of_sums(np.asarray(sums)).items()}
    assert merged == pytest.approx(task.figures(label, score), rel=1e-10)


def test_values_far_from_zero_keep_their_digits_when_counted_from_an_origin() -> None:
    """A million and a few units: squares have twelve digits before those that matter."""
    far = Regression(("t",), range=(1e6 - 50, 1e6 + 50)).figures(STAY + 1e6, PREDICTED_STAY + 1e6)
    near = Regression(("t",)).figures(STAY, PREDICTED_STAY)
    for name in ("mae", "rmse", "r2", "calibration_slope"):
        assert far[name] == pytest.approx(near[name], rel=1e-8)
    slope = near["calibration_slope"]
    assert far["calibration_intercept"] == pytest.approx(near["calibration_intercept"] + (1 - slope) * 1e6, rel=1e-8)


@pytest.mark.parametrize("value", [3.0, 0.0, 1e6 + 0.1])
def test_a_constant_has_no_r2_and_a_constant_prediction_no_slope(value: float) -> None:
    constant = np.full(7, value)
    figures = Regression(("t",)).figures(constant, PREDICTED_STAY[:7])
    assert np.isnan(figures["r2"])
    assert np.isfinite(figures["mae"])
    assert np.isnan(Regression(("t",)).figures(STAY[:7], constant)["calibration_slope"])


TARGETS = {
    "regression": torch.tensor(np.stack([STAY, np.full(ROWS, 8.0), np.full(ROWS, 5.0)], axis=1)),
    "huber": torch.tensor(np.stack([STAY, np.full(ROWS, 8.0), np.full(ROWS, 5.0)], axis=1)),
    "poisson": torch.tensor(Count(("a",)).training_target(np.stack([ADMISSIONS, EXPOSURE], axis=1), (0.3, 2.0))),
    "negative binomial": torch.tensor(
        Count(("a",)).training_target(np.stack([ADMISSIONS, EXPOSURE], axis=1), (0.3, 2.0))
    ),
}
LOSSES: dict[str, SummedTask] = {
    "regression": Regression(("stay",)),
    "huber": Regression(("stay",), loss="huber", delta=0.8),
    "poisson": Count(("admissions",)),
    "negative binomial": Count(("admissions",), dispersion=0.7),
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_written_derivative_is_that_of_the_loss(name: str) -> None:
    task, y = LOSSES[name], TARGETS[name]
    scores = torch.tensor(RNG.normal(size=(ROWS, 2)), requires_grad=True)  # two models
    losses, errors = task.losses_and_errors(scores, y)
    (slope,) = torch.autograd.grad(losses.sum(), scores)
    torch.testing.assert_close(errors, slope, rtol=1e-10, atol=1e-12)
    single = task.row_losses(scores[:, :1], y)
    torch.testing.assert_close(single, losses[:, 0])


@pytest.mark.parametrize("dispersion", [0.0, 0.7])
def test_the_loss_is_the_likelihood_of_statsmodels_but_for_a_constant(dispersion: float) -> None:
    task = Count(("admissions",), dispersion=dispersion)
    family = NegativeBinomial(alpha=dispersion) if dispersion else Poisson()
    y = TARGETS["poisson"]
    scores = [torch.tensor(RNG.normal(size=(ROWS, 1))) for _ in range(2)]
    ours = [float(task.row_losses(s, y).sum()) for s in scores]
    theirs = [-family.loglike(ADMISSIONS, task.predictions(s, y).numpy()) for s in scores]
    assert 2.0 * (ours[0] - ours[1]) == pytest.approx(theirs[0] - theirs[1], rel=1e-9)  # counted in mean counts


def test_predictions_are_in_the_units_of_the_target() -> None:
    y = TARGETS["regression"]
    scaled = (y[:, :1] - 8.0) / 5.0
    predicted = LOSSES["regression"].predictions(scaled, y)
    torch.testing.assert_close(predicted, y[:, 0])
    assert LOSSES["regression"].row_figures(scaled, y).abs().max() < 1e-12
    counts = TARGETS["poisson"]
    predicted = LOSSES["poisson"].predictions(torch.zeros(ROWS, 1), counts)
    torch.testing.assert_close(predicted, counts[:, 1] * np.exp(0.3))


def test_a_huge_score_overflows_nothing() -> None:
    y = TARGETS["poisson"]
    losses, errors = LOSSES["poisson"].losses_and_errors(torch.full((ROWS, 1), 1e4, dtype=torch.float32), y)
    assert torch.isfinite(losses).all()
    assert torch.isfinite(errors).all()


@pytest.mark.parametrize("kind", TASKS)
def test_a_task_is_read_as_it_was_written(kind: str) -> None:
    options: dict[str, Any] = {
        "regression": {"loss": "huber", "delta": 2.0, "range": (0.0, 60.0), "unit": "days"},
        "count": {"dispersion": 0.5, "exposure": "months"},
    }
    names = ("a", "b")[: TASKS[kind].name_count]
    task: Task = TASKS[kind](names, **options.get(kind, {}))
    assert read_task(json.loads(json.dumps(task.to_json()))) == task


@pytest.mark.parametrize("dispersion", [0.2, 0.7, 3.0])
def test_the_loss_with_a_fitted_dispersion_is_the_likelihood_of_statsmodels(dispersion: float) -> None:
    """But for lgamma(y + 1), which no model and no dispersion changes."""
    task, y = Count(("admissions",), dispersion="fitted"), TARGETS["poisson"]
    score = torch.tensor(RNG.normal(size=(ROWS, 1)))
    both = torch.cat([score, torch.full((ROWS, 1), float(np.log(dispersion)), dtype=torch.float64)], dim=1)
    ours = 2.0 * float(task.row_losses(both, y).sum())
    means = task.predictions(both, y).numpy()
    theirs = -NegativeBinomial(alpha=dispersion).loglike(ADMISSIONS, means)
    assert ours == pytest.approx(theirs - gammaln(ADMISSIONS + 1).sum(), rel=1e-9)


def test_the_scale_of_a_number_is_the_mean_and_sd_over_all_sites() -> None:
    task, parts = Regression(("stay",)), np.array_split(STAY, [30, 200])
    scale = task.scale(np.sum([task.target_sums(part) for part in parts], axis=0))
    assert scale == pytest.approx((STAY.mean(), STAY.std()), rel=1e-10)
    y = task.training_target(STAY, scale)
    assert y.shape == (ROWS, 3)
    np.testing.assert_array_equal(task.label(torch.from_numpy(y)).numpy(), STAY)
    assert Regression(("t",)).scale(task.target_sums(np.full(9, 7.1))) == pytest.approx((7.1, 1.0))


def test_with_a_public_range_nothing_is_read_off_rows() -> None:
    for task in (Regression(("stay",), range=(0.0, 60.0)), Count(("visits",), range=(0.0, 20.0))):
        assert task.target_sums(np.ones((4, 2))).size == 0
    assert Regression(("stay",), range=(0.0, 60.0)).scale(np.zeros(0)) == (30.0, 15.0)
    assert Count(("visits",), range=(0.0, 20.0)).scale(np.zeros(0)) == pytest.approx((np.log(5.0), 5.0))


def test_the_scale_of_a_count_is_the_rate_and_the_mean_over_all_sites() -> None:
    task, target = Count(("admissions",), exposure="months"), np.stack([ADMISSIONS, EXPOSURE], axis=1)
    sums = np.sum([task.target_sums(part) for part in np.array_split(target, 3)], axis=0)
    assert task.scale(sums) == pytest.approx((np.log(ADMISSIONS.sum() / EXPOSURE.sum()), ADMISSIONS.mean()))
    assert np.isfinite(task.scale(task.target_sums(np.array([[0.0, 1.0]])))).all()


def test_what_cannot_be_a_count_is_named() -> None:
    task = Count(("admissions",), exposure="months")
    values = np.array([[1.0, 1.0], [-1.0, 2.0], [2.5, 3.0], [4.0, 0.0], [5.0, np.nan]])
    wrong = [np.flatnonzero(found.rows).tolist() for found in task.wrong_rows(values)]
    assert wrong == [[1], [2], [3, 4]]


@pytest.mark.parametrize(
    ("declared", "where"),
    [
        ("regresion", "data: task"),
        ({"loss": "huber"}, "data: task: kind"),
        ({"kind": "regression", "lossy": 1}, "data: task: lossy"),
        ({"kind": "regression", "delta": -1.0}, "data: task: delta"),
        ({"kind": "count", "dispersion": "free"}, "data: task: dispersion"),
        ({"kind": "regression", "range": [1.0]}, "data: task: range"),
        ({"kind": 3}, "data: task: kind"),
    ],
)
def test_a_wrong_declaration_is_one_clear_error(declared: Any, where: str) -> None:
    with pytest.raises(StudyError) as error:
        declared_task(declared, ("stay",), "data: task")
    assert error.value.where == where
