"""How figures of a run are written for people: in per cent, in points, in the units of the target, or as they are."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import floor, log10
from statistics import median
from typing import Any

from wardround.evaluation.comparisons.differences import is_clear
from wardround.tasks import METRIC_FACTS, Task, class_task, findings_task, read_task
from wardround.tasks.metric import Metric

MOST_DIGITS = 6  # of a limit
PLAIN_DIGITS = 3  # behind the point
HUGE = 1e7
SIGNIFICANT = 3  # digits of a figure in units


@dataclass(frozen=True)
class Measure:
    """A metric, with the unit and the number of digits behind the point that its figures have in a run."""

    metric: Metric
    unit: str = ""
    digits: int = PLAIN_DIGITS

    @classmethod
    def of(cls, metric: str) -> "Measure":
        """Without a unit, where no run is at hand."""
        return cls(METRIC_FACTS[metric])

    @cached_property
    def scale(self) -> int:
        """Of differences: a point is a hundredth."""
        return 100 if self.metric.in_points else 1

    def difference(self, value: float, with_unit: bool = True) -> str:
        if self.metric.in_points:
            return f"{signed(self.scale * value, 1)}{' points' if with_unit else ''}"
        return f"{signed(value, self.digits)}{self._behind if with_unit else ''}"

    def figure(self, value: float) -> str:
        """As it is: rates in per cent, areas, scores and losses as they are."""
        if self.metric.shown == "share":
            return f"{100 * value:.1f} %"
        return f"{plainly(value, self.digits)}{self._behind}"

    def limits(self, entry: Mapping[str, Any]) -> str:
        """Both limits of a difference. Where the interval leaves out 0, none of them is rounded to it."""
        digits = 1 if self.metric.in_points else self.digits
        ends = [self.scale * limit for limit in entry["interval"]]
        while digits < MOST_DIGITS and is_clear(entry) and any(not round(end, digits) for end in ends):
            digits += 1
        low, high = (signed(end, digits) for end in ends)
        return f"{low} to {high}"

    @property
    def least(self) -> str:
        """The smallest difference that is not written as nothing, without its sign."""
        smallest = 0.001 if self.metric.in_points else 10.0**-self.digits
        return self.difference(smallest)[1:]

    @property
    def _behind(self) -> str:
        return f" {self.unit}" if self.unit else ""


def recorded_task(results: Mapping[str, Any]) -> Task:
    """What a results.json predicts: of several outcomes the one that it is about. Those of earlier versions name no
    task, and have classes or findings."""
    content = results["outcomes"][results["outcome"]] if results.get("outcomes") else results
    if "task" in content:
        return read_task(content["task"])
    if results.get("findings"):
        return findings_task(results["findings"])
    return class_task(list(next(iter(results["sites"][0]["sites"].values()))["classes"]))


def measure_of(results: Mapping[str, Any], metric: str) -> Measure:
    facts = METRIC_FACTS[metric]
    if not facts.in_units:
        return Measure(facts)
    return Measure(facts, recorded_task(results).report.unit, unit_digits(results["arms"]))


def measured_in(task: Task, metric: str, errors: Iterable[float | None]) -> Measure:
    """With the task's unit, and digits for errors of this size, where no whole run is at hand."""
    facts = METRIC_FACTS[metric]
    return Measure(facts, task.report.unit, digits_of(errors)) if facts.in_units else Measure(facts)


def unit_digits(arms: Mapping[str, Any]) -> int:
    """Of all figures in units of a run alike."""
    return digits_of(
        figures["mean"]
        for arm in arms.values()
        for metric, figures in arm["metrics"].items()
        if METRIC_FACTS[metric].in_units and METRIC_FACTS[metric].better
    )


def digits_of(errors: Iterable[float | None]) -> int:
    """Behind the point, so that an error of the usual size has three digits: 1.51 days, 16.5 beats, 0.0123 mmol/l. The
    middle one decides, because one model may have diverged."""
    known = [abs(error) for error in errors if error]
    if not known:
        return PLAIN_DIGITS
    return min(MOST_DIGITS, max(0, SIGNIFICANT - 1 - floor(log10(median(known)))))


def plainly(value: float, digits: int) -> str:
    """A model that has diverged may have errors with more digits than a table has room for."""
    return f"{value:.{digits}f}" if abs(value) < HUGE else f"{value:.1e}"


def signed(value: float, digits: int) -> str:
    """With its sign, unless it rounds to nothing."""
    if abs(value) >= HUGE:
        return f"{value:+.1e}"
    return f"{value:+.{digits}f}" if round(value, digits) else f"{0:.{digits}f}"
