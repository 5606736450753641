"""Whether the figures that a hospital sends about its predictions can be true: they come from another institution.

What a hospital sends about its own rows cannot be verified elsewhere. But counts must add up, figures must follow from
counts (the task says which), and the number of rows must be the one that was agreed before the first round.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from wardround.evaluation.summaries.merged_summaries import Summary
from wardround.evaluation.summaries.residual_cells import check_residual_cells
from wardround.evaluation.summaries.score_histograms import check_histogram
from wardround.tasks import METRIC_FACTS, Task
from wardround.tasks.class_sums import CLOSE
from wardround.tasks.task import Impossible as Impossible
from wardround.tasks.task import require

OF_CLASSES = ("small_classes", "metrics", "sums", "histogram")
OF_NUMBERS = ("terms",)


@dataclass(frozen=True)
class Expected:
    """What a summary is about."""

    task: Task
    rows: int
    exact: bool = True  # otherwise `rows` are the most that there can be


def check_summary(summary: Summary, expected: Expected) -> None:
    """Impossible where no rows could give these figures. The summary has the form of `protocol.answers.SiteSummary`."""
    if _is_suppressed(summary):
        return
    _check_rows(summary, expected)
    if summary["diverged"]:
        _only(summary, ("rows", "diverged"))
        return
    require("groups" in summary, "no groups")
    task, of_residuals = expected.task, expected.task.calibration == "linear"
    _check_content(summary, task, "groups", *(["cells"] if of_residuals else []))
    if of_residuals:
        require("cells" in summary, "no cells")
        check_residual_cells(summary["cells"], summary["rows"], task.totals(summary["terms"]))
    for kind, values in summary["groups"].items():
        _check_groups(kind, values, summary, expected)


def check_curve(curve: Mapping[str, Any], rows: int, exact: bool, task: Task) -> None:
    """The figures of a model after a round."""
    require(curve["rows"] == rows if exact else curve["rows"] <= rows, "rows other than agreed")
    figures = curve["figures"]
    require(set(figures) == {"loss", task.curve, *task.round_metrics}, "figures of other metrics than the task has")
    require(figures["loss"] is None or figures["loss"] >= 0 or not task.loss_from_zero, "a loss below zero")
    for name, value in figures.items():
        if name in task.metric_names and value is not None:  # the loss of a number may be below 0
            low, high = METRIC_FACTS[name].low, METRIC_FACTS[name].high
            require(low - CLOSE <= value <= high + CLOSE, f"{name} outside its range")
    if task.classes and figures["accuracy"] is not None:
        right = figures["accuracy"] * curve["rows"]
        whole = math.isclose(right, round(right), abs_tol=CLOSE * max(curve["rows"], 1))
        require(whole, "a part of a row that is right")


def _check_groups(kind: str, values: Mapping[str, Summary], whole: Summary, expected: Expected) -> None:
    within = replace(expected, rows=whole["rows"], exact=False)
    groups = [group for group in values.values() if not _is_suppressed(group)]
    for group in groups:
        _check_rows(group, within)
        require(not group["diverged"], f"a group by {kind} that diverged where the whole did not")
        _check_content(group, expected.task)
    require(sum(group["rows"] for group in groups) <= whole["rows"], f"more rows in groups by {kind} than in all")


def _check_content(summary: Summary, task: Task, *more: str) -> None:
    if not task.parts:
        _check_figures(summary, task, *more)
        return
    _only(summary, ("rows", "diverged", "findings", *more))
    parts = summary.get("findings", {})
    require(set(parts) == set(task.parts), "findings other than agreed")
    for name, part in parts.items():
        if not _is_suppressed(part):
            _check_rows(part, Expected(task.parts[name], summary["rows"], exact=False))
            require(not part["diverged"] and "chosen" in part, "a finding that diverged where the others did not")
            _check_figures(part, task.parts[name], "chosen")


def _check_figures(summary: Summary, task: Task, *more: str) -> None:
    _only(summary, ("rows", "diverged", *(OF_CLASSES if task.classes else OF_NUMBERS), *more))
    task.check_sums(summary, summary["rows"])
    if summary.get("histogram") is not None:
        require(task.scored_by_class, "a histogram of several classes")
        check_histogram(summary["histogram"], summary["sums"]["confusion"][0], summary["metrics"]["auc"])


def _is_suppressed(summary: Summary) -> bool:
    if "suppressed" not in summary:
        require("rows" in summary and "diverged" in summary, "neither figures nor a note that they are withheld")
        return False
    alone = summary["suppressed"] is True and set(summary) == {"suppressed"}
    require(alone, "figures beside a note that they are withheld")
    return True


def _check_rows(summary: Summary, expected: Expected) -> None:
    rows = summary["rows"]
    require(rows == expected.rows if expected.exact else rows <= expected.rows, "a number of rows other than agreed")


def _only(summary: Summary, fields: Sequence[str]) -> None:
    require(set(summary) <= set(fields), "figures that do not belong together")
