"""Split conformal prediction intervals of a number, with a guaranteed coverage.

    strangeness of a row   |observed - predicted|, divided by the row's scale
    cut                    the ceil((n + 1)(1 - alpha))-th smallest strangeness of a site's n validation rows
    interval               predicted +- cut x scale

The scale is 1 where rows vary alike (regression); a count's is the standard deviation that its family gives to a count
with the predicted mean, so that intervals grow with it (Pearson's residual). If new rows and validation rows are
exchangeable, an interval holds the outcome with probability ceil((n + 1)(1 - alpha)) / (n + 1) where no two rows are
equally strange, and more where some are, whatever the model's quality and whether or not the scale is right: a bad
model has wide intervals (Vovk et al. 2005; Lei et al., JASA 113, 2018).

A site's cut holds for that site. Another hospital's rows are not exchangeable with these.
"""

import math
from dataclasses import dataclass

import numpy as np

from wardround.core.errors import StudyError
from wardround.tasks.summed import SummedTask
from wardround.uncertainty.conformal import quantile, refuse_no_share

LEAST_SCALE = 1e-6  # a predicted count of all but nothing would make any count infinitely strange
ROUNDING = 1e-9  # a row that is exactly as strange as the cut lies within, in spite of rounding


@dataclass(frozen=True)
class IntervalCut:
    """How strange an outcome may be. Infinite where there were too few rows to exclude anything."""

    alpha: float
    value: float
    rows: int  # of validation

    @property
    def why(self) -> str:
        """Why there is no interval; empty where there is one."""
        if math.isfinite(self.value):
            return ""
        least, share = least_rows(self.alpha), f"{100 * (1 - self.alpha):g} %"
        return f"{self.rows} validation rows are too few: an interval that holds in {share} of rows needs {least}"


def least_rows(alpha: float) -> int:
    """The fewest validation rows of which one is strange enough to be the cut."""
    return max(1, math.ceil(1 / alpha - 1e-9) - 1)


def fit_interval_cut(task: SummedTask, label: np.ndarray, score: np.ndarray, alpha: float = 0.1) -> IntervalCut:
    """From a site's validation rows, on which nothing else of the model was trained."""
    refuse_no_share(alpha)
    if label.shape != score.shape:
        raise ValueError(f"{label.shape} outcomes, and {score.shape} predictions of them")
    if not (np.isfinite(label).all() and np.isfinite(score).all()):
        raise StudyError(
            "uncertainty: intervals",
            "an outcome or a prediction of a validation row is no finite number",
            "A model that has diverged has no intervals: lower the learning rate.",
        )
    strange = np.abs(label.astype(np.float64) - score) / row_scale(task, score)
    return IntervalCut(alpha, quantile(strange, alpha), len(strange))


def prediction_intervals(task: SummedTask, cut: IntervalCut, score: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ends of each row's conformal interval, to which the guarantee of coverage applies; minus and plus infinity
    where there is no cut. Users see `shown_intervals`."""
    p = score.astype(np.float64)
    half = cut.value * row_scale(task, p) * (1 + ROUNDING)
    return p - half, p + half


def shown_intervals(task: SummedTask, cut: IntervalCut, score: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of the outcomes that there can be: they cover no less."""
    return task.possible(*prediction_intervals(task, cut, score))


def interval_widths(task: SummedTask, cut: IntervalCut, score: np.ndarray) -> np.ndarray:
    """Of conformal intervals: exactly the same in all rows where rows vary alike."""
    return np.asarray(2 * cut.value * row_scale(task, score))


def row_scale(task: SummedTask, score: np.ndarray) -> np.ndarray:
    """By which intervals of rows differ."""
    variance = task.variance(score.astype(np.float64))
    return np.ones(score.shape) if variance is None else np.maximum(np.sqrt(variance), LEAST_SCALE)


def interval_coverage(low: np.ndarray, high: np.ndarray, label: np.ndarray) -> float:
    """The share of rows whose outcome lies within its interval; NaN without rows."""
    return float(((label >= low) & (label <= high)).mean()) if len(label) else float("nan")
