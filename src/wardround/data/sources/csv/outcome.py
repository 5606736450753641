"""The outcome in hospitals' files: classes from words (`target_classes.py`), or numbers, as the study's task says.

A number is read where the study names such a task, never by a guess. What cannot be one is an error with its place, and
never with its value.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wardround.core.errors import DataError, StudyError, refuse_strangers, shown
from wardround.core.notices import Notice
from wardround.data.sources.csv.columns import shape
from wardround.data.sources.csv.target_classes import DeclaredClasses, read_target
from wardround.data.text_table import Cells, Table
from wardround.study.facts import SourceFacts
from wardround.tasks import TASKS, Task, class_task, declared_kind, declared_task, outcomes_of

WHERE = "data: task"
CLASS_SETTINGS = ("positive", "classes", "labels")
BLANK_CLASSES = ("-", "+")  # of rows without an outcome, which nobody trains on
SINGLE = "binary"  # a kind whose metrics all classes have, where the words of the target tell which classes there are


@dataclass(frozen=True)
class Outcome:
    """`target` is of all hospitals' rows, one hospital after another."""

    target: np.ndarray
    classes: tuple[str, ...]
    task: Task | None  # None: it follows from the classes
    vocabulary: Mapping[str, Mapping[str, str]]
    notices: list[Notice]


def source_facts(options: Mapping[str, Any]) -> SourceFacts:
    """Of a source whose settings are those of `DeclaredOutcome`, or of several."""
    declared, outcomes = options.get("task") or {}, options.get("outcomes") or ()
    if not isinstance(outcomes, list | tuple) or not outcomes:
        return SourceFacts(tasks={"": _kind(declared)}, labelled=options.get("target") is not None)
    by_outcome = declared if isinstance(declared, Mapping) else {}
    return SourceFacts(tasks={str(name): _kind(by_outcome.get(name, "")) for name in outcomes})


def _kind(declared: Any) -> str:
    kind = declared_kind(declared) if isinstance(declared, str | Mapping) else ""
    return kind if kind in TASKS else SINGLE


@dataclass(frozen=True)
class DeclaredOutcome:
    task: str | Mapping[str, Any]  # empty: the words of the target tell its classes
    classes: DeclaredClasses
    range: tuple[float, float] | None = None  # of a number: what is known without looking at rows

    @property
    def kind(self) -> str:
        return declared_kind(self.task)

    def check(self, names: Iterable[str | None]) -> None:
        """As far as that is possible before any file is read. `names` are those of outcomes and patients."""
        self.classes.check()
        if not self.task:
            return
        task = declared_task(self.task, (), WHERE)
        for name in task.columns:
            if name in names:
                problem = f"{name!r} is predicted itself, or names the patients"
                raise StudyError(f"{WHERE}: exposure", problem, "Name the column with the time or the people at risk.")
        if self.range is not None and task.public_range not in (None, self.range):
            raise StudyError(f"{WHERE}: range", "`ranges` gives another one", "Give the target's range in one place.")
        if task.ordered and self.classes.classes is None:
            problem = f"the order of the classes matters to {self.kind}, and it is not given"
            raise StudyError("data: classes", problem, "List all classes from the lowest to the highest.")
        if task.answers == "findings":
            problem = "a column of a file holds one class or number of each row"
            raise StudyError(WHERE, problem, "Use a source of images for findings.")
        if task.reads == "numbers":
            for setting in CLASS_SETTINGS:
                value = getattr(self.classes, setting)
                if value:
                    problem = f"is about classes, and the task is {self.kind}"
                    raise StudyError(f"data: {setting}", problem, f"Leave `{setting}` out, or name another task.")

    def of(self, name: str) -> Task:
        """The task of a number that is called so."""
        task = declared_task(self.task, (name,), WHERE)
        if self.range is None or task.public_range is not None:
            return task
        ranged = task.with_range(self.range)
        if wrong := ranged.wrong_setting():
            raise StudyError(f"data: ranges: {name}", *wrong[1:])
        return ranged

    @property
    def columns(self) -> tuple[str, ...]:
        """Further columns of the files that belong to the outcome."""
        return declared_task(self.task, (), WHERE).columns if self.task else ()

    def read(self, names: Mapping[str, str], tables: Mapping[str, Table]) -> Outcome:
        """`names` are the hospitals' names for their target, whose rows all have a value."""
        if self.task and TASKS[self.kind].reads == "numbers":
            return self._read_numbers(names, tables)
        cells = {site: table[names[site]] for site, table in tables.items()}
        labelled = read_target(names, cells, self.classes)
        target = np.concatenate(list(labelled.numbers.values()))
        task = None
        if self.task:
            if wrong := TASKS[self.kind].wrong_names(labelled.classes):
                remedy = f"Correct the target, or leave `task` out, or write another than {self.kind!r}."
                raise DataError(f"target {next(iter(names.values()))!r}", wrong, remedy)
            task = declared_task(self.task, labelled.classes, WHERE)
        return Outcome(target, labelled.classes, task, labelled.vocabulary, labelled.notices)

    def _read_numbers(self, names: Mapping[str, str], tables: Mapping[str, Table]) -> Outcome:
        task = self.of(next(iter(names.values())))
        parts, notices = [], []
        for site, table in tables.items():
            columns = (names[site], *task.columns)
            target, *others = columns
            classes = ", or leave `task` out to predict classes"
            numbers = [_numbers(table[target], target, site, classes)]
            numbers += [_numbers(table[name], name, site) for name in others]
            values = np.column_stack(numbers)
            refuse_wrong_rows(task, columns, values, table[names[site]], site)
            notices += _outside(task, columns[0], values[:, 0], site)
            parts.append(task.of_numbers(values))
        return Outcome(np.concatenate(parts), (), task, {}, notices)


@dataclass(frozen=True)
class DeclaredOutcomes:
    """One outcome of each row or several, by name, each with a task of its own."""

    parts: Mapping[str, DeclaredOutcome]
    names: Mapping[str, Mapping[str, str]]  # by outcome, then by hospital: the column in its file
    weights: Mapping[str, float]  # of several outcomes' losses; 1 where none is given

    @property
    def columns(self) -> tuple[str, ...]:
        """Further columns of the files that belong to the outcomes."""
        return tuple(dict.fromkeys(name for part in self.parts.values() for name in part.columns))

    @property
    def name(self) -> str:
        """Of the one outcome; empty where there are none or several."""
        return next(iter(self.names)) if len(self.names) == 1 else ""

    def columns_at(self, site: str) -> tuple[str, ...]:
        """The outcomes' columns in a hospital's file."""
        return tuple(at_sites[site] for at_sites in self.names.values())

    def check(self, patients: Iterable[str | None] = ()) -> None:
        """`patients` are the columns that name them."""
        for name, part in self.parts.items():
            part.check({*self.names, *self.names[name].values(), *patients})
        refuse_strangers(self.weights, self.parts, "data: outcome_weights", "outcome", "Outcomes")

    def read(self, tables: Mapping[str, Table]) -> Outcome:
        """Every row has a value of every outcome."""
        if not self.parts:
            rows = sum(len(next(iter(table.values())).codes) for table in tables.values())
            return Outcome(np.zeros(rows, np.int64), BLANK_CLASSES, None, {}, [])
        read = {name: part.read(self.names[name], tables) for name, part in self.parts.items()}
        if len(read) == 1:
            return next(iter(read.values()))
        tasks = {name: class_task(part.classes) if part.task is None else part.task for name, part in read.items()}
        columns = [part.target.reshape(len(part.target), -1).astype(np.float64) for part in read.values()]
        notices = [notice for part in read.values() for notice in part.notices]
        return Outcome(np.concatenate(columns, axis=1), (), outcomes_of(tasks, self.weights), {}, notices)


def declared_target(
    sites: Iterable[str],
    target: str | None,
    targets: Mapping[str, str],
    task: str | Mapping[str, Any],
    classes: DeclaredClasses,
    ranges: Mapping[str, tuple[float, float]],
) -> DeclaredOutcomes:
    """One outcome, whose name may differ from hospital to hospital; none where nothing is predicted."""
    if target is None:
        refuse_without_target(targets, task, classes)
        return DeclaredOutcomes({}, {}, {})
    names = {target: {site: targets.get(site, target) for site in sites}}
    return DeclaredOutcomes({target: DeclaredOutcome(task, classes, ranges.get(target))}, names, {})


def refuse_without_target(targets: Mapping[str, str], task: object, classes: DeclaredClasses) -> None:
    settings = {"targets": targets, "task": task, **{name: getattr(classes, name) for name in CLASS_SETTINGS}}
    for name, value in settings.items():
        if value:
            remedy = 'Write `target = "..."` with the column to predict, or leave it out.'
            raise StudyError(f"data: {name}", "speaks of a target, and none is named", remedy)


def declared_outcomes(
    sites: Iterable[str],
    outcomes: Sequence[str],
    task: str | Mapping[str, Any],
    weights: Mapping[str, float],
    ranges: Mapping[str, tuple[float, float]],
) -> DeclaredOutcomes:
    if not 1 < len(outcomes) == len(set(outcomes)):
        problem = "fewer than two are named, or one twice"
        raise StudyError("data: outcomes", problem, "Name each once; of one outcome, write it as the `target`.")
    if isinstance(task, str) and task:
        example = f'`task = {{ {outcomes[0]} = "{task}" }}`'
        raise StudyError(WHERE, "one word is given for several outcomes", f"Write the task of each: {example}.")
    by_name = {} if isinstance(task, str) else task
    refuse_strangers(by_name, outcomes, WHERE, "outcome", "Outcomes")
    for name, declared in by_name.items():
        if not isinstance(declared, str | Mapping):
            problem = f"expected a text or a table, found {shown(declared)}"
            raise StudyError(f"{WHERE}: {name}", problem, "Name its task.")
    nothing = DeclaredClasses(None, None, {})
    parts = {name: DeclaredOutcome(by_name.get(name, ""), nothing, ranges.get(name)) for name in outcomes}
    everywhere = list(sites)
    return DeclaredOutcomes(parts, {name: dict.fromkeys(everywhere, name) for name in outcomes}, weights)


def refuse_beside_outcomes(settings: Mapping[str, object]) -> None:
    """Settings that speak of one target."""
    for name, value in settings.items():
        if value:
            remedy = f"Leave `{name}` out; words such as yes and no are known, and three or more classes need none."
            remedy = "Leave `target` out: `outcomes` names the columns." if name == "target" else remedy
            raise StudyError(f"data: {name}", "speaks of one target, and there are several outcomes", remedy)


def refuse_weights(weights: Mapping[str, float] | None) -> None:
    if weights:
        problem = "there is one target, whose loss has nothing beside it"
        raise StudyError("data: outcome_weights", problem, "Leave `outcome_weights` out, or list several `outcomes`.")


def _numbers(cells: Cells, name: str, site: str, otherwise: str = "") -> np.ndarray:
    """Of every row; gaps stay gaps. `otherwise`: what else can be done about texts."""
    where, form = f"column {name!r} at {site!r}", shape(cells)
    if form in ("dates", "unclear dates", "dates and text"):
        remedy = "Give a number, such as the days between two dates, or choose another column."
        raise DataError(where, "holds dates, and a number is to be predicted", remedy)
    if cells.distinct and np.isnan(cells.numbers).any():
        bad, place = cells.count_and_place(np.isnan(cells.numbers))
        problem = f"{bad} of {cells.present} values are not numbers, the first in {place}"
        raise DataError(where, problem, f"Correct these cells or empty them{otherwise}.")
    if np.isinf(cells.numbers).any():
        bad, place = cells.count_and_place(np.isinf(cells.numbers))
        raise DataError(where, f"{bad} values are infinite, the first in {place}", "Correct or empty these cells.")
    return np.asarray(cells.spread(cells.numbers, np.nan))


def refuse_wrong_rows(task: Task, columns: tuple[str, ...], values: np.ndarray, cells: Cells, site: str) -> None:
    for wrong in task.wrong_rows(values):
        if wrong.rows.any():
            place = cells.places([int(cells.lines[np.flatnonzero(wrong.rows)[0]])])
            problem = f"{int(wrong.rows.sum())} of {len(values)} values {wrong.problem}; the first is in {place}"
            raise DataError(f"column {columns[wrong.column]!r} at {site!r}", problem, wrong.remedy)


def _outside(task: Task, name: str, values: np.ndarray, site: str) -> list[Notice]:
    known = task.public_range
    if known is None:
        return []
    outside = int(((values < known[0]) | (values > known[1])).sum())
    counts = {"rows": outside, "of": len(values)}
    return [Notice("target-outside-range", "warning", site, (name,), counts)] if outside else []
