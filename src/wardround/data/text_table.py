"""One CSV file, every cell read as text first. What the texts mean is decided over all hospitals (`sources/csv`).

A column is kept as its distinct texts and a number per row, so that every later question (is it a number, a date,
a missing value?) is asked once per distinct text and not once per cell.
"""

import csv
import gzip
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from io import BytesIO, TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wardround.core.errors import DataError

# In any case, with or without spaces. "none" is not among them: to a clinician it is an answer ("allergies: none").
MISSING_WORDS = ("", "na", "n/a", "nan", "null", "?", "-", "unknown")
NO_TEXT = "not a text file, but perhaps an image, a spreadsheet or UTF-16"
SEPARATORS = {",": ",", ";": ";", "tab": "\t"}
Separator = Literal["auto", ",", ";", "tab"]

FIRST_LINE = 2  # with rows, below a header of one line
_ROWS_AT_A_TIME = 1024  # Python's texts take much memory; these become Arrow's while the processor still has them
_CLOCK = r"(?:[ T]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.[0-9]+)?)?(?:Z|[+-][0-9]{2}:?[0-9]{2})?)?"
_YEAR_FIRST = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})" + _CLOCK)
_DAY_FIRST = re.compile(r"([0-9]{1,2})([./])([0-9]{1,2})\2([0-9]{4})" + _CLOCK)


@dataclass(frozen=True)
class Cells:
    """One column of one file."""

    # Not in `repr`, so that no traceback shows them.
    texts: pa.LargeStringArray = field(repr=False)  # the distinct texts, without surrounding spaces
    codes: np.ndarray = field(repr=False)  # which of them each row holds; -1 = missing
    lines: np.ndarray = field(repr=False)  # line of the file on which each row begins
    commas: bool = False  # a comma may be the decimal sign, because it is not the separator
    in_memory: bool = False  # of a DataFrame; its lines are those of the CSV file that it would be

    @property
    def distinct(self) -> int:
        return len(self.texts)

    @property
    def present(self) -> int:
        return int(np.count_nonzero(self.codes >= 0))

    @cached_property
    def levels(self) -> list[str]:
        """`texts` for Python, which columns of numbers do without."""
        return list(self.texts.to_pylist())

    @cached_property
    def numbers(self) -> np.ndarray:
        """A number per level, NaN where it is not one. Decimal commas count where they explain more than points do."""
        readings = [self.texts]
        if self.commas:  # with a decimal comma, 1.234 could be one or a thousand: it is then not taken for a number
            dotted = pc.match_substring(self.texts, ".")
            readings.append(pc.if_else(dotted, "", pc.replace_substring(self.texts, ",", ".")))
        for reading in readings:
            if (in_bulk := _cast(reading)) is not None:
                return in_bulk
        each_parsed = [np.array(list(map(to_number, reading.to_pylist())), dtype=float) for reading in readings]
        return min(each_parsed, key=lambda parsed: int(np.isnan(parsed).sum()))

    @property
    def decimal_commas(self) -> bool:
        return self.commas and bool(pc.any(pc.match_substring(self.texts, ",")).as_py())

    @cached_property
    def years(self) -> np.ndarray:
        """Years since 2000-01-01 per level, NaN where it is not a date. A time zone is disregarded."""
        return np.array([_years(level) for level in self.levels], dtype=float)

    @cached_property
    def slashed_dates(self) -> list[tuple[int, int]]:
        """First and second number of every level such as 31/12/2020."""
        matches = map(_DAY_FIRST.fullmatch, self.levels)
        return [(int(match[1]), int(match[3])) for match in matches if match and match[2] == "/"]

    @property
    def day_and_month_unclear(self) -> bool:
        """Dates with slashes may be day/month or month/day: a number above 12, always in first place, settles it."""
        day_first = any(a > 12 for a, _ in self.slashed_dates) and all(b <= 12 for _, b in self.slashed_dates)
        return bool(self.slashed_dates) and not day_first

    def spread(self, values: Sequence[Any] | np.ndarray, missing: Any) -> np.ndarray:
        """A value per row from a value per level."""
        lookup: np.ndarray = np.empty(self.distinct + 1, dtype=float if isinstance(missing, float) else object)
        lookup[:-1], lookup[-1] = values, missing  # code -1 reads the last entry
        return np.asarray(lookup[self.codes])

    def count_and_first_line(self, chosen: np.ndarray) -> tuple[int, int]:
        """How many rows hold one of the chosen levels, and the first one's line: all that an error may tell."""
        rows = np.flatnonzero(np.append(chosen, False)[self.codes])
        return len(rows), int(self.lines[rows[0]])

    def count_and_place(self, chosen: np.ndarray) -> tuple[int, str]:
        """The same in words."""
        count, line = self.count_and_first_line(chosen)
        return count, self.places([line])

    def places(self, lines: Sequence[int], more: str = "") -> str:
        """How a message names lines of a file, or rows of a DataFrame; `more` says that there are others."""
        noun = f"{'row' if self.in_memory else 'line'}{'s' if len(lines) > 1 else ''}"
        numbers = [line - FIRST_LINE for line in lines] if self.in_memory else lines
        return f"{noun} {', '.join(map(str, numbers))}{more}{' (counted from 0)' if self.in_memory else ''}"

    def blank(self) -> "Cells":  # as many rows, all missing
        return replace(self, texts=self.texts.slice(0, 0), codes=np.full_like(self.codes, -1))

    def take(self, rows: np.ndarray) -> "Cells":
        codes = self.codes[rows]
        used = np.flatnonzero(np.bincount(codes[codes >= 0], minlength=self.distinct))
        renumbered = np.full(self.distinct + 1, -1)
        renumbered[used] = np.arange(len(used))
        return replace(self, texts=self.texts.take(pa.array(used)), codes=renumbered[codes], lines=self.lines[rows])


Table = dict[str, Cells]  # by column name
Numbered = tuple[int, list[str]]  # a record, and the line it begins on


def read_table(path: Path, separator: Separator, names_of: Callable[[list[str], str], list[str]]) -> Table:
    """The file's columns. `names_of` turns the header, and where it stands, into a name for each."""
    data = read_bytes(path)
    sign = most_frequent_separator(data) if separator == "auto" else SEPARATORS[separator]
    records = read_records(data, sign, path)
    line, header = next(records, (0, []))
    if not header:
        raise DataError(str(path), "the file is empty", "Export it again, with a first line that names the columns.")
    names = names_of(header, f"{path}, line {line}")
    columns, lines = columns_of(records, len(names), path)
    if not len(lines):
        raise DataError(str(path), "there is a header, but no row below it", "Export it again, with its rows.")
    return {name: encode_cells(column, lines, sign != ",") for name, column in zip(names, columns, strict=True)}


def looks_like_data(names: Iterable[str]) -> bool:
    """Whether a header may be a row of data. Its texts are then a patient's values, which no message may show."""
    return any(
        name.lower() in MISSING_WORDS or not math.isnan(to_number(name)) or not math.isnan(_years(name))
        for name in names
    )


def read_bytes(path: Path) -> bytes:
    """UTF-8 text, plain or gzip, without a byte order mark."""
    remedy = "Correct the path, which starts at the study file's folder, or ask for permission to read the file."
    try:
        if not path.is_file():  # before reading, because a pipe or a device may never end
            raise DataError(str(path), "this is a folder" if path.is_dir() else "there is no such file", remedy)
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise DataError(str(path), "cannot be decompressed", "Fetch the file anew: it is damaged.") from None
    except OSError as error:
        raise DataError(str(path), f"the file cannot be read ({error.strerror})", remedy) from None
    remedy = "Save it as UTF-8 (in a spreadsheet: 'CSV UTF-8')."
    if b"\0" in data:
        raise DataError(str(path), NO_TEXT, "Export the table as CSV (in a spreadsheet: 'CSV UTF-8').")
    data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        data.decode()
    except UnicodeDecodeError as error:
        line = len(re.findall(rb"\r\n|\r|\n", data[: error.start])) + 1
        raise DataError(f"{path}, line {line}", "not UTF-8", remedy) from None  # its cause would carry the file's bytes
    return data


def _lines(data: bytes) -> TextIOWrapper:
    return TextIOWrapper(BytesIO(data), encoding="utf-8", newline="")


def most_frequent_separator(data: bytes) -> str:
    """The rule for "auto": what occurs most often in the first line outside quotation marks; in doubt the comma."""
    header = next((line for line in _lines(data) if line.strip()), "")
    return max(SEPARATORS.values(), key=re.sub(r'"[^"]*"', "", header).count)


def read_records(data: bytes, separator: str, path: Path) -> Iterator[Numbered]:
    """Blank lines are no records."""
    reader = csv.reader(_lines(data), delimiter=separator, strict=True, skipinitialspace=True)
    while True:
        line = reader.line_num + 1
        try:
            record = next(reader, None)
        except csv.Error:
            problem = f"quotation marks do not match, or a cell is longer than {csv.field_size_limit():,} characters"
            remedy = 'Put a text that holds the separator in quotation marks, and write a quotation mark in it as "".'
            raise DataError(f"{path}, line {line}", problem, remedy) from None
        if record is None:
            return
        if len(record) > 1 or any(map(str.strip, record)):
            yield line, record


def checked_names(header: list[str], where: str) -> list[str]:
    names = [cell.strip() for cell in header]
    if "" in names:
        raise DataError(where, f"column {names.index('') + 1} has no name", "Name every column, or delete this one.")
    if repeated := [name for name in names if names.count(name) > 1]:
        problem = f"{names.count(repeated[0])} columns are called {repeated[0]!r}"
        problem = "this looks like a row of data, not of names" if looks_like_data(names) else problem
        raise DataError(where, problem, "Give every column a name of its own.")
    return names


def columns_of(records: Iterator[Numbered], width: int, path: Path) -> tuple[list[pa.ChunkedArray], np.ndarray]:
    """The texts of every column, and the line of every row."""
    chunks: list[list[pa.LargeStringArray]] = [[] for _ in range(width)]
    lines: list[int] = []
    while block := list(islice(records, _ROWS_AT_A_TIME)):
        for line, record in block:
            if len(record) != width:
                problem = f"{len(record)} fields, but the header names {width} columns"
                remedy = "Correct this line; a text that contains the separator needs quotation marks around it."
                raise DataError(f"{path}, line {line}", problem, remedy)
            lines.append(line)
        for parts, texts in zip(chunks, zip(*(record for _, record in block), strict=True), strict=True):
            parts.append(pa.array(texts, pa.large_string()))
    return [pa.chunked_array(parts, pa.large_string()) for parts in chunks], np.array(lines, np.int64)


def encode_cells(column: pa.ChunkedArray, lines: np.ndarray, commas: bool, in_memory: bool = False) -> Cells:
    texts = pc.utf8_trim_whitespace(column)
    missing = pc.is_in(pc.utf8_lower(texts), pa.array(MISSING_WORDS, pa.large_string()))
    encoded = pc.if_else(missing, None, texts).combine_chunks().dictionary_encode()
    return Cells(encoded.dictionary, encoded.indices.fill_null(-1).to_numpy(), lines, commas, in_memory)


def _cast(texts: pa.LargeStringArray) -> np.ndarray | None:
    """All texts as numbers at once, or None where one of them is not."""
    try:
        return np.asarray(pc.cast(texts, pa.float64()))
    except pa.ArrowInvalid:
        return None


def to_number(text: str) -> float:
    try:
        return float(text) if "_" not in text else math.nan  # Python reads 1_000 as a number; a hospital does not
    except ValueError:
        return math.nan


def _years(text: str) -> float:
    if match := _YEAR_FIRST.fullmatch(text):
        year, month, day, *clock = match.groups("0")
    elif match := _DAY_FIRST.fullmatch(text):
        day, _, month, year, *clock = match.groups("0")
    else:
        return math.nan
    try:
        hour, minute, second = map(int, clock)
        moment = datetime(int(year), int(month), int(day), hour, minute, second)
    except ValueError:  # such as the 30th of February
        return math.nan
    return (moment - datetime(2000, 1, 1)) / timedelta(days=365.25)
