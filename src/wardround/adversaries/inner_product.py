"""Inner-product manipulation: the mean of the honest updates, turned round and scaled.

Xie et al., Fall of empires, UAI 2019, arXiv:1903.03936: - epsilon x mean, sent by all attackers alike. A small epsilon
hides near the honest updates and slows training down or turns it round where a rule picks among them; a large one is
for the mean, which only turns round where epsilon x bad exceeds honest sites.
"""

import numpy as np

from wardround.adversaries.adversary import Adversary, Sees, View, mean_of
from wardround.core import tree
from wardround.core.settings import Positive
from wardround.core.tree import Tree

CITATION = (
    "Xie et al. Fall of empires: breaking Byzantine-tolerant SGD by inner product manipulation. UAI 2019. "
    "arXiv:1903.03936"
)


def inner_product(strength: Positive = 0.5, sees: Sees = "all") -> Adversary:
    def forge(view: View, rng: np.random.Generator) -> Tree:
        return tree.scale(mean_of(view.seen(sees)), -strength)

    return Adversary(poisons="updates", forge=forge, citation=CITATION)
