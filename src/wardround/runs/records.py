"""The records of a run: written as rounds end, cut where a resumed run goes on, compacted at the end, read at any time.

While a run goes on, `records.jsonl` in its folder has a line for each round of each arm and seed. All processes of the
run append to it, whole lines at a time and at least every second. At the end it becomes `records.parquet`.

A line without its end is not a record yet. It is left behind by a process that was killed; whoever appends next removes
it, so that it never becomes part of another line.
"""

import fcntl
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from threading import Event, Lock, Thread
from typing import BinaryIO, Self

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from wardround.core.atomic_files import open_private, replacing, write_atomically
from wardround.core.errors import RunError, as_path
from wardround.core.processes import mapped
from wardround.runs.record_form import TYPES, concatenated, records_of, table_of_lines, to_line, with_variant
from wardround.training.round_record import RoundRecord

RUNNING, COMPACT = "records.jsonl", "records.parquet"
PAUSE = 0.5  # seconds between two writes, at most
TAIL = 2**16
Key = tuple[str, int]  # arm and seed
REMEDY = "Run the study again with --again."
DAMAGED = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError, pa.ArrowException)


class RecordWriter:
    """Appends the records of some trials. A thread writes what has come, also while a single round takes long."""

    def __init__(self, path: Path, records: int = 0) -> None:
        """`records` of these trials are in the file already."""
        self.path, self.records = path, records
        self.waiting: list[bytes] = []
        self.lock, self.ended = Lock(), Event()
        self.error: OSError | None = None

    def __enter__(self) -> Self:
        self.file = open_private(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, "r+b")
        self.thread = Thread(target=self._write_regularly, name="records", daemon=True)
        self.thread.start()
        return self

    def add(self, record: RoundRecord) -> None:
        line = to_line(record)
        with self.lock:
            self.waiting.append(line)
            self.records += 1

    def flush(self) -> int:
        """Hand everything to the operating system; how many records of these trials the file has."""
        with self.lock:
            if self.error is not None:
                raise self.error
            lines, self.waiting = self.waiting, []
            if lines:
                append(self.file.fileno(), b"".join(lines))
            return self.records

    def _write_regularly(self) -> None:
        while not self.ended.wait(PAUSE):
            try:
                self.flush()
            except OSError as error:  # raised where the run goes on: by its next `flush`
                self.error = error
                return

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.ended.set()
        self.thread.join()
        try:
            with suppress(*((OSError,) if kind is not None else ())):  # the first error is the one to see
                self.flush()
        finally:
            self.file.close()


def append(file: int, lines: bytes) -> None:
    """Whole lines or nothing, after the last whole line. Other processes wait meanwhile."""
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        size = os.fstat(file).st_size
        if size and os.pread(file, 1, size - 1) != b"\n":
            size = _end_of_last_line(file, size)
            os.ftruncate(file, size)
        try:
            rest = memoryview(lines)
            while rest:
                rest = rest[os.write(file, rest) :]
        except OSError:
            os.ftruncate(file, size)
            raise
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


def _end_of_last_line(file: int, size: int) -> int:
    while size > 0:
        start = max(0, size - TAIL)
        at = os.pread(file, size - start, start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        size = start
    return 0


def cut_records(path: Path, kept: Sequence[tuple[Iterable[Key], int]]) -> None:
    """Before units go on from their checkpoints: leave the first so many records of each unit's trials, and all
    records of trials that are not named. Nobody else may be writing."""
    unit_of = {key: unit for unit, (keys, _) in enumerate(kept) for key in keys}
    left = [count for _, count in kept]
    content = path.read_bytes() if path.is_file() else b""
    lines = []
    with checked(path):
        for line in whole_lines(content):
            row = orjson.loads(line)
            unit = unit_of.get((row["arm"], row["seed"]))
            if unit is not None:
                left[unit] -= 1
            if unit is None or left[unit] >= 0:
                lines.append(line)
    if any(count > 0 for count in left):
        raise RunError(str(path), "is shorter than it was when the run stopped", "Start anew with --again.")
    if sum(map(len, lines)) < len(content):
        write_atomically(path, b"".join(lines))


def whole_lines(content: bytes) -> list[bytes]:
    return content[: content.rfind(b"\n") + 1].splitlines(keepends=True)


def compact_records(folder: Path, units: Sequence[Iterable[Key]] = (), workers: int = 1) -> pa.Table:
    """Make `records.parquet`, and return it. Of units that ran side by side one follows the other, not the faster.
    `workers` processes read the lines."""
    table = with_variant(_table_of_file(folder / RUNNING, workers))
    unit_of = {key: number for number, keys in enumerate(units) for key in keys}
    if len(units) > 1:
        keys = zip(table["arm"].to_pylist(), table["seed"].to_pylist(), strict=True)
        table = table.take(np.argsort([unit_of.get(key, len(units)) for key in keys], kind="stable"))
    with replacing(folder / COMPACT) as file:
        pq.write_table(table, file, compression="zstd")
    return table


def read_table(folder: Path) -> pa.Table:
    """All records that there are: of a run that goes on, was interrupted or is complete."""
    if not (folder / "results.json").is_file():  # else a process may have died before it removed `records.jsonl`
        with suppress(FileNotFoundError):
            return _table_of_file(folder / RUNNING)
    for name in (COMPACT, RUNNING):
        with suppress(FileNotFoundError):
            return _table_of_file(folder / name)
    if (folder / "results.json").is_file() or not (folder / "study.toml").is_file():
        raise RunError(str(folder), f"has no {COMPACT}", "Name the folder of a run.")
    return table_of_lines([])  # it has only just begun


def _table_of_file(path: Path, workers: int = 1) -> pa.Table:
    if path.name == RUNNING:
        lines = whole_lines(path.read_bytes())
        share = -(-len(lines) // workers) or 1
        parts = [lines[at : at + share] for at in range(0, len(lines), share)]
        with checked(path):
            return concatenated(mapped(table_of_lines, parts, workers))
    with path.open("rb") as file, checked(path):
        table = pq.read_table(file)
        if any(table[name].type != kind for name, kind in TYPES.items()):
            raise TypeError("a column of another type")
        return table


@contextmanager
def checked(path: Path) -> Iterator[None]:
    """One clear error for whatever a damaged file makes a parser raise."""
    try:
        yield
    except DAMAGED as error:
        raise RunError(str(path), f"is damaged: it does not hold records ({type(error).__name__})", REMEDY) from None
    except OSError as error:
        if error.errno is not None:
            raise
        raise RunError(str(path), "is damaged: it does not hold records", REMEDY) from None  # Arrow's, without a number


def read_records(run: str | PathLike[str]) -> Iterator[RoundRecord]:
    """The records of a run that goes on, was interrupted or is complete; simulated or across hospitals. `run` is its
    folder. Those of an arm with a seed come in the order of their rounds; while a run goes on, arms take turns."""
    folder = as_path(run, "run", RunError)
    return _records_of(read_table(folder), folder)


def _records_of(table: pa.Table, folder: Path) -> Iterator[RoundRecord]:
    with checked(folder):
        yield from records_of(table)


class RecordFollower:
    """What is new in the records of one run, for whoever watches it.

    `new` costs as much as there is new. It goes on when the run is stopped, resumed and compacted, and gives every
    record once. `--again` makes another run, for another follower.
    """

    def __init__(self, run: str | PathLike[str]) -> None:
        self.path = as_path(run, "run", RunError)
        self.seen: dict[Key, int] = {}  # the last round
        self.count = 0
        self.file: BinaryIO | None = None  # held open, so that a file in its place has another number

    def new(self) -> list[RoundRecord]:
        """The records since the last call."""
        path = self.path / RUNNING
        while (content := self._more()) is not None:
            lines = whole_lines(content)
            if not lines:
                return []
            with checked(path):
                fresh = self._unseen(records_of(table_of_lines(lines)))
            self.place += sum(map(len, lines))
            if fresh:
                return fresh
        return self._rest()

    def _more(self) -> bytes | None:
        """What follows the last line that was read; None if there is no such file."""
        try:
            status = (self.path / RUNNING).stat()
            if self.file is None or not os.path.samestat(os.fstat(self.file.fileno()), status):
                self.close()
                self.file, self.place = (self.path / RUNNING).open("rb"), 0  # a resumed run has cut it: from the start
        except FileNotFoundError:
            return None
        self.file.seek(self.place)
        return self.file.read()

    def _rest(self) -> list[RoundRecord]:
        """Of a run that is complete."""
        path = self.path / COMPACT
        try:
            with path.open("rb") as file, checked(path):
                compact = pq.ParquetFile(file)
                if compact.metadata.num_rows == self.count:
                    return []
                return self._unseen(records_of(compact.read()))
        except FileNotFoundError:
            return []

    def _unseen(self, records: Iterable[RoundRecord]) -> list[RoundRecord]:
        fresh = [record for record in records if record.round > self.seen.get((record.arm, record.seed), 0)]
        self.seen |= {(record.arm, record.seed): record.round for record in fresh}
        self.count += len(fresh)
        return fresh

    def close(self) -> None:
        """Let go of the file."""
        if self.file is not None:
            self.file.close()
            self.file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
