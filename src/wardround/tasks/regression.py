"""Regression: a number in units of its own, such as days in hospital or a laboratory value.

The model is trained on the target less its centre, divided by its spread, so that a learning rate means the same in
every unit; a prediction is turned back into units. Centre and spread are those of the training rows, or follow from the
target's declared range, which is public: with differential privacy only that will do.

A row's target has three columns: the value, its centre and its spread. The last two are the same in all rows of a
federation; they travel with the rows, because they differ from split to split.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from wardround.core.errors import StudyError
from wardround.core.settings import Positive
from wardround.tasks.answer import Answer, OneNumber
from wardround.tasks.metric import Metric
from wardround.tasks.report_facts import ReportFacts
from wardround.tasks.summed import CLOSE, MAE, RMSE, VALUE, SummedTask, as_double, needed, ratio, require_spread
from wardround.tasks.task import Link, require

CENTRE, SPREAD = 1, 2  # columns of a row's target
TINY = sys.float_info.min  # below it squares lose their digits
NO_SPREAD = 1e-12  # what rounding leaves of a constant, in parts of its square


@dataclass(frozen=True)
class Regression(SummedTask):
    """`loss` is that of the scaled target: half the squared error, or Huber's, which counts errors above `delta`
    spreads by their size alone, so that a few extreme patients do not decide (Huber, Ann. Math. Statist. 35, 1964)."""

    kind: ClassVar[str] = "regression"
    curve: ClassVar[str] = "mae"
    primary: ClassVar[str] = "mae"
    metrics: ClassVar[tuple[Metric, ...]] = (
        MAE,
        RMSE,
        Metric(
            "r2",
            "R²",
            "higher",
            "plain",
            -inf,
            1.0,
            meaning="the share of the variation between patients that is explained (R², 1 is all) is {amount}",
        ),
        Metric("calibration_slope", "calibration slope", None, "plain", -inf, inf, terse="slope"),
        Metric("calibration_intercept", "calibration intercept", None, "units", -inf, inf, terse="intercept"),
    )
    compared: ClassVar[tuple[str, ...]] = ("mae", "rmse", "r2")
    at_sites: ClassVar[tuple[str, ...]] = ("mae", "rmse")
    over_sites: ClassVar[tuple[str, ...]] = ("mae", "rmse", "r2")
    has_noise: ClassVar[bool] = True
    referral_metrics: ClassVar[tuple[str, str]] = ("mae", "rmse")
    terms: ClassVar[tuple[str, ...]] = ("rows", "absolute", "squared", "y", "yy", "p", "pp", "yp")
    target_terms: ClassVar[tuple[str, ...]] = ("rows", "total", "squares")

    loss: Literal["squared", "huber"] = "squared"
    delta: Positive = 1.35

    @property
    def report(self) -> ReportFacts:
        return replace(
            super().report,
            groups=(("mae", "rmse"), ("r2",)),
            outside=("rmse", "mae"),
            with_sd=("mae", "rmse"),
            may_lack=("r2", "calibration_slope"),
        )

    @property
    def answer(self) -> Answer:
        return OneNumber(self.names, self.unit)

    @property
    def origin(self) -> float:
        """From where values are counted in sums, the same at every hospital: squares of large numbers that differ
        little would leave no digits for their differences."""
        return 0.0 if self.range is None else sum(self.range) / 2

    @property
    def scale_width(self) -> int:
        return 2

    def of_numbers(self, values: np.ndarray) -> np.ndarray:
        return np.asarray(values[:, VALUE])

    def target_sums(self, target: np.ndarray) -> np.ndarray:
        if self.range is not None:
            return np.zeros(0)
        return np.array([len(target), target.sum(), (target**2).sum()], dtype=np.float64)

    def check_target_terms(self, sums: Mapping[str, float]) -> None:
        rows, total, squares = (sums[name] for name in self.target_terms)
        require(rows > 0 or total == squares == 0, "sums of the target over no rows")
        require_spread(rows, total, squares, "the target")

    def blank_target(self, rows: int) -> np.ndarray:
        return np.zeros(rows)

    def scale(self, sums: np.ndarray) -> tuple[float, ...]:
        """Centre and spread: mean and SD over all sites, or the middle and a quarter of the public range."""
        if self.range is not None:
            low, high = self.range
            return (low + high) / 2, (high - low) / 4
        rows, total, squares = sums.tolist()
        centre = total / max(rows, 1)
        variance = squares / max(rows, 1) - centre**2
        return centre, math.sqrt(variance) if variance > NO_SPREAD * squares / max(rows, 1) else 1.0

    def training_target(self, target: np.ndarray, scale: tuple[float, ...]) -> np.ndarray:
        return np.column_stack([target, *(np.full(len(target), value) for value in scale)])

    def losses_and_errors(self, scores: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        scaled = (as_double(y, VALUE) - as_double(y, CENTRE)) / as_double(y, SPREAD)
        error = scores - scaled.to(scores.dtype).unsqueeze(-1)
        if self.loss == "squared":
            return error.square() / 2, error
        inside = error.clamp(-self.delta, self.delta)
        return inside * (error - inside / 2), inside

    def curvature(self, scores: Tensor, y: Tensor) -> Tensor:
        if self.loss != "squared":
            raise StudyError(
                "uncertainty: laplace",
                "Huber's loss is that of no distribution, so that there is no likelihood to approximate",
                "Use the squared loss, dropout, or an ensemble of several seeds.",
            )
        return torch.ones_like(scores)

    def expected_losses(self, scores: Tensor, variance: Tensor, y: Tensor, noise: float = 1.0) -> Tensor:
        """The negative log likelihood of a normal distribution with the variance of scores and of outcomes."""
        whole = (variance + noise).squeeze(-1)
        squares = self.losses_and_errors(scores, y)[1].squeeze(-1).square()
        return (whole.log() + squares / whole) / 2

    def predictions(self, scores: Tensor, y: Tensor | None = None) -> Tensor:
        scale = needed(y)
        return scores.squeeze(-1).double() * as_double(scale, SPREAD) + as_double(scale, CENTRE)

    @property
    def link(self) -> Link:
        return "units"

    def on_link_scale(self, scores: Tensor, scale: tuple[float, ...]) -> Tensor:
        centre, spread = scale
        return scores[..., :1].double() * spread + centre

    def row_figures(self, scores: Tensor, y: Tensor) -> Tensor:
        return (self.predictions(scores, y) - as_double(y, VALUE)).abs()

    def row_terms(self, label: np.ndarray, score: np.ndarray) -> np.ndarray:
        y, p = label.astype(np.float64) - self.origin, score.astype(np.float64) - self.origin
        error = p - y
        return np.stack([np.ones(len(y)), np.abs(error), error**2, y, y * y, p, p * p, y * p], axis=1)

    def against_constant(self, label: np.ndarray, score: np.ndarray, loss: float) -> tuple[float, float]:
        """Mean squared error, beside that of the mean."""
        return float(np.mean((score - label) ** 2)), float(label.var())

    def of_sums(self, sums: np.ndarray) -> dict[str, np.ndarray]:
        rows, absolute, squared, y, yy, p, pp, yp = np.moveaxis(np.asarray(sums, dtype=np.float64), -1, 0)
        mean_y, mean_p = ratio(y, rows), ratio(p, rows)
        slope = ratio(yp - y * mean_p, _spread(pp, p * mean_p))
        return {
            "mae": ratio(absolute, rows),
            "rmse": np.sqrt(ratio(squared, rows)),
            "r2": 1 - ratio(squared, _spread(yy, y * mean_y)),
            "calibration_slope": slope,
            "calibration_intercept": mean_y + self.origin - slope * (mean_p + self.origin),
        }

    def totals(self, terms: Sequence[float]) -> tuple[float, float, float]:
        sums = dict(zip(self.terms, terms, strict=True))
        moved = self.origin * sums["rows"]
        return sums["y"] + moved, sums["p"] + moved, sums["squared"]

    def check_terms(self, sums: Mapping[str, float]) -> None:
        """Squares are those of numbers with these sums, and errors are differences of what was predicted and what was
        observed: their squares follow from the others."""
        rows, p, y = sums["rows"], sums["p"], sums["y"]
        require_spread(rows, y, sums["yy"], "the target")
        require_spread(rows, p, sums["pp"], "predictions")
        require_spread(rows, sums["absolute"], sums["squared"], "errors")
        room = CLOSE * (sums["pp"] + sums["yy"])
        require(abs(sums["pp"] - 2 * sums["yp"] + sums["yy"] - sums["squared"]) <= room, "errors of other predictions")
        require(
            sums["yp"] ** 2 <= sums["yy"] * sums["pp"] * (1 + CLOSE) + TINY, "sums of products that no numbers have"
        )
        absolute = sums["absolute"]
        require(absolute >= abs(p - y) - CLOSE * (abs(p) + abs(y) + absolute), "errors smaller than their sum")


def _spread(squares: np.ndarray, around: np.ndarray) -> np.ndarray:
    """Squared deviations from the mean; 0 where only rounding is left."""
    spread = squares - around
    return np.where(spread > NO_SPREAD * squares, spread, 0.0)
