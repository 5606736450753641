"""What a check of an explanation finds."""

from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import rankdata

from wardround.core.notices import Notice
from wardround.evaluation.intervals import Resampling, mean_interval

FEWEST = 5  # rows, below which a check does not decide; and columns, whose order would say little


@dataclass(frozen=True)
class Check:
    """`figure` is a mean over rows, with its 95 % interval over them."""

    name: str
    method: str  # its title
    figure: float
    low: float
    high: float
    rows: int
    passed: bool | None  # None: too few rows to say
    rule: str  # when it passes

    @classmethod
    def above(cls, name: str, method: str, values: np.ndarray, limit: float, rule: str) -> "Check":
        """Passes where even the lower end of the interval is above the limit."""
        figure, low, high = interval_of(values)
        return cls(name, method, figure, low, high, len(values), low > limit if len(values) >= FEWEST else None, rule)

    @classmethod
    def below(cls, name: str, method: str, values: np.ndarray, limit: float, rule: str) -> "Check":
        """Passes where even the upper end of the interval is below the limit."""
        figure, low, high = interval_of(values)
        return cls(name, method, figure, low, high, len(values), high < limit if len(values) >= FEWEST else None, rule)


def undecided_for_few(check: Check, units: int) -> Check:
    """The order of a handful of columns is often the same by chance."""
    return check if units >= FEWEST else replace(check, passed=None)


def interval_of(values: np.ndarray) -> tuple[float, float, float]:
    """Mean, and a t interval; (NaN, NaN) of fewer than two values."""
    if not len(values):
        return float("nan"), float("nan"), float("nan")
    interval = mean_interval(values, Resampling(0.0))
    return float(values.mean()), *(interval or (float("nan"), float("nan")))


def rank_correlation(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Of each row's values with those of the other, (rows,). Values that are all the same follow nothing: 0."""
    ranks = [rankdata(values, axis=1) for values in (first, second)]
    one, other = (rank - rank.mean(axis=1, keepdims=True) for rank in ranks)
    length = np.sqrt((one**2).sum(axis=1) * (other**2).sum(axis=1))
    return np.asarray((one * other).sum(axis=1) / np.where(length > 0, length, 1))


CODES = {
    "deletion": "explanation-not-faithful",
    "insertion": "explanation-not-faithful",
    "randomisation": "explanation-ignores-the-model",
    "stability": "explanation-unstable",
    "agreement": "explanations-disagree",
}


def notice_of(check: Check) -> Notice | None:
    """Of a check that failed."""
    if check.passed is not False:
        return None
    counts = {"figure": round(check.figure, 3), "low": round(check.low, 3), "high": round(check.high, 3)}
    details = {"check": check.name, "method": check.method, "rule": check.rule}
    return Notice(CODES[check.name], "warning", counts={**counts, "rows": check.rows}, details=details)
