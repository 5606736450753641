"""Metrics of classes and findings. NaN where a metric is not defined (no row of a class, nothing predicted positive).

Written out in numpy because a study computes them tens of thousands of times; the tests hold them to scikit-learn.
With several classes, AUC, PR-AUC, F1, sensitivity, specificity, PPV and NPV are averages over the classes that have
rows (each class against the rest), and the Brier score sums over classes. Where rows have findings, every figure is an
average over findings; those without a positive row are left out of the figures that need one.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from wardround.tasks.classes import CLASS_METRICS

METRICS = tuple(metric.name for metric in CLASS_METRICS)
THRESHOLD = 0.5
THRESHOLDS = np.round(np.arange(0.05, 0.96, 0.05), 2)  # of decision curves, and borders of score histograms
SMALLEST_GROUP = 10  # subgroups with fewer test rows are suppressed
SMALLEST_CLASS = 5  # rows of a class that a subgroup has, for figures that depend on its classes
PAIRS = 20_000  # up to so many pairs are compared one by one, which is quicker than ranking
NEED_POSITIVES = ("auc", "pr_auc", "f1", "sensitivity", "ppv")  # not defined for a finding that no row has
CLIP = 1e-7  # scores are kept this far from 0 and 1 in the loss, because one certain error would make it infinite


class Counts(NamedTuple):
    """Predictions of one class, right and wrong."""

    tp: int
    fp: int
    fn: int
    tn: int


def binary_metrics(label: np.ndarray, score: np.ndarray, threshold: float = THRESHOLD) -> dict[str, float]:
    """`score` is the positive class's probability."""
    return _binary(label, score, threshold) if _has_figures(label, score) else _nothing()


def multiclass_metrics(label: np.ndarray, score: np.ndarray) -> dict[str, float]:
    return _multiclass(label, score) if _has_figures(label, score) else _nothing()


def multilabel_metrics(
    label: np.ndarray, score: np.ndarray, threshold: np.ndarray | float = THRESHOLD
) -> dict[str, float]:
    """`threshold` is one for all findings, or one for each."""
    if not _has_figures(label, score):
        return _nothing()
    cut = np.broadcast_to(threshold, score.shape[1])
    known = [(f, label[:, f] >= 0) for f in range(score.shape[1])]
    return macro([finding_metrics(label[k, f], score[k, f], cut[f]) for f, k in known if k.any()])


def _has_figures(label: np.ndarray, score: np.ndarray) -> bool:
    """Not without rows or labels, and not of a model that has diverged, which has no score."""
    return bool(len(label)) and not np.isnan(score).any() and not (label < 0).all()


def _nothing() -> dict[str, float]:
    return dict.fromkeys(METRICS, float("nan"))


def finding_metrics(label: np.ndarray, score: np.ndarray, threshold: np.ndarray | float) -> dict[str, float]:
    figures = _binary(label, score, threshold)
    return figures if (label == 1).any() else figures | dict.fromkeys(NEED_POSITIVES, float("nan"))


def mean_auc(label: np.ndarray, score: np.ndarray) -> float:
    """Over findings that some rows have and others have not."""
    known = label >= 0
    return defined_mean([auc(label[known[:, f], f] == 1, score[known[:, f], f]) for f in range(label.shape[1])])


def _binary(label: np.ndarray, score: np.ndarray, threshold: np.ndarray | float = THRESHOLD) -> dict[str, float]:
    positive = label == 1
    predicted = score >= threshold
    p = np.clip(score.astype(np.float64), CLIP, 1 - CLIP)
    return {
        "accuracy": float((predicted == positive).mean()),
        "auc": auc(positive, score),
        "pr_auc": pr_auc(positive, score),
        **rates(count(positive, predicted)),
        "brier": float(((score.astype(np.float64) - positive) ** 2).mean()),
        "loss": float(-np.log(np.where(positive, p, 1 - p)).mean()),
    }


def _multiclass(label: np.ndarray, score: np.ndarray) -> dict[str, float]:
    predicted = predicted_classes(score)
    each = [
        {
            "auc": auc(label == c, score[:, c]),
            "pr_auc": pr_auc(label == c, score[:, c]),
            **rates(count(label == c, predicted == c)),
        }
        for c in range(score.shape[1])
        if (label == c).any()
    ]
    p = score.astype(np.float64)
    truth = np.eye(score.shape[1])[label]
    return {
        "accuracy": float((predicted == label).mean()),
        **macro(each),
        "brier": float(((p - truth) ** 2).sum(axis=1).mean()),
        "loss": float(-np.log(np.clip(p[np.arange(len(label)), label], CLIP, 1)).mean()),
    }


def predicted_classes(score: np.ndarray, threshold: float = THRESHOLD) -> np.ndarray:
    """The class of each row. With more than two classes the highest score decides."""
    return (score >= threshold).astype(np.int64) if score.ndim == 1 else score.argmax(axis=1)


def macro(each: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: defined_mean([figures[name] for figures in each]) for name in each[0]}


def auc(positive: np.ndarray, score: np.ndarray) -> float:
    """Area under the ROC curve, as the rank-sum statistic; ties count half."""
    hits, misses = int(positive.sum()), int((~positive).sum())
    if not hits or not misses:
        return float("nan")
    if hits * misses <= PAIRS:
        difference = score[positive][:, None] - score[~positive]
        return float(((difference > 0).sum() + 0.5 * (difference == 0).sum()) / (hits * misses))
    from scipy.stats import rankdata  # here: half a second of imports, which training can do without

    ranks = rankdata(score)[positive].sum()
    return float((ranks - hits * (hits + 1) / 2) / (hits * misses))


def pr_auc(positive: np.ndarray, score: np.ndarray) -> float:
    """Area under the precision-recall curve as average precision, without interpolation. Equal scores go together."""
    hits = int(positive.sum())
    if not hits:
        return float("nan")
    order = np.argsort(-score, kind="stable")
    last = np.append(score[order][1:] != score[order][:-1], True)  # of the rows that share a score
    true_positives = np.cumsum(positive[order])[last]
    predicted = np.flatnonzero(last) + 1
    return float((np.diff(true_positives, prepend=0) * true_positives / predicted).sum() / hits)


def count(positive: np.ndarray, predicted: np.ndarray) -> Counts:
    tp = int((positive & predicted).sum())
    fp = int(predicted.sum()) - tp
    fn = int(positive.sum()) - tp
    return Counts(tp, fp, fn, len(positive) - tp - fp - fn)


def rates(counts: Counts) -> dict[str, float]:
    tp, fp, fn, tn = counts
    return {
        "f1": _ratio(2 * tp, 2 * tp + fp + fn),
        "sensitivity": _ratio(tp, tp + fn),
        "specificity": _ratio(tn, tn + fp),
        "ppv": _ratio(tp, tp + fp),
        "npv": _ratio(tn, tn + fn),
    }


def array_rates(tp: np.ndarray, fp: np.ndarray, fn: np.ndarray, tn: np.ndarray) -> dict[str, np.ndarray]:
    """As `rates`, for arrays of counts; NaN by 0 / 0."""
    return {
        "f1": 2 * tp / (2 * tp + fp + fn),
        "sensitivity": tp / (tp + fn),
        "specificity": tn / (tn + fp),
        "ppv": tp / (tp + fp),
        "npv": tn / (tn + fn),
    }


def entropy(shares: np.ndarray) -> float:
    there = shares[shares > 0]
    return float(-(there * np.log(there)).sum())


def defined_mean(values: ArrayLike) -> float:
    """Mean of the values that are defined; NaN where none is."""
    x = np.asarray(values, dtype=float)
    known = x[~np.isnan(x)]
    return float(known.mean()) if len(known) else float("nan")


def mean_or_none(values: ArrayLike) -> float | None:
    mean = defined_mean(values)
    return None if np.isnan(mean) else mean


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")


def grouped_binary_metrics(
    group: np.ndarray, count: int, label: np.ndarray, score: np.ndarray, threshold: np.ndarray | float
) -> np.ndarray:
    """(count, metrics). `group` numbers each row's group from 0; a group without rows is NaN throughout.

    `threshold` is that of each row, or one for all.
    """
    return _grouped_figures(group, count, label == 1, score, score >= threshold)


def grouped_finding_metrics(
    group: np.ndarray, count: int, label: np.ndarray, score: np.ndarray, threshold: np.ndarray
) -> np.ndarray:
    """(findings, count, metrics), of each finding over the rows in which it is known.

    A group in which any score is not a number has no figures at all: its model has diverged.
    """
    need_positives = [METRICS.index(name) for name in NEED_POSITIVES]
    each = np.empty((score.shape[1], count, len(METRICS)))
    for f in range(score.shape[1]):
        known = label[:, f] >= 0
        positive, own = label[known, f] == 1, group[known]
        of_finding = _grouped_figures(own, count, positive, score[known, f], score[known, f] >= threshold[known, f])
        without = np.bincount(own, weights=positive, minlength=count) == 0
        of_finding[np.ix_(without, need_positives)] = np.nan
        each[f] = of_finding
    each[:, np.bincount(group, weights=np.isnan(score).any(axis=1), minlength=count) > 0] = np.nan
    return each


def average(each: np.ndarray) -> np.ndarray:
    """Over the first axis, of those in which a figure is defined."""
    known = ~np.isnan(each)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(known, each, 0).sum(axis=0) / known.sum(axis=0))


def _grouped_figures(
    group: np.ndarray, count: int, positive: np.ndarray, score: np.ndarray, predicted: np.ndarray
) -> np.ndarray:
    def total(values: np.ndarray) -> np.ndarray:
        return np.bincount(group, weights=values, minlength=count)

    p = score.astype(np.float64)
    clipped = np.clip(p, CLIP, 1 - CLIP)
    rows = np.bincount(group, minlength=count).astype(float)
    positives, predictions, hits = total(positive), total(predicted), total(positive & predicted)
    fp, fn = predictions - hits, positives - hits
    tn = rows - hits - fp - fn
    with np.errstate(divide="ignore", invalid="ignore"):  # 0 / 0 is the NaN that is meant
        auc, pr_auc = _areas(group, count, positive, score, positives, rows - positives)
        columns = {
            "accuracy": (hits + tn) / rows,
            "auc": auc,
            "pr_auc": pr_auc,
            **array_rates(hits, fp, fn, tn),
            "brier": total((p - positive) ** 2) / rows,
            "loss": total(-np.log(np.where(positive, clipped, 1 - clipped))) / rows,
        }
    figures = np.stack([columns[name] for name in METRICS], axis=1)
    figures[total(np.isnan(p)) > 0] = np.nan  # a model that has diverged has no score
    return figures


def _areas(
    group: np.ndarray, count: int, positive: np.ndarray, score: np.ndarray, hits: np.ndarray, misses: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Under the ROC curve, as the rank-sum statistic: rows of a group with equal scores share the mean of their ranks.
    Under the precision-recall curve, as average precision: such rows go together."""
    order = np.lexsort((score, group))
    g, s, there = group[order], score[order], positive[order]
    place = np.arange(len(order), dtype=float)
    new_tie = np.ones(len(order), dtype=bool)
    new_tie[1:] = (g[1:] != g[:-1]) | (s[1:] != s[:-1])
    tie = np.cumsum(new_tie) - 1
    mean_place = np.bincount(tie, weights=place) / np.bincount(tie) if len(order) else place
    first = np.searchsorted(g, np.arange(count + 1))  # where each group begins, and the end of the last
    rank = mean_place[tie] - first[g] + 1
    ranks = np.bincount(g, weights=rank * there, minlength=count)
    # rows from the start of a tie to the end of its group are those predicted when its score is the threshold
    before = np.concatenate(([0], np.cumsum(there)))
    start = np.flatnonzero(new_tie)[tie]
    end = first[g + 1]
    precision = (before[end] - before[start]) / (end - start)
    precisions = np.bincount(g, weights=precision * there, minlength=count)
    return np.asarray((ranks - hits * (hits + 1) / 2) / (hits * misses)), np.asarray(precisions / hits)


def grouped_multiclass_metrics(group: np.ndarray, count: int, label: np.ndarray, score: np.ndarray) -> np.ndarray:
    order = np.argsort(group, kind="stable")
    ends = np.searchsorted(group[order], np.arange(1, count + 1))
    figures = np.full((count, len(METRICS)), np.nan)
    for number, rows in enumerate(np.split(order, ends)[:count]):
        if len(rows):
            own = multiclass_metrics(label[rows], score[rows])
            figures[number] = [own[name] for name in METRICS]
    return figures
