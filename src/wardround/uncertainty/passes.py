"""Scores of a model that is not one model: many thinned networks, or the models of several seeds.

Both give scores (logits) of shape (passes, rows, outputs). `Model.probabilities` takes them as they are, and
`parts.py` says what follows from them.
"""

import math
from collections.abc import Sequence

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

    A pass is one thinned network, and all rows go through the same ones. So what is said of a row depends on no other
    row, on no order and on no size of a file; and two rows differ because they are different, not by their draws.

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

    def one_pass(masks: Tree, x: Tensor) -> Tensor:
        # without training masks the network predicts; the masks are buffers among the others
        return model.logits(params, {**buffers, **masks}, x, None)[0]

    all_passes = vmap(one_pass, in_dims=(0, None))
    widest = max(math.prod(shape) for _, shape in model.mask_shapes.values())
    with torch.no_grad():
        made = [all_passes(masks, part) for part in _pieces(x, passes * widest)]
    return torch.cat(made, dim=1)


def ensemble(model: Model, members: Sequence[tuple[Tree, Tree]], x: Tensor) -> Tensor:
    """A deep ensemble (Lakshminarayanan et al., NeurIPS 2017): (members, rows, outputs).

    `members` are weights and buffers of one model that was trained several times. Nothing is shared between them, so
    that one after the other is as fast as all at once, in less memory.
    """
    if not members:
        raise StudyError("uncertainty: ensemble", "has no members", "Train with two seeds or more.")
    with torch.no_grad():
        made = [
            torch.cat([model.logits(params, buffers, part, None)[0] for part in _pieces(x)])
            for params, buffers in members
        ]
    return torch.stack(made)


def _pieces(x: Tensor, cells: int = 0) -> tuple[Tensor, ...]:
    """So many rows at a time that neither they nor what is made of them (`cells` of each) fill the memory."""
    most = CELLS // max(1, math.prod(x.shape[1:]), cells)
    return torch.split(x, max(1, min(MOST_ROWS, most)))
