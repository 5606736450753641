"""Krum and multi-Krum (Blanchard et al., NeurIPS 2017, section 4).

The score of an update is the sum of its squared distances to the n - f - 2 nearest others, f of n being bad. Krum takes
the update with the least score, multi-Krum the mean of the n - f with the least.
"""

import torch
from torch import Tensor

from wardround.aggregation.distances import squared_distances, weighted
from wardround.aggregation.rule import Rule, Updates
from wardround.core.settings import WholeNumber
from wardround.core.tree import Tree

CITATION = "Blanchard et al. Machine learning with adversaries: Byzantine tolerant gradient descent. NeurIPS 2017"


def krum(bad: WholeNumber = 1) -> Rule:
    def combine(updates: Updates, kept: Tree) -> tuple[Tensor, Tree]:
        return updates.rows[ranked(squared_distances(updates.rows), updates.bad)[0]].clone(), kept

    return Rule(combine, bad=bad, most_bad=most_bad, citation=CITATION)


def multi_krum(bad: WholeNumber = 1) -> Rule:
    def combine(updates: Updates, kept: Tree) -> tuple[Tensor, Tree]:
        best = ranked(squared_distances(updates.rows), updates.bad)[: len(updates.rows) - updates.bad]
        shares = torch.zeros(len(updates.rows), dtype=torch.float64, device=updates.rows.device)
        shares[best] = 1 / len(best)
        return weighted(shares, updates.rows), kept

    return Rule(combine, bad=bad, most_bad=most_bad, citation=CITATION)


def ranked(apart: Tensor, bad: int) -> Tensor:
    """The updates from the least score on, from their squared distances. Two that are each other's only neighbour have
    the same score: first comes the one that is nearer to all."""
    nearest = apart.sort(dim=1).values[:, 1:]  # the first is its own
    scores = nearest[:, : max(len(apart) - bad - 2, 1)].sum(1)
    by_all = nearest.sum(1).argsort(stable=True)
    return by_all[scores[by_all].argsort(stable=True)]


def most_bad(count: int) -> int:
    """Its theorem needs 2f + 3 updates."""
    return max((count - 3) // 2, 0)
