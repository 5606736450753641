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
