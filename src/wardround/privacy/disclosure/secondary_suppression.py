"""Secondary suppression: which cells of a table are hidden besides the small ones, so that these cannot be derived.

Cells are counts with relations between them: a total is the sum of its parts. Whoever sees the table knows the cells
that are shown, and that none is negative. The least and the most that a hidden cell may then be are two linear
programmes; what lies between them must be wider than the floor. Which further cells are hidden for it is a third one:
the cheapest two tables that keep all relations and in which the cell is further apart than the floor; what differs
from this table in one of them is hidden (Fischetti and Salazar, Management Science 2001, solve this for all cells at
once; here it is done for one after another, which hides a few more).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
TOLERANCE = 1e-6  # of the linear programmes


@dataclass(frozen=True)
class Total:
    """A cell that is the sum of others, by their numbers."""

    whole: int
    parts: tuple[int, ...]


def hidden_cells(
    counts: np.ndarray,
    totals: Sequence[Total],
    small: Mask,
    shown: Collection[int],
    floor: float,
    cost: np.ndarray | None = None,
) -> Mask:
    """The cells to hide: those that are `small`, and what would give one of them away to within `floor`.

    Cells in `shown` are known anyway, such as a number of rows. Hiding another one costs its `cost`; by default large
    counts cost more. Where hiding all is not enough, no more follows from the table than from the cells in `shown`.
    """
    hidden = np.array(small, dtype=bool)
    costs = 1 + np.log1p(counts) if cost is None else np.asarray(cost, dtype=np.float64)
    fixed = np.isin(np.arange(len(counts)), list(shown)) & ~hidden
    relations = _relations(totals, len(counts))
    safe: set[int] = set()  # hiding more makes no interval narrower
    while (exposed := next((n for n in np.flatnonzero(hidden).tolist() if n not in safe), None)) is not None:
        low, high = possible_values(counts, totals, hidden, exposed)
        if high - low < floor + 1 - TOLERANCE:  # they are whole numbers
            least, most = possible_values(counts, totals, ~fixed, exposed)  # where all others are hidden
            apart = min(floor + 1, np.floor(most - least))
            hidden |= _changed(counts, relations, np.where(hidden, 0.0, costs), fixed, exposed, apart)
        safe.add(exposed)
    return hidden


def _relations(totals: Sequence[Total], cells: int) -> np.ndarray:
    """A row for each total: its parts minus itself, which is 0."""
    rows = np.zeros((len(totals), cells))
    for row, total in zip(rows, totals, strict=True):
        row[list(total.parts)] = 1.0
        row[total.whole] = -1.0
    return rows


def _changed(
    counts: np.ndarray, relations: np.ndarray, costs: np.ndarray, fixed: Mask, cell: int, apart: float
) -> Mask:
    """The cells that differ from the table in the cheapest two tables of which one has `apart` more in a cell than the
    other; none where there are no such tables."""
    from scipy.optimize import linprog

    free = np.flatnonzero(~fixed)
    own, nothing, at = relations[:, free], np.zeros((len(relations), 2 * len(free))), np.flatnonzero(free == cell)[0]
    moves = np.hstack([own, -own])  # a table: what is more, what is less
    difference = np.zeros((1, 4 * len(free)))
    difference[0, at + len(free) * np.arange(4)] = 1, -1, -1, 1
    more, less = [(0, None)] * len(free), [(0, count) for count in counts[free].tolist()]
    solved = linprog(
        np.tile(costs[free] + 1e-9, 4),
        A_eq=np.vstack([np.hstack([moves, nothing]), np.hstack([nothing, moves]), difference]),
        b_eq=np.append(np.zeros(2 * len(relations)), apart),
        bounds=[*more, *less, *more, *less],
        method="highs",
    )
    changed = np.zeros(len(counts), dtype=bool)
    if solved.x is not None:
        changed[free] = (solved.x.reshape(4, len(free)) > TOLERANCE).any(axis=0)
    return changed


def possible_values(counts: np.ndarray, totals: Sequence[Total], hidden: Mask, cell: int) -> tuple[float, float]:
    """The least and the most that a hidden cell may be, for someone who sees the others and knows the totals."""
    from scipy.optimize import linprog  # here: half a second of imports, for sites that suppress something

    near = _connected(totals, hidden, cell)
    unknown = sorted(near)
    place = {number: index for index, number in enumerate(unknown)}
    rows, sides = [], []
    for total in totals:
        if near.isdisjoint((total.whole, *total.parts)):
            continue
        row, side = np.zeros(len(unknown)), 0.0
        for number, sign in ((total.whole, -1.0), *((part, 1.0) for part in total.parts)):
            if number in place:
                row[place[number]] += sign
            else:
                side -= sign * float(counts[number])
        rows.append(row)
        sides.append(side)
    if not rows:
        return 0.0, np.inf
    objective = np.zeros(len(unknown))
    objective[place[cell]] = 1.0
    ends = []
    for sign in (1.0, -1.0):
        solved = linprog(sign * objective, A_eq=np.array(rows), b_eq=np.array(sides), bounds=(0, None), method="highs")
        ends.append(sign * (-np.inf if solved.fun is None else float(solved.fun)))  # None: unbounded
    return max(ends[0], 0.0) - TOLERANCE, ends[1] + TOLERANCE


def _connected(totals: Sequence[Total], hidden: Mask, cell: int) -> set[int]:
    """The hidden cells of which something is said together with this one, directly or through others."""
    unknown = [{n for n in (total.whole, *total.parts) if hidden[n]} for total in totals]
    near, before = {cell}, 0
    while len(near) > before:
        before = len(near)
        near = near.union(*(cells for cells in unknown if cells & near))
    return near
