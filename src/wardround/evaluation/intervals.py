"""Intervals and tests for means over seeds.

Seeds that draw a new split of the same patients are not independent studies, so the usual t-interval is too narrow.
The corrected resampled t-test (Nadeau and Bengio, Machine Learning 52, 2003) widens the variance of the mean from 1/J
to 1/J + test rows / training rows. Where a study's seeds do not draw new splits, the interval can only speak of the
randomness of training, and `Interval.covers` says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from wardround.study import Evaluation

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Resampling:
    """How seeds vary, as far as an interval needs to know."""

    extra: float  # test rows / training rows, or 0 where the split stays the same

    @classmethod
    def of(cls, evaluation: Evaluation) -> "Resampling":
        if not {"split", "partition"} & set(evaluation.vary):
            return cls(0.0)
        return cls(evaluation.test_share / (1 - evaluation.test_share - evaluation.validation_share))

    @property
    def method(self) -> str:
        return "corrected resampled t" if self.extra else "t over seeds"

    @property
    def covers(self) -> str:
        return "splits of these patients, and training" if self.extra else "training only: one fixed split"


def mean_interval(values: Sequence[float] | np.ndarray, resampling: Resampling) -> tuple[float, float] | None:
    """None where it cannot be had: fewer than two seeds."""
    x = np.asarray(values, dtype=float)
    if len(x) < 2:
        return None
    half = stats.t.ppf((1 + CONFIDENCE) / 2, len(x) - 1) * _standard_error(x, resampling)
    return float(x.mean() - half), float(x.mean() + half)


def p_value(differences: Sequence[float] | np.ndarray, resampling: Resampling) -> float | None:
    """Two-sided, of paired differences against no difference."""
    x = np.asarray(differences, dtype=float)
    if len(x) < 2:
        return None
    error = _standard_error(x, resampling)
    if error == 0:
        return 1.0 if x.mean() == 0 else 0.0
    return float(2 * stats.t.sf(abs(x.mean()) / error, len(x) - 1))


def _standard_error(x: np.ndarray, resampling: Resampling) -> float:
    return float(np.sqrt((1 / len(x) + resampling.extra) * x.var(ddof=1)))
