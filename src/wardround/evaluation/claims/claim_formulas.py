"""Whether a published figure follows from others of its source. `study.claims` has the inputs of each formula."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy import stats

from wardround.data.heterogeneity import gini
from wardround.evaluation.intervals import CONFIDENCE
from wardround.study.claims import TAKES


@dataclass(frozen=True)
class FromSource:
    compute: Callable[[Sequence[float]], float]
    words: str  # what the figure then follows from


def two_sample_t(mean: float, sd: float, runs: float, other: float, other_sd: float, other_runs: float) -> float:
    """Welch's; with as many runs in both, Student's has the same value."""
    return float((mean - other) / _error(sd, runs, other_sd, other_runs))


def _error(sd: float, runs: float, other_sd: float, other_runs: float) -> float:
    return float(np.sqrt(sd**2 / runs + other_sd**2 / other_runs))


def t_from_interval(low: float, high: float, runs: float, other_runs: float) -> float:
    """The middle of an interval of a difference, in standard errors."""
    error = (high - low) / 2 / _quantile(runs, other_runs)
    return float((low + high) / 2 / error)


def p_from_t(t: float, runs: float, other_runs: float) -> float:
    """Two-sided."""
    return float(2 * stats.t.sf(abs(t), runs + other_runs - 2))


def _limit(values: Sequence[float], side: int) -> float:
    mean, sd, runs, other, other_sd, other_runs = values
    return mean - other + side * _quantile(runs, other_runs) * _error(sd, runs, other_sd, other_runs)


def _quantile(runs: float, other_runs: float) -> float:
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, runs + other_runs - 2))


def possible(formula: str, values: Sequence[float], rounded: float) -> tuple[float, float]:
    """The least and the largest figure that can be had where each value may be off by `rounded`; counts are not."""
    compute, names = FORMULAS[formula].compute, TAKES.get(formula, ("figure",) * len(values))
    ends = [
        (value,) if name == "runs" or not rounded else (value - rounded, value + rounded)
        for name, value in zip(names, values, strict=True)
    ]
    figures = [compute(values), *(compute(corner) for corner in product(*ends))]
    return min(figures), max(figures)


MEANS_AND_SDS = "means and SDs"
FORMULAS: dict[str, FromSource] = {
    "sum": FromSource(lambda values: float(np.sum(values)), "sum"),
    "mean": FromSource(lambda values: float(np.mean(values)), "mean"),
    "sd": FromSource(lambda values: float(np.std(values, ddof=1)), "SD"),
    "lowest": FromSource(min, "lowest figure"),
    "highest": FromSource(max, "highest figure"),
    "range": FromSource(lambda values: float(np.ptp(values)), "highest less lowest figure"),
    "gini": FromSource(lambda values: gini(list(values)), "sizes"),
    "ratio": FromSource(lambda values: values[0] / values[1], "two figures"),
    "change": FromSource(lambda values: values[1] / values[0] - 1, "figures before and after"),
    "t": FromSource(lambda values: two_sample_t(*values), MEANS_AND_SDS),
    "t_from_interval": FromSource(lambda values: t_from_interval(*values), "interval"),
    "p_from_t": FromSource(lambda values: p_from_t(*values), "t"),
    "interval_low": FromSource(lambda values: _limit(values, -1), MEANS_AND_SDS),
    "interval_high": FromSource(lambda values: _limit(values, 1), MEANS_AND_SDS),
}
