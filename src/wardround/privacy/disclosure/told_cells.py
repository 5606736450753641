"""Counts that a site has told or hidden of the same patients, in tables before this one.

Two tables of the same patients have cells in common, such as how many have a level of a column. What the earlier one
told is known, and what it hid must not follow from the later one: cells are therefore hidden in both together.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from wardround.privacy.disclosure.secondary_suppression import Mask, Total, hidden_cells

NamedTotal = tuple[str, tuple[str, ...]]  # a cell that is the sum of others


@dataclass(eq=False)
class ToldCells:
    """By name, each a count of the same patients wherever it stands. It grows with each table."""

    counts: dict[str, int] = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)
    totals: dict[NamedTotal, None] = field(default_factory=dict)  # in the order in which they came

    def contradict(self, counts: Mapping[str, int]) -> bool:
        """Whether a count is another one now: the records of these patients have changed since."""
        return any(self.counts.get(name, count) != count for name, count in counts.items())

    def add(self, counts: Mapping[str, int], hidden: Iterable[str], totals: Iterable[NamedTotal]) -> None:
        self.counts |= counts
        self.hidden |= set(hidden)
        self.totals |= dict.fromkeys(totals)

    def hide_beside(
        self,
        names: Sequence[str],
        counts: np.ndarray,
        totals: Sequence[Total],
        small: Mask,
        shown: set[int],
        floor: float,
        costs: np.ndarray,
    ) -> Mask:
        """As `hidden_cells`, of a table whose cells have these names, beside all tables before."""
        place = {name: number for number, name in enumerate(dict.fromkeys([*names, *self.counts]))}
        further = list(place)[len(names) :]
        everything = np.append(counts, [self.counts[name] for name in further])
        known = {place[name] for name in self.counts if name not in self.hidden} | shown
        few = np.append(small, np.zeros(len(further), dtype=bool))
        few[[place[name] for name in self.hidden]] = True
        few[list(known)] = False
        before = [Total(place[whole], tuple(place[part] for part in parts)) for whole, parts in self.totals]
        together = list(dict.fromkeys([*totals, *before]))
        cost = np.append(costs, np.ones(len(further)))
        return hidden_cells(everything, together, few, known, floor, cost)[: len(names)]
