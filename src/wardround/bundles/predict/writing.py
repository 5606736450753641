"""Predictions as CSV or Parquet, under another name until the last row is written; or as CSV on standard output."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wardround.bundles.predict.blocks import STDIN
from wardround.core.atomic_files import own_partial_path, remove_leftovers
from wardround.core.errors import BundleError, DataError, StudyError, as_path
from wardround.data.frames import type_name

STDOUT = STDIN
ELSEWHERE = "Name a .csv or .parquet file in a folder that you may write to, or - for standard output."
_NEEDS_QUOTES = '[",\r\n]'  # what may not stand in a cell of CSV without quotation marks


@dataclass(frozen=True)
class OutputColumns:
    keep: tuple[str, ...]  # copied from the source
    columns: Mapping[str, pa.DataType]  # those of the answer, after the row's number, in their order

    def schema(self, keep: Mapping[str, pa.DataType]) -> pa.Schema:
        own = {name: keep[name] for name in self.keep}
        return pa.schema([("row", pa.int64()), *own.items(), *self.columns.items()])


class Output(Protocol):
    """`formatted` may run in several threads; `write` takes what it returned, in the order of the rows."""

    def formatted(self, batch: pa.RecordBatch) -> Any: ...
    def write(self, content: Any) -> None: ...


def refuse_output(out: str | Path, source: str | Path, layout: OutputColumns) -> None:
    """Before anything is read."""
    if len(set(layout.keep)) < len(layout.keep):
        raise StudyError("--keep", "names a column twice", "Name each column once.")
    clash = next((name for name in layout.keep if name in ("row", *layout.columns)), None)
    if clash is not None:
        problem = f"{clash!r} is also a column of the predictions"
        raise StudyError("--keep", problem, "Rename the column in your file, or do not keep it.")
    path = as_path(out, "--out")
    if str(path) == STDOUT:
        return
    if path.suffix not in (".csv", ".parquet"):
        raise StudyError("--out", f"{path.name!r} ends neither with .csv nor with .parquet", ELSEWHERE)
    if path.is_dir():
        raise StudyError("--out", f"{path} is a folder", ELSEWHERE)
    read = as_path(source, "source", DataError)
    if str(read) != STDIN and path.exists() and read.exists() and path.samefile(read):
        raise StudyError("--out", "this is the file that is read", "Name another file.")


@contextmanager
def open_output(out: str | Path, layout: OutputColumns, keep: Mapping[str, pa.DataType]) -> Iterator[Output]:
    schema = layout.schema(keep)
    path = as_path(out, "--out")
    if str(path) == STDOUT:
        yield _Text(sys.stdout.buffer, schema)
        sys.stdout.buffer.flush()
        return
    partial = own_partial_path(path)  # two at once do not write into one file
    try:
        remove_leftovers(path)
        with partial.open("wb") as file:
            if path.suffix == ".csv":
                yield _Text(file, schema)
            else:
                with pq.ParquetWriter(file, schema, compression="zstd") as writer:
                    yield _Parquet(writer)
        os.replace(partial, path)
    except OSError as error:
        raise BundleError(str(path), f"cannot be written ({error.strerror})", ELSEWHERE) from None
    finally:
        partial.unlink(missing_ok=True)


@dataclass(frozen=True)
class _Parquet:
    writer: Any

    def formatted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    def write(self, content: pa.RecordBatch) -> None:
        self.writer.write_batch(content)


class _Text:
    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        self.file = file
        # written with the first rows, so that an early error writes nothing
        self.header = _lines([_quoted(pa.array([name], pa.string())) for name in schema.names])

    def formatted(self, batch: pa.RecordBatch) -> bytes:
        return _lines([_as_text(column) for column in batch.columns])

    def write(self, content: bytes) -> None:
        self.file.write(self.header + content)
        self.header = b""


def _as_text(column: pa.Array) -> pa.Array:
    kind = column.type
    plain = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    try:
        cells = column.cast(pa.string()).fill_null("")
        return cells if plain else _quoted(cells)
    except pa.ArrowException:
        remedy = "Keep a column of numbers, texts or dates, or write Parquet."
        raise DataError("--keep", f"a column of {type_name(kind)} cannot be written as CSV", remedy) from None


def _lines(columns: Sequence[pa.Array]) -> bytes:
    if not len(columns[0]):
        return b""
    lines = pc.binary_join_element_wise(*columns, ",")
    whole = pa.LargeListArray.from_arrays(pa.array([0, len(lines)], pa.int64()), lines)
    text: bytes = pc.binary_join(whole, "\n")[0].as_buffer().to_pybytes()
    return text + b"\n"


def _quoted(cells: pa.Array) -> pa.Array:
    """With quotation marks where a cell needs them."""
    needs_quotes = pc.match_substring_regex(cells, _NEEDS_QUOTES)
    if not pc.any(needs_quotes).as_py():
        return cells
    quoted = pc.binary_join_element_wise('"', pc.replace_substring(cells, '"', '""'), '"', "")
    return pc.if_else(needs_quotes, quoted, cells)
