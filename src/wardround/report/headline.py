"""The study's primary metric, and how it is written: in one place.

Rates are given in per cent, areas under curves, scores and losses as they are, errors of numbers in the units of the
target; differences of rates and areas in points, which are hundredths, and all others as they are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from wardround.evaluation.comparisons.measures import PLAIN_DIGITS, Measure, measure_of, plainly, signed
from wardround.report.render.table import Format, decimals, percent, points, signed_decimals


@dataclass(frozen=True)
class Headline:
    measure: Measure
    shown: Format  # in a table
    difference: Format  # of two figures, in a table
    spread: Format  # of several figures, in a table

    @property
    def metric(self) -> str:
        """As results.json calls it."""
        return self.measure.metric.name

    @property
    def word(self) -> str:
        """In a sentence."""
        return self.measure.metric.words

    @property
    def title(self) -> str:
        """At the beginning of a sentence."""
        return self.word[0].upper() + self.word[1:]

    @property
    def unit(self) -> str:
        """After the word on an axis or above a column."""
        if self.measure.metric.shown == "share":
            return ", %"
        return f", {self.measure.unit}" if self.measure.unit else ""

    @property
    def scale(self) -> int:
        """From a figure to its unit."""
        return 100 if self.measure.metric.shown == "share" else 1

    @property
    def sign(self) -> int:
        """-1 where lower is better."""
        return -1 if self.measure.metric.lower_is_better else 1

    @property
    def in_points(self) -> bool:
        return self.measure.metric.in_points

    @property
    def points(self) -> str:
        """Above a column of differences."""
        return "points" if self.in_points else f"difference{self.unit}"

    @property
    def point(self) -> str:
        """What a point is, where that must be said."""
        return f" A point is 0.01 of {self.word}." if self.in_points and self.scale == 1 else ""

    @property
    def difference_scale(self) -> int:
        """From a difference to its unit."""
        return self.measure.scale

    @property
    def difference_words(self) -> str:
        """In what differences are given, within a sentence."""
        return "in points" if self.in_points else f"in {self.measure.unit}" if self.measure.unit else "as they are"

    def amount_of(self, word: str) -> str:
        """The axis of differences of a figure, by its word."""
        return f"points of {word}" if self.in_points else f"{word}{self.unit}"

    def more_than(self, word: str, other: str) -> str:
        """And from another arm."""
        return f"points of {word} more than {other}" if self.in_points else f"{word} more than {other}{self.unit}"

    def above(self, name: str = "") -> str:
        """The heading of a column: of this figure, or of what it is measured on."""
        return f"{name or self.word}{self.unit}"

    @property
    def column(self) -> tuple[str, Format]:
        """Heading and format in a table in which another figure stands first."""
        facts = self.measure.metric
        return (f"{facts.column}{self.unit}", self.shown) if facts.in_units else (facts.column, decimals)

    def text(self, value: float) -> str:
        return self.measure.figure(value)

    def limits(self, interval: Sequence[float] | None) -> tuple[float | None, float | None]:
        """Within the figures that there can be; a t-interval does not know them."""
        return self.measure.metric.within(interval) if interval else (None, None)


def headline_of(results: Mapping[str, Any], metric: str = "") -> Headline:
    """Of a run, in its primary metric or another."""
    return of_measure(measure_of(results, metric or results["primary_metric"]))


def of_measure(measure: Measure) -> Headline:
    in_points, as_it_is = measure.metric.in_points, measure.metric.shown != "share"
    plain, plain_difference = decimals, signed_decimals
    if measure.digits != PLAIN_DIGITS:
        plain, plain_difference = partial(plainly, digits=measure.digits), partial(signed, digits=measure.digits)
    return Headline(
        measure=measure,
        shown=plain if as_it_is else percent,
        difference=points if in_points else plain_difference,
        spread=percent if in_points else plain,
    )
