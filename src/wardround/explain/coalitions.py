"""Rows of which some columns are their own and the others are those of background rows."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from wardround.explain.method import CELLS, Scorer


def own_numbers(scorer: Scorer, own: np.ndarray, like: Tensor) -> Tensor:
    """From (..., columns), whether each column is the row's own, to the same for each prepared number. A number of no
    column is the row's own."""
    membership = scorer.columns.membership
    mask = np.ones((*own.shape[:-1], like.shape[1]), dtype=bool)
    known = np.flatnonzero(membership.any(axis=0))
    mask[..., known] = own @ membership[:, known] > 0
    return torch.from_numpy(mask)


def mixed_scores(scorer: Scorer, rows: Tensor, others: Tensor, own: Tensor) -> Iterator[np.ndarray]:
    """For each row, the scores of mixtures, (mixtures,): `own` (mixtures, numbers) says which numbers are the row's,
    and the rest are those of `others` (mixtures, numbers). Rows are taken so many at a time that the memory holds
    their mixtures."""
    at_once = max(1, CELLS // max(1, own.numel()))
    for part in torch.split(rows, at_once):
        mixed = torch.where(own, part[:, None, :], others)
        yield from scorer.values(mixed.flatten(0, 1)).reshape(len(part), -1)
