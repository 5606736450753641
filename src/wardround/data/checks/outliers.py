"""Numbers so far from all others of their column that they may be typos: 1111 for 111."""

import numpy as np

LIMIT = 10.0  # interquartile ranges beyond the quartiles: further out a value is hardly a measurement
LIMIT_IN_LOGARITHMS = 5.0
FEWEST = 10  # values: the quartiles of fewer say little of what is usual


def outliers(numbers: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Which of the numbers are too far from a column's `values` to be believed.

    More than ten interquartile ranges beyond the quartiles. Laboratory values spread over orders of magnitude and go
    as far by nature; a positive number must therefore be as strange in logarithms, where their distribution is even.
    """
    beyond = _beyond(numbers, values, LIMIT)
    if not beyond.any() or (values < 0).any():
        return beyond
    with np.errstate(divide="ignore", invalid="ignore"):  # a zero is as far away as can be; nothing is known of NaN
        return np.asarray(beyond & _beyond(np.log(numbers), np.log(values[values > 0]), LIMIT_IN_LOGARITHMS))


def outlier_counts(numbers: np.ndarray) -> np.ndarray:
    """How many numbers of each column are too far from its others to be believed. NaN stands for a gap."""
    suspect = np.ones(numbers.shape[1], dtype=bool)
    complete = np.isfinite(numbers).all(axis=0)
    if complete.any() and len(numbers):  # all at once: nearly all of them have no outlier
        columns = numbers[:, complete]
        low, high = np.percentile(columns, [25, 75], axis=0)
        furthest = np.maximum(low - columns.min(axis=0), columns.max(axis=0) - high)
        suspect[complete] = (high > low) & (furthest > LIMIT * (high - low))
    counts = np.zeros(len(suspect), dtype=np.int64)
    for place in np.flatnonzero(suspect):
        values = numbers[np.isfinite(numbers[:, place]), place]
        counts[place] = outliers(values, values).sum()
    return counts


def _beyond(numbers: np.ndarray, values: np.ndarray, times: float) -> np.ndarray:
    """None where the values are few, or where half of them are one number: then there is no measure of distance."""
    low, high = np.percentile(values, [25, 75]) if len(values) >= FEWEST else (0, 0)
    if not high > low:
        return np.zeros(len(numbers), dtype=bool)
    distance = np.maximum(low - numbers, numbers - high)
    return np.asarray((distance > times * (high - low)) & ~np.isposinf(numbers))
