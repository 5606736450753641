"""Patient ids as they are compared: one spelling, each patient once, with the rows that are theirs."""

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from wardround.core.errors import DataError

Rows = NDArray[np.int64]

DIGITS, LEADING_ZEROS, TEXT = "digits", "digits, some with leading zeros", "text"
FORMS = (DIGITS, LEADING_ZEROS, TEXT)


@dataclass(frozen=True)
class Patients:
    """Some patients of one party, in the order of their ids, and where their rows are.

    The rows of patient number i are `rows[starts[i] : starts[i + 1]]`, counted from 0, in the order of the file.
    Ids are left out of what is printed, so that no log can show them.
    """

    ids: tuple[str, ...] = field(repr=False)
    rows: Rows = field(repr=False)
    starts: Rows = field(repr=False)
    form: str = TEXT  # what the ids look like as a whole

    def __len__(self) -> int:
        return len(self.ids)

    def rows_of(self, patient: int) -> Rows:
        return self.rows[self.starts[patient] : self.starts[patient + 1]]

    def patient_of_each_row(self) -> Rows:
        """The number of the patient to whom each of `rows` belongs."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.starts))

    def only(self, numbers: Iterable[int]) -> "Patients":
        """Those with the given numbers, which are then numbered anew in the same order."""
        patients = sorted(numbers)
        rows = [self.rows_of(patient) for patient in patients]
        starts = np.cumsum([0, *(part.size for part in rows)], dtype=np.int64)
        joined = np.concatenate(rows) if rows else np.empty(0, np.int64)
        return Patients(tuple(self.ids[patient] for patient in patients), joined, starts, self.form)


def read_ids(where: str, values: Iterable[Any]) -> Patients:
    """The patients of a party from its id column, a value for each row.

    Ids are text or whole numbers; a number counts as its decimal digits. Text is brought to Unicode's form NFKC, so
    that a full-width digit is a digit, and loses spaces at both ends. Capital and small letters stay different, and so
    do 7 and 007: to take two patients for one is worse than to miss one.
    """
    raw_ids = list(values)
    if not raw_ids:
        raise DataError(where, "has no rows, so that there is nobody to match", "Give it a file with patients.")
    spelt = _spell(where, raw_ids)
    _refuse_two_spellings(where, raw_ids, spelt)
    rows_by_id: dict[str, list[int]] = {}
    for row, name in enumerate(spelt):
        rows_by_id.setdefault(name, []).append(row)
    ids = tuple(sorted(rows_by_id))
    rows = np.array([row for name in ids for row in rows_by_id[name]], np.int64)
    starts = np.cumsum([0, *(len(rows_by_id[name]) for name in ids)], dtype=np.int64)
    return Patients(ids, rows, starts, _form(ids))


def _spell(where: str, raw_ids: list[Any]) -> list[str]:
    spelt, texts, numbers = list[str](), 0, 0
    missing, unfit, unprintable = list[int](), list[int](), list[int]()
    for row, value in enumerate(raw_ids, start=1):
        name = ""
        if isinstance(value, str):
            name = unicodedata.normalize("NFKC", value).strip()
            texts += 1
            if not name:
                missing.append(row)
            elif not name.isprintable():
                unprintable.append(row)
        elif isinstance(value, (int, np.integer)) and not isinstance(value, bool):
            name = str(int(value))
            numbers += 1
        elif value is None or (pd.api.types.is_scalar(value) and pd.isna(value)):
            missing.append(row)
        else:
            unfit.append(row)
        spelt.append(name)
    if unfit:
        problem = f"{_rows(unfit)} a patient id that is neither text nor a whole number"
        remedy = "Read the id column as text. (A column of numbers with gaps is read as decimals.)"
        raise DataError(where, problem, remedy)
    if missing:
        raise DataError(where, f"{_rows(missing)} no patient id", "Fill the ids in, or leave these rows out.")
    if texts and numbers:
        problem = f"patient ids are of two types: text in {texts} rows, numbers in {numbers}"
        raise DataError(where, problem, "Read the id column as text.")
    if unprintable:
        problem = f"{_rows(unprintable)} a patient id with a character that cannot be seen"
        raise DataError(where, problem, "Clean the id column: often it is a tab, a line break or a byte order mark.")
    return spelt


def _refuse_two_spellings(where: str, raw_ids: list[Any], spelt: list[str]) -> None:
    """One patient under two spellings may be two patients: only the party itself can tell."""
    first: dict[str, int] = {}
    second = [row for row, name in enumerate(spelt) if raw_ids[first.setdefault(name, row)] != raw_ids[row]]
    if second:
        problem = (
            f"{len(second)} rows have a patient id that differs from that of another row in spaces or forms of "
            f"characters only (first: rows {first[spelt[second[0]]] + 1} and {second[0] + 1})"
        )
        raise DataError(
            where, problem, "If they are one patient, write the id alike; if not, give them ids that differ."
        )


def _form(ids: tuple[str, ...]) -> str:
    if not all(name.isascii() and name.isdigit() for name in ids):
        return TEXT
    return LEADING_ZEROS if any(name.startswith("0") and name != "0" for name in ids) else DIGITS


def _rows(numbers: list[int]) -> str:
    """Rows are counted from 1 without the heading. Their values are not shown."""
    return f"row {numbers[0]} has" if len(numbers) == 1 else f"{len(numbers)} rows (first: row {numbers[0]}) have"
