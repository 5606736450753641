"""What a site tells of predictions where a row may have several findings.

Of each finding it is what `summary.py` tells of two classes, over the rows in which the finding is known to be there or
not. Patients are counted there too.

* Where few patients have a finding, or have it not, only the number of rows is told.
* In how many patients a finding is open must be no small cell either: where they are few, others, drawn by lot, count
  as open too.
* A finding is called from the score on that is best on the site's own validation rows. That score may be one patient's,
  so that it stays at the site, and nothing is chosen where fewer than `smallest` of its patients have the finding.
* What is told after a round is made of the same rows and findings: a difference would be about the few.
* A subgroup is told of by the same rules, finding by finding.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wardround.core.seeds import generator
from wardround.data.records import UNKNOWN
from wardround.evaluation.metrics import SMALLEST_GROUP, THRESHOLD, finding_metrics, macro
from wardround.evaluation.prediction import SitePrediction, quick_figures
from wardround.evaluation.summaries.site_summary import (
    figures_of,
    is_small,
    large_enough,
    patients_by_class,
    patients_in,
    places_of,
    summarise,
)
from wardround.evaluation.thresholds import best_threshold, class_threshold
from wardround.study.schema import CHOSEN

SUPPRESSED = {"suppressed": True}
CURVE = ("loss", "accuracy", "auc")


def tell(
    prediction: SitePrediction,
    names: Sequence[str],
    groups: Mapping[str, np.ndarray],
    smallest: int,
    thresholds: np.ndarray | None = None,
) -> dict[str, Any]:
    """Of rows of one class, or of rows with findings. `names` are those of the classes or findings.

    `thresholds` are those that `own_thresholds` chose; without them a class of two or a finding is called at one half.
    """
    if prediction.label.ndim == 1:
        chosen = np.nan if thresholds is None else float(thresholds[0])
        return summarise(prediction, groups, smallest, THRESHOLD if np.isnan(chosen) else chosen)
    score, people = prediction.score, prediction.people
    if patients_in(people) < max(smallest, 1):
        return dict(SUPPRESSED)
    if np.isnan(score).any():
        return {"rows": len(score), "diverged": True}
    cuts = np.full(len(names), np.nan) if thresholds is None else thresholds
    label = _without_few_open(prediction, smallest)
    whole = {name: _of_finding(label[:, f], score[:, f], people, smallest, cuts[f]) for f, name in enumerate(names)}
    return {
        "rows": len(label),
        "diverged": False,
        "findings": whole,
        "groups": {
            kind: _findings_by_value(label, score, people, names, values, smallest, cuts) for kind, values in groups.items()
        },
    }


def own_thresholds(
    validation: SitePrediction | None, smallest: int, threshold: float | str = CHOSEN, findings: int = 0
) -> np.ndarray | None:
    """From which score on a site calls the positive class of two, or each finding: chosen on its own validation rows,
    unless the study gives `threshold`. NaN where too few patients are of a class or have the finding.

    None where nothing can be chosen: without validation rows, and with several classes.
    """
    if not isinstance(threshold, str):
        return np.full(max(1, findings), threshold)
    if validation is None or not len(validation.rows):
        return None
    label, score, people = validation.label, validation.score, validation.people
    if label.ndim == 1 and score.ndim == 1:
        few = min(patients_in(people[label == c]) for c in (0, 1)) < max(smallest, 1)
        return np.array([np.nan if few else class_threshold(label, score)])
    if label.ndim == 1:
        return None
    small = [patients_in(people[label[:, f] == 1]) < max(smallest, 1) for f in range(label.shape[1])]
    return np.array([np.nan if small[f] else best_threshold(label[:, f], score[:, f]) for f in range(label.shape[1])])


def curve_figures(prediction: SitePrediction, smallest: int) -> dict[str, float]:
    """What a site tells of a model after a round: how many rows, loss and accuracy, and of findings the AUC; nothing
    where it has too few patients. Of findings they are means over those of which `tell` has figures."""
    if patients_in(prediction.people) < max(smallest, 1):
        return {}
    rows = len(prediction.rows)
    if prediction.label.ndim == 1:
        return {"rows": rows, **quick_figures([prediction])}
    if np.isnan(prediction.score).any():
        return {"rows": rows, **dict.fromkeys(CURVE, np.nan)}
    label, score, people = _without_few_open(prediction, smallest), prediction.score, prediction.people
    found = []
    for f in range(label.shape[1]):
        known = label[:, f] >= 0
        counts = patients_by_class(label[known, f], people[known], 2)
        if patients_in(people[known]) >= max(smallest, 1) and not is_small(counts, smallest).any():
            found.append(finding_metrics(label[known, f], score[known, f], THRESHOLD))
    if not found:
        return {}
    means = macro(found)
    return {"rows": rows, **{name: means[name] for name in CURVE}}


def _of_finding(
    label: np.ndarray, score: np.ndarray, people: np.ndarray, smallest: int, threshold: float, by_class: bool = True
) -> dict[str, Any]:
    """Over the rows in which it is known. `threshold` is NaN where none was chosen."""
    known = label >= 0
    chosen = not np.isnan(threshold)
    # scores may be of less precision, and are not rounded up to it
    cut = np.float64(threshold if chosen else THRESHOLD)
    told = figures_of(label[known], score[known], people[known], smallest, cut, by_class, finding=True)
    return told if "suppressed" in told else {**told, "chosen": chosen}


def _without_few_open(prediction: SitePrediction, smallest: int) -> np.ndarray:
    """Labels in which a finding is open in no patient or in `smallest` of them and more. The same are drawn for every
    model that predicts them, so that models are compared on the same rows."""
    label, people = prediction.label.copy(), prediction.people
    for f in range(label.shape[1]):
        with_open = np.unique(people[label[:, f] < 0])
        if 0 < len(with_open) < smallest:
            others = np.setdiff1d(people, with_open)
            drawn = generator(f, "labels left open", site=prediction.site).permutation(others)
            label[np.isin(people, drawn[: smallest - len(with_open)]), f] = UNKNOWN
    return label


def _findings_by_value(
    label: np.ndarray,
    score: np.ndarray,
    people: np.ndarray,
    names: Sequence[str],
    values: np.ndarray,
    smallest: int,
    cuts: np.ndarray,
) -> dict[str, Any]:
    """Each value that may be told of, as in `summary.py`; and in it each finding whose known rows, open rows and rows
    of either class are no small cells there and in the rest."""
    fewest = max(smallest, SMALLEST_GROUP)
    places = places_of(values)
    told = sorted(large_enough(places, np.zeros(len(label), dtype=np.int64), people, 1, fewest))
    found: dict[str, Any] = {value: {"rows": len(places[value]), "diverged": False, "findings": {}} for value in told}
    for f, name in enumerate(names):
        is_open = (label[:, f] < 0).astype(np.int64)
        there = large_enough({v: places[v] for v in told}, is_open, people, 2, np.array([fewest, smallest]))
        state = np.where(is_open, 2, label[:, f])
        by_class = large_enough({v: places[v] for v in there}, state, people, 3, smallest)
        for value in told:
            rows = places[value]
            found[value]["findings"][name] = (
                _of_finding(label[rows, f], score[rows, f], people[rows], smallest, cuts[f], value in by_class)
                if value in there
                else dict(SUPPRESSED)
            )
    return found
