"""The bytes of a CSV file in chunks that end where a record ends, so that each can be read by itself.

Python's reader, which training uses, decides what a record is. It is slow, so it reads only what needs it. Where all
quotation marks are regular (around a whole cell, doubled within), counting them shows which line ends lie inside a
cell, and any reader finds the same cells. Every other chunk has its records with it.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import StringIO
from typing import Protocol

import numpy as np

from wardround.core.errors import DataError
from wardround.data.text_table import Numbered

SIZE = 1 << 20  # bytes of a chunk; some 20,000 rows of a dozen columns
MOST = 16  # chunks that one record may span
UTF8 = "Please save it as UTF-8 (in a spreadsheet: 'CSV UTF-8')."
_QUOTE = ord('"')


class Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True)
class CsvChunk:
    data: bytes = field(repr=False)
    line: int  # of the file, on which it begins
    records: list[Numbered] | None = field(default=None, repr=False)  # None: any reader finds the same


def csv_chunks(stream: Stream, data: bytes, line: int, separator: str, where: str, size: int) -> Iterator[CsvChunk]:
    """`data` was read from the stream already and begins on `line`. `where` is the file's name, for errors."""
    ended = False
    while data or not ended:
        # also where a long record already fills the chunk
        more = b"" if ended else stream.read(max(size - len(data), size // 4))
        ended = ended or not more
        if b"\0" in more:
            remedy = "Export it as CSV (in a spreadsheet: 'CSV UTF-8')."
            raise DataError(where, "not a text file (it has zero bytes)", remedy)
        data += more
        if len(data) < size and not ended:
            continue
        end, regular = _cut(data, separator, ended)
        own_records = None
        if not regular:
            text = decoded(data, line, where, ended)
            own_records, letters = records(text, separator, line, where, ended)
            end = len(text[:letters].encode())
        if not end and len(data) > MOST * size:
            problem = f"a line of more than {MOST * size >> 20} MB"
            raise DataError(f"{where}, line {line}", problem, "Look whether this is a table with one row per line.")
        if end:
            yield CsvChunk(data[:end], line, own_records)
        data, line = data[end:], line + lines_in(data[:end])


def records(text: str, separator: str, line: int, where: str, ended: bool) -> tuple[list[Numbered], int]:
    """The records, each with the line that it begins on, and how many letters they take. Blank lines are no records."""
    parsed = list(_read_records(text, separator, line, where, ended))
    return [(begins, record) for begins, record, _ in parsed if not _is_blank(record)], parsed[-1][2] if parsed else 0


def header(data: bytes, separator: str, where: str, ended: bool) -> tuple[Numbered | None, int]:
    """The first record, and how many bytes there are to its end. None: there is no whole one."""
    text = decoded(data, 1, where, ended)
    for begins, record, done in _read_records(text, separator, 1, where, ended):
        if not _is_blank(record):
            return (begins, record), len(text[:done].encode())
    return None, 0


def _read_records(
    text: str, separator: str, line: int, where: str, ended: bool
) -> Iterator[tuple[int, list[str], int]]:
    """Line, cells, and how many letters there are to the end of each record.

    Unless the file has ended, the last record may go on beyond the text: it is then left for later.
    """
    position = 0

    def lines() -> Iterator[str]:
        nonlocal position
        for text_line in StringIO(text, newline=""):
            position += len(text_line)
            yield text_line

    reader = csv.reader(lines(), delimiter=separator, strict=True, skipinitialspace=True)
    while True:
        begins = line + reader.line_num
        try:
            record = next(reader, None)
        except csv.Error:
            if position == len(text) and not ended:
                return
            problem = f"quotation marks do not match, or a cell is longer than {csv.field_size_limit():,} characters"
            remedy = 'Put a text that holds the separator in quotation marks, and write a quotation mark in it as "".'
            raise DataError(f"{where}, line {begins}", problem, remedy) from None  # its cause could carry a value
        if record is None or (position == len(text) and not ended):
            return
        yield begins, record, position


def _is_blank(record: list[str]) -> bool:
    return len(record) < 2 and not any(map(str.strip, record))


def decoded(data: bytes, line: int, where: str, ended: bool) -> str:
    """As UTF-8; the last letter may be cut in two unless the file has ended."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if not ended and len(data) - error.start < 4 and error.reason == "unexpected end of data":
            return data[: error.start].decode()
        at = line + lines_in(data[: error.start])
    raise DataError(f"{where}, line {at}", "not UTF-8", UTF8)


def lines_in(data: bytes) -> int:
    """Line ends: of Unix, of Windows, of old Macs."""
    returns = data.count(b"\r")
    return data.count(b"\n") + (returns - data.count(b"\r\n") if returns else 0)


def _cut(data: bytes, separator: str, ended: bool) -> tuple[int, bool]:
    """Where the last whole record ends, and whether the quotation marks before that are regular."""
    quotes = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == _QUOTE) if b'"' in data else np.zeros(0, np.int64)
    end = len(data) if ended else _last_end(data, quotes)
    if not len(quotes):
        return end, True
    if not ended and end == 0:
        return 0, False
    quotes = quotes[quotes < end]
    return end, len(quotes) % 2 == 0 and _is_regular(data[:end], quotes, separator)


def _last_end(data: bytes, quotes: np.ndarray) -> int:
    """After the last line end that lies outside quotation marks, if these are regular; 0 where there is none."""
    stop = len(data) - 1 if data.endswith(b"\r") else len(data)  # the other half of \r\n may come next
    while stop > 0:
        place = data.rfind(b"\n", 0, stop)
        place = data.rfind(b"\r", 0, stop) if place < 0 else place
        if place < 0:
            return 0
        before = int(np.searchsorted(quotes, place))
        if before % 2 == 0:
            return place + 1
        stop = int(quotes[before - 1])
    return 0


def _is_regular(data: bytes, quotes: np.ndarray, separator: str) -> bool:
    """The first of each pair begins a cell, the second ends it; or they are the two halves of a doubled one."""
    edges = np.frombuffer(f"{separator}\r\n".encode(), dtype=np.uint8)
    letters = np.frombuffer(b"\n" + data + b"\n", dtype=np.uint8)  # so that each mark has two neighbours
    opening, closing = quotes[0::2], quotes[1::2]
    doubled = closing[:-1] + 1 == opening[1:]
    opens = np.isin(letters[opening], edges)
    closes = np.isin(letters[closing + 2], edges)
    opens[1:] |= doubled
    closes[:-1] |= doubled
    return bool(opens.all() and closes.all())
