"""FedDyn (Acar et al., ICLR 2021, arXiv:2111.04263, Algorithm 1), as a package of somebody else would offer it.

A site adds to its loss -<g, w> + alpha/2 ||w - w_t||^2, where g is its gradient at the end of its last round. Where all
sites stop, the gradients of their own losses cancel. The coordinator's `h` is the mean of the g of all sites.
"""

from dataclasses import replace

from wardround.algorithms import Algorithm, Work
from wardround.algorithms.algorithm import setting
from wardround.algorithms.fedavg import fedavg
from wardround.core import tree
from wardround.core.settings import Positive
from wardround.core.tree import State, Tree


def feddyn(alpha: Positive = 0.1) -> Algorithm:
    def init(params: Tree, sites: int) -> State:
        return {"params": params, "h": tree.zeros_like(params), "settings": {"alpha": setting(alpha, params)}}

    return replace(
        fedavg(),
        init=init,
        init_memory=init_memory,
        broadcast=broadcast,
        correct=correct,
        finish=finish,
        aggregate=aggregate,
        weighting="uniform",
        sound_with=frozenset({"sgd", "weight-decay"}),
        not_regional="keeps one h of all sites",
        citation="Acar et al. Federated learning based on dynamic regularization. ICLR 2021. arXiv:2111.04263",
    )


def init_memory(params: Tree) -> State:
    return {"gradient": tree.zeros_like(params)}


def broadcast(server: State, site: int) -> State:
    return {"params": server["params"], "settings": server["settings"]}


def correct(grad: Tree, params: Tree, shared: State, memory: State) -> Tree:
    moved = tree.sub(params, shared["params"])
    return tree.add_scaled(tree.sub(grad, memory["gradient"]), moved, shared["settings"]["alpha"])


def finish(params: Tree, shared: State, memory: State, work: Work) -> tuple[State, State]:
    moved = tree.sub(params, shared["params"])
    gradient = tree.add_scaled(memory["gradient"], moved, -shared["settings"]["alpha"])
    return {"params": moved}, {"gradient": gradient}


def aggregate(server: State, mean: State, share: float) -> State:
    alpha = server["settings"]["alpha"]
    h = tree.add_scaled(server["h"], mean["params"], -alpha * share)
    params = tree.add_scaled(tree.add(server["params"], mean["params"]), h, -1 / alpha)
    return {**server, "params": params, "h": h}
