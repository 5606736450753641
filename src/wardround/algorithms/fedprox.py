"""FedProx (Li et al., MLSys 2020, arXiv:1812.06127, Algorithm 2): FedAvg with a pull towards the shared model."""

from dataclasses import replace

from wardround.algorithms.algorithm import Algorithm, setting
from wardround.algorithms.fedavg import fedavg
from wardround.core import tree
from wardround.core.settings import NonNegative, Positive
from wardround.core.tree import State, Tree

CITATION = "Li et al. Federated optimization in heterogeneous networks. MLSys 2020. arXiv:1812.06127"


def fedprox(mu: NonNegative = 0.01, server_lr: Positive = 1.0) -> Algorithm:
    base = fedavg(server_lr)

    def init(params: Tree, sites: int) -> State:
        state = base.init(params, sites)
        return {**state, "settings": {**state["settings"], "mu": setting(mu, params)}}

    return replace(base, init=init, broadcast=broadcast, correct=correct, citation=CITATION)


def broadcast(server: State, site: int) -> State:
    return {"params": server["params"], "settings": {"mu": server["settings"]["mu"]}}


def correct(grad: Tree, params: Tree, shared: State, memory: State) -> Tree:
    # gradient of mu/2 * ||w - w_t||^2 (equation 2): the squared distance, so the pull grows with it
    return tree.add_scaled(grad, tree.sub(params, shared["params"]), shared["settings"]["mu"])
