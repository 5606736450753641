"""The study's primary metric, and how it is written: in one place.

Rates are given in per cent, areas under curves, scores and losses as they are; differences of what is better when it is
higher in points, which are hundredths.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wardround.report.render.table import Format, decimals, percent, points, signed_decimals
from wardround.tasks import METRIC_FACTS


@dataclass(frozen=True)
class Headline:
    metric: str  # as results.json calls it
    word: str  # in a sentence
    unit: str  # after the word on an axis or above a column
    scale: int  # from a figure to its unit
    shown: Format  # in a table
    difference: Format  # of two figures, in a table
    points: str  # above a column of differences
    point: str  # what a point is, where that must be said

    @property
    def title(self) -> str:
        """At the beginning of a sentence."""
        return self.word[0].upper() + self.word[1:]

    @property
    def sign(self) -> int:
        """-1 where lower is better."""
        return -1 if METRIC_FACTS[self.metric].lower_is_better else 1

    @property
    def difference_scale(self) -> int:
        """From a difference to its unit."""
        return 100 if self.points == "points" else 1

    @property
    def difference_unit(self) -> str:
        """Before the word on an axis of differences."""
        return "points of " if self.points == "points" else ""

    def above(self, name: str = "") -> str:
        """The heading of a column: of this figure, or of what it is measured on."""
        return f"{name or self.word}{self.unit}"

    def text(self, value: float) -> str:
        return f"{self.shown(value)} %" if self.unit else self.shown(value)


def _headline(metric: str) -> Headline:
    word, in_points = METRIC_FACTS[metric].words, METRIC_FACTS[metric].in_points
    as_it_is = METRIC_FACTS[metric].shown != "share"
    return Headline(
        metric=metric,
        word=word,
        unit="" if as_it_is else ", %",
        scale=1 if as_it_is else 100,
        shown=decimals if as_it_is else percent,
        difference=points if in_points else signed_decimals,
        points="points" if in_points else "difference",
        point=f" A point is 0.01 of {word}." if as_it_is and in_points else "",
    )


HEADLINES = {metric: _headline(metric) for metric in METRIC_FACTS}


def headline_of(entry: Mapping[str, Any]) -> Headline:
    """Of a run's results, by their `primary_metric`, or of an entry that names its `metric`."""
    return HEADLINES[entry.get("primary_metric") or entry["metric"]]
