"""Prepared rows with their labels. Images become numbers as they are taken, so that they never all are in memory."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from wardround.data.site import Rows


@dataclass(frozen=True, eq=False)
class Taken:
    """What can be taken from like an array, by a slice or by row numbers."""

    rows: Rows
    dtype: torch.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.rows), *self.rows.inputs)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, chosen: Any) -> np.ndarray:
        order = torch.from_numpy(np.arange(len(self.rows))[chosen])
        made: np.ndarray = self.rows.take(order, self.dtype)[0].cpu().numpy()
        return made


@dataclass(frozen=True, eq=False)
class Side:
    """Prepared rows with their labels."""

    x: Any  # an array, or what is taken from like one
    label: np.ndarray
    people: np.ndarray | None = None  # the patient of each row, as a number; None: each row is one

    def __len__(self) -> int:
        return len(self.label)


def side_of(rows: Rows, dtype: torch.dtype) -> Side:
    if rows.x.dtype == torch.uint8:
        return Side(Taken(rows, dtype), rows.labels.cpu().numpy(), rows.people.numpy())
    x, y = rows.everything(dtype)
    return Side(x.cpu().numpy(), y.cpu().numpy(), rows.people.numpy())
