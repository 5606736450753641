"""A site's summary of its own predictions, which stay there: counts, sums, and histograms without small cells.

Patients are counted, not rows.

* A site with fewer than `smallest` patients sends nothing.
* Where a class has some patients, but fewer than `smallest`, nothing by class is sent: no confusion counts, no
  histogram, and of the metrics only those that are means over all rows.
* A subgroup is summarised by the same rules if it has SMALLEST_GROUP patients or more. What is sent must not give away
  what is withheld: all rows minus the groups that are sent must not be a small cell either.

Of numbers, each term of which the task's metrics are made is summed over the rows; and groups of patients in the order
of their predictions have their sums, for a plot of residuals. A least or largest value is never sent.

Where rows may have several findings, each finding is summarised as two classes are, over the rows in which it is known:

* Where few patients have a finding, or do not have it, only the number of rows is sent.
* The number of patients in whom a finding is unknown must not be a small cell either: where they are few, others, drawn
  at random, count as unknown too.
* The threshold of a finding is the best one on the site's own validation rows. It may be the score of a single patient,
  so it stays at the site, and none is chosen where fewer than `smallest` patients have the finding.
* Figures after a round are made of the same rows and findings: a difference would be about the few.
* A subgroup is summarised by the same rules, finding by finding.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from wardround.core.seeds import generator
from wardround.evaluation.prediction import SitePrediction, quick_figures
from wardround.evaluation.summaries.residual_cells import residual_cells
from wardround.evaluation.summaries.score_histograms import score_histogram
from wardround.evaluation.thresholds import CHOICES
from wardround.privacy.disclosure import must_stay
from wardround.privacy.disclosure.small_cells import is_small, patients_by_class, releasable_groups
from wardround.study.schema import CHOSEN
from wardround.tasks import Task
from wardround.tasks.class_metrics import SMALLEST_GROUP, THRESHOLD, finding_metrics, macro
from wardround.tasks.multilabel import UNKNOWN

SUPPRESSED = {"suppressed": True}


@dataclass(frozen=True)
class Told:
    """Rows of a prediction of which a site may tell, if enough patients have them."""

    task: Task
    label: np.ndarray
    score: np.ndarray
    people: np.ndarray
    smallest: int

    def at(self, rows: np.ndarray) -> "Told":
        return Told(self.task, self.label[rows], self.score[rows], self.people[rows], self.smallest)

    def part(self, number: int, task: Task) -> "Told":
        """One of the task's parts."""
        return Told(task, self.label[:, number], self.score[:, number], self.people, self.smallest)

    @property
    def class_count(self) -> int:
        return len(self.task.classes) or 1

    @property
    def small_classes(self) -> list[int]:
        counts = patients_by_class(self.task.class_of(self.label), self.people, self.class_count)
        return np.flatnonzero(is_small(counts, self.smallest)).tolist()


def site_summary(
    prediction: SitePrediction,
    groups: Mapping[str, np.ndarray],
    smallest: int,
    thresholds: np.ndarray | None = None,
) -> dict[str, Any]:
    """Plain data for JSON. `groups` has for each kind, such as sex, a text or None for each row of the prediction.

    `thresholds` are those that `own_thresholds` chose; without them the threshold is one half.
    """
    task, score, people = prediction.task, prediction.score, prediction.people
    if must_stay(people, smallest):
        return dict(SUPPRESSED)
    if task.diverged(score):
        return {"rows": len(score), "diverged": True}
    if not task.parts:
        chosen = np.nan if thresholds is None else float(thresholds[0])
        cut = THRESHOLD if np.isnan(chosen) else chosen
        told = Told(task, prediction.label, score, people, smallest)
        by_kind = {kind: _by_value(told, values, cut) for kind, values in groups.items()}
        cells = {"cells": residual_cells(told.label, score, people, smallest)} if task.calibration == "linear" else {}
        return {**figures_of(told, cut), **cells, "groups": by_kind}
    cuts = np.full(len(task.parts), np.nan) if thresholds is None else thresholds
    told = Told(task, _without_few_unknown(prediction, smallest), score, people, smallest)
    by_part = {
        name: _of_part(told.part(number, part), cuts[number]) for number, (name, part) in enumerate(task.parts.items())
    }
    return {
        "rows": len(score),
        "diverged": False,
        "findings": by_part,
        "groups": {kind: _parts_by_value(told, values, cuts) for kind, values in groups.items()},
    }


def figures_of(told: Told, threshold: float = THRESHOLD, by_class: bool = True) -> dict[str, Any]:
    """Sums over rows whose figures may leave; without figures by class where `by_class` forbids them or a class is
    small."""
    task, small = told.task, told.small_classes
    by_class = by_class and not small
    figures: dict[str, Any] = {"rows": len(told.label), "diverged": False}
    sums = task.row_sums(told.label, told.score, threshold, by_class)
    if not task.classes:
        return {**figures, **sums}
    ranks = by_class and task.scored_by_class
    histogram = score_histogram(told.label, told.score, told.people, told.smallest) if ranks else None
    return {**figures, "small_classes": small, **sums, "histogram": histogram}


def _by_value(told: Told, values: np.ndarray, threshold: float) -> dict[str, Any]:
    places = _released_places(values, told.people, told.smallest)
    label = told.task.class_of(told.label)
    by_class = releasable_groups(places, label, told.people, told.class_count, told.smallest)
    return {name: figures_of(told.at(rows), threshold, name in by_class) for name, rows in places.items()}


def _released_places(values: np.ndarray, people: np.ndarray, smallest: int) -> dict[str, np.ndarray]:
    """The rows of each value that may be released. The rest of the rows could be worked out: it must not be a small
    group either. Rows of no known value are part of that rest."""
    names = sorted({value for value in values.tolist() if isinstance(value, str)})
    places = {name: np.flatnonzero(values == name) for name in names}
    one_class, fewest = np.zeros(len(values), dtype=np.int64), max(smallest, SMALLEST_GROUP)
    released = releasable_groups(places, one_class, people, 1, fewest)
    return {name: rows for name, rows in places.items() if name in released}


def own_thresholds(
    task: Task, validation: SitePrediction | None, smallest: int, threshold: float | str = CHOSEN
) -> np.ndarray | None:
    """A site's thresholds of the positive class of two, or of each finding: chosen on its own validation rows, unless
    the study gives `threshold`. NaN where too few patients are of a class or have the finding.

    None where nothing can be chosen: without validation rows, with several classes, and for numbers.
    """
    parts = list(task.parts.values()) or [task]
    if task.threshold_rule is None:
        return None
    if not isinstance(threshold, str):
        return np.full(len(parts), threshold)
    if validation is None or not len(validation.rows):
        return None
    people, thresholds, choose = validation.people, [], CHOICES[task.threshold_rule]
    each = zip(parts, np.atleast_2d(validation.label.T), np.atleast_2d(validation.score.T), strict=True)
    for part, y, s in each:
        needed = (1,) if part.needs_positives else (0, 1)
        few = any(must_stay(people[y == c], smallest) for c in needed)
        thresholds.append(np.nan if few else choose(y, s))
    return np.array(thresholds)


def curve_figures(prediction: SitePrediction, smallest: int) -> dict[str, Any]:
    """What a site sends about a model after a round: number of rows, loss, the task's curve (accuracy, or the mean
    error of a number), and for findings the AUC; nothing where it has too few patients. For findings they are means
    over those for which `site_summary` has figures."""
    if must_stay(prediction.people, smallest):
        return {}
    rows, task = len(prediction.rows), prediction.task
    if not task.parts:
        return _curve(task, rows, quick_figures([prediction]))
    if task.diverged(prediction.score):
        return _curve(task, rows, {})
    label, score, people = _without_few_unknown(prediction, smallest), prediction.score, prediction.people
    of_findings = []
    for f in range(label.shape[1]):
        known = label[:, f] >= 0
        counts = patients_by_class(label[known, f], people[known], 2)
        if not must_stay(people[known], smallest) and not is_small(counts, smallest).any():
            of_findings.append(finding_metrics(label[known, f], score[known, f], THRESHOLD))
    return _curve(task, rows, macro(of_findings)) if of_findings else {}


def _curve(task: Task, rows: int, figures: Mapping[str, float]) -> dict[str, Any]:
    """None for what is no number, which JSON does not know."""
    names = ("loss", task.curve, *task.round_metrics)
    known = {name: figures.get(name, math.nan) for name in names}
    return {"rows": rows, "figures": {name: value if math.isfinite(value) else None for name, value in known.items()}}


def _of_part(told: Told, threshold: float, by_class: bool = True) -> dict[str, Any]:
    """Over the rows in which the finding is known. `threshold` is NaN where none was chosen."""
    known = told.at(told.label >= 0)
    if must_stay(known.people, told.smallest):
        return dict(SUPPRESSED)
    chosen = not np.isnan(threshold)
    # scores may be of less precision, and are not rounded up to it
    cut = np.float64(threshold if chosen else THRESHOLD)
    return {**figures_of(known, cut, by_class), "chosen": chosen}


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


def _parts_by_value(told: Told, values: np.ndarray, cuts: np.ndarray) -> dict[str, Any]:
    """Each value that may be released, as in `_by_value`; in it each finding whose known rows, unknown rows and rows
    of either class are not small cells there or in the rest."""
    people, smallest = told.people, told.smallest
    places, fewest = _released_places(values, people, smallest), max(smallest, SMALLEST_GROUP)
    by_value: dict[str, Any] = {
        value: {"rows": len(rows), "diverged": False, "findings": {}} for value, rows in places.items()
    }
    for f, (name, task) in enumerate(told.task.parts.items()):
        part = told.part(f, task)
        is_open = (part.label < 0).astype(np.int64)
        known_in = releasable_groups(places, is_open, people, 2, np.array([fewest, smallest]))
        state = np.where(is_open, 2, part.label)
        by_class = releasable_groups({v: places[v] for v in known_in}, state, people, 3, smallest)
        for value, rows in places.items():
            by_value[value]["findings"][name] = (
                _of_part(part.at(rows), cuts[f], value in by_class) if value in known_in else dict(SUPPRESSED)
            )
    return by_value
