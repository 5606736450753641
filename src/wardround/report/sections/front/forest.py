"""The forest plot of page one: a line for each hospital, and their mean, against staying alone.

It is a table with a small drawing in each line, so that its letters are the page's, it can be searched and read aloud,
and a telephone shows it as wide as it is.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wardround.evaluation.comparisons.differences import is_clear
from wardround.evaluation.comparisons.measures import Measure
from wardround.evaluation.decision.words import in_thousand, signed_amounts

USUAL, LONG = (
    0.9,
    1.5,
)  # an end so many times as far as most of them lies beyond the axis, and its line ends in an arrow
WIDTH = 100.0
STAY = "\u00a0"  # a space at which no line breaks
MOST_WIDE = 16  # lines at the usual distance
STEPS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)


@dataclass(frozen=True)
class Line:
    """`low`, `middle` and `high` are places between 0 and 100, where 50 is no difference; None: no such mark."""

    name: str
    size: str  # patients, and with what is predicted
    text: str
    verdict: str
    middle: float | None = None
    low: float | None = None
    high: float | None = None
    cut_low: bool = False
    cut_high: bool = False
    is_mean: bool = False


@dataclass(frozen=True)
class Forest:
    lines: Sequence[Line]
    ticks: Mapping[str, float]  # places by label
    heading: str  # of the numbers
    better: str  # the side on which training together is better
    folded: str = ""  # what is not shown

    @property
    def is_dense(self) -> bool:
        return len(self.lines) > MOST_WIDE


def forest_of(
    entries: Mapping[str, Mapping[str, Any] | None], sizes: Mapping[str, str], measure: Measure, mean: str = ""
) -> Forest:
    """`entries` are comparisons by name; `mean` names the one that is drawn as a mean."""
    span = _span([entry for entry in entries.values() if entry], measure)
    lines = [_line(name, entry, sizes.get(name, ""), measure, span, name == mean) for name, entry in entries.items()]
    edge = span * 2 / 3
    ticks = {f"{-edge:+.6g}": WIDTH / 2 * (1 - 2 / 3), "0": WIDTH / 2, f"{edge:+.6g}": WIDTH / 2 * (1 + 2 / 3)}
    of = (
        f" in 1,000 {measure.metric.counted}" if measure.metric.counted else f", {measure.unit or measure.metric.words}"
    )
    better = "left" if measure.metric.lower_is_better else "right"
    return Forest(lines, ticks, f"difference{of} (95{STAY}%{STAY}CI)", better)


def _span(entries: Sequence[Mapping[str, Any]], measure: Measure) -> float:
    """From the middle of the axis to its end: 1.5 times a round number, at which the tick stands."""
    ends = [abs(in_thousand(measure, end)) for entry in entries for end in entry["interval"] or ()]
    middles = [abs(in_thousand(measure, e["difference"])) for e in entries if e["difference"] is not None]
    usual = float(np.quantile(ends, USUAL)) if ends else 0.0
    reach = max((end for end in ends if end <= LONG * usual), default=0.0)
    most = max([*middles, reach], default=0.0) or 1.0
    power = 10.0 ** math.floor(math.log10(most / 1.5))
    return 1.5 * next(step * power for step in STEPS if 1.5 * step * power >= most or step == STEPS[-1])


def _line(name: str, entry: Mapping[str, Any] | None, size: str, measure: Measure, span: float, is_mean: bool) -> Line:
    if entry is None or entry["difference"] is None:
        return Line(name, size, "no result", "", is_mean=is_mean)

    def place(value: float) -> float:
        return WIDTH / 2 * (1 + in_thousand(measure, value) / span)

    values = [entry["difference"], *(entry["interval"] or ())]
    middle, *limits = signed_amounts(measure, values, is_clear(entry))
    if not limits:
        return Line(name, size, f"{middle} (no interval)", entry["verdict"], place(values[0]), is_mean=is_mean)
    low, high = (place(limit) for limit in entry["interval"])
    return Line(
        name,
        size,
        f"{middle} ({limits[0]} to {limits[1]})",
        entry["verdict"],
        place(values[0]),
        max(low, 0.0),
        min(high, WIDTH),
        low < 0.0,
        high > WIDTH,
        is_mean,
    )
