"""Split conformal prediction: sets of labels with a guaranteed coverage.

Each possible label of a row gets a nonconformity score, here "strangeness". Its (1 - alpha) quantile over a site's
validation rows, at rank ceil((n + 1)(1 - alpha)), is the cut; the set of a row holds every label that is not stranger.
If new rows and validation rows are exchangeable, the set holds the true label with probability 1 - alpha or a little
more, whatever the model's quality: a bad model has large sets (Vovk et al. 2005; Papadopoulos et al., ECML 2002).

A site's cut holds for that site. Another hospital's rows are not exchangeable with these.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from wardround.core.errors import StudyError
from wardround.tasks.probabilities import ProbabilityTask

Kind = Literal["plain", "adaptive"]


@dataclass(frozen=True, eq=False)
class Cuts:
    """How strange a label may be. Infinite where there were too few rows to exclude anything."""

    alpha: float
    kind: Kind
    values: np.ndarray  # (classes,), or (findings, 2) for absent and present
    rows: np.ndarray  # validation rows behind each, in the same shape


def fit_cuts(
    task: ProbabilityTask,
    label: np.ndarray,
    score: np.ndarray,
    alpha: float = 0.1,
    kind: Kind = "plain",
    each_label: bool | None = None,
) -> Cuts:
    """From a site's validation rows, on which nothing else of the model was trained.

    `each_label`: a cut for each label from the rows that have it, so that coverage holds among the ill as well as
    among the healthy; None: as the task says. Without it, sets for a finding that one patient in twenty has may be
    "absent" for everybody and right nineteen times in twenty.
    """
    refuse_no_share(alpha)
    each_label = task.each_label if each_label is None else each_label
    pairs = zip(task.questions(label), task.questions(strangeness(task, score, kind)), strict=True)
    cuts = [_cuts_of(of_question, strange, alpha, each_label) for of_question, strange in pairs]
    return Cuts(alpha, kind, task.together([cut for cut, _ in cuts]), task.together([rows for _, rows in cuts]))


def refuse_no_share(alpha: float) -> None:
    if not 0 < alpha < 1:
        raise StudyError(
            "uncertainty: alpha", "is not between 0 and 1", "Write 0.1 for sets that hold in 90 % of rows."
        )


def prediction_sets(task: ProbabilityTask, cuts: Cuts, score: np.ndarray) -> np.ndarray:
    """Which labels each row's set holds: (rows, classes), or (rows, findings, 2). A plain set may be empty: then
    every label would be stranger than those of validation rows. Users see `decision.answers`."""
    return np.asarray(strangeness(task, score, cuts.kind) <= cuts.values)


def strangeness(task: ProbabilityTask, score: np.ndarray, kind: Kind = "plain") -> np.ndarray:
    """Of every possible label. Plain: 1 - its probability. Adaptive (after Romano et al., NeurIPS 2020): the
    probability of all labels that are more probable, so that unclear rows have larger sets than clear ones. Without
    the draw of that paper sets are the same each time and always hold the most probable label; they cover a little
    more."""
    p = task.label_probabilities(score.astype(np.float64))
    if kind == "plain":
        return 1 - p
    order = np.argsort(-p, axis=-1, kind="stable")
    along = np.cumsum(np.take_along_axis(p, order, axis=-1), axis=-1)
    strange = np.empty_like(p)
    before = np.concatenate([np.zeros_like(along[..., :1]), along[..., :-1]], axis=-1)
    np.put_along_axis(strange, order, before, axis=-1)
    return strange


def held(sets: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Whether each row's set holds its label: (rows,), or (rows, findings). Of labels that are not known: False."""
    inside = np.take_along_axis(sets, np.maximum(label, 0)[..., None], axis=-1)[..., 0]
    return np.asarray(inside & (label >= 0))


def coverage(sets: np.ndarray, label: np.ndarray) -> np.ndarray:
    """The share of rows whose set holds the label: one number, or one for each finding over the rows that know it."""
    known = (label >= 0).sum(axis=0)
    with np.errstate(invalid="ignore"):
        return np.asarray(held(sets, label).sum(axis=0) / known)


def set_sizes(sets: np.ndarray) -> np.ndarray:
    """How many labels each set holds: (rows,), or (rows, findings)."""
    return np.asarray(sets.sum(axis=-1))


def rank(rows: int, alpha: float) -> int:
    """The place of the cut among the rows' strangenesses in rising order; above `rows` where these are too few."""
    return math.ceil((rows + 1) * (1 - alpha) - 1e-9 * (rows + 1))  # 0.9 x 10 is 9, in spite of rounding


def _cuts_of(label: np.ndarray, strange: np.ndarray, alpha: float, each_label: bool) -> tuple[np.ndarray, np.ndarray]:
    """Cut and number of rows for each label of one question."""
    labels = strange.shape[-1]
    own = [strange[label == number, number] for number in range(labels)]
    if not each_label:
        own = [np.concatenate(own)] * labels
    return np.array([quantile(part, alpha) for part in own]), np.array([len(part) for part in own])


def quantile(strange: np.ndarray, alpha: float) -> float:
    place = rank(len(strange), alpha)
    return float(np.partition(strange, place - 1)[place - 1]) if place <= len(strange) else math.inf
