"""Decision thresholds, chosen on validation rows, never on test rows.

The task names the rule. With two classes the threshold has the best sensitivity + specificity (Youden's index), which
does not depend on how rare a class is; a finding's has the best F1. With more classes the highest score decides. Where
there are too few validation rows to choose on, or none, the threshold is one half.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from wardround.evaluation.scores import label_columns, patients_by_row, score_columns, task_of
from wardround.tasks import Task
from wardround.tasks.task import ThresholdRule

LEAST_ROWS = 30  # of validation: fewer would choose by chance
LEAST_EACH = 5  # of either class


def thresholds_of(
    threshold: float | str, validation: pd.DataFrame | None, predictions: pd.DataFrame, task: Task | None = None
) -> pd.DataFrame | None:
    """In the form of `choose_thresholds`: the same for every arm and seed where the study gives `threshold`, else
    chosen on validation rows; None where there are none of these, and where the task has no threshold. Without a `task`
    the columns tell which classes or findings there are."""
    task = task_of(predictions) if task is None else task
    if task.threshold_rule is None:
        return None
    if isinstance(threshold, str):
        return None if validation is None or not len(validation) else choose_thresholds(validation, task)
    labels = label_columns(predictions)
    pairs = predictions[["arm", "seed"]].drop_duplicates().itertuples(index=False, name=None)
    return _by_arm_and_seed({pair: [threshold] * len(labels) for pair in pairs}, labels)


def choose_thresholds(validation: pd.DataFrame, task: Task | None = None) -> pd.DataFrame | None:
    """For each arm and seed (the index) the threshold of the positive class, or of each finding (a column).

    NaN where there is nothing to choose on, or a model has diverged. None where the task has no threshold.
    """
    rule = (task_of(validation) if task is None else task).threshold_rule
    if rule is None:
        return None
    labels, scores, choose = label_columns(validation), score_columns(validation), CHOICES[rule]
    thresholds: dict[tuple[str, int], list[float]] = {}
    grouped: Any = validation.groupby(["arm", "seed"], sort=False)
    for key, part in grouped:
        label, score = part[labels].to_numpy(), part[scores].to_numpy()
        thresholds[key] = [choose(label[:, f], score[:, f]) for f in range(len(labels))]
    return _by_arm_and_seed(thresholds, labels)


def _by_arm_and_seed(thresholds: dict[tuple[str, int], list[float]], labels: list[str]) -> pd.DataFrame:
    index = pd.MultiIndex.from_tuples(list(thresholds), names=["arm", "seed"])
    return pd.DataFrame(list(thresholds.values()), index=index, columns=labels)


def untested(validation: pd.DataFrame, predictions: pd.DataFrame, groups: pd.DataFrame) -> pd.DataFrame:
    """Without the rows of patients whom the same arm and seed test at any site, as overlapping sites do: nothing is
    chosen on test rows."""
    patient = patients_by_row(groups)

    def keys(table: pd.DataFrame) -> pd.MultiIndex:
        who = table["row"].to_numpy() if patient is None else patient.reindex(table["row"]).to_numpy()
        return pd.MultiIndex.from_arrays([table["arm"], table["seed"], who])

    return validation[~keys(validation).isin(keys(predictions))]


def class_threshold(label: np.ndarray, score: np.ndarray) -> float:
    """Of the positive class of two, by Youden's index; NaN where a class has too few rows or scores rank wrongly."""
    positives = int((label == 1).sum())
    enough = len(label) >= LEAST_ROWS and min(positives, len(label) - positives) >= LEAST_EACH
    threshold = youden(label, score) if enough and not np.isnan(score).any() else None
    return float("nan") if threshold is None else threshold


def best_threshold(label: np.ndarray, score: np.ndarray) -> float:
    """The highest of those scores at which F1 is best; rows in which the finding is not known count nothing."""
    known = label >= 0
    positive, s = label[known] == 1, score[known].astype(np.float64)
    if not positive.any() or np.isnan(s).any():
        return float("nan")
    order = np.argsort(-s, kind="stable")
    last = np.append(s[order][1:] != s[order][:-1], True)  # rows with equal scores go together
    hits, predicted = np.cumsum(positive[order])[last], np.flatnonzero(last) + 1
    return float(s[order][last][(2 * hits / (predicted + positive.sum())).argmax()])


def youden(label: np.ndarray, score: np.ndarray) -> float | None:
    """The threshold with the best sensitivity + specificity (Youden, Cancer 1950); the highest of equals.

    It lies midway between two scores that occur, so that rounding elsewhere does not flip a prediction. None where no
    threshold is better than predicting the same for everybody.
    """
    positive, s = label == 1, score.astype(np.float64)
    order = np.argsort(-s, kind="stable")
    ranked = s[order]
    last = np.flatnonzero(ranked[1:] != ranked[:-1])  # rows with equal scores go together
    if not len(last):
        return None
    hits = np.cumsum(positive[order])[last]
    index = hits / positive.sum() - (last + 1 - hits) / (~positive).sum()
    best = int(index.argmax())
    if index[best] <= 0:
        return None
    place = last[best]
    return float((ranked[place] + ranked[place + 1]) / 2)


CHOICES: dict[ThresholdRule, Callable[[np.ndarray, np.ndarray], float]] = {
    "youden": class_threshold,
    "f1": best_threshold,
}
