"""The closed form, against the mean of the score's change when columns are taken one by one from background rows."""

from collections.abc import Callable
from itertools import permutations

import numpy as np
import torch

from wardround.core import seeds
from wardround.explain import METHODS, Columns, Scorer
from wardround.models import Shape, built
from wardround.models.logistic import linear
from wardround.tasks import Task, class_task
from wardround.tasks.count import Count
from wardround.tasks.regression import Regression

TASKS: list[tuple[Task, tuple[float, ...]]] = [
    (class_task(2), ()),
    (class_task(3), ()),
    (Regression(("days",)), (7.0, 3.0)),
    (Count(("visits",)), (0.4, 1.5)),
]
COLUMNS = Columns.of(["age", "ward", "ward", "ward", "creatinine", "creatinine"])  # levels, and a gap's indicator


def linear_scorer(task: Task, scale: tuple[float, ...]) -> Scorer:
    model = built(linear(), Shape((6,), task))
    rng = seeds.generator(1, "test")
    params = {name: torch.from_numpy(rng.normal(size=leaf.shape)) for name, leaf in model.init(0)[0].items()}
    return Scorer(model, params, {}, COLUMNS, scale, output=task.outputs - 1)


def by_definition(scorer: Scorer, row: torch.Tensor, background: torch.Tensor) -> np.ndarray:
    orders = list(permutations(range(len(scorer.columns))))
    values = np.zeros(len(scorer.columns))
    for order in orders:
        mixed = background.clone()
        before = scorer.values(mixed).mean()
        for column in order:
            places = list(scorer.columns.places[column])
            mixed[:, places] = row[places]
            after = scorer.values(mixed).mean()
            values[column] += (after - before) / len(orders)
            before = after
    return values


def test_values_are_those_of_the_definition_for_every_task_with_a_number_or_classes() -> None:
    rng = seeds.generator(2, "test")
    rows, background = torch.from_numpy(rng.normal(size=(3, 6))), torch.from_numpy(rng.normal(size=(11, 6)))
    for task, scale in TASKS:
        scorer = linear_scorer(task, scale)
        found = METHODS["linear-shapley"]().attribute(scorer, rows, background, rng)
        for row, values in zip(rows, found.values, strict=True):
            np.testing.assert_allclose(values, by_definition(scorer, row, background), atol=1e-12)
        assert found.completeness_error.max() < 1e-12
        np.testing.assert_allclose(found.base, scorer.values(background).mean(), atol=1e-12)


def test_scores_are_on_the_link_scale() -> None:
    """Turned back by the inverse link, they are the model's predictions."""
    x = torch.from_numpy(seeds.generator(3, "test").normal(size=(5, 6)))
    inverse: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "log odds": lambda z: torch.sigmoid(z[:, 0]),
        "log odds against the other classes": lambda z: torch.softmax(z, dim=1),
        "units": lambda z: z[:, 0],
        "log rate": lambda z: z[:, 0].exp(),
    }
    for task, scale in TASKS:
        scorer = linear_scorer(task, scale)
        known = torch.from_numpy(task.unknown_target(np.ones((5, len(task.columns))), scale))
        predicted = task.predictions(scorer.model.logits(scorer.params, {}, x, None)[0], known)
        torch.testing.assert_close(inverse[task.link](scorer.every(x)), predicted)


def test_a_column_is_the_readers_and_not_its_indicators() -> None:
    assert COLUMNS.names == ("age", "ward", "creatinine")
    assert COLUMNS.places == ((0,), (1, 2, 3), (4, 5))
