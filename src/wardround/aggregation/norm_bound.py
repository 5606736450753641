"""The mean of updates of bounded length (Sun et al., 2019, arXiv:1911.07963, section 5).

An update that is longer than the bound is shortened to it. The bound is a number, or the middle one of the lengths in
the last rounds. A bad site still moves the mean, by at most the bound times its weight.
"""

from typing import Literal

import torch
from torch import Tensor

from wardround.aggregation.distances import weighted
from wardround.aggregation.rule import Rule, Updates, nothing_kept
from wardround.core.settings import Count, Positive
from wardround.core.tree import Tree

NOT_YET = -1.0  # where the length of a round will stand
CITATION = "Sun et al. Can you really backdoor federated learning? 2019. arXiv:1911.07963"


def norm_bound(bound: Positive | Literal["median"] = "median", window: Count = 5) -> Rule:
    """`window`: the rounds, this one included, whose middle lengths have `"median"` as their median."""

    def init(like: Tensor) -> Tree:
        return {"lengths": torch.full((window,), NOT_YET, dtype=torch.float64, device=like.device)}

    def combine(updates: Updates, kept: Tree) -> tuple[Tensor, Tree]:
        lengths = torch.linalg.vector_norm(updates.rows, dim=1).double()
        if bound == "median":
            now = torch.quantile(lengths, 0.5)
            kept = {"lengths": torch.cat([kept["lengths"][1:], now[None]])}
            most = torch.quantile(kept["lengths"][kept["lengths"] != NOT_YET], 0.5)
        else:
            most = lengths.new_tensor(bound)
        factors = (most / lengths.clamp(min=torch.finfo(torch.float64).tiny)).clamp(max=1)
        return weighted(updates.weights * factors, updates.rows), kept

    fixed = bound != "median"
    return Rule(
        combine, nothing_kept if fixed else init,
        in_sums=fixed, bound=None if bound == "median" else bound, keeps=not fixed, weighs=True, citation=CITATION,
    )  # fmt: skip
