"""Tables of labels: NIH's Data_Entry_2017, CheXpert's, or a hospital's own of either kind, as CSV, plain or gzip.

Findings stand in one column, separated by `|`, or have a column each with 1 (present), 0 (absent), -1 (uncertain) or
nothing, which CheXpert means as "not mentioned" and which counts as 0.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from wardround.core.errors import DataError
from wardround.core.notices import Notice
from wardround.data.imaging.finding_names import FINDINGS, NO_FINDING, chosen, plain, simple
from wardround.data.imaging.listing import Listing
from wardround.data.imaging.problems import Problem
from wardround.data.records import BOX_COLUMNS
from wardround.data.text_table import most_frequent_separator, read_bytes, read_records

SUFFIXES = (".csv", ".csv.gz")


@dataclass(frozen=True)
class Table:
    """Columns by place, because NIH's headers have commas inside their names and end with commas."""

    path: Path
    header: tuple[str, ...]
    cells: np.ndarray = field(repr=False)  # (rows, columns) of text; not in `repr`, so that no traceback shows it
    lines: np.ndarray = field(repr=False)  # line of the file on which each row begins

    def column(self, names: Iterable[str]) -> np.ndarray | None:
        """The first that is called like one of these: lower-case letters and digits only."""
        spellings = [simple(name) for name in self.header]
        for name in names:
            if spellings.count(name) > 1:
                problem = f"{spellings.count(name)} columns are called {self.header[spellings.index(name)]!r}"
                raise DataError(str(self.path), problem, "Give each column a name of its own.")
            if name in spellings:
                return np.asarray(self.cells[:, spellings.index(name)])
        return None

    def refuse(self, wrong: np.ndarray, problem: str, remedy: str) -> None:
        """Where any row is wrong. `problem` begins with their number."""
        if wrong.any():
            raise DataError(f"{self.path}, line {self.lines[wrong][0]}", f"{wrong.sum()} {problem}", remedy)


def is_table(path: Path) -> bool:
    return path.name.lower().endswith(SUFFIXES)


def read_table(path: Path) -> Table:
    """Rows may be shorter than the header, as in NIH's file of boxes, but hold nothing beyond it."""
    data = read_bytes(path)
    rows: list[list[str]] = []
    lines: list[int] = []
    for line, record in read_records(data, most_frequent_separator(data), path):
        cells = [cell.strip() for cell in record]
        width = len(rows[0]) if rows else len(cells)
        if any(cells[width:]):
            problem = f"{len(cells)} fields, but the header names {width} columns"
            remedy = "Correct this line; a text that contains the separator needs quotation marks around it."
            raise DataError(f"{path}, line {line}", problem, remedy)
        if any(cells):
            rows.append(cells[:width] + [""] * (width - len(cells)))
            lines.append(line)
    if len(rows) < 2:
        raise DataError(str(path), "there is no row below a header", "Export it again, with its rows.")
    return Table(path, tuple(rows[0]), np.array(rows[1:], dtype=object), np.array(lines[1:]))


IMAGE = ("imageindex", "image", "imagename", "imagepath", "imageid", "file", "filename", "path", "dicom", "dicomfile")
ONE_CLASS = ("label", "class", "classname", "diagnosis", "dx")  # where a row is of one class
LISTED = ("findinglabels", "findinglabel", "findings")
ATTRIBUTES = {
    "patient": ("patientid", "patient"),
    "age": ("patientage", "age"),
    "sex": ("patientgender", "patientsex", "sex", "gender"),
    "view": ("viewposition", "view", "appa"),
    "hospital": ("hospital",),
    "split": ("side", "split"),
}
LATERAL = ("frontallateral",)  # CheXpert's other column for the view
OTHER = {*IMAGE, *LISTED, *(name for names in ATTRIBUTES.values() for name in names), *LATERAL}
SPLITS = {"train": "train", "val": "validation", "valid": "validation", "validation": "validation", "test": "test"}
MARKS = {"1": 1, "1.0": 1, "0": 0, "0.0": 0, "-1": -1, "-1.0": -1, "": 0}
_PATIENT = re.compile(r"(?:^|/)(patient[^/]+)/", re.IGNORECASE)


def read_listing(path: Path, findings: tuple[str, ...], any_labels: bool = False) -> Listing:
    """With `any_labels` a column may name one class of each image, and `findings` may be empty: all that are there."""
    return listing_of(read_table(path), findings, any_labels)


def listing_of(table: Table, findings: tuple[str, ...], any_labels: bool = False) -> Listing:
    path = table.path
    names = table.column(IMAGE)
    if names is None:
        remedy = "Call the column `image`; it holds each file's name, or its path from the folder of images on."
        raise DataError(str(path), "no column says which image a row is of", remedy)
    listed = table.column(LISTED)
    problems: tuple[Problem, ...] = ()
    if any_labels and listed is None and (named := table.column(ONE_CLASS)) is not None:
        target, classes = _one_class(table, named, findings)
    elif listed is not None:
        classes = _findings_in(listed, findings, path)
        target, problems = _from_lists(names, listed, classes)
    else:
        columns = [name for name in table.header if name and simple(name) not in OTHER]
        if not findings and not columns:
            remedy = "Give it a column `label` with the class of each image, or a column of 1 and 0 for each finding."
            raise DataError(str(path), "no column says what is in the images", remedy)
        classes = chosen(findings or tuple(columns), columns, path.name)
        target = _from_columns(table, classes)
    return Listing(names, target, classes, _attributes(table, names), problems)


def _findings_in(listed: np.ndarray, findings: tuple[str, ...], path: Path) -> tuple[str, ...]:
    """NIH's findings may be chosen even where no row has them; others must occur."""
    words = {word.strip() for text in np.unique(listed) for word in text.split("|")}
    own = sorted(word for word in words if plain(word) not in ("", NO_FINDING))
    return chosen(findings or tuple(own), (*own, *FINDINGS), path.name, FINDINGS)


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


def _one_class(table: Table, named: np.ndarray, given: tuple[str, ...]) -> tuple[np.ndarray, tuple[str, ...]]:
    """The study gives the order of the classes; else they stand in that of their names."""
    classes = given or tuple(sorted(set(named.tolist()) - {""}))
    places = {name: place for place, name in enumerate(classes)}
    remedy = "Name one class in every row; `classes` in [data] lists all that there are."
    table.refuse(np.array([name not in places for name in named]), "rows name no class that is known", remedy)
    if len(classes) < 2:
        raise DataError(str(table.path), "all images are of one class", "Give images of two classes at least.")
    return np.array([places[name] for name in named], dtype=np.int64), classes


def _from_columns(table: Table, classes: tuple[str, ...]) -> np.ndarray:
    target = np.empty((len(table.cells), len(classes)), dtype=np.int64)
    for place, name in enumerate(classes):
        texts, which = np.unique(table.cells[:, table.header.index(name)], return_inverse=True)
        wrong = np.array([text not in MARKS for text in texts])[which]
        remedy = "Correct them, or leave this column out of `findings`."
        table.refuse(wrong, f"cells of {name!r} are neither 1, 0, -1 nor blank", remedy)
        target[:, place] = np.array([MARKS[text] for text in texts])[which]
    return target


def _attributes(table: Table, names: np.ndarray) -> pd.DataFrame:
    columns = {name: table.column(spellings) for name, spellings in ATTRIBUTES.items()}
    columns["view"] = views(table)
    if columns["patient"] is None:
        columns["patient"] = _patients_in_paths(names)
    if columns["split"] is not None:
        spelt = [text.lower() for text in columns["split"]]
        wrong = np.array([text not in SPLITS for text in spelt])
        remedy = "Write train, validation or test in every row, or leave the column out."
        table.refuse(wrong, "rows are in no part of the split that is known", remedy)
        columns["split"] = np.array([SPLITS[text] for text in spelt], dtype=object)
    if columns["hospital"] is not None and (blank := int((columns["hospital"] == "").sum())):
        raise DataError(str(table.path), f"{blank} rows have no hospital", "Fill the column, or leave it out.")
    present = {name: pd.Series(column, dtype=object) for name, column in columns.items() if column is not None}
    return pd.DataFrame(present, index=pd.RangeIndex(len(names)))


def views(table: Table) -> np.ndarray | None:
    """CheXpert has a second column for the view: a lateral image has nothing under AP/PA."""
    frontal, lateral = table.column(ATTRIBUTES["view"]), table.column(LATERAL)
    if lateral is None:
        return frontal
    is_lateral = np.array([text.lower() == "lateral" for text in lateral])
    return np.where(is_lateral, "LATERAL", "" if frontal is None else frontal).astype(object)


def _patients_in_paths(names: np.ndarray) -> np.ndarray | None:
    """CheXpert has no column of patients, but a folder for each: train/patient00001/study1/view1_frontal.jpg."""
    matches = [_PATIENT.search(name.replace("\\", "/")) for name in names]
    return np.array([match[1] for match in matches if match], dtype=object) if all(matches) else None


# NIH's file of boxes, drawn by radiologists on the images of 1024 x 1024 pixels
IMAGE_SIZE = 1024
BOX_CELLS = 6  # image, finding, x, y, width, height; the header says so in names with commas inside them


def read_boxes(path: Path, names: np.ndarray, classes: tuple[str, ...]) -> tuple[pd.DataFrame, list[Notice]]:
    """Boxes of these images and findings, in parts of width and height, and a notice of the others."""
    table = read_table(path)
    if len(table.header) < BOX_CELLS:
        problem = f"{len(table.header)} columns instead of {BOX_CELLS}"
        raise DataError(str(path), problem, "Give NIH's file: image, finding, x, y, width and height of each box.")
    numbers = _box_numbers(table)
    places = {plain(name): place for place, name in enumerate(classes)}
    rows = {name.rpartition("/")[2]: row for row, name in enumerate(names.tolist())}
    row = np.array([rows.get(name, -1) for name in table.cells[:, 0]])
    spelt = [plain(text) for text in table.cells[:, 1]]
    finding = np.array([places.get(text, -1) for text in spelt])
    known = {*places, *map(plain, FINDINGS)}
    strange = sum(text not in known for text in spelt)
    used = (row >= 0) & (finding >= 0)
    boxes = pd.DataFrame(numbers[used] / IMAGE_SIZE, columns=list(BOX_COLUMNS[2:]))
    boxes.insert(0, "row", row[used])
    boxes.insert(1, "finding", finding[used])
    counts = {
        "boxes": int(used.sum()),
        "of": len(used),
        "elsewhere": int((row < 0).sum()),
        "left_out": int(((row >= 0) & (finding < 0)).sum()),
        "unknown": strange,
    }
    return boxes, [Notice("boxes-used", "info", counts=counts)]


def _box_numbers(table: Table) -> np.ndarray:
    numbers = pd.DataFrame(table.cells[:, 2:BOX_CELLS]).apply(pd.to_numeric, errors="coerce").to_numpy(float)
    corner, extent = numbers[:, :2], numbers[:, 2:]
    # half a pixel is forgiven for rounding
    inside = (corner >= 0).all(axis=1) & (corner + extent <= IMAGE_SIZE + 0.5).all(axis=1) & (extent > 0).all(axis=1)
    remedy = "Correct them: x, y, width and height in pixels of NIH's images."
    table.refuse(~inside, f"boxes are not inside an image of {IMAGE_SIZE} x {IMAGE_SIZE} pixels", remedy)
    return np.hstack([corner, np.minimum(extent, IMAGE_SIZE - corner)])
