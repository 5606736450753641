"""Monte Carlo dropout: logits of many thinned networks, (passes, rows, outputs), for `Model.probabilities`."""

import math

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from wardround.core.errors import StudyError
from wardround.core.tree import Tree
from wardround.evaluation.prediction import CELLS
from wardround.models import Model

MOST_ROWS = 4096  # at a time


def mc_dropout(model: Model, params: Tree, buffers: Tree, x: Tensor, passes: int, rng: np.random.Generator) -> Tensor:
    """Monte Carlo dropout (Gal and Ghahramani, ICML 2016): (passes, rows, outputs).

    A pass is one thinned network, and all rows go through the same ones. So the result for a row does not depend on
    other rows, and rows differ because they are different, not by their draws.

    Only the masks have an axis of passes, and `vmap` carries it from the first of them on. Whatever comes before the
    first dropout is computed once; where dropout follows the features, the other passes cost next to nothing.
    Normalisation uses the statistics that a site keeps, as in prediction.
    """
    if not model.mask_shapes:
        raise StudyError(
            "uncertainty: passes",
            "the model has no dropout, so that all passes would be the same",
            "Give the model a dropout above 0, or use an ensemble of several seeds.",
        )
    if passes < 1:
        raise StudyError("uncertainty: passes", f"{passes} passes say nothing", "Write 2 or more, such as 30.")
    masks = {name: mask.to(x.device) for name, mask in model.masks(rng, passes, x.dtype).items()}

    def thinned(masks: Tree, x: Tensor) -> Tensor:
        # without training masks the network predicts; the masks are buffers among the others
        return model.logits(params, {**buffers, **masks}, x, None)[0]

    all_passes = vmap(thinned, in_dims=(0, None))
    widest = max(math.prod(shape) for _, shape in model.mask_shapes.values())
    # neither rows nor activations of all passes may fill the memory
    rows = max(1, min(MOST_ROWS, CELLS // max(1, math.prod(x.shape[1:]), passes * widest)))
    with torch.no_grad():
        return torch.cat([all_passes(masks, part) for part in torch.split(x, rows)], dim=1)
