"""A site's summary of its own predictions, which stay there: counts, sums, and histograms without small cells.

Patients are counted, not rows.

* A site with fewer than `smallest` patients sends nothing.
* Where a class has some patients, but fewer than `smallest`, nothing by class is sent: no confusion counts, no
  histogram, and of the metrics only those that are means over all rows.
* A subgroup is summarised by the same rules if it has SMALLEST_GROUP patients or more. What is sent must not give away
  what is withheld: all rows minus the groups that are sent must not be a small cell either.

Where rows may have several findings, each finding is summarised as two classes are, over the rows in which it is known:

* Where few patients have a finding, or do not have it, only the number of rows is sent.
* The number of patients in whom a finding is unknown must not be a small cell either: where they are few, others, drawn
  at random, count as unknown too.
* The threshold of a finding is the best one on the site's own validation rows. It may be the score of a single patient,
  so it stays at the site, and none is chosen where fewer than `smallest` patients have the finding.
* Figures after a round are made of the same rows and findings: a difference would be about the few.
* A subgroup is summarised by the same rules, finding by finding.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from wardround.core.seeds import generator
from wardround.evaluation.prediction import SitePrediction, quick_figures
from wardround.evaluation.thresholds import best_threshold, class_threshold
from wardround.privacy.disclosure import must_stay
from wardround.privacy.disclosure.small_cells import is_small, patients_by_class, patients_in, releasable_groups
from wardround.study.schema import CHOSEN
from wardround.tasks import METRIC_FACTS, Binary, Multiclass, Multilabel, Task
from wardround.tasks.class_metrics import (
    METRICS,
    SMALLEST_GROUP,
    THRESHOLD,
    THRESHOLDS,
    count,
    finding_metrics,
    macro,
    predicted_classes,
)
from wardround.tasks.multilabel import UNKNOWN

EDGES = (0.0, *THRESHOLDS.tolist(), 1.0)  # a bin holds its lower edge; the last one holds 1 too
MIDDLE = EDGES.index(THRESHOLD)


def class_summary(
    prediction: SitePrediction, groups: Mapping[str, np.ndarray], smallest: int, threshold: float = THRESHOLD
) -> dict[str, Any]:
    """Plain data for JSON. `groups` has for each kind, such as sex, a text or None for each row of the prediction."""
    label, score, people = prediction.label, prediction.score, prediction.people
    whole = figures_of(prediction.task, label, score, people, smallest, threshold)
    if "metrics" not in whole:
        return whole
    by_kind = {kind: _by_value(prediction, values, smallest, threshold) for kind, values in groups.items()}
    return {**whole, "groups": by_kind}


def figures_of(
    task: Task,
    label: np.ndarray,
    score: np.ndarray,
    people: np.ndarray,
    smallest: int,
    threshold: float = THRESHOLD,
    by_class: bool = True,
) -> dict[str, Any]:
    """Without figures by class where `by_class` forbids them or a class is small. `task` is of classes; or of findings,
    of which this is one.

    For a finding without figures by class only the number of rows is given: a model that predicts nobody ill would
    reveal the number of the ill by its number of right predictions.
    """
    rows, finding = len(label), isinstance(task, Multilabel)
    if must_stay(people, smallest):
        return {"suppressed": True}
    if np.isnan(score).any():
        return {"rows": rows, "diverged": True}
    small = np.flatnonzero(is_small(patients_by_class(label, people, _classes(task)), smallest)).tolist()
    by_class = by_class and not small
    if finding and not by_class:
        nothing = {"metrics": dict.fromkeys(METRICS), "sums": None, "histogram": None}
        return {"rows": rows, "diverged": False, "small_classes": small, **nothing}
    figures = finding_metrics(label, score, threshold) if finding else task.figures(label, score, threshold)
    predicted = predicted_classes(score, threshold)
    return {
        "rows": rows,
        "diverged": False,
        "small_classes": small,
        "metrics": {
            name: _or_none(figures[name]) if by_class or METRIC_FACTS[name].over_rows else None for name in METRICS
        },
        "sums": {
            "right": int((predicted == label).sum()),
            "brier": figures["brier"] * rows,
            "loss": figures["loss"] * rows,
            "confusion": _confusion(task, label, predicted) if by_class else None,
        },
        "histogram": None
        if isinstance(task, Multiclass) or not by_class
        else _histogram(label, score, people, smallest),
    }


def _confusion(task: Task, label: np.ndarray, predicted: np.ndarray) -> list[dict[str, int]]:
    """Of the positive class, or of each where there are several."""
    classes = range(len(task.names)) if isinstance(task, Multiclass) else [1]
    return [count(label == number, predicted == number)._asdict() for number in classes]


def _histogram(label: np.ndarray, score: np.ndarray, people: np.ndarray, smallest: int) -> list[list[dict[str, Any]]]:
    """Of the negative and of the positive class."""
    return [score_cells(score[label == number], people[label == number], smallest) for number in (0, 1)]


def score_cells(score: np.ndarray, people: np.ndarray, smallest: int) -> list[dict[str, Any]]:
    """Neighbouring bins are merged until every cell has `smallest` patients; empty bins are left out at the ends.

    No cell crosses THRESHOLD, unless there are too few patients for a cell below or above it.
    """
    bins = np.searchsorted(THRESHOLDS, score, side="right")
    rows = np.bincount(bins, minlength=len(EDGES) - 1)
    sums = np.bincount(bins, weights=score.astype(np.float64), minlength=len(EDGES) - 1)

    def patients(first: int, last: int) -> int:
        return patients_in(people[(bins >= first) & (bins < last)])

    ranges = [(0, MIDDLE), (MIDDLE, len(rows))]
    if is_small(np.array([patients(*bins_of_range) for bins_of_range in ranges]), smallest).any():
        ranges = [(0, len(rows))]
    return [
        {
            "low": EDGES[begin],
            "high": EDGES[end],
            "rows": int(rows[begin:end].sum()),
            "score_sum": float(sums[begin:end].sum()),
        }
        for first, last in ranges
        for begin, end in _merged(rows, patients, first, last, smallest)
    ]


def _merged(
    rows: np.ndarray, patients: Callable[[int, int], int], first: int, last: int, smallest: int
) -> list[tuple[int, int]]:
    """Where cells begin and end, among bins that have no row or enough patients for one cell."""
    cells: list[tuple[int, int]] = []
    begin = first
    for end in range(first + 1, last + 1):
        patient_count = patients(begin, end)
        if patient_count >= smallest and patient_count:
            cells.append((begin, end))
        if patient_count >= smallest or not patient_count:
            begin = end
    if rows[begin:last].any():  # too few for a cell: they join the one before
        filled = begin + int(np.flatnonzero(rows[begin:last])[-1]) + 1
        cells[-1] = (cells[-1][0], filled)
    return cells


def _by_value(prediction: SitePrediction, values: np.ndarray, smallest: int, threshold: float) -> dict[str, Any]:
    task, label, score, people = prediction.task, prediction.label, prediction.score, prediction.people
    places = _released_places(values, people, smallest)
    by_class = releasable_groups(places, label, people, _classes(task), smallest)
    return {
        name: figures_of(task, label[rows], score[rows], people[rows], smallest, threshold, name in by_class)
        for name, rows in places.items()
    }


def _released_places(values: np.ndarray, people: np.ndarray, smallest: int) -> dict[str, np.ndarray]:
    """The rows of each value that may be released. The rest of the rows could be worked out: it must not be a small
    group either. Rows of no known value are part of that rest."""
    names = sorted({value for value in values.tolist() if isinstance(value, str)})
    places = {name: np.flatnonzero(values == name) for name in names}
    one_class, fewest = np.zeros(len(values), dtype=np.int64), max(smallest, SMALLEST_GROUP)
    released = releasable_groups(places, one_class, people, 1, fewest)
    return {name: rows for name, rows in places.items() if name in released}


def _classes(task: Task) -> int:
    """A finding is present or absent."""
    return 2 if isinstance(task, Multilabel) else len(task.names)


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else value


SUPPRESSED = {"suppressed": True}
CURVE = ("loss", "accuracy", "auc")


def site_summary(
    prediction: SitePrediction,
    groups: Mapping[str, np.ndarray],
    smallest: int,
    thresholds: np.ndarray | None = None,
) -> dict[str, Any]:
    """Of rows with classes, or of rows with findings.

    `thresholds` are those that `own_thresholds` chose; without them the threshold is one half.
    """
    if not isinstance(prediction.task, Multilabel):
        chosen = np.nan if thresholds is None else float(thresholds[0])
        return class_summary(prediction, groups, smallest, THRESHOLD if np.isnan(chosen) else chosen)
    score, people, names = prediction.score, prediction.people, prediction.task.names
    if must_stay(people, smallest):
        return dict(SUPPRESSED)
    if np.isnan(score).any():
        return {"rows": len(score), "diverged": True}
    cuts = np.full(len(names), np.nan) if thresholds is None else thresholds
    label = _without_few_unknown(prediction, smallest)
    task = prediction.task
    whole = {
        name: _of_finding(task, label[:, f], score[:, f], people, smallest, cuts[f]) for f, name in enumerate(names)
    }
    return {
        "rows": len(label),
        "diverged": False,
        "findings": whole,
        "groups": {
            kind: _findings_by_value(task, label, score, people, values, smallest, cuts)
            for kind, values in groups.items()
        },
    }


def own_thresholds(
    validation: SitePrediction | None, smallest: int, threshold: float | str = CHOSEN, findings: int = 0
) -> np.ndarray | None:
    """A site's thresholds of the positive class of two, or of each finding: chosen on its own validation rows, unless
    the study gives `threshold`. NaN where too few patients are of a class or have the finding.

    None where nothing can be chosen: without validation rows, and with several classes.
    """
    if not isinstance(threshold, str):
        return np.full(max(1, findings), threshold)
    if validation is None or not len(validation.rows):
        return None
    label, score, people = validation.label, validation.score, validation.people
    if isinstance(validation.task, Multiclass):
        return None
    binary = isinstance(validation.task, Binary)
    needed, choose = ((0, 1), class_threshold) if binary else ((1,), best_threshold)
    thresholds = []
    for y, s in zip(np.atleast_2d(label.T), np.atleast_2d(score.T), strict=True):
        few = any(must_stay(people[y == c], smallest) for c in needed)
        thresholds.append(np.nan if few else choose(y, s))
    return np.array(thresholds)


def curve_figures(prediction: SitePrediction, smallest: int) -> dict[str, float]:
    """What a site sends about a model after a round: number of rows, loss, accuracy, and for findings the AUC; nothing
    where it has too few patients. For findings they are means over those for which `site_summary` has figures."""
    if must_stay(prediction.people, smallest):
        return {}
    rows = len(prediction.rows)
    if not isinstance(prediction.task, Multilabel):
        return {"rows": rows, **quick_figures([prediction])}
    if np.isnan(prediction.score).any():
        return {"rows": rows, **dict.fromkeys(CURVE, np.nan)}
    label, score, people = _without_few_unknown(prediction, smallest), prediction.score, prediction.people
    of_findings = []
    for f in range(label.shape[1]):
        known = label[:, f] >= 0
        counts = patients_by_class(label[known, f], people[known], 2)
        if not must_stay(people[known], smallest) and not is_small(counts, smallest).any():
            of_findings.append(finding_metrics(label[known, f], score[known, f], THRESHOLD))
    if not of_findings:
        return {}
    means = macro(of_findings)
    return {"rows": rows, **{name: means[name] for name in CURVE}}


def _of_finding(
    task: Task,
    label: np.ndarray,
    score: np.ndarray,
    people: np.ndarray,
    smallest: int,
    threshold: float,
    by_class: bool = True,
) -> dict[str, Any]:
    """Over the rows in which the finding is known. `threshold` is NaN where none was chosen."""
    known = label >= 0
    chosen = not np.isnan(threshold)
    # scores may be of less precision, and are not rounded up to it
    cut = np.float64(threshold if chosen else THRESHOLD)
    figures = figures_of(task, label[known], score[known], people[known], smallest, cut, by_class)
    return figures if "suppressed" in figures else {**figures, "chosen": chosen}


def _without_few_unknown(prediction: SitePrediction, smallest: int) -> np.ndarray:
    """Labels in which a finding is unknown in no patient or in at least `smallest`. The same patients are drawn for
    every model, so that models are compared on the same rows."""
    label, people = prediction.label.copy(), prediction.people
    for f in range(label.shape[1]):
        with_open = np.unique(people[label[:, f] < 0])
        if 0 < len(with_open) < smallest:
            others = np.setdiff1d(people, with_open)
            drawn = generator(f, "labels left open", site=prediction.site).permutation(others)
            label[np.isin(people, drawn[: smallest - len(with_open)]), f] = UNKNOWN
    return label


def _findings_by_value(
    task: Task,
    label: np.ndarray,
    score: np.ndarray,
    people: np.ndarray,
    values: np.ndarray,
    smallest: int,
    cuts: np.ndarray,
) -> dict[str, Any]:
    """Each value that may be released, as in `_by_value`; in it each finding whose known rows, unknown rows and rows
    of either class are not small cells there or in the rest."""
    places, fewest = _released_places(values, people, smallest), max(smallest, SMALLEST_GROUP)
    by_value: dict[str, Any] = {
        value: {"rows": len(rows), "diverged": False, "findings": {}} for value, rows in places.items()
    }
    for f, name in enumerate(task.names):
        is_open = (label[:, f] < 0).astype(np.int64)
        known_in = releasable_groups(places, is_open, people, 2, np.array([fewest, smallest]))
        state = np.where(is_open, 2, label[:, f])
        by_class = releasable_groups({v: places[v] for v in known_in}, state, people, 3, smallest)
        for value, rows in places.items():
            by_value[value]["findings"][name] = (
                _of_finding(task, label[rows, f], score[rows, f], people[rows], smallest, cuts[f], value in by_class)
                if value in known_in
                else dict(SUPPRESSED)
            )
    return by_value
