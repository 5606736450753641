"""Count: a number of events, such as admissions, over a time or among people at risk (the exposure).

The model gives the logarithm of the rate per unit of exposure; a row's expected count is that rate times its exposure.
Poisson counts vary as their mean. The negative binomial (NB2) has the variance mean + dispersion x mean², which counts
of patients mostly need. A row's target has two columns: the count and its exposure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor

from wardround.tasks.metric import Metric
from wardround.tasks.summed import CLOSE, VALUE, SummedTask, as_double, needed, ratio, require_spread
from wardround.tasks.task import require

EXPOSURE = 1  # column of a row's target
LARGEST = 30.0  # of the logarithm of an expected count: beyond it only an overflow would follow


@dataclass(frozen=True)
class Count(SummedTask):
    kind: ClassVar[str] = "count"
    curve: ClassVar[str] = "mae"
    primary: ClassVar[str] = "deviance"
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("deviance", "deviance", "lower", "plain", 0.0, inf, over_rows=True),
        Metric("mae", "mean absolute error", "lower", "units", 0.0, inf, over_rows=True),
        Metric("rmse", "root mean squared error", "lower", "units", 0.0, inf, over_rows=True),
        Metric("calibration_ratio", "observed / expected", None, "plain", 0.0, inf),
    )
    compared: ClassVar[tuple[str, ...]] = ("deviance", "mae", "rmse")
    at_sites: ClassVar[tuple[str, ...]] = ("deviance", "mae")
    over_sites: ClassVar[tuple[str, ...]] = ("deviance", "mae", "rmse")
    terms: ClassVar[tuple[str, ...]] = ("rows", "deviance", "absolute", "squared", "observed", "expected")

    dispersion: float = 0.0  # 0: Poisson; above: negative binomial
    exposure: str = ""  # the column with each row's exposure; empty: 1 in all rows

    @property
    def family(self) -> Literal["poisson", "negative binomial"]:
        return "negative binomial" if self.dispersion else "poisson"

    def values(self, target: np.ndarray) -> np.ndarray:
        return np.asarray(target[:, VALUE])

    def losses_and_errors(self, scores: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The negative log likelihood without the terms that no model changes."""
        count = y[..., VALUE].to(scores.dtype).unsqueeze(-1)
        log_mean = self._log_mean(scores, y.unsqueeze(-2))
        mean = log_mean.exp()
        if not self.dispersion:
            return mean - count * log_mean, mean - count
        losses = (count + 1 / self.dispersion) * (self.dispersion * mean).log1p() - count * log_mean
        return losses, (mean - count) / (1 + self.dispersion * mean)

    def curvature(self, scores: Tensor, y: Tensor) -> Tensor:
        """On average over counts with the predicted mean (Fisher's information)."""
        mean = self._log_mean(scores, y.unsqueeze(-2)).exp()
        return mean / (1 + self.dispersion * mean)

    def predictions(self, scores: Tensor, y: Tensor | None = None) -> Tensor:
        """Expected counts, for each row's own exposure."""
        return self._log_mean(scores.squeeze(-1).double(), needed(y)).exp()

    def row_figures(self, scores: Tensor, y: Tensor) -> Tensor:
        return (self.predictions(scores, y) - as_double(y, VALUE)).abs()

    def _log_mean(self, scores: Tensor, y: Tensor) -> Tensor:
        return (scores + as_double(y, EXPOSURE).log().to(scores.dtype)).clamp(max=LARGEST)

    def row_terms(self, label: np.ndarray, score: np.ndarray) -> np.ndarray:
        y, mean = label.astype(np.float64), score.astype(np.float64)
        error = mean - y
        return np.stack([np.ones(len(y)), self._deviance(y, mean), np.abs(error), error**2, y, mean], axis=1)

    def _deviance(self, y: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """Twice the log likelihood that a perfect prediction of each row would have more."""
        logs = y * np.log(np.where(y > 0, y, mean) / mean)
        if not self.dispersion:
            return np.asarray(2 * (logs - (y - mean)))
        shrunk = np.log((1 + self.dispersion * y) / (1 + self.dispersion * mean))
        return np.asarray(2 * (logs - (y + 1 / self.dispersion) * shrunk))

    def against_constant(self, label: np.ndarray, score: np.ndarray, loss: float) -> tuple[float, float]:
        """Deviance, beside that of the mean count."""
        y = label.astype(np.float64)
        if not y.any():
            return 0.0, 0.0  # without an event every answer of next to nothing is right
        constant = np.full(len(y), y.mean())
        return float(self._deviance(y, score.astype(np.float64)).mean()), float(self._deviance(y, constant).mean())

    def of_sums(self, sums: np.ndarray) -> dict[str, np.ndarray]:
        rows, deviance, absolute, squared, observed, expected = np.moveaxis(np.asarray(sums, dtype=np.float64), -1, 0)
        return {
            "deviance": ratio(deviance, rows),
            "mae": ratio(absolute, rows),
            "rmse": np.sqrt(ratio(squared, rows)),
            "calibration_ratio": ratio(observed, expected),
        }

    def check_terms(self, sums: Mapping[str, float]) -> None:
        rows, observed, expected, absolute = (sums[name] for name in ("rows", "observed", "expected", "absolute"))
        require(all(sums[name] >= 0 for name in self.terms), "a sum below zero")
        require(expected > 0 or not rows, "rows in which nothing is expected")
        require_spread(rows, absolute, sums["squared"], "errors")
        room = CLOSE * (observed + expected)
        require(abs(expected - observed) - room <= absolute, "errors smaller than their sum")
        require(absolute <= expected + observed + room, "errors larger than what was expected and observed")
