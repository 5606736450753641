"""Tasks: what a study predicts. Each owns all that depends on the kind of outcome."""

from collections.abc import Mapping, Sequence
from typing import Any

from wardround.tasks.binary import Binary
from wardround.tasks.count import Count
from wardround.tasks.metric import Metric
from wardround.tasks.multiclass import Multiclass
from wardround.tasks.multilabel import Multilabel
from wardround.tasks.regression import Regression
from wardround.tasks.task import Task, row_odds

TASKS: dict[str, type[Task]] = {
    "binary": Binary,
    "multiclass": Multiclass,
    "multilabel": Multilabel,
    "regression": Regression,
    "count": Count,
}

__all__ = [
    "METRIC_FACTS",
    "TASKS",
    "Binary",
    "Count",
    "Multiclass",
    "Multilabel",
    "Regression",
    "Task",
    "class_task",
    "findings_task",
    "read_task",
    "row_odds",
]


# by name; tasks that share a metric's name share its meaning
METRIC_FACTS: dict[str, Metric] = {metric.name: metric for task in TASKS.values() for metric in task.metrics}


def class_task(classes: Sequence[str] | int) -> Task:
    """Of classes by their names, or of so many."""
    names = _names(classes)
    return Binary(names) if len(names) == 2 else Multiclass(names)


def findings_task(findings: Sequence[str] | int) -> Task:
    return Multilabel(_names(findings))


def _names(names: Sequence[str] | int) -> tuple[str, ...]:
    return tuple(map(str, range(names))) if isinstance(names, int) else tuple(names)


def read_task(content: Mapping[str, Any]) -> Task:
    """The task that `to_json` wrote."""
    options = {name: value for name, value in content.items() if name not in ("kind", "names")}
    return TASKS[content["kind"]](tuple(content["names"]), **options)
