"""FedAdam, FedYogi and FedAdagrad (Reddi et al., ICLR 2021, arXiv:2003.00295, Algorithm 2).

The coordinator treats the mean change as a gradient and keeps its moments at home: sites are sent the model only.
As in the paper there is no bias correction, and the second moment starts at tau squared.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from wardround.algorithms.algorithm import Algorithm, setting
from wardround.algorithms.fedavg import fedavg
from wardround.core import tree
from wardround.core.settings import Fraction, Positive
from wardround.core.tree import State, Tree


def fedadam(
    server_lr: Positive = 0.1, beta1: Fraction = 0.9, beta2: Fraction = 0.99, tau: Positive = 1e-3
) -> Algorithm:
    return _fedopt(lambda v, delta: beta2 * v + (1 - beta2) * delta.square(), server_lr, beta1, tau)


def fedyogi(
    server_lr: Positive = 0.1, beta1: Fraction = 0.9, beta2: Fraction = 0.99, tau: Positive = 1e-3
) -> Algorithm:
    def second(v: Tensor, delta: Tensor) -> Tensor:
        square = delta.square()
        return v - (1 - beta2) * square * torch.sign(v - square)

    return _fedopt(second, server_lr, beta1, tau)


def fedadagrad(server_lr: Positive = 0.1, beta1: Fraction = 0.0, tau: Positive = 1e-3) -> Algorithm:
    return _fedopt(lambda v, delta: v + delta.square(), server_lr, beta1, tau)


def _fedopt(second: Callable[[Tensor, Tensor], Tensor], server_lr: float, beta1: float, tau: float) -> Algorithm:
    base = fedavg(server_lr)

    def init(params: Tree, sites: int) -> State:
        v = tree.apply(lambda leaf: torch.full_like(leaf, tau**2), params)
        state = base.init(params, sites)
        settings = {**state["settings"], "tau": setting(tau, params)}
        return {**state, "settings": settings, "m": tree.zeros_like(params), "v": v}

    def aggregate(server: State, mean: State, share: float) -> State:
        delta, settings = mean["params"], server["settings"]
        m = tree.apply(lambda old, d: beta1 * old + (1 - beta1) * d, server["m"], delta)  # line 11
        v = tree.apply(second, server["v"], delta)  # lines 12-14, one of them
        step = tree.apply(lambda m, v: m / (v.sqrt() + tree.align(settings["tau"], v)), m, v)  # line 15
        params = tree.add(server["params"], tree.scale(step, settings["server_lr"]))
        return {**server, "params": params, "m": m, "v": v}

    return replace(
        base,
        init=init,
        aggregate=aggregate,
        adaptive_server=True,
        not_regional="keeps moments of the change of one model, and regions change apart from each other",
        citation="Reddi et al. Adaptive federated optimization. ICLR 2021. arXiv:2003.00295",
    )
