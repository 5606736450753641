"""Grad-CAM: feature maps, each weighted with the mean slope of the score in it; what speaks against is cut off.

It sees as finely as its layer and shows only what raises the score. Of a layer before the last, the mean slope can hide
that a map counts in one place and not in another.
"""

import numpy as np
import torch
from torch import Tensor

from wardround.explain.images.feature_maps import chosen_layer, enlarged, maps_and_slopes
from wardround.explain.method import Attribution, Method, Scorer


def grad_cam(layer: str | None = None) -> Method:
    def attribute(scorer: Scorer, rows: Tensor, background: Tensor, rng: np.random.Generator) -> Attribution:
        found = []
        for maps, slopes in maps_and_slopes(scorer, rows, chosen_layer(scorer, rows, layer)):
            weights = slopes.mean(dim=(2, 3), keepdim=True)  # equation 1
            found.append((weights * maps).sum(dim=1).relu())  # equation 2
        return Attribution.incomplete(enlarged(torch.cat(found), rows).numpy())

    return Method(
        attribute=attribute,
        title="Grad-CAM",
        citation="Selvaraju et al., ICCV 2017, arXiv:1610.02391",
        explains="image",
        needs_gradients=True,
        needs_background=False,
        needs_feature_maps=True,
    )
