"""The columns of several hospitals' files as the columns of one table, and their values.

A column that means one thing at all the hospitals that have it is one column of the table, missing elsewhere. With
`columns = "own"` each hospital's file is understood by itself; a name that means numbers at one hospital and words at
another, or words here and numbers that are codes there, is then one column for each of them. So a hospital reads its
file alike, whether it is alone with it or all files are read together.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pandas as pd

from wardround.core.errors import DataError, StudyError
from wardround.data.records import Column
from wardround.data.sources.csv.column_types import kind_of, normalized_levels, refuse_unreadable
from wardround.data.sources.csv.text_table import Cells, Table

Type = Literal["numeric", "categorical", "date", "id", "ignore"]
Usage = Literal["same", "common", "all", "own"]
Sites = dict[str, Cells]  # one column at every hospital

USED = ("numeric", "date", "categorical")
DATES = 'dates; `types = { NAME = "date" }` makes one a feature'
LEFT_OUT = {
    "id": "identifiers",
    "free text": "free text",
    "empty": "no values",
    "ignore": "ignored by the study",
    "found date": DATES,
}
SEX_WORDS = {"m": "male", "male": "male", "f": "female", "female": "female", "w": "female"}


@dataclass(frozen=True)
class Known:
    """What a study says of columns, by their names in the files."""

    types: Mapping[str, str] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class TableColumn:
    """A column of the table before its values are read."""

    name: str
    header: str  # its name in the files
    kind: str
    sites: Sites  # at every hospital; blank where it is not recorded
    recorded: tuple[str, ...]  # hospitals whose files have it
    joined: bool = False  # it holds the sex, and words for it are joined

    @property
    def is_split(self) -> bool:
        return self.name != self.header


@dataclass(frozen=True)
class Features:
    values: pd.DataFrame
    columns: tuple[Column, ...]
    recorded: dict[str, tuple[str, ...]]  # by hospital: the columns that its file has and that are used
    notes: list[str]


def agree_on_columns(tables: Mapping[str, Table], usage: Usage, ignored: set[str]) -> tuple[list[str], list[str]]:
    """Names of the columns to use, in order of first appearance, and notes. Those that are ignored may differ."""
    every = list(dict.fromkeys(name for table in tables.values() for name in table))
    lacking = {site: [name for name in every if name not in {*table, *ignored}] for site, table in tables.items()}
    lacking = {site: names for site, names in lacking.items() if names}
    said = "; ".join(f"{site!r} has no {quoted(names)}" for site, names in lacking.items())
    if not lacking:
        return every, []
    if usage == "same":
        remedy = (
            'Correct the files, or write `columns = "common"` (shared ones only), `"all"` (absent = missing), or '
            '`"own"` (each hospital its own) together with `schema = "own"` and the model "adapter".'
        )
        raise DataError("data: files", f"the columns differ between the hospitals: {said}", remedy)
    if usage == "own":
        return every, [f"each hospital uses the columns that it has: {said}"]
    if usage == "all":
        return every, [f"columns that a hospital lacks count as missing there: {said}"]
    left_out = [name for name in every if any(name in names for names in lacking.values())]
    return [name for name in every if name not in left_out], [f"not at every hospital, left out: {quoted(left_out)}"]


def read_features(
    tables: Mapping[str, Table], rows: Mapping[str, Cells], usage: Usage, known: Known, sex: Mapping[str, str]
) -> Features:
    """`rows` is any column of each file, to tell their number; `sex` is the column at each hospital in which words for
    it are joined."""
    blank = {site: cells.blank() for site, cells in rows.items()}
    made = _plan_own_columns if usage == "own" else _plan_columns
    plans, notes_of_omissions = made(tables, blank, known, sex)
    if not plans:
        raise _nothing_left(usage, tables)
    values: dict[str, pd.Series] = {}
    columns: list[Column] = []
    notes: list[str] = []
    for column_plan in plans:
        declared = known.ranges.get(column_plan.header), known.levels.get(column_plan.header)
        values[column_plan.name], column, changes = _read(column_plan, *declared)
        columns.append(column)
        notes.extend(changes)
    notes += _unfit(columns, known, alone=usage == "own" and len(tables) == 1)
    recorded = {
        site: tuple(column_plan.name for column_plan in plans if site in column_plan.recorded) for site in tables
    }
    return Features(pd.DataFrame(values), tuple(columns), recorded, [*notes, *notes_of_omissions])


def _nothing_left(usage: Usage, tables: Mapping[str, Table]) -> DataError:
    if usage != "common" or len(tables) == 1:
        return DataError("data: files", "no feature is left", "Add columns, or declare their types under `types`.")
    shared = _names(tables)
    problem = (
        f"none of the columns that all hospitals have is a feature: {quoted(shared)}"
        if shared
        else "apart from the target and patient numbers, no column name is shared by all hospitals"
    )
    remedy = 'Give columns that mean the same one name, or use columns = "own" with schema = "own" and model "adapter".'
    return DataError("data: files", f'no feature is left. With columns = "common", {problem}', remedy)


def _plan_columns(
    tables: Mapping[str, Table], blank: Sites, known: Known, sex: Mapping[str, str]
) -> tuple[list[TableColumn], list[str]]:
    """A name means one thing over all hospitals, or is refused."""
    plans, left_out = [], _Omissions()
    for name in _names(tables):
        sites = {site: table.get(name, blank[site]) for site, table in tables.items()}
        kind = _kind(name, sites, known)
        if kind in USED:
            recorded = tuple(site for site, table in tables.items() if name in table)
            plans.append(TableColumn(name, name, kind, sites, recorded, joined=name in sex.values()))
        else:
            left_out.add(kind, repr(name))
    return plans, left_out.notes()


def _plan_own_columns(
    tables: Mapping[str, Table], blank: Sites, known: Known, sex: Mapping[str, str]
) -> tuple[list[TableColumn], list[str]]:
    """A name means what it means at each hospital by itself."""
    plans, left_out = [], _Omissions()
    for name in _names(tables):
        having = {site: table[name] for site, table in tables.items() if name in table}
        kinds = {site: _kind(name, {site: cells}, known) for site, cells in having.items()}
        used = {site: kind for site, kind in kinds.items() if kind in USED}
        for site, kind in kinds.items():
            if kind not in USED:
                left_out.add(kind, repr(name) if len(tables) == 1 else f"{name!r} at {site!r}")
        joined = {site for site in used if sex.get(site) == name}
        meanings = {_meaning(kind, having[site], site in joined) for site, kind in used.items()} - {None}
        if len(meanings) > 1:
            for site, kind in used.items():
                sites = {**blank, site: having[site]}
                plans.append(TableColumn(f"{name} at {site}", name, kind, sites, (site,), site in joined))
        elif used:
            sites = {site: having[site] if site in used else blank[site] for site in tables}
            plans.append(TableColumn(name, name, next(iter(used.values())), sites, tuple(used), bool(joined)))
    _refuse_equal_names(plans)
    return plans, left_out.notes()


def _kind(name: str, sites: Sites, known: Known) -> str:
    """A date that the study does not name is no feature: a model would learn when a patient was here, which no later
    patient has in common with him. What is said of its range or type says that it is meant."""
    if name in known.types:
        return known.types[name]
    kind = kind_of(name, sites)
    return "found date" if kind == "date" and name not in known.ranges else kind


def _meaning(kind: str, cells: Cells, joined: bool) -> tuple[str, bool, bool] | None:
    """What must be the same at two hospitals for one column; None where there is no value to mean anything."""
    if not cells.distinct:
        return None
    if kind != "categorical":
        return kind, False, False
    coded = are_codes([cells])
    return kind, coded, joined and not coded


def _refuse_equal_names(plans: list[TableColumn]) -> None:
    names = [column_plan.name for column_plan in plans]
    for column_plan in plans:
        if names.count(column_plan.name) > 1:
            problem = f"two columns would have this name, one of them {column_plan.header!r}"
            raise DataError(
                f"column {column_plan.name!r}", problem, "Rename it in the file, or declare a type for the other."
            )


class _Omissions:
    """Columns that are no features, by the reason for it."""

    def __init__(self) -> None:
        self.said: dict[str, list[str]] = {}

    def add(self, kind: str, what: str) -> None:
        self.said.setdefault(kind, []).append(what)

    def notes(self) -> list[str]:
        return [f"left out ({LEFT_OUT[kind]}): {', '.join(what)}" for kind, what in self.said.items()]


def _names(tables: Mapping[str, Table]) -> list[str]:
    return list(dict.fromkeys(name for table in tables.values() for name in table))


def _read(
    column_plan: TableColumn, limits: tuple[float, float] | None, levels: tuple[str, ...] | None
) -> tuple[pd.Series, Column, list[str]]:
    """Of what is known of a name, a column has what fits it: numbers have no levels, and words no range."""
    header = column_plan.header if column_plan.is_split else ""
    if column_plan.kind != "categorical":
        as_dates = column_plan.kind == "date"
        values, notes = numbers(column_plan.name, column_plan.sites, as_dates)
        return values, Column(column_plan.name, "numeric", limits, header=header, dates=as_dates), notes
    texts, coded, notes = categories(column_plan.name, column_plan.sites, SEX_WORDS if column_plan.joined else {})
    words = tuple(SEX_WORDS.items()) if column_plan.joined and not coded else ()
    fitting = limits if coded else None
    return texts, Column(column_plan.name, "categorical", fitting, coded, levels, header=header, words=words), notes


def _unfit(columns: Sequence[Column], known: Known, alone: bool) -> list[str]:
    """What is known of a name and fits none of its columns is refused. A hospital that is `alone` with what a study
    says of all is told instead: at another hospital it may fit."""
    notes = []
    for setting, names, problem, other in (
        ("levels", known.levels, "the column holds numbers, which have no levels", '"categorical"'),
        ("ranges", known.ranges, "the column is text, which has no range", "another type"),
    ):
        for name in names:
            fits = [c.levels if setting == "levels" else c.limits for c in columns if c.own_name == name]
            if fits and all(found is None for found in fits):
                if not alone:
                    remedy = f"Remove it, or declare {other} for {name!r} under `types`."
                    raise StudyError(f"data: {setting}: {name}", problem, remedy)
                notes.append(f"{name!r}: the study's `{setting}` are not used here: {problem}")
    return notes


def numbers(name: str, sites: Sites, as_dates: bool) -> tuple["pd.Series[float]", list[str]]:
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


def categories(name: str, sites: Sites, joined: Mapping[str, str]) -> tuple[pd.Series, bool, list[str]]:
    """The texts, and whether all of them are numbers. `joined` gives one word for several, by their lower case."""
    coded = are_codes(sites.values())
    words = {site: normalized_levels(cells) if coded else cells.levels for site, cells in sites.items()}
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


def are_codes(columns: Iterable[Cells]) -> bool:
    return all(np.isfinite(cells.numbers).all() for cells in columns)


def quoted(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
