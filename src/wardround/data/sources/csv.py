"""One CSV file per hospital.

Rows without a target are left out; identifiers, free text and columns without any value are no features. Each of
these, and whatever else is changed while reading, is said in `Records.notes`, with counts and never with a value.
A numeric column is float64 with NaN, a categorical one `object` with None, which pandas 2 and 3 treat alike.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pandas as pd

from wardround.data.records import Column, Records
from wardround.data.sources.infer import kind_of, one_spelling, read_target, refuse_unreadable, shape
from wardround.data.sources.source import Source
from wardround.data.sources.table import Cells, Separator, Table, checked_names, looks_like_data, read_table
from wardround.errors import DataError, StudyError, suggest

Type = Literal["numeric", "categorical", "date", "id", "ignore"]
Sites = dict[str, Cells]  # one column at every hospital


@dataclass(frozen=True)
class Known:
    """What a study says of columns, by name."""

    ranges: Mapping[str, tuple[float, float]]
    levels: Mapping[str, tuple[str, ...]]


AGE_NAMES = ("age", "age_years")
SEX_NAMES = ("sex", "gender")
SEX_WORDS = {"m": "male", "male": "male", "f": "female", "female": "female", "w": "female"}


def csv(
    files: dict[str, Path],
    target: str,
    positive: str | None = None,
    classes: tuple[str, ...] | None = None,
    patient: str | None = None,
    shared_ids: bool = False,
    types: dict[str, str] | None = None,
    ranges: dict[str, tuple[float, float]] | None = None,
    levels: dict[str, tuple[str, ...]] | None = None,
    columns: Literal["same", "common", "all"] = "same",
    separator: Separator = "auto",
    age: str | None = None,
    sex: str | None = None,
) -> Source:
    """Rows of `files`, by hospital. `age` and `sex` name the columns for subgroups, where their names do not say so.

    `classes` lists three or more classes, for hospitals none of which has them all. Hospitals mostly number their
    patients for themselves; `shared_ids` says that one number means one patient everywhere, so that copies are found.
    `ranges` and `levels` are what is known of a column without looking at rows.
    """
    types, known = dict(types or {}), Known(dict(ranges or {}), dict(levels or {}))
    _check_settings(files, target, patient, types, known)

    def load() -> Records:
        tables = {site: read_table(path, separator, checked_names) for site, path in files.items()}
        for site, table in tables.items():
            for setting, name in (("target", target), ("patient", patient)):
                _require_column(setting, name, table, files[site])
        ignored = {name for name, word in types.items() if word == "ignore"}
        names, notes = _agree_on_columns(tables, columns, ignored)
        features = [name for name in names if name not in (target, patient)]
        recorded = {name for table in tables.values() for name in table} - {target, patient}
        declared = {"types": types, "ranges": known.ranges, "levels": known.levels}
        _refuse_unknown_columns([(setting, name) for setting, names in declared.items() for name in names], recorded)
        _refuse_unknown_columns([("age", age), ("sex", sex)], features)
        tables, dropped = _rows_with_target(tables, target)
        class_names, labels, doubts = read_target(
            target, {site: table[target] for site, table in tables.items()}, positive, classes
        )
        across = {name: _column(name, tables) for name in features}
        sex_column = sex or _first_called(SEX_NAMES, across)
        groups, unusable = _groups(across, age, sex_column)
        values, kept, changes = _features(across, types, known, sex_column)
        patients, unknown = _patients(tables, patient, shared_ids)
        return Records(
            features=values,
            target=np.concatenate(list(labels.values())),
            classes=class_names,
            hospital=np.repeat(np.array(list(labels), dtype=object), [len(rows) for rows in labels.values()]),
            columns=kept,
            patient=patients,
            groups=groups,
            notes=(*notes, *dropped, *doubts, *changes, *unusable, *unknown),
        )

    return Source(load)


def _check_settings(
    files: dict[str, Path], target: str, patient: str | None, types: dict[str, str], known: Known
) -> None:
    if not files:
        raise StudyError("data: files", "no hospital is named", 'Write `files = { hospital = "file.csv" }`.')
    if patient == target:
        raise StudyError("data: patient", "this is the target", "Name the column that says which patient a row is of.")
    for name, word in types.items():
        if word not in get_args(Type):
            raise StudyError(f"data: types: {name}", f"{word!r} is not a type", suggest(word, get_args(Type), "Types"))
    for name, (low, high) in known.ranges.items():
        if not low < high:
            raise StudyError(f"data: ranges: {name}", "the limits are not in order", "Write [lowest, highest].")
    for name, levels in known.levels.items():
        if not levels or len(set(levels)) < len(levels):
            raise StudyError(f"data: levels: {name}", "the list is empty or names one twice", "Name each level once.")


def _require_column(setting: str, name: str | None, table: Table, path: Path) -> None:
    if name is None or name in table:
        return
    remedy = suggest(name, table, "Columns of this file")
    if looks_like_data(table):  # then its "names" are values
        remedy = "Its first line holds numbers or dates: add a line above it that names the columns."
    raise DataError(str(path), f"there is no column {name!r}, which the study names as its {setting}", remedy)


def _agree_on_columns(tables: dict[str, Table], columns: str, ignored: set[str]) -> tuple[list[str], list[str]]:
    """Names of the columns to use, in order of first appearance, and notes. Those that are ignored may differ."""
    every = list(dict.fromkeys(name for table in tables.values() for name in table))
    lacking = {site: [name for name in every if name not in {*table, *ignored}] for site, table in tables.items()}
    lacking = {site: names for site, names in lacking.items() if names}
    said = "; ".join(f"{site!r} has no {_quoted(names)}" for site, names in lacking.items())
    if not lacking:
        return every, []
    if columns == "same":
        remedy = 'Correct the files, or write `columns = "common"` (shared ones only) or `"all"` (absent = missing).'
        raise DataError("data: files", f"the columns differ between the hospitals: {said}", remedy)
    if columns == "all":
        return every, [f"columns that a hospital lacks count as missing there: {said}"]
    left_out = [name for name in every if any(name in names for names in lacking.values())]
    return [name for name in every if name not in left_out], [f"not at every hospital, left out: {_quoted(left_out)}"]


def _refuse_unknown_columns(named: Iterable[tuple[str, str | None]], known: Collection[str]) -> None:
    for setting, name in named:
        if name is not None and name not in known:
            raise StudyError(f"data: {setting}", f"no feature is called {name!r}", suggest(name, known, "Features"))


def _rows_with_target(tables: dict[str, Table], target: str) -> tuple[dict[str, Table], list[str]]:
    kept, notes = {}, []
    for site, table in tables.items():
        rows = np.flatnonzero(table[target].codes >= 0)
        missing = len(table[target].codes) - len(rows)
        if not len(rows):
            problem = f"none of its {missing} rows has a value in {target!r}"
            raise DataError(f"hospital {site!r}", problem, "Check the export, or leave this hospital out.")
        if missing:
            notes.append(f"{site!r}: {missing} of {missing + len(rows)} rows left out, without a value in {target!r}")
        kept[site] = {name: cells.take(rows) for name, cells in table.items()} if missing else table
    return kept, notes


def _column(name: str, tables: dict[str, Table]) -> Sites:
    """The column at every hospital; where it is absent, all its values are missing."""
    return {site: table.get(name, next(iter(table.values())).blank()) for site, table in tables.items()}


def _features(
    across: dict[str, Sites], types: dict[str, str], known: Known, sex: str | None
) -> tuple[pd.DataFrame, tuple[Column, ...], list[str]]:
    values: dict[str, pd.Series] = {}
    columns: list[Column] = []
    notes: list[str] = []
    left_out: dict[str, list[str]] = {}
    for name, sites in across.items():
        kind = types.get(name) or kind_of(name, sites)
        if kind not in ("numeric", "date", "categorical"):
            left_out.setdefault(kind, []).append(name)
        elif kind == "categorical":
            values[name], coded, changes = _categories(name, sites, SEX_WORDS if name == sex else {})
            declared = known.levels.get(name)
            columns.append(Column(name, "categorical", known.ranges.get(name), coded, declared))
            notes.extend(changes)
        else:
            values[name], changes = _numbers(name, sites, as_dates=kind == "date")
            columns.append(Column(name, "numeric", known.ranges.get(name)))
            notes.extend(changes)
    for column in columns:
        if column.limits is not None and column.kind == "categorical" and not column.coded:
            remedy = f"Remove it, or declare another type for {column.name!r} under `types`."
            raise StudyError(f"data: ranges: {column.name}", "the column is text, which has no range", remedy)
        if column.kind == "numeric" and column.name in known.levels:
            remedy = f'Remove it, or declare "categorical" for {column.name!r} under `types`.'
            raise StudyError(f"data: levels: {column.name}", "the column holds numbers, which have no levels", remedy)
    if not columns:
        raise DataError("data: files", "no feature is left", "Add columns, or declare their types under `types`.")
    reasons = {"id": "identifiers", "free text": "free text", "empty": "no values", "ignore": "ignored by the study"}
    notes.extend(f"left out ({reasons[kind]}): {_quoted(names)}" for kind, names in left_out.items())
    return pd.DataFrame(values), tuple(columns), notes


def _numbers(name: str, sites: Sites, as_dates: bool) -> tuple["pd.Series[float]", list[str]]:
    notes = [f"{name!r}: dates, read as years since 2000-01-01"] if as_dates else []
    parts = []
    for site, cells in sites.items():
        refuse_unreadable(name, site, cells, as_dates)
        part = cells.spread(cells.years if as_dates else cells.numbers, np.nan)
        infinite = np.isinf(part)
        if infinite.any():
            notes.append(f"{name!r} at {site!r}: {infinite.sum()} infinite values, taken as missing")
        if cells.decimal_commas and not as_dates:
            notes.append(f"{name!r} at {site!r}: commas read as decimal signs")
        parts.append(np.where(infinite, np.nan, part))
    return pd.Series(np.concatenate(parts)), notes


def _categories(name: str, sites: Sites, joined: dict[str, str]) -> tuple[pd.Series, bool, list[str]]:
    """The texts, and whether all of them are numbers. `joined` gives one word for several, by their lower case."""
    coded = all(np.isfinite(cells.numbers).all() for cells in sites.values())
    words = {site: one_spelling(cells) if coded else cells.levels for site, cells in sites.items()}
    words = {site: [joined.get(word.lower(), word) for word in found] for site, found in words.items()}
    parts = [cells.spread(words[site], None) for site, cells in sites.items()]
    recorded = {level for cells in sites.values() for level in cells.levels}
    levels = {word for found in words.values() for word in found}
    notes = []
    if len(levels) < len(recorded):
        notes.append(f"{name!r}: {len(recorded)} spellings joined into {len(levels)} levels")
    if len({level.casefold() for level in levels}) < len(levels):  # not joined: in blood groups, C and c are two things
        notes.append(f"{name!r}: levels that differ only in upper and lower case count as different")
    return pd.Series(np.concatenate(parts), dtype=object), coded, notes


def _first_called(wanted: tuple[str, ...], names: Iterable[str]) -> str | None:
    return next((name for word in wanted for name in names if name.lower() == word), None)


def _groups(across: dict[str, Sites], age: str | None, sex: str | None) -> tuple[pd.DataFrame, list[str]]:
    """`age` in years and `sex` as text; they also stay features."""
    rows = sum(len(cells.codes) for cells in next(iter(across.values()), {}).values())
    groups, notes = pd.DataFrame(index=pd.RangeIndex(rows)), []
    column = age or _first_called(AGE_NAMES, across)
    if column is not None:
        readable = all(shape(cells) in ("numbers", "empty") for cells in across[column].values())
        if readable or age is not None:
            groups["age"] = _numbers(column, across[column], as_dates=False)[0]
        else:
            notes.append(f"{column!r} is not in years, so there are no age groups")
    if sex is not None:
        groups["sex"] = _categories(sex, across[sex], SEX_WORDS)[0]
    return groups, notes


def _patients(tables: dict[str, Table], patient: str | None, shared_ids: bool) -> tuple[np.ndarray | None, list[str]]:
    """Hashed, so that identifiers do not travel; one patient stays one, at two hospitals too where ids are shared."""
    if patient is None:
        return None, []
    parts, notes = [], []
    for site, table in tables.items():
        cells = table[patient]
        hashed = cells.spread([_hash(level if shared_ids else f"{site}\x1f{level}") for level in cells.levels], "")
        unknown = np.flatnonzero(cells.codes < 0)
        # Rows of unknown patients are not one patient's: each gets a name of its own.
        hashed[unknown] = [_hash(f"{site}\x1fline {line}\x1f") for line in cells.lines[unknown]]
        if len(unknown):
            notes.append(f"{site!r}: {len(unknown)} rows without a value in {patient!r}, each taken as another patient")
        parts.append(hashed)
    return np.concatenate(parts).astype(str), notes


def _hash(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]


def _quoted(names: list[str]) -> str:
    return ", ".join(map(repr, names))
