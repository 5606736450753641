"""Shapley values from the worths of some coalitions, with a standard error.

A coalition is an integer whose bit n says whether player n is in it. With all coalitions the values are exact. Else
they are the weighted least squares fit of an additive game, whose weights make it Shapley's (Charnes et al. 1988;
Lundberg and Lee, NeurIPS 2017, arXiv:1705.07874, theorem 2), constrained to share out the worth of the whole.
Coalitions of one player and of all but one are all taken; of the others pairs of a coalition and its complement are
drawn without replacement, sizes by their weight (Covert and Lee, AISTATS 2021, arXiv:2012.01536, who show what
pairing saves). The standard error is the jackknife's over the drawn pairs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb, factorial

import numpy as np

FEWEST_PAIRS = 4  # of a jackknife


@dataclass(frozen=True)
class Shares:
    values: np.ndarray
    error: np.ndarray | None  # standard error of the estimate; None where it is exact


def fewest(players: int) -> int:
    """Coalitions that an estimate takes, the whole included and the empty one not."""
    return int(min(2**players - 1, 2 * players + 1 + 2 * FEWEST_PAIRS))


def coalitions(players: int, budget: int, rng: np.random.Generator) -> list[int]:
    """Those whose worth is needed, beside that of the empty one; the first is the whole. At most `budget`."""
    whole: int = 2**players - 1
    if whole <= budget:
        return [whole, *range(1, whole)]
    ends = [coalition for player in range(players) for coalition in (1 << player, whole ^ (1 << player))]
    return [whole, *ends, *_drawn(players, (budget - 1 - len(ends)) // 2, rng)]


def shapley(players: int, worth: Mapping[int, float]) -> Shares:
    """`worth` has those of `coalitions`, in any order, and that of 0, the empty one."""
    whole: int = 2**players - 1
    if len(worth) == 2**players:
        return Shares(_exact(players, worth), None)
    pairs = sorted({min(c, whole ^ c) for c in worth if 1 < c.bit_count() < players - 1})
    values = _fitted(players, worth, pairs)
    without = np.array([_fitted(players, worth, pairs[:n] + pairs[n + 1 :]) for n in range(len(pairs))])
    left_out = 1 - len(pairs) / _pairs(players)  # of so many that there are, some were seen
    spread = np.square(without - without.mean(0)).sum(0) * (len(pairs) - 1) / len(pairs)
    return Shares(values, np.sqrt(left_out * spread))


def _exact(players: int, worth: Mapping[int, float]) -> np.ndarray:
    values = np.zeros(players)
    for coalition, own in worth.items():
        size = coalition.bit_count()
        for player in range(players):
            if coalition >> player & 1:
                weight = factorial(size - 1) * factorial(players - size) / factorial(players)
                values[player] += weight * (own - worth[coalition ^ (1 << player)])
    return values


def _weight_of_size(players: int, size: int) -> float:
    """Of all coalitions of a size together."""
    return (players - 1) / (size * (players - size))


def _pairs(players: int) -> int:
    """Of a coalition and its complement, without those of one player."""
    return int(2 ** (players - 1) - 1 - players)


def _drawn(players: int, count: int, rng: np.random.Generator) -> list[int]:
    whole: int = 2**players - 1
    sizes = list(range(2, players // 2 + 1))
    # of half the players there are half as many pairs as coalitions
    weights = np.array([_weight_of_size(players, size) * (0.5 if 2 * size == players else 1) for size in sizes])
    left = {size: comb(players, size) // (2 if 2 * size == players else 1) for size in sizes}
    taken: dict[int, None] = {}
    while len(taken) < min(count, _pairs(players)):
        open_sizes = np.array([left[size] > 0 for size in sizes])
        odds = weights * open_sizes
        size = int(rng.choice(sizes, p=odds / odds.sum()))
        coalition = sum(1 << int(player) for player in rng.choice(players, size, replace=False))
        pair = min(coalition, whole ^ coalition)
        if pair not in taken:
            taken[pair] = None
            left[size] -= 1
    return [coalition for pair in taken for coalition in (pair, whole ^ pair)]


def _fitted(players: int, worth: Mapping[int, float], pairs: Sequence[int]) -> np.ndarray:
    """The last player's share is what the others leave of the whole's, so that the fit has no constraint."""
    whole: int = 2**players - 1
    ends = [c for c in worth if c.bit_count() in (1, players - 1)]
    drawn = [coalition for pair in pairs for coalition in (pair, whole ^ pair)]
    rest = sum(_weight_of_size(players, size) for size in range(2, players - 1))
    weights = [_weight_of_size(players, 1) / players] * len(ends) + [rest / max(len(drawn), 1)] * len(drawn)
    inside = np.array([[c >> player & 1 for player in range(players)] for c in (*ends, *drawn)], dtype=float)
    total = worth[whole] - worth[0]
    target = np.array([worth[c] - worth[0] for c in (*ends, *drawn)]) - inside[:, -1] * total
    design = inside[:, :-1] - inside[:, -1:]
    root = np.sqrt(np.array(weights))
    first = np.linalg.lstsq(design * root[:, None], target * root, rcond=None)[0]
    return np.append(first, total - first.sum())
