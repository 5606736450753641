"""Small models, batches and reference gradients for the tests of differential privacy."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from wardround.core.tree import Tree
from wardround.models import MODELS, Dropout, Model, Shape, from_module
from wardround.tasks import Multilabel

DOUBLE = torch.float64


class Gates(nn.Module):
    """Weights of its own beside layers: nothing that has a rule, so that it is differentiated row by row."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.linspace(-1, 1, inputs))
        self.head = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(x.flatten(1) * torch.sigmoid(self.gate))
        return scores


@dataclass(frozen=True)
class Batch:
    x: Tensor
    y: Tensor
    masks: Tree
    people: Tensor

    def without(self, patient: int) -> "Batch":
        other_rows = self.people != patient
        return Batch(
            self.x[other_rows],
            self.y[other_rows],
            {name: m[other_rows] for name, m in self.masks.items()},
            self.people[other_rows],
        )


def batch_for(
    model: Model, shape: Shape, people: list[int], seed: int, dtype: torch.dtype = DOUBLE, size: float = 1.0
) -> Batch:
    rng = np.random.default_rng(seed)
    x = torch.tensor(rng.normal(scale=size, size=(len(people), *shape.inputs)), dtype=dtype)
    if isinstance(shape.task, Multilabel):
        y = torch.tensor(rng.integers(-1, 2, (len(people), shape.outputs)))  # -1: nobody knows
    else:
        y = torch.tensor(rng.integers(0, len(shape.task.names), len(people)))
    return Batch(x, y, model.masks(rng, len(people), dtype), torch.tensor(people))


def params_of(model: Model, dtype: torch.dtype = DOUBLE, seed: int = 3) -> Tree:
    return {name: leaf.to(dtype) for name, leaf in model.init(seed)[0].items()}


def length_of(gradient: Tree) -> float:
    return float(torch.stack([leaf.double().square().sum() for leaf in gradient.values()]).sum().sqrt())


def looks_standard_normal(numbers: np.ndarray) -> bool:
    """Whether the sum of squares lies within chi-square's middle 99.9 %."""
    low, high = (float(stats.chi2.ppf(at, numbers.size)) for at in (0.0005, 0.9995))
    return low < float((numbers**2).sum()) < high


def patient_gradients(model: Model, params: Tree, batch: Batch) -> dict[int, Tree]:
    """By plain autograd, a row at a time: the mean over each patient's rows."""
    gathered: dict[int, list[Tree]] = {}
    for row, patient in enumerate(batch.people.tolist()):
        leaves = {name: leaf.clone().requires_grad_() for name, leaf in params.items()}
        masks = {name: mask[row : row + 1] for name, mask in batch.masks.items()}
        scores, _ = model.logits(leaves, {}, batch.x[row : row + 1], masks)
        loss = model.task.row_losses(scores, batch.y[row : row + 1]).sum()
        grads = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        gathered.setdefault(patient, []).append(dict(zip(leaves, grads, strict=True)))
    return {
        patient: {name: torch.stack([gradient[name] for gradient in rows]).mean(0) for name in params}
        for patient, rows in gathered.items()
    }


def clipped_by_hand(model: Model, params: Tree, batch: Batch, clip: float) -> Tree:
    total = {name: torch.zeros_like(leaf) for name, leaf in params.items()}
    for gradient in patient_gradients(model, params, batch).values():
        factor = min(1.0, clip / max(length_of(gradient), 1e-300))
        total = {name: leaf + factor * gradient[name] for name, leaf in total.items()}
    return total


def _thinned(shape: Shape) -> Model:
    def build() -> nn.Module:
        features = int(np.prod(shape.inputs))
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(features, 5),
            nn.LayerNorm(5),
            nn.Tanh(),
            Dropout(0.5, (5,)),
            nn.Linear(5, shape.outputs),
        )

    return from_module(build, shape)


def _gated(shape: Shape) -> Model:
    return from_module(lambda: Gates(int(np.prod(shape.inputs)), shape.outputs), shape)


# every kind that is small enough to be differentiated many times; resnet and densenet are built of the same layers
TABLES: dict[str, Callable[[Shape], Model]] = {
    "logistic": MODELS["logistic"](),
    "logistic with a private intercept": MODELS["logistic"](intercept="private"),
    "mlp": MODELS["mlp"](hidden=(6, 4)),
    "mlp with dropout": MODELS["mlp"](hidden=(6,), dropout=0.3),
    "layer norm and dropout": _thinned,
    "without rules": _gated,
}
IMAGES: dict[str, Callable[[Shape], Model]] = {
    "cnn": MODELS["cnn"](channels=(4, 8), hidden=6, kernel=3, norm="group", dropout=0.3),
    "residual": MODELS["residual"](widths=(4, 8), reduce=2),
    "residual without pooling": MODELS["residual"](widths=(4, 8), reduce=4, pool="none"),
}
