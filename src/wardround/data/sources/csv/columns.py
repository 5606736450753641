"""The columns of several hospitals' files as the columns of one table: their types, and their values.

A type holds over all hospitals that are read together, so that a column means one thing. The rules, in their order:

* id           the name says so (id, ..._id, mrn, patient, ...)
* numeric      every present value is a number, at every hospital
* date         every present value is a date, at every hospital
* an error     numbers or dates at one place and text at another, or among them
* id           text, of at least 10 values, nearly all different
* categorical  text with at most 20 levels, or with at most one level per 20 values
* free text    any other text

A column that some hospitals do not record is missing there. With `columns = "own"` each hospital's file is understood
by itself; a name that means numbers at one hospital and words at another, or words here and numbers that are codes
there, is then one column for each of them. So a hospital reads its file alike, alone or together with others.

Values are never shown. What the words of a target mean is decided in `target_classes.py`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import numpy as np
import pandas as pd

from wardround.core.errors import DataError, StudyError
from wardround.core.notices import Notice
from wardround.core.notices.code import quoted
from wardround.data.records import SEX_WORDS, Column
from wardround.data.text_table import Cells, Table

Shape = Literal["empty", "numbers", "dates", "unclear dates", "numbers and text", "dates and text", "text"]
Kind = Literal["numeric", "date", "categorical", "id", "free text", "empty"]

FEW_LEVELS = 20
ID_NAME = re.compile(
    r"((.*[_\W])?(id|ids|mrn|uuid|guid|ssn))|patient|subject|pid|((first|last|full|sur)?[_\W]?name)"
    r"|(patient|subject|case|record|encounter|admission|visit|nhs|insurance)[_\W]?(id|no|nr|num|number|name|code)",
    re.IGNORECASE,
)
Type = Literal["numeric", "categorical", "date", "id", "ignore"]
Usage = Literal["same", "common", "all", "own"]
Sites = dict[str, Cells]  # one column at every hospital
Omitted = dict[tuple[str, str], list[str]]  # columns by reason and by hospital, empty where it is so at all

USED = ("numeric", "date", "categorical")
AGE_NAMES = ("age", "age_years")
SEX_NAMES = ("sex", "gender")


def shape(cells: Cells) -> Shape:
    """What the values of one column in one file look like."""
    if not cells.distinct:
        return "empty"
    numbers = np.mean(~np.isnan(cells.numbers))
    if numbers == 1:
        return "numbers"
    dates = np.mean(~np.isnan(cells.years))
    if cells.day_and_month_unclear and max(dates, len(cells.slashed_dates) / cells.distinct) > 0.5:
        return "unclear dates"
    if dates == 1:
        return "dates"
    if max(numbers, dates) > 0.5:  # most texts are numbers: the others are typos or marks such as <5, not categories
        return "numbers and text" if numbers >= dates else "dates and text"
    return "text"


def kind_of(name: str, sites: Mapping[str, Cells]) -> Kind:
    shapes = {site: shape(cells) for site, cells in sites.items()}
    present_shapes = set(shapes.values()) - {"empty"}
    if not present_shapes:
        return "empty"
    if ID_NAME.fullmatch(name):
        return "id"
    if present_shapes == {"numbers"}:
        return "numeric"
    if present_shapes == {"dates"}:
        return "date"
    if present_shapes == {"text"}:
        present = sum(cells.present for cells in sites.values())
        return text_kind(len({level for cells in sites.values() for level in cells.levels}), present)
    described = "; ".join(
        _describe(site, sites[site], shapes[site], present_shapes) for site in sites if sites[site].distinct
    )
    remedy = f'Correct the cells, or write `types = {{ "{name}" = "categorical" }}` (or "ignore").'
    if "unclear dates" in present_shapes:
        remedy = f'Write dates as yyyy-mm-dd, or write `types = {{ "{name}" = "ignore" }}`.'
    raise DataError(f"column {name!r}", described, remedy)


def text_kind(distinct: int, present: int) -> Kind:
    if present >= 10 and distinct >= 0.95 * present:
        return "id"
    return "categorical" if distinct <= max(FEW_LEVELS, 0.05 * present) else "free text"


def refuse_unreadable(name: str, site: str, cells: Cells, as_dates: bool) -> None:
    """For a column that the study declares to be numbers or dates."""
    what, parsed = ("dates", cells.years) if as_dates else ("numbers", cells.numbers)
    where, remedy = f"column {name!r} at {site!r}", "Correct these cells or leave them empty, or declare another type."
    if as_dates and cells.day_and_month_unclear:
        raise DataError(where, "day and month cannot be told apart", "Write dates as yyyy-mm-dd.")
    if np.isnan(parsed).any():
        bad, place = cells.count_and_place(np.isnan(parsed))
        raise DataError(where, f"{bad} of {cells.present} values are not {what}, the first in {place}", remedy)


def normalized_levels(cells: Cells) -> list[str]:
    """The levels, with one spelling per number, so that 1 and 1.0 are one level."""
    return [spelling(level, number) for level, number in zip(cells.levels, cells.numbers.tolist(), strict=True)]


def spelling(text: str, number: float) -> str:
    if np.isnan(number):
        return text
    return str(int(number)) if abs(number) < 1e15 and number == int(number) else str(number)


def _describe(site: str, cells: Cells, own_shape: Shape, all_shapes: set[Shape]) -> str:
    if own_shape in ("numbers", "dates"):
        return f"{own_shape} at {site!r}"
    if own_shape == "unclear dates":
        return f"dates at {site!r} in which day and month cannot be told apart"
    expected = "dates" if all_shapes & {"dates", "dates and text"} else "numbers"
    bad, place = cells.count_and_place(np.isnan(cells.years if expected == "dates" else cells.numbers))
    return f"{own_shape} at {site!r} ({bad} of {cells.present} values are not {expected}, the first in {place})"


@dataclass(frozen=True)
class DeclaredColumns:
    """By their names in the files."""

    types: Mapping[str, str]
    ranges: Mapping[str, tuple[float, float]]
    levels: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class TableColumn:
    """A column of the table before its values are read."""

    name: str
    header: str  # its name in the files
    kind: str
    sites: Sites  # at every hospital; blank where it is not recorded
    recorded: tuple[str, ...]  # hospitals whose files have it
    is_sex: bool  # then words for it are joined


@dataclass(frozen=True)
class Features:
    values: pd.DataFrame
    columns: tuple[Column, ...]
    recorded: dict[str, tuple[str, ...]]  # by hospital: the columns that its file has and that are used
    notices: list[Notice]
    groups: pd.DataFrame  # `age` in years and `sex` as text, where recorded; they also stay features


def agree_on_columns(tables: Mapping[str, Table], usage: Usage, ignored: set[str]) -> tuple[list[str], list[Notice]]:
    """Names of the columns to use, in order of first appearance, and notices. Those that are ignored may differ."""
    names = _names(tables)
    compared = [name for name in names if name not in ignored]
    lacking = {site: tuple(name for name in compared if name not in table) for site, table in tables.items()}
    differences = "; ".join(f"{site!r} has no {quoted(missing)}" for site, missing in lacking.items() if missing)
    if not differences:
        return names, []
    if usage == "same":
        remedy = (
            'Correct the files, or write `columns = "common"` (shared ones only), `"all"` (absent = missing), or '
            '`"own"` (each hospital its own) together with `schema = "own"` and the model "adapter".'
        )
        raise DataError("data: files", f"the columns differ between the hospitals: {differences}", remedy)
    if usage in ("own", "all"):
        return names, _not_recorded(lacking, usage == "own")
    left_out = set(chain.from_iterable(lacking.values()))
    notice = Notice("column-not-shared", "info", columns=tuple(name for name in names if name in left_out))
    return [name for name in names if name not in left_out], [notice]


def _not_recorded(lacking: Mapping[str, tuple[str, ...]], own: bool) -> list[Notice]:
    """By hospital: the columns that it lacks, which count as missing there unless each uses its `own` columns."""
    return [
        Notice("column-not-recorded", "info", site, columns, details={"use": "own" if own else "missing"})
        for site, columns in lacking.items()
        if columns
    ]


def read_features(
    tables: Mapping[str, Table],
    rows: Sites,
    usage: Usage,
    declared: DeclaredColumns,
    age: str | None,
    sex: str | None,
) -> Features:
    """`rows` is any column of each file, to tell their number; `age` and `sex` name columns, where files have others
    than the usual ones."""
    sexes = column_at_sites(tables, sex, SEX_NAMES)
    groups, group_notices = _groups(tables, rows, age, sexes)
    blank = {site: cells.blank() for site, cells in rows.items()}
    omitted: Omitted = {}
    make_plans = _plan_own_columns if usage == "own" else _plan_columns
    plans = make_plans(tables, blank, declared, sexes, omitted)
    if not plans:
        raise _nothing_left(usage, tables)
    parts = [_read(plan, declared) for plan in plans]
    columns = tuple(column for _, column, _ in parts)
    notices = [notice for _, _, changes in parts for notice in changes]
    notices += _unfit(columns, declared, alone=usage == "own" and len(tables) == 1)
    notices += [
        Notice("column-left-out", "info", site, tuple(names), details={"reason": kind})
        for (kind, site), names in omitted.items()
    ]
    recorded = {site: tuple(plan.name for plan in plans if site in plan.recorded) for site in tables}
    values = pd.DataFrame({column.name: values for values, column, _ in parts})
    return Features(values, columns, recorded, notices + group_notices, groups)


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
    tables: Mapping[str, Table],
    blank: Sites,
    declared: DeclaredColumns,
    sex: Mapping[str, str],
    omitted: Omitted,
) -> list[TableColumn]:
    """A name means one thing over all hospitals, or is refused."""
    plans = []
    for name in _names(tables):
        recorded = {site: table[name] for site, table in tables.items() if name in table}
        kind = _kind(name, blank | recorded, declared)
        if kind in USED:
            plans.append(TableColumn(name, name, kind, blank | recorded, tuple(recorded), name in sex.values()))
        else:
            omitted.setdefault((kind, ""), []).append(name)
    return plans


def _plan_own_columns(
    tables: Mapping[str, Table],
    blank: Sites,
    declared: DeclaredColumns,
    sex: Mapping[str, str],
    omitted: Omitted,
) -> list[TableColumn]:
    """A name means what it means at each hospital by itself."""
    plans: list[TableColumn] = []
    for name in _names(tables):
        recorded = {site: table[name] for site, table in tables.items() if name in table}
        kinds = {site: _kind(name, {site: cells}, declared) for site, cells in recorded.items()}
        for site in [site for site, kind in kinds.items() if kind not in USED]:
            omitted.setdefault((kinds.pop(site), site), []).append(name)
        plans += _own_columns(name, kinds, recorded, blank, sex)
    names = Counter(plan.name for plan in plans)
    for plan in plans:
        if names[plan.name] > 1:
            problem = f"two columns would have this name, one of them {plan.header!r}"
            raise DataError(f"column {plan.name!r}", problem, "Rename it in the file, or declare a type for the other.")
    return plans


def _own_columns(
    name: str, kinds: Mapping[str, str], recorded: Sites, blank: Sites, sex: Mapping[str, str]
) -> list[TableColumn]:
    """One column where the name means the same at all hospitals that use it, or else one for each of them."""
    is_sex = {site: sex.get(site) == name for site in kinds}
    meanings = {_meaning(kind, recorded[site], is_sex[site]) for site, kind in kinds.items()} - {None}
    if len(meanings) > 1:
        return [
            TableColumn(f"{name} at {site}", name, kind, blank | {site: recorded[site]}, (site,), is_sex[site])
            for site, kind in kinds.items()
        ]
    if not kinds:
        return []
    sites = blank | {site: recorded[site] for site in kinds}
    return [TableColumn(name, name, next(iter(kinds.values())), sites, tuple(kinds), any(is_sex.values()))]


def _kind(name: str, sites: Sites, declared: DeclaredColumns) -> str:
    """A date that the study does not declare is no feature: a model would learn when a patient was here, which no later
    patient has in common with him."""
    if name in declared.types:
        return declared.types[name]
    kind = kind_of(name, sites)
    return "undeclared date" if kind == "date" and name not in declared.ranges else kind


def _meaning(kind: str, cells: Cells, is_sex: bool) -> tuple[str, bool, bool] | None:
    """What must be the same at two hospitals for one column; None where there is no value to mean anything."""
    if not cells.distinct:
        return None
    if kind != "categorical":
        return kind, False, False
    coded = are_codes([cells])
    return kind, coded, is_sex and not coded


def _names(tables: Mapping[str, Table]) -> list[str]:
    return list(dict.fromkeys(chain.from_iterable(tables.values())))


def _read(plan: TableColumn, declared: DeclaredColumns) -> tuple[pd.Series, Column, list[Notice]]:
    """Of what is declared for a name, a column has what fits it: numbers have no levels, and words no range."""
    name, header = plan.name, plan.header if plan.name != plan.header else ""
    limits, levels = declared.ranges.get(plan.header), declared.levels.get(plan.header)
    if plan.kind != "categorical":
        as_dates = plan.kind == "date"
        values, notices = numbers(name, plan.sites, as_dates)
        return values, Column(name, "numeric", limits, header=header, dates=as_dates), notices
    texts, coded, notices = categories(name, plan.sites, SEX_WORDS if plan.is_sex else {})
    words = tuple(SEX_WORDS.items()) if plan.is_sex and not coded else ()
    return texts, Column(name, "categorical", limits if coded else None, coded, levels, header, words=words), notices


def _unfit(columns: Sequence[Column], declared: DeclaredColumns, alone: bool) -> list[Notice]:
    """What is declared for a name and fits none of its columns is refused. For a hospital that is `alone` with the
    declarations for all hospitals it is a notice: at another hospital it may fit."""
    notices = []
    for setting, names, problem, other in (
        ("levels", declared.levels, "the column holds numbers, which have no levels", '"categorical"'),
        ("ranges", declared.ranges, "the column is text, which has no range", "another type"),
    ):
        for name in names:
            fits = [c.levels if setting == "levels" else c.limits for c in columns if c.own_name == name]
            if fits and all(fit is None for fit in fits):
                if not alone:
                    remedy = f"Remove it, or declare {other} for {name!r} under `types`."
                    raise StudyError(f"data: {setting}: {name}", problem, remedy)
                notices.append(Notice("declaration-not-used", "info", columns=(name,), details={"setting": setting}))
    return notices


def numbers(name: str, sites: Sites, as_dates: bool) -> tuple["pd.Series[float]", list[Notice]]:
    notices = [Notice("dates-as-years", "info", columns=(name,))] if as_dates else []
    parts = []
    for site, cells in sites.items():
        refuse_unreadable(name, site, cells, as_dates)
        part = cells.spread(cells.years if as_dates else cells.numbers, np.nan)
        infinite = np.isinf(part)
        if infinite.any():
            notices.append(Notice("infinite-values", "info", site, (name,), {"values": int(infinite.sum())}))
        if cells.decimal_commas and not as_dates:
            notices.append(Notice("decimal-commas", "info", site, (name,)))
        parts.append(np.where(infinite, np.nan, part))
    return pd.Series(np.concatenate(parts)), notices


def categories(name: str, sites: Sites, joined: Mapping[str, str]) -> tuple[pd.Series, bool, list[Notice]]:
    """The texts, and whether all of them are numbers. `joined` gives one level for several words in lower case."""
    coded = are_codes(sites.values())
    parts, spellings, levels = [], set(), set()
    for cells in sites.values():
        words = normalized_levels(cells) if coded else cells.levels
        words = [joined.get(word.lower(), word) for word in words]
        parts.append(cells.spread(words, None))
        spellings.update(cells.levels)
        levels.update(words)
    notices = []
    if len(levels) < len(spellings):
        counts = {"spellings": len(spellings), "levels": len(levels)}
        notices.append(Notice("spellings-joined", "info", columns=(name,), counts=counts))
    if len({level.casefold() for level in levels}) < len(levels):  # not joined: in blood groups, C and c are two things
        notices.append(Notice("case-of-levels", "info", columns=(name,)))
    return pd.Series(np.concatenate(parts), dtype=object), coded, notices


def column_at_sites(tables: Mapping[str, Table], declared: str | None, usual: tuple[str, ...]) -> dict[str, str]:
    """The declared column, or else one with a usual name. Hospitals with neither are left out."""
    columns = {
        site: declared if declared in table else next((n for word in usual for n in table if n.lower() == word), None)
        for site, table in tables.items()
    }
    return {site: name for site, name in columns.items() if name is not None}


def _groups(
    tables: Mapping[str, Table], rows: Sites, age: str | None, sexes: Mapping[str, str]
) -> tuple[pd.DataFrame, list[Notice]]:
    groups = pd.DataFrame(index=pd.RangeIndex(sum(len(cells.codes) for cells in rows.values())))
    blank = {site: cells.blank() for site, cells in rows.items()}
    names = column_at_sites(tables, age, AGE_NAMES)
    ages = {site: tables[site][name] for site, name in names.items()}
    in_years = {s: cells for s, cells in ages.items() if names[s] == age or shape(cells) in ("numbers", "empty")}
    if in_years:
        groups["age"] = numbers(age or names[next(iter(in_years))], blank | in_years, as_dates=False)[0]
    if sexes:
        sites = blank | {site: tables[site][name] for site, name in sexes.items()}
        # each by itself: a hospital's codes are spelt alike, whatever words the others have
        by_site = [categories("sex", {site: cells}, SEX_WORDS)[0] for site, cells in sites.items()]
        groups["sex"] = pd.concat(by_site, ignore_index=True)
    unreadable = [site for site in ages if site not in in_years]
    return groups, [Notice("age-not-in-years", "info", site, (names[site],)) for site in unreadable]


def are_codes(columns: Iterable[Cells]) -> bool:
    return all(np.isfinite(cells.numbers).all() for cells in columns)
