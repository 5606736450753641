"""Networks on small images with drawn weights, and a hand-written forward pass of one of them."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from wardround.core import seeds
from wardround.explain import Scorer
from wardround.models import MODELS, Shape, built
from wardround.tasks import Task

SIDE = 8
CHANNELS = (2, 3)


def image_scorer(kind: str, task: Task, scale: tuple[float, ...] = (), side: int = SIDE, **options: object) -> Scorer:
    """In double precision. The last score is explained."""
    model = built(MODELS[kind](**options), Shape((1, side, side), task))
    rng = seeds.generator(1, "test images")
    params, buffers = model.init(3)
    params = {
        name: leaf.double() + 0.1 * torch.from_numpy(rng.normal(size=leaf.shape)) for name, leaf in params.items()
    }
    buffers = {name: leaf.double() if leaf.is_floating_point() else leaf for name, leaf in buffers.items()}
    return Scorer(model, params, buffers, scale=scale, output=task.outputs - 1)


def small_cnn(task: Task, scale: tuple[float, ...] = ()) -> Scorer:
    return image_scorer("cnn", task, scale, channels=CHANNELS, hidden=5, kernel=3)


def images_of(count: int, side: int = SIDE) -> Tensor:
    return torch.from_numpy(seeds.generator(2, "test pictures").normal(size=(count, 1, side, side)))


def maps_by_hand(scorer: Scorer, x: Tensor) -> Tensor:
    """The activations of `small_cnn`'s second convolution."""
    leaf = scorer.params
    x = F.max_pool2d(F.conv2d(x, leaf["0.weight"], leaf["0.bias"], padding=1).clamp(min=0), 2)
    return F.conv2d(x, leaf["3.weight"], leaf["3.bias"], padding=1).clamp(min=0)


def score_by_hand(scorer: Scorer, maps: Tensor) -> Tensor:
    """(rows,): what `small_cnn` makes of its maps, before what the task does to it."""
    leaf = scorer.params
    hidden = (F.max_pool2d(maps, 2).flatten(1) @ leaf["7.weight"].T + leaf["7.bias"]).clamp(min=0)
    return (hidden @ leaf["9.weight"].T + leaf["9.bias"])[:, scorer.output]


def slopes_by_hand(scorer: Scorer, maps: np.ndarray) -> np.ndarray:
    """dS/dA without automatic differentiation: back through two layers and a pooling."""
    leaf = {name: value.numpy() for name, value in scorer.params.items()}
    rows, channels, height, width = maps.shape
    cells = maps.reshape(rows, channels, height // 2, 2, width // 2, 2).transpose(0, 1, 2, 4, 3, 5)
    cells = cells.reshape(rows, channels, height // 2, width // 2, 4)
    pooled = cells.max(axis=-1).reshape(rows, -1)
    active = pooled @ leaf["7.weight"].T + leaf["7.bias"] > 0
    back = (leaf["9.weight"][scorer.output] * active) @ leaf["7.weight"]
    taken = np.zeros_like(cells)
    np.put_along_axis(taken, cells.argmax(axis=-1)[..., None], back.reshape(*cells.shape[:-1], 1), axis=-1)
    taken = taken.reshape(rows, channels, height // 2, width // 2, 2, 2).transpose(0, 1, 2, 4, 3, 5)
    return np.asarray(taken.reshape(maps.shape))


def enlarged_by_hand(small: np.ndarray, side: int) -> np.ndarray:
    """Straight lines between the middles of cells; beyond the outermost middles, what they have."""
    middles, wanted = ((np.arange(count) + 0.5) / count for count in (small.shape[-1], side))
    wide = np.array([[np.interp(wanted, middles, line) for line in image] for image in small])
    return np.array([[np.interp(wanted, middles, line) for line in image.T] for image in wide]).transpose(0, 2, 1)
