"""What two classes and several have in common: a row is of exactly one of them."""

import numpy as np
import torch
from torch import Tensor

from wardround.tasks.task import HEAVIEST, Task


class ClassTask(Task):
    curve = "accuracy"

    def class_weights(self, labels: Tensor) -> Tensor:
        """A class that the site has no row of counts once; there is nothing to balance."""
        counts = torch.bincount(labels, minlength=len(self.names))
        there = (counts > 0).sum()
        return torch.where(counts > 0, len(labels) / (there * counts.clamp(min=1)), 1.0).clamp(max=HEAVIEST)

    def row_weights(self, y: Tensor, weights: Tensor) -> Tensor | None:
        return weights[y]

    def label_counts(self, target: np.ndarray) -> dict[str, int]:
        return dict(zip(self.names, np.bincount(target, minlength=len(self.names)).tolist(), strict=True))

    def strata(self, target: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return target

    def rarity(self, labels: Tensor) -> Tensor:
        return (torch.bincount(labels, minlength=len(self.names)) / len(labels))[labels]
