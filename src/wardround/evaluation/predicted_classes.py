"""Which classes a model calls at all: an accuracy of 95 % may be that of never predicting a death."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from wardround.evaluation.scores import Scored, Scores
from wardround.evaluation.summaries.merged_summaries import Summaries


def describe_calls(scores: Scored, arm: str) -> dict[str, Any] | None:
    """By class, in the order of the study's classes: test rows of it and rows called so, in all seeds together.

    `constant` is the accuracy of calling every row the most frequent class. `threshold` is where the positive class of
    two is called, on average over seeds, and whether validation rows chose it in all of them. None for findings, which
    have thresholds and counts of their own, and where nothing is told by class.
    """
    if isinstance(scores, Scores) and not scores.findings:
        return _of_rows(scores, arm)
    if isinstance(scores, Summaries) and not scores.findings:
        return _of_summaries(scores, arm)
    return None


def _of_rows(scores: Scores, arm: str) -> dict[str, Any] | None:
    places = scores.of_arm(arm)
    lost = np.unique(scores.seed[places][np.isnan(scores.score[places]).reshape(len(places), -1).any(axis=1)])
    places = places[~np.isin(scores.seed[places], lost)]  # with a seed that diverged nothing is called
    if not len(places):
        return None
    two = scores.score.ndim == 1
    classes = 2 if two else scores.score.shape[1]
    rows, called = (np.bincount(which[places], minlength=classes).tolist() for which in (scores.label, scores.called))
    threshold = None
    if two:
        threshold = {
            "mean": float(scores.thresholds[places].mean()),
            "chosen": bool(scores.chosen[places].all()),
        }
    return _described(rows, called, threshold)


def _of_summaries(scores: Summaries, arm: str) -> dict[str, Any] | None:
    """Of the sites that tell by class; each has a threshold of its own, and keeps it."""
    told = [line for seed in scores.seeds for line in scores.at(arm, seed) if not line["diverged"]]
    counts = [line["sums"]["confusion"] for line in told if line["sums"] is not None and line["sums"]["confusion"]]
    if not counts:
        return None
    of_classes = [
        [sum(one[c][name] for one in counts) for name in ("tp", "fp", "fn", "tn")] for c in range(len(counts[0]))
    ]
    rows, called = [tp + fn for tp, _, fn, _ in of_classes], [tp + fp for tp, fp, _, _ in of_classes]
    if len(of_classes) == 1:  # of two classes the positive one is told
        _, fp, fn, tn = of_classes[0]
        rows, called = [fp + tn, *rows], [fn + tn, *called]
    return _described(rows, called, None)


def _described(rows: Sequence[int], called: Sequence[int], threshold: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "rows": list(rows),
        "called": list(called),
        "never": [place for place, (there, said) in enumerate(zip(rows, called, strict=True)) if there and not said],
        "constant": max(rows) / sum(rows),
        "threshold": threshold,
    }
