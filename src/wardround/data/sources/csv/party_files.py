"""One CSV file per party: different columns of the same patients, and the outcome at one of the parties.

Each file is read as the source `csv` reads a hospital's, with the same types, gaps, words and omissions, which
`Records.notes` reports. There is one row for each row of the party with the labels. It holds what another party has of
the same patient or, where there are visits, of the same visit; what that party does not have is missing.

No id is ever shown: errors give counts, names of columns and the form of all ids together.
"""

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from wardround.core.errors import DataError, StudyError, refuse_strangers, suggest
from wardround.core.in_memory import InMemory
from wardround.core.notices import Notice
from wardround.data.frames import file_table
from wardround.data.records import Records, Source, short_hash
from wardround.data.sources.csv.columns import DeclaredColumns, Features, read_features
from wardround.data.sources.csv.hospital_files import (
    check_declared,
    check_settings,
    require_column,
    rows_with_target,
    without,
)
from wardround.data.sources.csv.outcome import DeclaredOutcome, source_facts
from wardround.data.sources.csv.target_classes import DeclaredClasses
from wardround.data.text_table import Cells, Separator, Table
from wardround.study.facts import declares

NO_ROW = -1  # in the place of a row's number
UNLABELLED = ("",)  # the classes of a party that has no labels


@dataclass(frozen=True)
class PartyRecords(Records):
    """Rows of the party with the labels, joined to what others have of them. `people` are hashes of all patients of
    each party's file, also of those whom no row is of."""

    people: Mapping[str, frozenset[str]] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Keys:
    """The patient and the visit of each row of a party's file (visits None: the party does not tell them apart)."""

    party: str
    patients: np.ndarray = field(repr=False)
    visits: np.ndarray | None = field(repr=False)

    @property
    def people(self) -> list[str]:
        return list(dict.fromkeys(self.patients.tolist()))

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Patient and visit of each row."""
        return list(zip(self.patients.tolist(), [] if self.visits is None else self.visits.tolist(), strict=True))


def keys_of(party: str, table: Table, patient: str, visit: str | None, repeated: bool) -> Keys:
    """`repeated`: a patient may have more than one row where visits are not told apart."""
    keys = Keys(
        party, _ids(party, patient, table[patient]), None if visit is None else _ids(party, visit, table[visit])
    )
    if visit is not None:
        if copies := len(keys.pairs) - len(set(keys.pairs)):
            problem = f"{copies} rows are of a visit that another row has already"
            raise DataError(f"party {party!r}", problem, "Keep one row for each visit of a patient.")
    elif not repeated and (often := int((np.unique(keys.patients, return_counts=True)[1] > 1).sum())):
        problem = f"{often} patients have several rows, and no column says of which visit each of them is"
        remedy = "Keep one row for each patient, or name the column with the number of the visit (`visit`)."
        raise DataError(f"party {party!r}", problem, remedy)
    return keys


def _ids(party: str, name: str, cells: Cells) -> np.ndarray:
    """Text in Unicode's form NFKC. 7 and 007 stay different: to take two patients for one is worse than to miss one."""
    if missing := int((cells.codes < 0).sum()):
        place = cells.places([int(cells.lines[np.flatnonzero(cells.codes < 0)[0]])])
        problem = f"{missing} rows have no value in {name!r} (first: {place})"
        raise DataError(f"party {party!r}", problem, "Fill it in, or leave these rows out.")
    ids = [unicodedata.normalize("NFKC", level).strip() for level in cells.levels]
    if len(set(ids)) < len(ids):
        problem = f"{len(ids) - len(set(ids))} values of {name!r} differ from another in forms of characters only"
        raise DataError(f"party {party!r}", problem, "If they are the same, write them alike; if not, tell them apart.")
    return np.array(cells.spread(ids, ""), dtype=object)


def matching_rows(holder: Keys, other: Keys) -> np.ndarray:
    """For each row of the party with the labels the other's row, or NO_ROW."""
    by_visit = other.visits is not None
    if by_visit and holder.visits is None:
        problem = f"{other.party!r} tells visits apart, and {holder.party!r}, which has the labels, does not"
        raise DataError("data: visit", problem, "Name the column of visits at both, or at neither.")
    own, theirs = ((keys.pairs if by_visit else keys.patients.tolist()) for keys in (holder, other))
    row = {key: number for number, key in enumerate(theirs)}
    rows = np.array([row.get(key, NO_ROW) for key in own], dtype=np.int64)
    if not (rows >= 0).any():
        raise nothing_in_common(holder, other)
    return rows


def nothing_in_common(holder: Keys, other: Keys) -> DataError:
    problem = f"{holder.party!r} and {other.party!r} have no patient in common"
    if set(holder.people) & set(other.people):
        problem = f"{holder.party!r} and {other.party!r} have patients in common and no visit"
    else:
        forms = ", ".join(f"{keys.party!r} has {looks_of(keys.people)}" for keys in (holder, other))
        problem += f". What their ids look like: {forms}"
    remedy = (
        "Compare how both write them: leading zeros, prefixes, capitals, another numbering. "
        "They must match to the character."
    )
    return DataError("data: patient", problem, remedy)


def matching_notices(holder: Keys, other: Keys, rows: np.ndarray) -> list[Notice]:
    """How many of the patients the other party has, and whether another spelling would match more."""
    own, theirs = set(holder.people), set(other.people)
    missing = len(own - theirs)
    party, holders = other.party, (holder.party,)
    notices = []
    if missing:
        counts = {"patients": missing, "of": len(own)}
        notices.append(Notice("party-lacks-patients", "info", party, counts=counts, other_sites=holders))
    more = len(_bare(own) & _bare(theirs)) - len(own & theirs)
    if missing and more > 0:
        notices.append(Notice("ids-spelt-differently", "warning", party, counts={"patients": more}))
    if other.visits is not None and (unmatched := int(((rows < 0) & np.isin(holder.patients, list(theirs))).sum())):
        counts = {"rows": unmatched}
        notices.append(Notice("visits-not-matched", "info", party, counts=counts, other_sites=holders))
    return notices


def looks_of(ids: list[str]) -> str:
    """The form of all ids together, so that none is shown."""
    shortest, longest = min(map(len, ids)), max(map(len, ids))
    if not all(name.isascii() and name.isdigit() for name in ids):
        capitals = sum(name != name.lower() for name in ids)
        some = " with capitals" if capitals == len(ids) else ", some capitals"
        form = f"text{some if capitals else ' without capitals'}"
    else:
        zeros = any(name.startswith("0") and name != "0" for name in ids)
        form = "digits, some with leading zeros" if zeros else "digits"
    return f"{form} ({shortest if shortest == longest else f'{shortest} to {longest}'} characters)"


def _bare(ids: set[str]) -> set[str]:
    """Without what most often differs between two spellings."""
    return {name.casefold().lstrip("abcdefghijklmnopqrstuvwxyz-_ .:#").lstrip("0") for name in ids}


@declares(source_facts)
def csv_parties(
    files: Mapping[str, Path | InMemory],
    patient: str,
    target: str | None = None,
    holder: str | None = None,
    patients: dict[str, str] | None = None,
    visit: str | None = None,
    visits: dict[str, str] | None = None,
    positive: str | None = None,
    classes: tuple[str, ...] | None = None,
    labels: dict[str, str] | None = None,
    types: dict[str, str] | None = None,
    ranges: dict[str, tuple[float, float]] | None = None,
    levels: dict[str, tuple[str, ...]] | None = None,
    separator: Separator = "auto",
    age: str | None = None,
    sex: str | None = None,
    task: str | dict[str, Any] = "",
) -> Source:
    """Rows of `files`, by party. `holder` is the party whose file has the `target`; it need not be named.

    `patient` is the column that says whose a row is, `visit` the one that tells rows of one patient apart, where a
    file has it; `patients` and `visits` are for parties with names of their own for them. A party without a column of
    visits has one row for each patient, which counts for all of the patient's rows. `labels` are the holder's own words
    for the classes. The rest is as the source `csv` has it.
    """
    declared = DeclaredColumns(types or {}, ranges or {}, levels or {})
    check_settings(files, declared, {"patients": patients or {}, "visits": visits or {}}, "party")
    if holder is not None:
        refuse_strangers([holder], files, "data: holder", "party", "Parties")
    if target is None and len(files) > 1:
        remedy = f"Name the column at {holder or next(iter(files))!r} that is to be predicted."
        raise StudyError("data: target", "missing", remedy)
    known = None if target is None else declared.ranges.get(target)
    first = {} if labels is None else {holder or next(iter(files)): labels}
    patient_of = {party: (patients or {}).get(party, patient) for party in files}
    DeclaredOutcome(task, DeclaredClasses(positive, classes, first), known).check({target, *patient_of.values()})

    def load() -> Records:
        tables = {party: file_table(file, separator) for party, file in files.items()}
        labelled = _labelled(tables, holder, target)
        for party, table in tables.items():
            # not guessed: a column that merely looks alike would match nobody, or the wrong ones
            require_column("patient", patient_of[party], table, files, party, guess=False)
        dropped: list[Notice] = []
        of_labels = {} if labels is None else {labelled: labels}
        outcome = DeclaredOutcome(task, DeclaredClasses(positive, classes, of_labels), known)
        if target is not None:
            for name in outcome.columns:
                require_column("exposure", name, tables[labelled], {labelled: files[labelled]}, labelled)
            require_column("target", target, tables[labelled], {labelled: files[labelled]}, labelled)
            _refuse_outcome_elsewhere(tables, labelled, target, declared)
        visit_of = _visit_columns(tables, visit, visits or {}, files)
        if target is not None:
            with_target, dropped = rows_with_target({labelled: tables[labelled]}, {labelled: target})
            tables |= with_target
        keys, parts, columns = {}, {}, {}
        for party, table in tables.items():
            keys[party] = keys_of(party, table, patient_of[party], visit_of[party], repeated=party == labelled)
            columns[party] = without(
                table, patient_of[party], visit_of[party], *((target, *outcome.columns) if party == labelled else ())
            )
        notices = check_declared(
            columns,
            set().union(*columns.values()),
            declared,
            {"age": age, "sex": sex},
            len(files) == 1,
            (target or "",),
            outcome.columns,
        )
        for party, own in columns.items():
            parts[party] = _read(party, tables[party], own, declared, age, sex)
        joined = _joined(parts, keys, labelled)
        notices += [*dropped, *joined.notices]
        if target is not None:
            column = outcome.read({labelled: target}, {labelled: tables[labelled]})
            notices += column.notices
            joined = replace(
                joined,
                target=column.target,
                classes=column.classes,
                vocabulary=column.vocabulary,
                given_task=column.task,
            )
        if len(files) == 1:  # with all files here, nobody has to be matched by id
            joined = replace(joined, ids=keys[labelled].patients, visits=keys[labelled].visits)
        return replace(joined, notes=tuple(notices))

    return Source(load)


def _read(
    party: str, whole: Table, table: Table, declared: DeclaredColumns, age: str | None, sex: str | None
) -> Features:
    """The party with the labels may have nothing else."""
    rows = {party: next(iter(whole.values()))}
    if all(declared.types.get(name) == "ignore" for name in table):
        nothing = pd.DataFrame(index=pd.RangeIndex(len(rows[party].codes)))
        return Features(nothing, (), {}, [], nothing)
    features = read_features({party: table}, rows, "same", declared, age if age in table else None, sex)
    return replace(features, notices=[replace(notice, site=party) for notice in features.notices])


def _joined(parts: Mapping[str, Features], keys: Mapping[str, Keys], labelled: str) -> PartyRecords:
    """All columns, party by party, on the rows of the party with the labels. The labels are still to come."""
    _refuse_shared_names(parts)
    holder = keys[labelled]
    rows = {party: matching_rows(holder, keys[party]) for party in parts if party != labelled}
    notices = [notice for part in parts.values() for notice in part.notices]
    notices += [notice for party in rows for notice in matching_notices(holder, keys[party], rows[party])]
    at_holder = rows | {labelled: np.arange(len(holder.patients))}
    values = [_at(part.values, at_holder[party]) for party, part in parts.items()]
    groups = pd.concat([_at(part.groups, at_holder[party]) for party, part in parts.items()], axis=1)
    return PartyRecords(
        features=pd.concat(values, axis=1),
        target=np.zeros(len(holder.patients), dtype=np.int64),
        classes=UNLABELLED,
        hospital=np.full(len(holder.patients), labelled, dtype=object),
        columns=tuple(column for part in parts.values() for column in part.columns),
        patient=np.array(list(map(short_hash, holder.patients.tolist())), dtype=object).astype(str),
        groups=groups.loc[:, ~groups.columns.duplicated()],
        notes=tuple(notices),
        known_to={party: places >= 0 for party, places in rows.items()},
        held={party: tuple(column.name for column in part.columns) for party, part in parts.items()},
        people={party: frozenset(map(short_hash, own.people)) for party, own in keys.items()},
    )


def _at(table: pd.DataFrame, places: np.ndarray) -> pd.DataFrame:
    """The rows with these numbers; gaps where there is none."""
    matched = places >= 0
    columns = {}
    for name in table.columns:
        values = table[name].to_numpy()
        kind = values.dtype if values.dtype.kind == "f" else np.dtype(object)
        column = np.full(len(places), np.nan if kind.kind == "f" else None, dtype=kind)
        column[matched] = values[places[matched]]
        columns[name] = pd.Series(column, dtype=kind)
    return pd.DataFrame(columns, index=pd.RangeIndex(len(places)))


def _labelled(tables: Mapping[str, Table], holder: str | None, target: str | None) -> str:
    """The party with the outcome: the declared one, or the only one whose file has it, or the first."""
    with_target = [party for party, table in tables.items() if target in table]
    if holder is not None:
        return holder
    return with_target[0] if len(with_target) == 1 else next(iter(tables))


def _refuse_outcome_elsewhere(
    tables: Mapping[str, Table], labelled: str, target: str, declared: DeclaredColumns
) -> None:
    """Else the outcome would be predicted from itself."""
    for party, table in tables.items():
        if party != labelled and target in table and declared.types.get(target) != "ignore":
            problem = f"{target!r}, the outcome, is in the files of {labelled!r} and {party!r}"
            remedy = (
                f"Delete it at {party!r}, or name the party that has the labels (`holder`) and delete it elsewhere."
            )
            raise DataError("data: files", problem, remedy)


def _visit_columns(
    tables: Mapping[str, Table], visit: str | None, visits: Mapping[str, str], files: Mapping[str, Path | InMemory]
) -> dict[str, str | None]:
    """By party; None where its file has no such column."""
    for party, name in visits.items():
        require_column("visit", name, tables[party], {party: files[party]}, party)
    columns = {party: visits.get(party, visit if visit in table else None) for party, table in tables.items()}
    if visit is not None and visit not in columns.values() and len(files) > 1:
        names = set().union(*tables.values())
        raise StudyError("data: visit", f"no file has a column {visit!r}", suggest(visit, names, "Columns"))
    return columns


def _refuse_shared_names(parts: Mapping[str, Features]) -> None:
    first: dict[str, str] = {}
    for party, part in parts.items():
        for column in part.columns:
            if column.name in first:
                problem = f"{column.name!r} is in the files of {first[column.name]!r} and {party!r}"
                remedy = "Rename it in one of them, so that each column is one party's, or delete it there."
                raise DataError("data: files", problem, remedy)
            first[column.name] = party
