"""FedAvg: federated averaging (McMahan et al., AISTATS 2017, arXiv:1602.05629, Algorithm 1).

Sites send what they moved by instead of where they are; with `server_lr` 1 the two are the same.
"""

from wardround.algorithms.algorithm import Algorithm, Work, setting
from wardround.core import tree
from wardround.core.settings import Positive
from wardround.core.tree import State, Tree

CITATION = (
    "McMahan et al. Communication-efficient learning of deep networks from decentralized data. AISTATS 2017. "
    "arXiv:1602.05629"
)


def fedavg(server_lr: Positive = 1.0) -> Algorithm:
    def init(params: Tree, sites: int) -> State:
        return {"params": params, "settings": {"server_lr": setting(server_lr, params)}}

    def init_memory(params: Tree) -> State:
        return {}

    def broadcast(server: State, site: int) -> State:
        return {"params": server["params"]}

    def begin(shared: State, memory: State) -> Tree:
        return shared["params"]

    def correct(grad: Tree, params: Tree, shared: State, memory: State) -> Tree:
        return grad

    def finish(params: Tree, shared: State, memory: State, work: Work) -> tuple[State, State]:
        return {"params": tree.sub(params, shared["params"])}, memory

    def aggregate(server: State, mean: State, share: float) -> State:
        step = tree.scale(mean["params"], server["settings"]["server_lr"])
        return {**server, "params": tree.add(server["params"], step)}

    return Algorithm(
        init,
        init_memory,
        broadcast,
        begin,
        correct,
        finish,
        aggregate,
        not_regional="",
        not_asynchronous="",
        not_robust="",
        citation=CITATION,
    )
