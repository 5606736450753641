"""The counts of a Table 1 at one site, and which of them stay there.

Each column of the table partitions the rows: by level, with those of other levels and those without a value. Where the
table has groups, there is a line of cells for all rows and one for each group. The relations between these cells are
known to whoever reads them, so that cells are hidden for all columns together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from wardround.privacy.disclosure.secondary_suppression import Mask, Total, hidden_cells
from wardround.privacy.disclosure.small_cells import is_small, patients_by_class


@dataclass(frozen=True, eq=False)
class Rows:
    """Of one site, as numbers: the group of each row (None: the table has none) and, by column, its level."""

    people: np.ndarray
    group: np.ndarray | None
    groups: int
    levels: Mapping[str, np.ndarray]
    widths: Mapping[str, int]  # levels of each column

    @property
    def lines(self) -> int:
        """All rows, then each group."""
        return 1 + self.groups

    @cached_property
    def most_rows(self) -> int:
        """Of one patient."""
        return int(np.unique(self.people, return_counts=True)[1].max(initial=1))


@dataclass(frozen=True, eq=False)
class Cells:
    """Rows in each cell; hidden ones are 0."""

    rows: np.ndarray  # (lines,)
    rows_hidden: Mask
    counts: Mapping[str, np.ndarray]  # by column: (lines, levels)
    hidden: Mapping[str, Mask]


def cells_of(rows: Rows, smallest: int) -> Cells:
    """What the site tells."""
    of_lines, few_lines = _counted(rows, None, 1, smallest)
    counts, few = {}, {}
    for name, level in rows.levels.items():
        counts[name], few[name] = _counted(rows, level, rows.widths[name], smallest)
        few[name][:, -1] = False  # that few have no value says how records are kept, and nothing of a patient
    order = list(counts)
    everything = np.concatenate([of_lines[:, 0], *(counts[name].ravel() for name in order)])
    small = np.concatenate([few_lines[:, 0], *(few[name].ravel() for name in order)])
    small[0] = False  # the number of rows is known to all
    totals = _totals(rows.lines, [rows.widths[name] for name in order])
    costs = _costs(rows, [rows.widths[name] for name in order], everything)
    hidden = hidden_cells(everything, totals, small, {0}, smallest * rows.most_rows, costs)
    told = np.where(hidden, 0, everything)
    parts, masks = _columns(told, rows, order), _columns(hidden, rows, order)
    return Cells(told[: rows.lines], hidden[: rows.lines], parts, masks)


def _counted(rows: Rows, level: np.ndarray | None, width: int, smallest: int) -> tuple[np.ndarray, Mask]:
    """Rows in each cell of a column, and which cells have few patients."""
    level = np.zeros(len(rows.people), dtype=np.int64) if level is None else level
    cell = level if rows.group is None else (1 + rows.group) * width + level
    size = rows.lines * width

    def table(cells: np.ndarray) -> np.ndarray:
        inner = np.bincount(cells, minlength=size).reshape(rows.lines, width)
        if rows.group is not None:
            inner[0] = inner[1:].sum(0)
        return inner

    counts = table(cell)
    patients = counts
    if rows.most_rows > 1:
        patients = table(np.unique(np.stack([cell, np.unique(rows.people, return_inverse=True)[1]]), axis=1)[0])
    if rows.group is not None and rows.most_rows > 1:  # a patient may have rows in several groups
        patients[0] = patients_by_class(level, np.unique(rows.people, return_inverse=True)[1], width)
    return counts, is_small(patients, smallest)


def _costs(rows: Rows, widths: Sequence[int], counts: np.ndarray) -> np.ndarray:
    """What is lost with a cell: little in a group, more over all rows or where a number is large; much with the rows
    that have no value, and most with the size of a group, on which all columns hang. Nothing is uncertain where nobody
    is, so that empty cells are shown where it can be."""
    costs = [np.full(rows.lines, 10_000.0)]
    for width in widths:
        inner = np.full((rows.lines, width), 1.0)
        inner[0] = 4.0 if rows.groups else 1.0
        inner[:, -1] = 100.0
        costs.append(inner.ravel())
    cost = np.concatenate(costs)
    return np.where((counts == 0) & (cost < 50), 50.0, cost + np.log1p(counts))


def _totals(lines: int, widths: Sequence[int]) -> list[Total]:
    """Cells are numbered: the lines' rows first, then column by column, line by line."""
    groups = tuple(range(1, lines))
    totals = [Total(0, groups)] if groups else []
    begin = lines
    for width in widths:
        for line in range(lines):
            first = begin + line * width
            totals.append(Total(line, tuple(range(first, first + width))))
        if groups:
            totals += [Total(begin + k, tuple(begin + line * width + k for line in groups)) for k in range(width)]
        begin += lines * width
    return totals


def _columns(flat: np.ndarray, rows: Rows, order: Sequence[str]) -> dict[str, np.ndarray]:
    parts, begin = {}, rows.lines
    for name in order:
        size = rows.lines * rows.widths[name]
        parts[name] = flat[begin : begin + size].reshape(rows.lines, rows.widths[name])
        begin += size
    return parts
