"""A lower bound on epsilon from counts of right and wrong guesses.

For any test of whether a patient is in an (epsilon, delta)-private release,
true positives <= e^epsilon x false positives + delta, and the same holds for guessing absence (Kairouz et al., ICML
2015, arXiv:1311.0776). Conversely, observed rates give a lower bound on epsilon (Jagielski et al., NeurIPS 2020,
arXiv:2006.07709; Nasr et al., S&P 2021, arXiv:2101.04535). Each rate is replaced by the unfavourable end of its exact
interval (Clopper and Pearson, Biometrika 1934), so that the bound holds with the stated confidence.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

TAIL_STEPS = 60  # thresholds tried in each tail of each distribution
CAUTION = 100  # stricter confidence while choosing: a threshold that few draws reach is mostly chosen by luck


@dataclass(frozen=True)
class Bound:
    """A lower bound on epsilon and the counts behind it."""

    epsilon: float
    guess: Literal["present", "absent"]  # the guess whose errors give the bound
    threshold: float
    right: int  # times this guess was made and true
    wrong: int  # times it was made and false
    draws: int  # with the patient, and as many without, behind the counts
    limit: float  # the largest bound that so many draws could give


def interval(hits: np.ndarray | int, draws: int, confidence: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Clopper-Pearson interval for a proportion; each end is wrong with probability (1 - confidence) / 2 at most."""
    from scipy.stats import beta

    counts = np.asarray(hits, dtype=np.float64)
    tail = (1 - confidence) / 2
    with np.errstate(invalid="ignore"):
        low = np.where(counts > 0, beta.ppf(tail, counts, draws - counts + 1), 0.0)
        high = np.where(counts < draws, beta.ppf(1 - tail, counts + 1, draws - counts), 1.0)
    return low, high


def largest_bound(draws: int, delta: float, confidence: float = 0.95) -> float:
    """The bound if every guess were right."""
    return float(_epsilons(np.array([draws]), np.array([0]), draws, delta, confidence)[0])


def epsilon_bound(
    with_patient: np.ndarray, without_patient: np.ndarray, delta: float, confidence: float = 0.95
) -> Bound:
    """From equally many scores of releases with and without the patient; a higher score speaks for presence.

    The threshold and the guess are chosen on the first half of the scores and counted on the second, so that the
    choice does not bias the bound.
    """
    half = len(with_patient) // 2
    strict = 1 - (1 - confidence) / CAUTION
    chosen, guess = _best(np.sort(with_patient[:half]), np.sort(without_patient[:half]), delta, strict)
    with_patient, without_patient = with_patient[half : 2 * half], without_patient[half : 2 * half]
    if guess == "present":
        right, wrong = int((with_patient >= chosen).sum()), int((without_patient >= chosen).sum())
    else:
        right, wrong = int((without_patient < chosen).sum()), int((with_patient < chosen).sum())
    epsilon = float(_epsilons(np.array([right]), np.array([wrong]), half, delta, confidence)[0])
    return Bound(epsilon, guess, chosen, right, wrong, half, largest_bound(half, delta, confidence))


def _best(
    with_patient: np.ndarray, without_patient: np.ndarray, delta: float, confidence: float
) -> tuple[float, Literal["present", "absent"]]:
    draws = len(with_patient)
    thresholds = np.unique(np.concatenate([with_patient[_ranks(draws)], without_patient[_ranks(draws)]]))
    with_below = np.searchsorted(with_patient, thresholds, side="left")
    without_below = np.searchsorted(without_patient, thresholds, side="left")
    if_presence = _epsilons(draws - with_below, draws - without_below, draws, delta, confidence)
    if_absence = _epsilons(without_below, with_below, draws, delta, confidence)
    if if_presence.max() >= if_absence.max():
        return float(thresholds[if_presence.argmax()]), "present"
    return float(thresholds[if_absence.argmax()]), "absent"


def _ranks(draws: int) -> np.ndarray:
    """Ranks that are dense in both tails, where the best threshold usually is."""
    tail = np.geomspace(1, draws, TAIL_STEPS).astype(np.int64) - 1
    return np.unique(np.concatenate([tail, draws - 1 - tail]))


def _epsilons(right: np.ndarray, wrong: np.ndarray, draws: int, delta: float, confidence: float) -> np.ndarray:
    low, high = interval(right, draws, confidence)[0], interval(wrong, draws, confidence)[1]
    with np.errstate(divide="ignore"):
        bounds = np.log(np.maximum(low - delta, 0)) - np.log(high)
    return np.asarray(np.maximum(bounds, 0.0))


def draws_for(claim: float, fewest: int, most: int, confidence: float = 0.95) -> int:
    """Draws with the patient (and as many without) that would refute a claim if there were no noise at all."""
    none_wrong = -math.log((1 - confidence) / 2)  # with no hit in n draws the upper end is about this / n
    needed = 2 * 4 * none_wrong * math.exp(min(claim, 50.0))
    return int(min(max(needed, fewest), most)) // 2 * 2
