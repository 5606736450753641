"""What an engine sees of a hospital: prepared tensors for training, validation and test."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from wardround.data.prepare import Recipe


@dataclass(frozen=True, eq=False)
class Rows:
    """Prepared rows. `x` may be shared by many sites; then `index` says which rows of it are meant, without a copy.

    Images stay bytes in memory and become numbers from 0 to 1 when they are taken; `levels` then gives each of these
    rows' centre and spread.
    """

    x: Tensor
    y: Tensor
    index: Tensor | None = None
    levels: Tensor | None = None  # (rows, 2)
    patients: Tensor | None = None  # whose each of these rows is; None: everybody has one

    def __len__(self) -> int:
        return len(self.y) if self.index is None else len(self.index)

    @property
    def labels(self) -> Tensor:
        return self.y if self.index is None else self.y[self.index]

    @property
    def people(self) -> Tensor:
        """The patient of each row, as a number."""
        return torch.arange(len(self)) if self.patients is None else self.patients

    def take(
        self, order: Tensor, dtype: torch.dtype, change: Callable[[Tensor], Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """A batch. `change` is done to images before they are scaled."""
        chosen = order if self.index is None else self.index[order]
        x = as_numbers(self.x[chosen], dtype)
        x = x if change is None else change(x)
        return scaled(x, None if self.levels is None else self.levels[order]), self.y[chosen]

    def everything(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        if self.index is None and self.x.dtype != torch.uint8:
            return self.x, self.y
        return self.take(torch.arange(len(self)), dtype)


def as_numbers(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes as numbers from 0 to 1; anything else as it is."""
    return x.to(dtype).div_(255) if x.dtype == torch.uint8 else x


def scaled(x: Tensor, levels: Tensor | None) -> Tensor:
    """`levels` are each image's centre and spread."""
    if levels is None:
        return x
    centre, spread = levels.to(x.dtype).unbind(-1)
    ones = (1,) * (x.dim() - centre.dim())
    return (x - centre.reshape(*centre.shape, *ones)) / spread.reshape(*spread.shape, *ones)


@dataclass(frozen=True, eq=False)
class Site:
    """`test_rows` and `validation_rows` are row numbers in the source, so that its owner can trace a prediction."""

    name: str
    train: Rows
    validation: Rows
    test: Rows
    validation_rows: np.ndarray
    test_rows: np.ndarray
    recipe: Recipe | None = None  # how its rows were prepared; None: images, or rows that are elsewhere


def join(parts: Sequence[Rows]) -> Rows:
    """All rows as one, for pooled training."""
    if all(part.index is not None and part.x is parts[0].x for part in parts):
        index = torch.cat([part.index for part in parts if part.index is not None])
        levels = [part.levels for part in parts if part.levels is not None]
        return Rows(parts[0].x, parts[0].y, index, torch.cat(levels) if levels else None, _all_people(parts))
    if any(part.index is not None for part in parts):
        raise ValueError("sites that share rows and sites that own them cannot be joined")
    whole = torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts])
    return Rows(*whole, patients=_all_people(parts))


def _all_people(parts: Sequence[Rows]) -> Tensor | None:
    """A patient who is at two sites is one patient where rows are pooled."""
    known = [part.patients for part in parts if part.patients is not None]
    return torch.cat(known) if len(known) == len(parts) else None
