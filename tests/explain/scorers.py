"""Models with known weights, and rows for them."""

from itertools import permutations

import numpy as np
import torch

from wardround.core import seeds
from wardround.explain import Columns, Scorer
from wardround.models import MODELS, Shape, built
from wardround.tasks import Task, class_task, findings_task
from wardround.tasks.count import Count
from wardround.tasks.regression import Regression

TASKS: list[tuple[Task, tuple[float, ...]]] = [
    (class_task(2), ()),
    (class_task(3), ()),
    (findings_task(2), ()),
    (Regression(("days",)), (7.0, 3.0)),
    (Count(("visits",)), (0.4, 1.5)),
]
COLUMNS = Columns.of(["age", "ward", "ward", "ward", "creatinine", "creatinine"])  # levels, and a gap's indicator


def scorer_of(kind: str, task: Task, scale: tuple[float, ...], columns: Columns = COLUMNS) -> Scorer:
    """With drawn weights, large enough for a network to be far from linear. The last score is explained."""
    width = sum(map(len, columns.places))
    model = built(MODELS[kind](), Shape((width,), task))
    rng = seeds.generator(1, "test")
    params = {name: torch.from_numpy(rng.normal(size=leaf.shape)) for name, leaf in model.init(0)[0].items()}
    return Scorer(model, params, {}, columns, scale, output=task.outputs - 1)


def rows_of(count: int, width: int, purpose: str = "rows") -> torch.Tensor:
    return torch.from_numpy(seeds.generator(2, purpose).normal(size=(count, width)))


def by_definition(scorer: Scorer, row: torch.Tensor, background: torch.Tensor) -> np.ndarray:
    """Shapley values as the mean over all orders in which the columns can join."""
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
