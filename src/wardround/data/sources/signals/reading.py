"""What a study says about its signals, and recordings brought to it one after another."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from wardround.core.errors import DataError, StudyError
from wardround.data.signals.recording import RATES, Recording, fitted, is_rate, resampled

MOST_SAMPLES = 1 << 30  # of all recordings and channels together
RATE = "A recording's file must say how many samples it has in a second: without it no interval has a length."


@dataclass(frozen=True)
class SignalOptions:
    rate: float
    samples: int  # of a row
    channels: tuple[str, ...]  # empty: those of the first recording

    @classmethod
    def of(cls, rate: float, seconds: float, channels: Sequence[str]) -> "SignalOptions":
        if not is_rate(rate):
            problem = f"is not from {RATES[0]:g} to {RATES[1]:g} samples a second"
            raise StudyError("data: rate", problem, "Write the samples a second that the model is to see.")
        if len({name.strip().lower() for name in channels}) < len(channels):
            raise StudyError("data: channels", "one is named twice", "Name each channel once.")
        samples = round(rate * seconds)
        if samples < 1:
            raise StudyError("data: seconds", "not one sample is left", "Raise `seconds` or `rate`.")
        return cls(rate, samples, tuple(channels))


@dataclass(frozen=True)
class Signals:
    values: np.ndarray  # (recordings, channels, samples)
    channels: tuple[str, ...]
    cut: int  # recordings that are longer than the study's seconds


def gathered(names: Sequence[str], read: Callable[[str], Recording], options: SignalOptions, where: str) -> Signals:
    """`read` opens one recording by its name. Each comes to the study's rate and length before the next is read."""
    if not names:
        raise DataError(where, "there is no recording in it", "Look at the path, and at the table of labels.")
    channels, cut = options.channels, 0
    values = np.empty(0)
    for row, name in enumerate(names):
        recording = read(name)
        if not row:
            channels = channels or recording.channels
            if len(names) * len(channels) * options.samples > MOST_SAMPLES:
                problem = f"{len(names):,} recordings of {len(channels)} channels and {options.samples:,} samples"
                remedy = "Lower `rate` or `seconds`, or take fewer recordings."
                raise DataError(where, f"{problem} do not fit into memory", remedy)
            values = np.full((len(names), len(channels), options.samples), np.nan, dtype=np.float32)
        values[row], longer = brought(recording, channels, options, name)
        cut += longer
    refuse_empty(values, names, where)
    return Signals(values, channels, cut)


def brought(
    recording: Recording, channels: Sequence[str], options: SignalOptions, where: str
) -> tuple[np.ndarray, bool]:
    """(channels, samples) at the study's rate, and whether the recording is longer. A channel that it lacks is gaps."""
    if not is_rate(recording.rate):
        raise DataError(where, "has no sampling rate that can be", RATE)
    places = _places(channels, recording.channels, where)
    there = [place for place in places if place is not None]
    at_rate = resampled(recording.values[there], recording.rate, options.rate)
    whole = np.full((len(channels), options.samples), np.nan, dtype=np.float32)
    whole[[number for number, place in enumerate(places) if place is not None]] = fitted(at_rate, options.samples)
    return whole, at_rate.shape[-1] > options.samples


def _places(wanted: Sequence[str], there: Sequence[str], where: str) -> list[int | None]:
    """Where each channel is in a recording, without regard to case; None where it is not recorded."""
    places = {name.strip().lower(): place for place, name in reversed(list(enumerate(there)))}
    found = [places.get(name.strip().lower()) for name in wanted]
    if all(place is None for place in found):
        problem = f"has none of the study's channels: {', '.join(wanted)}"
        raise DataError(where, problem, "Correct `channels` in [data], or leave this recording out.")
    return found


def refuse_empty(values: np.ndarray, names: Sequence[str], where: str) -> None:
    """Recordings in which nothing was measured, by their places: names may be patients'."""
    empty = np.flatnonzero(np.isnan(values).all(axis=(1, 2)))
    if len(empty):
        more = ", ..." if len(empty) > 5 else ""
        rows = ", ".join(str(row + 1) for row in empty[:5])
        problem = f"nothing was measured in {len(empty)} of {len(names)} recordings: number {rows}{more}"
        raise DataError(where, problem, "Leave them out of the table of labels.")
