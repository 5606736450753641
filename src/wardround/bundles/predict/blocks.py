"""The rows to be predicted, block by block: CSV text (also compressed, also from standard input) or Parquet.

Only the columns that are needed are read. Errors name the file, the line and the column, and never a value; the
exceptions of Arrow are not passed on, because their messages show what they could not read.

A CSV file is cut into chunks that end where a record ends, so that each can be read by itself. Python's reader, which
training uses, decides what a record is. It is slow, so it reads only what needs it. Where all quotation marks are
regular (around a whole cell, doubled within), counting them shows which line ends lie inside a cell, and any reader
finds the same cells. Every other chunk has its records with it.
"""

import csv
import gzip
import stat
import sys
import zlib
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from io import StringIO
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from wardround.core.errors import DataError, as_path
from wardround.data.text_table import (
    NO_TEXT,
    Numbered,
    checked_names,
    columns_of,
    looks_like_data,
    most_frequent_separator,
)

STDIN = "-"
SIZE = 1 << 20  # bytes of a chunk; some 20,000 rows of a dozen columns
MOST = 16  # chunks that one record may span
UTF8 = "Please save it as UTF-8 (in a spreadsheet: 'CSV UTF-8')."
QUOTE = ord('"')
ROWS = 32_768  # of a Parquet file at a time
PATH = "Correct the path, or ask for permission to read the file."
PARQUET, GZIP = b"PAR1", b"\x1f\x8b"  # first bytes
AGAIN = "Export it again, with a first line that names the columns."


@dataclass(frozen=True)
class Block:
    """Consecutive rows of a source."""

    rows: int
    columns: Mapping[str, pa.Array] = field(repr=False)  # by header
    place: Callable[[int], str]  # where a row stands in the source, for messages
    commas: bool = False  # a comma may be the decimal sign, because it is not the separator
    images: np.ndarray | None = field(default=None, repr=False)  # bytes (rows, 1, height, width), or signals
    unreadable: Mapping[int, str] = field(default_factory=dict)  # by row: why its image could not be read
    # by header: rows that came without this column, which is not the same as a gap in it
    without_column: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)


BlockReader = Callable[[], Block]  # reads when it is called, so that threads can read blocks in parallel


@dataclass(frozen=True)
class RowSource:
    """An open source that has the required columns. `blocks` can be iterated once."""

    name: str
    keep: Mapping[str, pa.DataType]  # types of the columns that are copied into the output
    blocks: Iterator[BlockReader]
    share: Callable[[], float | None]  # of the source that was read so far, where that is known


@dataclass(frozen=True)
class RequiredColumns:
    """Columns of a file, by their names in its first line."""

    needed: Sequence[str]
    optional: Sequence[str] = ()
    keep: Sequence[str] = ()
    parties: Sequence[Sequence[str]] = ()  # columns of each party that may be missing: all of them, or none

    def of_parties(self, names: Container[str]) -> list[str]:
        """All columns of every party that has any of its columns among the names."""
        return [name for party in self.parties if any(own in names for own in party) for name in party]

    def locate(self, names: Sequence[str], where: str) -> dict[str, int]:
        """The position of each column; or one error that names all that are missing."""
        places = {name: place for place, name in enumerate(names)}
        required = list(dict.fromkeys([*self.needed, *self.of_parties(places), *self.keep]))
        missing = [name for name in required if name not in places]
        if missing:
            nouns = "there is no column" if len(missing) == 1 else "there are no columns"
            remedy = f"Needed: {', '.join(required)}. Other columns may be there too, in any order."
            hint = _hint(names, required, missing)
            raise DataError(where, f"{nouns} {', '.join(map(repr, missing))}", hint + remedy)
        return {name: places[name] for name in dict.fromkeys([*required, *self.optional]) if name in places}


def _hint(names: Sequence[str], required: Sequence[str], missing: Sequence[str]) -> str:
    if looks_like_data(names):  # then its "names" are values
        return "Its first line holds numbers or dates: add a line above it that names the columns. "
    spare = {name.casefold(): name for name in names if name not in required}
    matches = {name: get_close_matches(name.casefold(), spare, 1, cutoff=0.6) for name in missing}
    guesses = [f"{spare[close[0]]!r} may be {name!r}" for name, close in matches.items() if close]
    return f"Here {', '.join(guesses)}; if so, rename. " if guesses else ""


@contextmanager
def open_rows(source: str | Path, required: RequiredColumns, size: int = SIZE) -> Iterator[RowSource]:
    """`-` is standard input. `size` is the bytes of text in a block, and the longest header."""
    if isinstance(source, str) and source == STDIN:
        if sys.stdin is None or sys.stdin.isatty():
            remedy = "Name a file, or send rows: `wardround predict BUNDLE - --out FILE < rows.csv`."
            raise DataError("standard input", "nothing is sent to it: it is a terminal", remedy)
        yield _open_text(sys.stdin.buffer, "standard input", required, lambda: None, size)
        return
    path = as_path(source, "source", DataError)
    with _file(path) as file:
        length = path.stat().st_size

        def share() -> float | None:
            return min(file.tell() / length, 1.0) if length and not file.closed else None

        magic = file.read(4)
        file.seek(0)
        if magic == PARQUET:
            yield _open_parquet(file, path, required, share)
        elif path.suffix == ".parquet":
            raise DataError(str(path), "not a Parquet file", "Export it again, or name a CSV file as .csv.")
        else:
            yield _open_text(file, str(path), required, share, size)


@contextmanager
def _file(path: Path) -> Iterator[IO[bytes]]:
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):  # checked first, because opening a pipe or a device may never end
            problem = "this is a folder" if stat.S_ISDIR(mode) else "not a file; a pipe can be sent to standard input"
            raise DataError(str(path), problem, PATH)
        file = path.open("rb")
    except FileNotFoundError:
        raise DataError(str(path), "there is no such file", PATH) from None
    except OSError as error:
        raise DataError(str(path), f"the file cannot be read ({error.strerror})", PATH) from None
    with file:
        yield file


@dataclass
class _Bytes:
    """A stream whose failures are errors for users."""

    file: IO[bytes]
    where: str

    def read(self, size: int, /) -> bytes:
        try:
            return self.file.read(size) or b""
        except (EOFError, zlib.error, gzip.BadGzipFile):
            remedy = "Copy or compress it again."
            raise DataError(self.where, "the compressed file is damaged or cut off", remedy) from None
        except OSError as error:
            raise DataError(self.where, f"cannot be read ({error.strerror})", PATH) from None


@dataclass
class _Rest:
    """A file whose first bytes were read already to see what it is."""

    first: bytes
    file: IO[bytes]

    def read(self, size: int = -1, /) -> bytes:
        if self.first:
            stop = len(self.first) if size < 0 else size
            first, self.first = self.first[:stop], self.first[stop:]
            return first
        return self.file.read(size)


def _open_text(
    file: IO[bytes], where: str, required: RequiredColumns, share: Callable[[], float | None], size: int
) -> RowSource:
    magic = _Bytes(file, where).read(4)
    plain = cast(IO[bytes], _Rest(magic, file))  # standard input cannot go back
    if magic == PARQUET:
        raise DataError(where, "Parquet is read from its end", "Name the file instead of sending it.")
    stream = _Bytes(cast(IO[bytes], gzip.GzipFile(fileobj=plain)) if magic[:2] == GZIP else plain, where)
    data, ended = b"", False
    while len(data) < size and not ended:
        more = stream.read(size - len(data))
        data, ended = data + more, not more
    _refuse_binary(data, where)
    data = data.removeprefix(b"\xef\xbb\xbf")
    start = len(data) - len(data.lstrip())
    # as far as the rule for separators looks; bytes that are not UTF-8 are refused with the header
    separator = most_frequent_separator(data[: start + 65_536].decode(errors="replace").encode())
    first, end = header(data, separator, where, ended)
    if first is None:
        problem = "the file is empty" if ended else f"the first line is longer than {size:,} bytes"
        raise DataError(where, problem, AGAIN)
    names = checked_names(first[1], f"{where}, line {first[0]}")
    text = _Text(where, separator, len(names), required.locate(names, where))
    chunks = csv_chunks(stream, data[end:], 1 + lines_in(data[:end]), separator, where, size)
    readers = (partial(text.block, chunk) for chunk in chunks)
    return RowSource(where, dict.fromkeys(required.keep, pa.string()), readers, share)


def _refuse_binary(data: bytes, where: str) -> None:
    if b"\0" in data:
        raise DataError(where, NO_TEXT, "Export the table as CSV (in a spreadsheet: 'CSV UTF-8').")


@dataclass(frozen=True)
class CsvChunk:
    data: bytes = field(repr=False)
    line: int  # of the file, on which it begins
    records: list[Numbered] | None = field(default=None, repr=False)  # None: any reader finds the same


@dataclass(frozen=True)
class _Text:
    where: str
    separator: str
    width: int
    places: Mapping[str, int]

    def block(self, chunk: CsvChunk) -> Block:
        if not chunk.data.isascii():
            decoded(chunk.data, chunk.line, self.where, True)
        columns = self._in_bulk(chunk) if chunk.records is None and self.width > 1 else None
        if columns is None:
            texts, _ = columns_of(iter(self._records(chunk)), self.width, Path(self.where))
            columns = [_whole(texts[place]) for place in self.places.values()]
        return Block(
            len(columns[0]),
            dict(zip(self.places, columns, strict=True)),
            lambda row: f"{self.where}, line {self._records(chunk)[row][0]}",
            self.separator != ",",
        )

    def _records(self, chunk: CsvChunk) -> list[tuple[int, list[str]]]:
        if chunk.records is not None:
            return chunk.records
        return records(chunk.data.decode(), self.separator, chunk.line, self.where, True)[0]

    def _in_bulk(self, chunk: CsvChunk) -> list[pa.Array] | None:
        """Arrow's reader. None where it fails: Python's reader then says why, and on which line."""
        names = [str(number) for number in range(self.width)]
        columns = [names[place] for place in self.places.values()]
        try:
            table = pa.csv.read_csv(
                pa.BufferReader(chunk.data),
                pa.csv.ReadOptions(use_threads=False, block_size=len(chunk.data) + 1, column_names=names),
                pa.csv.ParseOptions(
                    delimiter=self.separator,
                    newlines_in_values=b'"' in chunk.data,
                    invalid_row_handler=lambda row: "skip" if not row.text.strip() else "error",
                ),
                pa.csv.ConvertOptions(
                    check_utf8=False,  # it was checked above
                    column_types=dict.fromkeys(columns, pa.string()),
                    include_columns=list(dict.fromkeys(columns)),
                ),
            )
        except pa.ArrowException:
            return None
        return [_whole(table.column(name)) for name in columns]


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _open_parquet(
    file: IO[bytes], path: Path, required: RequiredColumns, share: Callable[[], float | None]
) -> RowSource:
    def damaged() -> DataError:
        return DataError(str(path), "the Parquet file is damaged or of a kind that is not known", "Export it again.")

    try:
        parquet = pq.ParquetFile(file, pre_buffer=False, buffer_size=1 << 16)
        schema = parquet.schema_arrow
    except (pa.ArrowException, OSError):
        raise damaged() from None
    places = required.locate(checked_names(schema.names, str(path)), str(path))
    original = {name: schema.names[place] for name, place in places.items()}

    def blocks() -> Iterator[BlockReader]:
        batches: Iterator[Any] = parquet.iter_batches(ROWS, columns=list(dict.fromkeys(original.values())))
        first = 0
        try:
            for batch in batches:
                columns = {name: batch.column(header) for name, header in original.items()}
                yield partial(Block, len(batch), columns, partial(_parquet_row, path, first))
                first += len(batch)
        except (pa.ArrowException, OSError):
            raise damaged() from None

    return RowSource(str(path), {name: schema.field(original[name]).type for name in required.keep}, blocks(), share)


def _parquet_row(path: Path, first: int, row: int) -> str:
    return f"{path}, row {first + row} (counted from 0)"


def csv_chunks(stream: _Bytes, data: bytes, line: int, separator: str, where: str, size: int) -> Iterator[CsvChunk]:
    """`data` was read from the stream already and begins on `line`. `where` is the file's name, for errors."""
    ended = False
    while data or not ended:
        # also where a long record already fills the chunk
        more = b"" if ended else stream.read(max(size - len(data), size // 4))
        ended = ended or not more
        _refuse_binary(more, where)
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
    quotes = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == QUOTE) if b'"' in data else np.zeros(0, np.int64)
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
