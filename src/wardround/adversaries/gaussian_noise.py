"""The site sends Gaussian noise in place of its update (Blanchard et al., NeurIPS 2017, arXiv:1703.02757, section 5).

The paper's standard deviation is 200, whatever the update. Here it is a multiple of the root mean square of the
update's own numbers, so that one strength means the same to every model.
"""

import numpy as np
import torch
from torch import Tensor

from wardround.adversaries.adversary import Adversary, View
from wardround.core import tree
from wardround.core.settings import Positive
from wardround.core.tree import Tree

CITATION = (
    "Blanchard et al. Machine learning with adversaries: Byzantine tolerant gradient descent. NeurIPS 2017. "
    "arXiv:1703.02757"
)


def gaussian_noise(strength: Positive = 10.0) -> Adversary:
    def forge(view: View, rng: np.random.Generator) -> Tree:
        size = sum(leaf.numel() for leaf in view.own.values())
        spread = strength * float((tree.squared_norm(view.own) / size).sqrt())

        def noise(leaf: Tensor) -> Tensor:
            return torch.from_numpy(spread * rng.standard_normal(tuple(leaf.shape))).to(leaf.device, leaf.dtype)

        return tree.apply(noise, view.own)

    return Adversary(poisons="updates", forge=forge, citation=CITATION)
