"""What a site tells of predictions of classes: counts and sums, which add up over hospitals, and its own figures.

`sums` give every metric that is no rank: the same as all hospitals' rows would. `metrics` are the site's own, so that
AUC and PR-AUC are among them. Both are without what is by class where a class has few patients.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wardround.tasks.class_metrics import NEED_POSITIVES, Counts, count, macro, predicted_classes, rates
from wardround.tasks.classes import ClassTask
from wardround.tasks.task import require

CLOSE = 1e-6  # scores may be single precision
MOST_BRIER = 2.001  # of a row, with several classes


def class_sums(
    task: ClassTask, label: np.ndarray, score: np.ndarray, threshold: float, by_class: bool
) -> dict[str, Any]:
    names = task.metric_names
    if task.told_by_class_only and not by_class:
        return {"metrics": dict.fromkeys(names), "sums": None}
    figures, rows = task.figures(label, score, threshold), len(label)
    predicted = predicted_classes(score, threshold)
    confusion = [count(label == number, predicted == number)._asdict() for number in task.counted_classes]
    return {
        "metrics": {name: _or_none(figures[name]) if by_class or name in over_rows(task) else None for name in names},
        "sums": {
            "right": int((predicted == label).sum()),
            "brier": figures["brier"] * rows,
            "loss": figures["loss"] * rows,
            "confusion": confusion if by_class else None,
        },
    }


def over_rows(task: ClassTask) -> list[str]:
    """Metrics that are means over all rows, whatever their class."""
    return [metric.name for metric in task.metrics if metric.over_rows]


def merged_class_figures(task: ClassTask, told: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """`told` of each site has its `rows` beside its sums."""
    counted = [of_site for of_site in told if of_site["sums"] is not None]
    rows, sums = sum(of_site["rows"] for of_site in counted), [of_site["sums"] for of_site in counted]
    if not rows:
        return {}
    counts = [of_site["confusion"] for of_site in sums if of_site["confusion"] is not None]
    return {
        "accuracy": sum(of_site["right"] for of_site in sums) / rows,
        "brier": math.fsum(of_site["brier"] for of_site in sums) / rows,  # whatever the order of the sites
        "loss": math.fsum(of_site["loss"] for of_site in sums) / rows,
        **(_merged_rates(task, counts) if counts else {}),
    }


def _merged_rates(task: ClassTask, of_sites: Sequence[Sequence[Mapping[str, int]]]) -> dict[str, float]:
    of_classes = [
        Counts(*(sum(of_site[name] for of_site in of_class) for name in Counts._fields))
        for of_class in zip(*of_sites, strict=True)
    ]
    if len(of_classes) == 1:
        figures = rates(of_classes[0])
        lacking = task.needs_positives and math.isnan(figures["sensitivity"])
        return {name: math.nan if lacking and name in NEED_POSITIVES else value for name, value in figures.items()}
    return macro([rates(counts) for counts in of_classes if counts.tp + counts.fn])


def check_class_sums(task: ClassTask, told: Mapping[str, Any], rows: int) -> None:
    """Counts must add up, and figures must follow from counts. `told` may have a histogram of scores beside them."""
    for field in ("small_classes", "metrics", "sums", "histogram"):
        require(field in told, f"no {field}")
    require(all(place < len(task.classes) for place in told["small_classes"]), "a small class that does not exist")
    sums, figures, histogram = told["sums"], told["metrics"], told["histogram"]
    _check_ranges(task, figures)
    if sums is None:
        require(histogram is None, "a histogram without counts")
        require(all(value is None for value in figures.values()), "figures without counts")
        return
    confusion = sums["confusion"]
    require(sums["right"] <= rows, "more rows right than there are")
    require(sums["brier"] <= MOST_BRIER * rows, "a sum of Brier scores above what rows can have")
    _require_close(figures["accuracy"], sums["right"] / rows, "accuracy")
    for name in ("brier", "loss"):
        _require_close(figures[name], sums[name] / rows, name)
    if confusion is None:
        require(histogram is None, "a histogram without counts by class")
        others = [name for name in figures if name not in over_rows(task)]
        require(all(figures[name] is None for name in others), "figures by class without counts by class")
        return
    _check_confusion(task, confusion, sums["right"], rows)
    _check_rates(task, figures, [Counts(**of_class) for of_class in confusion])


def _check_ranges(task: ClassTask, figures: Mapping[str, float | None]) -> None:
    require(set(figures) == set(task.metric_names), "figures of other metrics than the task has")
    for metric in task.metrics:
        value = figures[metric.name]
        inside = value is None or metric.low - CLOSE <= value <= metric.high + CLOSE
        require(inside, f"{metric.name} outside its range")


def _check_confusion(task: ClassTask, confusion: Sequence[Mapping[str, int]], right: int, rows: int) -> None:
    counted = len(task.counted_classes)
    require(len(confusion) == counted, "counts of predictions for another number of classes")
    require(all(sum(counts.values()) == rows for counts in confusion), "counts that do not add up to the rows")
    predicted_right = sum(counts["tp"] for counts in confusion) + (confusion[0]["tn"] if counted == 1 else 0)
    require(predicted_right == right, "counts of predictions that contradict how many are right")
    if counted > 1:
        of_classes = sum(counts["tp"] + counts["fn"] for counts in confusion)
        require(of_classes == rows, "classes that do not add up to the rows")
        predicted = sum(counts["tp"] + counts["fp"] for counts in confusion)
        require(predicted == rows, "predictions that do not add up to the rows")


def _check_rates(task: ClassTask, figures: Mapping[str, float | None], counts: Sequence[Counts]) -> None:
    counted = [of_class for of_class in counts if len(counts) == 1 or of_class.tp + of_class.fn]
    no_positives = task.needs_positives and not counts[0].tp + counts[0].fn
    expected = macro([rates(of_class) for of_class in counted]) if len(counted) > 1 else rates(counted[0])
    for name, value in expected.items():
        undefined = no_positives and name in NEED_POSITIVES
        _require_close(figures[name], math.nan if undefined else value, name)


def _require_close(figure: float | None, expected: float, name: str) -> None:
    """A figure follows from its counts, and is None where they do not define it."""
    same = math.isnan(expected) if figure is None else math.isclose(figure, expected, rel_tol=CLOSE, abs_tol=CLOSE)
    require(same, f"{name} that contradicts its counts")


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else value
