"""From recorded columns to numbers: gaps filled, categories encoded, columns scaled.

What is fitted is fitted on training rows only: at each site alone, or from summed statistics (`agreement.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from wardround.data.records import Column, Records
from wardround.study.schema import Preparation


@dataclass(frozen=True)
class Encoded:
    """A table as two arrays, made once: splits and sites are then a matter of picking rows."""

    columns: tuple[Column, ...]
    numbers: np.ndarray  # (rows, columns); NaN where missing, or where the column is text
    codes: np.ndarray  # (rows, columns); place of the level, -1 where missing or where the column has no levels
    levels: tuple[tuple[str, ...], ...]  # of each categorical column, in alphabetical order
    missing: np.ndarray  # (rows, columns)
    hospital: np.ndarray  # (rows,); a number for each
    recorded: np.ndarray  # (hospitals, columns): whether its file has the column

    def records_of(self, rows: np.ndarray) -> np.ndarray:
        """Which columns are in the files that these rows come from."""
        return np.asarray(self.recorded[np.unique(self.hospital[rows])].any(axis=0))

    def numeric_places(self, layout: "Layout") -> list[int]:
        return [self._places[column.name] for column in layout.numeric]

    @cached_property
    def _places(self) -> dict[str, int]:
        return {column.name: place for place, column in enumerate(self.columns)}

    def category(self, name: str) -> tuple[np.ndarray, tuple[str, ...]]:
        return self.codes[:, self._places[name]], self.levels[self._places[name]]

    def gaps(self, name: str) -> np.ndarray:
        return self.missing[:, self._places[name]]


@dataclass(frozen=True)
class Layout:
    """What the sites agree on. No site's rows can be read from it."""

    numeric: tuple[Column, ...]
    levels: Mapping[str, tuple[str, ...]]  # of each one-hot column, in alphabetical order
    indicators: tuple[str, ...]  # columns with a gap in some site's training rows

    @property
    def names(self) -> tuple[str, ...]:
        return self.names_by({})

    @property
    def columns(self) -> tuple[str, ...]:
        """The recorded column behind each of the numbers that come out."""
        encoded = [name for name, levels in self.levels.items() for _ in encoded_levels(levels)]
        return (*(column.name for column in self.numeric), *encoded, *self.indicators)

    def names_by(self, renamed: Mapping[str, str]) -> tuple[str, ...]:
        """With other names for some columns."""
        numeric = (renamed.get(column.name, column.name) for column in self.numeric)
        levels = (
            f"{renamed.get(name, name)}={level}" for name, own in self.levels.items() for level in encoded_levels(own)
        )
        indicators = (f"{renamed.get(name, name)} missing" for name in self.indicators)
        return (*numeric, *levels, *indicators)


@dataclass(frozen=True)
class Fit:
    """One site's statistics: what fills a gap, and how a numeric column is moved and scaled."""

    fill: Mapping[str, float]
    fill_level: Mapping[str, str]
    centre: np.ndarray
    spread: np.ndarray


@dataclass(frozen=True)
class Recipe:
    """One site's whole way from recorded columns to numbers: fitted once, then the same for training and for use."""

    columns: tuple[Column, ...]  # that it needs
    layout: Layout
    fit: Fit
    settings: Preparation

    @property
    def names(self) -> tuple[str, ...]:
        """Of the numbers that come out, by the columns' names in the hospital's own file."""
        return self.layout.names_by({column.name: column.own_name for column in self.columns})

    def apply(self, table: Encoded, rows: np.ndarray) -> np.ndarray:
        return transform(table, rows, self.layout, self.fit, self.settings)


def recipe_of(columns: Sequence[Column], layout: Layout, fitted: Fit, settings: Preparation) -> Recipe:
    """With the columns that the layout asks for, and no others."""
    used = {column.name for column in layout.numeric} | set(layout.levels) | set(layout.indicators)
    return Recipe(tuple(column for column in columns if column.name in used), layout, fitted, settings)


def complete_rows(records: Records, in_own_columns: bool = False) -> np.ndarray:
    """Rows without a gap: in any column, or `in_own_columns`, those that the row's own hospital records."""
    if not isinstance(records.features, pd.DataFrame):
        return np.arange(len(records))
    there = records.features[[column.name for column in records.columns]].notna().to_numpy()
    if in_own_columns:
        hospital, recorded = _recorded(records)
        there = there | ~recorded[hospital]  # pandas gives an array that cannot be written to
    return np.flatnonzero(there.all(axis=1))


def encode(records: Records) -> Encoded:
    table = records.features
    if not isinstance(table, pd.DataFrame):
        raise TypeError("only tables are prepared column by column")
    shape = (len(table), len(records.columns))
    numbers, codes, levels = np.full(shape, np.nan), np.full(shape, -1), []
    for i, column in enumerate(records.columns):
        values = table[column.name]
        if column.kind == "categorical":
            names = sorted(values.dropna().unique().tolist())
            codes[:, i] = pd.Categorical(values, categories=names).codes
            levels.append(tuple(map(str, names)))
        else:
            levels.append(())
        if column.kind == "numeric" or column.coded:
            numbers[:, i] = values.astype(float).to_numpy()
    missing = table[[c.name for c in records.columns]].isna().to_numpy()
    return Encoded(records.columns, numbers, codes, tuple(levels), missing, *_recorded(records))


def _recorded(records: Records) -> tuple[np.ndarray, np.ndarray]:
    """The hospital of each row as a number, and which columns each of them records."""
    numbers, names = pd.factorize(records.hospital)
    columns = [column.name for column in records.columns]
    known = [[name in records.recorded.get(hospital, columns) for name in columns] for hospital in names]
    return numbers, np.array(known, dtype=bool).reshape(len(names), len(columns))


def transform(table: Encoded, rows: np.ndarray, layout: Layout, fitted: Fit, settings: Preparation) -> np.ndarray:
    """Prepared features of `rows`, float64. A level that no training row had becomes zeros."""
    numbers = table.numbers[rows][:, table.numeric_places(layout)]
    fill = np.array([fitted.fill[column.name] for column in layout.numeric])
    numbers = (np.where(np.isnan(numbers), fill, numbers) - fitted.centre) / fitted.spread
    if settings.scale == "ranges":
        numbers = np.clip(numbers, 0, 1)
    blocks = [numbers]
    for name, levels in layout.levels.items():
        codes, known = table.category(name)
        # levels that only others have come after those that are known here
        number = {level: place for place, level in enumerate(dict.fromkeys((*known, *levels)))}
        filled = fitted.fill_level.get(name)  # None: nothing is read off rows, and a gap has none of the levels
        code = np.where(codes[rows] < 0, -1 if filled is None else number[filled], codes[rows])
        encoded = np.array([number[level] for level in encoded_levels(levels)])
        blocks.append((code[:, None] == encoded).astype(float))
    blocks += [table.gaps(name)[rows].astype(float)[:, None] for name in layout.indicators]
    return np.concatenate(blocks, axis=1)


def encoded_levels(levels: Sequence[str]) -> Sequence[str]:
    """Two levels need one column: the second level's."""
    return levels[1:] if len(levels) == 2 else levels
