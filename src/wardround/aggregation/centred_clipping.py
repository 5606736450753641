"""Centred clipping (Karimireddy, He, Jaggi, ICML 2021, arXiv:2012.10333, algorithm 2).

From where the last round's result was, the result goes towards each update, but no farther than `radius`: what is far
from the others counts no more than what is at the radius. With `momentum` (of [aggregation]) the updates are those of
sites with momentum, as in the paper.
"""

from typing import Literal

import torch
from torch import Tensor

from wardround.aggregation.distances import products, weighted
from wardround.aggregation.rule import Rule, Updates, a_minority
from wardround.core.settings import Count, Positive, WholeNumber
from wardround.core.tree import Tree

CITATION = (
    "Karimireddy, He, Jaggi. Learning from history for Byzantine robust optimization. ICML 2021. arXiv:2012.10333"
)


def centred_clipping(
    bad: WholeNumber = 1, radius: Positive | Literal["median"] = "median", iterations: Count = 1
) -> Rule:
    """With radius `"median"`, half of the updates are at most so far away."""

    def init(like: Tensor) -> Tree:
        return {"centre": torch.zeros_like(like)}

    def combine(updates: Updates, kept: Tree) -> tuple[Tensor, Tree]:
        shares = clipped_shares(products(updates.rows, kept["centre"]), radius, iterations)
        centre = weighted(shares[:-1], updates.rows).add_(kept["centre"], alpha=float(shares[-1]))
        return centre, {"centre": centre}

    return Rule(combine, init, bad=bad, most_bad=a_minority, keeps=True, citation=CITATION)


def clipped_shares(inner: Tensor, radius: float | Literal["median"], iterations: int) -> Tensor:
    """What each update and, last, the old centre weigh in the new one. `inner` are their products with each other: the
    centre is always a mean of them, so that no further look at the updates is needed."""
    count = len(inner) - 1
    each = torch.eye(count + 1, dtype=inner.dtype, device=inner.device)
    shares = each[-1]
    for _ in range(iterations):
        away = each[:-1] - shares
        lengths = ((away @ inner) * away).sum(1).clamp(min=0).sqrt()
        most = torch.quantile(lengths, 0.5) if radius == "median" else lengths.new_tensor(radius)
        factors = (most / lengths.clamp(min=torch.finfo(inner.dtype).tiny)).clamp(max=1)
        shares = shares + (factors / count) @ away
    return shares
