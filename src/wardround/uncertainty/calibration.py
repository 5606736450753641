"""Calibration: whether a probability of 0.8 comes true eight times in ten, and a temperature that brings it nearer.

The kinds of labels are distinguished by their shapes, as in `evaluation`:

    binary       label (rows,)             score (rows,), of the positive class
    multiclass   label (rows,)             score (rows, classes); calibration is that of the predicted class
    findings     label (rows, findings)    score (rows, findings); -1 is a label that is not known
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, log_expit, logit, softmax

from wardround.evaluation.calibration_curves import BINS, CLIP, reliability
from wardround.tasks.class_metrics import predicted_classes

Slope = Callable[[float], np.ndarray]  # of each row's loss, by 1 / temperature
LEAST_PATIENTS = 30  # of validation: fewer would choose by chance
LEAST_EACH = 10  # of either outcome
BEYOND_CHANCE = 1.96  # SDs
COLDEST, HOTTEST = 0.05, 20.0  # temperatures


def events(label: np.ndarray, score: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Whether an event happened (1) or not (0), and its predicted probability: one pair of arrays for classes, one for
    each finding. The event is the positive class, or for multiclass that the predicted class is right."""
    if label.ndim == 2:
        known = label >= 0
        return [(label[known[:, f], f], score[known[:, f], f]) for f in range(label.shape[1])]
    if score.ndim == 1:
        return [(label, score)]
    predicted = predicted_classes(score)
    return [((predicted == label).astype(np.int64), score[np.arange(len(predicted)), predicted])]


def expected_error(happened: np.ndarray, score: np.ndarray) -> float:
    """ECE (Naeini et al., AAAI 2015): by how much score and share differ in a bin, on average over rows. NaN without
    rows, or where a model has diverged.

    Bins hold equally many rows (Nixon et al., CVPR Workshops 2019): bins of equal width leave most bins to a few rows
    where a finding is rare."""
    if not len(score) or np.isnan(score).any():
        return float("nan")
    points = reliability(happened, score)
    return sum(point["rows"] * abs(point["score"] - point["positive"]) for point in points) / len(score)


def ece(label: np.ndarray, score: np.ndarray) -> float:
    """For findings the mean over those that are known in any row."""
    errors = [expected_error(*pair) for pair in events(label, score) if len(pair[0])]
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
    findings: bool

    def of(self, score: np.ndarray) -> np.ndarray:
        """Probabilities, in the shape of the scores."""
        if score.ndim == 2 and not self.findings:
            return np.asarray(softmax(_logs(score) / self.values, axis=1))
        return np.asarray(expit(_logits(score) / self.values))


def fit_temperature(label: np.ndarray, score: np.ndarray, people: np.ndarray | None = None) -> Temperature:
    """On a site's validation rows (Guo et al., ICML 2017): the temperature with the highest likelihood, or 1 where no
    other is shown to be better. `people` has the patient of each row; None: each row is one.

    The loss is convex in 1 / temperature, so that there is one minimum, the root of its slope, searched within limits
    that contain 1. With few patients the likeliest temperature is mostly chance, and makes other patients' scores
    worse. So 1 / temperature stays 1 unless the slope there is beyond chance over patients (a score test), and is
    otherwise shrunk towards 1 (as in Breiman's garrote, Technometrics 1995). The loss on these rows never rises.
    """
    people = np.arange(len(label)) if people is None else people
    if score.ndim > label.ndim:
        enough = len(np.unique(people)) >= LEAST_PATIENTS
        fits = [_fitted(multiclass_slope(label, _logs(score)), people) if enough else None]
    else:
        patients = [people[known] for known in np.atleast_2d((label >= 0).T)]
        pairs = zip(events(label, score), patients, strict=True)
        fits = [_fitted(binary_slope(y, _logits(s)), own) if _enough(y, own) else None for (y, s), own in pairs]
    values = np.array([1.0 if value is None else value for value in fits])
    return Temperature(values, np.array([value is not None for value in fits]), label.ndim == 2)


def log_loss(label: np.ndarray, score: np.ndarray) -> float:
    """Mean negative log likelihood; for findings over all labels that are known."""
    if score.ndim == 2 and label.ndim == 1:
        return float(-_logs(score)[np.arange(len(label)), label].mean())
    pairs = events(label, score)
    happened, probability = (np.concatenate(arrays) for arrays in zip(*pairs, strict=True))
    z = _logits(probability)
    return float(-np.where(happened == 1, log_expit(z), log_expit(-z)).mean())


def _enough(happened: np.ndarray, people: np.ndarray) -> bool:
    each = [len(np.unique(people[happened == outcome])) for outcome in (0, 1)]
    return len(np.unique(people)) >= LEAST_PATIENTS and min(each) >= LEAST_EACH


def binary_slope(happened: np.ndarray, z: np.ndarray) -> Slope:
    return lambda inverse: z * (expit(inverse * z) - happened)


def multiclass_slope(label: np.ndarray, logs: np.ndarray) -> Slope:
    of_label = logs[np.arange(len(label)), label]
    return lambda inverse: (softmax(inverse * logs, axis=1) * logs).sum(axis=1) - of_label


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


def _logits(score: np.ndarray) -> np.ndarray:
    return np.asarray(logit(np.clip(score.astype(np.float64), CLIP, 1 - CLIP)))


def _logs(score: np.ndarray) -> np.ndarray:
    return np.log(np.clip(score.astype(np.float64), CLIP, 1))
