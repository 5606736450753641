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

    Images stay bytes in memory and become numbers from 0 to 1 in `take`; `levels` then holds each row's centre and
    spread. Images with `tabular` columns become flat rows: the pixels, then the columns.
    """

    x: Tensor
    y: Tensor
    index: Tensor | None = None
    levels: Tensor | None = None  # (rows, 2)
    patients: Tensor | None = None  # the patient of each row; None: each row is a patient of its own
    tabular: Tensor | None = None  # (rows, numbers): prepared columns that go with each image

    def __len__(self) -> int:
        return len(self.y) if self.index is None else len(self.index)

    @property
    def inputs(self) -> tuple[int, ...]:
        """The shape of a row as `take` returns it."""
        if self.tabular is None:
            return tuple(self.x.shape[1:])
        return (self.x[0].numel() + self.tabular.shape[1],)

    @property
    def labels(self) -> Tensor:
        return self.y if self.index is None else self.y[self.index]

    @property
    def people(self) -> Tensor:
        return torch.arange(len(self)) if self.patients is None else self.patients

    def take(
        self, order: Tensor, dtype: torch.dtype, change: Callable[[Tensor], Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """A batch. `change` is applied to images before they are scaled."""
        chosen = order if self.index is None else self.index[order]
        x = as_numbers(self.x[chosen], dtype)
        x = x if change is None else change(x)
        x = scaled(x, None if self.levels is None else self.levels[order])
        if self.tabular is not None:
            x = torch.cat([x.flatten(1), self.tabular[order].to(dtype)], dim=1)
        return x, self.y[chosen]

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


@dataclass(frozen=True)
class Block:
    """A party's numbers in a row, and the place of the flag that says whether they are present (None: always)."""

    party: str
    start: int
    stop: int
    shape: tuple[int, ...]
    present: int | None


@dataclass(frozen=True, eq=False)
class Site:
    """`test_rows` and `validation_rows` are row numbers in the source, so that its owner can trace a prediction."""

    name: str
    train: Rows
    validation: Rows
    test: Rows
    validation_rows: np.ndarray
    test_rows: np.ndarray
    recipe: Recipe | None = None  # how its columns were prepared; None: it has none, or its rows are elsewhere
    blocks: tuple[Block, ...] = ()  # of each party, in vertical federation


def join(parts: Sequence[Rows]) -> Rows:
    """The rows of all parts, for pooled training. A patient of two sites counts as one patient."""
    levels, patients, tabular = (
        _concatenate([getattr(part, name) for part in parts]) for name in ("levels", "patients", "tabular")
    )
    if all(part.index is not None and part.x is parts[0].x and part.y is parts[0].y for part in parts):
        index = _concatenate([part.index for part in parts])
        return Rows(parts[0].x, parts[0].y, index, levels, patients, tabular)
    x = torch.cat([part.x if part.index is None else part.x[part.index] for part in parts])
    return Rows(x, torch.cat([part.labels for part in parts]), None, levels, patients, tabular)


def _concatenate(tensors: Sequence[Tensor | None]) -> Tensor | None:
    """None where a part has none."""
    present = [tensor for tensor in tensors if tensor is not None]
    return torch.cat(present) if len(present) == len(tensors) else None
