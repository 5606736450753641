"""Two classes, of which the second is the positive one. A model gives one score, the logit of its probability."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from wardround.tasks.answer import Answer, PositiveClass
from wardround.tasks.classes import ClassTask
from wardround.tasks.probabilities import absent_and_present
from wardround.tasks.report_facts import ReportFacts
from wardround.tasks.task import MIDDLE, ThresholdRule


@dataclass(frozen=True)
class Binary(ClassTask):
    kind = "binary"
    name_count = 2
    has_upper = True
    scored_by_class = True
    probability_scale = "logit"
    each_label = True
    calibration = "logistic"
    threshold_rule: ClassVar[ThresholdRule | None] = "youden"

    @property
    def counted_classes(self) -> Sequence[int]:
        return (1,)

    @classmethod
    def wrong_names(cls, names: tuple[str, ...]) -> str | None:
        return None if len(names) == 2 else f"it has {len(names)} classes, and binary has two"

    @property
    def report(self) -> ReportFacts:
        figures = ("sites", "calibration", "decision-curve")
        return replace(super().report, output="A probability; called positive from 0.5 on", figures=figures)

    @property
    def outputs(self) -> int:
        return 1

    @property
    def answer(self) -> Answer:
        return PositiveClass(self.names)

    def row_losses(self, scores: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        each = F.binary_cross_entropy_with_logits(scores.squeeze(-1), y.to(scores.dtype), reduction="none")
        return each if weights is None else each * weights[y]

    def losses_and_errors(self, scores: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        labels = y.to(scores.dtype).unsqueeze(-1)
        return F.softplus(scores) - scores * labels, torch.sigmoid(scores) - labels

    def curvature(self, scores: Tensor, y: Tensor) -> Tensor:
        p = torch.sigmoid(scores)
        return p * (1 - p)

    def predictions(self, scores: Tensor, y: Tensor | None = None) -> Tensor:
        return torch.sigmoid(scores.squeeze(-1))

    def row_figures(self, scores: Tensor, y: Tensor) -> Tensor:
        return (scores.squeeze(-1) >= 0).long() == y

    def figures(self, label: np.ndarray, score: np.ndarray, threshold: np.ndarray | float = MIDDLE) -> dict[str, float]:
        from wardround.tasks.class_metrics import binary_metrics  # SciPy, which training does without

        return binary_metrics(label, score, float(np.asarray(threshold)))

    def grouped_figures(
        self,
        group: np.ndarray,
        count: int,
        label: np.ndarray,
        score: np.ndarray,
        threshold: np.ndarray | float = MIDDLE,
    ) -> np.ndarray:
        from wardround.tasks.class_metrics import grouped_binary_metrics

        return grouped_binary_metrics(group, count, label, score, threshold)

    def events(self, label: np.ndarray, score: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """The positive class."""
        return [(label, score)]

    def label_probabilities(self, score: np.ndarray) -> np.ndarray:
        return absent_and_present(score)

    def predicted(self, score: np.ndarray, threshold: np.ndarray | float = MIDDLE) -> np.ndarray:
        return np.asarray(score >= threshold).astype(np.int64)

    def yes_or_no(self, target: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
        yield self.names[1], target

    def as_number(self, target: np.ndarray) -> np.ndarray | None:
        return np.asarray(target == 1, dtype=np.float64)

    def is_upper(self, target: np.ndarray) -> np.ndarray | None:
        return np.asarray(target == 1)

    def weighted_figures(
        self, label: np.ndarray, score: np.ndarray, threshold: np.ndarray
    ) -> list[Callable[[np.ndarray], np.ndarray]]:
        from wardround.tasks.weighted_classes import WeightedFinding

        return [WeightedFinding(label, score, threshold, is_class=True)]

    def for_loss(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        return y.to(dtype)
