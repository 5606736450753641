"""Calibration: whether a probability of 0.8 comes true eight times in ten, and a temperature that brings it nearer.

The task says which probabilities there are (`events`), and on which scale a temperature divides (`probability_scale`):

    binary       label (rows,)             score (rows,), of the positive class
    multiclass   label (rows,)             score (rows, classes); calibration is that of the predicted class
    multilabel   label (rows, findings)    score (rows, findings); -1 is a label that is not known
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from wardround.evaluation.calibration_curves import BINS, reliability
from wardround.tasks.probabilities import ProbabilityTask, Scale
from wardround.uncertainty.scales import SCALES, Outcomes, Slope

LEAST_PATIENTS = 30  # of validation: fewer would choose by chance
LEAST_EACH = 10  # of either outcome
BEYOND_CHANCE = 1.96  # SDs
COLDEST, HOTTEST = 0.05, 20.0  # temperatures


def expected_error(happened: np.ndarray, score: np.ndarray) -> float:
    """ECE (Naeini et al., AAAI 2015): by how much score and share differ in a bin, on average over rows. NaN without
    rows, or where a model has diverged.

    Bins hold equally many rows (Nixon et al., CVPR Workshops 2019): bins of equal width leave most bins to a few rows
    where a finding is rare."""
    if not len(score) or np.isnan(score).any():
        return float("nan")
    points = reliability(happened, score)
    return float(sum(point["rows"] * abs(point["score"] - point["positive"]) for point in points) / len(score))


def ece(task: ProbabilityTask, label: np.ndarray, score: np.ndarray) -> float:
    """For findings the mean over those that are known in any row."""
    errors = [expected_error(*pair) for pair in task.events(label, score) if len(pair[0])]
    return float(np.mean(errors)) if errors else float("nan")


def error_by_chance(score: np.ndarray) -> float:
    """The ECE to be expected of perfectly calibrated scores, because a bin's share of few rows strays from its mean
    score. An ECE alone cannot be distinguished from chance.

    A bin's share has the variance sum p (1 - p) / rows^2, and a normal deviation is on average sqrt(2 / pi) of its SD.
    """
    if not len(score) or np.isnan(score).any():
        return float("nan")
    p = np.sort(score.astype(np.float64))
    deviations = [np.sqrt((part * (1 - part)).sum()) for part in np.array_split(p, BINS)]
    return float(np.sqrt(2 / np.pi) * sum(deviations) / len(p))


@dataclass(frozen=True, eq=False)
class Temperature:
    """Logits are divided by it: above 1 makes a model less confident, below 1 more. The order of rows stays, and so do
    AUC and, for classes, predictions."""

    values: np.ndarray  # (1,), or (findings,)
    fitted: np.ndarray  # whether there were patients enough; elsewhere the value is 1
    scale: Scale  # of the task

    def of(self, score: np.ndarray) -> np.ndarray:
        """Probabilities, in the shape of the scores."""
        return SCALES[self.scale].tempered(score, self.values)


def fit_temperature(
    task: ProbabilityTask, label: np.ndarray, score: np.ndarray, people: np.ndarray | None = None
) -> Temperature:
    """On a site's validation rows (Guo et al., ICML 2017): the temperature with the highest likelihood, or 1 where no
    other is shown to be better. `people` has the patient of each row; None: each row is one.

    The loss is convex in 1 / temperature, so that there is one minimum, the root of its slope, searched within limits
    that contain 1. With few patients the likeliest temperature is mostly chance, and makes other patients' scores
    worse. So 1 / temperature stays 1 unless the slope there is beyond chance over patients (a score test), and is
    otherwise shrunk towards 1 (as in Breiman's garrote, Technometrics 1995). The loss on these rows never rises.
    """
    people = np.arange(len(label)) if people is None else people
    outcomes = [(each, people[each.rows]) for each in SCALES[task.probability_scale].outcomes(task, label, score)]
    fits = [_fitted(each.slope, own) if _enough(each, own) else None for each, own in outcomes]
    values = np.array([1.0 if value is None else value for value in fits])
    return Temperature(values, np.array([value is not None for value in fits]), task.probability_scale)


def log_loss(task: ProbabilityTask, label: np.ndarray, score: np.ndarray) -> float:
    """Mean negative log likelihood; for findings over all labels that are known."""
    return float(SCALES[task.probability_scale].row_losses(task, label, score).mean())


def _enough(outcomes: Outcomes, people: np.ndarray) -> bool:
    if len(np.unique(people)) < LEAST_PATIENTS:
        return False
    happened = outcomes.happened
    return happened is None or min(len(np.unique(people[happened == event])) for event in (0, 1)) >= LEAST_EACH


def _fitted(slope: Slope, people: np.ndarray) -> float:
    places = np.unique(people, return_inverse=True)[1]
    of_patients = np.bincount(places, weights=slope(1.0))
    by_chance = np.sqrt(np.square(of_patients).sum())
    if abs(of_patients.sum()) <= BEYOND_CHANCE * by_chance:
        return 1.0
    shown = 1 - float(BEYOND_CHANCE * by_chance / of_patients.sum()) ** 2
    return 1 / (1 + shown * (1 / likeliest(slope) - 1))


def likeliest(slope: Slope) -> float:
    """The temperature at which the loss has no slope by 1 / temperature, or the limit towards which it still falls."""
    if slope(1 / HOTTEST).mean() >= 0:  # scores that rank rows at random, or the wrong way round
        return HOTTEST
    if slope(1 / COLDEST).mean() <= 0:  # scores that separate the outcomes
        return COLDEST
    return 1 / float(brentq(lambda inverse: float(slope(inverse).mean()), 1 / HOTTEST, 1 / COLDEST, xtol=1e-12))
