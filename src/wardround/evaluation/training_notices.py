"""Training that failed with finite scores, mostly by too high or too low a learning rate.

The rules, by arm and seed; the first that applies is noticed, with the number of seeds:

* constant-scores      scores of all test rows are within 0.001 of each other; predicted numbers, of their target's SD
* saturated-scores     the test loss after the last round is more than 5 % above that of the constant answer, which
                       gives every row the shares of the classes among the test rows, and 1 % of the scores or more are
                       nearly 0 or 1: the model is confident, and wrong. For numbers:
                       squared errors or a deviance
* overfitted           the same loss, without such scores, although the training loss of the last tenth of the rounds is
                       below that of the constant answer: more rounds would not help. Not asked of numbers, whose losses
                       in training are in other units
* unfinished-training  the same test loss otherwise: common with a rare outcome and few rounds
* rising-loss          the mean training loss of the last tenth of the rounds is more than 5 % above that of the first
* flat-loss            the same has fallen by less than 0.1 %

The last two need 5 rounds, and a loss that begins at 0, which that of counts does not. Seeds that
diverged are left to `diverged`.
"""

from collections.abc import Hashable, Iterator

import numpy as np
import pandas as pd

from wardround.core.notices import Notice, some_of
from wardround.evaluation.comparisons.listing import grouped
from wardround.evaluation.scores import labels_and_scores, score_columns, task_of
from wardround.tasks import Task
from wardround.tasks.class_metrics import auc

UNFINISHED, OVERFITTED = "unfinished-training", "overfitted"
PROBLEMS = {  # of training that failed, in a sentence
    "constant-scores": "all test rows get nearly the same score",
    "saturated-scores": "the test loss is above that of one answer for everybody",
    "rising-loss": "the training loss rose",
    "flat-loss": "the training loss hardly changed",
}
SAME = 1e-3
WORSE = 1.05
STILL = 0.999
FEWEST_ROUNDS = 5
AT_THE_ENDS = 1e-3  # a score so near to 0 or 1 is at its end
PERFECT, FEWEST_PERFECT = 0.999, 20  # an AUC, and rows of the rarer class: fewer are told apart by chance
CONFIDENT = 0.01  # of the scores at their ends


def training_notices(
    records: pd.DataFrame, predictions: pd.DataFrame | None = None, task: Task | None = None
) -> list[Notice]:
    """One for each arm and rule. Across hospitals there are no predictions: only rules about losses apply. Without a
    `task` the columns of predictions tell which classes or findings there are."""
    task = task_of(predictions) if task is None and predictions is not None else task
    trials = list(records[["arm", "seed"]].drop_duplicates().itertuples(index=False, name=None))
    rounds_of, tested = _losses_by_round(records), _tested_rows(predictions)
    first_rules = ((str(key[0]), next(_rules(*rounds_of[key], tested.get(key), task), None)) for key in trials)
    shares = grouped(((arm, rule[0]), rule[1]) for arm, rule in first_rules if rule is not None)
    return [
        Notice(
            code,
            "warning",
            counts={"share": float(np.mean(of_seed))} if code == "saturated-scores" else {},
            arm=arm,
            seeds=some_of(len(of_seed), records["seed"].nunique()),
        )
        for (arm, code), of_seed in shares.items()
    ]


def diverged(predictions: pd.DataFrame) -> list[Notice]:
    """Arms whose scores are not numbers, which usually means a learning rate that is too high."""
    lost = predictions[predictions[score_columns(predictions)].isna().any(axis=1)]
    total = predictions["seed"].nunique()
    return [
        Notice("diverged", "warning", arm=str(arm), seeds=some_of(len(seeds), total))
        for arm, seeds in lost.groupby("arm", sort=False)["seed"].unique().items()
    ]


def perfect(predictions: pd.DataFrame, task: Task) -> list[Notice]:
    """Arms that tell two classes apart with next to no mistake: more often by a column that gives the outcome away than
    by a good model."""
    if task.answers == "number" or task.findings or len(task.names) != 2:
        return []
    told: dict[str, list[tuple[float, int]]] = {}  # by arm, of each seed: the AUC, and rows of the rarer class
    for key, (label, score) in _tested_rows(predictions).items():
        arm = key[0]  # type: ignore[index]
        positive = label == 1
        fewer = int(min(positive.sum(), (~positive).sum()))
        told.setdefault(str(arm), []).append((auc(positive, score) if fewer else np.nan, fewer))
    means = {
        arm: (float(np.mean([area for area, _ in of_arm])), sum(n for _, n in of_arm)) for arm, of_arm in told.items()
    }
    return [
        Notice("perfect-scores", "warning", counts={"auc": area}, arm=arm)
        for arm, (area, fewer) in means.items()
        if area >= PERFECT and fewer >= FEWEST_PERFECT
    ]


def _losses_by_round(records: pd.DataFrame) -> dict[Hashable, tuple[np.ndarray, float]]:
    """By arm and seed: the training loss of each round, and the test loss after the last. Taken from whole columns:
    a table for each of thousands of trials takes a hundred times as long."""
    in_order = records.sort_values("round", kind="stable")
    loss = in_order["loss"].to_numpy(dtype=float)
    test_loss = in_order["test_loss"].to_numpy(dtype=float) if "test_loss" in records else np.full(len(loss), np.nan)
    places = in_order.groupby(["arm", "seed"], sort=False).indices
    return {key: (loss[of_trial], float(test_loss[of_trial[-1]])) for key, of_trial in places.items()}


def _tested_rows(predictions: pd.DataFrame | None) -> dict[Hashable, tuple[np.ndarray, np.ndarray]]:
    """By arm and seed: labels and scores of the test rows."""
    if predictions is None:
        return {}
    label, score = labels_and_scores(predictions)
    places = predictions.groupby(["arm", "seed"], sort=False).indices
    return {key: (label[of_trial], score[of_trial]) for key, of_trial in places.items()}


def _rules(
    losses: np.ndarray, test_loss: float, tested: tuple[np.ndarray, np.ndarray] | None, task: Task | None
) -> Iterator[tuple[str, float]]:
    """Rules that apply to one arm with one seed, and the share of scores at their ends."""
    if tested is not None and task is not None and len(tested[0]) > 1:
        label, score = tested
        if np.isnan(score).any():
            return
        yield from _rules_of_scores(task, label, score, test_loss, _last(losses))
    if task is not None and not task.loss_from_zero:
        return
    if len(losses) < FEWEST_ROUNDS or np.isnan(losses).any() or not losses[0] > 0:
        return
    end = _last(losses)
    if end > WORSE * losses[0]:
        yield "rising-loss", 0.0
    elif end > STILL * losses[0]:
        yield "flat-loss", 0.0


def _last(losses: np.ndarray) -> float:
    """Of the last tenth of the rounds."""
    return float(losses[-max(1, len(losses) // 10) :].mean())


def _rules_of_scores(
    task: Task, label: np.ndarray, score: np.ndarray, loss: float, trained: float
) -> Iterator[tuple[str, float]]:
    scores = score.astype(float).reshape(len(label), -1)
    if (scores.max(axis=0) - scores.min(axis=0) < SAME * task.score_unit(label)).all():
        yield "constant-scores", 0.0
    ours, constant = task.against_constant(label, score, loss)
    if not np.isnan(loss) and ours > WORSE * constant:
        ends = float((np.minimum(scores, 1 - scores) < AT_THE_ENDS).mean()) if task.answers != "number" else 0.0
        if ends >= CONFIDENT:
            yield "saturated-scores", ends
        else:
            yield (OVERFITTED if task.answers != "number" and trained < constant else UNFINISHED), 0.0
