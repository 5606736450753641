"""What a site tells of its own predictions, which stay with it: counts, sums, and histograms without small cells.

What is counted is patients: one with many rows is one.

* A site with fewer than `smallest` tells nothing.
* Where a class has some, but fewer than `smallest`, nothing by class is told: no counts of calls, no histogram, and of
  the metrics only those that are means over all rows.
* A subgroup is told of by the same rules where it has SMALLEST_GROUP or more. What is told must not give away what is
  not: all rows less the groups that are told of must again be no small cell.

Where rows may have several findings, `finding_summary.py` tells the same of each of them.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from wardround.evaluation.metrics import (
    SMALLEST_GROUP,
    THRESHOLD,
    THRESHOLDS,
    calls,
    count,
    finding_metrics,
    metrics,
)
from wardround.evaluation.prediction import SitePrediction
from wardround.study.schema import METRICS

EDGES = (0.0, *THRESHOLDS.tolist(), 1.0)  # a bin holds its lower edge; the last one holds 1 too
MIDDLE = EDGES.index(THRESHOLD)
OVER_ROWS = ("accuracy", "brier", "loss")  # means over rows, whatever their class


def summarise(
    prediction: SitePrediction, groups: Mapping[str, np.ndarray], smallest: int, threshold: float = THRESHOLD
) -> dict[str, Any]:
    """Plain data for JSON. `groups` has for each kind, such as sex, a text or None for each row of the prediction.
    `threshold`: from which score on the positive class of two is called."""
    label, score, people = prediction.label, prediction.score, prediction.people
    whole = figures_of(label, score, people, smallest, threshold)
    if "metrics" not in whole:
        return whole
    by_kind = {kind: _by_value(label, score, people, values, smallest, threshold) for kind, values in groups.items()}
    return {**whole, "groups": by_kind}


def figures_of(
    label: np.ndarray,
    score: np.ndarray,
    people: np.ndarray,
    smallest: int,
    threshold: float = THRESHOLD,
    by_class: bool = True,
    finding: bool = False,
) -> dict[str, Any]:
    """Of some rows; without figures by class where `by_class` forbids them or a class is small.

    `threshold`: from which score on the positive class, or the finding, is called. Of a `finding` nothing is told
    beside the number of rows where figures by class are not: whoever calls nobody ill could count the ill from what was
    called right.
    """
    rows = len(label)
    if patients_in(people) < max(smallest, 1):
        return {"suppressed": True}
    if np.isnan(score).any():
        return {"rows": rows, "diverged": True}
    small = np.flatnonzero(is_small(patients_by_class(label, people, _classes(score)), smallest)).tolist()
    by_class = by_class and not small
    if finding and not by_class:
        nothing = {"metrics": dict.fromkeys(METRICS), "sums": None, "histogram": None}
        return {"rows": rows, "diverged": False, "small_classes": small, **nothing}
    found = finding_metrics(label, score, threshold) if finding else metrics(label, score, threshold)
    called = calls(score, threshold)
    return {
        "rows": rows,
        "diverged": False,
        "small_classes": small,
        "metrics": {name: _or_none(found[name]) if by_class or name in OVER_ROWS else None for name in METRICS},
        "sums": {
            "right": int((called == label).sum()),
            "brier": found["brier"] * rows,
            "loss": found["loss"] * rows,
            "confusion": _confusion(label, called, score) if by_class else None,
        },
        "histogram": _histogram(label, score, people, smallest) if by_class and score.ndim == 1 else None,
    }


def _confusion(label: np.ndarray, called: np.ndarray, score: np.ndarray) -> list[dict[str, int]]:
    """Of the positive class, or of each where there are several."""
    classes = [1] if score.ndim == 1 else range(score.shape[1])
    return [count(label == number, called == number)._asdict() for number in classes]


def _histogram(label: np.ndarray, score: np.ndarray, people: np.ndarray, smallest: int) -> list[list[dict[str, Any]]]:
    """Of the negative and of the positive class."""
    return [score_cells(score[label == number], people[label == number], smallest) for number in (0, 1)]


def score_cells(score: np.ndarray, people: np.ndarray, smallest: int) -> list[dict[str, Any]]:
    """Neighbouring bins are merged until every cell has `smallest` patients; bins without rows are left out at the
    ends.

    No cell reaches over THRESHOLD, unless too few to be a cell of their own are on one side of it.
    """
    bins = np.searchsorted(THRESHOLDS, score, side="right")
    rows = np.bincount(bins, minlength=len(EDGES) - 1)
    sums = np.bincount(bins, weights=score.astype(np.float64), minlength=len(EDGES) - 1)

    def patients(first: int, last: int) -> int:
        return patients_in(people[(bins >= first) & (bins < last)])

    sides = [(0, MIDDLE), (MIDDLE, len(rows))]
    if is_small(np.array([patients(*side) for side in sides]), smallest).any():
        sides = [(0, len(rows))]
    return [
        {
            "low": EDGES[begin],
            "high": EDGES[end],
            "rows": int(rows[begin:end].sum()),
            "score_sum": float(sums[begin:end].sum()),
        }
        for first, last in sides
        for begin, end in _merged(rows, patients, first, last, smallest)
    ]


def _merged(
    rows: np.ndarray, patients: Callable[[int, int], int], first: int, last: int, smallest: int
) -> list[tuple[int, int]]:
    """Where cells begin and end, among bins that have no row or enough patients for one cell."""
    cells: list[tuple[int, int]] = []
    begin = first
    for end in range(first + 1, last + 1):
        there = patients(begin, end)
        if there >= smallest and there:
            cells.append((begin, end))
        if there >= smallest or not there:
            begin = end
    if rows[begin:last].any():  # too few for a cell: they join the one before
        filled = begin + int(np.flatnonzero(rows[begin:last])[-1]) + 1
        cells[-1] = (cells[-1][0], filled)
    return cells


def _by_value(
    label: np.ndarray, score: np.ndarray, people: np.ndarray, values: np.ndarray, smallest: int, threshold: float
) -> dict[str, Any]:
    """Each value that may be told of. The rest of the rows could be worked out, so it may not be a small group either.

    Rows of no known value are part of that rest.
    """
    fewest = max(smallest, SMALLEST_GROUP)
    places = places_of(values)
    told = large_enough(places, np.zeros(len(label), dtype=np.int64), people, 1, fewest)
    by_class = large_enough({name: places[name] for name in told}, label, people, _classes(score), smallest)
    return {
        name: figures_of(label[rows], score[rows], people[rows], smallest, threshold, name in by_class)
        for name in sorted(told)
        for rows in [places[name]]
    }


def places_of(values: np.ndarray) -> dict[str, np.ndarray]:
    """The rows of each value that is known."""
    names = sorted({value for value in values.tolist() if isinstance(value, str)})
    return {name: np.flatnonzero(values == name) for name in names}


def large_enough(
    places: Mapping[str, np.ndarray], label: np.ndarray, people: np.ndarray, classes: int, fewest: int | np.ndarray
) -> set[str]:
    """Groups in which no class is small, such that none is small in the rest of the rows.

    `fewest` may be one number for all classes, or one for each.
    """

    def small(rows: np.ndarray) -> bool:
        return bool(is_small(patients_by_class(label[rows], people[rows], classes), fewest).any())

    told = {name for name, rows in places.items() if not small(rows)}
    while told and small(np.setdiff1d(np.arange(len(label)), np.concatenate([places[name] for name in told]))):
        told.remove(min(sorted(told), key=lambda name: len(places[name])))  # the least is lost
    return told


def patients_in(people: np.ndarray) -> int:
    return len(np.unique(people))


def patients_by_class(label: np.ndarray, people: np.ndarray, classes: int) -> np.ndarray:
    """How many have a row of each class."""
    pairs = np.unique(np.stack([label, people]), axis=1)
    return np.bincount(pairs[0], minlength=classes)


def _classes(score: np.ndarray) -> int:
    return 2 if score.ndim == 1 else score.shape[1]


def is_small(counts: np.ndarray, smallest: int | np.ndarray) -> np.ndarray:
    return np.asarray((counts > 0) & (counts < smallest))


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else value
