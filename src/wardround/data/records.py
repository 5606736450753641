"""What a source delivers: rows before any site is formed, split or prepared."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import pandas as pd

Kind = Literal["numeric", "categorical"]


@dataclass(frozen=True)
class Column:
    """One recorded feature. A numeric column holds floats with NaN for missing; a categorical one holds text."""

    name: str
    kind: Kind = "numeric"
    limits: tuple[float, float] | None = None  # public clinical range, for scale = "ranges"
    coded: bool = False  # a categorical column whose levels are numbers, so that `categories = "codes"` may use them


@dataclass(frozen=True)
class Records:
    """Rows of one or more hospitals. `features` is a table with one column per `columns`, or an array of images."""

    features: pd.DataFrame | np.ndarray
    target: np.ndarray  # class number of each row, int64
    classes: tuple[str, ...]  # their names; for two classes the second is the positive one
    hospital: np.ndarray  # name of the hospital that recorded the row
    columns: tuple[Column, ...] = ()
    patient: np.ndarray | None = None  # patient of each row, where known: one patient may have several rows
    groups: pd.DataFrame = field(default_factory=pd.DataFrame)  # `sex` (text) and `age` (years), where recorded
    notes: tuple[str, ...] = ()  # what the source changed while reading, in plain words with counts
    synthetic: bool = False

    def __len__(self) -> int:
        return len(self.target)

    @property
    def is_table(self) -> bool:
        return isinstance(self.features, pd.DataFrame)

    @property
    def hospitals(self) -> tuple[str, ...]:
        """Names in order of first appearance."""
        return tuple(dict.fromkeys(self.hospital.tolist()))

    @property
    def units(self) -> np.ndarray:
        """A number per row; rows of one patient share it and must never be torn apart."""
        if self.patient is None:
            return np.arange(len(self))
        return np.unique(self.patient, return_inverse=True)[1]

    def take(self, rows: np.ndarray | Sequence[int]) -> "Records":
        rows = np.asarray(rows, dtype=np.int64)
        features = self.features
        return replace(
            self,
            features=features.iloc[rows].reset_index(drop=True)
            if isinstance(features, pd.DataFrame)
            else features[rows],
            target=self.target[rows],
            hospital=self.hospital[rows],
            patient=None if self.patient is None else self.patient[rows],
            groups=self.groups.iloc[rows].reset_index(drop=True) if len(self.groups.columns) else pd.DataFrame(),
        )
