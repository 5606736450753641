"""A folder of WFDB records, the form of PhysioNet's databases: NAME.hea says what is in NAME.dat.

Opened by the `wfdb` package, one record at a time. What a header says is checked before anything is read by it: its
files must lie beside it, and it must name a sampling rate, for which the format would silently take 250.
"""

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from wardround.core.errors import DataError, as_path
from wardround.core.extras import load as load_extra
from wardround.core.settings import Positive
from wardround.data.records import Records, Source
from wardround.data.signals.recording import Recording, is_rate
from wardround.data.sources.signals.reading import RATE, SignalOptions, Signals, gathered
from wardround.data.sources.signals.signal_labels import (
    Known,
    SignalOutcome,
    column,
    known_of,
    labels_near,
    records_of,
    signal_facts,
    table_of,
    texts,
)
from wardround.data.text_table import Table, checked_names, read_table
from wardround.study.facts import declares

HEADER = ".hea"
RECORD = ("record", "recordname", "record_name", "file", "filename", "filename_lr", "signal")
MOST_HEADER = 1 << 20  # bytes
MOST_VALUES = 1 << 28  # of one record
RATE_FIELD = re.compile(r"[0-9]+(\.[0-9]*)?(/[0-9.()-]+)?")  # and what a counter says
AGAIN = "Fetch the record anew: it is damaged, or not of this form."
HOSPITAL = "wfdb"  # of records for which nothing names one


@declares(signal_facts)
def wfdb(
    path: Path,
    target: str,
    labels: Path | None = None,
    rate: Positive = 100.0,
    seconds: Positive = 10.0,
    channels: tuple[str, ...] = (),
    classes: tuple[str, ...] | None = None,
    positive: str | None = None,
    task: str | dict[str, Any] = "",
    summary: bool = False,
) -> Source:
    """Records below the folder `path`, resampled to `rate` samples a second, of which the first `seconds` are used.

    `labels` is a table with a row for each record: its name in a column `record`, `target`, and where they are known
    patient, hospital, age, sex and split. Without it `labels.csv` in the folder, or the comments of the headers ("Dx:
    ..."). `channels` are the leads by name; by default those of the first record. A lead that a record lacks is a gap.
    """
    options, outcome = SignalOptions.of(rate, seconds, channels), SignalOutcome(target, classes, positive, task)
    outcome.declared.check()

    def load() -> Records:
        signals, known = _read(path, labels_near(path, labels), options, outcome)
        return records_of(signals, rate, known, HOSPITAL, summary)

    return Source(load)


def _read(path: Path, labels: Path | None, options: SignalOptions, outcome: SignalOutcome) -> tuple[Signals, Known]:
    names = record_names(path)
    if labels is None:
        known = known_of(comments_of(path, names), str(path), outcome)
        chosen = [names[row] for row in known.rows]
    else:
        table = read_table(labels, "auto", checked_names)
        known = known_of(table, str(labels), outcome)
        chosen = _named(table, labels, known.rows, names)
    return signals_of(path, chosen, options), known


def signals_of(folder: Path, names: Sequence[str], options: SignalOptions) -> Signals:
    return gathered(names, partial(read_record, folder, seconds=options.samples / options.rate), options, str(folder))


def record_names(folder: Path) -> list[str]:
    """Of all headers below a folder, or the one that is named."""
    folder = as_path(folder, "path", DataError)
    if folder.is_file() and folder.suffix == HEADER:
        return [folder.stem]
    try:
        names = sorted(
            file.relative_to(folder).with_suffix("").as_posix() for file in folder.rglob(f"*{HEADER}") if file.is_file()
        )
    except OSError as error:
        raise DataError(str(folder), f"cannot be read ({error.strerror})", "Look at its permissions.") from None
    if not names:
        problem = f"there is no {HEADER} file in it" if folder.is_dir() else "there is no such folder"
        raise DataError(str(folder), problem, "Name a folder of WFDB records.")
    return names


def _named(table: Table, labels: Path, rows: np.ndarray, names: Sequence[str]) -> list[str]:
    """The record of each row of the table, by its path from the folder on, or by its name alone."""
    own = column(table, RECORD)
    if own is None:
        remedy = "Call the column `record`; it holds each record's name, or its path from the folder on."
        raise DataError(str(labels), "no column says which record a row is of", remedy)
    by_path = {name: name for name in names}
    by_name = {name.rpartition("/")[2]: name for name in names}
    wanted = [text.removesuffix(HEADER).removesuffix(".dat") for text in texts(table[own])[rows]]
    found = [by_path.get(name) or by_name.get(name) for name in wanted]
    if missing := [int(table[own].lines[row]) for row, name in zip(rows, found, strict=True) if name is None]:
        more = ", ..." if len(missing) > 5 else ""
        problem = f"{len(missing)} of {len(found)} records are not there: {table[own].places(missing[:5], more)}"
        raise DataError(str(labels), problem, "Correct the names, which start at the folder.")
    return [name for name in found if name is not None]


def comments_of(folder: Path, names: Sequence[str]) -> Table:
    """A row for each record, a column for each comment of the form "Name: text" in its header."""
    found = [_comments(_header_lines(folder, name)) for name in names]
    keys = list(dict.fromkeys(key for comments in found for key in comments))
    return table_of({"record": names, **{key: [comments.get(key, "") for comments in found] for key in keys}})


def _comments(lines: Sequence[str]) -> dict[str, str]:
    pairs = [line.lstrip("# ").partition(":") for line in lines if line.startswith("#")]
    return {key.strip(): text.strip() for key, colon, text in pairs if colon and key.strip() and len(key) < 64}


def _header_lines(folder: Path, name: str) -> list[str]:
    file = _base(folder) / f"{name}{HEADER}"
    try:
        if file.stat().st_size > MOST_HEADER:
            raise DataError(str(file), "is too long for a header", AGAIN)
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise DataError(str(file), f"cannot be read ({error.strerror})", "Look at its permissions.") from None
    return [line.strip() for line in lines if line.strip()]


def _base(folder: Path) -> Path:
    return folder.parent if folder.suffix == HEADER else folder


@dataclass(frozen=True)
class Header:
    rate: float
    samples: int
    channels: tuple[str, ...]


def header_of(folder: Path, name: str) -> Header:
    """Checked, before anything is opened by it."""
    package, base = _package(), _base(folder)
    where = str(base / f"{name}{HEADER}")
    _check_header(_header_lines(folder, name), (base / name).parent, where)
    try:
        header = package.rdheader(str((base / name).absolute()))
        read = Header(float(header.fs), int(header.sig_len or 0), tuple(map(str, header.sig_name)))
    except Exception as error:  # the package raises whatever a damaged file leads to, with its content in the text
        raise DataError(where, f"cannot be read ({type(error).__name__})", AGAIN) from None
    if not is_rate(read.rate):
        raise DataError(where, "has no sampling rate that can be", RATE)
    if read.samples < 1 or len(read.channels) * read.samples > MOST_VALUES:
        raise DataError(where, "says that it has no samples, or more than fit into memory", AGAIN)
    return read


def read_record(folder: Path, name: str, seconds: float | None = None) -> Recording:
    """The first seconds of a record in physical units, and half a second more for the filter; NaN where it has gaps."""
    header, base = header_of(folder, name), _base(folder)
    where = str(base / f"{name}{HEADER}")
    last = header.samples if seconds is None else min(header.samples, int((seconds + 0.5) * header.rate) + 1)
    try:
        record = _package().rdrecord(str((base / name).absolute()), sampto=last)
        values = np.array(record.p_signal, dtype=np.float32).T
    except Exception as error:  # as above
        raise DataError(where, f"cannot be read ({type(error).__name__})", AGAIN) from None
    if values.ndim != 2 or len(values) != len(header.channels):
        raise DataError(where, "its channels are not of one length", AGAIN)
    values[np.isinf(values)] = np.nan
    return Recording(values, header.rate, header.channels)


def _package() -> ModuleType:
    with warnings.catch_warnings():  # of pandas, about what the package does with it while it is imported
        warnings.simplefilter("ignore")
        return load_extra("wfdb", "signals", "a WFDB record")


def _check_header(lines: Sequence[str], folder: Path, where: str) -> None:
    """Before the package opens anything by it."""
    content = [line.split() for line in lines if not line.startswith("#")]
    if not content or len(content[0]) < 2:
        raise DataError(where, "has no record line", AGAIN)
    name, signals = content[0][0], content[0][1]
    if "/" in name:
        raise DataError(where, "is a record of several segments", "Give each segment as a record of its own.")
    if len(content[0]) < 3:
        raise DataError(where, "names no sampling rate", RATE)
    if RATE_FIELD.fullmatch(content[0][2]) is None:  # the package would take 250
        raise DataError(where, "has no sampling rate that can be", RATE)
    if not signals.isdigit() or len(content) != 1 + int(signals):
        raise DataError(where, "has not as many lines as it says signals", AGAIN)
    for fields in content[1:]:
        file = fields[0]
        if "/" in file or "\\" in file or file in ("..", "~") or not (folder / file).is_file():
            raise DataError(where, "names a file of samples that is not beside it", AGAIN)
