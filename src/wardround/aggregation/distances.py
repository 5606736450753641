"""Distances between updates, from their products with each other.

One pass over the updates gives everything that rules ask of their distances. Products are added up in float64, so that
what two long updates have in common does not hide by how much they differ.
"""

import torch
from torch import Tensor

BLOCK = 2**14  # columns


def products(rows: Tensor, more: Tensor | None = None) -> Tensor:
    """Of each row with each, in float64; `more` is one row more, the last."""
    count = len(rows) + (more is not None)
    total = torch.zeros(count, count, dtype=torch.float64, device=rows.device)
    for start in range(0, rows.shape[1], BLOCK):
        wide = torch.empty(count, min(BLOCK, rows.shape[1] - start), dtype=torch.float64, device=rows.device)
        wide[: len(rows)] = rows[:, start : start + BLOCK]
        if more is not None:
            wide[-1] = more[start : start + BLOCK]
        total.addmm_(wide, wide.T)
    return (total + total.T) / 2  # the same from both sides to the last bit, so that no tie depends on the order


def squared_distances(rows: Tensor) -> Tensor:
    """Infinite where a number is too large to be squared."""
    inner = products(rows)
    length = inner.diagonal()
    apart = (length[:, None] + length[None, :] - 2 * inner).clamp(min=0)
    return torch.nan_to_num(apart, nan=torch.inf, posinf=torch.inf).fill_diagonal_(0)


def weighted(weights: Tensor, rows: Tensor) -> Tensor:
    """The sum of rows times weights, in the rows' precision."""
    return weights.to(rows.dtype) @ rows
