"""Quantiles over hospitals, from counts below common edges.

A site tells how many of its values are below an edge only where the values between that edge and the last one that it
told are those of enough patients, or of nobody. At other edges it tells between which numbers the count lies: the last
that it told, and the next. Sums of these bounds over hospitals bracket each order statistic, so that a quantile comes
with the largest error that it can have.
"""

from dataclasses import dataclass

import numpy as np

from wardround.privacy.disclosure.small_cells import patients_in

BINS = 400


@dataclass(frozen=True)
class Quantile:
    """`value` is at most `error` away from the quantile of all rows together."""

    value: float
    error: float


def edges_between(low: float, high: float) -> np.ndarray:
    """Quartiles are less than the square root of 3 standard deviations from the mean (Cantelli's inequality)."""
    return np.linspace(low, high, BINS + 1)


def told_edges(
    values: np.ndarray, people: np.ndarray | None, edges: np.ndarray, smallest: int, among: np.ndarray | None = None
) -> np.ndarray:
    """A mask: the edges, of those in `among`, at which the number of smaller values is told. `people` are their
    patients; None: each has one of its own."""
    place = np.searchsorted(edges, values, side="right")  # a value is below all edges from this number on
    order = np.argsort(place, kind="stable")
    begins = np.searchsorted(place[order], np.arange(len(edges) + 2))
    told, since = np.zeros(len(edges), dtype=bool), 0

    def enough(first: int, last: int) -> bool:
        rows = order[begins[first] : begins[last]]
        return not len(rows) or (len(rows) if people is None else patients_in(people[rows])) >= smallest

    for edge in range(len(edges)) if among is None else np.flatnonzero(among).tolist():
        if enough(since, edge + 1) and enough(edge + 1, len(edges) + 1):
            told[edge], since = True, edge + 1
    return told


def told_in_groups(
    values: np.ndarray, people: np.ndarray | None, groups: list[np.ndarray], edges: np.ndarray, smallest: int
) -> tuple[np.ndarray, np.ndarray]:
    """The edges at which counts over all rows are told, and those of them at which each group's are: the same edges for
    all groups, since the count of one would otherwise follow from those of the others. `groups` are masks, and
    together all rows."""
    overall = told_edges(values, people, edges, smallest)
    common, changes = overall, True
    while changes:  # an edge that one group cannot tell is told by none, which widens the bins of the others
        narrower = common
        for group in groups:
            own = None if people is None else people[group]
            narrower = told_edges(values[group], own, edges, smallest, narrower)
        changes, common = bool((narrower != common).any()), narrower
    return overall, common


def bounds_below(values: np.ndarray, edges: np.ndarray, told: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The least and the most values that can be below each edge, for someone who knows the counts at told edges."""
    below = np.searchsorted(np.sort(values), edges, side="left")
    low = np.maximum.accumulate(np.where(told, below, 0))
    high = np.minimum.accumulate(np.where(told, below, len(values))[::-1])[::-1]
    return low, high


def quantile(low: np.ndarray, high: np.ndarray, edges: np.ndarray, count: int, share: float) -> Quantile | None:
    """As numpy's and pandas' default defines it. None where the counts do not bracket it."""
    place = (count - 1) * share
    first, last = int(np.floor(place)), int(np.ceil(place))
    under = np.flatnonzero(high <= first)  # then the value with this rank is at or above the edge
    above = np.flatnonzero(low >= last + 1)
    if not len(under) or not len(above):
        return None
    least, most = float(edges[under[-1]]), float(edges[above[0]])
    return Quantile((least + most) / 2, (most - least) / 2)
