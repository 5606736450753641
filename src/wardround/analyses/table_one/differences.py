"""Standardised differences between groups or hospitals: how far apart they are, in standard deviations, whatever their
sizes (Austin, Statistics in Medicine 2009; for several levels Yang and Dalton, SAS Global Forum 2012)."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np


def of_means(first: tuple[float, float], second: tuple[float, float]) -> float | None:
    """Of two means with their standard deviations."""
    spread = np.sqrt((first[1] ** 2 + second[1] ** 2) / 2)
    if spread == 0:
        return 0.0 if first[0] == second[0] else None
    return float(abs(first[0] - second[0]) / spread)


def of_shares(first: np.ndarray, second: np.ndarray) -> float | None:
    """Of the shares of the same levels. The last level follows from the others."""
    gap = (first - second)[:-1]
    if not gap.any():
        return 0.0
    spread = sum(np.diag(shares) - np.outer(shares, shares) for shares in (first[:-1], second[:-1])) / 2
    squared = float(gap @ np.linalg.pinv(spread) @ gap)
    return float(np.sqrt(squared)) if squared > 0 else None


def largest(differences: Sequence[float | None]) -> float | None:
    known = [difference for difference in differences if difference is not None]
    return max(known) if known else None


def largest_of_means(pairs: Sequence[tuple[float, float]]) -> float | None:
    return largest([of_means(first, second) for first, second in combinations(pairs, 2)])


def largest_of_shares(shares: Sequence[np.ndarray]) -> float | None:
    return largest([of_shares(first, second) for first, second in combinations(shares, 2)])
