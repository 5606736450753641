"""What is in a folder of WFDB records or an array of signals, for their owner's eyes: `wardround data describe`.

Counts, rates, channels and lengths; no sample and no label.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from wardround.core.errors import DataError
from wardround.data.imaging.npz import Archive
from wardround.data.signals.recording import is_rate
from wardround.data.sources.signals.arrays import LISTS, SAMPLING_RATE, SIGNALS, Arrays, opened
from wardround.data.sources.signals.wfdb_folder import HEADER, comments_of, header_of, record_names

MOST_SHOWN = 12  # different rates or channels
MOST_EXAMINED = 2000  # headers


def is_signals(path: Path) -> bool:
    """Whether it is not images: they have forms of their own."""
    if path.is_dir():
        return next(path.rglob(f"*{HEADER}"), None) is not None
    if path.suffix == ".npz":
        return SIGNALS in Archive(path).members
    return path.suffix in (".npy", HEADER)


def describe_signals(path: Path) -> dict[str, Any]:
    return _of_arrays(opened(path)) if path.suffix in (".npz", ".npy") else _of_records(path)


def _of_records(path: Path) -> dict[str, Any]:
    names = record_names(path)
    headers, damaged = [], []
    for name in names[:MOST_EXAMINED]:
        try:
            headers.append(header_of(path, name))
        except DataError as error:
            damaged.append(error.problem)
    channels = Counter(channel for header in headers for channel in header.channels)
    summary = [
        f"{len(names)} WFDB records" + ("" if len(names) <= MOST_EXAMINED else f", the first {MOST_EXAMINED} examined"),
        f"sampling rates: {_counted(f'{header.rate:g}' for header in headers)} samples a second",
        f"seconds: {_spread([header.samples / header.rate for header in headers])}",
        *(f"not usable: {count} records: {problem}" for problem, count in Counter(damaged).most_common(MOST_SHOWN)),
    ]
    keys = [name for name in comments_of(path, names[:MOST_EXAMINED]) if name != "record"]
    columns = [{"name": name, "type": "channel", "missing": len(headers) - count} for name, count in channels.items()]
    columns += [{"name": key, "type": "comment of the header", "missing": 0} for key in keys[:MOST_SHOWN]]
    return {"name": path.name, "rows": len(names), "summary": summary, "notices": [], "columns": columns}


def _of_arrays(arrays: Arrays) -> dict[str, Any]:
    rows, channels, samples = arrays.signals.shape
    rate, missing = arrays.member(SAMPLING_RATE), np.isnan(arrays.signals) if arrays.signals.dtype.kind == "f" else None
    usable = rate is not None and all(map(is_rate, rate.tolist()))
    rates = _counted(f"{value:g}" for value in rate.tolist()) if rate is not None and usable else ""
    summary = [
        f"{rows} recordings of {channels} channels and {samples} samples",
        f"sampling rates: {rates} samples a second" if rates else "no sampling rate: a study cannot use it without one",
        "no gaps" if missing is None or not missing.any() else f"{int(missing.any(axis=(1, 2)).sum())} with gaps",
    ]
    own = [name for name in arrays.names if name not in LISTS]
    columns = [{"name": SIGNALS, "type": f"{arrays.signals.dtype} {channels} x {samples}", "missing": 0}]
    columns += [{"name": name, "type": "a value for each recording", "missing": 0} for name in own]
    return {"name": arrays.path.name, "rows": rows, "summary": summary, "notices": [], "columns": columns}


def _counted(texts: Iterable[str]) -> str:
    known = Counter(texts).most_common(MOST_SHOWN)
    return ", ".join(f"{text} ({count})" for text, count in known) or "none"


def _spread(values: list[float]) -> str:
    return f"{min(values):g} to {max(values):g}, median {float(np.median(values)):g}" if values else "none"
