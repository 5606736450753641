"""What an engine sees of a hospital: prepared tensors for training, validation and test."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Rows:
    """Prepared rows. `x` may be shared by many sites; then `index` says which rows of it are meant, without a copy."""

    x: Tensor
    y: Tensor
    index: Tensor | None = None

    def __len__(self) -> int:
        return len(self.y) if self.index is None else len(self.index)

    def take(self, order: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """A batch. Images stay bytes in memory and become numbers from 0 to 1 here."""
        chosen = order if self.index is None else self.index[order]
        x = self.x[chosen]
        return (x.to(dtype) / 255 if x.dtype == torch.uint8 else x), self.y[chosen]

    def everything(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        if self.index is None and self.x.dtype != torch.uint8:
            return self.x, self.y
        return self.take(torch.arange(len(self)), dtype)


@dataclass(frozen=True, eq=False)
class Site:
    """`test_rows` and `validation_rows` are row numbers in the source, so that its owner can trace a prediction."""

    name: str
    train: Rows
    validation: Rows
    test: Rows
    validation_rows: np.ndarray
    test_rows: np.ndarray


def join(parts: Sequence[Rows]) -> Rows:
    """All rows as one, for pooled training."""
    if all(part.index is not None and part.x is parts[0].x for part in parts):
        return Rows(parts[0].x, parts[0].y, torch.cat([part.index for part in parts if part.index is not None]))
    if any(part.index is not None for part in parts):
        raise ValueError("sites that share rows and sites that own them cannot be joined")
    return Rows(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))
