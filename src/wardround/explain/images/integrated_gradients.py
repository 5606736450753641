"""Integrated gradients: slopes on the straight way from an even image to the image, summed up pixel by pixel.

The even image has the image's own mean brightness, so that no other patient's image is needed. Values add up to the
difference between the two scores, up to the error of the sum over `steps`, which is stated for each row. Pixels are
noisy: look at areas.
"""

import numpy as np
import torch
from torch import Tensor

from wardround.core.settings import Count
from wardround.explain.images.feature_maps import AT_ONCE
from wardround.explain.method import Attribution, Method, Scorer


def integrated_gradients(steps: Count = 64) -> Method:
    def attribute(scorer: Scorer, rows: Tensor, background: Tensor, rng: np.random.Generator) -> Attribution:
        even = even_images(rows)
        slopes = [mean_slope(scorer, row, start, steps) for row, start in zip(rows, even, strict=True)]
        values = ((rows - even).double() * torch.stack(slopes)).sum(dim=1).numpy()
        first, last = scorer.values(even), scorer.values(rows)
        error = np.abs(first + values.sum(axis=(1, 2)) - last)
        return Attribution(values, float(first.mean()), error)

    return Method(
        attribute=attribute,
        title="Integrated gradients",
        citation="Sundararajan, Taly and Yan, ICML 2017, arXiv:1703.01365",
        explains="image",
        complete=True,
        needs_gradients=True,
        needs_background=False,
    )


def even_images(rows: Tensor) -> Tensor:
    """Of each image's own mean, channel by channel."""
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
