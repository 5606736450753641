"""Several outcomes: a weighted sum of losses, with its derivative; figures are asked of the parts."""

import json
from typing import Any

import numpy as np
import pytest
import torch

from wardround.core.errors import StudyError
from wardround.models import Shape, built
from wardround.models.logistic import linear
from wardround.tasks import Count, Regression, Task, class_task, outcomes_of, read_task

ROWS = 30
RNG = np.random.default_rng(8)
PARTS: dict[str, Task] = {
    "died": class_task(["no", "yes"]),
    "stay": Regression(("stay",)),
    "grade": class_task(["a", "b", "c"]),
    "visits": Count(("visits",), exposure="months"),
}
WEIGHTS = {"stay": 2.0, "visits": 0.5}
OUTCOMES = outcomes_of(PARTS, WEIGHTS)
TARGETS: dict[str, np.ndarray] = {
    "died": RNG.integers(0, 2, ROWS),
    "stay": RNG.gamma(2.0, 3.0, ROWS),
    "grade": RNG.integers(0, 3, ROWS),
    "visits": np.stack([RNG.poisson(2.0, ROWS).astype(float), RNG.uniform(0.5, 2.0, ROWS)], axis=1),
}
TARGET = np.concatenate([part.reshape(ROWS, -1).astype(float) for part in TARGETS.values()], axis=1)
SCALE = OUTCOMES.scale(OUTCOMES.target_sums(TARGET))
Y = torch.from_numpy(OUTCOMES.training_target(TARGET, SCALE))
SCORES = torch.tensor(RNG.normal(size=(ROWS, OUTCOMES.outputs)))
HEADS = {"died": slice(0, 1), "stay": slice(1, 2), "grade": slice(2, 5), "visits": slice(5, 6)}


def own_y(name: str) -> torch.Tensor:
    task = PARTS[name]
    own = task.training_target(TARGETS[name], task.scale(task.target_sums(TARGETS[name])))
    return torch.from_numpy(own)


def test_the_loss_is_the_weighted_sum_of_the_outcomes_losses() -> None:
    parts = [WEIGHTS.get(name, 1.0) * PARTS[name].row_losses(SCORES[:, HEADS[name]], own_y(name)) for name in PARTS]
    torch.testing.assert_close(OUTCOMES.row_losses(SCORES, Y), torch.stack(parts).sum(0))


def test_the_written_derivative_is_that_of_the_loss() -> None:
    two = torch.tensor(RNG.normal(size=(ROWS, 2 * OUTCOMES.outputs)), requires_grad=True)  # two models
    losses, errors = OUTCOMES.losses_and_errors(two, Y)
    (slope,) = torch.autograd.grad(losses.sum(), two)
    torch.testing.assert_close(errors, slope, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(losses[:, 1], OUTCOMES.row_losses(two[:, OUTCOMES.outputs :], Y))


def test_targets_labels_and_predictions_come_apart_as_they_went_in() -> None:
    labels, predicted = OUTCOMES.label(Y).numpy(), OUTCOMES.predictions(SCORES, Y).numpy()
    for name, task in PARTS.items():
        np.testing.assert_array_equal(OUTCOMES.target_of(TARGET, name), TARGETS[name])
        np.testing.assert_array_equal(OUTCOMES.label_of(labels, name), task.label(own_y(name)).numpy())
        alone = task.predictions(SCORES[:, HEADS[name]], own_y(name)).numpy()
        np.testing.assert_allclose(OUTCOMES.score_of(predicted, name), alone, rtol=1e-12)
    grades = ["score_grade_a", "score_grade_b", "score_grade_c"]
    assert OUTCOMES.score_columns() == ["score_died", "score_stay", *grades, "score_visits"]
    assert OUTCOMES.columns_of("grade") == {
        "label_grade": "label", "score_grade_a": "score_a", "score_grade_b": "score_b", "score_grade_c": "score_c",
    }  # fmt: skip


def test_a_fitted_dispersion_stands_behind_the_scores_of_its_own_outcome() -> None:
    parts = {"visits": Count(("visits",), dispersion="fitted"), "stay": Regression(("stay",))}
    both = outcomes_of(parts, {})
    target = np.concatenate([TARGETS["visits"], TARGETS["stay"][:, None]], axis=1)
    y = torch.from_numpy(both.training_target(target, both.scale(both.target_sums(target))))
    model = built(linear(), Shape((3,), both))
    params, _ = model.init(0)
    assert set(params) == {"weight", "bias", "task.visits.log_dispersion"}
    x = torch.tensor(RNG.normal(size=(ROWS, 3)), dtype=torch.float32)
    grad, loss, _ = model.gradient(params, {}, x, y, {})
    assert torch.isfinite(loss)
    assert float(grad["task.visits.log_dispersion"].abs()) > 0


def test_outcomes_are_read_as_they_were_written() -> None:
    assert read_task(json.loads(json.dumps(OUTCOMES.to_json()))) == OUTCOMES


@pytest.mark.parametrize(
    "change",
    [
        {"tasks": []},
        {"weights": [1.0]},
        {"weights": [1.0, -1.0, 1.0, 1.0]},
        {"weights": "heavy"},
        {"names": ["died", "died", "grade", "visits"]},
        {"names": None},
        {"tasks": [OUTCOMES.to_json()] * 4},
        {"tasks": [{"kind": "regression"}] * 4},
        {"more": 1},
    ],
)
def test_what_no_outcomes_are_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(StudyError):
        read_task({**OUTCOMES.to_json(), **change})


def test_figures_are_those_of_the_parts() -> None:
    with pytest.raises(TypeError, match="figures of its own"):
        OUTCOMES.figures(np.zeros(3), np.zeros(3))
    with pytest.raises(StudyError, match="several outcomes"):
        OUTCOMES.class_weights(torch.zeros(3))
