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

from wardround.data.prepare import Layout, Recipe, encoded_levels
from wardround.explain.method import Columns, Scorer

Sums = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Grid:
    """At which values of a column effects are asked for. Hospitals that add up their sums share `values`; `prepared`
    are the same values as each hospital prepares them, (values, numbers of the column)."""

    column: str
    ordered: bool  # a number; else levels
    values: tuple[float | str, ...]  # edges of bins in the hospital's units, or levels
    places: tuple[int, ...]  # of the prepared numbers
    prepared: np.ndarray
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


def number_grid(recipe: Recipe, columns: Columns, name: str, edges: Sequence[float]) -> Grid:
    """`edges` in the hospital's units, at least two of them, rising."""
    layout, places = recipe.layout, columns.places[columns.names.index(name)]
    number = own_place(layout, recipe, name)
    prepared = (np.asarray(edges, dtype=np.float64) - recipe.fit.centre[number]) / recipe.fit.spread[number]
    if recipe.settings.scale == "ranges":
        prepared = np.clip(prepared, 0, 1)
    gap = places[1] if len(places) > 1 else None
    return Grid(name, True, tuple(map(float, edges)), places[:1], prepared[:, None], gap)


def own_place(layout: Layout, recipe: Recipe, name: str) -> int:
    """Of a numeric column, by its name in the hospital's file."""
    own = {column.name: column.own_name for column in recipe.columns}
    return [own[column.name] for column in layout.numeric].index(name)


def level_grid(recipe: Recipe, columns: Columns, name: str) -> Grid:
    own = {column.own_name: column.name for column in recipe.columns}[name]
    levels, places = recipe.layout.levels[own], columns.places[columns.names.index(name)]
    encoded = encoded_levels(levels)
    numbers = np.array([[float(level == known) for known in encoded] for level in levels])
    indicators = np.zeros((len(levels), len(places) - len(encoded)))  # a level is no gap
    return Grid(name, False, tuple(levels), places, np.column_stack([numbers, indicators]))


def sums(scorer: Scorer, x: Tensor, grid: Grid) -> Sums:
    """Over a hospital's own rows: for each bin its rows, and the sum of changes with their squares; for each level of a
    category the sum of scores less the row's mean over levels."""
    return of_bins(scorer, x, grid) if grid.ordered else of_levels(scorer, x, grid)


def of_bins(scorer: Scorer, x: Tensor, grid: Grid) -> Sums:
    if grid.gap is not None:
        x = x[x[:, grid.gap] == 0]
    edges, [place] = grid.prepared[:, 0], grid.places
    bins = len(edges) - 1
    own = np.clip(np.searchsorted(edges, x[:, place].double().numpy(), side="left") - 1, 0, bins - 1)
    ends = [every_score(scorer, with_numbers(x, grid.places, grid.prepared[own + end])) for end in (0, 1)]
    change = ends[1] - ends[0]
    return {
        "rows": np.bincount(own, minlength=bins).astype(np.float64),
        "change": summed_by(own, change, bins),
        "change_squared": summed_by(own, change**2, bins),
    }


def of_levels(scorer: Scorer, x: Tensor, grid: Grid) -> Sums:
    scores = np.array([every_score(scorer, with_numbers(x, grid.places, numbers)) for numbers in grid.prepared])
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
    mean = merged["change"] / known  # a bin without rows changes nothing
    variance = np.maximum(merged["change_squared"] / known - mean**2, 0)
    error = np.where(rows[:, None] > 1, np.sqrt(variance / np.maximum(rows - 1, 1)[:, None]), np.nan)
    effect = mean
    if ordered:
        reached = np.concatenate([np.zeros((1, mean.shape[1])), np.cumsum(mean, axis=0)])
        middle = (reached[:-1] + reached[1:]) / 2
        effect = reached - (rows @ middle) / max(rows.sum(), 1)
    return Effect(column, ordered, tuple(values), effect, rows, error)


def with_numbers(x: Tensor, places: Sequence[int], numbers: np.ndarray) -> Tensor:
    changed = x.clone()
    changed[:, list(places)] = torch.from_numpy(np.asarray(numbers)).to(x.dtype)
    return changed


def every_score(scorer: Scorer, x: Tensor) -> np.ndarray:
    """(rows, outputs)."""
    with torch.no_grad():
        return scorer.every(x).double().numpy()


def summed_by(group: np.ndarray, values: np.ndarray, groups: int) -> np.ndarray:
    return np.stack([np.bincount(group, own, minlength=groups) for own in values.T], axis=1)
