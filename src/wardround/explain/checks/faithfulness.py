"""Deletion and insertion curves (Petsiuk, Das and Saenko, BMVC 2018, arXiv:1806.07421): what the score does while units
are covered, or shown, in the order of what the explanation gives them.

Where an explanation is true to the model, the score falls early when the units with the highest values are covered, and
rises early when they are shown. The area under a curve is compared with that of random orders of the same row.
"""

import numpy as np
from torch import Tensor

from wardround.explain.checks.check import Check
from wardround.explain.checks.units import Units
from wardround.explain.method import Scorer

STEPS = 32  # points of a curve, at most
ORDERS = 4  # random ones, of each row
DELETION = "the score falls sooner than in random order: the interval of the difference in area is above 0"
INSERTION = "the score rises sooner than in random order: the interval of the difference in area is above 0"


def deletion(
    scorer: Scorer, rows: Tensor, values: np.ndarray, units: Units, title: str, rng: np.random.Generator
) -> Check:
    """The figure is by how much the mean score on the way is below that of random orders, on the link scale."""
    own, drawn = areas(scorer, rows, units.of(values), units, rng, shown=False)
    return Check.above("deletion", title, drawn - own, 0.0, DELETION)


def insertion(
    scorer: Scorer, rows: Tensor, values: np.ndarray, units: Units, title: str, rng: np.random.Generator
) -> Check:
    """The figure is by how much the mean score on the way is above that of random orders, on the link scale."""
    own, drawn = areas(scorer, rows, units.of(values), units, rng, shown=True)
    return Check.above("insertion", title, own - drawn, 0.0, INSERTION)


def areas(
    scorer: Scorer, rows: Tensor, by_unit: np.ndarray, units: Units, rng: np.random.Generator, shown: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Of each row: the area under its curve in the explanation's order, and the mean of those in random orders."""
    own, drawn = np.zeros((2, len(rows)))
    for place, row in enumerate(rows):
        # equal values in no order, and not in that of the columns or from the top left
        first = np.lexsort((rng.random(by_unit.shape[1]), -by_unit[place]))
        orders = [first, *(rng.permutation(by_unit.shape[1]) for _ in range(ORDERS))]
        found = [area(curve(scorer, row, order, units, shown)) for order in orders]
        own[place], drawn[place] = found[0], np.mean(found[1:])
    return own, drawn


def curve(scorer: Scorer, row: Tensor, order: np.ndarray, units: Units, shown: bool) -> np.ndarray:
    """Scores from none to all of the units, taken in `order`: shown, with the others covered, or the other way."""
    counts = np.unique(np.linspace(0, len(order), min(STEPS, len(order)) + 1).round().astype(int))
    rank = np.empty(len(order), dtype=int)
    rank[order] = np.arange(len(order))
    taken = rank < counts[:, None]
    return units.scores(scorer, row, (taken if shown else ~taken).astype(np.float64))


def area(scores: np.ndarray) -> float:
    """By the trapezoidal rule, from 0 to 1 on the way."""
    return float((scores[:-1] + scores[1:]).mean() / 2)
