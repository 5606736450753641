"""The counts of a Table 1 at one site, and which of them stay there.

Each column of the table partitions the rows: by level, with those of other levels and those without a value. Where the
table has groups, there is a line of cells for all rows and one for each group. The relations between these cells are
known to whoever reads them, so that cells are hidden for all columns together, and for the tables before that were of
the same patients.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from wardround.privacy.disclosure.secondary_suppression import Mask, Total
from wardround.privacy.disclosure.small_cells import is_small, patients_by_class
from wardround.privacy.disclosure.told_cells import NamedTotal, ToldCells


@dataclass(frozen=True, eq=False)
class Rows:
    """Of one site, as numbers: the group of each row (None: the table has none) and, by column, its level."""

    people: np.ndarray
    group: np.ndarray | None
    groups: int
    levels: Mapping[str, np.ndarray]
    names: Mapping[str, tuple[str, ...]]  # of the levels of each column; alike in every table that has them
    lines_named: tuple[str, ...]  # all rows, then each group

    @property
    def lines(self) -> int:
        """All rows, then each group."""
        return 1 + self.groups

    @cached_property
    def widths(self) -> dict[str, int]:
        return {name: len(levels) for name, levels in self.names.items()}

    @cached_property
    def cell_names(self) -> list[str]:
        """In the order of the cells: the lines' rows first, then column by column, line by line."""
        inner = [(name, level, line) for name in self.levels for line in self.lines_named for level in self.names[name]]
        return [json.dumps(parts) for parts in [*(("rows", line) for line in self.lines_named), *inner]]

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


@dataclass(frozen=True, eq=False)
class Counted:
    """All cells of a table in a row, before any is hidden."""

    counts: np.ndarray
    small: Mask
    totals: Sequence[Total]


def counted(rows: Rows, smallest: int) -> Counted:
    parts = [_counted(rows, None, 1, smallest)]
    for name, level in rows.levels.items():
        counts, few = _counted(rows, level, rows.widths[name], smallest)
        few[:, -1] = False  # that few have no value says how records are kept, and nothing of a patient
        parts.append((counts, few))
    everything = np.concatenate([counts.ravel() for counts, _ in parts])
    small = np.concatenate([few.ravel() for _, few in parts])
    small[0] = False  # the number of rows is known to all
    return Counted(everything, small, _totals(rows.lines, [rows.widths[name] for name in rows.levels]))


def cells_of(rows: Rows, smallest: int, earlier: ToldCells) -> Cells:
    """What the site tells, which is added to what it told earlier."""
    order, whole, names = list(rows.levels), counted(rows, smallest), rows.cell_names
    costs = _costs(rows, [rows.widths[name] for name in order], whole.counts)
    floor = float(smallest * rows.most_rows)
    hidden = earlier.hide_beside(names, whole.counts, whole.totals, whole.small, {0}, floor, costs)
    own = [name for name, hide in zip(names, hidden.tolist(), strict=True) if hide]
    earlier.add(dict(zip(names, whole.counts.tolist(), strict=True)), own, named_totals(whole.totals, names))
    told = np.where(hidden, 0, whole.counts)
    parts, masks = _columns(told, rows, order), _columns(hidden, rows, order)
    return Cells(told[: rows.lines], hidden[: rows.lines], parts, masks)


def contradicts(rows: Rows, earlier: ToldCells) -> bool:
    """Whether records have changed since a table of the same patients was told."""
    if not earlier.counts:
        return False
    counts = counted(rows, 1).counts.tolist()
    return earlier.contradict(dict(zip(rows.cell_names, counts, strict=True)))


def named_totals(totals: Sequence[Total], names: Sequence[str]) -> list[NamedTotal]:
    return [(names[total.whole], tuple(names[part] for part in total.parts)) for total in totals]


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
