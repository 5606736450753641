"""Secondary suppression: which cells of a table are hidden besides the small ones, so that these cannot be derived.

Cells are counts with relations between them: a total is the sum of its parts. Whoever sees the table knows the cells
that are shown, and that none is negative. The least and the most that a hidden cell may then be are two linear
programmes; what lies between them must be wider than the floor (Fischetti and Salazar, Management Science 2001; here
the further cells are chosen greedily, the smallest first, not optimally).
"""

from collections.abc import Collection, Mapping, Sequence
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
    counts: np.ndarray, totals: Sequence[Total], small: Mask, shown: Collection[int], floor: float
) -> Mask:
    """The cells to hide: those that are `small`, and what would give one of them away to within `floor`.

    Cells in `shown` are known anyway, such as a number of rows. Where hiding all others is not enough, all others are
    hidden: what is then known of a small cell follows from what was known before.
    """
    hidden = np.array(small, dtype=bool)
    free = [number for number in np.argsort(counts, kind="stable").tolist() if number not in shown]
    safe: set[int] = set()  # hiding more makes no interval narrower
    while (exposed := next((n for n in np.flatnonzero(hidden).tolist() if n not in safe), None)) is not None:
        low, high = possible_values(counts, totals, hidden, exposed)
        if high - low > floor:
            safe.add(exposed)
            continue
        if (further := _next_to(exposed, totals, hidden, free)) is None:
            safe.add(exposed)
            continue
        hidden[further] = True
    return hidden


def possible_values(counts: np.ndarray, totals: Sequence[Total], hidden: Mask, cell: int) -> tuple[float, float]:
    """The least and the most that a hidden cell may be, for someone who sees the others and knows the totals."""
    from scipy.optimize import linprog  # here: half a second of imports, for sites that suppress something

    unknown = np.flatnonzero(hidden)
    place: Mapping[int, int] = {int(number): index for index, number in enumerate(unknown)}
    rows, sides = [], []
    for total in totals:
        row, side = np.zeros(len(unknown)), 0.0
        for number, sign in ((total.whole, -1.0), *((part, 1.0) for part in total.parts)):
            if number in place:
                row[place[number]] += sign
            else:
                side -= sign * float(counts[number])
        if row.any():
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


def _next_to(exposed: int, totals: Sequence[Total], hidden: Mask, free: Sequence[int]) -> int | None:
    """The smallest cell that may still be hidden, in a total with the exposed one or with a cell that is in one."""
    group = {exposed}
    while True:
        wider = {
            number for total in totals for number in (total.whole, *total.parts)
            if group & {total.whole, *total.parts}
        } | group  # fmt: skip
        if (found := next((number for number in free if number in wider and not hidden[number]), None)) is not None:
            return found
        if wider == group:
            return None
        group = wider
