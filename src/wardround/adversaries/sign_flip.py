"""The site sends its update turned round, and so many times as long.

Li et al., RSA, AAAI 2019, arXiv:1811.03761, section 5 (with a strength of 4 there); the reversed gradient of Rajput et
al. 2019 and Allen-Zhu et al. 2021 is that of strength 1.
"""

import numpy as np

from wardround.adversaries.adversary import Adversary, View
from wardround.core import tree
from wardround.core.settings import Positive
from wardround.core.tree import Tree

CITATION = (
    "Li et al. RSA: Byzantine-robust stochastic aggregation methods for distributed learning from heterogeneous "
    "datasets. AAAI 2019. arXiv:1811.03761"
)


def sign_flip(strength: Positive = 1.0) -> Adversary:
    def forge(view: View, rng: np.random.Generator) -> Tree:
        return tree.scale(view.own, -strength)

    return Adversary(poisons="updates", forge=forge, citation=CITATION)
