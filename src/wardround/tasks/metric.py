"""What a metric is, declared by the task that has it: its name in words, which way is better, its range and unit."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """`better` is None where the best value lies in between, as that of a calibration slope: arms are not ranked by it.

    `shown` says how readers see a figure: `share` as per cent, `number` as it is, and differences of both as points of
    a hundred; `units` as it is, in the units of the target, and `plain` as it is, and differences of both likewise.
    """

    name: str
    words: str
    better: Literal["higher", "lower"] | None
    shown: Literal["share", "number", "units", "plain"]
    low: float = 0.0
    high: float = 1.0
    ranked: bool = False  # it sets rows of different sites against each other, so that scores must be on one scale
    over_rows: bool = False  # a mean over rows, whatever their class
    heading: str = ""  # above a column, where the words are too long for it
    terse: str = ""  # above a column of a terminal, where even that is
    guess: float = 0.0  # what a model has that knows nothing
    # what a difference means, for readers who do not know the metric: `{amount}` is "12 more" or "0.3 days less",
    # `{event}` what is predicted. Without it the metric's words stand there
    meaning: str = ""
    counted: str = ""  # of which 1,000 the amount is; empty: it is given as it is
    comparatives: tuple[str, str] = ("higher", "lower")  # of an amount above 0, and of one below

    @property
    def column(self) -> str:
        return self.heading or self.words

    @property
    def narrow_column(self) -> str:
        return self.terse or self.column

    @property
    def in_units(self) -> bool:
        return self.shown == "units"

    @property
    def counts_rows(self) -> bool:
        """Whether it is a share of the rows, so that a difference is one of so many of them."""
        return self.shown == "share" and self.over_rows

    @property
    def lower_is_better(self) -> bool:
        return self.better == "lower"

    @property
    def in_points(self) -> bool:
        return self.shown in ("share", "number")

    def within(self, interval: Sequence[float]) -> tuple[float, float]:
        """An interval cut off where there is no such figure: a t-interval does not know the range of a metric."""
        return max(self.low, interval[0]), min(self.high, interval[1])

    @property
    def bounded(self) -> bool:
        return self.low > -inf and self.high < inf
