"""A recording, and how it comes to the sampling rate and the length of a study.

Samples are (channels, samples) in 32 bits, NaN where nothing was measured. Gaps are kept, never filled.
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

MOST_PARTS = 1000  # a ratio of rates is rounded to a fraction with no larger denominator
RATES = (0.001, 100_000.0)  # samples in a second that a recording may have


@dataclass(frozen=True)
class Recording:
    values: np.ndarray
    rate: float  # samples in a second
    channels: tuple[str, ...]


def is_rate(rate: object) -> bool:
    return isinstance(rate, int | float) and RATES[0] <= rate <= RATES[1]


def resampled(values: np.ndarray, rate: float, to: float) -> np.ndarray:
    """At another rate, behind a low-pass filter that keeps out what the new rate cannot show. The last axis is time.

    A new sample is missing where the old one nearest to it is. For the filter alone a gap is a straight line.
    """
    ratio = Fraction(to / rate).limit_denominator(MOST_PARTS)
    values = np.asarray(values, dtype=np.float32)
    if ratio == 1 or not values.shape[-1]:
        return values
    missing = np.isnan(values)
    lines = values.astype(np.float64).reshape(-1, values.shape[-1])
    for line, gaps in zip(lines, missing.reshape(lines.shape), strict=True):
        if gaps.any():
            line[gaps] = 0.0 if gaps.all() else np.interp(np.flatnonzero(gaps), np.flatnonzero(~gaps), line[~gaps])
    from scipy.signal import resample_poly  # here: it brings scipy.stats, which other data do without

    whole = resample_poly(lines, ratio.numerator, ratio.denominator, axis=-1, padtype="line")
    nearest = np.minimum(np.rint(np.arange(whole.shape[-1]) / float(ratio)).astype(np.int64), values.shape[-1] - 1)
    new = whole.astype(np.float32).reshape(*values.shape[:-1], -1)
    new[missing[..., nearest]] = np.nan
    return new


def fitted(values: np.ndarray, samples: int) -> np.ndarray:
    """The first samples; a shorter recording is followed by gaps, which no model counts."""
    whole = np.full((*values.shape[:-1], samples), np.nan, dtype=np.float32)
    kept = values[..., :samples]
    whole[..., : kept.shape[-1]] = kept
    return whole
