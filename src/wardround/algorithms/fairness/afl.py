"""Agnostic federated learning (Mohri et al., ICML 2019, arXiv:1902.00146, Figure 3): the worst mixture of hospitals.

The model goes down, and the weights of the sites go up, along the gradient of the mixture's loss: a weight rises by the
loss of its site, and the weights are projected back onto the simplex. As published, with more than one local step in
a round. Where only some sites work in a round, they share out among themselves the weight that they had together, so
that nobody gains or loses by being away.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from wardround.algorithms.algorithm import Algorithm, Arrival, Work, setting
from wardround.algorithms.fedavg import fedavg
from wardround.core import tree
from wardround.core.settings import Positive
from wardround.core.tree import State, Tree

CITATION = "Mohri, Sivek, Suresh. Agnostic federated learning. ICML 2019. arXiv:1902.00146"


def afl(mixture_lr: Positive = 0.1, server_lr: Positive = 1.0) -> Algorithm:
    base = fedavg(server_lr)

    def init(params: Tree, sites: int) -> State:
        state = base.init(params, sites)
        settings = {**state["settings"], "mixture_lr": setting(mixture_lr, params)}
        return {**state, "settings": settings, "mixture": {"weight": setting(1.0, params).div(sites).repeat(sites)}}

    def finish(params: Tree, shared: State, memory: State, work: Work) -> tuple[State, State]:
        update, memory = base.finish(params, shared, memory, work)
        return {**update, "loss": {"start": work.start_loss}}, memory

    def aggregate_each(server: State, arrivals: Sequence[Arrival]) -> State:
        here, weights = [arrival.site for arrival in arrivals], server["mixture"]["weight"]
        old, losses = weights[here], torch.stack([arrival.update["loss"]["start"] for arrival in arrivals])
        total = old.sum()
        if total == 0:  # nobody who works counts
            return server
        mean = tree.zeros_like(server["params"])
        for share, arrival in zip(old / total, arrivals, strict=True):
            mean = tree.add_scaled(mean, arrival.update["params"], share)
        risen = old + server["settings"]["mixture_lr"] * losses
        mixture = {"weight": weights.index_put((torch.tensor(here),), on_simplex(risen, total))}
        return {**base.aggregate(server, {"params": mean}, 1.0), "mixture": mixture}

    return replace(
        base,
        init=init,
        finish=finish,
        aggregate_each=aggregate_each,
        weighting="uniform",
        weighs_only=True,
        needs_start_loss=True,
        exact=frozenset({"loss"}),
        not_robust="finds what each site weighs by itself, so that there is no mean that a rule could replace",
        not_regional="finds one mixture of all sites, and regions are averaged by their rows",
        not_asynchronous="finds a mixture by the losses of one model, and late updates tell the loss of older ones",
        citation=CITATION,
    )


def on_simplex(values: Tensor, total: Tensor) -> Tensor:
    """The closest numbers that are not negative and add up to `total`: all are lowered by the same, down to 0 (Duchi et
    al., ICML 2008, Figure 1)."""
    ordered = values.sort(descending=True).values
    lowered = (ordered.cumsum(0) - total) / torch.arange(1, len(values) + 1, device=values.device)
    last = int((ordered > lowered).sum()) - 1
    return (values - lowered[last]).clamp(min=0)
