"""The site sends its update so many times as long: a wrong unit, a step taken ten times, or greed."""

import numpy as np

from wardround.adversaries.adversary import Adversary, View
from wardround.core import tree
from wardround.core.settings import Positive
from wardround.core.tree import Tree


def scaling(strength: Positive = 10.0) -> Adversary:
    def forge(view: View, rng: np.random.Generator) -> Tree:
        return tree.scale(view.own, strength)

    return Adversary(poisons="updates", forge=forge)
