"""Signals as arrays with a channel axis: an .npz with what is known of them, or an .npy beside a table of labels."""

from pathlib import Path
from typing import Any

import numpy as np

from wardround.core.errors import DataError
from wardround.core.settings import Positive
from wardround.data.imaging.npz import Archive, texts_of
from wardround.data.records import Records, Source, numbered
from wardround.data.signals.recording import Recording, is_rate
from wardround.data.sources.csv.outcome import Outcome
from wardround.data.sources.signals.reading import RATE, SignalOptions, Signals, gathered
from wardround.data.sources.signals.signal_labels import (
    Known,
    SignalOutcome,
    attributes_of,
    known_of,
    labels_near,
    records_of,
    signal_facts,
    table_of,
)
from wardround.data.text_table import Table, checked_names, read_table
from wardround.study.facts import declares

MOST_BYTES = 1 << 34  # of one array
SIGNALS, SAMPLING_RATE, CHANNELS, CLASSES = "signals", "rate", "channels", "class_names"
LISTS = (SAMPLING_RATE, CHANNELS, CLASSES)
AGAIN = "Give an array (recordings, channels, samples) of numbers, NaN where nothing was measured."
HOSPITAL = "arrays"  # of signals for which nothing names one


@declares(signal_facts)
def signal_arrays(
    path: Path,
    target: str = "label",
    labels: Path | None = None,
    recorded_rate: Positive | None = None,
    rate: Positive = 100.0,
    seconds: Positive = 10.0,
    channels: tuple[str, ...] = (),
    classes: tuple[str, ...] | None = None,
    positive: str | None = None,
    task: str | dict[str, Any] = "",
    summary: bool = False,
) -> Source:
    """`path` is an .npz with `signals` (recordings, channels, samples), NaN in gaps and after a short recording's end,
    or an .npy of that form; resampled to `rate` samples a second, of which the first `seconds` are used.

    An .npz has the sampling rate in `rate`, one number or one for each recording; of an .npy `recorded_rate` says it.
    Further members: `channels` (names), a member for the target and where they are known patient, hospital, age, sex
    and split, with a value for each recording. `labels` is a table in their place, a row for each recording, in order.
    """
    options, outcome = SignalOptions.of(rate, seconds, channels), SignalOutcome(target, classes, positive, task)
    outcome.declared.check()

    def load() -> Records:
        archive = opened(path)
        known = _known(archive, path, labels, outcome)
        signals = signals_of(archive, recorded_rate, options, known.rows)
        return records_of(signals, rate, known, HOSPITAL, summary)

    return Source(load)


class Arrays:
    """The members of an .npz, or the one array of an .npy."""

    def __init__(self, path: Path) -> None:
        self.path, self.archive = path, Archive(path) if path.suffix == ".npz" else None
        if self.archive is None:
            self.signals = _npy(path)
            self.names: list[str] = []
        else:
            self.names = [name for name in self.archive.members if name != SIGNALS]
            if SIGNALS not in self.archive.members:
                raise DataError(str(path), f"has no member `{SIGNALS}`", AGAIN)
            member = self.archive.members[SIGNALS]
            _check_form(member.shape, member.dtype, path)
            self.signals = np.concatenate(
                [np.empty((0, *member.shape[1:]), member.dtype), *self.archive.stretches(member)]
            )

    def member(self, name: str) -> np.ndarray | None:
        """One value for each recording, or a list of its own length."""
        if self.archive is None or name not in self.names:
            return None
        shape = self.archive.members[name].shape
        rows = None if name in LISTS else len(self.signals)
        return self.archive.whole(name, rows) if shape else _number(self.archive, name)


def _number(archive: Archive, name: str) -> np.ndarray:
    """A member without an axis."""
    try:
        with np.load(archive.path, allow_pickle=False) as members:
            return np.asarray(members[name]).reshape(1)
    except Exception as error:  # numpy raises whatever a damaged file leads to
        raise archive.damaged(f"{name} cannot be read ({type(error).__name__})") from None


def opened(path: Path) -> Arrays:
    if path.suffix not in (".npz", ".npy") or not path.is_file():
        problem = "is neither an .npz nor an .npy file" if path.exists() else "is not there"
        raise DataError(str(path), problem, "Correct `path`, which starts at the study file's folder.")
    return Arrays(path)


def _npy(path: Path) -> np.ndarray:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # numpy raises whatever a damaged file leads to
        raise DataError(str(path), f"is not an array that can be read ({type(error).__name__})", AGAIN) from None
    _check_form(array.shape, array.dtype, path)
    return np.asarray(array)


def _check_form(shape: tuple[int, ...], dtype: np.dtype, path: Path) -> None:
    if len(shape) != 3 or dtype.kind not in "fiu" or 0 in shape:
        form = " x ".join(map(str, shape)) or "a single value"
        raise DataError(str(path), f"its signals are {form} of {dtype.name}", AGAIN)
    if np.prod(shape, dtype=object) * dtype.itemsize > MOST_BYTES:
        raise DataError(str(path), f"its signals are larger than {MOST_BYTES >> 30} GB", "Give them in several files.")


def _known(archive: Arrays, path: Path, labels: Path | None, outcome: SignalOutcome) -> Known:
    table_file = labels if path.suffix == ".npz" else labels_near(path.parent, labels)
    if table_file is not None:
        table = read_table(table_file, "auto", checked_names)
        rows = len(next(iter(table.values())).codes)
        if rows != len(archive.signals):
            problem = f"has {rows} rows for {len(archive.signals)} recordings"
            raise DataError(str(table_file), problem, "Give a row for each recording, in their order.")
        return known_of(table, str(table_file), outcome)
    if archive.archive is None:
        raise DataError(str(path), "has no labels", "Name a table: `labels`, or labels.csv beside it.")
    own = archive.member(outcome.target)
    if own is not None and own.ndim == 2:
        return _findings(archive, own, outcome)
    return known_of(_table(archive), str(path), outcome)


def _table(archive: Arrays) -> Table:
    """A column for each member with one value for each recording."""
    columns: dict[str, list[str]] = {}
    names = archive.member(CLASSES)
    for name in archive.names:
        if name in LISTS:
            continue
        values = archive.member(name)
        if values is None or values.ndim != 1:
            continue
        columns[name] = _words(values, None if names is None else texts_of(names))
    return table_of(columns or {"": []})


def _words(values: np.ndarray, classes: np.ndarray | None) -> list[str]:
    """Numbers of classes are their names, where the file has these."""
    whole = classes is not None and values.dtype.kind in "iu"
    if whole and classes is not None and len(values) and values.min() >= 0 and values.max() < len(classes):
        return [str(classes[value]) for value in values]
    return ["" if text == "nan" else text for text in map(str, texts_of(values))]


def _findings(archive: Arrays, labels: np.ndarray, outcome: SignalOutcome) -> Known:
    """Any number of labels of each recording: 1, 0, or -1 for not known."""
    names = archive.member(CLASSES)
    classes = outcome.classes or (() if names is None else tuple(map(str, texts_of(names))))
    if len(classes) != labels.shape[1] or labels.dtype.kind not in "iub" or not np.isin(labels, (-1, 0, 1)).all():
        problem = f"{outcome.target!r} has {labels.shape[1]} columns of labels for {len(classes)} names"
        remedy = f"Give labels of 1, 0 and -1, and a name for each in `classes` or the member `{CLASSES}`."
        raise DataError(str(archive.path), problem, remedy)
    read = Outcome(labels.astype(np.int64), classes, None, {}, [])
    return Known(read, attributes_of(_table(archive), outcome.target), outcome.target, np.arange(len(labels)))


def signals_of(archive: Arrays, recorded_rate: float | None, options: SignalOptions, rows: np.ndarray) -> Signals:
    rates = _rates(archive, recorded_rate)
    names, where = _channel_names(archive, options), str(archive.path)
    recordings = {str(row + 1): row for row in rows.tolist()}

    def read(name: str) -> Recording:
        row = recordings[name]
        values = archive.signals[row].astype(np.float32)
        values[np.isinf(values)] = np.nan
        return Recording(values, float(rates[row]), names)

    return gathered(list(recordings), read, options, where)


def _rates(archive: Arrays, recorded_rate: float | None) -> np.ndarray:
    """Of each recording."""
    own = archive.member(SAMPLING_RATE)
    if own is None and recorded_rate is None:
        where = f"the member `{SAMPLING_RATE}`" if archive.archive else "`recorded_rate` in [data]"
        raise DataError(str(archive.path), "names no sampling rate", f"{RATE} Give it as {where}.")
    rates = np.array([recorded_rate], dtype=float) if own is None else own
    if (
        rates.dtype.kind not in "fiu"
        or len(rates) not in (1, len(archive.signals))
        or not all(map(is_rate, rates.tolist()))
    ):
        problem = f"`{SAMPLING_RATE}` does not hold one sampling rate, or one for each recording"
        raise DataError(str(archive.path), problem, RATE)
    return np.broadcast_to(rates, len(archive.signals)) if len(rates) == 1 else rates


def _channel_names(archive: Arrays, options: SignalOptions) -> tuple[str, ...]:
    own, count = archive.member(CHANNELS), archive.signals.shape[1]
    names = (
        tuple(map(str, texts_of(own))) if own is not None else options.channels or tuple(numbered("channel ", count))
    )
    if len(names) != count:
        problem = f"has {count} channels, and {len(names)} are named"
        raise DataError(str(archive.path), problem, f"Name each in the member `{CHANNELS}`, or in `channels`.")
    return names
