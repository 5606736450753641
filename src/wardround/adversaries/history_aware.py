"""A history-aware attack on centred clipping: relocated orthogonal perturbation (ROP).

Özfatura et al., Byzantines can also learn from history, IEEE TIFS 2024, arXiv:2208.09894. Centred clipping forgives
whatever is near its centre, the last aggregate, which every site can work out from two models that it was sent. The
attackers start there and step aside by a vector at right angles to where training goes: all ones, less its projection
on the reference, lambda x last aggregate + (1 - lambda) x mean update. The step is the same in every round, so that it
adds up. The paper's length z is absolute; here it is a multiple of the mean update's length, so that it has a meaning
for updates of any length.
"""

import numpy as np
import torch

from wardround.adversaries.adversary import Adversary, Sees, View, mean_of
from wardround.core import tree
from wardround.core.settings import Positive, Share
from wardround.core.tree import Tree

CITATION = (
    "Ozfatura et al. Byzantines can also learn from history: fall of centered clipping in federated learning. "
    "IEEE TIFS 2024. arXiv:2208.09894"
)
TINY = 1e-30  # of a direction's squared length: there is none, as before anything was learnt


def history_aware(strength: Positive = 1.0, reference: Share = 0.9, sees: Sees = "all") -> Adversary:
    """`reference` is the paper's lambda."""

    def forge(view: View, rng: np.random.Generator) -> Tree:
        mean = mean_of(view.seen(sees))
        centre = mean if view.before is None else view.before
        along = tree.add(tree.scale(centre, reference), tree.scale(mean, 1 - reference))
        aside = {name: torch.ones_like(leaf) for name, leaf in mean.items()}
        onto = _dot(aside, along) / _dot(along, along).clamp(min=TINY)
        aside = tree.sub(aside, tree.scale(along, onto))
        length = strength * (_dot(mean, mean) / _dot(aside, aside).clamp(min=TINY)).sqrt()
        return tree.add(centre, tree.scale(aside, length))

    return Adversary(poisons="updates", forge=forge, remembers=True, citation=CITATION)


def _dot(a: Tree, b: Tree) -> torch.Tensor:
    return torch.stack([(leaf * b[name]).sum() for name, leaf in a.items()]).sum()
