"""What is compared and covered together when an explanation is checked: the columns of a table, or square cells of an
image. Single pixels say too little by themselves."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from wardround.explain.coalitions import own_numbers
from wardround.explain.images.integrated_gradients import plain_images
from wardround.explain.method import Scorer

CELLS = 16  # of an image's side
STANDING_IN = 16  # background rows from which a covered column takes its values


@dataclass(frozen=True, eq=False)
class Units:
    """`of` sums values up by unit: (rows, units). `scores(scorer, row, shown)` are those of a row of which only some
    units are shown, for each line of `shown` (lines, units)."""

    of: Callable[[np.ndarray], np.ndarray]
    scores: Callable[[Scorer, Tensor, np.ndarray], np.ndarray]


def units_for(scorer: Scorer, rows: Tensor, background: Tensor, rng: np.random.Generator) -> Units:
    return cells_of_images(rows, background) if rows.dim() == 4 else columns_of_rows(background, rng)


def columns_of_rows(background: Tensor, rng: np.random.Generator) -> Units:
    """A column that is not shown has its values from background rows, over which the score is a mean."""
    drawn = rng.choice(len(background), min(STANDING_IN, len(background)), replace=False)
    others = background[torch.from_numpy(drawn)]

    def scores(scorer: Scorer, row: Tensor, shown: np.ndarray) -> np.ndarray:
        own = own_numbers(scorer, shown, row[None])[:, None]
        mixed = torch.where(own, row, others).flatten(0, 1)
        return np.asarray(scorer.values(mixed).reshape(len(shown), len(others)).mean(axis=1))

    return Units(lambda values: values, scores)


def cells_of_images(rows: Tensor, background: Tensor) -> Units:
    """A cell that is not shown is that of a plain image."""
    height, width = rows.shape[2:]
    lines, columns = (np.arange(size) * min(CELLS, size) // size for size in (height, width))
    across = int(columns[-1]) + 1
    cell = lines[:, None] * across + columns
    sizes = np.bincount(cell.reshape(-1))

    def of(values: np.ndarray) -> np.ndarray:
        flat = cell.reshape(-1)
        return np.stack([np.bincount(flat, row.reshape(-1), minlength=len(sizes)) / sizes for row in values])

    def scores(scorer: Scorer, row: Tensor, shown: np.ndarray) -> np.ndarray:
        own = torch.from_numpy(shown[:, cell] > 0)[:, None]
        return scorer.values(torch.where(own, row, plain_images(row[None], background)))

    return Units(of, scores)
