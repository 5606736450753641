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

import numpy as np
import pandas as pd

from wardround.core.errors import DataError, StudyError, suggest
from wardround.data.records import Column, Records
from wardround.data.sources.csv.columns import Known, read_features
from wardround.data.sources.csv.hospital_files import (
    SEX_NAMES,
    called,
    check_declared,
    check_settings,
    groups_of,
    require_column,
    rows_with_target,
    short_hash,
)
from wardround.data.sources.csv.target_words import Wanted, read_target
from wardround.data.sources.csv.text_table import Cells, Separator, Table, checked_names, looks_like_data, read_table
from wardround.data.sources.source import Source

DIGITS, LEADING_ZEROS, TEXT = "digits", "digits, some with leading zeros", "text"
NOBODY = -1  # in the place of a row's number


@dataclass(frozen=True)
class PartyRecords(Records):
    """Rows of the party with the labels, joined to what others have of them. `people` are hashes of all patients of
    each party's file, also of those whom no row is of."""

    people: Mapping[str, frozenset[str]] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Keys:
    """Of each row of a party's file whose it is, and of which visit (None: the party tells no visits apart)."""

    party: str
    patients: np.ndarray = field(repr=False)
    visits: np.ndarray | None = field(repr=False)

    @property
    def people(self) -> list[str]:
        return list(dict.fromkeys(self.patients.tolist()))

    def by_visit(self) -> dict[tuple[str, str], int]:
        visits = [] if self.visits is None else self.visits.tolist()
        return {key: row for row, key in enumerate(zip(self.patients.tolist(), visits, strict=True))}

    def by_patient(self) -> dict[str, int]:
        return {patient: row for row, patient in enumerate(self.patients.tolist())}


def keys_of(party: str, patient: tuple[str, Cells], visit: tuple[str, Cells] | None, several: bool) -> Keys:
    """From the columns, with their names. `several` rows of one patient are refused where visits are not told apart."""
    patients = _spelt(party, *patient)
    visits = None if visit is None else _spelt(party, *visit)
    if visits is not None:
        pairs = list(zip(patients.tolist(), visits.tolist(), strict=True))
        twice = len(pairs) - len(set(pairs))
        if twice:
            problem = f"{twice} rows are of a visit that another row has already"
            raise DataError(f"party {party!r}", problem, "Keep one row for each visit of a patient.")
    elif not several:
        counts = np.unique(patients, return_counts=True)[1]
        often = int((counts > 1).sum())
        if often:
            problem = f"{often} patients have several rows, and no column says of which visit each of them is"
            remedy = "Keep one row for each patient, or name the column with the number of the visit (`visit`)."
            raise DataError(f"party {party!r}", problem, remedy)
    return Keys(party, patients, visits)


def place_of_rows(holder: Keys, other: Keys) -> np.ndarray:
    """For each row of the party with the labels the other's row, or NOBODY."""
    if other.visits is None:
        rows = other.by_patient()
        found = [rows.get(patient, NOBODY) for patient in holder.patients.tolist()]
    else:
        if holder.visits is None:
            problem = f"{other.party!r} tells visits apart, and {holder.party!r}, which has the labels, does not"
            raise DataError("data: visit", problem, "Name the column of visits at both, or at neither.")
        by_visit = other.by_visit()
        found = [by_visit.get(key, NOBODY) for key in holder.by_visit()]
    places = np.array(found, dtype=np.int64)
    if not (places >= 0).any():
        raise nothing_in_common(holder, other)
    return places


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


def notes_of(holder: Keys, other: Keys, places: np.ndarray) -> list[str]:
    """How many of the patients the other party has, and whether another spelling would find more."""
    own, theirs = set(holder.people), set(other.people)
    missing = len(own - theirs)
    notes = []
    if missing:
        notes.append(f"{other.party!r} does not have {missing} of the {len(own)} patients of {holder.party!r}")
    without = len(_bare(own) & _bare(theirs)) - len(own & theirs)
    if missing and without > 0:
        notes.append(
            f"{without} more patients of {other.party!r} would be found if ids were compared without leading zeros, "
            "capitals and what stands before the digits: please look how both write them"
        )
    if other.visits is not None:
        rows = int(((places < 0) & np.isin(holder.patients, list(theirs))).sum())
        if rows:
            notes.append(f"{rows} rows of {holder.party!r} are of a visit that {other.party!r} does not have")
    return notes


def form_of(ids: list[str]) -> str:
    """What ids look like as a whole."""
    if not all(name.isascii() and name.isdigit() for name in ids):
        return TEXT
    return LEADING_ZEROS if any(name.startswith("0") and name != "0" for name in ids) else DIGITS


def looks_of(ids: list[str]) -> str:
    """As `form_of`, with lengths and capitals; of all ids together, so that none is shown."""
    form, shortest, longest = form_of(ids), min(map(len, ids)), max(map(len, ids))
    if form == TEXT:
        capitals = sum(name != name.lower() for name in ids)
        form += " without capitals" if not capitals else " with capitals" if capitals == len(ids) else ", some capitals"
    length = f"{shortest}" if shortest == longest else f"{shortest} to {longest}"
    return f"{form} ({length} characters)"


def known_patients(places: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {party: found >= 0 for party, found in places.items()}


def _spelt(party: str, name: str, cells: Cells) -> np.ndarray:
    """Text in Unicode's form NFKC. 7 and 007 stay different: to take two patients for one is worse than to miss one."""
    missing = int((cells.codes < 0).sum())
    if missing:
        line = int(cells.lines[np.flatnonzero(cells.codes < 0)[0]])
        problem = f"{missing} rows have no value in {name!r} (first: line {line})"
        raise DataError(f"party {party!r}", problem, "Fill it in, or leave these rows out.")
    spelt = [unicodedata.normalize("NFKC", level).strip() for level in cells.levels]
    if len(set(spelt)) < len(spelt):
        problem = f"{len(spelt) - len(set(spelt))} values of {name!r} differ from another in forms of characters only"
        raise DataError(f"party {party!r}", problem, "If they are the same, write them alike; if not, tell them apart.")
    return np.array(cells.spread(spelt, ""), dtype=object)


def _bare(ids: set[str]) -> set[str]:
    """Without what most often differs between two spellings."""
    return {name.casefold().lstrip("abcdefghijklmnopqrstuvwxyz-_ .:#").lstrip("0") for name in ids}


UNLABELLED = ("",)  # the classes of a party that has no labels


def csv_parties(
    files: dict[str, Path],
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
) -> Source:
    """Rows of `files`, by party. `holder` is the party whose file has the `target`; it need not be named.

    `patient` is the column that says whose a row is, `visit` the one that tells rows of one patient apart, where a
    file has it; `patients` and `visits` are for parties with names of their own for them. A party without a column of
    visits has one row for each patient, which counts for all of the patient's rows. `labels` are the holder's own words
    for the classes. The rest is as the source `csv` has it.
    """
    known = Known(dict(types or {}), dict(ranges or {}), dict(levels or {}))
    _check_parties(files, {"patients": patients or {}, "visits": visits or {}})
    check_settings(files, known, {})
    if holder is not None and holder not in files:
        raise StudyError("data: holder", f"no party is called {holder!r}", suggest(holder, files, "Parties"))
    if target is None and len(files) > 1:
        problem = f"Name the column at {holder or next(iter(files))!r} that is to be predicted."
        raise StudyError("data: target", "missing", problem)
    Wanted(positive, classes, {} if labels is None else {holder or next(iter(files)): labels}).check()
    patient_of = {party: (patients or {}).get(party, patient) for party in files}

    def load() -> Records:
        whole = {party: read_table(path, separator, checked_names) for party, path in files.items()}
        labelled = _labelled(whole, holder, target)
        wanted = Wanted(positive, classes, {} if labels is None else {labelled: labels})
        for party, table in whole.items():
            _require_patients(party, patient_of[party], table, files[party], len(files) > 1)
        if target is not None:
            require_column("target", target, whole[labelled], files[labelled], False)
            _refuse_outcome_elsewhere(whole, labelled, target, known)
        visit_of = _visit_columns(whole, visit, visits or {}, files)
        dropped: list[str] = []
        if target is not None:
            kept, dropped = rows_with_target({labelled: whole[labelled]}, {labelled: target})
            whole |= kept
        keys, tables = {}, {}
        for party, table in whole.items():
            apart = (patient_of[party], visit_of[party], target if party == labelled else None)
            keys[party] = _keys(party, table, patient_of[party], visit_of[party], several=party == labelled)
            tables[party] = {name: cells for name, cells in table.items() if name not in apart}
        names = {name for table in tables.values() for name in table}
        notes = check_declared(tables, names, known, {"age": age, "sex": sex}, alone=len(files) == 1)
        parts = {party: _read(party, whole[party], table, known, age, sex) for party, table in tables.items()}
        _refuse_shared_names(parts)
        rows = {party: place_of_rows(keys[labelled], keys[party]) for party in files if party != labelled}
        notes += [*dropped, *(note for part in parts.values() for note in part.notes)]
        for party, places in rows.items():
            notes += notes_of(keys[labelled], keys[party], places)
        joined = _joined(parts, rows, keys, labelled)
        if target is not None:
            found = read_target({labelled: target}, {labelled: whole[labelled][target]}, wanted)
            joined = replace(joined, target=found.numbers[labelled], classes=found.classes, vocabulary=found.vocabulary)
            notes += found.notes
        alone = keys[labelled] if len(files) == 1 else None  # where all files are here nobody has to be found
        return replace(
            joined,
            notes=tuple(notes),
            ids=None if alone is None else alone.patients,
            visits=None if alone is None else alone.visits,
        )

    return Source(load)


@dataclass(frozen=True)
class Part:
    """A party's columns, by its own rows."""

    values: pd.DataFrame
    columns: tuple[Column, ...]
    groups: pd.DataFrame
    notes: tuple[str, ...]


def _read(party: str, whole: Table, table: Table, known: Known, age: str | None, sex: str | None) -> Part:
    """The party with the labels may have nothing else."""
    rows = {party: next(iter(whole.values()))}
    if all(known.types.get(name) == "ignore" for name in table):
        nothing = pd.DataFrame(index=pd.RangeIndex(len(rows[party].codes)))
        return Part(nothing, (), nothing, ())
    sexes = called({party: table}, sex, SEX_NAMES)
    groups, unusable = groups_of({party: table}, rows, age if age in table else None, sexes)
    found = read_features({party: table}, rows, "same", known, sexes)
    notes = (f"{party!r}: {note}" for note in (*found.notes, *unusable))
    return Part(found.values, found.columns, groups, tuple(notes))


def _joined(
    parts: Mapping[str, Part], rows: Mapping[str, np.ndarray], keys: Mapping[str, Keys], labelled: str
) -> PartyRecords:
    """All columns, party by party, on the rows of the party with the labels. The labels are still to come."""
    own = np.arange(len(keys[labelled].patients))
    placed = {party: rows.get(party, own) for party in parts}
    values = [_at(part.values, placed[party]) for party, part in parts.items()]
    groups = pd.concat([_at(part.groups, placed[party]) for party, part in parts.items()], axis=1)
    return PartyRecords(
        features=pd.concat(values, axis=1),
        target=np.zeros(len(own), dtype=np.int64),
        classes=UNLABELLED,
        hospital=np.full(len(own), labelled, dtype=object),
        columns=tuple(column for part in parts.values() for column in part.columns),
        patient=np.array([short_hash(one) for one in keys[labelled].patients.tolist()], dtype=object).astype(str),
        groups=groups.loc[:, ~groups.columns.duplicated()],
        known_to=known_patients(rows),
        held={party: tuple(column.name for column in part.columns) for party, part in parts.items()},
        people={party: frozenset(short_hash(one) for one in own.people) for party, own in keys.items()},
    )


def _at(table: pd.DataFrame, places: np.ndarray) -> pd.DataFrame:
    """The rows with these numbers; gaps where there is none."""
    there = places >= 0
    found = {}
    for name in table.columns:
        values = table[name].to_numpy()
        kind = values.dtype if values.dtype.kind == "f" else np.dtype(object)
        column = np.full(len(places), np.nan if kind.kind == "f" else None, dtype=kind)
        column[there] = values[places[there]]
        found[name] = pd.Series(column, dtype=kind)
    return pd.DataFrame(found, index=pd.RangeIndex(len(places)))


def _check_parties(files: Mapping[str, Path], by_party: Mapping[str, Mapping[str, str]]) -> None:
    if not files:
        raise StudyError("data: files", "no party is named", 'Write `files = { party = "file.csv" }`.')
    for setting, names in by_party.items():
        for party in names:
            if party not in files:
                remedy = suggest(party, files, "Parties")
                raise StudyError(f"data: {setting}: {party}", "no file is of a party with this name", remedy)


def _labelled(tables: Mapping[str, Table], holder: str | None, target: str | None) -> str:
    """The party with the outcome: the one that is named, or the only one whose file has it, or the first."""
    having = [party for party, table in tables.items() if target in table]
    if holder is not None:
        return holder
    return having[0] if len(having) == 1 else next(iter(tables))


def _require_patients(party: str, name: str, table: Table, path: Path, several: bool) -> None:
    """Nothing is guessed: a column that merely looks alike would match nobody, or the wrong ones."""
    if name in table:
        return
    if looks_like_data(table):  # then its "names" are values
        remedy = "Its first line holds numbers or dates: add a line above it that names the columns."
    else:
        remedy = f"Columns of this file: {', '.join(sorted(table))}."
        if several:
            remedy += f' If it has another name here, write `patients = {{ {party} = "name" }}`.'
    problem = f"there is no column {name!r}, which says whose a row of party {party!r} is"
    raise DataError(str(path), problem, remedy)


def _refuse_outcome_elsewhere(tables: Mapping[str, Table], labelled: str, target: str, known: Known) -> None:
    """Else the outcome would be predicted from itself."""
    for party, table in tables.items():
        if party != labelled and target in table and known.types.get(target) != "ignore":
            problem = f"{target!r}, the outcome, is in the files of {labelled!r} and {party!r}"
            remedy = (
                f"Delete it at {party!r}, or name the party that has the labels (`holder`) and delete it elsewhere."
            )
            raise DataError("data: files", problem, remedy)


def _visit_columns(
    tables: Mapping[str, Table], visit: str | None, visits: Mapping[str, str], files: Mapping[str, Path]
) -> dict[str, str | None]:
    """By party; None where its file has no such column."""
    for party, name in visits.items():
        require_column("visit", name, tables[party], files[party], False)
    found = {party: visits.get(party, visit if visit in table else None) for party, table in tables.items()}
    if visit is not None and visit not in found.values() and len(files) > 1:
        names = dict.fromkeys(name for table in tables.values() for name in table)
        raise StudyError("data: visit", f"no file has a column {visit!r}", suggest(visit, names, "Columns"))
    return found


def _keys(party: str, table: Table, patient: str, visit: str | None, several: bool) -> Keys:
    return keys_of(party, (patient, table[patient]), None if visit is None else (visit, table[visit]), several)


def _refuse_shared_names(parts: Mapping[str, Part]) -> None:
    first: dict[str, str] = {}
    for party, part in parts.items():
        for column in part.columns:
            if column.name in first:
                problem = f"{column.name!r} is in the files of {first[column.name]!r} and {party!r}"
                remedy = "Rename it in one of them, so that each column is one party's, or delete it there."
                raise DataError("data: files", problem, remedy)
            first[column.name] = party
