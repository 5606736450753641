"""q-FedAvg (Li et al., ICLR 2020, arXiv:1905.10497, Algorithm 2): hospitals that the shared model serves badly count
for more.

The objective is the mean over sites of F_k^(q+1) / (q+1), where F_k is a site's loss (equation 2). Each site sends its
change times F_k^q and how fast its part of the objective may bend (line 6), both divided by the L that they have in
common, the inverse of the learning rate. With q = 0 the step is FedAvg's.
"""

from dataclasses import replace
from typing import Annotated

import torch

from wardround.algorithms.algorithm import Algorithm, Work, setting
from wardround.algorithms.fedavg import fedavg
from wardround.core import tree
from wardround.core.settings import Positive, Range
from wardround.core.tree import State, Tree

MOST_Q = 10.0  # a loss of 0.001 to a higher power is 0 in single precision
CITATION = "Li et al. Fair resource allocation in federated learning. ICLR 2020. arXiv:1905.10497"


def qfedavg(q: Annotated[float, Range(low=0, high=MOST_Q)] = 1.0, server_lr: Positive = 1.0) -> Algorithm:
    base = fedavg(server_lr)

    def init(params: Tree, sites: int) -> State:
        state = base.init(params, sites)
        return {**state, "settings": {**state["settings"], "q": setting(q, params)}}

    return replace(
        base,
        init=init,
        broadcast=lambda server, site: {"params": server["params"], "settings": {"q": server["settings"]["q"]}},
        finish=finish,
        aggregate=lambda server, mean, share: base.aggregate(server, {"params": step(mean)}, share),
        needs_start_loss=True,
        needs_loss_from_zero=True,
        exact=frozenset({"bend"}),  # what every site's change is divided by
        not_robust="lets a site weigh more the larger its loss is, which it reports itself",
        not_regional="weighs sites by their losses, and regions would be averaged by their rows",
        not_asynchronous="weighs sites by their losses of one model, and late updates tell the loss of older ones",
        citation=CITATION,
    )


def finish(params: Tree, shared: State, memory: State, work: Work) -> tuple[State, State]:
    moved, q = tree.sub(params, shared["params"]), shared["settings"]["q"]
    loss = work.start_loss.clamp(min=torch.finfo(work.start_loss.dtype).tiny)
    raised = loss**q
    length = tree.sum_of_squares(moved, work.steps.dim())
    bend = raised + q * loss ** (q - 1) * length * work.steps / work.lr_sum  # h_k / L, where L is one over the rate
    return {"params": tree.scale(moved, raised), "bend": {"h": bend}}, memory


def step(mean: State) -> Tree:  # line 7
    bend = mean["bend"]["h"]
    return tree.scale(mean["params"], 1 / bend.clamp(min=torch.finfo(bend.dtype).tiny))
