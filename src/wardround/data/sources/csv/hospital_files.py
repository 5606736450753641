"""One CSV file per hospital.

Rows without a target are left out; identifiers, free text and columns without any value are no features. Each of
these, and whatever else is changed while reading, is in `Records.notes`, with counts and never with a value.
A numeric column is float64 with NaN, a categorical one `object` with None, which pandas 2 and 3 treat alike.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from wardround.core.errors import DataError, StudyError, suggest
from wardround.core.in_memory import InMemory
from wardround.core.notices import Notice
from wardround.core.settings import Positive
from wardround.data.frames import file_table
from wardround.data.records import Column, Records, Source, short_hash
from wardround.data.sources.csv.columns import (
    DeclaredColumns,
    Type,
    Usage,
    agree_on_columns,
    categories,
    read_features,
)
from wardround.data.sources.csv.outcome import (
    DeclaredOutcomes,
    declared_outcomes,
    declared_target,
    refuse_beside_outcomes,
    refuse_weights,
    source_facts,
)
from wardround.data.sources.csv.target_classes import DeclaredClasses
from wardround.data.split import with_target
from wardround.data.text_table import Cells, Separator, Table, looks_like_data
from wardround.study.facts import declares

OWNERS = {"hospital": "Hospitals", "party": "Parties"}


@declares(source_facts)
def csv(
    files: Mapping[str, Path | InMemory],
    target: str | None = None,
    targets: dict[str, str] | None = None,
    positive: str | None = None,
    classes: tuple[str, ...] | None = None,
    labels: dict[str, dict[str, str]] | None = None,
    patient: str | None = None,
    patients: dict[str, str] | None = None,
    shared_ids: bool = False,
    types: dict[str, str] | None = None,
    ranges: dict[str, tuple[float, float]] | None = None,
    levels: dict[str, tuple[str, ...]] | None = None,
    columns: Usage = "same",
    separator: Separator = "auto",
    age: str | None = None,
    sex: str | None = None,
    task: str | dict[str, Any] = "",
    outcomes: tuple[str, ...] = (),
    outcome_weights: dict[str, Positive] | None = None,
) -> Source:
    """Rows of `files`, by hospital. `task` says what the target is where it is not classes: "regression", "count", or a
    table with `kind` and its settings. Several `outcomes` are predicted together in place of one `target`; `task` is
    then a table by outcome, and `outcome_weights` are those of their losses, 1 unless given. `age` and `sex` name the
    columns for subgroups, where their names do not say so.

    Without a target there is nothing to train on; analyses name what they are about themselves.

    `targets` and `patients` are for hospitals with names of their own for these columns, `labels` for those with words
    of their own for the classes. `classes` lists the classes, for hospitals none of which has them all or whose words
    differ. Hospitals mostly number their patients for themselves; `shared_ids` says that one number means one patient
    everywhere, so that copies are found. `ranges` and `levels` are what is known of a column without looking at rows.
    """
    declared = DeclaredColumns(types or {}, ranges or {}, levels or {})
    check_settings(
        files, declared, {"targets": targets or {}, "patients": patients or {}, "labels": labels or {}}, "hospital"
    )
    if outcomes:
        refuse_beside_outcomes(
            {"target": target, "targets": targets, "positive": positive, "classes": classes, "labels": labels}
        )
        outcome = declared_outcomes(files, outcomes, task, outcome_weights or {}, declared.ranges)
    else:
        refuse_weights(outcome_weights)
        words = DeclaredClasses(positive, classes, labels or {})
        outcome = declared_target(files, target, targets or {}, task, words, declared.ranges)
    patient_of = {site: (patients or {}).get(site, patient) for site in files}
    outcome.check(patient_of.values())
    if any(patient_of[site] in outcome.columns_at(site) for site in files):
        remedy = "Name the column that says which patient a row is of."
        raise StudyError("data: patient", "this is the target", remedy)

    def load() -> Records:
        whole = {site: file_table(file, separator) for site, file in files.items()}
        _require_columns(whole, files, outcome, patient_of)
        whole, dropped = _rows_with_outcomes(whole, outcome)
        own = {site: (*outcome.columns_at(site), patient_of[site], *outcome.columns) for site in whole}
        tables = {site: without(table, *own[site]) for site, table in whole.items()}
        ignored = {name for name, kind in declared.types.items() if kind == "ignore"}
        used, notices = agree_on_columns(tables, columns, ignored)
        alone = len(files) == 1 and columns in ("all", "own")
        notices += check_declared(
            tables, used, declared, {"age": age, "sex": sex}, alone, outcome.parts, outcome.columns
        )
        every, tables = tables, {site: {n: table[n] for n in used if n in table} for site, table in tables.items()}
        rows = {site: next(iter(table.values())) for site, table in whole.items()}
        labelled = outcome.read(whole)
        features = read_features(tables, rows, columns, declared, age, sex)
        with_labels = with_target(features.values, labelled.target)
        ids, patient_notices = _patients(whole, patient_of, shared_ids, with_labels)
        return Records(
            features=features.values,
            target=labelled.target,
            classes=labelled.classes,
            hospital=np.repeat(np.array(list(rows), dtype=object), [len(cells.codes) for cells in rows.values()]),
            columns=features.columns,
            patient=ids,
            numbering={site: "" if shared_ids else site for site, name in patient_of.items() if name},
            groups=features.groups,
            notes=(
                *notices,
                *_targets_elsewhere(tables, outcome, ignored),
                *dropped,
                *labelled.notices,
                *features.notices,
                *patient_notices,
            ),
            recorded=features.recorded,
            vocabulary=labelled.vocabulary,
            aside=_aside(every, rows, features.columns),
            given_task=labelled.task,
            outcome=outcome.name,
        )

    return Source(load)


def _aside(
    tables: Mapping[str, Table], rows: Mapping[str, Cells], columns: Sequence[Column]
) -> dict[str, Callable[[], pd.Series]]:
    """Columns that are no features: ignored ones, and those that were left out."""
    used, blank = {column.own_name for column in columns}, {site: cells.blank() for site, cells in rows.items()}
    names = dict.fromkeys(name for table in tables.values() for name in table if name not in used)

    def read(name: str) -> pd.Series:
        sites = blank | {site: table[name] for site, table in tables.items() if name in table}
        return categories(name, sites, {})[0]

    return {name: partial(read, name) for name in names}


def check_settings(
    files: Mapping[str, Path | InMemory],
    declared: DeclaredColumns,
    by_owner: Mapping[str, Mapping[str, object]],
    owner: Literal["hospital", "party"],
) -> None:
    """`by_owner` are settings with a value for some of the files."""
    if not files:
        raise StudyError("data: files", f"no {owner} is named", f'Write `files = {{ {owner} = "file.csv" }}`.')
    for setting, names in by_owner.items():
        for name in names:
            if name not in files:
                problem, remedy = f"no file is of a {owner} with this name", suggest(name, files, OWNERS[owner])
                raise StudyError(f"data: {setting}: {name}", problem, remedy)
    for name, kind in declared.types.items():
        if kind not in get_args(Type):
            raise StudyError(f"data: types: {name}", f"{kind!r} is not a type", suggest(kind, get_args(Type), "Types"))
    for name, (low, high) in declared.ranges.items():
        if not low < high:
            raise StudyError(f"data: ranges: {name}", "the limits are not in order", "Write [lowest, highest].")
    for name, levels in declared.levels.items():
        if not levels or len(set(levels)) < len(levels):
            raise StudyError(f"data: levels: {name}", "the list is empty or names one twice", "Name each level once.")


def require_column(
    setting: str,
    name: str | None,
    table: Table,
    files: Mapping[str, Path | InMemory],
    owner: str,
    guess: bool = True,
    renamed: bool = True,
) -> None:
    """`renamed`: a setting of the same name in the plural gives it by owner."""
    if name is None or name in table:
        return
    remedy = suggest(name if guess else "", table, "Columns of this file")
    if len(files) > 1 and renamed:
        remedy += f' If it has another name here, write `{setting}s = {{ {owner} = "name" }}`.'
    if looks_like_data(table):  # then its "names" are values
        remedy = "Its first line holds numbers or dates: add a line above it that names the columns."
    raise DataError(str(files[owner]), f"there is no column {name!r}, which the study names as its {setting}", remedy)


def _require_columns(
    tables: Mapping[str, Table],
    files: Mapping[str, Path | InMemory],
    outcome: DeclaredOutcomes,
    patients: Mapping[str, str | None],
) -> None:
    for site, table in tables.items():
        for name in outcome.columns_at(site):
            require_column("target", name, table, files, site)
        require_column("patient", patients[site], table, files, site)
        for name in outcome.columns:
            require_column("exposure", name, table, files, site, renamed=False)


def without(table: Table, *names: str | None) -> Table:
    return {name: cells for name, cells in table.items() if name not in names}


def check_declared(
    tables: Mapping[str, Table],
    used: Collection[str],
    declared: DeclaredColumns,
    groups: Mapping[str, str | None],
    alone: bool,
    targets: Collection[str] = (),
    beside: Collection[str] = (),
) -> list[Notice]:
    """A declared column that is in no file is an error, so that a misspelt name is noticed. `targets` may have ranges;
    `beside` are the columns that belong to them.

    For a hospital that is `alone` with a study about different columns it is a notice: it may well lack some.
    """
    recorded = set().union(*tables.values())
    named = [
        (setting, name, recorded)
        for setting in ("types", "ranges", "levels")
        for name in getattr(declared, setting)
        if not (setting == "ranges" and name in targets)
    ]
    named += [(setting, name, set(used)) for setting, name in groups.items() if name is not None]
    unknown = [(setting, name, among) for setting, name, among in named if name not in among]
    if unknown and not alone:
        setting, name, among = unknown[0]
        if name in (*targets, *beside):
            problem = f"{name!r} belongs to what is predicted, and is no feature"
            raise StudyError(f"data: {setting}", problem, f"Leave it out here. {suggest('', among, 'Features')}")
        raise StudyError(f"data: {setting}", f"no feature is called {name!r}", suggest(name, among, "Features"))
    lacking = tuple(dict.fromkeys(name for _, name, _ in unknown))
    return [Notice("declared-column-missing", "info", next(iter(tables)), lacking)] if lacking else []


def _targets_elsewhere(tables: Mapping[str, Table], outcome: DeclaredOutcomes, ignored: set[str]) -> list[Notice]:
    """A column that another hospital predicts may tell the answer here."""
    return [notice for targets in outcome.names.values() for notice in _elsewhere(tables, targets, ignored)]


def _elsewhere(tables: Mapping[str, Table], targets: Mapping[str, str], ignored: set[str]) -> list[Notice]:
    return [
        Notice(
            "target-elsewhere", "warning", site, (name,), other_sites=tuple(s for s in targets if targets[s] == name)
        )
        for name in dict.fromkeys(targets.values())
        for site, table in tables.items()
        if name in table and name not in ignored
    ]


def _rows_with_outcomes(tables: dict[str, Table], outcome: DeclaredOutcomes) -> tuple[dict[str, Table], list[Notice]]:
    notices: list[Notice] = []
    for at_sites in outcome.names.values():
        tables, without_value = rows_with_target(tables, at_sites)
        notices += without_value
    return tables, notices


def rows_with_target(tables: dict[str, Table], targets: Mapping[str, str]) -> tuple[dict[str, Table], list[Notice]]:
    labelled, notices = {}, []
    for site, table in tables.items():
        target = targets[site]
        rows = np.flatnonzero(table[target].codes >= 0)
        missing = len(table[target].codes) - len(rows)
        if not len(rows):
            problem = f"none of its {missing} rows has a value in {target!r}"
            raise DataError(f"hospital {site!r}", problem, "Check the export, or leave this hospital out.")
        if missing:
            counts = {"rows": missing, "of": missing + len(rows)}
            notices.append(Notice("rows-without-target", "info", site, (target,), counts))
        labelled[site] = {name: cells.take(rows) for name, cells in table.items()} if missing else table
    return labelled, notices


def _patients(
    tables: Mapping[str, Table], names: Mapping[str, str | None], shared_ids: bool, values: pd.DataFrame
) -> tuple[np.ndarray | None, list[Notice]]:
    """Hashed, so that identifiers do not travel; one patient stays one, at two hospitals too where ids are shared."""
    if all(name is None for name in names.values()):
        return None, []
    parts, notices, start = [], [], 0
    for site, table in tables.items():
        count = len(next(iter(table.values())).codes)
        name, own, start = names[site], values.iloc[start : start + count], start + count
        if name is None:  # as it is where no hospital has ids
            equal = pd.util.hash_pandas_object(own, index=False)
            parts.append(np.array([short_hash(f"{site}\x1frow {number}\x1f") for number in equal], dtype=object))
            notices.append(Notice("no-patient-column", "info", site))
            continue
        cells = table[name]
        hashed = cells.spread([short_hash(level if shared_ids else f"{site}\x1f{level}") for level in cells.levels], "")
        unknown = np.flatnonzero(cells.codes < 0)
        # Rows of unknown patients are not one patient's: each gets a name of its own.
        hashed[unknown] = [short_hash(f"{site}\x1fline {line}\x1f") for line in cells.lines[unknown]]
        if len(unknown):
            notices.append(Notice("unknown-patients", "info", site, (name,), {"rows": len(unknown)}))
        parts.append(hashed)
    return np.concatenate(parts).astype(str), notices
