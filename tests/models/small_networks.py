"""Small networks for images, and what tests look at in them."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wardround.core.tree import Tree
from wardround.models import Model, Shape
from wardround.tasks import class_task, findings_task

FINDINGS, DIGITS, TWO = (
    Shape((1, 28, 28), findings_task(14)),
    Shape((1, 28, 28), class_task(10)),
    Shape((1, 28, 28), class_task(2)),
)
TINY: dict[str, Any] = {"widths": (4, 8), "reduce": 2}  # of a residual network


def at(pixels: int, shape: Shape, colours: int = 1) -> Shape:
    return replace(shape, inputs=(colours, pixels, pixels))


def some_images(shape: Shape, rows: int = 3) -> Tensor:
    return torch.tensor(np.random.default_rng(5).random((rows, *shape.inputs)), dtype=torch.float32)


def scores_of(model: Model, x: Tensor, seed: int = 1) -> Tensor:
    params, buffers = model.init(seed)
    with torch.no_grad():
        return model.logits(params, buffers, x, None)[0]


def plain(model: Model, seed: int = 1) -> Tree:
    """All leaves, buffers as well, as a module's own file has them."""
    params, buffers = model.init(seed)
    return {**params, **buffers}
