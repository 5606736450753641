"""Which rows are out of distribution: far from the rows that a model was trained on.

Distances are Mahalanobis distances in prepared numbers, with a ridge, so that columns which hardly vary do not decide
alone. The cut-off is taken from the training rows' own leave-one-out distances, so that a new row is compared with
distances of rows that were new as well. About one in a hundred rows like the training rows exceeds it.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

SHARE = 0.99  # of rows like the training rows are in distribution
RIDGE = 0.1  # added to each column's variance of 1
HALF = 0.5  # unit of a column that never varies: that of a 0/1 column which is 1 in every second row


@dataclass(frozen=True, eq=False)
class OutOfDistribution:
    """`distance`: beyond `cut` from `mean`. `ranges`: outside a public range, for bundles of private arms."""

    kind: Literal["distance", "ranges"]
    mean: np.ndarray
    whitening: np.ndarray  # of x - mean, so that the length of the product is the distance
    cut: float

    def distances(self, x: np.ndarray) -> np.ndarray:
        """By torch, which keeps to its number of threads; numpy's product would start others and wait for them."""
        apart = torch.from_numpy(np.asarray(x, dtype=np.float64)) - torch.from_numpy(self.mean)
        return np.asarray((apart @ torch.from_numpy(self.whitening).T).square().sum(dim=1).sqrt().numpy())

    def marks(self, x: np.ndarray, outside: Mapping[str, np.ndarray] | None = None) -> np.ndarray:
        """`outside`: by column, the rows with a value outside the public range."""
        if self.kind == "distance":
            return np.asarray(~(self.distances(x) <= self.cut))  # a distance that is NaN is out of distribution
        return any_of((outside or {}).values(), len(x))


def any_of(marks: Iterable[np.ndarray], rows: int) -> np.ndarray:
    """Rows that are marked by any of the marks."""
    marked = np.zeros(rows, dtype=bool)
    for rows_of_mark in marks:
        marked |= rows_of_mark
    return marked


def by_ranges() -> OutOfDistribution:
    """For a bundle that may reveal nothing about its patients."""
    return OutOfDistribution("ranges", np.zeros(0), np.zeros((0, 0)), 0.0)


def by_distance(train: np.ndarray) -> OutOfDistribution:
    """Fitted to a site's prepared training rows."""
    x = np.asarray(train, dtype=np.float64)
    rows, width = x.shape
    mean, unit = x.mean(axis=0), _units(x)
    apart = (x - mean) / unit
    scatter = apart.T @ apart
    ridged = scatter / max(rows - 1, 1) + RIDGE * np.eye(width)
    whitening = np.linalg.inv(np.linalg.cholesky(ridged)) / unit
    left_out = np.sort(_left_out(apart, scatter))
    place = min(math.ceil((rows + 1) * SHARE), rows)
    return OutOfDistribution("distance", mean, whitening, float(left_out[place - 1]))


def _units(x: np.ndarray) -> np.ndarray:
    """The unit of each column: its SD, or half the gap between its values where it has only two.

    The SD of a 0/1 column that is 1 in few rows is so small that one such row would outweigh all that is unusual in
    other columns.
    """
    low, high = x.min(axis=0), x.max(axis=0)
    two = ((x == low) | (x == high)).all(axis=0)
    return np.where(high == low, HALF, np.where(two, (high - low) / 2, x.std(axis=0)))


def _left_out(apart: np.ndarray, scatter: np.ndarray) -> np.ndarray:
    """Each row's distance from the others' mean, in the others' covariance, without n inversions.

    Without row i, which is d from the mean of all n rows, the mean is n / (n - 1) times as far from it, and the
    scatter is smaller by n / (n - 1) d d'. The inverse of that follows from the whole one (Sherman and Morrison 1950).
    Each column's unit is that of all rows.
    """
    rows, width = apart.shape
    if rows < 3:
        return np.zeros(rows)  # too few rows to estimate: every other row is out of distribution
    factor = rows / (rows - 1)
    whole = scatter + (rows - 2) * RIDGE * np.eye(width)
    q = (apart * np.linalg.solve(whole, apart.T).T).sum(axis=1)
    return np.asarray(factor * np.sqrt((rows - 2) * q / (1 - factor * q)))
