"""Whether scores mean what they say: calibration, how well they rank rows, and what acting on them would be worth.

All are computed on all seeds' test rows together: one seed has too few rows for a curve. A patient who is tested with
several seeds counts several times, so the intervals are clustered by patient.
"""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import stats
from scipy.optimize import brentq
from scipy.special import expit, logit

from wardround.evaluation.intervals import CONFIDENCE
from wardround.tasks import Task
from wardround.tasks.class_metrics import SMALLEST_GROUP, THRESHOLDS
from wardround.tasks.classes import ClassTask
from wardround.tasks.task import Calibration

BINS = 10
POINTS = 60  # of a ROC or precision-recall curve
CELLS = 10  # of a histogram of scores
NO_SPREAD = 1e-12  # of predictions, in parts of the largest: rounding
CLIP = 1e-6  # scores of exactly 0 and 1 have no logit


def calibration_of(
    task: Task, label: np.ndarray, score: np.ndarray, row: np.ndarray, bins: int = BINS
) -> dict[str, Any] | None:
    """With at most so many `bins`. None where the task has no such line: for several classes and for findings
    `uncertainty` has calibration."""
    return None if task.calibration is None else CALIBRATIONS[task.calibration](label, score, row, bins)


def decision_curve_of(task: Task, label: np.ndarray, score: np.ndarray) -> dict[str, list[float]] | None:
    """None where a prediction is not one probability to act on."""
    return decision_curve(label, score) if task.calibration == "logistic" else None


def calibration(label: np.ndarray, score: np.ndarray, row: np.ndarray, bins: int = BINS) -> dict[str, Any] | None:
    """Of an event, such as the positive class of two, and its probability. None where it cannot be computed: one class
    only, scores that are all alike, or diverged.

    `slope` is 1 and `intercept` 0 for a calibrated model. `slope` comes from a logistic regression of the label on
    the score's logit; `intercept` is that of a regression with the slope held at 1 (calibration in the large).
    """
    if np.isnan(score).any() or len(np.unique(label)) < 2:
        return None
    x = logit(np.clip(score.astype(np.float64), CLIP, 1 - CLIP))
    patient = np.unique(row, return_inverse=True)[1]
    if np.ptp(x) == 0 or patient.max() == 0:
        return None
    slope = _slope(label, x, patient)
    if slope is None:
        return None
    return {
        "slope": slope,
        "intercept": _intercept(label, x, patient),
        "bins": reliability(label, score, bins, patient),
    }


def _slope(label: np.ndarray, x: np.ndarray, patient: np.ndarray) -> dict[str, Any] | None:
    """None where a threshold separates the classes perfectly: the slope is then infinite."""
    # statsmodels takes longer to import than most studies of one arm take to evaluate
    from statsmodels.genmod.families import Binomial
    from statsmodels.genmod.generalized_linear_model import GLM
    from statsmodels.tools.sm_exceptions import PerfectSeparationError, PerfectSeparationWarning

    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore", RuntimeWarning)
            warnings.simplefilter("error", PerfectSeparationWarning)
            design = np.column_stack([np.ones(len(x)), x])
            fitted = GLM(label, design, Binomial()).fit(cov_type="cluster", cov_kwds={"groups": patient})
    except (PerfectSeparationError, PerfectSeparationWarning, np.linalg.LinAlgError):
        return None
    if not fitted.converged or not np.isfinite([fitted.params[1], fitted.bse[1]]).all():
        return None
    return _with_interval(fitted.params[1], fitted.bse[1])


def _intercept(label: np.ndarray, x: np.ndarray, patient: np.ndarray) -> dict[str, Any]:
    """By root finding: with the slope held at 1 the likelihood has one maximum, which Newton's steps may miss."""
    value = brentq(lambda shift: float((label - expit(x + shift)).sum()), -50.0, 50.0)
    p = expit(x + value)
    of_patient = np.bincount(patient, weights=label - p)
    few_groups = len(of_patient) / (len(of_patient) - 1)  # statsmodels' correction for one parameter
    error = np.sqrt(few_groups * (of_patient**2).sum()) / (p * (1 - p)).sum()
    return _with_interval(value, error)


def _with_interval(value: float, error: float) -> dict[str, Any]:
    half = float(stats.norm.ppf((1 + CONFIDENCE) / 2)) * float(error)
    return {"value": float(value), "interval": [float(value) - half, float(value) + half]}


def number_calibration(
    label: np.ndarray, score: np.ndarray, row: np.ndarray, bins: int = BINS
) -> dict[str, Any] | None:
    """Of numbers, in units. `slope` and `intercept` are those of the line of observed on predicted, 1 and 0 for a
    calibrated model. None where it cannot be computed: predictions that are all alike, too few patients, or diverged.
    """
    patient = np.unique(row, return_inverse=True)[1]
    if not np.isfinite(score).all() or len(score) < 3 or patient.max() == 0:
        return None
    y, p = label.astype(np.float64), score.astype(np.float64)
    middle, apart = p.mean(), p - p.mean()
    if np.ptp(p) <= NO_SPREAD * np.abs(p).max():
        return None
    slope = float(apart @ (y - y.mean()) / (apart @ apart))
    design = np.column_stack([np.ones(len(p)), apart])  # predictions from their mean on, so that no digits are lost
    residual = y - y.mean() - slope * apart
    of_patient = np.stack([np.bincount(patient, weights=column * residual) for column in design.T])
    bread = np.diag([1 / len(p), 1 / (apart @ apart)])
    # clustered by patient, with statsmodels' correction for few groups and two parameters
    groups, rows = of_patient.shape[1], len(p)
    few = groups / (groups - 1) * (rows - 1) / (rows - 2)
    covariance = few * bread @ (of_patient @ of_patient.T) @ bread
    at_zero = np.array([1.0, -middle])  # the intercept is the line's value at a prediction of 0
    return {
        "slope": _with_interval(slope, np.sqrt(covariance[1, 1])),
        "intercept": _with_interval(y.mean() - slope * middle, np.sqrt(at_zero @ covariance @ at_zero)),
        "bins": residual_bins(y, p, bins),
    }


def residual_bins(label: np.ndarray, score: np.ndarray, most: int = BINS) -> list[dict[str, float]]:
    """Rows in order of their prediction, in bins of equal size: mean prediction, mean outcome, SD of residuals, rows.
    Fewer than `most` bins where these would hold less than SMALLEST_GROUP rows: no patient is a bin."""
    order = np.argsort(score, kind="stable")
    parts = np.array_split(order, max(1, min(most, len(order) // SMALLEST_GROUP))) if len(order) > 1 else []
    residual = label - score
    return [
        {
            "score": float(score[part].mean()),
            "observed": float(label[part].mean()),
            "residual": float(residual[part].mean()),
            "residual_sd": float(residual[part].std(ddof=1)),
            "rows": len(part),
        }
        for part in parts
    ]


def reliability(
    label: np.ndarray, score: np.ndarray, bins: int = BINS, patient: np.ndarray | None = None
) -> list[dict[str, Any]]:
    """Rows in order of their score, in bins of equal size: mean score, share of positives, rows; with patients the
    share's interval."""
    order, points = np.argsort(score, kind="stable"), []
    for part in np.array_split(order, bins):
        if len(part):
            happened = label[part] == 1
            point = {"score": float(score[part].mean()), "positive": float(happened.mean()), "rows": len(part)}
            alone = {} if patient is None else {"interval": _share_interval(happened, patient[part])}
            points.append({**point, **alone})
    return points


def _share_interval(happened: np.ndarray, patient: np.ndarray) -> list[float]:
    """Wilson's, of as many rows as would be as uncertain if each were another patient."""
    number = np.unique(patient, return_inverse=True)[1]
    patients, rows, share = int(number.max()) + 1, len(happened), float(happened.mean())
    of_patient = np.bincount(number, weights=happened - share)
    spread = float((of_patient**2).sum()) * patients / max(1, patients - 1)
    if spread == 0 or patients == 1:  # all rows are alike, or of one patient: what is known is what patients say
        return wilson(share, patients)
    return wilson(share, min(rows, max(1.0, share * (1 - share) * rows**2 / spread)))


def wilson(share: float, rows: float) -> list[float]:
    """The interval of a share (Wilson 1927)."""
    z = float(stats.norm.ppf((1 + CONFIDENCE) / 2))
    middle, half = share + z**2 / (2 * rows), z * np.sqrt(share * (1 - share) / rows + z**2 / (4 * rows**2))
    low, high = (float((middle + sign * half) / (1 + z**2 / rows)) for sign in (-1, 1))
    return [max(0.0, low), min(1.0, high)]


def score_histogram(label: np.ndarray, score: np.ndarray) -> dict[str, list[int]] | None:
    """Rows in cells of equal width from 0 to 1, without and with the event."""
    if np.isnan(score).any() or not len(score):
        return None
    counts = [np.histogram(score[(label == 1) == happened], CELLS, (0, 1))[0] for happened in (False, True)]
    return {"negative": counts[0].tolist(), "positive": counts[1].tolist()}


def ranking_of(task: Task, label: np.ndarray, score: np.ndarray, seed: np.ndarray, seeds: int) -> dict[str, Any]:
    """ROC and precision-recall curves by class: of the positive one of two, or of each of several against the rest.
    `rows` and `positives` are those of one seed on average. A seed with which the model has diverged is left out. Empty
    where rows have no class: of findings each has its own."""
    if not isinstance(task, ClassTask):
        return {}
    lost = np.isnan(score).reshape(len(score), -1).any(axis=1)
    kept = ~np.isin(seed, seed[lost])
    return {
        task.names[number]: {
            "rows": len(label) / seeds,
            "positives": int((label == number).sum()) / seeds,
            **curves_of(label[kept] == number, score[kept] if score.ndim == 1 else score[kept, number]),
        }
        for number in task.counted_classes
    }


def curves_of(positive: np.ndarray, score: np.ndarray) -> dict[str, Any]:
    """ROC and precision-recall curves at some points, over all seeds' test rows; None where they are not defined."""
    hits, misses = int(positive.sum()), int((~positive).sum())
    if not hits or not misses:
        return {"roc": None, "pr": None}
    order = np.argsort(-score, kind="stable")
    last = np.flatnonzero(np.append(score[order][1:] != score[order][:-1], True))
    tp = np.cumsum(positive[order])[last]
    fp = last + 1 - tp
    # evenly along both axes, so that neither the steep nor the flat part of the curve is lost
    along = tp / hits + fp / misses
    shown = np.unique(np.searchsorted(along, np.linspace(0, along[-1], POINTS)).clip(max=len(last) - 1))
    recall, fallout, precision = tp[shown] / hits, fp[shown] / misses, tp[shown] / (last[shown] + 1)
    return {
        "roc": {"fpr": [0.0, *fallout.tolist()], "tpr": [0.0, *recall.tolist()]},
        "pr": {"recall": recall.tolist(), "precision": precision.tolist()},
    }


def decision_curve(label: np.ndarray, score: np.ndarray) -> dict[str, list[float]] | None:
    """Net benefit of acting on probabilities above a threshold (Vickers and Elkin 2006), beside acting on all; on none:
    0."""
    if np.isnan(score).any() or not len(label):
        return None
    positive = label == 1
    odds = THRESHOLDS / (1 - THRESHOLDS)
    predicted = score[:, None] >= THRESHOLDS
    hits, false_alarms = (predicted & positive[:, None]).mean(axis=0), (predicted & ~positive[:, None]).mean(axis=0)
    rate = positive.mean()
    return {
        "threshold": THRESHOLDS.tolist(),
        "net_benefit": (hits - false_alarms * odds).tolist(),
        "treat_all": (rate - (1 - rate) * odds).tolist(),
    }


CALIBRATIONS: dict[Calibration, Callable[[np.ndarray, np.ndarray, np.ndarray, int], dict[str, Any] | None]] = {
    "logistic": calibration,
    "linear": number_calibration,
}
