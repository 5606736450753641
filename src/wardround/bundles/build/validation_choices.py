"""What is chosen on a site's validation rows, never on test rows: threshold, calibration, and how uncertainty is
computed."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import expit, logit
from torch import Tensor

from wardround.bundles.build.run_inputs import LabelledRows
from wardround.bundles.bundle import CLIP, Bundle, Calibration, events_of
from wardround.bundles.uncertainty import (
    ALPHA,
    PASSES,
    SHARE,
    SHARES,
    Measured,
    Referral,
    Uncertainty,
    conformal_sets,
    measure,
)
from wardround.core import seeds
from wardround.core.errors import StudyError
from wardround.core.tree import State
from wardround.evaluation.thresholds import LEAST_EACH, LEAST_ROWS, best_threshold, youden
from wardround.study.schema import Uncertainty as StudySettings
from wardround.tasks import Task
from wardround.tasks.answer import Answer
from wardround.tasks.class_metrics import SMALLEST_GROUP
from wardround.tasks.probabilities import probability_task
from wardround.tasks.summed import number_task
from wardround.uncertainty.calibration import ece, fit_temperature
from wardround.uncertainty.conformal import coverage, fit_cuts, set_sizes
from wardround.uncertainty.decision import answers, referral_reasons, referred
from wardround.uncertainty.intervals import fit_interval_cut, interval_coverage
from wardround.uncertainty.laplace import Laplace, choose_prior, fit_laplace
from wardround.uncertainty.referral import LEAST_ROWS as LEAST_CONFORMAL_ROWS
from wardround.uncertainty.referral import referral_cut
from wardround.uncertainty.swag import choose_scale, fit_swag
from wardround.uncertainty.validation import has_dropout

MIDDLE = 0.5
RIDGE = 1.0  # as if slope and intercept were known beforehand to be 1 and 0, give or take 1
STEPS = 100
PRIVATE_CHOICE = "in a study that protects patients nothing is chosen on rows, because a choice would have no noise"
INVERTED = "on validation rows a higher score does not mean a higher risk"
MOST_CELLS = 1 << 26  # numbers of rows that are in memory together; of more rows, so many are drawn
MOST_NUMBERS = 1 << 20  # in Laplace's matrices: 8 MB of the bundle; beyond, their diagonals are kept
BATCH_CELLS = 1 << 22
ONE_SCORE = 'the study asks for one score of each row ([uncertainty] method = "none")'
NO_DOUBT = "of a number no doubt is computed, and its interval says how far off it may be"
PRIVATE = "in a study that protects patients nothing is read off rows without noise"


@dataclass(frozen=True)
class OperatingPoint:
    """`why` says what a threshold was chosen on, or why none could be."""

    threshold: dict[str, Any] | None  # value, chosen, why
    calibration: dict[str, Any] | None  # slope, intercept, rows
    uncalibrated: str  # why there is no calibration; empty where there is one
    findings: tuple[dict[str, Any], ...] = ()  # name, threshold, calibration, uncalibrated of each

    def described(self) -> dict[str, Any]:
        """As bundle.json has it."""
        return {**vars(self), "findings": list(self.findings) or None}


class Rule(NamedTuple):
    """How a threshold is chosen; None where scores rank rows the wrong way round."""

    choose: Callable[[np.ndarray, np.ndarray], float | None]
    words: str
    each: str  # of what there must be enough rows
    without_rows: str


def choose_events(
    task: Task,
    label: np.ndarray,
    score: np.ndarray,
    private: bool,
    elsewhere: Mapping[str, float] = MappingProxyType({}),
) -> OperatingPoint:
    """A threshold and a calibration for each event of the answer. `private`: patients are protected, and a choice on
    their rows would not be. `elsewhere` are the thresholds that all sites' validation rows have chosen together: they
    serve where this site has too few."""
    answer = task.answer
    chosen = [
        _choose_event(*pair, name, RULES[task.threshold_rule or "youden"], private, elsewhere.get(name))
        for name, pair in zip(answer.events, events_of(task, label, score), strict=True)
    ]
    if answer.uncalibrated:
        return OperatingPoint(None, None, answer.uncalibrated, tuple(chosen))
    [only] = chosen
    return OperatingPoint(only["threshold"], only["calibration"], only["uncalibrated"])


def _choose_event(
    label: np.ndarray, score: np.ndarray, name: str, rule: Rule, private: bool, elsewhere: float | None
) -> dict[str, Any]:
    rows, positive = len(label), int((label == 1).sum())
    if not private and rows >= LEAST_ROWS and min(positive, rows - positive) >= LEAST_EACH:
        value, why = rule.choose(label, score), f"{rule.words} on {rows} validation rows of this site"
        threshold = {"value": value, "chosen": True, "why": why}
        if value is None:
            threshold = {"value": MIDDLE, "chosen": False, "why": INVERTED}
        calibration, uncalibrated = _calibration(label, score)
    else:
        lacking = f"fewer than {LEAST_ROWS} validation rows, or fewer than {LEAST_EACH} {rule.each}"
        lacking = lacking if rows else rule.without_rows or lacking
        calibration, uncalibrated = None, PRIVATE_CHOICE if private else lacking
        threshold = {"value": MIDDLE, "chosen": False, "why": uncalibrated}
        if elsewhere is not None and not private:
            why = f"{rule.words} on validation rows of all sites together, because here are {lacking}"
            threshold = {"value": elsewhere, "chosen": True, "why": why}
    return {"name": name, "calibration": calibration, "threshold": threshold, "uncalibrated": uncalibrated}


def _calibration(label: np.ndarray, score: np.ndarray) -> tuple[dict[str, Any] | None, str]:
    """And why there is none."""
    fitted = recalibrate(label, score)
    if fitted is None:
        return None, INVERTED
    return {"slope": fitted.slope, "intercept": fitted.intercept, "rows": len(label)}, ""


def highest_f1(label: np.ndarray, score: np.ndarray) -> float:
    """As `evaluation.thresholds` chooses it, but midway to the next lower score, as in `youden`."""
    best = best_threshold(label, score)
    lower = score[score < best].astype(np.float64)
    return float((best + lower.max()) / 2) if len(lower) else best


RULES = {
    "youden": Rule(youden, "Youden's index", "of one class", "the study keeps no validation rows"),
    "f1": Rule(highest_f1, "best F1", "with or without it", ""),
}


def recalibrate(label: np.ndarray, score: np.ndarray) -> Calibration | None:
    """Logistic recalibration (Cox, Biometrika 1958), drawn towards leaving the scores as they are.

    None where the slope is not above 0: the scores then rank patients the wrong way round, which no slope can correct.
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


def choose_uncertainty(
    bundle: Bundle,
    train: LabelledRows,
    validation: LabelledRows,
    private: bool,
    study: StudySettings | None,
    posterior: State,
) -> Uncertainty:
    """`study` has the study's settings; None: what fits the model and its task is taken. `private`: patients are
    protected. `posterior` is what training tells of the distribution of the weights."""
    if bundle.answer.bounded_by == "residuals":
        return interval_of_numbers(bundle, validation, private, study)
    return uncertainty_of_labels(bundle, train, validation, private, study, posterior)


def interval_of_numbers(
    bundle: Bundle, validation: LabelledRows, private: bool, study: StudySettings | None
) -> Uncertainty:
    """From residuals of the validation rows."""
    alpha = ALPHA if study is None else study.alpha
    none = Uncertainty("none", PASSES if study is None else study.passes, int(bundle.about.get("seed", 0)), "")
    if private:
        return replace(none, why=PRIVATE, unchosen=PRIVATE)
    score = bundle.scores(validation.x, validation.y)
    cut = fit_interval_cut(number_task(bundle.task), validation.label, score, alpha)
    if cut.why:
        return replace(none, why=cut.why, unchosen=cut.why)
    return replace(none, method="residuals", residuals=cut, unchosen=NO_DOUBT)


def uncertainty_of_labels(
    bundle: Bundle,
    train: LabelledRows,
    validation: LabelledRows,
    private: bool,
    study: StudySettings | None,
    posterior: State,
) -> Uncertainty:
    """Without a study's settings, by the method that fits the model. A bundle is one member of an ensemble, so that for
    one it is the same."""
    method = None if study is None else study.method
    none = Uncertainty("none", PASSES if study is None else study.passes, int(bundle.about.get("seed", 0)), "")
    if method == "none":
        chosen = replace(none, why=ONE_SCORE)
    elif method == "swag":
        chosen = _swag(none, bundle, validation, private, posterior)
    elif has_dropout(bundle.model) and method != "laplace":
        chosen = replace(none, method="dropout")
    elif private:
        chosen = replace(none, why=f"the model has no dropout, and {PRIVATE}")
    else:
        chosen = _laplace(none, bundle, train, validation)
    if private:
        return replace(chosen, unchosen=PRIVATE)
    if len(validation) < LEAST_CONFORMAL_ROWS:
        return replace(chosen, unchosen=f"there are fewer than {LEAST_CONFORMAL_ROWS} validation rows")
    label = validation.label
    score = bundle.scores(validation.x, validation.y)
    measured = measure_in_batches(bundle, chosen, validation.x, score)
    cuts = np.array([referral_cut(measured.uncertainty, number / SHARES) for number in range(SHARES + 1)])
    task = probability_task(bundle.model.task)
    return replace(
        chosen,
        temperature=fit_temperature(task, label, measured.mean, validation.people),
        cuts=fit_cuts(task, label, measured.mean, ALPHA if study is None else study.alpha),
        referral=Referral(SHARE if study is None else study.refer, cuts),
    )


def _swag(none: Uncertainty, bundle: Bundle, validation: LabelledRows, private: bool, posterior: State) -> Uncertainty:
    if not posterior:
        return replace(none, why="the models of late rounds are not known where this bundle was made")
    fitted = fit_swag(posterior, bundle.params)
    if not private and len(validation) >= LEAST_CONFORMAL_ROWS:
        rows = _in_memory(bundle, validation)
        fitted = choose_scale(
            fitted, bundle.model, bundle.buffers, [rows], lambda: seeds.generator(none.seed, "scale of SWAG", 0)
        )
    return replace(none, method="swag", swag=fitted)


def _laplace(none: Uncertainty, bundle: Bundle, train: LabelledRows, validation: LabelledRows) -> Uncertainty:
    if not len(train):
        return replace(none, why="the model has no dropout, and this site has no training rows")
    try:
        fitted = _fit_laplace(bundle, train)
        if len(validation) >= LEAST_CONFORMAL_ROWS:
            x, y = _in_memory(bundle, validation)
            fitted = choose_prior(fitted, bundle.model, bundle.params, bundle.buffers, x, y)
    except StudyError as error:
        return replace(none, why=f"the model has no dropout, and {error.problem}")
    return replace(none, method="laplace", laplace=fitted)


def _fit_laplace(bundle: Bundle, train: LabelledRows) -> Laplace:
    x, y = _in_memory(bundle, train)
    laplace = fit_laplace(bundle.model, bundle.params, bundle.buffers, x, y, full=False)
    outputs, width = laplace.values.shape
    if outputs * width * width <= MOST_NUMBERS:
        laplace = fit_laplace(bundle.model, bundle.params, bundle.buffers, x, y, full=True)
    return replace(laplace, values=laplace.values * (len(train) / len(x)))  # a sum over all rows


def _in_memory(bundle: Bundle, labelled: LabelledRows) -> tuple[Tensor, Tensor]:
    """All rows, or as many as fit into memory."""
    most = max(1, MOST_CELLS // math.prod(labelled.x.shape[1:]))
    rows = np.arange(len(labelled))
    if len(rows) > most:
        rows = np.sort(seeds.generator(0, "rows for uncertainty").choice(rows, most, replace=False))
    return torch.from_numpy(labelled.x[rows]).to(bundle.dtype), torch.from_numpy(labelled.y[rows])


def measure_in_batches(bundle: Bundle, settings: Uncertainty, x: Any, score: np.ndarray) -> Measured:
    size = max(1, min(1024, BATCH_CELLS // math.prod(x.shape[1:])))
    parts = []
    for start in range(0, len(score), size):
        rows = torch.from_numpy(np.ascontiguousarray(x[start : start + size])).to(bundle.dtype)
        own = score[start : start + size]
        parts.append(measure(settings, bundle.model, bundle.params, bundle.buffers, rows, own, bundle.thresholds))
    if not parts:
        return Measured(score, score, score, np.zeros(0))
    return Measured(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Measured)))


def evaluate_uncertainty(
    bundle: Bundle, settings: Uncertainty, x: Any, score: np.ndarray, label: np.ndarray
) -> dict[str, Any] | None:
    """Coverage, calibration and referral on these test rows, for the card; None where there are too few of them."""
    if len(label) < SMALLEST_GROUP:
        return None
    measured = measure_in_batches(bundle, settings, x, score)
    return EVALUATIONS[bundle.answer.bounded_by](bundle, settings, measured, score, label)


def _evaluate_intervals(
    bundle: Bundle, settings: Uncertainty, measured: Measured, score: np.ndarray, label: np.ndarray
) -> dict[str, Any]:
    evaluation: dict[str, Any] = {"rows": len(label), "width": float((measured.high - measured.low).mean())}
    if settings.residuals is not None:
        covered = interval_coverage(measured.low, measured.high, label)
        evaluation["interval"] = {"target": 1 - settings.residuals.alpha, "coverage": covered}
    return evaluation


def _evaluate_labels(
    bundle: Bundle, settings: Uncertainty, measured: Measured, score: np.ndarray, label: np.ndarray
) -> dict[str, Any]:
    known, predicted = label >= 0, bundle.predicted(score)
    right = (predicted == label) & known
    evaluation: dict[str, Any] = {"rows": len(label), "width": float((measured.high - measured.low).mean())}
    conformal = conformal_sets(settings, bundle.model.task, measured.mean)
    sets = None if conformal is None else answers(conformal, predicted)
    if sets is not None and settings.cuts is not None:
        evaluation["sets"] = {
            "target": 1 - settings.cuts.alpha,
            "coverage": _coverage(bundle.answer, coverage(sets.sets, label)),
            "size": float(set_sizes(sets.sets).mean()),
            "added": float((sets.added | sets.empty).mean()),
        }
    if settings.temperature is not None:
        calibrated = settings.temperature.of(measured.mean)
        task = probability_task(bundle.model.task)
        evaluation["ece"] = {"before": ece(task, label, measured.mean), "after": ece(task, label, calibrated)}
    if settings.referral is not None:
        away = referred(referral_reasons(measured.uncertainty, settings.cut(), sets))
        evaluation["referral"] = {
            "share": float(away.mean()),
            "all": _share(right, known),
            "kept": _share(right[~away], known[~away]),
            "referred": _share(right[away], known[away]),
        }
    return evaluation


EVALUATIONS = {"sets": _evaluate_labels, "residuals": _evaluate_intervals}


def _coverage(answer: Answer, covered: np.ndarray) -> Any:
    """One share, or one for each finding."""
    pairs = zip(answer.choices, covered.reshape(-1).tolist(), strict=True)
    shares = {choice.about: None if math.isnan(share) else share for choice, share in pairs}
    return shares.get("", shares)


def _share(right: np.ndarray, known: np.ndarray) -> float | None:
    """Of predictions that are right."""
    return float(right.sum() / known.sum()) if known.any() else None
