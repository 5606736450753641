"""Grad-CAM++: as Grad-CAM, but each place of a map has a weight of its own, so that several places, and small ones,
count in full.

The paper differentiates exp(S) of the score S, where maps act linearly on S. What exp(S) multiplies all weights of a
row with is left out: it changes no map but its scale, and does not overflow.
"""

import numpy as np
import torch
from torch import Tensor

from wardround.explain.images.feature_maps import chosen_layer, enlarged, maps_and_slopes
from wardround.explain.method import Attribution, Method, Scorer


def grad_cam_plus_plus(layer: str | None = None) -> Method:
    def attribute(scorer: Scorer, rows: Tensor, background: Tensor, rng: np.random.Generator) -> Attribution:
        found = []
        for maps, slopes in maps_and_slopes(scorer, rows, chosen_layer(scorer, rows, layer)):
            weights = (shares(maps, slopes) * slopes.relu()).sum(dim=(2, 3), keepdim=True)  # equation 5
            found.append((weights * maps).sum(dim=1).relu())
        return Attribution.incomplete(enlarged(torch.cat(found), rows).numpy())

    return Method(
        attribute=attribute,
        title="Grad-CAM++",
        citation="Chattopadhyay et al., WACV 2018, arXiv:1710.11063",
        explains="image",
        needs_gradients=True,
        needs_background=False,
        needs_feature_maps=True,
    )


def shares(maps: Tensor, slopes: Tensor) -> Tensor:
    """The alphas of equation 19; 0 where nothing divides them."""
    below = 2 * slopes**2 + maps.sum(dim=(2, 3), keepdim=True) * slopes**3
    return torch.where(below != 0, slopes**2 / torch.where(below != 0, below, 1.0), 0.0)
