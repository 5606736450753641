"""Histograms of scores by class: how rows of several sites rank, without a score of any row.

A site merges neighbouring bins until every cell has enough patients. The coordinator compares cells. Where they
overlap, the comparison is estimated from their means, with a lower and an upper bound: an AUC can be wrong by so much.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from wardround.privacy.disclosure.small_cells import is_small, patients_in
from wardround.tasks.class_metrics import THRESHOLD, THRESHOLDS
from wardround.tasks.class_sums import CLOSE
from wardround.tasks.task import require

EDGES = (0.0, *THRESHOLDS.tolist(), 1.0)  # a bin holds its lower edge; the last one holds 1 too
MIDDLE = EDGES.index(THRESHOLD)
PLACES = frozenset(EDGES)
NARROW = 1e-6  # rows of a cell are spread this far, even if all have one score
Cells = tuple[np.ndarray, ...]  # low, high, rows, sum of scores, number of the summary


# -- at a site


def score_histogram(
    label: np.ndarray, score: np.ndarray, people: np.ndarray, smallest: int
) -> list[list[dict[str, Any]]]:
    """Of the negative and of the positive class."""
    return [score_cells(score[label == number], people[label == number], smallest) for number in (0, 1)]


def score_cells(score: np.ndarray, people: np.ndarray, smallest: int) -> list[dict[str, Any]]:
    """Neighbouring bins are merged until every cell has `smallest` patients; empty bins are left out at the ends.

    No cell crosses THRESHOLD, unless there are too few patients for a cell below or above it.
    """
    bins = np.searchsorted(THRESHOLDS, score, side="right")
    rows = np.bincount(bins, minlength=len(EDGES) - 1)
    sums = np.bincount(bins, weights=score.astype(np.float64), minlength=len(EDGES) - 1)

    def patients(first: int, last: int) -> int:
        return patients_in(people[(bins >= first) & (bins < last)])

    ranges = [(0, MIDDLE), (MIDDLE, len(rows))]
    if is_small(np.array([patients(*bins_of_range) for bins_of_range in ranges]), smallest).any():
        ranges = [(0, len(rows))]
    return [
        {
            "low": EDGES[begin],
            "high": EDGES[end],
            "rows": int(rows[begin:end].sum()),
            "score_sum": float(sums[begin:end].sum()),
        }
        for first, last in ranges
        for begin, end in merged_bins(rows, patients, first, last, smallest)
    ]


def merged_bins(
    rows: np.ndarray, patients: Callable[[int, int], int], first: int, last: int, smallest: int
) -> list[tuple[int, int]]:
    """Where cells begin and end, among bins that have no row or enough patients for one cell."""
    cells: list[tuple[int, int]] = []
    begin = first
    for end in range(first + 1, last + 1):
        patient_count = patients(begin, end)
        if patient_count >= smallest and patient_count:
            cells.append((begin, end))
        if patient_count >= smallest or not patient_count:
            begin = end
    if rows[begin:last].any():  # too few for a cell: they join the one before
        filled = begin + int(np.flatnonzero(rows[begin:last])[-1]) + 1
        cells[-1] = (cells[-1][0], filled)
    return cells


# -- at the coordinator


def check_histogram(
    histogram: Sequence[Sequence[Mapping[str, Any]]], counts: Mapping[str, int], auc: float | None
) -> None:
    """`counts` are those of right and wrong predictions of the positive class."""
    negative, positive = histogram
    _check_cells(negative, counts["fp"] + counts["tn"])
    _check_cells(positive, counts["tp"] + counts["fn"])
    require((auc is None) == (not negative or not positive), "an AUC that its classes do not allow")


def _check_cells(cells: Sequence[Mapping[str, Any]], rows: int) -> None:
    require(sum(cell["rows"] for cell in cells) == rows, "a histogram that does not add up to its class")
    last = 0.0
    for cell in cells:
        low, high = cell["low"], cell["high"]
        require({low, high} <= PLACES and last <= low < high, "a histogram with other cells than agreed")
        mean = cell["score_sum"] / cell["rows"]
        require(low - CLOSE <= mean <= high + CLOSE, "a histogram whose scores are outside its cells")
        last = high


def merged_auc(summaries: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Over these sites' rows, and by how much it may be wrong. Pairs of one site's rows are in that site's own AUC."""
    negative, positive = (cells_of(summaries, number) for number in (0, 1))
    pairs = positive[2][:, None] * negative[2]
    if not pairs.size:
        return math.nan, math.nan
    between = positive[4][:, None] != negative[4]  # pairs of two sites
    above = positive[0][:, None] >= negative[1]
    overlap = ~above & (positive[1][:, None] > negative[0])
    within = [
        summary["metrics"]["auc"] * math.prod(sum(cell["rows"] for cell in cells) for cells in summary["histogram"])
        for summary in summaries
        if all(summary["histogram"])
    ]
    certain = math.fsum([*within, (pairs * (between & above)).sum()])
    guess = [math.fsum(pairs[between & overlap] * part[between & overlap]) for part in _chances(positive, negative)]
    least, likely, most = (float((certain + part) / pairs.sum()) for part in guess)
    return likely, max(likely - least, most - likely)


def _chances(positive: Cells, negative: Cells) -> tuple[np.ndarray, ...]:
    """For each pair of cells that overlap, the chance that a row of the first has the higher score.

    The least that it can be with these means, the likely value, and the most. In the likely case rows are evenly spread
    around the mean of their cell. The limits are those of Markov's inequality: where x and y differ by d on average and
    by w at most, x is above y in at least d / w of the cases.
    """
    (a, b), (c, d) = _spread(positive), _spread(negative)

    def wins_up_to(x: np.ndarray) -> np.ndarray:
        """The share of negatives below a score, summed over all scores up to x."""
        inside = np.clip(x[:, None], c, d)
        return np.asarray((inside - c) ** 2 / (2 * (d - c)) + np.maximum(x[:, None] - d, 0))

    likely = (wins_up_to(b) - wins_up_to(a)) / (b - a)[:, None]
    ahead = (positive[3] / positive[2])[:, None] - negative[3] / negative[2]
    with np.errstate(divide="ignore", invalid="ignore"):  # cells that do not overlap may touch
        least = np.clip(ahead / (positive[1][:, None] - negative[0]), 0, 1)
        most = np.clip(1 + ahead / (negative[1] - positive[0][:, None]), 0, 1)
    return least, np.clip(likely, least, most), most


def _spread(cells: Cells) -> tuple[np.ndarray, np.ndarray]:
    """From where to where a cell's rows are taken to be: around their mean, as far as the nearer end of the cell."""
    low, high, rows, total, _ = cells
    mean = total / rows
    reach = np.maximum(np.minimum(mean - low, high - mean), NARROW)
    return mean - reach, mean + reach


def spread_rows(cells: Cells) -> np.ndarray:
    """A score for each row, inside its cell."""
    low, high, rows, _, _ = cells
    first, last = _spread(cells)
    count = rows.astype(np.int64)
    place = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)  # of a row in its cell
    score = np.repeat(first, count) + (place + 0.5) * np.repeat((last - first) / rows, count)
    return np.asarray(np.clip(score, np.repeat(low, count), np.repeat(np.nextafter(high, 0), count)))


def crosses_thresholds(cells: Cells) -> bool:
    """Whether a cell was merged of several bins, so that what lies between them is interpolated."""
    low, high, *_ = cells
    return bool(((low[:, None] < THRESHOLDS) & (high[:, None] > THRESHOLDS)).any())


def cells_of(summaries: Sequence[Mapping[str, Any]], number: int) -> Cells:
    """All cells of a class, with the number of the summary that each is from."""
    cells = [(cell, place) for place, summary in enumerate(summaries) for cell in summary["histogram"][number]]
    names = ("low", "high", "rows", "score_sum")
    return *(np.array([cell[name] for cell, _ in cells], dtype=float) for name in names), np.array(
        [p for _, p in cells]
    )
