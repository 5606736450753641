"""A table of labels or boxes: CSV, plain or gzip. Every cell stays the text that it is."""

import csv
import gzip
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

import numpy as np

from wardround.core.errors import DataError

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
