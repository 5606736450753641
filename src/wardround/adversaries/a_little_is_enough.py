"""ALIE: each number of the update is a little off the mean, within what honest updates spread anyway.

Baruch et al., A little is enough, NeurIPS 2019, arXiv:1902.06156, Algorithm 3: mean - z x SD, number by number, sent by
all attackers alike. "largest" takes the paper's z: of n sites of which m are bad, s = floor(n / 2 + 1) - m honest ones
must be farther away than the attackers for a majority, so that z is the normal quantile of (n - m - s) / (n - m). With
few attackers it is small (2 of 12: 0), so that the default is a number: the 1.5 of the paper's experiments.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from scipy.special import ndtri

from wardround.adversaries.adversary import Adversary, View, mean_of
from wardround.core import tree
from wardround.core.settings import Positive
from wardround.core.tree import Tree

CITATION = (
    "Baruch et al. A little is enough: circumventing defenses for distributed learning. NeurIPS 2019. arXiv:1902.06156"
)


def alie(strength: Positive | Literal["largest"] = 1.5, sees: Literal["all", "attackers"] = "all") -> Adversary:
    """`sees` "attackers": mean and SD are estimated from the attackers' own updates, as in the paper."""

    def forge(view: View, rng: np.random.Generator) -> Tree:
        seen, bad = view.seen(sees), len(view.attackers)
        z = largest_z(len(view.honest) + bad, bad) if strength == "largest" else strength
        return tree.sub(mean_of(seen), tree.scale(_spread(seen), z))

    least = 2 if sees == "attackers" else 1
    return Adversary(poisons="updates", forge=forge, least_sites=least, citation=CITATION)


def largest_z(sites: int, bad: int) -> float:
    """At least 0: with fewer the attackers would move the mean the other way."""
    needed = sites // 2 + 1 - bad
    return max(0.0, float(ndtri((sites - bad - needed) / (sites - bad)))) if sites > bad else 0.0


def _spread(trees: Sequence[Tree]) -> Tree:
    return {name: torch.stack([leaves[name] for leaves in trees]).std(0, correction=0) for name in trees[0]}
