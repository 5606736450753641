"""The point with the smallest sum of distances to all updates: RFA (Pillutla et al., IEEE TSP 2022, arXiv:1912.13445).

By the smoothed Weiszfeld algorithm (algorithm 2). Every point that it visits is a mean of the updates, with other
weights in each step, so that a step needs the distances between updates and no second look at the updates themselves:
steps cost nothing. It differs from the paper in two ways. Each site counts once, because a bad site says itself how
many rows it has. And the first point is not the mean, from which a single update far away would need many steps to
return: it is the mean of that half which is nearest to the most central update.
"""

import torch
from torch import Tensor

from wardround.aggregation.distances import squared_distances, weighted
from wardround.aggregation.rule import Rule, Updates, a_minority
from wardround.core.settings import Count, Positive, WholeNumber
from wardround.core.tree import Tree

CITATION = "Pillutla, Kakade, Harchaoui. Robust aggregation for federated learning. IEEE TSP 2022. arXiv:1912.13445"


def geometric_median(bad: WholeNumber = 1, iterations: Count = 100, smoothing: Positive = 1e-6) -> Rule:
    """`smoothing` is the paper's nu: no distance counts as shorter."""

    def combine(updates: Updates, kept: Tree) -> tuple[Tensor, Tree]:
        apart = squared_distances(updates.rows)
        limit = torch.finfo(torch.float64).max / len(apart) ** 2
        shares = weiszfeld(apart.clamp(max=limit), iterations, smoothing)
        return weighted(shares, updates.rows), kept

    return Rule(combine, bad=bad, most_bad=a_minority, citation=CITATION)


def weiszfeld(apart: Tensor, iterations: int, smoothing: float) -> Tensor:
    """The updates' weights in their geometric median. `apart` are their squared distances."""
    near = apart[apart.sqrt().sum(1).argmin()].argsort(stable=True)[: len(apart) // 2 + 1]
    shares = torch.zeros_like(apart[0])
    shares[near] = 1 / len(near)
    for _ in range(iterations):
        # of each update from the mean with these shares
        squared = apart @ shares - shares @ apart @ shares / 2
        shares = 1 / squared.clamp(min=0).sqrt().clamp(min=smoothing)
        shares = shares / shares.sum()
    return shares
