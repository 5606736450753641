"""Probabilities on the scale that a task names: where temperatures divide, and where passes are compared."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, log_expit, logit, softmax

from wardround.evaluation.calibration_curves import CLIP
from wardround.tasks.probabilities import ProbabilityTask, Scale

Slope = Callable[[float], np.ndarray]  # of each row's loss, by 1 / temperature


@dataclass(frozen=True)
class Outcomes:
    """What one temperature is fitted on."""

    rows: np.ndarray  # which rows know the label
    slope: Slope
    happened: np.ndarray | None  # of these rows; None: with several classes most are rare, and none is required


class ProbabilityScale(ABC):
    @abstractmethod
    def tempered(self, score: np.ndarray, temperature: np.ndarray) -> np.ndarray:
        """Probabilities, in the shape of the scores."""

    @abstractmethod
    def outcomes(self, task: ProbabilityTask, label: np.ndarray, score: np.ndarray) -> list[Outcomes]:
        """One for each temperature."""

    @abstractmethod
    def row_losses(self, task: ProbabilityTask, label: np.ndarray, score: np.ndarray) -> np.ndarray:
        """Negative log likelihoods of all labels that are known."""

    @abstractmethod
    def scores(self, probabilities: np.ndarray) -> np.ndarray: ...

    @abstractmethod
    def spread(self, scores: np.ndarray) -> np.ndarray:
        """The standard deviation over the passes, of scores (passes, rows, outputs)."""


class Logit(ProbabilityScale):
    """Each probability by itself."""

    def tempered(self, score: np.ndarray, temperature: np.ndarray) -> np.ndarray:
        return np.asarray(expit(logits(score) / temperature))

    def outcomes(self, task: ProbabilityTask, label: np.ndarray, score: np.ndarray) -> list[Outcomes]:
        pairs = zip(task.questions(label), task.events(label, score), strict=True)
        return [
            Outcomes(of_question >= 0, binary_slope(happened, logits(probability)), happened)
            for of_question, (happened, probability) in pairs
        ]

    def row_losses(self, task: ProbabilityTask, label: np.ndarray, score: np.ndarray) -> np.ndarray:
        pairs = task.events(label, score)
        happened, probability = (np.concatenate(arrays) for arrays in zip(*pairs, strict=True))
        z = logits(probability)
        return -np.where(happened == 1, log_expit(z), log_expit(-z))

    def scores(self, probabilities: np.ndarray) -> np.ndarray:
        return np.asarray(logit(np.clip(probabilities, CLIP, 1 - CLIP)))

    def spread(self, scores: np.ndarray) -> np.ndarray:
        return np.asarray(scores.std(axis=0))


class Log(ProbabilityScale):
    """All classes of a row together, of which one is right: what their scores have in common changes nothing."""

    def tempered(self, score: np.ndarray, temperature: np.ndarray) -> np.ndarray:
        return np.asarray(softmax(logs(score) / temperature, axis=1))

    def outcomes(self, task: ProbabilityTask, label: np.ndarray, score: np.ndarray) -> list[Outcomes]:
        return [Outcomes(np.ones(len(label), dtype=bool), multiclass_slope(label, logs(score)), None)]

    def row_losses(self, task: ProbabilityTask, label: np.ndarray, score: np.ndarray) -> np.ndarray:
        return np.asarray(-logs(score)[np.arange(len(label)), label])

    def scores(self, probabilities: np.ndarray) -> np.ndarray:
        return np.asarray(np.log(np.clip(probabilities, CLIP, 1 - CLIP)))

    def spread(self, scores: np.ndarray) -> np.ndarray:
        """On average over the classes."""
        return np.asarray((scores - scores.mean(axis=-1, keepdims=True)).std(axis=0).mean(axis=-1))


SCALES: dict[Scale, ProbabilityScale] = {"logit": Logit(), "log": Log()}


def binary_slope(happened: np.ndarray, z: np.ndarray) -> Slope:
    return lambda inverse: z * (expit(inverse * z) - happened)


def multiclass_slope(label: np.ndarray, logs: np.ndarray) -> Slope:
    of_label = logs[np.arange(len(label)), label]
    return lambda inverse: (softmax(inverse * logs, axis=1) * logs).sum(axis=1) - of_label


def logits(score: np.ndarray) -> np.ndarray:
    return np.asarray(logit(np.clip(score.astype(np.float64), CLIP, 1 - CLIP)))


def logs(score: np.ndarray) -> np.ndarray:
    return np.log(np.clip(score.astype(np.float64), CLIP, 1))
