"""What tasks have in common whose predictions are probabilities: of two classes, of several, or of each finding.

A question is what has one label: all classes together are one, each finding is one. How sure such predictions are, and
whether they come true, follows from the methods here, whatever the shapes of labels and scores.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal, cast

import numpy as np

from wardround.tasks.task import Task

Scale = Literal["logit", "log"]


class ProbabilityTask(Task):
    # where scores of passes are compared and temperatures divide: the logit of each probability, or the logarithms of
    # all classes', of which only the differences count
    probability_scale: ClassVar[Scale]
    # whether each label has a conformal cut of its own, so that coverage holds among the ill as among the healthy
    each_label: ClassVar[bool]

    @abstractmethod
    def events(self, label: np.ndarray, score: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Of each question: whether an event happened (1) or not (0), and its predicted probability, in the rows that
        know it."""

    @abstractmethod
    def label_probabilities(self, score: np.ndarray) -> np.ndarray:
        """Of every label that a question can have, along an axis of their own, the last."""

    def together(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """What `questions` has taken apart and was computed for each: (...), or (findings, ...)."""
        (whole,) = parts
        return np.asarray(whole)


def probability_task(task: Task) -> ProbabilityTask:
    """For code that only tasks of probabilities reach."""
    if task.answers == "number":
        raise ValueError(f"{task.kind} predicts a number, not probabilities")
    return cast(ProbabilityTask, task)


def absent_and_present(score: np.ndarray) -> np.ndarray:
    return np.stack([1 - score, score], axis=-1)
