"""Tasks: what a study predicts. Each owns all that depends on the kind of outcome."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wardround.core.errors import StudyError, shown, suggest
from wardround.core.settings import Positive, alternatives, parse, parse_settings, settings_of
from wardround.tasks.binary import Binary
from wardround.tasks.count import Count
from wardround.tasks.metric import Metric
from wardround.tasks.multiclass import Multiclass
from wardround.tasks.multilabel import Multilabel
from wardround.tasks.outcomes import Outcomes, outcomes_of
from wardround.tasks.regression import Regression
from wardround.tasks.task import Task, row_odds

# of one outcome; several are `Outcomes` of these
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
    "Outcomes",
    "Regression",
    "Task",
    "class_task",
    "declared_kind",
    "declared_task",
    "findings_task",
    "outcomes_of",
    "read_task",
    "row_odds",
]

MOST_FIELDS, MOST_NAMES, LONGEST_NAME = 20, 10_000, 500
REMEDY = "Install the same version of wardround everywhere."

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


def declared_kind(declared: str | Mapping[str, Any]) -> str:
    """The kind that a study names: `task = "count"`, or `task = { kind = "count", exposure = "months" }`."""
    kind = declared if isinstance(declared, str) else declared.get("kind", "")
    return kind if isinstance(kind, str) else ""


def declared_task(declared: str | Mapping[str, Any], names: Sequence[str], where: str) -> Task:
    """The task that a study names, with its settings checked."""
    kind = declared_kind(declared)
    if kind not in TASKS:
        raise StudyError(f"{where}: kind" if isinstance(declared, Mapping) else where, *_no_such_task(kind))
    settings = {name: known for name, known in settings_of(TASKS[kind]).items() if name != "names"}
    given = {} if isinstance(declared, str) else {name: value for name, value in declared.items() if name != "kind"}
    options = parse_settings(settings, given, where, Path())
    return _possible(TASKS[kind](tuple(names), **options), where)


def _possible(task: Task, where: str) -> Task:
    if wrong := task.wrong_setting():
        setting, problem, remedy = wrong
        raise StudyError(f"{where}: {setting}", problem, remedy)
    return task


def _no_such_task(kind: str) -> tuple[str, str]:
    return f"{shown(kind)} is no kind of outcome" if kind else "no kind is named", suggest(kind, TASKS, "Kinds")


def read_task(content: Mapping[str, Any]) -> Task:
    """The task that `to_json` wrote. It may come from a file or from another institution: StudyError names the first
    thing that no task has."""
    if not isinstance(content, Mapping) or len(content) > MOST_FIELDS:
        raise StudyError("task", "is no table of a task's settings", REMEDY)
    kind = content.get("kind")
    if kind == Outcomes.kind:
        return _read_outcomes(content)
    if not isinstance(kind, str) or kind not in TASKS:
        raise StudyError("task: kind", f"no task is called {shown(kind)}", suggest(kind, TASKS, "Tasks"))
    known = settings_of(TASKS[kind])
    # what may be None is left out of a study, where nothing is called so
    given = {
        name: value
        for name, value in content.items()
        if name != "kind" and not (value is None and name in known and type(None) in alternatives(known[name].kind))
    }
    options = parse_settings(known, given, "task", Path())
    names = options["names"]
    if not 0 < len(names) <= MOST_NAMES or any(len(name) > LONGEST_NAME for name in names):
        problem = f"has {len(names)} names, or one that is too long"
        raise StudyError("task: names", problem, f"Write 1 to {MOST_NAMES} of {LONGEST_NAME} characters at most.")
    if TASKS[kind].name_count not in (None, len(names)):
        raise StudyError("task: names", f"has {len(names)} names", f"Write {TASKS[kind].name_count} of {kind}.")
    return _possible(TASKS[kind](**options), "task")


OUTCOMES = ("names", "tasks", "weights")


def _read_outcomes(content: Mapping[str, Any]) -> Task:
    parts, weights = content.get("tasks"), content.get("weights")
    if not isinstance(parts, list) or not isinstance(weights, list) or set(content) != {"kind", *OUTCOMES}:
        raise StudyError("task", "is no list of outcomes with their tasks and weights", REMEDY)
    if not 1 < len(parts) == len(weights) <= MOST_NAMES:
        raise StudyError("task", "is no list of outcomes with their tasks and weights", REMEDY)
    tasks = [read_task(part) for part in parts]
    names = parse(tuple[str, ...], content.get("names"), "task: names")
    positive = parse(tuple[Positive, ...], weights, "task: weights")
    if len(set(names)) != len(parts) or any(task.outcomes or task.answers == "findings" for task in tasks):
        raise StudyError("task", "names an outcome twice, or one that is none", REMEDY)
    return Outcomes(names, tuple(tasks), positive)
