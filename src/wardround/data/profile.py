"""Columns of a table at a glance: how they hang together, and how each is distributed before and after sites form.

For the report. Cells of a histogram that stand for very few rows are withheld, because a report travels further than
the data it is about.
"""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from wardround.data.prepare import Encoded
from wardround.data.records import Records

BINS = 8
FEWEST = 5  # rows that a cell must have to be shown
MOST_COLUMNS = 30


def profile(records: Records, table: Encoded, sites: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """`sites` gives the rows of each."""
    shown = [place for place, column in enumerate(table.columns) if not table.missing[:, place].all()][:MOST_COLUMNS]
    numbers = np.where(np.isnan(table.numbers), np.where(table.codes >= 0, table.codes, np.nan), table.numbers)
    numeric = [place for place in shown if table.columns[place].kind == "numeric" or table.columns[place].coded]
    names = [table.columns[place].name for place in numeric]
    outcome = records.task.as_number(records.target)
    columns = [numbers[:, place] for place in numeric] + ([] if outcome is None else [outcome])
    return {
        "correlation": {
            "columns": names + ([] if outcome is None else [records.task.names[-1]]),
            "values": _correlation(columns),
        },
        "distributions": {
            table.columns[place].name: _distribution(numbers[:, place], table, place, sites) for place in shown
        },
    }


def _correlation(columns: list[np.ndarray]) -> list[list[float | None]]:
    """Pearson's, over the rows in which both columns are recorded."""

    def pearson(a: np.ndarray, b: np.ndarray) -> float | None:
        known = ~np.isnan(a) & ~np.isnan(b)
        x, y = a[known], b[known]
        if len(x) < FEWEST or x.std() < 1e-12 or y.std() < 1e-12:
            return None
        return float(np.corrcoef(x, y)[0, 1])

    return [[pearson(a, b) for b in columns] for a in columns]


def _distribution(values: np.ndarray, table: Encoded, place: int, sites: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Shares of each bin or level among the recorded values: of all rows and of each site's."""
    known = values[~np.isnan(values)]
    distinct = np.unique(known)
    levels = table.levels[place]
    if levels or len(distinct) <= BINS:
        codes = np.searchsorted(distinct, values)
        as_text = levels and np.isnan(table.numbers[:, place]).all()
        labels = [levels[int(value)] if as_text else f"{value:g}" for value in distinct]
        count = len(distinct)
    else:
        edges = _round_edges(float(known.min()), float(known.max()))
        codes = np.clip(np.digitize(values, edges[1:-1]), 0, len(edges) - 2)
        labels = [f"{low:g} to {high:g}" for low, high in pairwise(edges)]
        count = len(labels)

    def shares(rows: np.ndarray) -> dict[str, Any]:
        there = rows[~np.isnan(values[rows])]
        cells = np.bincount(codes[there], minlength=count)
        total = max(len(there), 1)
        if 0 < len(there) < FEWEST:  # so few that even how many they are would tell
            return {"missing": None, "shares": [None] * count}
        hidden = (cells > 0) & (cells < FEWEST)
        if hidden.sum() == 1 and (cells >= FEWEST).any():
            # a single hidden cell is what the others leave of the whole: the next smallest is hidden with it
            hidden[np.where(cells >= FEWEST, cells, len(rows) + 1).argmin()] = True
        return {
            "missing": float(1 - len(there) / max(len(rows), 1)),
            "shares": [None if h else float(c / total) for h, c in zip(hidden.tolist(), cells.tolist(), strict=True)],
        }

    everyone = np.arange(len(values))
    return {"labels": labels, "all": shares(everyone), "sites": {site: shares(rows) for site, rows in sites.items()}}


def _round_edges(low: float, high: float) -> np.ndarray:
    """Bins that begin and end at round numbers: the outermost values of the data belong to single patients."""
    rough = (high - low) / BINS
    unit = 10.0 ** math.floor(math.log10(rough))
    step = unit * next(factor for factor in (1, 2, 5, 10) if factor * unit >= rough)
    first, last = math.floor(low / step), math.floor(high / step) + 1
    return np.round(np.arange(first, last + 1) * step, 10)
