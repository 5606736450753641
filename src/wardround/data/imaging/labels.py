"""Tables of labels: NIH's Data_Entry_2017, CheXpert's, or a hospital's own of either kind, as CSV, plain or gzip.

Findings stand in one column, separated by `|`, or have a column each with 1 (present), 0 (absent), -1 (uncertain) or
nothing, which CheXpert means as "not mentioned" and which counts as 0.
"""

import csv
import gzip
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd

from wardround.core.errors import DataError
from wardround.data.imaging.finding_names import FINDINGS, NO_FINDING, chosen, plain
from wardround.data.imaging.listing import Listing
from wardround.data.imaging.problems import Problem

SUFFIXES = (".csv", ".csv.gz")
SEPARATORS = ",;\t"


@dataclass(frozen=True)
class Table:
    """Columns by place, because NIH's headers have commas inside their names and end with commas."""

    path: Path
    header: tuple[str, ...]
    cells: np.ndarray = field(repr=False)  # (rows, columns) of text; not in `repr`, so that no traceback shows it
    lines: np.ndarray = field(repr=False)  # line of the file on which each row ends

    def place(self, names: Iterable[str]) -> int | None:
        """Of the first column that is called like one of these: lower-case letters and digits only."""
        spellings = [simple(name) for name in self.header]
        for name in names:
            if spellings.count(name) > 1:
                problem = f"{spellings.count(name)} columns are called {self.header[spellings.index(name)]!r}"
                raise DataError(str(self.path), problem, "Give each column a name of its own.")
            if name in spellings:
                return spellings.index(name)
        return None

    def column(self, names: Iterable[str]) -> np.ndarray | None:
        place = self.place(names)
        return None if place is None else self.cells[:, place]


def simple(name: str) -> str:
    return "".join(sign for sign in name.casefold() if sign.isalnum())


def is_table(path: Path) -> bool:
    return path.name.lower().endswith(SUFFIXES)


def read_table(path: Path) -> Table:
    """Rows may be shorter than the header, as in NIH's file of boxes, but hold nothing beyond it."""
    text = _read_text(path)
    separator = max(SEPARATORS, key=text[: text.find("\n")].count)
    reader = csv.reader(StringIO(text, newline=""), delimiter=separator, strict=True, skipinitialspace=True)
    rows: list[list[str]] = []
    lines: list[int] = []
    width = 0
    try:
        for record in reader:
            cells = [cell.strip() for cell in record]
            if not any(cells):
                continue
            width = width or len(cells)
            if any(cells[width:]):
                problem = f"{len(cells)} fields, but the header names {width} columns"
                remedy = "Correct this line; a text that contains the separator needs quotation marks around it."
                raise DataError(f"{path}, line {reader.line_num}", problem, remedy)
            rows.append(cells[:width] + [""] * (width - len(cells)))
            lines.append(reader.line_num)
    except csv.Error:
        remedy = "Put a text that holds the separator in quotation marks."
        raise DataError(f"{path}, line {reader.line_num}", "quotation marks do not match", remedy) from None
    if len(rows) < 2:
        raise DataError(str(path), "there is no row below a header", "Export it again, with its rows.")
    return Table(path, tuple(rows[0]), np.array(rows[1:], dtype=object), np.array(lines[1:]))


def _read_text(path: Path) -> str:
    try:
        if not path.is_file():  # asked first, because reading a pipe or a device may never end
            raise DataError(str(path), "there is no such file", "Correct the path, which starts at the study's folder.")
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        # its cause would carry the file's bytes
        raise DataError(str(path), "not UTF-8", "Save it as UTF-8 (in a spreadsheet: 'CSV UTF-8').") from None
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise DataError(str(path), "cannot be decompressed", "Fetch the file anew: it is damaged.") from None
    except OSError as error:
        raise DataError(str(path), f"cannot be read ({error.strerror})", "Check the file's permissions.") from None


IMAGE = ("imageindex", "image", "imagename", "imagepath", "file", "filename", "path", "dicom", "dicomfile")
LISTED = ("findinglabels", "findinglabel", "findings")
SAID = {
    "patient": ("patientid", "patient"),
    "age": ("patientage", "age"),
    "sex": ("patientgender", "patientsex", "sex", "gender"),
    "view": ("viewposition", "view", "appa"),
    "hospital": ("hospital",),
    "side": ("side", "split"),
}
LATERAL = ("frontallateral",)  # CheXpert's other column for the view
OTHER = {*IMAGE, *LISTED, *(name for names in SAID.values() for name in names), *LATERAL}
SIDES = {"train": "train", "val": "validation", "valid": "validation", "validation": "validation", "test": "test"}
MARKS = {"1": 1, "1.0": 1, "0": 0, "0.0": 0, "-1": -1, "-1.0": -1, "": 0}
_PATIENT = re.compile(r"(?:^|/)(patient[^/]+)/", re.IGNORECASE)


def read_listing(path: Path, findings: tuple[str, ...]) -> Listing:
    table = read_table(path)
    names = table.column(IMAGE)
    if names is None:
        remedy = "Call the column `image`; it holds each file's name, or its path from the folder of images on."
        raise DataError(str(path), "no column says which image a row is of", remedy)
    listed = table.column(LISTED)
    problems: tuple[Problem, ...] = ()
    if listed is not None:
        classes = _findings_in(listed, findings, path)
        target, problems = _from_lists(names, listed, classes)
    else:
        classes = chosen(findings, _finding_columns(table), path.name)
        target = _from_columns(table, classes)
    return Listing(names, target, classes, _said(table, names), problems)


def _findings_in(listed: np.ndarray, findings: tuple[str, ...], path: Path) -> tuple[str, ...]:
    """NIH's findings may be wanted even where no row has them; others must occur."""
    words = {word.strip() for text in np.unique(listed) for word in text.split("|")}
    own = sorted(word for word in words if plain(word) not in ("", NO_FINDING))
    return chosen(findings, (*own, *FINDINGS), path.name, FINDINGS)


def _from_lists(
    names: np.ndarray, listed: np.ndarray, classes: tuple[str, ...]
) -> tuple[np.ndarray, tuple[Problem, ...]]:
    texts, which = np.unique(listed, return_inverse=True)  # there are few different lists
    places = {plain(name): place for place, name in enumerate(classes)}
    known = {*places, *map(plain, FINDINGS), NO_FINDING}
    target = np.zeros((len(texts), len(classes)), dtype=np.int64)
    unknown: list[str] = []
    for number, text in enumerate(texts):
        words = [word.strip() for word in text.split("|")]
        for word in words:
            if plain(word) in places:
                target[number, places[plain(word)]] = 1
        unknown.append("|".join(word or "(blank)" for word in words if plain(word) not in known))
    odd = np.flatnonzero(np.array([bool(text) for text in unknown])[which])
    return target[which], tuple(Problem("unknown-finding", names[row], unknown[which[row]]) for row in odd)


def _finding_columns(table: Table) -> list[str]:
    return [name for name in table.header if name and simple(name) not in OTHER]


def _from_columns(table: Table, classes: tuple[str, ...]) -> np.ndarray:
    target = np.empty((len(table.cells), len(classes)), dtype=np.int64)
    for place, name in enumerate(classes):
        texts, which = np.unique(table.cells[:, table.header.index(name)], return_inverse=True)
        wrong = np.array([text not in MARKS for text in texts])[which]
        if wrong.any():
            problem = f"{wrong.sum()} cells of {name!r} are neither 1, 0, -1 nor blank"
            where = f"{table.path}, line {table.lines[wrong][0]}"
            raise DataError(where, problem, "Correct them, or leave this column out of `findings`.")
        target[:, place] = np.array([MARKS[text] for text in texts])[which]
    return target


def _said(table: Table, names: np.ndarray) -> pd.DataFrame:
    columns = {word: table.column(spellings) for word, spellings in SAID.items()}
    lateral = table.column(LATERAL)
    if lateral is not None:  # a lateral image has nothing under AP/PA
        frontal = columns["view"] if columns["view"] is not None else np.full(len(names), "", dtype=object)
        sideways = np.array([text.lower() == "lateral" for text in lateral])
        columns["view"] = np.where(sideways, "LATERAL", frontal)
    if columns["patient"] is None:
        columns["patient"] = _patients_in_paths(names)
    if columns["side"] is not None:
        columns["side"] = _sides(columns["side"], table)
    if columns["hospital"] is not None and (blank := int((columns["hospital"] == "").sum())):
        raise DataError(str(table.path), f"{blank} rows have no hospital", "Fill the column, or leave it out.")
    present = {word: pd.Series(column, dtype=object) for word, column in columns.items() if column is not None}
    return pd.DataFrame(present, index=pd.RangeIndex(len(names)))


def _patients_in_paths(names: np.ndarray) -> np.ndarray | None:
    """CheXpert has no column of patients, but a folder for each: train/patient00001/study1/view1_frontal.jpg."""
    found = [_PATIENT.search(name.replace("\\", "/")) for name in names]
    patients = [match[1] for match in found if match]
    return np.array(patients, dtype=object) if len(patients) == len(names) else None


def _sides(column: np.ndarray, table: Table) -> np.ndarray:
    wrong = np.array([text.lower() not in SIDES for text in column])
    if wrong.any():
        problem = f"{wrong.sum()} rows are on no side that is known"
        where = f"{table.path}, line {table.lines[wrong][0]}"
        raise DataError(where, problem, "Write train, validation or test in every row, or leave the column out.")
    return np.array([SIDES[text.lower()] for text in column], dtype=object)
