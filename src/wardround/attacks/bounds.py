"""From counts of right and wrong guesses to a lower bound on epsilon.

Whoever guesses from an (epsilon, delta)-private release whether a patient is in it is bound by
true positives <= e^epsilon x false positives + delta, and the same for those who are absent (Kairouz et al., ICML 2015,
arXiv:1311.0776). Turned round, rates that were counted are a lower bound on epsilon (Jagielski et al., NeurIPS 2020,
arXiv:2006.07709; Nasr et al., S&P 2021, arXiv:2101.04535). The rates are replaced by the ends of their exact intervals
(Clopper and Pearson, Biometrika 1934), so that chance exceeds the bound no more often than is said.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

TAIL_STEPS = 60  # thresholds that are tried in each tail of each world
CAUTION = 100  # by which doubt is smaller while choosing: a threshold that few draws reach is mostly chosen by luck


@dataclass(frozen=True)
class Bound:
    """A lower bound on epsilon and what it was counted from."""

    epsilon: float
    guess: Literal["present", "absent"]  # which guess is the telling one
    threshold: float
    right: int  # of the telling guess, where it is true
    wrong: int  # of the telling guess, where it is not
    draws: int  # of each world, on which the bound rests
    limit: float  # the largest epsilon that so many draws can show


def interval(hits: np.ndarray | int, draws: int, confidence: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Clopper and Pearson's interval for a share; each end is wrong with probability (1 - confidence) / 2 at most."""
    from scipy.stats import beta

    counted = np.asarray(hits, dtype=np.float64)
    tail = (1 - confidence) / 2
    with np.errstate(invalid="ignore"):
        low = np.where(counted > 0, beta.ppf(tail, counted, draws - counted + 1), 0.0)
        high = np.where(counted < draws, beta.ppf(1 - tail, counted + 1, draws - counted), 1.0)
    return low, high


def largest_bound(draws: int, delta: float, confidence: float = 0.95) -> float:
    """What guesses that are always right would show."""
    return float(_epsilons(np.array([draws]), np.array([0]), draws, delta, confidence)[0])


def epsilon_bound(present: np.ndarray, absent: np.ndarray, delta: float, confidence: float = 0.95) -> Bound:
    """From scores of releases with and without the patient, as many of each; a higher score speaks for presence.

    The threshold and the telling guess are chosen on the first half of the scores and counted on the second, so that
    choosing does not flatter the bound.
    """
    half = len(present) // 2
    strict = 1 - (1 - confidence) / CAUTION
    chosen, guess = _best(np.sort(present[:half]), np.sort(absent[:half]), delta, strict)
    present, absent = present[half : 2 * half], absent[half : 2 * half]
    if guess == "present":
        right, wrong = int((present >= chosen).sum()), int((absent >= chosen).sum())
    else:
        right, wrong = int((absent < chosen).sum()), int((present < chosen).sum())
    found = float(_epsilons(np.array([right]), np.array([wrong]), half, delta, confidence)[0])
    return Bound(found, guess, chosen, right, wrong, half, largest_bound(half, delta, confidence))


def _best(
    present: np.ndarray, absent: np.ndarray, delta: float, confidence: float
) -> tuple[float, Literal["present", "absent"]]:
    draws = len(present)
    thresholds = np.unique(np.concatenate([present[_places(draws)], absent[_places(draws)]]))
    present_below = np.searchsorted(present, thresholds, side="left")
    absent_below = np.searchsorted(absent, thresholds, side="left")
    if_present = _epsilons(draws - present_below, draws - absent_below, draws, delta, confidence)
    if_absent = _epsilons(absent_below, present_below, draws, delta, confidence)
    if if_present.max() >= if_absent.max():
        return float(thresholds[if_present.argmax()]), "present"
    return float(thresholds[if_absent.argmax()]), "absent"


def _places(draws: int) -> np.ndarray:
    """Ranks that are close together in both tails, where the best threshold mostly lies."""
    tail = np.geomspace(1, draws, TAIL_STEPS).astype(np.int64) - 1
    return np.unique(np.concatenate([tail, draws - 1 - tail]))


def _epsilons(right: np.ndarray, wrong: np.ndarray, draws: int, delta: float, confidence: float) -> np.ndarray:
    low, high = interval(right, draws, confidence)[0], interval(wrong, draws, confidence)[1]
    with np.errstate(divide="ignore"):
        found = np.log(np.maximum(low - delta, 0)) - np.log(high)
    return np.asarray(np.maximum(found, 0.0))


def draws_for(claim: float, fewest: int, most: int, confidence: float = 0.95) -> int:
    """Draws of each world, both halves together, with which a claim that is wholly wrong would be found out."""
    none_wrong = -math.log((1 - confidence) / 2)  # with no hit in n draws the upper end is about this / n
    needed = 2 * 4 * none_wrong * math.exp(min(claim, 50.0))
    return int(min(max(needed, fewest), most)) // 2 * 2
