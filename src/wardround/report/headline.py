"""The figure that a report is about: accuracy, or AUC where rows have findings. How it is written, in one place.

An accuracy is given in per cent, an AUC as it is; differences of both in points, which are hundredths.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wardround.report.table import Format, decimals, percent


@dataclass(frozen=True)
class Headline:
    metric: str  # as results.json calls it
    word: str  # in a sentence
    unit: str  # after the word on an axis or above a column
    scale: int  # from a figure to its unit
    shown: Format  # in a table
    point: str  # what a point is, where that must be said

    @property
    def title(self) -> str:
        """At the beginning of a sentence."""
        return self.word[0].upper() + self.word[1:]

    def above(self, name: str = "") -> str:
        """The heading of a column: of this figure, or of what it is measured on."""
        return f"{name or self.word}{self.unit}"

    def told(self, value: float) -> str:
        return f"{self.shown(value)} %" if self.unit else self.shown(value)


HEADLINES = {
    "accuracy": Headline("accuracy", "accuracy", ", %", 100, percent, ""),
    "auc": Headline("auc", "AUC", "", 1, decimals, " A point is 0.01 of AUC."),
}


def headline_of(entry: Mapping[str, Any]) -> Headline:
    """Of a run's results, by their `headline`, or of an entry that names its `metric`; accuracy where none is named."""
    return HEADLINES[entry.get("headline") or entry.get("metric") or "accuracy"]
