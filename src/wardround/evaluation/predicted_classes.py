"""Which classes a model predicts at all: an accuracy of 95 % may come from never predicting a death."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from wardround.evaluation.scores import Scored, Scores
from wardround.evaluation.summaries.merged_summaries import Summaries


def describe_predicted_classes(scores: Scored, arm: str) -> dict[str, Any] | None:
    """By class, in the order of the study's classes: test rows of it and rows predicted as it, in all seeds together.

    `constant` is the accuracy of predicting the most frequent class for every row. `threshold` is the threshold of the
    positive class of two, on average over seeds, and whether validation rows chose it in all of them. None for
    findings, which have thresholds and counts of their own, and where no site sends counts by class.
    """
    if isinstance(scores, Scores) and not scores.findings:
        return _of_rows(scores, arm)
    if isinstance(scores, Summaries) and not scores.findings:
        return _of_summaries(scores, arm)
    return None


def _of_rows(scores: Scores, arm: str) -> dict[str, Any] | None:
    places = scores.of_arm(arm)
    diverged = np.unique(scores.seed[places][np.isnan(scores.score[places]).reshape(len(places), -1).any(axis=1)])
    places = places[~np.isin(scores.seed[places], diverged)]
    if not len(places):
        return None
    binary = scores.score.ndim == 1
    classes = 2 if binary else scores.score.shape[1]
    rows, predicted = (np.bincount(of[places], minlength=classes).tolist() for of in (scores.label, scores.predicted))
    threshold = None
    if binary:
        threshold = {
            "mean": float(scores.thresholds[places].mean()),
            "chosen": bool(scores.chosen[places].all()),
        }
    return _described(rows, predicted, threshold)


def _of_summaries(scores: Summaries, arm: str) -> dict[str, Any] | None:
    """Of the sites that send counts by class. Each has a threshold of its own, which stays there."""
    summaries = [line for seed in scores.seeds for line in scores.at(arm, seed) if not line["diverged"]]
    counts = [line["sums"]["confusion"] for line in summaries if line["sums"] is not None and line["sums"]["confusion"]]
    if not counts:
        return None
    of_classes = [
        [sum(of_site[c][name] for of_site in counts) for name in ("tp", "fp", "fn", "tn")]
        for c in range(len(counts[0]))
    ]
    rows, predicted = [tp + fn for tp, _, fn, _ in of_classes], [tp + fp for tp, fp, _, _ in of_classes]
    if len(of_classes) == 1:  # two classes: the counts are those of the positive one
        _, fp, fn, tn = of_classes[0]
        rows, predicted = [fp + tn, *rows], [fn + tn, *predicted]
    return _described(rows, predicted, None)


def _described(rows: Sequence[int], predicted: Sequence[int], threshold: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "rows": list(rows),
        "predicted": list(predicted),
        "never": [c for c, (actual, count) in enumerate(zip(rows, predicted, strict=True)) if actual and not count],
        "constant": max(rows) / sum(rows),
        "threshold": threshold,
    }
