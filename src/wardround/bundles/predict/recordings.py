"""The recordings to be predicted: WFDB records, arrays, a table of visits, arrays in memory, or requests.

They are read by the functions that read training recordings, so that the same file gives the same numbers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from wardround.bundles.bundle import Bundle
from wardround.bundles.predict.blocks import Block, BlockReader, RowSource
from wardround.bundles.signals import Signals
from wardround.core.errors import DataError, as_path, shown
from wardround.data.signals.recording import Recording, is_rate
from wardround.data.sources.signals.arrays import opened, signals_of
from wardround.data.sources.signals.reading import RATE, SignalOptions, brought, refuse_empty
from wardround.data.sources.signals.signal_labels import table_of
from wardround.data.sources.signals.visits_over_time import Columns, sequences_of
from wardround.data.sources.signals.wfdb_folder import HEADER, read_record, record_names
from wardround.data.text_table import checked_names, read_table

RECORDING = "recording"  # the column with a row's name
SIGNALS, SAMPLING_RATE, CHANNELS, VISITS = "signals", "rate", "channels", "visits"  # of a request
AT_ONCE = 64  # recordings in a block
PATIENT, TIME = "patient", "time"
OF_SIGNALS = "Name a folder of WFDB records, one .hea file, or an .npz file."
OF_VISITS = f"Name a CSV file with a row for each visit, and columns `{PATIENT}`, `{TIME}` and those of the values."


@contextmanager
def open_signals(bundle: Bundle, source: str | Path, keep: Sequence[str]) -> Iterator[RowSource]:
    signals = signals_in(bundle)
    if isinstance(source, str) and source == "-":
        raise DataError("standard input", "signals are not read from it", _kinds(signals))
    path = as_path(source, "source", DataError)
    if keep:
        raise DataError(str(path), f"there is no column {shown(keep[0])} to keep", "Rows are named by `recording`.")
    if signals.rate is None:
        yield _visits(signals, path)
    elif path.suffix == ".npy":
        raise DataError(str(path), "names no sampling rate", f"{RATE} Give an .npz with a member `{SAMPLING_RATE}`.")
    elif path.suffix == ".npz":
        yield _arrays(signals, path)
    elif path.is_dir() or path.suffix == HEADER:
        yield _records(signals, path)
    else:
        raise DataError(str(path), "is not signals" if path.exists() else "is not there", _kinds(signals))


def signals_in(bundle: Bundle) -> Signals:
    if bundle.inputs.signals is None:
        raise DataError("signals", "the bundle takes no signals", "Use a bundle of signals.")
    return bundle.inputs.signals


def _kinds(signals: Signals) -> str:
    return OF_VISITS if signals.rate is None else OF_SIGNALS


def _options(signals: Signals) -> SignalOptions:
    return SignalOptions(signals.rate or 1.0, signals.samples, signals.channels)


def _records(signals: Signals, path: Path) -> RowSource:
    names, options = record_names(path), _options(signals)
    seconds = options.samples / options.rate

    def read(some: slice) -> Block:
        values = [brought(read_record(path, name, seconds), options.channels, options, name)[0] for name in names[some]]
        return _block(names[some], np.stack(values), str(path))

    return _source(path, len(names), read)


def _arrays(signals: Signals, path: Path) -> RowSource:
    archive, options = opened(path), _options(signals)
    rows = np.arange(len(archive.signals))
    names = [str(row) for row in rows]

    def read(some: slice) -> Block:
        return _block(names[some], signals_of(archive, None, options, rows[some]).values, str(path))

    return _source(path, len(names), read)


def _visits(signals: Signals, path: Path) -> RowSource:
    if not path.is_file():
        raise DataError(str(path), "is not there, or a folder", OF_VISITS)
    columns = Columns(PATIENT, TIME, signals.channels[:-1], signals.samples)
    read, names, _ = sequences_of(read_table(path, "auto", checked_names), columns, str(path))

    def block(some: slice) -> Block:
        return _block(names[some], read.values[some], str(path))

    return _source(path, len(names), block)


def _source(path: Path, rows: int, read: Callable[[slice], Block]) -> RowSource:
    done = [0]

    def blocks() -> Iterator[BlockReader]:
        for begin in range(0, rows, AT_ONCE):
            done[0] = begin
            yield partial(read, slice(begin, begin + AT_ONCE))
        done[0] = rows

    return RowSource(str(path), {RECORDING: pa.string()}, blocks(), lambda: done[0] / max(rows, 1))


def _block(names: Sequence[str], values: np.ndarray, where: str) -> Block:
    refuse_empty(values, names, where)
    return Block(
        len(names), {RECORDING: pa.array(list(names), pa.string())}, f"{where}, recording {{}}".format, images=values
    )


def block_of_signals(bundle: Bundle, arrays: np.ndarray, rate: float | None) -> Block:
    """In memory: (recordings, channels, samples), NaN in gaps."""
    signals, options = signals_in(bundle), _options(signals_in(bundle))
    if arrays.ndim != 3 or arrays.dtype.kind not in "fiu" or arrays.shape[1] != len(signals.channels):
        problem = f"an array of shape {arrays.shape} and type {arrays.dtype.name}"
        remedy = (
            f"Give numbers (recordings, {len(signals.channels)} channels, samples), NaN where nothing was measured."
        )
        raise DataError("signals", problem, remedy)
    if signals.rate is not None and rate is None:
        raise DataError("signals", "have no sampling rate", RATE)
    own = options.rate if rate is None or signals.rate is None else rate
    values = [
        brought(Recording(row.astype(np.float32), own, signals.channels), signals.channels, options, "signals")[0]
        for row in arrays
    ]
    whole = np.stack(values) if values else np.zeros((0, *signals.shape), dtype=np.float32)
    return _block([str(row) for row in range(len(whole))], whole, "signals")


def block_of_signal_requests(bundle: Bundle, rows: Sequence[Mapping[str, Any]], where: Callable[[int], str]) -> Block:
    """A row has `signals`, a list of numbers or nulls for each channel, with its `rate`; or `visits`."""
    signals, options = signals_in(bundle), _options(signals_in(bundle))
    values = np.full((len(rows), *signals.shape), np.nan, dtype=np.float32)
    for number, row in enumerate(rows):
        if signals.rate is None:
            values[number] = _of_visits(signals, row.get(VISITS), where(number))
            continue
        rate, channels = row.get(SAMPLING_RATE), row.get(CHANNELS, list(signals.channels))
        if isinstance(rate, bool) or not is_rate(rate):
            raise DataError(where(number), "has no `rate` that can be a sampling rate", RATE)
        samples = _numbers(row.get(SIGNALS), where(number))
        if (
            not isinstance(channels, list)
            or len(channels) != len(samples)
            or not all(isinstance(c, str) for c in channels)
        ):
            problem = f"`signals` has {len(samples)} channels, and {len(signals.channels)} are expected"
            raise DataError(where(number), problem, f"Give {', '.join(signals.channels)}, or name yours in `channels`.")
        recording = Recording(samples, float(rate or 0), tuple(channels))
        values[number], _ = brought(recording, signals.channels, options, where(number))
    names = [str(number) for number in range(len(rows))]
    refuse_empty(values, names, "rows")
    return Block(len(rows), {RECORDING: pa.array(names, pa.string())}, where, images=values)


def _numbers(content: object, where: str) -> np.ndarray:
    """(channels, samples)"""
    remedy = "Give a list for each channel, of numbers, with null where nothing was measured, all of one length."
    if not isinstance(content, list) or not content or not all(isinstance(channel, list) for channel in content):
        raise DataError(where, "there is no list of lists in `signals`", remedy)
    if len({len(channel) for channel in content}) > 1 or not content[0]:
        raise DataError(where, "the channels of `signals` are not of one length", remedy)
    if not all(_is_cell(cell) for channel in content for cell in channel):
        raise DataError(where, "`signals` holds something else than numbers and null", remedy)
    values = np.array([[np.nan if cell is None else cell for cell in channel] for channel in content], dtype=np.float32)
    values[np.isinf(values)] = np.nan
    return values


def _is_cell(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _of_visits(signals: Signals, content: object, where: str) -> np.ndarray:
    names = signals.channels[:-1]
    remedy = f"Give a list of visits, each with `{TIME}` and numbers or null for {', '.join(names)}."
    if not isinstance(content, list) or not content or not all(isinstance(visit, Mapping) for visit in content):
        raise DataError(where, "there is no list in `visits`", remedy)
    if not all(_is_cell(visit.get(name)) for visit in content for name in (TIME, *names)):
        raise DataError(where, "`visits` holds something else than numbers and null", remedy)
    texts = {
        name: ["" if visit.get(name) is None else str(visit[name]) for visit in content] for name in (TIME, *names)
    }
    table = table_of({PATIENT: ["one"] * len(content), **texts})
    return np.asarray(sequences_of(table, Columns(PATIENT, TIME, names, signals.samples), where)[0].values[0])
