"""Metrics of many groups of predictions at once: every arm, seed and site in one pass over the rows.

Equal to `metrics` of each group by itself (the tests hold it to that), at a hundredth of the cost.
"""

import numpy as np

from wardround.evaluation.metrics import CLIP, NEED_POSITIVES, THRESHOLD, metrics
from wardround.study.schema import METRICS


def grouped_metrics(
    group: np.ndarray, count: int, label: np.ndarray, score: np.ndarray, threshold: np.ndarray | None = None
) -> np.ndarray:
    """(count, metrics). `group` numbers each row's group from 0; a group without rows is NaN throughout.

    `threshold` says for each row from which score on the positive class, or each finding, is called. With several
    classes the highest score decides.
    """
    cut = np.full(score.shape, THRESHOLD) if threshold is None else threshold
    if label.ndim == 2:
        return average(grouped_finding_metrics(group, count, label, score, cut))
    if score.ndim > 1:
        return _group_by_group(group, count, label, score)
    return _grouped_figures(group, count, label == 1, score, score >= cut)


def grouped_finding_metrics(
    group: np.ndarray, count: int, label: np.ndarray, score: np.ndarray, threshold: np.ndarray
) -> np.ndarray:
    """(findings, count, metrics), of each finding over the rows in which it is known.

    A group in which any score is not a number has no figures at all: its model has diverged.
    """
    needy = [METRICS.index(name) for name in NEED_POSITIVES]
    found = np.empty((score.shape[1], count, len(METRICS)))
    for f in range(score.shape[1]):
        known = label[:, f] >= 0
        positive, own = label[known, f] == 1, group[known]
        figures = _grouped_figures(own, count, positive, score[known, f], score[known, f] >= threshold[known, f])
        without = np.bincount(own, weights=positive, minlength=count) == 0
        figures[np.ix_(without, needy)] = np.nan
        found[f] = figures
    found[:, np.bincount(group, weights=np.isnan(score).any(axis=1), minlength=count) > 0] = np.nan
    return found


def average(each: np.ndarray) -> np.ndarray:
    """Over findings, of those in which a figure is defined."""
    known = ~np.isnan(each)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(known, each, 0).sum(axis=0) / known.sum(axis=0))


def _grouped_figures(group: np.ndarray, count: int, positive: np.ndarray, score: np.ndarray, called: np.ndarray) -> np.ndarray:
    """Of a class or finding that a row has or has not."""

    def total(values: np.ndarray) -> np.ndarray:
        return np.bincount(group, weights=values, minlength=count)

    p = score.astype(np.float64)
    kept_inside = np.clip(p, CLIP, 1 - CLIP)
    rows = np.bincount(group, minlength=count).astype(float)
    positives, calls, hits = total(positive), total(called), total(positive & called)
    fp, fn = calls - hits, positives - hits
    tn = rows - hits - fp - fn
    with np.errstate(divide="ignore", invalid="ignore"):  # 0 / 0 is the NaN that is meant
        auc, pr_auc = _areas(group, count, positive, score, positives, rows - positives)
        made = {
            "accuracy": (hits + tn) / rows,
            "auc": auc,
            "pr_auc": pr_auc,
            "f1": 2 * hits / (2 * hits + fp + fn),
            "sensitivity": hits / (hits + fn),
            "specificity": tn / (tn + fp),
            "ppv": hits / (hits + fp),
            "npv": tn / (tn + fn),
            "brier": total((p - positive) ** 2) / rows,
            "loss": total(-np.log(np.where(positive, kept_inside, 1 - kept_inside))) / rows,
        }
    figures = np.stack([made[name] for name in METRICS], axis=1)
    figures[total(np.isnan(p)) > 0] = np.nan  # a model that has diverged has no score
    return figures


def _areas(
    group: np.ndarray, count: int, positive: np.ndarray, score: np.ndarray, hits: np.ndarray, misses: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Under the ROC curve, as the rank-sum statistic: rows of one group with one score share the mean of their ranks.
    Under the precision-recall curve, as average precision: such rows are called together."""
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
    # rows from the start of a tie to the end of its group are those called when its score is the threshold
    before = np.concatenate(([0], np.cumsum(there)))
    start = np.flatnonzero(new_tie)[tie]
    end = first[g + 1]
    precision = (before[end] - before[start]) / (end - start)
    precisions = np.bincount(g, weights=precision * there, minlength=count)
    return np.asarray((ranks - hits * (hits + 1) / 2) / (hits * misses)), np.asarray(precisions / hits)


def _group_by_group(group: np.ndarray, count: int, label: np.ndarray, score: np.ndarray) -> np.ndarray:
    order = np.argsort(group, kind="stable")
    ends = np.searchsorted(group[order], np.arange(1, count + 1))
    figures = np.full((count, len(METRICS)), np.nan)
    for number, rows in enumerate(np.split(order, ends)[:count]):
        if len(rows):
            figures[number] = [metrics(label[rows], score[rows])[name] for name in METRICS]
    return figures
