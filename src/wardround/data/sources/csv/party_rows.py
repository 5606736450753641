"""Which rows of several parties' files belong together: the same patient, and where there are visits the same visit.

No id is ever shown: what is wrong is told in counts, names of columns and what ids look like as a whole.
"""

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from wardround.core.errors import DataError
from wardround.data.records import Records
from wardround.data.sources.csv.text_table import Cells

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
