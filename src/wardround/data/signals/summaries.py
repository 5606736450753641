"""Summary features of signals: what a table can hold of a recording, for models that take columns.

A dozen numbers of each channel: its size, its shape, and how often and how evenly it has peaks, which in an ECG are
heart beats.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from wardround.data.records import Column

FEATURES = (
    "mean",
    "SD",
    "lowest",
    "highest",
    "skewness",
    "kurtosis",
    "change",
    "measured",
    "peaks a second",
    "mean interval",
    "SD of intervals",
    "change of intervals",
)
HIGH = 0.5  # of the way from the median to the highest sample: what a peak must reach
APART = 0.25  # seconds between peaks


def summary_table(signals: np.ndarray, rate: float, channels: Sequence[str]) -> tuple[pd.DataFrame, tuple[Column, ...]]:
    """A row for each recording, a column for each feature of each channel; NaN where there is nothing to sum up."""
    values = np.full((len(signals), len(channels), len(FEATURES)), np.nan)
    for row, recording in enumerate(signals):
        for channel, samples in enumerate(recording):
            values[row, channel] = summary(samples.astype(np.float64), rate)
    names = [f"{channel} {feature}" for channel in channels for feature in FEATURES]
    table = pd.DataFrame(values.reshape(len(signals), -1), columns=names)
    return table, tuple(Column(name) for name in names)


def summary(samples: np.ndarray, rate: float) -> np.ndarray:
    """`FEATURES` of one channel of one recording."""
    known = ~np.isnan(samples)
    features = np.full(len(FEATURES), np.nan)
    features[FEATURES.index("measured")] = known.mean() if len(known) else 0.0
    if known.sum() < 2:
        return features
    numbers = samples[known]
    mean, spread = numbers.mean(), numbers.std()
    normal = (numbers - mean) / spread if spread > 0 else np.zeros_like(numbers)
    steps = np.diff(samples)
    steps = steps[~np.isnan(steps)]
    features[:7] = (
        mean,
        spread,
        numbers.min(),
        numbers.max(),
        (normal**3).mean(),
        (normal**4).mean(),
        np.abs(steps).mean() if len(steps) else 0.0,
    )
    features[8:] = _of_peaks(samples, known, rate)
    return features


def _of_peaks(samples: np.ndarray, known: np.ndarray, rate: float) -> tuple[float, float, float, float]:
    from scipy.signal import find_peaks  # here: it brings scipy.stats, which other data do without

    middle = float(np.median(samples[known]))
    filled = np.where(known, samples, middle)
    peaks, _ = find_peaks(filled, height=middle + HIGH * (filled.max() - middle), distance=max(1, int(APART * rate)))
    intervals = np.diff(peaks) / rate
    often = len(peaks) * rate / known.sum()
    if not len(intervals):
        return often, np.nan, np.nan, np.nan
    change = float(np.abs(np.diff(intervals)).mean()) if len(intervals) > 1 else np.nan
    return often, float(intervals.mean()), float(intervals.std()), change
