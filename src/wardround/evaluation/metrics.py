"""Metrics of one set of predictions. NaN where a metric is not defined (no row of a class, nothing called positive).

Written out in numpy because a study computes them tens of thousands of times; the tests hold them to scikit-learn.
With several classes, AUC, F1, sensitivity, specificity, PPV and NPV are averages over the classes that have rows
(each class against the rest), and the Brier score sums over classes.
"""

import numpy as np
from scipy.stats import rankdata

from wardround.study import METRICS

THRESHOLD = 0.5
PAIRS = 20_000  # up to so many pairs are compared one by one, which is quicker than ranking
CLIP = 1e-7  # scores are kept this far from 0 and 1 in the loss, because one certain error would make it infinite


def metrics(label: np.ndarray, score: np.ndarray) -> dict[str, float]:
    """`score` is the positive class's probability, or one column for each class."""
    if len(label) == 0 or np.isnan(score).any():  # a model that has diverged has no score
        return dict.fromkeys(METRICS, float("nan"))
    return _binary(label, score) if score.ndim == 1 else _several(label, score)


def _binary(label: np.ndarray, score: np.ndarray) -> dict[str, float]:
    positive = label == 1
    called = score >= THRESHOLD
    p = np.clip(score.astype(np.float64), CLIP, 1 - CLIP)
    return {
        "accuracy": float((called == positive).mean()),
        "auc": auc(positive, score),
        **_from_counts(positive, called),
        "brier": float(((score.astype(np.float64) - positive) ** 2).mean()),
        "loss": float(-np.log(np.where(positive, p, 1 - p)).mean()),
    }


def _several(label: np.ndarray, score: np.ndarray) -> dict[str, float]:
    called = score.argmax(axis=1)
    each = [
        {"auc": auc(label == c, score[:, c]), **_from_counts(label == c, called == c)}
        for c in range(score.shape[1])
        if (label == c).any()
    ]
    p = score.astype(np.float64)
    truth = np.eye(score.shape[1])[label]
    macro = {name: _mean([one[name] for one in each]) for name in each[0]}
    return {
        "accuracy": float((called == label).mean()),
        **macro,
        "brier": float(((p - truth) ** 2).sum(axis=1).mean()),
        "loss": float(-np.log(np.clip(p[np.arange(len(label)), label], CLIP, 1)).mean()),
    }


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


def _from_counts(positive: np.ndarray, called: np.ndarray) -> dict[str, float]:
    tp = int((positive & called).sum())
    fp = int(called.sum()) - tp
    fn = int(positive.sum()) - tp
    tn = len(positive) - tp - fp - fn
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
