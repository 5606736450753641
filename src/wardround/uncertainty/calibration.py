"""Whether a probability of 0.8 comes true eight times in ten, and a temperature that brings it nearer to that.

Three kinds of labels, told apart by their shapes as everywhere in `evaluation`:

    two classes       label (rows,)             score (rows,), of the positive class
    several classes   label (rows,)             score (rows, classes); looked at is the class that is called
    findings          label (rows, findings)    score (rows, findings); -1 is a label that is not known
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, log_expit, logit, softmax

from wardround.evaluation.calibration_curves import BINS, CLIP, reliability
from wardround.evaluation.metrics import predicted_classes

Bins = Literal["adaptive", "equal-width"]
Slope = Callable[[float], np.ndarray]  # of each row's loss, by 1 / temperature
LEAST_PATIENTS = 30  # of validation: fewer would choose by chance
LEAST_EACH = 10  # of either outcome
BEYOND_CHANCE = 1.96  # SDs
COLDEST, HOTTEST = 0.05, 20.0  # temperatures


def events(label: np.ndarray, score: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """What is said to happen with which probability, and whether it did (1) or not (0): one pair of arrays for classes,
    one for each finding. For two classes it is the positive one; for several that the called class is right."""
    if label.ndim == 2:
        known = label >= 0
        return [(label[known[:, f], f], score[known[:, f], f]) for f in range(label.shape[1])]
    if score.ndim == 1:
        return [(label, score)]
    called = predicted_classes(score)
    return [((called == label).astype(np.int64), score[np.arange(len(called)), called])]


def reliability_points(happened: np.ndarray, score: np.ndarray, bins: Bins = "adaptive") -> list[dict[str, float]]:
    """Points of a reliability diagram: mean score, share of rows in which it happened, rows. Bins without rows are
    left out. Adaptive bins hold equally many rows each; those of equal width leave most bins to a few rows where a
    finding is rare."""
    if bins == "adaptive":
        return reliability(happened, score)
    place = np.minimum((score * BINS).astype(np.int64), BINS - 1)
    return [
        {
            "score": float(score[place == one].mean()),
            "positive": float((happened[place == one] == 1).mean()),
            "rows": int((place == one).sum()),
        }
        for one in np.unique(place).tolist()
    ]


def expected_error(happened: np.ndarray, score: np.ndarray, bins: Bins = "adaptive") -> float:
    """ECE (Naeini et al., AAAI 2015; adaptive bins: Nixon et al., CVPR Workshops 2019): by how much score and share
    differ in a bin, on average over rows. NaN without rows, or where a model has diverged."""
    if not len(score) or np.isnan(score).any():
        return float("nan")
    points = reliability_points(happened, score, bins)
    return sum(one["rows"] * abs(one["score"] - one["positive"]) for one in points) / len(score)


def ece(label: np.ndarray, score: np.ndarray, bins: Bins = "adaptive") -> float:
    """For findings the mean over those that are known of any row."""
    found = [expected_error(*pair, bins) for pair in events(label, score) if len(pair[0])]
    return float(np.mean(found)) if found else float("nan")


def error_by_chance(score: np.ndarray) -> float:
    """The ECE (adaptive bins) to be expected of scores that are exactly right: a bin's share of so few rows strays from
    its mean score. To be set beside an ECE, which alone cannot be told from chance.

    A bin's share has the variance sum p (1 - p) / rows^2, and a normal deviation is on average sqrt(2 / pi) of its SD.
    """
    if not len(score) or np.isnan(score).any():
        return float("nan")
    p = np.sort(score.astype(np.float64))
    deviations = [np.sqrt((part * (1 - part)).sum()) for part in np.array_split(p, BINS)]
    return float(np.sqrt(2 / np.pi) * sum(deviations) / len(p))


@dataclass(frozen=True, eq=False)
class Temperature:
    """Scores' logits are divided by it: above 1 makes a model less sure, below 1 surer. It changes no order of rows,
    so that no AUC, and for classes no call, changes with it."""

    values: np.ndarray  # (1,), or (findings,)
    fitted: np.ndarray  # whether there were patients enough; elsewhere the value is 1
    findings: bool

    def of(self, score: np.ndarray) -> np.ndarray:
        """Probabilities, in the shape of the scores."""
        made: np.ndarray
        if score.ndim == 2 and not self.findings:
            made = softmax(_logs(score) / self.values, axis=1)
        else:
            made = expit(_logits(score) / self.values)
        return made


def fit_temperature(label: np.ndarray, score: np.ndarray, people: np.ndarray | None = None) -> Temperature:
    """On a site's validation rows (Guo et al., ICML 2017): the temperature at which the labels are most likely, or 1
    where it is not shown that another is better. `people` has the patient of each row; None: each row is one.

    The loss is convex in 1 / temperature, so that there is one minimum, found as the root of its slope. It is looked
    for within limits that contain 1. Of few patients the likeliest temperature is mostly chance, and makes other
    patients' scores worse. So 1 / temperature stays 1 unless the slope there is beyond what chance over patients makes
    of it (a score test), and goes the further towards the likeliest the clearer that is (the shape of Breiman's
    garrote, Technometrics 1995). In between, the loss on these rows is never above what it was.
    """
    people = np.arange(len(label)) if people is None else people
    if label.ndim == 2:
        known = label >= 0
        whose = [people[known[:, f]] for f in range(label.shape[1])]
        pairs = zip(events(label, score), whose, strict=True)
        found = [_fitted(of_two(y, _logits(s)), who) if _enough(y, who) else None for (y, s), who in pairs]
    elif score.ndim == 1:
        found = [_fitted(of_two(label, _logits(score)), people) if _enough(label, people) else None]
    else:
        enough = len(np.unique(people)) >= LEAST_PATIENTS
        found = [_fitted(of_classes(label, _logs(score)), people) if enough else None]
    values = np.array([1.0 if one is None else one for one in found])
    return Temperature(values, np.array([one is not None for one in found]), label.ndim == 2)


def log_loss(label: np.ndarray, score: np.ndarray) -> float:
    """Mean negative log likelihood; for findings over all labels that are known."""
    if score.ndim == 2 and label.ndim == 1:
        return float(-_logs(score)[np.arange(len(label)), label].mean())
    pairs = events(label, score)
    happened, said = (np.concatenate(one) for one in zip(*pairs, strict=True))
    z = _logits(said)
    return float(-np.where(happened == 1, log_expit(z), log_expit(-z)).mean())


def _enough(happened: np.ndarray, people: np.ndarray) -> bool:
    each = [len(np.unique(people[happened == outcome])) for outcome in (0, 1)]
    return len(np.unique(people)) >= LEAST_PATIENTS and min(each) >= LEAST_EACH


def of_two(happened: np.ndarray, z: np.ndarray) -> Slope:
    return lambda inverse: z * (expit(inverse * z) - happened)


def of_classes(label: np.ndarray, logs: np.ndarray) -> Slope:
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
    made: np.ndarray = logit(np.clip(score.astype(np.float64), CLIP, 1 - CLIP))
    return made


def _logs(score: np.ndarray) -> np.ndarray:
    return np.log(np.clip(score.astype(np.float64), CLIP, 1))
