"""Dropout whose masks are inputs, drawn by purpose like every other randomness.

The mask is a buffer that the training step fills in for each batch. At prediction it is the number one.
"""

import numpy as np
import torch
from torch import Tensor, nn

from wardround.core.tree import Tree


class Dropout(nn.Module):
    mask: Tensor

    def __init__(self, p: float, shape: tuple[int, ...]) -> None:
        """`shape` is that of one row where it passes this layer."""
        super().__init__()
        self.p, self.shape = p, shape
        self.register_buffer("mask", torch.ones(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.mask


def mask_shapes(module: nn.Module) -> dict[str, tuple[float, tuple[int, ...]]]:
    """Name of each mask, with its probability of dropping and the shape of one row."""
    return {
        (f"{name}.mask" if name else "mask"): (part.p, part.shape)
        for name, part in module.named_modules()
        if isinstance(part, Dropout)
    }


def draw_masks(
    shapes: dict[str, tuple[float, tuple[int, ...]]], rng: np.random.Generator, rows: int, dtype: torch.dtype
) -> Tree:
    """Kept cells are scaled up by 1 / (1 - p), so that prediction needs no change."""
    return {
        name: torch.from_numpy(rng.random((rows, *shape), dtype=np.float32) >= p).to(dtype) / (1 - p)
        for name, (p, shape) in shapes.items()
    }
