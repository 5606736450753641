"""Numbers so far from all others of their column that they may be slips of the pen: 1111 for 111."""

import numpy as np

LIMIT = 10.0  # interquartile ranges beyond the quartiles: further out a value is hardly a measurement
LIMIT_IN_LOGARITHMS = 5.0
FEWEST = 10  # values: the quartiles of fewer say little of what is usual


def outliers(asked: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Which of the numbers that are `asked` about are too far from a column's `values` to be believed.

    More than ten interquartile ranges beyond the quartiles. Laboratory values spread over orders of magnitude and go
    as far by nature; a positive number must therefore be as strange in logarithms, where their distribution is even.
    """
    far = _beyond(asked, values, LIMIT)
    if not far.any() or (values < 0).any():
        return far
    with np.errstate(divide="ignore", invalid="ignore"):  # a zero is as far away as can be; nothing is known of NaN
        return np.asarray(far & _beyond(np.log(asked), np.log(values[values > 0]), LIMIT_IN_LOGARITHMS))


def outlier_counts(numbers: np.ndarray) -> np.ndarray:
    """How many numbers of each column are too far from its others to be believed. NaN stands for a gap."""
    asked = np.ones(numbers.shape[1], dtype=bool)
    whole = np.isfinite(numbers).all(axis=0)
    if whole.any() and len(numbers):  # all at once: in nearly all of them nothing is far
        columns = numbers[:, whole]
        low, high = np.percentile(columns, [25, 75], axis=0)
        furthest = np.maximum(low - columns.min(axis=0), columns.max(axis=0) - high)
        asked[whole] = (high > low) & (furthest > LIMIT * (high - low))
    counts = np.zeros(len(asked), dtype=np.int64)
    for place in np.flatnonzero(asked):
        values = numbers[np.isfinite(numbers[:, place]), place]
        counts[place] = outliers(values, values).sum()
    return counts


def _beyond(asked: np.ndarray, values: np.ndarray, times: float) -> np.ndarray:
    if len(values) < FEWEST:
        return np.zeros(len(asked), dtype=bool)
    low, high = np.percentile(values, [25, 75])
    if not high > low:  # half of the values are one number, and there is no measure of what is far
        return np.zeros(len(asked), dtype=bool)
    distance = np.maximum(low - asked, asked - high)
    return np.asarray((distance > times * (high - low)) & ~np.isposinf(asked))
