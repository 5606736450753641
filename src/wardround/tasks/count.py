"""Count: a number of events, such as admissions, over a time or among people at risk (the exposure).

The model gives the logarithm of the rate per unit of exposure; a row's expected count is that rate times its exposure.
Poisson counts vary as their mean. The negative binomial (NB2) has the variance mean + dispersion x mean², which counts
of patients mostly need.

Training starts at the rate of all sites together, and its loss is counted in mean counts, so that a learning rate means
the same for rare and for frequent events; neither changes which model fits best. A row's target in training has four
columns: the count, its exposure, the logarithm of that rate, and the mean count. The last two are the same in all rows
of a federation.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from wardround.core.settings import NonNegative
from wardround.tasks.answer import Answer, OneNumber
from wardround.tasks.metric import Metric
from wardround.tasks.report_facts import ReportFacts
from wardround.tasks.summed import CLOSE, MAE, RMSE, VALUE, SummedTask, as_double, needed, ratio, require_spread
from wardround.tasks.task import Link, WrongRows, require

EXPOSURE, LOG_RATE, MEAN = 1, 2, 3  # columns of a row's target
LEAST_MEAN = 1e-3  # where no event is known
LARGEST = 30.0  # of the logarithm of an expected count: beyond it only an overflow would follow


@dataclass(frozen=True)
class Count(SummedTask):
    kind: ClassVar[str] = "count"
    curve: ClassVar[str] = "mae"
    loss_from_zero: ClassVar[bool] = False  # a likelihood without its constant terms
    primary: ClassVar[str] = "deviance"
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric(
            "deviance",
            "deviance",
            "lower",
            "plain",
            0.0,
            inf,
            over_rows=True,
            meaning="the misfit of predicted counts (mean deviance, 0 is perfect) is {amount}",
        ),
        MAE,
        RMSE,
        Metric("calibration_ratio", "observed / expected", None, "plain", 0.0, inf, terse="obs./exp."),
    )
    compared: ClassVar[tuple[str, ...]] = ("deviance", "mae", "rmse")
    at_sites: ClassVar[tuple[str, ...]] = ("deviance", "mae")
    over_sites: ClassVar[tuple[str, ...]] = ("deviance", "mae", "rmse")
    referral_metrics: ClassVar[tuple[str, str]] = ("deviance", "mae")
    terms: ClassVar[tuple[str, ...]] = ("rows", "deviance", "absolute", "squared", "observed", "expected")
    target_terms: ClassVar[tuple[str, ...]] = ("rows", "events", "exposure")

    dispersion: NonNegative | Literal["fitted"] = 0.0  # 0: Poisson; above: negative binomial; fitted: a shared leaf
    exposure: str = ""  # the column with each row's exposure; empty: 1 in all rows

    @property
    def report(self) -> ReportFacts:
        facts, (name,) = super().report, self.names
        outcome = facts.outcome.replace("A number", "A count")
        rate = {"rate": f"{name} per unit of {self.exposure}"} if self.exposure else {}
        return replace(
            facts,
            outcome=f"{outcome}, over {self.exposure}" if self.exposure else outcome,
            groups=(("deviance", "mae"), ("calibration_ratio",)),
            outside=("mae", "deviance"),
            with_sd=("deviance", "mae"),
            lacking="test rows",
            least=0.0,
            curves=f"{facts.curves}, observed / expected",
            target={**facts.target, **rate},
            figures=(*facts.figures, "observed-expected"),
        )

    def describe_target(self, target: np.ndarray) -> dict[str, float | None] | None:
        described = super().describe_target(target)
        if described is None or not self.exposure or described["mean"] is None:
            return described
        return {**described, "rate": float(target[:, VALUE].sum() / target[:, EXPOSURE].sum())}

    @property
    def leaves(self) -> dict[str, float]:
        """`fitted`: the logarithm of the dispersion, learnt like any weight."""
        return {"log_dispersion": 0.0} if self.dispersion == "fitted" else {}

    @property
    def known_dispersion(self) -> float:
        """By which figures are computed: where it is fitted, all arms have Poisson's deviance as one yardstick."""
        return 0.0 if isinstance(self.dispersion, str) else self.dispersion

    @property
    def answer(self) -> Answer:
        return OneNumber(self.names, exposure=self.exposure, is_count=True)

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.exposure,) if self.exposure else ()

    def wrong_setting(self) -> tuple[str, str, str] | None:
        if self.range is not None and self.range[0] < 0:
            return "range", "a count is never below 0", "Write [0, highest]."
        if self.exposure and self.exposure in self.names:
            return "exposure", "this is the target", "Name the column with the time or the people at risk."
        return super().wrong_setting()

    def wrong_rows(self, values: np.ndarray) -> Iterator[WrongRows]:
        count = values[:, VALUE]
        yield WrongRows(count < 0, VALUE, "are negative, and a count is not", "Correct them, or empty them.")
        remedy = 'Correct them, or write `task = "regression"` for a number that need not be whole.'
        yield WrongRows(count != np.round(count), VALUE, "are no whole numbers, and a count is", remedy)
        if self.exposure:
            remedy = "Give the time or the number of people at risk, above 0, or leave these rows out."
            yield WrongRows(~(values[:, EXPOSURE] > 0), EXPOSURE, "are not above 0, and an exposure is", remedy)

    @property
    def target_width(self) -> int:
        return 2

    @property
    def scale_width(self) -> int:
        return 2

    def of_numbers(self, values: np.ndarray) -> np.ndarray:
        exposure = values[:, EXPOSURE] if self.exposure else np.ones(len(values))
        return np.column_stack([values[:, VALUE], exposure])

    def target_sums(self, target: np.ndarray) -> np.ndarray:
        if self.range is not None:
            return np.zeros(0)
        return np.array([len(target), *target.sum(axis=0)], dtype=np.float64)

    def check_target_terms(self, sums: Mapping[str, float]) -> None:
        rows, events, exposure = (sums[name] for name in self.target_terms)
        require(events >= 0 and events == round(events), "a sum of counts that is no count")
        require(exposure > 0 if rows else events == exposure == 0, "a sum of exposures that no rows have")
        require(bool(self.exposure) or exposure == rows, "another exposure than 1 in each row")

    def blank_target(self, rows: int) -> np.ndarray:
        return np.ones((rows, 2))

    def scale(self, sums: np.ndarray) -> tuple[float, ...]:
        """The logarithm of the rate and the mean count over all sites; or from a quarter of the way up the public
        range, for an exposure of 1."""
        if self.range is not None:
            low, high = self.range
            mean = max(low + (high - low) / 4, LEAST_MEAN)
            return math.log(mean), mean
        rows, events, exposure = sums.tolist()
        if not events:
            return math.log(LEAST_MEAN), LEAST_MEAN
        return math.log(events / exposure), events / rows

    def training_target(self, target: np.ndarray, scale: tuple[float, ...]) -> np.ndarray:
        return np.column_stack([target, *(np.full(len(target), value) for value in scale)])

    def values(self, target: np.ndarray) -> np.ndarray:
        return np.asarray(target[:, VALUE])

    def sizes(self, target: np.ndarray) -> np.ndarray | None:
        """Rates, whose unit is that of the exposure."""
        return np.asarray(target[:, VALUE] / target[:, EXPOSURE])

    def losses_and_errors(self, scores: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The negative log likelihood without the terms that no model changes, in mean counts."""
        count, size = (y[..., place].to(scores.dtype).unsqueeze(-1) for place in (VALUE, MEAN))
        log_mean = self._log_mean(scores, y.unsqueeze(-2))
        mean = log_mean.exp()
        spread = self.known_dispersion
        if not spread:
            return (mean - count * log_mean) / size, (mean - count) / size
        losses = (count + 1 / spread) * (spread * mean).log1p() - count * log_mean
        return losses / size, (mean - count) / (1 + spread * mean) / size

    def row_losses(self, scores: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        if self.dispersion != "fitted":
            return super().row_losses(scores, y)
        count, size = y[..., VALUE].to(scores.dtype), y[..., MEAN].to(scores.dtype)
        log_mean, log_spread = self._log_mean(scores[..., 0], y), scores[..., 1].clamp(-LARGEST, LARGEST)
        shape = (-log_spread).exp()
        # the likelihood with its terms that depend on the dispersion
        constant = torch.lgamma(count + shape) - torch.lgamma(shape)
        log_total = torch.logaddexp(log_mean, -log_spread)
        losses = (count + shape) * (log_total + log_spread) - count * (log_mean + log_spread) - constant
        return losses / size

    def curvature(self, scores: Tensor, y: Tensor) -> Tensor:
        """On average over counts with the predicted mean (Fisher's information)."""
        mean = self._log_mean(scores, y.unsqueeze(-2)).exp()
        return mean / (1 + self.known_dispersion * mean)

    def expected_losses(self, scores: Tensor, variance: Tensor, y: Tensor, noise: float = 1.0) -> Tensor:
        """The mean of exp(score) over normally distributed scores is exp(score + variance / 2)."""
        return self.row_losses(scores + variance / 2, y)

    def predictions(self, scores: Tensor, y: Tensor | None = None) -> Tensor:
        """Expected counts, for each row's own exposure."""
        return self._log_mean(scores[..., 0].double(), needed(y)).exp()

    @property
    def link(self) -> Link:
        return "log rate"

    def on_link_scale(self, scores: Tensor, scale: tuple[float, ...]) -> Tensor:
        """For an exposure of 1."""
        log_rate, _ = scale
        return scores[..., :1].double() + log_rate

    def row_figures(self, scores: Tensor, y: Tensor) -> Tensor:
        return (self.predictions(scores, y) - as_double(y, VALUE)).abs()

    def _log_mean(self, scores: Tensor, y: Tensor) -> Tensor:
        beside = as_double(y, EXPOSURE).log() + as_double(y, LOG_RATE)
        return (scores + beside.to(scores.dtype)).clamp(max=LARGEST)

    def diverged(self, score: np.ndarray) -> bool:
        return super().diverged(score) or bool((score <= 0).any())  # an expected count that is no number above 0

    def variance(self, score: np.ndarray) -> np.ndarray | None:
        return np.asarray(score + self.known_dispersion * score**2)

    def possible(self, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Whole numbers from 0 on. Where none lies between the ends, the next below and above."""
        first, last = np.maximum(np.ceil(low), 0), np.floor(high)
        none = first > last
        first = np.where(none, np.maximum(np.floor(low), 0), first)
        return first, np.maximum(np.where(none, np.ceil(high), last), first)

    def row_terms(self, label: np.ndarray, score: np.ndarray) -> np.ndarray:
        y, mean = label.astype(np.float64), score.astype(np.float64)
        error = mean - y
        return np.stack([np.ones(len(y)), self._deviance(y, mean), np.abs(error), error**2, y, mean], axis=1)

    def _deviance(self, y: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """Twice the log likelihood that a perfect prediction of each row would have more."""
        logs, spread = y * np.log(np.where(y > 0, y, mean) / mean), self.known_dispersion
        if not spread:
            return np.asarray(2 * (logs - (y - mean)))
        shrunk = np.log((1 + spread * y) / (1 + spread * mean))
        return np.asarray(2 * (logs - (y + 1 / spread) * shrunk))

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

    def totals(self, terms: Sequence[float]) -> tuple[float, float, float]:
        sums = dict(zip(self.terms, terms, strict=True))
        return sums["observed"], sums["expected"], sums["squared"]

    def check_terms(self, sums: Mapping[str, float]) -> None:
        rows, observed, expected, absolute = (sums[name] for name in ("rows", "observed", "expected", "absolute"))
        least = -CLOSE * (1 + observed + expected)  # of a perfect prediction rounding may leave less than nothing
        require(sums["deviance"] >= least, "a deviance below zero")
        require(min(observed, expected, absolute) >= 0, "a sum below zero")
        require(expected > 0 or not rows, "rows in which nothing is expected")
        require_spread(rows, absolute, sums["squared"], "errors")
        room = CLOSE * (observed + expected)
        require(abs(expected - observed) - room <= absolute, "errors smaller than their sum")
        require(absolute <= expected + observed + room, "errors larger than what was expected and observed")
