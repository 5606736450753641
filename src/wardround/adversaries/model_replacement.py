"""The site scales its update so that the mean becomes its own model, as if it had trained alone.

Bagdasaryan et al., AISTATS 2020, arXiv:1807.00459, equation 3: the update times n / eta, here one over the site's share
of the mean. With a backdoor in the same site's rows, one round is enough to put it into the model of all. It works
best late, when honest updates are small: `from_round`.
"""

import numpy as np

from wardround.adversaries.adversary import Adversary, View
from wardround.adversaries.backdoor_columns import CITATION
from wardround.core import tree
from wardround.core.settings import Positive
from wardround.core.tree import Tree


def model_replacement(strength: Positive = 1.0) -> Adversary:
    """`strength` 1 replaces the model where nothing but a mean is taken; less hides the attacker better."""

    def forge(view: View, rng: np.random.Generator) -> Tree:
        return tree.scale(view.own, strength / view.share)

    return Adversary(poisons="updates", forge=forge, citation=CITATION)
