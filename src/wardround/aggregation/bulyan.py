"""Bulyan (El Mhamdi et al., ICML 2018, arXiv:1802.07927, section 4), around Krum.

Krum chooses n - 2f updates, one after another, from those that are left. Of each number, the n - 4f chosen values
nearest to their median are averaged.
"""

import torch
from torch import Tensor

from wardround.aggregation.distances import squared_distances
from wardround.aggregation.krum import ranked
from wardround.aggregation.ordering import by_column, middle
from wardround.aggregation.rule import Rule, Updates
from wardround.core.settings import WholeNumber
from wardround.core.tree import Tree

CITATION = (
    "El Mhamdi, Guerraoui, Rouault. The hidden vulnerability of distributed learning in Byzantium. ICML 2018. "
    "arXiv:1802.07927"
)


def bulyan(bad: WholeNumber = 1) -> Rule:
    def combine(updates: Updates, kept: Tree) -> tuple[Tensor, Tree]:
        chosen = selection(squared_distances(updates.rows), updates.bad)
        count = len(updates.rows) - 4 * updates.bad
        return by_column(updates.rows, lambda ordered: near_median(ordered, count), chosen), kept

    return Rule(combine, bad=bad, most_bad=most_bad, citation=CITATION)


def selection(apart: Tensor, bad: int) -> Tensor:
    """The updates that Krum chooses in turn, as row numbers in ascending order."""
    left, chosen = torch.arange(len(apart), device=apart.device), []
    for _ in range(len(apart) - 2 * bad):
        best = ranked(apart[left][:, left], bad)[0]
        chosen.append(left[best])
        left = torch.cat([left[:best], left[best + 1 :]])
    return torch.stack(chosen).sort().values


def near_median(ordered: Tensor, count: int) -> Tensor:
    """The mean of the `count` values nearest to the median. In sorted rows these stand next to each other."""
    centre = middle(ordered)
    best = torch.full_like(centre, torch.inf)
    mean = torch.zeros_like(centre)
    for start in range(len(ordered) - count + 1):
        span = ordered[start : start + count]
        farthest = torch.maximum(centre - span[0], span[-1] - centre)
        mean = torch.where(farthest < best, span.mean(0), mean)
        best = torch.minimum(farthest, best)
    return mean


def most_bad(count: int) -> int:
    """Its theorem needs 4f + 3 updates."""
    return max((count - 3) // 4, 0)
