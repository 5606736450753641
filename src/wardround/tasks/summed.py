"""Tasks whose metrics follow from sums over rows: one list of terms gives the figures of all rows, of groups of rows,
under the weights of a resample, and of several hospitals whose sums are added up, exactly.

Such a task names the terms of a row (`row_terms`) and what follows from their sums (`of_sums`). A label is a number,
and so is a prediction.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum, inf, isfinite, isnan
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch
from torch import Tensor

from wardround.core.errors import StudyError
from wardround.tasks.metric import Metric
from wardround.tasks.report_facts import ReportFacts
from wardround.tasks.task import MIDDLE, Task, require

FIFTHS = 5
FEWEST_TOLD = 10  # rows whose mean and spread may be told
QUARTERS = (1, 2, 3)
FARTHEST = 1e150  # a prediction whose square, summed over rows, is still a number
CLOSE = 1e-6  # what rounding may leave of a sum, in parts of it
MAE = Metric(
    "mae",
    "mean absolute error",
    "lower",
    "units",
    0.0,
    inf,
    over_rows=True,
    heading="MAE",
    meaning="predictions miss by {amount}",
    comparatives=("more", "less"),
)
RMSE = Metric(
    "rmse",
    "root mean squared error",
    "lower",
    "units",
    0.0,
    inf,
    over_rows=True,
    heading="RMSE",
    meaning="predictions miss by {amount}, large misses counting more (root mean square)",
    comparatives=("more", "less"),
)
SCALE = 2  # columns of a row's target in training, the last ones: where the numbers lie, and how large they are
VALUE = 0  # the column of a row's target in which the number itself stands


@dataclass(frozen=True)
class SummedTask(Task):
    reads: ClassVar[Literal["classes", "numbers"]] = "numbers"
    name_count = 1
    has_upper = True
    answers: ClassVar[Literal["class", "findings", "number", "several"]] = "number"
    calibration = "linear"
    told_by_all = True
    terms: ClassVar[tuple[str, ...]]  # the first is the number of rows
    target_terms: ClassVar[tuple[str, ...]]  # of `target_sums`, without a public range; the first is that number too

    range: tuple[float, float] | None = None  # what is known of the target without looking at rows: lowest, highest
    unit: str = ""  # days, mmol/l, admissions: shown behind figures

    @property
    def report(self) -> ReportFacts:
        (name,), unit = self.names, f", {self.unit}" if self.unit not in ("", *self.names) else ""
        return replace(
            super().report,
            arms=tuple(metric.name for metric in self.metrics if metric.better is not None),  # the line has a table
            unit=self.unit,
            named=f"{name}{unit}",
            outcome=f"A number: {name}{unit}",
            output=f"The expected value of {name}{unit}",
            balance="A number is predicted; the table of sites has its mean and spread",
            strata=f"fifths of {name}",
            labels="labels in fifths",
            lacking="test rows with different values",
            quality="Size of the errors",
            told="sums over these rows, of errors, outcomes and predictions, from which the metrics follow",
            told_before="" if self.scale_is_public else f", sums of {name} over training rows,",
            score="prediction",
            curves=", calibration, residuals",
            needs_rows="calibration and residuals by the size of the prediction",
            target={"mean": f"mean {name}{unit}", "sd": f"SD of {name}"},
            figures=("target", "predicted-observed", "residuals"),
        )

    def describe_target(self, target: np.ndarray) -> dict[str, float | None] | None:
        values = self.values(target)
        if len(values) < FEWEST_TOLD:
            return dict.fromkeys(self.report.target)
        return {"mean": float(values.mean()), "sd": float(values.std(ddof=1))}

    def wrong_setting(self) -> tuple[str, str, str] | None:
        if self.range is not None and not self.range[0] < self.range[1]:
            return "range", "the limits are not in order", "Write [lowest, highest]."
        return None

    @property
    def public_range(self) -> tuple[float, float] | None:
        return self.range

    def with_range(self, known: tuple[float, float]) -> Task:
        return replace(self, range=known)

    @property
    def scale_is_public(self) -> bool:
        return self.range is not None

    def check_target_sums(self, sums: Sequence[float], rows: int) -> None:
        if self.range is not None:
            super().check_target_sums(sums, rows)
            return
        require(len(sums) == len(self.target_terms), "another number of sums of the target than the task has")
        require(sums[0] == rows, "sums of the target of another number of rows")
        self.check_target_terms(dict(zip(self.target_terms, sums, strict=True)))

    @abstractmethod
    def check_target_terms(self, sums: Mapping[str, float]) -> None:
        """`Impossible` where no training rows can have these sums."""

    def check_scale(self, scale: Sequence[float]) -> None:
        require(len(scale) == 2 and all(map(isfinite, scale)) and scale[1] > 0, "a scale that no target has")
        if self.range is not None:
            require(tuple(scale) == self.scale(np.zeros(0)), "another scale than follows from the public range")

    @property
    def outputs(self) -> int:
        return 1

    def unknown_target(self, columns: np.ndarray, scale: tuple[float, ...]) -> np.ndarray:
        values = np.column_stack([np.zeros(len(columns)), columns])
        return self.training_target(self.of_numbers(values), scale)

    def columns_in(self, y: np.ndarray) -> np.ndarray:
        return y[:, VALUE + 1 : VALUE + 1 + len(self.columns)]

    def scale_in(self, y: np.ndarray) -> tuple[float, ...]:
        return tuple(float(value) for value in y[0, -SCALE:])

    def is_scale(self, scale: tuple[float, ...]) -> bool:
        return len(scale) == SCALE and scale[-1] > 0

    def spread_in(self, scale: tuple[float, ...]) -> float:
        return scale[-1]

    def row_losses(self, scores: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        return self.losses_and_errors(scores, y)[0].squeeze(-1)

    def variance(self, score: np.ndarray) -> np.ndarray | None:
        """Of outcomes with these predictions, where the task has a family that says so. None: it is the same in all
        rows, and known from residuals alone."""
        return None

    def possible(self, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The outcomes that there can be between these ends."""
        return low, high

    @abstractmethod
    def row_terms(self, label: np.ndarray, score: np.ndarray) -> np.ndarray:
        """(rows, terms)"""

    @abstractmethod
    def of_sums(self, sums: np.ndarray) -> dict[str, np.ndarray]:
        """Each metric, for sums (..., terms); NaN where it is not defined."""

    def figures(self, label: np.ndarray, score: np.ndarray, threshold: np.ndarray | float = MIDDLE) -> dict[str, float]:
        sums = self.row_terms(label, score).sum(axis=0)
        return {name: float(value) for name, value in self.of_sums(sums).items()}

    def grouped_figures(
        self,
        group: np.ndarray,
        count: int,
        label: np.ndarray,
        score: np.ndarray,
        threshold: np.ndarray | float = MIDDLE,
    ) -> np.ndarray:
        terms = self.row_terms(label, score).T
        sums = np.stack([np.bincount(group, weights=column, minlength=count) for column in terms], axis=1)
        return self._stacked(sums)

    def weighted_figures(
        self, label: np.ndarray, score: np.ndarray, threshold: np.ndarray | float = MIDDLE
    ) -> list[Callable[[np.ndarray], np.ndarray]]:
        terms = self.row_terms(label, score)
        return [lambda weights: self._stacked(weights.astype(np.float64) @ terms)]

    def label(self, y: Tensor) -> Tensor:
        return y[..., VALUE]

    def predicted(self, score: np.ndarray, threshold: np.ndarray | float = MIDDLE) -> np.ndarray:
        return score

    def row_values(
        self, label: np.ndarray, score: np.ndarray, threshold: np.ndarray | float = MIDDLE
    ) -> np.ndarray | None:
        return np.asarray(np.abs(score.astype(np.float64) - label))

    def _stacked(self, sums: np.ndarray) -> np.ndarray:
        figures = self.of_sums(sums)
        return np.stack([figures[metric.name] for metric in self.metrics], axis=-1)

    def diverged(self, score: np.ndarray) -> bool:
        return not bool((np.abs(score) < FARTHEST).all())  # NaN is not below it either

    def row_sums(
        self, label: np.ndarray, score: np.ndarray, threshold: float = MIDDLE, by_class: bool = True
    ) -> dict[str, Any]:
        """Each term of `terms`, summed over the rows: no value of a single one, and neither a least nor a largest."""
        return {"terms": self.row_terms(label, score).sum(axis=0).tolist()}

    def figures_of_rows(self, told: Mapping[str, Any]) -> Mapping[str, float | None]:
        return {name: _or_none(value) for name, value in self.merged_figures([told]).items()}

    def merged_figures(self, told: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        if not told:
            return {}
        sums = np.array([fsum(term) for term in zip(*(of_site["terms"] for of_site in told), strict=True)])
        return {name: float(value) for name, value in self.of_sums(sums).items()}

    def check_sums(self, told: Mapping[str, Any], rows: int) -> None:
        terms = told.get("terms", ())
        require(len(terms) == len(self.terms), "another number of sums than the task has")
        require(terms[0] == rows, "sums of another number of rows")
        self.check_terms(dict(zip(self.terms, terms, strict=True)))

    @abstractmethod
    def check_terms(self, sums: Mapping[str, float]) -> None:
        """`Impossible` where no rows can have these sums. The first, their number, is known to be right."""

    def score_unit(self, label: np.ndarray) -> float:
        return float(label.std())

    def label_counts(self, target: np.ndarray) -> dict[str, int]:
        return {}

    def strata(self, target: np.ndarray, rows: np.ndarray) -> np.ndarray:
        values = self.values(target)
        return fifths(values, values[rows])

    def coarse(self, target: np.ndarray) -> tuple[np.ndarray, int]:
        values = self.values(target)
        return fifths(values, values), FIFTHS

    def yes_or_no(self, target: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
        """Whether a row lies above each quartile."""
        values = self.values(target)
        for quarter in QUARTERS if len(values) else ():
            yield f"above quartile {quarter}", (values > np.quantile(values, quarter / 4)).astype(np.int64)

    def as_number(self, target: np.ndarray) -> np.ndarray | None:
        return self.values(target).astype(np.float64)

    def is_upper(self, target: np.ndarray) -> np.ndarray | None:
        values = self.values(target)
        return np.asarray(values > np.median(values)) if len(values) else np.zeros(0, dtype=bool)

    def sizes(self, target: np.ndarray) -> np.ndarray | None:
        return self.values(target)

    def written(self, target: np.ndarray) -> dict[str, np.ndarray]:
        beside = target.reshape(len(target), -1).T[1:]
        return {"label": self.values(target), **dict(zip(self.columns, beside, strict=False))}

    def class_weights(self, labels: Tensor) -> Tensor:
        raise _no_classes("class_weights")

    def rarity(self, labels: Tensor) -> Tensor:
        raise _no_classes("oversample")


def number_task(task: Task) -> SummedTask:
    """For code that only tasks of numbers reach."""
    if task.answers != "number":
        raise ValueError(f"{task.kind} predicts no number")
    return cast(SummedTask, task)


def fifths(values: np.ndarray, among: np.ndarray) -> np.ndarray:
    """In which fifth of `among` each value lies, counted from 0. Equal values lie in one."""
    cuts = np.quantile(among, np.arange(1, FIFTHS) / FIFTHS) if len(among) else np.zeros(0)
    return np.searchsorted(cuts, values, side="right")


def as_double(y: Tensor, column: int) -> Tensor:
    return y[..., column].to(torch.float64)


def needed(y: Tensor | None) -> Tensor:
    if y is None:
        raise ValueError("a number is predicted in the scale that its target has beside the value")
    return y


def ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """NaN where there is nothing to divide by."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(whole > 0, part / whole, np.nan))


def require_spread(rows: float, total: float, squares: float, what: str) -> None:
    """The squares of numbers are at least what Cauchy and Schwarz say of their sum."""
    least = total * total / rows if rows else 0.0
    require(squares >= 0 and squares >= least - CLOSE * max(squares, least), f"sums of {what} that no numbers have")


def _or_none(value: float) -> float | None:
    return None if isnan(value) else value


def _no_classes(setting: str) -> StudyError:
    return StudyError(f"training: {setting}", "is for classes, and a number is predicted", f"Leave `{setting}` out.")
