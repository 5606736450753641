"""From recorded columns to numbers: gaps filled, categories encoded, columns scaled.

Sites agree on a layout (which levels a category has, which columns need an indicator), so that position 7 means the
same at every site. What is fitted is fitted on training rows only: at each site alone, or from summed statistics.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from wardround.data.records import Column, Records
from wardround.errors import DataError
from wardround.study import Preparation


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


def agree(records: Records, train: Mapping[str, np.ndarray], settings: Preparation) -> Layout:
    """`train` holds each site's training rows."""
    table = _table(records)
    rows = np.unique(np.concatenate(list(train.values())))
    seen = table.iloc[rows]
    present = [column for column in records.columns if seen[column.name].notna().any()]  # empty everywhere: no use
    as_codes = settings.categories == "codes"
    if as_codes and (text := [c.name for c in present if c.kind == "categorical" and not c.coded]):
        raise DataError(
            "data: categories",
            f'"codes" needs categories that are numbers; not so: {", ".join(text)}',
            'Use categories = "one-hot".',
        )
    numeric = tuple(c for c in present if c.kind == "numeric" or as_codes)
    levels = {c.name: tuple(sorted(seen[c.name].dropna().unique())) for c in present if c not in numeric}
    gaps = tuple(c.name for c in present if seen[c.name].isna().any()) if settings.indicator else ()
    return Layout(numeric, levels, gaps)


def fit(records: Records, train: Mapping[str, np.ndarray], layout: Layout, settings: Preparation) -> dict[str, Fit]:
    """Each site's statistics. A site that never recorded a column takes the mean of the others' for it."""
    numbers = {site: _numbers(records, layout, rows) for site, rows in train.items()}
    fills = _fills(numbers, settings)
    modes = {site: _modes(records, layout, rows) for site, rows in train.items()}
    everywhere = _modes(records, layout, np.concatenate(list(train.values())))
    filled = {site: np.where(np.isnan(values), fills[site], values) for site, values in numbers.items()}
    scales = _scales(filled, layout, settings)
    names = [column.name for column in layout.numeric]
    return {
        site: Fit(dict(zip(names, fills[site].tolist(), strict=True)), everywhere | modes[site], *scales[site])
        for site in train
    }


def transform(records: Records, rows: np.ndarray, layout: Layout, fitted: Fit, settings: Preparation) -> np.ndarray:
    """Prepared features of `rows`, float64. A level that no training row had becomes zeros."""
    table = _table(records).iloc[rows]
    numbers = _numbers(records, layout, rows)
    fill = np.array([fitted.fill[column.name] for column in layout.numeric])
    numbers = (np.where(np.isnan(numbers), fill, numbers) - fitted.centre) / fitted.spread
    if settings.scale == "ranges":
        numbers = np.clip(numbers, 0, 1)
    blocks = [numbers]
    for name, levels in layout.levels.items():
        values = table[name].fillna(fitted.fill_level[name]).to_numpy(dtype=object)
        blocks.append(np.stack([values == level for level in _written(levels)], axis=1).astype(float))
    blocks += [table[name].isna().to_numpy(dtype=float)[:, None] for name in layout.indicators]
    return np.concatenate(blocks, axis=1)


def _written(levels: Sequence[str]) -> Sequence[str]:
    """Two levels need one column: the second level's."""
    return levels[1:] if len(levels) == 2 else levels


def _table(records: Records) -> pd.DataFrame:
    if not isinstance(records.features, pd.DataFrame):
        raise TypeError("only tables are prepared column by column")
    return records.features


def _numbers(records: Records, layout: Layout, rows: np.ndarray) -> np.ndarray:
    names = [column.name for column in layout.numeric]
    return _table(records)[names].iloc[rows].astype(float).to_numpy().reshape(len(rows), len(names))


def _modes(records: Records, layout: Layout, rows: np.ndarray) -> dict[str, str]:
    table = _table(records).iloc[rows]
    counts = {name: table[name].value_counts() for name in layout.levels}
    # ties go to the first in the alphabet, not to the order of rows
    return {name: str(min(c[c == c.max()].index)) for name, c in counts.items() if len(c)}


def _fills(numbers: Mapping[str, np.ndarray], settings: Preparation) -> dict[str, np.ndarray]:
    statistic = np.mean if settings.missing == "mean" else np.median
    counts = {site: (~np.isnan(values)).sum(axis=0) for site, values in numbers.items()}
    own = {
        site: np.array([statistic(c[~np.isnan(c)]) if (~np.isnan(c)).any() else 0.0 for c in values.T])
        for site, values in numbers.items()
    }
    total = np.maximum(sum(counts.values()), 1)
    across = sum(own[site] * counts[site] for site in numbers) / total
    return {site: np.where(counts[site] > 0, own[site], across) for site in numbers}


def _scales(
    filled: Mapping[str, np.ndarray], layout: Layout, settings: Preparation
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
    count = sum(len(values) for values in filled.values())
    total = sum(values.sum(axis=0) for values in filled.values())
    squares = sum((values**2).sum(axis=0) for values in filled.values())
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
