"""From recorded columns to numbers: gaps filled, categories encoded, columns scaled.

Sites agree on a layout (which levels a category has, which columns need an indicator), so that position 7 means the
same at every site. What is fitted is fitted on training rows only: at each site alone, or from summed statistics.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from wardround.data.records import Column, Records
from wardround.errors import DataError
from wardround.study import Preparation


@dataclass(frozen=True)
class Encoded:
    """A table as two arrays, made once: splits and sites are then a matter of picking rows."""

    columns: tuple[Column, ...]
    numbers: np.ndarray  # (rows, columns); NaN where missing, or where the column is text
    codes: np.ndarray  # (rows, columns); place of the level, -1 where missing or where the column has no levels
    levels: tuple[tuple[str, ...], ...]  # of each categorical column, in alphabetical order
    missing: np.ndarray  # (rows, columns)

    def numeric_places(self, layout: "Layout") -> list[int]:
        return [self._place(column.name) for column in layout.numeric]

    def _place(self, name: str) -> int:
        return next(i for i, column in enumerate(self.columns) if column.name == name)

    def category(self, name: str) -> tuple[np.ndarray, tuple[str, ...]]:
        place = self._place(name)
        return self.codes[:, place], self.levels[place]

    def gaps(self, name: str) -> np.ndarray:
        return self.missing[:, self._place(name)]


@dataclass(frozen=True)
class Layout:
    """What the sites agree on. No site's rows can be read from it."""

    numeric: tuple[Column, ...]
    levels: Mapping[str, tuple[str, ...]]  # of each one-hot column, in alphabetical order
    indicators: tuple[str, ...]  # columns with a gap in some site's training rows

    @property
    def names(self) -> tuple[str, ...]:
        encoded = [f"{name}={level}" for name, levels in self.levels.items() for level in _written(levels)]
        return (*(c.name for c in self.numeric), *encoded, *(f"{name} missing" for name in self.indicators))


@dataclass(frozen=True)
class Fit:
    """One site's statistics: what fills a gap, and how a numeric column is moved and scaled."""

    fill: Mapping[str, float]
    fill_level: Mapping[str, str]
    centre: np.ndarray
    spread: np.ndarray


def complete_rows(records: Records) -> np.ndarray:
    if not isinstance(records.features, pd.DataFrame):
        return np.arange(len(records))
    return np.flatnonzero(records.features.notna().all(axis=1).to_numpy())


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
    return Encoded(
        records.columns, numbers, codes, tuple(levels), table[[c.name for c in records.columns]].isna().to_numpy()
    )


def agree(table: Encoded, train: Mapping[str, np.ndarray], settings: Preparation) -> Layout:
    """`train` holds each site's training rows."""
    rows = np.unique(np.concatenate(list(train.values())))
    gaps = table.missing[rows]
    as_codes = settings.categories == "codes"
    present = [(i, c) for i, c in enumerate(table.columns) if not gaps[:, i].all()]  # empty everywhere: no use
    if as_codes and (text := [c.name for _, c in present if c.kind == "categorical" and not c.coded]):
        problem = f'"codes" needs categories that are numbers; not so: {", ".join(text)}'
        raise DataError("data: categories", problem, 'Use categories = "one-hot".')
    numeric = tuple(c for _, c in present if c.kind == "numeric" or as_codes)
    levels = {
        c.name: tuple(table.levels[i][code] for code in np.unique(table.codes[rows, i]) if code >= 0)
        for i, c in present
        if c not in numeric
    }
    indicators = tuple(c.name for i, c in present if gaps[:, i].any()) if settings.indicator else ()
    return Layout(numeric, levels, indicators)


def fit(
    table: Encoded,
    train: Mapping[str, np.ndarray],
    layout: Layout,
    settings: Preparation,
    members: Collection[str] | None = None,
) -> dict[str, Fit]:
    """Each site's statistics. A site that never recorded a column takes the mean of the others' for it.

    Only `members` (all, unless given) contribute to what sites have from each other: a site that does not train with
    them uses their statistics and gives none.
    """
    members = list(train) if members is None else members
    places = table.numeric_places(layout)
    numbers = {site: table.numbers[rows][:, places] for site, rows in train.items()}
    fills = _fills(numbers, settings, members)
    modes = {site: _modes(table, layout, rows) for site, rows in train.items()}
    everywhere = _modes(table, layout, np.concatenate([train[site] for site in members]))
    filled = {site: np.where(np.isnan(values), fills[site], values) for site, values in numbers.items()}
    scales = _scales(filled, layout, settings, members)
    names = [column.name for column in layout.numeric]
    return {
        site: Fit(dict(zip(names, fills[site].tolist(), strict=True)), everywhere | modes[site], *scales[site])
        for site in train
    }


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
        code = np.where(codes[rows] < 0, known.index(fitted.fill_level[name]), codes[rows])
        written = np.array([known.index(level) for level in _written(levels)])
        blocks.append((code[:, None] == written).astype(float))
    blocks += [table.gaps(name)[rows].astype(float)[:, None] for name in layout.indicators]
    return np.concatenate(blocks, axis=1)


def _written(levels: Sequence[str]) -> Sequence[str]:
    """Two levels need one column: the second level's."""
    return levels[1:] if len(levels) == 2 else levels


def _modes(table: Encoded, layout: Layout, rows: np.ndarray) -> dict[str, str]:
    """The commonest level of each category; ties go to the first in the alphabet."""
    modes = {}
    for name in layout.levels:
        codes, levels = table.category(name)
        counts = np.bincount(codes[rows][codes[rows] >= 0], minlength=len(levels))
        if counts.any():
            modes[name] = levels[int(counts.argmax())]
    return modes


def _fills(numbers: Mapping[str, np.ndarray], settings: Preparation, members: Collection[str]) -> dict[str, np.ndarray]:
    gaps = any(np.isnan(values).any() for values in numbers.values())
    with_gaps, without = (np.nanmean, np.mean) if settings.missing == "mean" else (np.nanmedian, np.median)
    statistic: Any = with_gaps if gaps else without  # which takes a tenth of the time
    counts = {site: (~np.isnan(values)).sum(axis=0) for site, values in numbers.items()}
    # a column without any value would make numpy warn; its statistic is replaced below
    own = {site: statistic(np.where(counts[site] > 0, values, 0.0), axis=0) for site, values in numbers.items()}
    total = np.maximum(sum(counts[site] for site in members), 1)
    across = sum(own[site] * counts[site] for site in members) / total
    return {site: np.where(counts[site] > 0, own[site], across) for site in numbers}


def _scales(
    filled: Mapping[str, np.ndarray], layout: Layout, settings: Preparation, members: Collection[str]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    width = len(layout.numeric)
    if settings.scale == "none":
        return {site: (np.zeros(width), np.ones(width)) for site in filled}
    if settings.scale == "ranges":
        limits = _limits(layout)
        return dict.fromkeys(filled, (limits[:, 0], limits[:, 1] - limits[:, 0]))
    if settings.scale == "per-site":
        return {site: (values.mean(axis=0), _safe(values.std(axis=0))) for site, values in filled.items()}
    # federated: each site gives its count, sum and sum of squares; nobody sees a row
    count = sum(len(filled[site]) for site in members)
    total = sum(filled[site].sum(axis=0) for site in members)
    squares = sum((filled[site] ** 2).sum(axis=0) for site in members)
    mean = total / count
    spread = _safe(np.sqrt(np.maximum(squares / count - mean**2, 0)))
    return dict.fromkeys(filled, (mean, spread))


def _limits(layout: Layout) -> np.ndarray:
    unknown = [column.name for column in layout.numeric if column.limits is None]
    if unknown:
        raise DataError(
            "data: scale",
            f'"ranges" needs a public range for every numeric column; none is known for {", ".join(unknown)}',
            "Give `[data.ranges]` for a csv source, or choose another scale.",
        )
    return np.array([column.limits for column in layout.numeric], dtype=float).reshape(-1, 2)


def _safe(spread: np.ndarray) -> np.ndarray:
    """A constant column is left where it is instead of divided by zero."""
    return np.where(spread > 1e-12, spread, 1.0)
