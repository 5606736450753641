"""Regressions that would tell of few patients: with many columns for the rows, or with a coefficient for each patient.

A model with nearly as many columns as patients fits each of them (DataSHIELD refuses more than a third, `nfilter.glm`).
A column that few patients have, such as a rare category, has a coefficient that describes those few. A saturated model
has one coefficient for each combination of its columns' values, so that its fit is the table of their means.
"""

import numpy as np

from wardround.privacy.disclosure.small_cells import patients_in


def has_many_columns(design: np.ndarray, people: np.ndarray, most: float) -> bool:
    return bool(design.shape[1] > most * patients_in(people))


def has_rare_column(design: np.ndarray, people: np.ndarray, smallest: int) -> bool:
    """Whether a column differs from its commonest value in the rows of few patients only."""
    rows_of_one = np.unique(people, return_counts=True)[1].max(initial=1)
    return any(
        0 < len(np.unique(people[column != _commonest(column)])) < smallest
        for column in design.T
        if not _is_spread(column, int(rows_of_one) * smallest)
    )


def is_saturated(design: np.ndarray, people: np.ndarray, smallest: int) -> bool:
    """Whether there is a coefficient for each combination of values, and few patients have one of these."""
    first = design[: 2 * design.shape[1] + 2]  # mostly these rows have more patterns than there are columns
    if len(np.unique(first, axis=0)) > design.shape[1]:
        return False
    patterns, of_row = np.unique(design, axis=0, return_inverse=True)
    if design.shape[1] < len(patterns):
        return False
    pairs = np.unique(np.stack([of_row.reshape(-1), np.unique(people, return_inverse=True)[1]]), axis=1)
    return bool((np.bincount(pairs[0], minlength=len(patterns)) < smallest).any())


def _is_spread(column: np.ndarray, rows: int) -> bool:
    """Whether so many rows or more differ from each value, told without sorting: a value of more than half of the rows
    is their median, and from any other at least half differ."""
    middle = np.partition(column, len(column) // 2)[len(column) // 2]
    differing = int(np.count_nonzero(column != middle))
    return min(differing, (len(column) + 1) // 2) >= rows


def _commonest(column: np.ndarray) -> float:
    values, counts = np.unique(column, return_counts=True)
    return float(values[counts.argmax()])
