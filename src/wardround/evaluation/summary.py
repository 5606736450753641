"""What a site tells of its own predictions, which stay with it: counts, sums, and histograms without small cells.

* A site with fewer than `smallest` rows tells nothing.
* Where a class has rows, but fewer than `smallest`, nothing by class is told: no counts of calls, no histogram, and of
  the metrics only those that are means over all rows.
* A subgroup is told of by the same rules where it has SMALLEST_GROUP rows or more. What is told must not give away
  what is not: all rows less the groups that are told of must again be no small cell.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from wardround.evaluation.metrics import SMALLEST_GROUP, THRESHOLD, THRESHOLDS, calls, count, metrics
from wardround.evaluation.predict import SitePrediction
from wardround.study import METRICS

EDGES = (0.0, *THRESHOLDS.tolist(), 1.0)  # a bin holds its lower edge; the last one holds 1 too
MIDDLE = EDGES.index(THRESHOLD)
OVER_ROWS = ("accuracy", "brier", "loss")  # means over rows, whatever their class


def summarise(prediction: SitePrediction, groups: Mapping[str, np.ndarray], smallest: int) -> dict[str, Any]:
    """Plain data for JSON. `groups` has for each kind, such as sex, a text or None for each row of the prediction."""
    label, score = prediction.label, prediction.score
    whole = _figures(label, score, smallest)
    if "metrics" not in whole:
        return whole
    return {**whole, "groups": {kind: _by_value(label, score, values, smallest) for kind, values in groups.items()}}


def _figures(label: np.ndarray, score: np.ndarray, smallest: int, by_class: bool = True) -> dict[str, Any]:
    """Of some rows; without figures by class where `by_class` forbids them or a class is small."""
    rows = len(label)
    if rows < max(smallest, 1):
        return {"suppressed": True}
    if np.isnan(score).any():
        return {"rows": rows, "diverged": True}
    small = np.flatnonzero(_is_small(_class_counts(label, score), smallest)).tolist()
    by_class = by_class and not small
    found = metrics(label, score)
    return {
        "rows": rows,
        "diverged": False,
        "small_classes": small,
        "metrics": {name: _or_none(found[name]) if by_class or name in OVER_ROWS else None for name in METRICS},
        "sums": {
            "right": int((calls(score) == label).sum()),
            "brier": found["brier"] * rows,
            "loss": found["loss"] * rows,
            "confusion": _confusion(label, score) if by_class else None,
        },
        "histogram": _histogram(label, score, smallest) if by_class and score.ndim == 1 else None,
    }


def _confusion(label: np.ndarray, score: np.ndarray) -> list[dict[str, int]]:
    """Of the positive class, or of each where there are several."""
    called = calls(score)
    classes = [1] if score.ndim == 1 else range(score.shape[1])
    return [count(label == number, called == number)._asdict() for number in classes]


def _histogram(label: np.ndarray, score: np.ndarray, smallest: int) -> list[list[dict[str, Any]]]:
    """Of the negative and of the positive class."""
    return [score_cells(score[label == number], smallest) for number in (0, 1)]


def score_cells(score: np.ndarray, smallest: int) -> list[dict[str, Any]]:
    """Neighbouring bins are merged until every cell has `smallest` rows; bins without rows are left out at the ends.

    No cell reaches over THRESHOLD, unless too few rows to be a cell of their own are on one side of it.
    """
    bins = np.searchsorted(THRESHOLDS, score, side="right")
    rows = np.bincount(bins, minlength=len(EDGES) - 1)
    sums = np.bincount(bins, weights=score.astype(np.float64), minlength=len(EDGES) - 1)
    sides = [(0, MIDDLE), (MIDDLE, len(rows))]
    if _is_small(np.array([rows[first:last].sum() for first, last in sides]), smallest).any():
        sides = [(0, len(rows))]
    return [
        {
            "low": EDGES[begin],
            "high": EDGES[end],
            "rows": int(rows[begin:end].sum()),
            "score_sum": float(sums[begin:end].sum()),
        }
        for first, last in sides
        for begin, end in _merged(rows, first, last, smallest)
    ]


def _merged(rows: np.ndarray, first: int, last: int, smallest: int) -> list[tuple[int, int]]:
    """Where cells begin and end, among bins that have no row or enough of them for one cell."""
    cells: list[tuple[int, int]] = []
    begin = first
    for end in range(first + 1, last + 1):
        there = int(rows[begin:end].sum())
        if there >= smallest and there:
            cells.append((begin, end))
        if there >= smallest or not there:
            begin = end
    if rows[begin:last].any():  # too few for a cell: they join the one before
        filled = begin + int(np.flatnonzero(rows[begin:last])[-1]) + 1
        cells[-1] = (cells[-1][0], filled)
    return cells


def _by_value(label: np.ndarray, score: np.ndarray, values: np.ndarray, smallest: int) -> dict[str, Any]:
    """Each value that may be told of. The rest of the rows could be worked out, so it may not be a small group either.

    Rows of no known value are part of that rest.
    """
    fewest = max(smallest, SMALLEST_GROUP)
    names = sorted({value for value in values.tolist() if isinstance(value, str)})
    places = {name: np.flatnonzero(values == name) for name in names}
    told = _large_enough(places, np.zeros(len(label), dtype=np.int64), 1, fewest)
    kinds = len(_class_counts(label, score))
    by_class = _large_enough({name: places[name] for name in told}, label, kinds, smallest)
    return {
        name: _figures(label[places[name]], score[places[name]], smallest, name in by_class) for name in sorted(told)
    }


def _large_enough(places: Mapping[str, np.ndarray], label: np.ndarray, classes: int, fewest: int) -> set[str]:
    """Groups in which no class is small, such that none is small in the rest of the rows."""
    counts = {name: np.bincount(label[rows], minlength=classes) for name, rows in places.items()}
    told = {name for name, found in counts.items() if not _is_small(found, fewest).any()}
    whole = np.bincount(label, minlength=classes)
    while told and _is_small(whole - sum(counts[name] for name in told), fewest).any():
        told.remove(min(sorted(told), key=lambda name: len(places[name])))  # the least is lost
    return told


def _class_counts(label: np.ndarray, score: np.ndarray) -> np.ndarray:
    return np.bincount(label, minlength=2 if score.ndim == 1 else score.shape[1])


def _is_small(counts: np.ndarray, smallest: int) -> np.ndarray:
    return np.asarray((counts > 0) & (counts < smallest))


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else value
