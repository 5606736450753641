"""Several classes, of which a row is of exactly one. A model gives a score for each; the highest decides."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from wardround.tasks.answer import Answer, OneClass
from wardround.tasks.classes import ClassTask
from wardround.tasks.task import MIDDLE, Link


@dataclass(frozen=True)
class Multiclass(ClassTask):
    kind = "multiclass"
    told_by_all = True

    @classmethod
    def wrong_names(cls, names: tuple[str, ...]) -> str | None:
        return None if len(names) > 2 else f"it has {len(names)} classes, and multiclass has three or more"

    @property
    def outputs(self) -> int:
        return len(self.names)

    @property
    def answer(self) -> Answer:
        return OneClass(self.names)

    def row_losses(self, scores: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        each = F.cross_entropy(scores, y, reduction="none")
        return each if weights is None else each * weights[y]

    def losses_and_errors(self, scores: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        each = scores.reshape(*scores.shape[:-1], -1, self.outputs)
        truth = F.one_hot(y, self.outputs).to(scores.dtype).unsqueeze(-2)
        logs = each.log_softmax(-1)
        return -(logs * truth).sum(-1), (logs.exp() - truth).flatten(-2)

    def curvature(self, scores: Tensor, y: Tensor) -> Tensor:
        p = torch.softmax(scores, dim=-1)
        return p * (1 - p)

    def predictions(self, scores: Tensor, y: Tensor | None = None) -> Tensor:
        return torch.softmax(scores, dim=-1)

    @property
    def link(self) -> Link:
        return "log odds against the other classes"

    def on_link_scale(self, scores: Tensor, scale: tuple[float, ...]) -> Tensor:
        """Less their mean: the same number added to all of them changes no probability."""
        return scores - scores.mean(dim=-1, keepdim=True)

    def row_figures(self, scores: Tensor, y: Tensor) -> Tensor:
        return scores.argmax(-1) == y

    def figures(self, label: np.ndarray, score: np.ndarray, threshold: np.ndarray | float = MIDDLE) -> dict[str, float]:
        from wardround.tasks.class_metrics import multiclass_metrics  # SciPy, which training does without

        return multiclass_metrics(label, score)

    def grouped_figures(
        self,
        group: np.ndarray,
        count: int,
        label: np.ndarray,
        score: np.ndarray,
        threshold: np.ndarray | float = MIDDLE,
    ) -> np.ndarray:
        from wardround.tasks.class_metrics import grouped_multiclass_metrics

        return grouped_multiclass_metrics(group, count, label, score)

    def predicted(self, score: np.ndarray, threshold: np.ndarray | float = MIDDLE) -> np.ndarray:
        return np.asarray(score.argmax(axis=1))

    def weighted_figures(
        self, label: np.ndarray, score: np.ndarray, threshold: np.ndarray
    ) -> list[Callable[[np.ndarray], np.ndarray]]:
        from wardround.tasks.weighted_classes import WeightedClasses

        return [WeightedClasses(label, score)]
