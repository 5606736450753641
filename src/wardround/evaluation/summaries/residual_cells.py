"""What a site tells of the residuals of numbers: groups of patients in the order of their predictions.

A cell has the sums of at least as many patients as a subgroup must have, and never fewer than `smallest_cell`. Where it
begins and ends is a prediction of a single patient, and stays at the site.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from wardround.privacy.disclosure.small_cells import has_few_patients, patients_in
from wardround.tasks.class_metrics import SMALLEST_GROUP
from wardround.tasks.summed import CLOSE, require_spread
from wardround.tasks.task import require

BINS = 10  # in a plot, and the most that a site tells of


def residual_cells(label: np.ndarray, score: np.ndarray, people: np.ndarray, smallest: int) -> list[dict[str, Any]]:
    """At a site: rows in the order of their prediction, cut into cells of about as many rows."""
    fewest = max(smallest, SMALLEST_GROUP)
    order = np.argsort(score, kind="stable")
    cells: list[np.ndarray] = []
    for part in np.array_split(order, max(1, min(BINS, patients_in(people) // fewest))):
        begun = cells and has_few_patients(people[cells[-1]], fewest)
        if begun or (cells and has_few_patients(people[part], fewest)):  # one patient may have many of the rows
            cells[-1] = np.concatenate([cells[-1], part])
        else:
            cells.append(part)
    y, p = label.astype(np.float64), score.astype(np.float64)
    return [
        {
            "rows": len(cell),
            "score_sum": float(p[cell].sum()),
            "label_sum": float(y[cell].sum()),
            "squares": float(((y[cell] - p[cell]) ** 2).sum()),
        }
        for cell in cells
    ]


def check_residual_cells(cells: Sequence[Mapping[str, Any]], rows: int, totals: Sequence[float]) -> None:
    """`totals` are the sums over all rows of outcomes, of predictions and of squared residuals."""
    require(sum(cell["rows"] for cell in cells) == rows, "cells that do not add up to the rows")
    names = ("label_sum", "score_sum", "squares")
    scale = sum(abs(cell["label_sum"]) + abs(cell["score_sum"]) for cell in cells)
    for name, total in zip(names, totals, strict=True):
        room = CLOSE * (total if name == "squares" else scale)
        require(abs(sum(cell[name] for cell in cells) - total) <= room + CLOSE, "cells that do not add up to the sums")
    last = -np.inf
    for cell in cells:
        require_spread(cell["rows"], cell["label_sum"] - cell["score_sum"], cell["squares"] + CLOSE, "residuals")
        mean = cell["score_sum"] / cell["rows"]
        require(mean >= last - CLOSE * abs(mean), "cells that are not in the order of their predictions")
        last = mean


def residual_bins(cells: Iterable[Mapping[str, Any]], most: int = BINS) -> list[dict[str, float]]:
    """As a simulation has them: cells of all sites in the order of their mean prediction, in bins of about as many
    rows."""
    ordered = sorted(cells, key=lambda cell: cell["score_sum"] / cell["rows"])
    sizes = np.array([cell["rows"] for cell in ordered])
    middle = np.cumsum(sizes) - sizes / 2
    places = np.minimum((most * middle / max(sizes.sum(), 1)).astype(int), most - 1)
    bins = [[cell for cell, place in zip(ordered, places, strict=True) if place == b] for b in range(most)]
    return [_bin(members) for members in bins if members]


def _bin(cells: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    rows, scores, labels, squares = (
        sum(cell[name] for cell in cells) for name in ("rows", "score_sum", "label_sum", "squares")
    )
    mean = (labels - scores) / rows
    spread = max(squares - rows * mean**2, 0.0) / max(rows - 1, 1)
    return {
        "score": scores / rows,
        "observed": labels / rows,
        "residual": mean,
        "residual_sd": float(np.sqrt(spread)),
        "rows": rows,
    }
