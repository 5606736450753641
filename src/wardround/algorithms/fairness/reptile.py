"""Reptile across hospitals (Nichol et al., 2018, arXiv:1803.02999, equation 1, with all sites of a round as tasks): a
shared model from which each hospital's own is a few steps away.

The shared model goes a part `server_lr` of the way to the mean of what the sites' local work makes of it, all sites
weighing the same; that is FedAvg, as Jiang et al. (arXiv:1909.12488) point out. What differs is the prediction: each
site predicts with what its own local work of its last round has made of the shared model. A site that has not worked
yet predicts with the shared model itself.
"""

from dataclasses import replace

import torch

from wardround.algorithms.algorithm import Algorithm, Work
from wardround.algorithms.fedavg import fedavg
from wardround.core import tree
from wardround.core.settings import Positive
from wardround.core.tree import State, Tree

CITATION = "Nichol, Achiam, Schulman. On first-order meta-learning algorithms. 2018. arXiv:1803.02999"


def reptile(server_lr: Positive = 1.0) -> Algorithm:
    base = fedavg(server_lr)

    def init_memory(params: Tree) -> State:
        device = next((leaf.device for leaf in params.values()), None)
        return {"tuned": tree.zeros_like(params), "work": {"done": torch.zeros((), dtype=torch.bool, device=device)}}

    def own_model(shared: State, memory: State) -> Tree:
        done = memory["work"]["done"]
        return tree.apply(
            lambda tuned, sent: torch.where(tree.align(done, sent), tuned, sent), memory["tuned"], shared["params"]
        )

    def finish(params: Tree, shared: State, memory: State, work: Work) -> tuple[State, State]:
        update, _ = base.finish(params, shared, memory, work)
        return update, {"tuned": params, "work": {"done": torch.ones_like(work.steps, dtype=torch.bool)}}

    return replace(
        base,
        init_memory=init_memory,
        finish=finish,
        own_model=own_model,
        weighting="uniform",
        personal=True,
        not_regional="gives each site a model of its own, so that nobody would predict with a region's",
        not_asynchronous="predicts at each site with its own last work, which would have begun with models of all ages",
        citation=CITATION,
    )
