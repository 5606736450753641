"""FLTrust (Cao et al., NDSS 2021, arXiv:2012.13995, algorithm 2): updates are judged by one that the coordinator makes
itself.

The coordinator trains the same model on root data of its own, which are public and known to be good. An update counts
the more the nearer its direction is to the root's, and not at all if it turns away; all count with the root's length.
"""

import torch
from torch import Tensor

from wardround.aggregation.distances import products, weighted
from wardround.aggregation.rule import Rule, Updates
from wardround.core.settings import WholeNumber
from wardround.core.tree import Tree

CITATION = (
    "Cao et al. FLTrust: Byzantine-robust federated learning via trust bootstrapping. NDSS 2021. arXiv:2012.13995"
)


def fltrust(root: str = "root", bad: WholeNumber = 1) -> Rule:
    """`root` is a site that does not train: its training rows are the coordinator's."""

    def combine(updates: Updates, kept: Tree) -> tuple[Tensor, Tree]:
        if updates.root is None:
            raise ValueError("fltrust compares updates with that of root data")
        inner = products(updates.rows, updates.root)
        lengths = inner.diagonal().sqrt().clamp(min=torch.finfo(torch.float64).tiny)
        trust = (inner[:-1, -1] / lengths[:-1] / lengths[-1]).clamp(min=0)
        total = trust.sum().clamp(min=torch.finfo(torch.float64).tiny)
        return weighted(trust / total * lengths[-1] / lengths[:-1], updates.rows), kept

    return Rule(combine, bad=bad, most_bad=all_but_one, root=root, citation=CITATION)


def all_but_one(count: int) -> int:
    """Whatever the others send: one good update is enough for the direction, and the root has the length."""
    return max(count - 1, 0)
