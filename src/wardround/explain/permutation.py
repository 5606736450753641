"""Permutation importance as sums: by how much the loss rises when a column's values are shuffled among the rows.

Each hospital shuffles among its own rows and sums; sums of hospitals add up to the importance on all rows, shuffled
within hospitals (Breiman, Machine Learning 45, 2001; Fisher, Rudin and Dominici, JMLR 20, 2019). It is that of the
model: of two columns that say the same, each may look unimportant, because the other is still there.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch
from torch import Tensor

from wardround.explain.method import CELLS, Scorer

Z = 1.959964  # of a 95 % interval
REPEATS = 5
Sums = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Importance:
    """By column. The interval is over patients, given the model and the shuffles."""

    columns: tuple[str, ...]
    rows: int
    loss: float  # mean, with the columns as they are
    increase: np.ndarray  # of the mean loss
    error: np.ndarray  # standard error; NaN of fewer than two patients

    @property
    def low(self) -> np.ndarray:
        return self.increase - Z * self.error

    @property
    def high(self) -> np.ndarray:
        return self.increase + Z * self.error


def sums(
    scorer: Scorer,
    x: Tensor,
    y: Tensor,
    rng: np.random.Generator,
    repeats: int = REPEATS,
    people: np.ndarray | None = None,
) -> Sums:
    """Over a hospital's own rows. `y` is as training has it, `people` the patient of each row; a patient each, unless
    given. Sums over patients of their rows and increases say how sure the result is."""
    before = losses(scorer, x, y)
    person = np.arange(len(x)) if people is None else np.unique(people, return_inverse=True)[1]
    size = int(person.max(initial=-1)) + 1
    rows_of = np.bincount(person, minlength=size).astype(np.float64)
    increases = np.zeros((size, len(scorer.columns)))
    shuffles = [torch.from_numpy(rng.permutation(len(x))) for _ in range(repeats)]
    for column, places in enumerate(scorer.columns.places):
        rise = np.mean([losses(scorer, shuffled(x, places, order), y) - before for order in shuffles], axis=0)
        increases[:, column] = np.bincount(person, rise, minlength=size)
    return {
        "rows": np.array(len(x), dtype=np.float64),
        "people": np.array(size, dtype=np.float64),
        "rows_squared": np.array((rows_of**2).sum()),
        "loss": np.array(before.sum()),
        "increase": increases.sum(axis=0),
        "increase_squared": (increases**2).sum(axis=0),
        "increase_by_rows": rows_of @ increases,
    }


def merge(of_sites: Sequence[Sums]) -> Sums:
    return reduce(lambda one, other: {name: one[name] + other[name] for name in one}, of_sites)


def result(merged: Sums, columns: Sequence[str]) -> Importance:
    """The error is that of a ratio of sums over patients: rows of one patient are not independent."""
    rows, people = float(merged["rows"]), float(merged["people"])
    mean = merged["increase"] / max(rows, 1)
    apart = merged["increase_squared"] - 2 * mean * merged["increase_by_rows"] + mean**2 * merged["rows_squared"]
    factor = people / (people - 1) if people > 1 else math.nan
    error = np.sqrt(np.maximum(apart, 0) * factor) / max(rows, 1)
    return Importance(tuple(columns), int(rows), float(merged["loss"] / max(rows, 1)), mean, error)


def shuffled(x: Tensor, places: Sequence[int], order: Tensor) -> Tensor:
    """All numbers of a column together."""
    changed = x.clone()
    changed[:, list(places)] = x[order][:, list(places)]
    return changed


def losses(scorer: Scorer, x: Tensor, y: Tensor) -> np.ndarray:
    """Of each row, as in training but without weights and penalty."""
    model, size = scorer.model, max(1, CELLS // max(1, math.prod(x.shape[1:])))
    parts = zip(torch.split(x, size), torch.split(y, size), strict=True)
    with torch.no_grad():
        of_parts = [
            model.task.row_losses(model.logits(scorer.params, scorer.buffers, rows, None)[0], labels).double()
            for rows, labels in parts
        ]
    return torch.cat(of_parts).numpy()
