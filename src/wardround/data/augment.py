"""Images changed a little each time that they are trained on: turned, cut, mirrored, made noisy.

A batch is changed as one tensor. The draws come from a stream of their own, so that a study with augmentation sees the
same patients in the same batches as one without.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from wardround.study.schema import Augmentation


def augmenter(settings: Augmentation | None, rng: np.random.Generator) -> Callable[[Tensor], Tensor] | None:
    """What to do to each batch of images (rows, channels, height, width) with pixels from 0 to 1."""
    if settings is None or settings == Augmentation():
        return None

    def change(x: Tensor) -> Tensor:
        if not len(x):  # a step for which nobody was drawn
            return x
        if settings.flip != "none":
            x = _mirrored(x, -1, rng)
        if settings.flip == "both":
            x = _mirrored(x, -2, rng)
        if settings.rotate or settings.crop:
            x = _warped(x, settings, rng)
        if settings.noise:
            drawn = torch.from_numpy(rng.standard_normal(x.shape, dtype=np.float32))
            x = (x + settings.noise * drawn.to(x)).clamp_(0, 1)
        return x

    return change


def _mirrored(x: Tensor, axis: int, rng: np.random.Generator) -> Tensor:
    """Every other image, on average."""
    chosen = torch.from_numpy(rng.random(len(x)) < 0.5).to(x.device)
    return torch.where(chosen.reshape(-1, *(1,) * (x.dim() - 1)), x.flip(axis), x)


def _warped(x: Tensor, settings: Augmentation, rng: np.random.Generator) -> Tensor:
    """Turned about its middle, and a part of it stretched to the whole; what comes in from outside repeats the edge."""
    angle = np.deg2rad(rng.uniform(-settings.rotate, settings.rotate, len(x)))
    left = 1 - rng.uniform(0, settings.crop, len(x))  # of the image; the same for width and height
    shift = rng.uniform(-1, 1, (len(x), 2)) * (1 - left)[:, None]
    height, width = x.shape[-2:]
    cos, sin = left * np.cos(angle), left * np.sin(angle)
    turn = np.empty((len(x), 2, 3))  # from places in the new image to places in the old, both from -1 to 1
    turn[:, 0] = np.stack([cos, -sin * height / width, shift[:, 0]], axis=1)
    turn[:, 1] = np.stack([sin * width / height, cos, shift[:, 1]], axis=1)
    grid = F.affine_grid(torch.from_numpy(turn).to(x), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, padding_mode="border", align_corners=False)
