"""Whether figures that a hospital tells of its predictions can be true: they come from another institution.

What a hospital says of its own rows cannot be proved wrong from elsewhere. But counts must add up, figures must follow
from counts, and the number of rows must be the one that was agreed before the first round.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wardround.evaluation.metrics import Counts, macro, rates
from wardround.evaluation.summaries.merged_summaries import Summary
from wardround.evaluation.summaries.site_summary import EDGES

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
    """Says which figure cannot be."""


def check_summary(summary: Summary, expected: Expected) -> None:
    """Impossible where no rows could give these figures. The summary has the form of `protocol.answers.SiteSummary`."""
    if _is_suppressed(summary):
        return
    _check_rows(summary, expected)
    if summary["diverged"]:
        _only(summary, ("rows", "diverged"))
        return
    _hold("groups" in summary, "no groups")
    if expected.has_findings:
        _check_findings(summary, expected, ("rows", "diverged", "findings", "groups"))
    else:
        _check_figures(summary, len(expected.names))
    for kind, values in summary["groups"].items():
        _check_groups(kind, values, summary, expected)


def check_curve(curve: Mapping[str, Any], rows: int, exact: bool, has_findings: bool) -> None:
    """What is told of a model after a round."""
    _hold(curve["rows"] == rows if exact else curve["rows"] <= rows, "rows other than agreed")
    if curve["accuracy"] is not None and not has_findings:  # of findings it is a mean over several
        right = curve["accuracy"] * curve["rows"]
        _hold(math.isclose(right, round(right), abs_tol=CLOSE * max(curve["rows"], 1)), "a part of a row that is right")


def _check_groups(kind: str, values: Mapping[str, Summary], whole: Summary, expected: Expected) -> None:
    within = Expected(expected.names, expected.has_findings, whole["rows"], exact=False)
    told = [group for group in values.values() if not _is_suppressed(group)]
    for group in told:
        _check_rows(group, within)
        _hold(not group["diverged"], f"a group by {kind} that diverged where the whole did not")
        if expected.has_findings:
            _check_findings(group, within, ("rows", "diverged", "findings"))
        else:
            _check_figures(group, len(expected.names))
    _hold(sum(group["rows"] for group in told) <= whole["rows"], f"more rows in groups by {kind} than in all")


def _check_findings(summary: Summary, expected: Expected, fields: Sequence[str]) -> None:
    _only(summary, fields)
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
    sums, figures = summary["sums"], summary["metrics"]
    if sums is None:
        _hold(summary["histogram"] is None, "a histogram without counts")
        _hold(all(value is None for value in figures.values()), "figures without counts")
        return
    rows, confusion = summary["rows"], sums["confusion"]
    _hold(sums["right"] <= rows, "more rows right than there are")
    _close(figures["accuracy"], sums["right"] / rows, "accuracy")
    for name in ("brier", "loss"):
        _close(figures[name], sums[name] / rows, name)
    if confusion is None:
        _hold(summary["histogram"] is None, "a histogram where nothing is told by class")
        others = [name for name in figures if name not in ("accuracy", "brier", "loss")]
        _hold(all(figures[name] is None for name in others), "figures by class where nothing is told by class")
        return
    _check_calls(confusion, sums["right"], rows, classes)
    of_classes = [Counts(**one) for one in confusion]
    counted = [one for one in of_classes if len(of_classes) == 1 or one.tp + one.fn]
    needs_positives = "chosen" in more and not of_classes[0].tp + of_classes[0].fn
    for name, value in (macro([rates(one) for one in counted]) if len(counted) > 1 else rates(counted[0])).items():
        undefined = needs_positives and name in ("f1", "sensitivity", "ppv")
        _close(figures[name], math.nan if undefined else value, name)
    if summary["histogram"] is not None:
        _hold(classes == 2, "a histogram of several classes")
        negative, positive = summary["histogram"]
        _check_cells(negative, of_classes[0].fp + of_classes[0].tn)
        _check_cells(positive, of_classes[0].tp + of_classes[0].fn)
        _hold((figures["auc"] is None) == (not negative or not positive), "an AUC that its classes do not allow")


def _check_calls(confusion: Sequence[Mapping[str, int]], right: int, rows: int, classes: int) -> None:
    _hold(len(confusion) == (1 if classes == 2 else classes), "counts of calls for another number of classes")
    _hold(all(sum(one.values()) == rows for one in confusion), "counts of calls that do not add up to the rows")
    called_right = sum(one["tp"] for one in confusion) + (confusion[0]["tn"] if len(confusion) == 1 else 0)
    _hold(called_right == right, "counts of calls that contradict how many are right")
    if len(confusion) > 1:
        _hold(sum(one["tp"] + one["fn"] for one in confusion) == rows, "classes that do not add up to the rows")
        _hold(sum(one["tp"] + one["fp"] for one in confusion) == rows, "calls that do not add up to the rows")


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
        _hold("rows" in summary and "diverged" in summary, "neither figures nor a word that they are withheld")
        return False
    _hold(
        summary["suppressed"] is True and set(summary) == {"suppressed"}, "figures beside a word that they are withheld"
    )
    return True


def _check_rows(summary: Summary, expected: Expected) -> None:
    rows = summary["rows"]
    _hold(rows == expected.rows if expected.exact else rows <= expected.rows, "a number of rows other than agreed")


def _only(summary: Summary, fields: Sequence[str]) -> None:
    _hold(set(summary) <= set(fields), "figures that do not belong together")


def _close(told: float | None, known: float, name: str) -> None:
    """A figure is what its counts say, and None where they do not say any."""
    same = math.isnan(known) if told is None else math.isclose(told, known, rel_tol=CLOSE, abs_tol=CLOSE)
    _hold(same, f"{name} that contradicts its counts")


def _hold(condition: bool, problem: str) -> None:
    if not condition:
        raise Impossible(problem)
