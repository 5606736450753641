"""How the score changes along a column, as sums that hospitals add up: accumulated local effects (Apley and Zhu, JRSS B
82, 2020).

Rows are sorted into bins by their value of the column; in each bin, what counts is how the score of its rows changes
from the lower to the upper edge. So a row is only moved to values near its own, unlike in partial dependence. Levels of
a category have no order: there each row is given each level in turn, and the mean is partial dependence (Friedman,
Annals of Statistics 29, 2001).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch
from torch import Tensor

from wardround.data.prepare import Layout, encoded_levels
from wardround.explain.method import Columns, Scorer
from wardround.privacy.disclosure.small_cells import suppress_small_classes

Sums = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Grid:
    """At which prepared values of a column effects are asked for. Hospitals that add up their sums share them."""

    column: str
    ordered: bool  # a number; else levels
    values: tuple[float | str, ...]  # edges of bins, or levels
    places: tuple[int, ...]  # of the prepared numbers
    prepared: np.ndarray  # (values, numbers of the column)
    gap: int | None = None  # the place of the indicator of gaps: rows with one are left out


@dataclass(frozen=True, eq=False)
class Effect:
    """`effect` is on the link scale, (values, outputs), and 0 on average over the rows."""

    column: str
    ordered: bool
    values: tuple[float | str, ...]
    effect: np.ndarray
    rows: np.ndarray  # in each bin, or all rows for levels
    error: np.ndarray  # standard error of each bin's change, or of each level's mean, (bins or levels, outputs)


def grids(layout: Layout, columns: Columns, edges: Sequence[float]) -> list[Grid]:
    """Of every column that effects can be asked of. `edges` are prepared numbers, which mean the same at every site
    that prepares its rows alike, so that no site's values decide them."""
    numeric = {column.name for column in layout.numeric}
    return [
        number_grid(columns, name, edges) if name in numeric else level_grid(layout, columns, name)
        for name in columns.names
        if name in numeric or name in layout.levels
    ]


def number_grid(columns: Columns, name: str, edges: Sequence[float]) -> Grid:
    """`edges` rise, and are at least two."""
    places = columns.places[columns.names.index(name)]
    gap = places[1] if len(places) > 1 else None
    return Grid(name, True, tuple(map(float, edges)), places[:1], np.asarray(edges, dtype=np.float64)[:, None], gap)


def level_grid(layout: Layout, columns: Columns, name: str) -> Grid:
    levels, places = layout.levels[name], columns.places[columns.names.index(name)]
    encoded = encoded_levels(levels)
    numbers = np.array([[float(level == known) for known in encoded] for level in levels])
    indicators = np.zeros((len(levels), len(places) - len(encoded)))  # a level is no gap
    return Grid(name, False, tuple(levels), places, np.column_stack([numbers, indicators]))


def sums(scorer: Scorer, x: Tensor, grid: Grid, people: np.ndarray | None = None, smallest: int = 1) -> Sums:
    """Over a hospital's own rows: for each bin its rows, and the sum of changes with their squares; for each level of a
    category the sum of scores less the row's mean over levels. A bin with fewer than `smallest` patients counts as
    empty, and so does what would give its number away. `people` is the patient of each row; each row is one, unless
    given."""
    if not grid.ordered:
        return of_levels(scorer, x, grid)
    person = np.arange(len(x)) if people is None else people
    if grid.gap is not None:
        known = (x[:, grid.gap] == 0).numpy()
        x, person = x[torch.from_numpy(known)], person[known]
    return of_bins(scorer, x, grid, person, smallest)


def of_bins(scorer: Scorer, x: Tensor, grid: Grid, people: np.ndarray, smallest: int) -> Sums:
    edges, [place] = grid.prepared[:, 0], grid.places
    bins = len(edges) - 1
    own = np.clip(np.searchsorted(edges, x[:, place].double().numpy(), side="left") - 1, 0, bins - 1)
    shown = shown_bins(own, people, bins, smallest)
    x, own = x[torch.from_numpy(shown[own])], own[shown[own]]
    ends = [scorer.all_values(with_numbers(x, grid.places, grid.prepared[own + end])) for end in (0, 1)]
    change = ends[1] - ends[0]
    return {
        "rows": np.bincount(own, minlength=bins).astype(np.float64),
        "change": summed_by(own, change, bins),
        "change_squared": summed_by(own, change**2, bins),
    }


def shown_bins(own: np.ndarray, people: np.ndarray, bins: int, smallest: int) -> np.ndarray:
    """Bins of which sums may leave: (bins,). The number of all rows is known, so that those of a small bin do not
    follow from the others."""
    patients = {str(number): people[own == number] for number in range(bins)}
    counts = suppress_small_classes(patients, smallest)
    return np.array([counts[str(number)] is not None for number in range(bins)])


def of_levels(scorer: Scorer, x: Tensor, grid: Grid) -> Sums:
    scores = np.array([scorer.all_values(with_numbers(x, grid.places, numbers)) for numbers in grid.prepared])
    apart = scores - scores.mean(axis=0)
    return {
        "rows": np.full(len(grid.values), float(len(x))),
        "change": apart.sum(axis=1),
        "change_squared": (apart**2).sum(axis=1),
    }


def merge(of_sites: Sequence[Sums]) -> Sums:
    return reduce(lambda one, other: {name: one[name] + other[name] for name in one}, of_sites)


def result(merged: Sums, column: str, ordered: bool, values: Sequence[float | str]) -> Effect:
    rows = merged["rows"]
    known = np.maximum(rows, 1)[:, None]
    mean = merged["change"] / known
    if ordered:
        mean = filled_between(mean, rows, np.diff(np.asarray(values, dtype=np.float64)))
    variance = np.maximum(merged["change_squared"] / known - mean**2, 0)
    error = np.where(rows[:, None] > 1, np.sqrt(variance / np.maximum(rows - 1, 1)[:, None]), np.nan)
    effect = mean
    if ordered:
        reached = np.concatenate([np.zeros((1, mean.shape[1])), np.cumsum(mean, axis=0)])
        middle = (reached[:-1] + reached[1:]) / 2
        effect = reached - (rows @ middle) / max(rows.sum(), 1)
    return Effect(column, ordered, tuple(values), effect, rows, error)


def filled_between(change: np.ndarray, rows: np.ndarray, width: np.ndarray) -> np.ndarray:
    """Changes of bins, where one without rows between two with rows has a slope between theirs. Beyond the first and
    the last with rows nothing changes."""
    known = np.flatnonzero(rows > 0)
    if not len(known):
        return change
    inner = np.arange(known[0], known[-1] + 1)
    filled = change.copy()
    for output in range(change.shape[1]):
        slope = change[known, output] / width[known]
        filled[inner, output] = np.interp(inner, known, slope) * width[inner]
    return filled


def with_numbers(x: Tensor, places: Sequence[int], numbers: np.ndarray) -> Tensor:
    changed = x.clone()
    changed[:, list(places)] = torch.from_numpy(np.asarray(numbers)).to(x.dtype)
    return changed


def summed_by(group: np.ndarray, values: np.ndarray, groups: int) -> np.ndarray:
    sums = [np.bincount(group, own, minlength=groups) for own in values.T]
    return np.stack(sums, axis=1).astype(np.float64)  # of no rows, numpy gives whole numbers
