"""Intervals and tests for means over seeds.

Seeds that draw a new split of the same patients are not independent studies, so the usual t-interval is too narrow.
The corrected resampled t-test (Nadeau and Bengio, Machine Learning 52, 2003) widens the variance of the mean from 1/J
to 1/J + test rows / training rows. Where a study's seeds do not draw new splits they say nothing of other patients:
intervals are then drawn over patients (`patients.py`), or there are none.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import stdtr, stdtrit  # Student's t, without what `scipy.stats` does around it

from wardround.study.schema import Evaluation
from wardround.tasks import METRIC_FACTS

NO_SPREAD = 1e-12  # figures closer than this are equal but for rounding
CONFIDENCE = 0.95
Numbers = Sequence[float] | np.ndarray


@dataclass(frozen=True)
class Resampling:
    """How much seeds share, as an interval needs it."""

    extra: float  # test rows / training rows, or 0 where the split stays the same

    @classmethod
    def of(cls, evaluation: Evaluation) -> "Resampling":
        if evaluation.split == "given" or not {"split", "partition"} & set(evaluation.vary):
            return cls(0.0)
        return cls(evaluation.test_share / (1 - evaluation.test_share - evaluation.validation_share))

    @property
    def method(self) -> str:
        return "corrected resampled t" if self.extra else "none: one fixed split"

    @property
    def covers(self) -> str:
        return "splits of these patients, and training" if self.extra else "nothing: all seeds have the same test rows"


def mean_interval(values: Numbers, resampling: Resampling) -> tuple[float, float] | None:
    """None where it cannot be had: fewer than two seeds, or figures that are all the same (see `is_uninformative`)."""
    x = np.asarray(values, dtype=float)
    if len(x) < 2 or is_uninformative(x, resampling):
        return None
    half = _quantile(len(x) - 1) * standard_error(x, resampling)
    return float(x.mean() - half), float(x.mean() + half)


def is_uninformative(x: np.ndarray, resampling: Resampling) -> bool:
    """Whether new splits gave the same figure, other than 0, every time: a coincidence of few seeds or of a coarse
    figure (3 of 60 rows, twice), and no sign of certainty."""
    return bool(resampling.extra) and bool(np.ptp(x) < NO_SPREAD) and bool(abs(x[0]) > NO_SPREAD)


def p_value(differences: Numbers, resampling: Resampling) -> float | None:
    """Two-sided, of paired differences against no difference."""
    x = np.asarray(differences, dtype=float)
    if len(x) < 2 or is_uninformative(x, resampling):
        return None
    error = standard_error(x, resampling)
    if error == 0:
        return 1.0 if x.mean() == 0 else 0.0
    return float(2 * stdtr(len(x) - 1, -abs(x.mean()) / error))


def standard_error(x: np.ndarray, resampling: Resampling) -> float:
    return float(np.sqrt((1 / len(x) + resampling.extra) * x.var(ddof=1)))


def summarise(values: Numbers, resampling: Resampling) -> dict[str, Any]:
    """Mean, SD and interval over the seeds in which a figure is defined; `seeds` counts them."""
    x = np.asarray(values, dtype=float)
    x = x[~np.isnan(x)]
    interval = mean_interval(x, resampling) if len(x) and resampling.extra else None
    return {
        "mean": float(x.mean()) if len(x) else None,
        "sd": float(x.std(ddof=1)) if len(x) > 1 else None,
        "interval": list(interval) if interval else None,
        "seeds": len(x),
    }


def summarise_metrics(
    names: Sequence[str], figures: np.ndarray, resampling: Resampling, shown: Collection[str] | None = None
) -> dict[str, dict[str, Any]]:
    """`figures` is (seeds, metrics), `names` are the metrics'; all of them, or those that are `shown`. An interval ends
    where the metric does."""
    columns = zip(names, figures.T, strict=True)
    summaries = {name: summarise(column, resampling) for name, column in columns if shown is None or name in shown}
    for name, figure in summaries.items():
        if figure["interval"] is not None:
            low, high = figure["interval"]
            figure["interval"] = [max(METRIC_FACTS[name].low, low), min(METRIC_FACTS[name].high, high)]
    return summaries


@lru_cache(maxsize=256)
def _quantile(freedom: int) -> float:
    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))
