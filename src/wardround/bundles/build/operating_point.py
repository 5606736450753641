"""What is chosen on a site's validation rows, never on test rows: a threshold, and a calibration of the scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit, logit

from wardround.bundles.bundle import CLIP, Calibration
from wardround.evaluation.thresholds import LEAST_EACH, LEAST_ROWS, best_threshold, youden

MIDDLE = 0.5
RIDGE = 1.0  # as if slope and intercept were known beforehand to be 1 and 0, give or take 1
STEPS = 100
PRIVATE = "in a study that protects patients nothing is chosen on rows, because a choice would have no noise"
INVERTED = "on validation rows a higher score does not mean a higher risk"
EACH = "findings are calibrated one by one"


@dataclass(frozen=True)
class Chosen:
    """`why` says in plain words what it was chosen on, or why nothing could be."""

    threshold: dict[str, Any] | None  # value, chosen, why
    calibration: dict[str, Any] | None  # slope, intercept, rows
    uncalibrated: str  # why there is no calibration; empty where there is one
    findings: tuple[dict[str, Any], ...] = ()  # name, threshold, calibration, uncalibrated of each


def choose(label: np.ndarray, score: np.ndarray, private: bool) -> Chosen:
    """From a site's validation rows. `private`: patients are protected, and what is read off them would not be."""
    if score.ndim > 1:
        return Chosen(None, None, "scores of more than two classes are not recalibrated")
    rows, positive = len(label), int((label == 1).sum())
    if private:
        lacking = PRIVATE
    elif not rows:
        lacking = "the study keeps no validation rows"
    elif rows < LEAST_ROWS or min(positive, rows - positive) < LEAST_EACH:
        lacking = f"fewer than {LEAST_ROWS} validation rows, or fewer than {LEAST_EACH} of one class"
    else:
        on = f"{rows} validation rows of this site"
        value, fitted = youden(label, score), recalibrate(label, score)
        threshold = (
            {"value": MIDDLE, "chosen": False, "why": INVERTED}
            if value is None
            else {"value": value, "chosen": True, "why": f"Youden's index on {on}"}
        )
        if fitted is None:
            return Chosen(threshold, None, INVERTED)
        return Chosen(threshold, {"slope": fitted.slope, "intercept": fitted.intercept, "rows": rows}, "")
    return Chosen({"value": MIDDLE, "chosen": False, "why": lacking}, None, lacking)


def choose_findings(
    label: np.ndarray, score: np.ndarray, names: Sequence[str], private: bool, elsewhere: Mapping[str, float]
) -> Chosen:
    """A threshold and a calibration for each finding. `elsewhere` are the thresholds that all sites' validation rows
    have chosen together: they serve where this site has too few."""
    each = [_of_finding(label[:, f], score[:, f], name, private, elsewhere.get(name)) for f, name in enumerate(names)]
    return Chosen(None, None, EACH, tuple(each))


def _of_finding(
    label: np.ndarray, score: np.ndarray, name: str, private: bool, elsewhere: float | None
) -> dict[str, Any]:
    known = label >= 0
    y, s = label[known], score[known]
    made: dict[str, Any] = {"name": name, "calibration": None}
    positive = int((y == 1).sum())
    enough = len(y) >= LEAST_ROWS and min(positive, len(y) - positive) >= LEAST_EACH
    if private or not enough:
        lacking = f"fewer than {LEAST_ROWS} validation rows, or fewer than {LEAST_EACH} with or without it"
        value, why = MIDDLE, PRIVATE if private else lacking
        if elsewhere is not None and not private:
            value, why = elsewhere, f"best F1 on validation rows of all sites together, because here are {lacking}"
        threshold = {"value": value, "chosen": value != MIDDLE, "why": why}
        return {**made, "threshold": threshold, "uncalibrated": PRIVATE if private else lacking}
    threshold = {"value": highest_f1(y, s), "chosen": True, "why": f"best F1 on {len(y)} validation rows of this site"}
    fitted = recalibrate(y, s)
    if fitted is not None:
        made["calibration"] = {"slope": fitted.slope, "intercept": fitted.intercept, "rows": len(y)}
    return {**made, "threshold": threshold, "uncalibrated": INVERTED if fitted is None else ""}


def highest_f1(label: np.ndarray, score: np.ndarray) -> float:
    """As `evaluation.thresholds` chooses it, but midway to the next lower score, as in `youden`."""
    best = best_threshold(label, score)
    lower = score[score < best].astype(np.float64)
    return float((best + lower.max()) / 2) if len(lower) else best


def recalibrate(label: np.ndarray, score: np.ndarray) -> Calibration | None:
    """Logistic recalibration (Cox, Biometrika 1958), drawn towards leaving the scores as they are.

    None where the slope is not above 0: the scores then rank patients the wrong way round, and no slope mends that.
    """
    x = logit(np.clip(score.astype(np.float64), CLIP, 1 - CLIP))
    design = np.column_stack([x, np.ones(len(x))])
    prior = np.array([1.0, 0.0])
    beta = prior.copy()
    for _ in range(STEPS):  # Newton's steps on a strictly convex loss, halved until they help
        p = expit(design @ beta)
        gradient = design.T @ (p - label) + RIDGE * (beta - prior)
        curvature = design.T @ (design * (p * (1 - p))[:, None]) + RIDGE * np.eye(2)
        step = np.linalg.solve(curvature, gradient)
        before = _loss(design, label, beta, prior)
        while _loss(design, label, beta - step, prior) > before and np.abs(step).max() > 1e-12:
            step = step / 2
        beta = beta - step
        if np.abs(step).max() < 1e-10:
            break
    return Calibration(float(beta[0]), float(beta[1])) if beta[0] > 0 else None


def _loss(design: np.ndarray, label: np.ndarray, beta: np.ndarray, prior: np.ndarray) -> float:
    z = design @ beta
    return float((np.logaddexp(0, z) - label * z).sum() + RIDGE / 2 * np.square(beta - prior).sum())
