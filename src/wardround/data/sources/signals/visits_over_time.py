"""Visits as sequences: a long table with a row for each visit, of patients who came often or once, at any distance.

A patient is one row of the study: a channel for each column of numbers, a channel with the time since the visit before,
and a step for each visit. What was not measured at a visit is a gap; a patient with fewer visits ends earlier.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wardround.core.errors import DataError, suggest
from wardround.core.settings import Count
from wardround.data.records import Records, Source
from wardround.data.sources.signals.reading import MOST_SAMPLES, Signals
from wardround.data.sources.signals.signal_labels import (
    KNOWN,
    SignalOutcome,
    column,
    known_of,
    records_of,
    signal_facts,
)
from wardround.data.text_table import Cells, Table, checked_names, read_table
from wardround.study.facts import declares

SINCE = "time since the last visit"
HOSPITAL = "visits"  # of patients for whom no column names one


@dataclass(frozen=True)
class Columns:
    """Of the table of visits."""

    patient: str
    time: str
    values: tuple[str, ...]
    visits: int  # that a row holds at most: the last ones


@declares(signal_facts)
def visit_sequences(
    path: Path,
    target: str,
    patient: str = "patient",
    time: str = "time",
    values: tuple[str, ...] = (),
    visits: Count = 50,
    labels: Path | None = None,
    classes: tuple[str, ...] | None = None,
    positive: str | None = None,
    task: str | dict[str, Any] = "",
    summary: bool = False,
) -> Source:
    """`path` is a table with a row for each visit: `patient`, `time` (numbers, or dates read as years) and columns of
    numbers, all of them or those that `values` names. A row of the study is a patient with the last `visits` visits.

    `target` is one for each patient: a column of the table that does not change from visit to visit, or of the table
    `labels`, which has a row for each patient. So are hospital, age and sex, where they are known.
    """
    outcome = SignalOutcome(target, classes, positive, task)
    outcome.declared.check()

    def load() -> Records:
        table = read_table(path, "auto", checked_names)
        not_values = (target, *(own for names in KNOWN.values() if (own := column(table, names)) is not None))
        columns = Columns(patient, time, values or value_columns(table, (patient, time, *not_values)), visits)
        signals, names, first = sequences_of(table, columns, str(path))
        of_patients = (
            _patients(table, patient, names, first, outcome, str(path))
            if labels is None
            else _labelled(labels, patient, names)
        )
        where = str(path if labels is None else labels)
        known = known_of(of_patients, where, outcome)
        chosen = Signals(signals.values[known.rows], signals.channels, signals.cut)
        return records_of(chosen, None, known, HOSPITAL, summary)

    return Source(load)


def value_columns(table: Table, others: Sequence[str]) -> tuple[str, ...]:
    """Columns of numbers that are nothing else."""
    numbers = [
        name
        for name, cells in table.items()
        if name not in others and cells.present and not np.isnan(cells.numbers).any()
    ]
    return tuple(numbers)


def sequences_of(table: Table, columns: Columns, where: str) -> tuple[Signals, list[str], np.ndarray]:
    """The sequences, the patient of each, and the first line of each in the table (a row number)."""
    for setting, name in (("patient", columns.patient), ("time", columns.time)):
        if name not in table:
            raise DataError(
                where, f"there is no column {name!r}, the study's `{setting}`", suggest(name, table, "Columns")
            )
    if not columns.values:
        raise DataError(where, "no column holds numbers only", "Name the columns: `values = [...]` in [data].")
    who, when = table[columns.patient], _times(table[columns.time], columns.time, where)
    if unknown := int((who.codes < 0).sum()):
        raise DataError(where, f"{unknown} visits have no {columns.patient!r}", "Fill it in, or leave these rows out.")
    numbers = np.stack([_numbers(table, name, where) for name in columns.values], axis=1)
    order = np.lexsort((np.arange(len(when)), when, who.codes))  # visits at one time stay in the order of the file
    starts = np.flatnonzero(np.diff(who.codes[order], prepend=-1))
    ends = np.append(starts[1:], len(order))
    if len(starts) * columns.visits * (len(columns.values) + 1) > MOST_SAMPLES:
        raise DataError(where, f"{len(starts):,} patients of {columns.visits:,} visits are too many", "Lower `visits`.")
    whole = np.full((len(starts), len(columns.values) + 1, columns.visits), np.nan, dtype=np.float32)
    cut = 0
    for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
        since = np.diff(when[order[start:end]], prepend=when[order[start]])
        kept = order[max(start, end - columns.visits) : end]
        whole[row, :-1, : len(kept)] = numbers[kept].T
        whole[row, -1, : len(kept)] = since[-len(kept) :]
        cut += end - start > columns.visits
    names = [who.levels[who.codes[order[start]]] for start in starts]
    return Signals(whole, (*columns.values, SINCE), int(cut)), names, order[starts]


def _times(cells: Cells, name: str, where: str) -> np.ndarray:
    for parsed in (cells.numbers, cells.years):
        if not np.isnan(parsed).any() and (cells.codes >= 0).all():
            return np.asarray(cells.spread(parsed, np.nan))
    bad = int((cells.codes < 0).sum()) + (
        cells.count_and_first_line(np.isnan(cells.numbers))[0] if cells.distinct else 0
    )
    problem = f"{bad} values of {name!r} are neither numbers nor dates, or are missing"
    raise DataError(where, problem, "Write a number or a date (yyyy-mm-dd) for each visit.")


def _numbers(table: Table, name: str, where: str) -> np.ndarray:
    if name not in table:
        raise DataError(
            where, f"there is no column {name!r}, one of the study's `values`", suggest(name, table, "Columns")
        )
    cells = table[name]
    bad = ~np.isfinite(cells.numbers)
    if bad.any():
        count, place = cells.count_and_place(bad)
        raise DataError(where, f"{count} values of {name!r} are no numbers, the first in {place}", "Correct them.")
    return np.asarray(cells.spread(cells.numbers, np.nan))


def _patients(
    table: Table, patient: str, names: Sequence[str], first: np.ndarray, outcome: SignalOutcome, where: str
) -> Table:
    """A row for each patient, of columns that say the same at all visits of one."""
    who = table[patient].codes
    wanted = {outcome.target, *(own for keys in KNOWN.values() if (own := column(table, keys)) is not None)}
    for name in sorted(wanted & set(table)):
        same = table[name].codes == table[name].codes[first][np.searchsorted(who[first], who)]
        if not same.all() and name == outcome.target:
            changed = len(np.unique(who[~same]))
            problem = f"the target {name!r} changes from visit to visit of {changed} of {len(names)} patients"
            raise DataError(where, problem, "Give one target for each patient, here or in a table `labels`.")
    return _renamed({name: table[name].take(first) for name in (patient, *sorted(wanted & set(table)))}, patient)


def _labelled(labels: Path, patient: str, names: Sequence[str]) -> Table:
    table = read_table(labels, "auto", checked_names)
    if patient not in table:
        raise DataError(str(labels), f"there is no column {patient!r}", suggest(patient, table, "Columns"))
    own = table[patient]
    place = {own.levels[code]: row for row, code in enumerate(own.codes) if code >= 0}
    missing = sum(name not in place for name in names)
    if missing:
        problem = f"{missing} of {len(names)} patients with visits are not in it"
        raise DataError(str(labels), problem, "Add them, with an empty target if it is not known.")
    rows = np.array([place[name] for name in names])
    return _renamed({name: cells.take(rows) for name, cells in table.items()}, patient)


def _renamed(table: Mapping[str, Cells], patient: str) -> Table:
    """The column of patients by the name under which it is looked for."""
    if column(dict(table), KNOWN["patient"]) is not None:
        return dict(table)
    return {("patient" if name == patient else name): cells for name, cells in table.items()}
