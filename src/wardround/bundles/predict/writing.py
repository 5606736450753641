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

from wardround.bundles.predict.blocks import STDIN, type_words
from wardround.core.atomic_files import own_partial_path, remove_leftovers
from wardround.core.errors import BundleError, DataError, StudyError, as_path

STDOUT = STDIN
ELSEWHERE = "Name a .csv or .parquet file in a folder that you may write to, or - for standard output."
_NEEDS_MARKS = '[",\r\n]'  # what may not stand in a cell of CSV without quotation marks


@dataclass(frozen=True)
class Sheet:
    """The columns of the output."""

    keep: tuple[str, ...]
    classes: tuple[str, ...]
    calibrated: bool
    findings: bool = False
    with_calibration: tuple[str, ...] = ()  # of findings: those that have one
    interval: bool = False
    sets: bool = False
    refer: bool = False
    parties: bool = False

    def each(self, kind: str) -> tuple[str, ...]:
        """One column for two classes; one for each of several classes, and of findings."""
        several = self.findings or len(self.classes) != 2
        return tuple(f"{kind}_{name}" for name in self.classes) if several else (kind,)

    @property
    def scores(self) -> tuple[str, ...]:
        return self.each("score")

    @property
    def probabilities(self) -> tuple[str, ...]:
        if self.findings:
            return tuple(f"probability_{name}" for name in self.with_calibration)
        return ("probability",) if self.calibrated else ()

    @property
    def calls(self) -> tuple[str, ...]:
        return self.each("call") if self.findings else ("call",)

    @property
    def all_sets(self) -> tuple[str, ...]:
        return () if not self.sets else self.each("set") if self.findings else ("set",)

    @property
    def columns(self) -> dict[str, pa.DataType]:
        """Those that are not copied, after the row's number, in their order."""
        numbers = [*self.scores, *self.probabilities]
        numbers += [*self.each("low"), *self.each("high")] if self.interval else []
        return {
            **dict.fromkeys(numbers, pa.float64()),
            **dict.fromkeys(self.all_sets, pa.string()),
            **dict.fromkeys(self.calls, pa.bool_() if self.findings else pa.string()),
            "far": pa.bool_(),
            **({"absent": pa.string()} if self.parties else {}),
            **({"refer": pa.bool_()} if self.refer else {}),
            "why": pa.string(),
        }

    @property
    def made(self) -> tuple[str, ...]:
        """Those that are not copied."""
        return ("row", *self.columns)

    def schema(self, kept: Mapping[str, pa.DataType]) -> pa.Schema:
        own = {name: kept[name] for name in self.keep}
        return pa.schema([("row", pa.int64()), *own.items(), *self.columns.items()])


class Target(Protocol):
    """Where predictions go. `shaped` may run beside others; `put` takes what it made, in the order of the rows."""

    def shaped(self, batch: pa.RecordBatch) -> Any: ...
    def put(self, shaped: Any) -> None: ...


def refuse_target(out: str | Path, source: str | Path, sheet: Sheet) -> None:
    """Before anything is read."""
    if len(set(sheet.keep)) < len(sheet.keep):
        raise StudyError("--keep", "names a column twice", "Name each column once.")
    taken = [name for name in sheet.keep if name in sheet.made]
    if taken:
        problem = f"{taken[0]!r} is also a column of the predictions"
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
def written(out: str | Path, sheet: Sheet, kept: Mapping[str, pa.DataType]) -> Iterator[Target]:
    schema = sheet.schema(kept)
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

    def shaped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    def put(self, shaped: pa.RecordBatch) -> None:
        self.writer.write_batch(shaped)


class _Text:
    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        self.file = file
        names = pa.array(schema.names, pa.string())
        self.head: bytes | None = _lines(
            [_marked(names.slice(place, 1)) for place in range(len(names))]
        )  # written with the first rows, so that an early error writes nothing

    def shaped(self, batch: pa.RecordBatch) -> bytes:
        return _lines([_as_text(column) for column in batch.columns])

    def put(self, shaped: bytes) -> None:
        if self.head is not None:
            self.file.write(self.head)
            self.head = None
        self.file.write(shaped)


def _as_text(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return column.cast(pa.string()).fill_null("")
    try:
        return _marked(column.cast(pa.string()).fill_null(""))
    except pa.ArrowException:
        remedy = "Keep a column of numbers, texts or dates, or write Parquet."
        raise DataError("--keep", f"a column of {type_words(column.type)} cannot be written as CSV", remedy) from None


def _lines(columns: Sequence[pa.Array]) -> bytes:
    if not len(columns[0]):
        return b""
    lines = pc.binary_join_element_wise(*columns, ",")
    whole = pa.LargeListArray.from_arrays(pa.array([0, len(lines)], pa.int64()), lines)
    text: bytes = pc.binary_join(whole, "\n")[0].as_buffer().to_pybytes()
    return text + b"\n"


def _marked(cells: pa.Array) -> pa.Array:
    """With quotation marks where a cell needs them."""
    found = pc.match_substring_regex(cells, _NEEDS_MARKS)
    if not pc.any(found).as_py():
        return cells
    quoted = pc.binary_join_element_wise('"', pc.replace_substring(cells, '"', '""'), '"', "")
    return pc.if_else(found, quoted, cells)
