"""Ditto (Li et al., ICML 2021, arXiv:2012.04221, Algorithm 1): every hospital has a model of its own, held near the
shared one.

A site first takes its own model further, on its loss plus lam/2 times the squared distance from the shared model that
it was sent (the paper's lambda; line 6), then trains the shared model as in FedAvg. Its own model never leaves it, and
predicts. With lam = 0 it is the model of a site alone; the larger lam is, the closer it stays to the shared one.
"""

from dataclasses import replace

from wardround.algorithms.algorithm import Algorithm, Work, setting
from wardround.algorithms.fedavg import fedavg
from wardround.core import tree
from wardround.core.settings import NonNegative, Positive
from wardround.core.tree import State, Tree

CITATION = (
    "Li, Hu, Beirami, Smith. Ditto: fair and robust federated learning through personalization. ICML 2021. "
    "arXiv:2012.04221"
)


def ditto(lam: NonNegative = 0.1, server_lr: Positive = 1.0) -> Algorithm:
    base = fedavg(server_lr)

    def init(params: Tree, sites: int) -> State:
        state = base.init(params, sites)
        return {**state, "settings": {**state["settings"], "lam": setting(lam, params)}}

    return replace(
        base,
        init=init,
        init_memory=lambda params: {"own": params},
        broadcast=lambda server, site: {"params": server["params"], "settings": {"lam": server["settings"]["lam"]}},
        own_model=own_model,
        own=replace(base, begin=own_model, correct=correct, finish=finish),
        personal=True,
        trains_own=True,
        not_regional="gives each site a model of its own, so that nobody would predict with a region's",
        not_asynchronous="holds each site's own model near the shared one, which would be of another age at each site",
        citation=CITATION,
    )


def own_model(shared: State, memory: State) -> Tree:
    return memory["own"]


def correct(grad: Tree, params: Tree, shared: State, memory: State) -> Tree:
    return tree.add_scaled(grad, tree.sub(params, shared["params"]), shared["settings"]["lam"])


def finish(params: Tree, shared: State, memory: State, work: Work) -> tuple[State, State]:
    return {}, {"own": params}
