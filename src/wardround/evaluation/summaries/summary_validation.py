"""Whether the figures that a hospital sends about its predictions can be true: they come from another institution.

What a hospital sends about its own rows cannot be verified elsewhere. But counts must add up, figures must follow from
counts, and the number of rows must be the one that was agreed before the first round.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wardround.evaluation.summaries.merged_summaries import Summary
from wardround.evaluation.summaries.site_summary import EDGES
from wardround.tasks.class_metrics import Counts, macro, rates

CLOSE = 1e-6  # scores may be single precision
PLACES = frozenset(EDGES)


@dataclass(frozen=True)
class Expected:
    """What a summary is about. `names` are the classes, or the findings where a row may have several."""

    names: Sequence[str]
    has_findings: bool
    rows: int
    exact: bool = True  # otherwise `rows` are the most that there can be


class Impossible(ValueError):
    """Names the impossible figure."""


def check_summary(summary: Summary, expected: Expected) -> None:
    """Impossible where no rows could give these figures. The summary has the form of `protocol.answers.SiteSummary`."""
    if _is_suppressed(summary):
        return
    _check_rows(summary, expected)
    if summary["diverged"]:
        _only(summary, ("rows", "diverged"))
        return
    _hold("groups" in summary, "no groups")
    _check_content(summary, expected, "groups")
    for kind, values in summary["groups"].items():
        _check_groups(kind, values, summary, expected)


def check_curve(curve: Mapping[str, Any], rows: int, exact: bool, has_findings: bool) -> None:
    """The figures of a model after a round."""
    _hold(curve["rows"] == rows if exact else curve["rows"] <= rows, "rows other than agreed")
    if curve["accuracy"] is not None and not has_findings:  # of findings it is a mean over several
        right = curve["accuracy"] * curve["rows"]
        _hold(math.isclose(right, round(right), abs_tol=CLOSE * max(curve["rows"], 1)), "a part of a row that is right")


def _check_groups(kind: str, values: Mapping[str, Summary], whole: Summary, expected: Expected) -> None:
    within = Expected(expected.names, expected.has_findings, whole["rows"], exact=False)
    groups = [group for group in values.values() if not _is_suppressed(group)]
    for group in groups:
        _check_rows(group, within)
        _hold(not group["diverged"], f"a group by {kind} that diverged where the whole did not")
        _check_content(group, within)
    _hold(sum(group["rows"] for group in groups) <= whole["rows"], f"more rows in groups by {kind} than in all")


def _check_content(summary: Summary, expected: Expected, *more: str) -> None:
    if not expected.has_findings:
        _check_figures(summary, len(expected.names))
        return
    _only(summary, ("rows", "diverged", "findings", *more))
    parts = summary.get("findings", {})
    _hold(set(parts) == set(expected.names), "findings other than agreed")
    within = Expected((), False, summary["rows"], exact=False)
    for part in parts.values():
        if not _is_suppressed(part):
            _check_rows(part, within)
            _hold(not part["diverged"] and "chosen" in part, "a finding that diverged where the others did not")
            _check_figures(part, 2, "chosen")


def _check_figures(summary: Summary, classes: int, *more: str) -> None:
    _only(summary, ("rows", "diverged", "small_classes", "metrics", "sums", "histogram", "groups", *more))
    for field in ("small_classes", "metrics", "sums", "histogram"):
        _hold(field in summary, f"no {field}")
    _hold(all(place < classes for place in summary["small_classes"]), "a small class that does not exist")
    sums, figures, histogram = summary["sums"], summary["metrics"], summary["histogram"]
    if sums is None:
        _hold(histogram is None, "a histogram without counts")
        _hold(all(value is None for value in figures.values()), "figures without counts")
        return
    rows, confusion = summary["rows"], sums["confusion"]
    _hold(sums["right"] <= rows, "more rows right than there are")
    _close(figures["accuracy"], sums["right"] / rows, "accuracy")
    for name in ("brier", "loss"):
        _close(figures[name], sums[name] / rows, name)
    if confusion is None:
        _hold(histogram is None, "a histogram without counts by class")
        others = [name for name in figures if name not in ("accuracy", "brier", "loss")]
        _hold(all(figures[name] is None for name in others), "figures by class without counts by class")
        return
    _check_confusion(confusion, sums["right"], rows, classes)
    counts = [Counts(**of_class) for of_class in confusion]
    _check_rates(figures, counts, is_finding="chosen" in more)
    if histogram is not None:
        _hold(classes == 2, "a histogram of several classes")
        _check_histogram(histogram, counts[0], figures["auc"])


def _check_cells(cells: Sequence[Mapping[str, Any]], rows: int) -> None:
    _hold(sum(cell["rows"] for cell in cells) == rows, "a histogram that does not add up to its class")
    last = 0.0
    for cell in cells:
        low, high = cell["low"], cell["high"]
        _hold({low, high} <= PLACES and last <= low < high, "a histogram with other cells than agreed")
        mean = cell["score_sum"] / cell["rows"]
        _hold(low - CLOSE <= mean <= high + CLOSE, "a histogram whose scores are outside its cells")
        last = high


def _is_suppressed(summary: Summary) -> bool:
    if "suppressed" not in summary:
        _hold("rows" in summary and "diverged" in summary, "neither figures nor a note that they are withheld")
        return False
    _hold(
        summary["suppressed"] is True and set(summary) == {"suppressed"}, "figures beside a note that they are withheld"
    )
    return True


def _check_rows(summary: Summary, expected: Expected) -> None:
    rows = summary["rows"]
    _hold(rows == expected.rows if expected.exact else rows <= expected.rows, "a number of rows other than agreed")


def _only(summary: Summary, fields: Sequence[str]) -> None:
    _hold(set(summary) <= set(fields), "figures that do not belong together")


def _check_rates(figures: Mapping[str, float | None], counts: Sequence[Counts], is_finding: bool) -> None:
    counted = [of_class for of_class in counts if len(counts) == 1 or of_class.tp + of_class.fn]
    no_positives = is_finding and not counts[0].tp + counts[0].fn
    expected = macro([rates(of_class) for of_class in counted]) if len(counted) > 1 else rates(counted[0])
    for name, value in expected.items():
        undefined = no_positives and name in ("f1", "sensitivity", "ppv")
        _close(figures[name], math.nan if undefined else value, name)


def _check_histogram(histogram: Sequence[Sequence[Mapping[str, Any]]], counts: Counts, auc: float | None) -> None:
    negative, positive = histogram
    _check_cells(negative, counts.fp + counts.tn)
    _check_cells(positive, counts.tp + counts.fn)
    _hold((auc is None) == (not negative or not positive), "an AUC that its classes do not allow")


def _check_confusion(confusion: Sequence[Mapping[str, int]], right: int, rows: int, classes: int) -> None:
    _hold(len(confusion) == (1 if classes == 2 else classes), "counts of predictions for another number of classes")
    _hold(all(sum(counts.values()) == rows for counts in confusion), "counts that do not add up to the rows")
    predicted_right = sum(counts["tp"] for counts in confusion) + (confusion[0]["tn"] if len(confusion) == 1 else 0)
    _hold(predicted_right == right, "counts of predictions that contradict how many are right")
    if len(confusion) > 1:
        _hold(
            sum(counts["tp"] + counts["fn"] for counts in confusion) == rows, "classes that do not add up to the rows"
        )
        predicted = sum(counts["tp"] + counts["fp"] for counts in confusion)
        _hold(predicted == rows, "predictions that do not add up to the rows")


def _close(figure: float | None, expected: float, name: str) -> None:
    """A figure follows from its counts, and is None where they do not define it."""
    same = math.isnan(expected) if figure is None else math.isclose(figure, expected, rel_tol=CLOSE, abs_tol=CLOSE)
    _hold(same, f"{name} that contradicts its counts")


def _hold(condition: bool, problem: str) -> None:
    if not condition:
        raise Impossible(problem)
