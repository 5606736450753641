"""The rows to be predicted, block by block: CSV text (also compressed, also from standard input) or Parquet.

Only the columns that are asked for are read. Errors name the file, the line and the column, and never a value; the
exceptions of Arrow are not passed on, because their messages show what they could not read.
"""

import gzip
import stat
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from wardround.bundles.predict.csv_chunks import SIZE, Piece, decoded, header, lines_in, pieces, records
from wardround.core.errors import DataError, as_path
from wardround.data.text_table import checked_names, columns_of, looks_like_data, most_frequent_separator

STDIN = "-"
ROWS = 32_768  # of a Parquet file at a time
PATH = "Correct the path, or ask for permission to read the file."
AGAIN = "Export it again, with a first line that names the columns."


@dataclass(frozen=True)
class Block:
    """Some rows, one after another."""

    rows: int
    columns: Mapping[str, pa.Array] = field(repr=False)  # by header
    place: Callable[[int], str]  # where one of its rows stands, in words
    commas: bool = False  # a comma may be the decimal sign, because it is not the separator
    images: np.ndarray | None = field(default=None, repr=False)  # bytes (rows, 1, height, width)
    unreadable: Mapping[int, str] = field(default_factory=dict)  # by row: why nothing could be read of its image
    # by header: rows that were given without this column, which is not the same as a gap in it
    ungiven: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)


Unread = Callable[[], Block]  # reads when it is called, so that several blocks can be read side by side


@dataclass(frozen=True)
class Opened:
    """A source whose columns are there. `blocks` can be gone through once."""

    name: str
    kept: Mapping[str, pa.DataType]  # types of the columns that are kept beside the predictions
    blocks: Iterator[Unread]
    share: Callable[[], float | None]  # of the source that was read so far, where that is known


@dataclass(frozen=True)
class Wanted:
    """Columns of a file, by their names in its first line."""

    needed: Sequence[str]
    optional: Sequence[str] = ()
    keep: Sequence[str] = ()
    together: Sequence[Sequence[str]] = ()  # of parties that may be absent: all columns of one, or none of them

    def find(self, names: Sequence[str], where: str) -> dict[str, int]:
        """The place of each; or one error that names all that are needed and not there."""
        places = {name: place for place, name in enumerate(names)}
        there = [name for party in self.together if any(one in places for one in party) for name in party]
        wanted = list(dict.fromkeys([*self.needed, *there, *self.keep]))
        missing = [name for name in wanted if name not in places]
        if not missing:
            return {name: places[name] for name in dict.fromkeys([*wanted, *self.optional]) if name in places}
        remedy = f"Needed: {', '.join(wanted)}. Other columns may be there too, in any order."
        if looks_like_data(names):  # then its "names" are values
            remedy = f"Its first line holds numbers or dates: add a line above it that names the columns. {remedy}"
        else:
            spare = {name.casefold(): name for name in names if name not in wanted}
            near = {name: get_close_matches(name.casefold(), spare, 1, cutoff=0.6) for name in missing}
            guesses = [f"{spare[found[0]]!r} may be {name!r}" for name, found in near.items() if found]
            remedy = f"Here {', '.join(guesses)}; if so, rename. {remedy}" if guesses else remedy
        lacking = "there is no column" if len(missing) == 1 else "there are no columns"
        raise DataError(where, f"{lacking} {', '.join(map(repr, missing))}", remedy)


@contextmanager
def opened(source: str | Path, wanted: Wanted, size: int = SIZE) -> Iterator[Opened]:
    """`-` is standard input. `size` is how many bytes of text a block has, or the longest header."""
    if isinstance(source, str) and source == STDIN:
        if sys.stdin is None or sys.stdin.isatty():
            remedy = "Name a file, or send rows: `wardround predict BUNDLE - --out FILE < rows.csv`."
            raise DataError("standard input", "nothing is sent to it: it is a terminal", remedy)
        yield _open_text(sys.stdin.buffer, "standard input", wanted, lambda: None, size)
        return
    path = as_path(source, "source", DataError)
    with _file(path) as file:
        length = path.stat().st_size

        def share() -> float | None:
            return min(file.tell() / length, 1.0) if length and not file.closed else None

        if _starts_with(file, b"PAR1"):
            yield _open_parquet(file, path, wanted, share)
        elif path.suffix == ".parquet":
            raise DataError(str(path), "not a Parquet file", "Export it again, or name a CSV file as .csv.")
        else:
            yield _open_text(file, str(path), wanted, share, size)


@contextmanager
def _file(path: Path) -> Iterator[IO[bytes]]:
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):  # asked first, because opening a pipe or a device may never end
            problem = "this is a folder" if stat.S_ISDIR(mode) else "not a file; a pipe can be sent to standard input"
            raise DataError(str(path), problem, PATH)
        file = path.open("rb")
    except FileNotFoundError:
        raise DataError(str(path), "there is no such file", PATH) from None
    except OSError as error:
        raise DataError(str(path), f"the file cannot be read ({error.strerror})", PATH) from None
    with file:
        yield file


def _starts_with(file: IO[bytes], sign: bytes) -> bool:
    found = file.read(len(sign))
    file.seek(0)
    return found == sign


@dataclass
class _Bytes:
    """A stream that tells its troubles as errors for users."""

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


class _Rest:
    """A file whose first bytes were read already to see what it is."""

    def __init__(self, first: bytes, file: IO[bytes]) -> None:
        self.first, self.file = first, file

    def read(self, size: int = -1, /) -> bytes:
        if self.first:
            given, self.first = (self.first, b"") if size < 0 else (self.first[:size], self.first[size:])
            return given
        return self.file.read(size)


def _open_text(file: IO[bytes], where: str, wanted: Wanted, share: Callable[[], float | None], size: int) -> Opened:
    sign = _Bytes(file, where).read(4)
    plain = cast(IO[bytes], _Rest(sign, file))  # standard input cannot go back
    if sign == b"PAR1":
        raise DataError(where, "Parquet is read from its end", "Name the file instead of sending it.")
    packed = sign[:2] == b"\x1f\x8b"
    stream = _Bytes(cast(IO[bytes], gzip.GzipFile(fileobj=plain)) if packed else plain, where)
    data, ended = b"", False
    while len(data) < size and not ended:
        more = stream.read(size - len(data))
        data, ended = data + more, not more
    if b"\0" in data:
        remedy = "Export it as CSV (in a spreadsheet: 'CSV UTF-8')."
        raise DataError(where, "not a text file (it has zero bytes)", remedy)
    data = data.removeprefix(b"\xef\xbb\xbf")
    separator = most_frequent_separator(_first_lines(data))
    first, end = header(data, separator, where, ended)
    if first is None:
        problem = "the file is empty" if ended else f"the first line is longer than {size:,} bytes"
        raise DataError(where, problem, AGAIN)
    names = checked_names(first[1], f"{where}, line {first[0]}")
    places = wanted.find(names, where)
    cut = pieces(stream, data[end:], 1 + lines_in(data[:end]), separator, where, size)
    text = _Text(where, separator, len(names), places)
    return Opened(where, dict.fromkeys(wanted.keep, pa.string()), (text.unread(piece) for piece in cut), share)


def _first_lines(data: bytes) -> bytes:
    """As far as the separator's rule looks. What is not UTF-8 is told when the header is read."""
    start = len(data) - len(data.lstrip())
    return data[: start + 65_536].decode(errors="replace").encode()


@dataclass(frozen=True)
class _Text:
    where: str
    separator: str
    width: int
    places: Mapping[str, int]

    def unread(self, piece: Piece) -> Unread:
        return lambda: self.block(piece)

    def block(self, piece: Piece) -> Block:
        if not piece.data.isascii():
            decoded(piece.data, piece.line, self.where, True)
        columns = self._in_bulk(piece) if piece.records is None and self.width > 1 else None
        if columns is None:
            texts, _ = columns_of(iter(self._records(piece)), self.width, Path(self.where))
            columns = [_whole(texts[place]) for place in self.places.values()]
        by_name = dict(zip(self.places, columns, strict=True))
        return Block(
            len(columns[0]),
            by_name,
            lambda row: f"{self.where}, line {self._records(piece)[row][0]}",
            self.separator != ",",
        )

    def _records(self, piece: Piece) -> list[tuple[int, list[str]]]:
        if piece.records is not None:
            return piece.records
        return records(piece.data.decode(), self.separator, piece.line, self.where, True)[0]

    def _in_bulk(self, piece: Piece) -> list[pa.Array] | None:
        """Arrow's reader. None where it finds something amiss: Python's reader then says what, and on which line."""
        names = [str(number) for number in range(self.width)]
        wanted = [names[place] for place in self.places.values()]
        try:
            table = pa.csv.read_csv(
                pa.BufferReader(piece.data),
                pa.csv.ReadOptions(use_threads=False, block_size=len(piece.data) + 1, column_names=names),
                pa.csv.ParseOptions(
                    delimiter=self.separator,
                    newlines_in_values=b'"' in piece.data,
                    invalid_row_handler=lambda row: "skip" if not row.text.strip() else "error",
                ),
                pa.csv.ConvertOptions(
                    check_utf8=False,  # it was checked above
                    column_types=dict.fromkeys(wanted, pa.string()),
                    include_columns=list(dict.fromkeys(wanted)),
                ),
            )
        except pa.ArrowException:
            return None
        return [_whole(table.column(name)) for name in wanted]


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _open_parquet(file: IO[bytes], path: Path, wanted: Wanted, share: Callable[[], float | None]) -> Opened:
    def damaged() -> DataError:
        return DataError(str(path), "the Parquet file is damaged or of a kind that is not known", "Export it again.")

    try:
        parquet = pq.ParquetFile(file, pre_buffer=False, buffer_size=1 << 16)
        schema = parquet.schema_arrow
    except (pa.ArrowException, OSError):
        raise damaged() from None
    names = checked_names(schema.names, str(path))
    places = wanted.find(names, str(path))
    original = {name: schema.names[place] for name, place in places.items()}

    def blocks() -> Iterator[Unread]:
        batches: Iterator[Any] = parquet.iter_batches(ROWS, columns=list(dict.fromkeys(original.values())))
        first = 0
        while True:
            try:
                batch = next(batches, None)
            except (pa.ArrowException, OSError):
                raise damaged() from None
            if batch is None:
                return
            yield _unread_batch(batch, original, path, first)
            first += len(batch)

    return Opened(str(path), {name: schema.field(original[name]).type for name in wanted.keep}, blocks(), share)


def _unread_batch(batch: Any, original: Mapping[str, str], path: Path, first: int) -> Unread:
    columns = {name: batch.column(written) for name, written in original.items()}
    return lambda: Block(len(batch), columns, lambda row: f"{path}, row {first + row} (counted from 0)")


def as_array(values: Any, name: str, where: Callable[[int], str]) -> pa.Array:
    """A column of Python's or pandas' values. Where numbers and texts are mixed, numbers become texts without loss."""
    try:
        made = pa.array(values, from_pandas=True)
    except (pa.ArrowException, OverflowError, ValueError):
        texts = [_as_text(value) for value in values]
        broken = next((row for row, text in enumerate(texts) if not _is_unicode(text)), None)
        if broken is not None:
            problem = f"the text in {name!r} has half of a letter in it, which cannot be written as UTF-8"
            raise DataError(where(broken), problem, "Read the rows again with their right encoding.") from None
        made = pa.array(texts, pa.string())
    return made.combine_chunks() if isinstance(made, pa.ChunkedArray) else made


def type_words(kind: pa.DataType) -> str:
    """For messages. The type of a nested column names its fields, which may be a patient's words."""
    return "a nested type" if pa.types.is_nested(kind) else f"type {kind}"


def _as_text(value: Any) -> str | None:
    if value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value)):
        return None
    return value if isinstance(value, str) else repr(float(value)) if isinstance(value, float) else str(value)


def _is_unicode(text: str | None) -> bool:
    """Not so with a lone surrogate, which programs leave that decode carelessly."""
    return text is None or not any("\ud800" <= letter <= "\udfff" for letter in text)
