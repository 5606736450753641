"""One CSV file per hospital.

Rows without a target are left out; identifiers, free text and columns without any value are no features. Each of
these, and whatever else is changed while reading, is said in `Records.notes`, with counts and never with a value.
A numeric column is float64 with NaN, a categorical one `object` with None, which pandas 2 and 3 treat alike.
"""

from collections.abc import Collection, Mapping
from hashlib import sha256
from pathlib import Path
from typing import get_args

import numpy as np
import pandas as pd

from wardround.core.errors import DataError, StudyError, suggest
from wardround.data.records import Records
from wardround.data.sources.csv.column_types import shape
from wardround.data.sources.csv.columns import (
    SEX_WORDS,
    Known,
    Sites,
    Type,
    Usage,
    agree_on_columns,
    categories,
    numbers,
    quoted,
    read_features,
)
from wardround.data.sources.csv.target_words import Wanted, read_target
from wardround.data.sources.csv.text_table import Separator, Table, checked_names, looks_like_data, read_table
from wardround.data.sources.source import Source

AGE_NAMES = ("age", "age_years")
SEX_NAMES = ("sex", "gender")


def csv(
    files: dict[str, Path],
    target: str,
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
) -> Source:
    """Rows of `files`, by hospital. `age` and `sex` name the columns for subgroups, where their names do not say so.

    `targets` and `patients` are for hospitals with names of their own for these columns, `labels` for those with words
    of their own for the classes. `classes` lists the classes, for hospitals none of which has them all or whose words
    differ. Hospitals mostly number their patients for themselves; `shared_ids` says that one number means one patient
    everywhere, so that copies are found. `ranges` and `levels` are what is known of a column without looking at rows.
    """
    known = Known(dict(types or {}), dict(ranges or {}), dict(levels or {}))
    wanted = Wanted(positive, classes, labels or {})
    by_site = {"targets": targets or {}, "patients": patients or {}, "labels": wanted.labels}
    check_settings(files, known, by_site)
    wanted.check()
    target_of = {site: (targets or {}).get(site, target) for site in files}
    patient_of = {site: (patients or {}).get(site, patient) for site in files}
    _check_names(target_of, patient_of)

    def load() -> Records:
        whole = {site: read_table(path, separator, checked_names) for site, path in files.items()}
        for site, table in whole.items():
            require_column("target", target_of[site], table, files[site], len(files) > 1)
            require_column("patient", patient_of[site], table, files[site], len(files) > 1)
        whole, dropped = rows_with_target(whole, target_of)
        tables = {
            site: {name: cells for name, cells in table.items() if name not in (target_of[site], patient_of[site])}
            for site, table in whole.items()
        }
        ignored = {name for name, word in known.types.items() if word == "ignore"}
        used, notes = agree_on_columns(tables, columns, ignored)
        alone = len(files) == 1 and columns in ("all", "own")
        notes += check_declared(tables, used, known, {"age": age, "sex": sex}, alone)
        tables = {site: {name: table[name] for name in used if name in table} for site, table in tables.items()}
        rows = {site: table[target_of[site]] for site, table in whole.items()}
        found = read_target(target_of, rows, wanted)
        sexes = called(tables, sex, SEX_NAMES)
        groups, unusable = groups_of(tables, rows, age, sexes)
        features = read_features(tables, rows, columns, known, sexes)
        labelled = np.concatenate(list(found.numbers.values()))
        ids, unknown = _patients(whole, patient_of, shared_ids, features.values.assign(__target__=labelled))
        return Records(
            features=features.values,
            target=labelled,
            classes=found.classes,
            hospital=np.repeat(np.array(list(rows), dtype=object), [len(cells.codes) for cells in rows.values()]),
            columns=features.columns,
            patient=ids,
            numbering={s: "" if shared_ids else s for s, name in patient_of.items() if ids is not None and name},
            groups=groups,
            notes=(
                *notes,
                *_targets_elsewhere(tables, target_of, ignored),
                *dropped,
                *found.notes,
                *features.notes,
                *unusable,
                *unknown,
            ),
            recorded=features.recorded,
            vocabulary=found.vocabulary,
        )

    return Source(load)


def check_settings(files: Mapping[str, Path], known: Known, by_site: Mapping[str, Mapping[str, object]]) -> None:
    if not files:
        raise StudyError("data: files", "no hospital is named", 'Write `files = { hospital = "file.csv" }`.')
    for setting, sites in by_site.items():
        for site in sites:
            if site not in files:
                remedy = suggest(site, files, "Hospitals")
                raise StudyError(f"data: {setting}: {site}", "no file is of a hospital with this name", remedy)
    for name, word in known.types.items():
        if word not in get_args(Type):
            raise StudyError(f"data: types: {name}", f"{word!r} is not a type", suggest(word, get_args(Type), "Types"))
    for name, (low, high) in known.ranges.items():
        if not low < high:
            raise StudyError(f"data: ranges: {name}", "the limits are not in order", "Write [lowest, highest].")
    for name, levels in known.levels.items():
        if not levels or len(set(levels)) < len(levels):
            raise StudyError(f"data: levels: {name}", "the list is empty or names one twice", "Name each level once.")


def _check_names(targets: Mapping[str, str], patients: Mapping[str, str | None]) -> None:
    for site, target in targets.items():
        if patients[site] == target:
            remedy = "Name the column that says which patient a row is of."
            raise StudyError("data: patient", "this is the target", remedy)


def require_column(setting: str, name: str | None, table: Table, path: Path, several: bool) -> None:
    if name is None or name in table:
        return
    remedy = suggest(name, table, "Columns of this file")
    if several:
        remedy += f' If it has another name here, write `{setting}s = {{ hospital = "name" }}`.'
    if looks_like_data(table):  # then its "names" are values
        remedy = "Its first line holds numbers or dates: add a line above it that names the columns."
    raise DataError(str(path), f"there is no column {name!r}, which the study names as its {setting}", remedy)


def check_declared(
    tables: Mapping[str, Table], used: Collection[str], known: Known, groups: Mapping[str, str | None], alone: bool
) -> list[str]:
    """What the study says of columns that are in no file is an error, so that a misspelt name is found.

    Not so where a hospital is `alone` with a study about different columns: then it may well lack some. It is told.
    """
    recorded = {name for table in tables.values() for name in table}
    declared = {"types": known.types, "ranges": known.ranges, "levels": known.levels}
    named = [(setting, name, recorded) for setting, names in declared.items() for name in names]
    named += [(setting, name, set(used)) for setting, name in groups.items() if name is not None]
    unknown = [(setting, name, among) for setting, name, among in named if name not in among]
    if unknown and not alone:
        setting, name, among = unknown[0]
        raise StudyError(f"data: {setting}", f"no feature is called {name!r}", suggest(name, among, "Features"))
    lacking = dict.fromkeys(name for _, name, _ in unknown)
    return [f"named by the study, and not in this file: {quoted(lacking)}"] if lacking else []


def _targets_elsewhere(tables: Mapping[str, Table], targets: Mapping[str, str], ignored: set[str]) -> list[str]:
    """A column that another hospital predicts may tell the answer here."""
    notes = []
    for name in dict.fromkeys(targets.values()):
        using = [site for site, table in tables.items() if name in table and name not in ignored]
        if using:
            predicted = quoted(site for site in targets if targets[site] == name)
            notes.append(
                f"{name!r}, the target at {predicted}, is a feature at {quoted(using)}: does it tell the answer?"
            )
    return notes


def rows_with_target(tables: dict[str, Table], targets: Mapping[str, str]) -> tuple[dict[str, Table], list[str]]:
    kept, notes = {}, []
    for site, table in tables.items():
        target = targets[site]
        rows = np.flatnonzero(table[target].codes >= 0)
        missing = len(table[target].codes) - len(rows)
        if not len(rows):
            problem = f"none of its {missing} rows has a value in {target!r}"
            raise DataError(f"hospital {site!r}", problem, "Check the export, or leave this hospital out.")
        if missing:
            notes.append(f"{site!r}: {missing} of {missing + len(rows)} rows left out, without a value in {target!r}")
        kept[site] = {name: cells.take(rows) for name, cells in table.items()} if missing else table
    return kept, notes


def called(tables: Mapping[str, Table], named: str | None, usual: tuple[str, ...]) -> dict[str, str]:
    """By hospital: the column that is named, or else one with a usual name. Hospitals with neither are left out."""
    found = {
        site: named if named in table else next((n for word in usual for n in table if n.lower() == word), None)
        for site, table in tables.items()
    }
    return {site: name for site, name in found.items() if name is not None}


def groups_of(
    tables: Mapping[str, Table], rows: Sites, age: str | None, sexes: Mapping[str, str]
) -> tuple[pd.DataFrame, list[str]]:
    """`age` in years and `sex` as text; they also stay features."""
    groups = pd.DataFrame(index=pd.RangeIndex(sum(len(cells.codes) for cells in rows.values())))
    blank = {site: cells.blank() for site, cells in rows.items()}
    ages = called(tables, age, AGE_NAMES)
    unreadable = [
        site for site, name in ages.items() if name != age and shape(tables[site][name]) not in ("numbers", "empty")
    ]
    notes = []
    if unreadable:
        names = quoted(dict.fromkeys(ages[site] for site in unreadable))
        everywhere = len(unreadable) == len(ages)
        there = "" if everywhere else f" at {quoted(unreadable)}"
        notes.append(f"{names} is not in years{there}, so there are no age groups{'' if everywhere else ' there'}")
    readable = {site: name for site, name in ages.items() if site not in unreadable}
    if readable:
        sites = {**blank, **{site: tables[site][name] for site, name in readable.items()}}
        groups["age"] = numbers(age or next(iter(readable.values())), sites, as_dates=False)[0]
    if sexes:
        sites = {**blank, **{site: tables[site][name] for site, name in sexes.items()}}
        # each by itself: a hospital's codes are spelt alike, whatever words the others have
        by_site = [categories("sex", {site: cells}, SEX_WORDS)[0] for site, cells in sites.items()]
        groups["sex"] = pd.concat(by_site, ignore_index=True)
    return groups, notes


def _patients(
    tables: Mapping[str, Table], names: Mapping[str, str | None], shared_ids: bool, values: pd.DataFrame
) -> tuple[np.ndarray | None, list[str]]:
    """Hashed, so that identifiers do not travel; one patient stays one, at two hospitals too where ids are shared."""
    if all(name is None for name in names.values()):
        return None, []
    parts, notes, start = [], [], 0
    for site, table in tables.items():
        count = len(next(iter(table.values())).codes)
        name, own, start = names[site], values.iloc[start : start + count], start + count
        if name is None:  # as it is where no hospital has ids
            equal = pd.util.hash_pandas_object(own, index=False)
            parts.append(np.array([short_hash(f"{site}\x1frow {number}\x1f") for number in equal], dtype=object))
            notes.append(f"{site!r}: no column says whose a row is; equal rows count as one patient")
            continue
        cells = table[name]
        hashed = cells.spread([short_hash(level if shared_ids else f"{site}\x1f{level}") for level in cells.levels], "")
        unknown = np.flatnonzero(cells.codes < 0)
        # Rows of unknown patients are not one patient's: each gets a name of its own.
        hashed[unknown] = [short_hash(f"{site}\x1fline {line}\x1f") for line in cells.lines[unknown]]
        if len(unknown):
            notes.append(f"{site!r}: {len(unknown)} rows without a value in {name!r}, each taken as another patient")
        parts.append(hashed)
    return np.concatenate(parts).astype(str), notes


def short_hash(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]
