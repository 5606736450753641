"""What a first study assumes of hospitals' files: the kind of target, the column of patients, the columns to use.

The readers and checks of the csv source decide; here stands only what a study would have to say to them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from wardround.core.errors import DataError
from wardround.core.notices.code import quoted
from wardround.data.describe import TARGET_NAME, describe_table
from wardround.data.sources.csv.columns import ID_NAME, kind_of, normalized_levels, shape
from wardround.data.sources.csv.target_classes import MEANINGS, MOST_NUMBERS
from wardround.data.text_table import Cells
from wardround.runs.drafting.hospital_tables import HospitalTables

Kind = Literal["classes", "regression", "count"]
# An identifier of a person, and not of a visit or a record; a name identifies, but two people may have the same.
PATIENT_NAME = re.compile(
    r"(.*[_\W])?(patient|subject|person|pid|mrn|nhs|ssn|insurance)([_\W]?(id|no|nr|num|number|code))?|(.*[_\W])?pat[_\W]?id",
    re.IGNORECASE,
)
PLAIN_ID = re.compile(r"ids?|uuid|guid", re.IGNORECASE)
MIXED = "decimal commas"


@dataclass(frozen=True)
class Target:
    name: str
    kind: Kind
    reason: str  # why this kind


@dataclass(frozen=True)
class Candidate:
    """A column that could be the target."""

    name: str
    what: str


def kind_of_target(sites: Mapping[str, Cells]) -> tuple[Kind, str]:
    """Numbers that repeat in two or few values are classes, as the csv source has it; else they are predicted."""
    shapes = {shape(cells) for cells in sites.values()} - {"empty"}
    if "text" in shapes or not shapes:
        return "classes", "its cells are words"
    if not shapes <= {"numbers"}:
        return "regression", "most of its cells are numbers or dates"
    levels = {level for cells in sites.values() for level in normalized_levels(cells)}
    numbers = np.concatenate([cells.numbers for cells in sites.values()])
    whole = bool(np.all(numbers == np.round(numbers)))
    if len(levels) <= 2 or (whole and len(levels) <= MOST_NUMBERS):
        return "classes", f"it has {len(levels)} different values"
    if whole and numbers.min() == 0:
        return "count", "its cells are whole numbers from 0 on"
    return "regression", "its cells are numbers"


def candidates(hospitals: HospitalTables) -> list[Candidate]:
    """Those that look most like a target first."""
    suggested = {
        name
        for table in hospitals.tables.values()
        for notice in describe_table(table).attrs["notices"]
        if notice.code == "may-be-target"
        for name in notice.columns
    }
    found: list[tuple[int, Candidate]] = []
    for name in hospitals.shared:
        sites = {site: table[name] for site, table in hospitals.tables.items()}
        what = _could_be(name, sites)
        if what:
            likeness = 0 if name in suggested else 1 if TARGET_NAME.fullmatch(name) else 3 if "number" in what else 2
            found.append((likeness, Candidate(name, what)))
    return [candidate for _, candidate in sorted(found, key=lambda pair: pair[0])]


def _could_be(name: str, sites: Mapping[str, Cells]) -> str:
    """Empty where a column can be no target."""
    levels = {level.casefold() for cells in sites.values() for level in normalized_levels(cells)}
    if levels and levels <= MEANINGS.keys():  # as targets, "yes" at one hospital and 1 at another mean the same
        return "2 classes" if len({MEANINGS[level][1] for level in levels}) == 2 else ""
    try:
        if kind_of(name, sites) not in ("numeric", "categorical"):
            return ""
    except DataError:
        return ""
    if len(levels) < 2:
        return ""
    kind, _ = kind_of_target(sites)
    if kind == "classes":
        return f"{len(levels)} classes"
    return "a count" if kind == "count" else "a number"


@dataclass(frozen=True)
class Patients:
    """The column that says whose a row is, at each hospital; none where nothing looks like it."""

    columns: Mapping[str, str]
    reason: str


def patient_columns(hospitals: HospitalTables, target: str, given: str | None) -> Patients:
    if given is not None:
        return Patients(dict.fromkeys(hospitals.tables, given), "it was named")
    found: dict[str, str] = {}
    for site, table in hospitals.tables.items():
        names = [name for name in table if name != target]
        # A name says what it means more clearly than that it is an identifier of something.
        for pattern in (PATIENT_NAME, PLAIN_ID):
            fitting = [name for name in names if pattern.fullmatch(name) and ID_NAME.fullmatch(name)]
            if fitting:
                found[site] = fitting[0]
                break
    rows = sum(hospitals.tables[site][name].present for site, name in found.items())
    distinct = sum(hospitals.tables[site][name].distinct for site, name in found.items())
    every = "every row is another patient" if rows == distinct else f"{rows} rows are of {distinct} patients"
    return Patients(found, f"by its name; {every}")


def unusable(hospitals: HospitalTables, reserved: set[str], together: bool) -> dict[str, str]:
    """Columns that would be refused or misread, and why: to be left out until their cells are corrected.

    `together`: a column must mean the same at all hospitals.
    """
    wrong: dict[str, str] = {}
    for name in hospitals.names:
        sites = {site: table[name] for site, table in hospitals.tables.items() if name in table}
        if name in reserved:
            continue
        for cells in [sites] if together else [{site: cells} for site, cells in sites.items()]:
            try:
                kind_of(name, cells)
            except DataError as error:
                wrong.setdefault(name, error.problem)
    for site, table in hospitals.tables.items():
        described = describe_table(table)
        for name, problems in zip(described["name"], described["problems"], strict=True):
            if MIXED in problems and name not in reserved:
                commas = next(text for text in problems.split("; ") if MIXED in text)
                wrong.setdefault(name, f"{commas} (at {site!r})")
    return wrong


@dataclass(frozen=True)
class Columns:
    usage: Literal["same", "common", "own"]
    reason: str


def column_usage(hospitals: HospitalTables, reserved: set[str]) -> Columns:
    """As the csv source advises: shared columns for any model, or each hospital's own for a model that can use them."""
    names = [name for name in hospitals.names if name not in reserved]
    shared = [name for name in hospitals.shared if name not in reserved]
    if len(shared) == len(names):
        return Columns("same", "all files have the same columns")
    lacking = [name for name in names if name not in shared]
    some = quoted(lacking[:5]) + (f" and {len(lacking) - 5} more" if len(lacking) > 5 else "")
    if 2 * len(shared) >= len(names):
        return Columns("common", f"{len(shared)} of {len(names)} columns are at all hospitals; not used: {some}")
    return Columns("own", f"only {len(shared)} of {len(names)} columns are at all hospitals")
