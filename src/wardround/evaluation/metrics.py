"""Metrics of one set of predictions. NaN where a metric is not defined (no row of a class, nothing called positive).

Written out in numpy because a study computes them tens of thousands of times; the tests hold them to scikit-learn.
With several classes, AUC, PR-AUC, F1, sensitivity, specificity, PPV and NPV are averages over the classes that have
rows (each class against the rest), and the Brier score sums over classes. Where rows have findings, every figure is an
average over findings; those without a positive row are left out of the figures that need one.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import rankdata

from wardround.study.schema import METRICS

THRESHOLD = 0.5
THRESHOLDS = np.round(np.arange(0.05, 0.96, 0.05), 2)  # of decision curves, and borders of score histograms
SMALLEST_GROUP = 10  # subgroups with fewer test rows are suppressed
PAIRS = 20_000  # up to so many pairs are compared one by one, which is quicker than ranking
NEED_POSITIVES = ("auc", "pr_auc", "f1", "sensitivity", "ppv")  # say nothing of a finding that no row has
CLIP = 1e-7  # scores are kept this far from 0 and 1 in the loss, because one certain error would make it infinite


class Counts(NamedTuple):
    """Calls of one class, right and wrong."""

    tp: int
    fp: int
    fn: int
    tn: int


def metrics(label: np.ndarray, score: np.ndarray, threshold: np.ndarray | float = THRESHOLD) -> dict[str, float]:
    """`score` is the positive class's probability, or one column for each class or finding.

    `threshold` is where the positive class of two is called, or a finding: one for all, or one for each.
    """
    if len(label) == 0 or np.isnan(score).any() or (label < 0).all():  # a model that has diverged has no score
        return dict.fromkeys(METRICS, float("nan"))
    if label.ndim == 2:
        return macro(_each_finding(label, score, threshold))
    return _binary(label, score, float(np.asarray(threshold))) if score.ndim == 1 else _multiclass(label, score)


def _each_finding(label: np.ndarray, score: np.ndarray, threshold: np.ndarray | float) -> list[dict[str, float]]:
    """Figures of each, over the rows in which it is known to be there or not."""
    cut = np.broadcast_to(threshold, score.shape[1])
    return [
        finding_metrics(label[known, f], score[known, f], cut[f])
        for f in range(score.shape[1])
        if (known := label[:, f] >= 0).any()
    ]


def finding_metrics(label: np.ndarray, score: np.ndarray, threshold: float) -> dict[str, float]:
    found = _binary(label, score, threshold)
    return found if (label == 1).any() else found | dict.fromkeys(NEED_POSITIVES, float("nan"))


def mean_auc(label: np.ndarray, score: np.ndarray) -> float:
    """Over findings that some rows have and others have not."""
    known = label >= 0
    return _mean([auc(label[known[:, f], f] == 1, score[known[:, f], f]) for f in range(label.shape[1])])


def _binary(label: np.ndarray, score: np.ndarray, threshold: float = THRESHOLD) -> dict[str, float]:
    positive = label == 1
    called = score >= threshold
    p = np.clip(score.astype(np.float64), CLIP, 1 - CLIP)
    return {
        "accuracy": float((called == positive).mean()),
        "auc": auc(positive, score),
        "pr_auc": pr_auc(positive, score),
        **rates(count(positive, called)),
        "brier": float(((score.astype(np.float64) - positive) ** 2).mean()),
        "loss": float(-np.log(np.where(positive, p, 1 - p)).mean()),
    }


def _multiclass(label: np.ndarray, score: np.ndarray) -> dict[str, float]:
    called = calls(score)
    each = [
        {
            "auc": auc(label == c, score[:, c]),
            "pr_auc": pr_auc(label == c, score[:, c]),
            **rates(count(label == c, called == c)),
        }
        for c in range(score.shape[1])
        if (label == c).any()
    ]
    p = score.astype(np.float64)
    truth = np.eye(score.shape[1])[label]
    return {
        "accuracy": float((called == label).mean()),
        **macro(each),
        "brier": float(((p - truth) ** 2).sum(axis=1).mean()),
        "loss": float(-np.log(np.clip(p[np.arange(len(label)), label], CLIP, 1)).mean()),
    }


def calls(score: np.ndarray, threshold: float = THRESHOLD) -> np.ndarray:
    """The class that each row is called. With several classes the highest score decides."""
    return (score >= threshold).astype(np.int64) if score.ndim == 1 else score.argmax(axis=1)


def macro(each: Sequence[dict[str, float]]) -> dict[str, float]:
    """Averages over classes, of those in which a figure is defined."""
    return {name: _mean([one[name] for one in each]) for name in each[0]}


def auc(positive: np.ndarray, score: np.ndarray) -> float:
    """Area under the ROC curve, as the rank-sum statistic; ties count half."""
    hits, misses = int(positive.sum()), int((~positive).sum())
    if not hits or not misses:
        return float("nan")
    if hits * misses <= PAIRS:
        difference = score[positive][:, None] - score[~positive]
        return float(((difference > 0).sum() + 0.5 * (difference == 0).sum()) / (hits * misses))
    ranks = rankdata(score)[positive].sum()
    return float((ranks - hits * (hits + 1) / 2) / (hits * misses))


def pr_auc(positive: np.ndarray, score: np.ndarray) -> float:
    """Area under the precision-recall curve as average precision: no line is drawn between its points.

    Rows with one score are called together.
    """
    hits = int(positive.sum())
    if not hits:
        return float("nan")
    order = np.argsort(-score, kind="stable")
    last = np.append(score[order][1:] != score[order][:-1], True)  # of the rows that share a score
    found = np.cumsum(positive[order])[last]
    called = np.flatnonzero(last) + 1
    return float((np.diff(found, prepend=0) * found / called).sum() / hits)


def count(positive: np.ndarray, called: np.ndarray) -> Counts:
    tp = int((positive & called).sum())
    fp = int(called.sum()) - tp
    fn = int(positive.sum()) - tp
    return Counts(tp, fp, fn, len(positive) - tp - fp - fn)


def rates(counts: Counts) -> dict[str, float]:
    """What follows from the counts alone."""
    tp, fp, fn, tn = counts
    return {
        "f1": _ratio(2 * tp, 2 * tp + fp + fn),
        "sensitivity": _ratio(tp, tp + fn),
        "specificity": _ratio(tn, tn + fp),
        "ppv": _ratio(tp, tp + fp),
        "npv": _ratio(tn, tn + fn),
    }


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")


def _mean(values: list[float]) -> float:
    defined = [value for value in values if not np.isnan(value)]
    return float(np.mean(defined)) if defined else float("nan")
