"""Integrated gradients: slopes on the straight way from a plain image to the image, summed up pixel by pixel.

The plain image is the mean of the background, in which nobody's finding is left; without a background it is even, of
the image's own mean brightness. Values add up to the difference between the two scores, up to the error of the sum
over `steps`, which is stated for each row. Single pixels are noisy: look at areas.
"""

import numpy as np
import torch
from torch import Tensor

from wardround.core.settings import Count
from wardround.explain.images.feature_maps import AT_ONCE
from wardround.explain.method import Attribution, Method, Scorer


def integrated_gradients(steps: Count = 64) -> Method:
    def attribute(scorer: Scorer, rows: Tensor, background: Tensor, rng: np.random.Generator) -> Attribution:
        plain = plain_images(rows, background)
        slopes = [mean_slope(scorer, row, start, steps) for row, start in zip(rows, plain, strict=True)]
        values = ((rows - plain).double() * torch.stack(slopes)).sum(dim=1).numpy()
        first, last = scorer.values(plain), scorer.values(rows)
        error = np.abs(first + values.sum(axis=(1, 2)) - last)
        return Attribution(values, float(first.mean()), error)

    return Method(
        attribute=attribute,
        title="Integrated gradients",
        citation="Sundararajan, Taly and Yan, ICML 2017, arXiv:1703.01365",
        explains="image",
        complete=True,
        needs_gradients=True,
    )


def plain_images(rows: Tensor, background: Tensor) -> Tensor:
    """For each row the mean of the background, or of its own pixels, channel by channel."""
    if len(background):
        return background.mean(dim=0, keepdim=True).expand_as(rows)
    return rows.mean(dim=(2, 3), keepdim=True).expand_as(rows)


def mean_slope(scorer: Scorer, row: Tensor, start: Tensor, steps: int) -> Tensor:
    """In the middles of equal steps on the way from `start` to `row`."""
    total = torch.zeros_like(row, dtype=torch.float64)
    for places in torch.split((torch.arange(steps).to(row) + 0.5) / steps, AT_ONCE):
        points = torch.lerp(start[None], row[None], places[:, None, None, None]).requires_grad_()
        with torch.enable_grad():
            [slopes] = torch.autograd.grad(scorer(points).sum(), points)
        total += slopes.double().sum(dim=0)
    return total / steps
