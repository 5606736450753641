"""Local optimisers as pure functions. Their state begins anew each round: a site forgets it with its old model."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from wardround.core import tree
from wardround.core.tree import State, Tree
from wardround.study.schema import Training


@dataclass(frozen=True)
class Optimiser:
    init: Callable[[Tree], State]
    # params, grad, state, lr: a number, or one for each lane of a stack
    step: Callable[[Tree, Tree, State, float | Tensor], tuple[Tree, State]]
    gradient_weight: Callable[[int], float]  # sum of the weights with which the gradients of n steps enter the result


def optimiser_for(training: Training) -> Optimiser:
    base = adam() if training.optimiser == "adam" else sgd(training.momentum)
    return with_weight_decay(base, training.weight_decay) if training.weight_decay else base


def sgd(momentum: float) -> Optimiser:
    def init(params: Tree) -> State:
        return {"velocity": tree.zeros_like(params)} if momentum else {}

    def step(params: Tree, grad: Tree, state: State, lr: float | Tensor) -> tuple[Tree, State]:
        if momentum:
            grad = tree.apply(lambda g, velocity: torch.add(g, velocity, alpha=momentum), grad, state["velocity"])
            state = {"velocity": grad}
        if isinstance(lr, Tensor):
            return {name: leaf - tree.align(lr, leaf) * grad[name] for name, leaf in params.items()}, state
        return {name: torch.sub(leaf, grad[name], alpha=lr) for name, leaf in params.items()}, state

    def gradient_weight(steps: int) -> float:
        # step k moves by the sum over j <= k of momentum^(k-j) g_j: a gradient keeps pushing after its own step
        velocity = total = 0.0
        for _ in range(steps):
            velocity = momentum * velocity + 1
            total += velocity
        return total

    return Optimiser(init, step, gradient_weight)


def adam(beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> Optimiser:
    """Kingma and Ba, ICLR 2015, arXiv:1412.6980, Algorithm 1."""

    def init(params: Tree) -> State:
        return {
            "m": tree.zeros_like(params),
            "v": tree.zeros_like(params),
            "steps": {"taken": torch.zeros((), dtype=torch.float64)},
        }

    def step(params: Tree, grad: Tree, state: State, lr: float | Tensor) -> tuple[Tree, State]:
        count = state["steps"]["taken"] + 1
        steps = float(count)
        unbias_m, unbias_v = 1 / (1 - beta1**steps), 1 / (1 - beta2**steps)
        # written in as few passes over memory as there can be: a network's step is otherwise a fifth longer
        m = tree.apply(lambda old, g: torch.lerp(old, g, 1 - beta1), state["m"], grad)
        v = tree.apply(lambda old, g: (beta2 * old).addcmul_(g, g, value=1 - beta2), state["v"], grad)
        root = tree.apply(lambda v: v.sqrt().mul_(unbias_v**0.5).add_(epsilon), v)
        after = tree.apply(lambda p, m, r: _moved(p, m, r, lr, unbias_m), params, m, root)
        return after, {"m": m, "v": v, "steps": {"taken": count}}

    return Optimiser(init, step, gradient_weight=float)


def _moved(leaf: Tensor, mean: Tensor, root: Tensor, lr: float | Tensor, unbias: float) -> Tensor:
    if isinstance(lr, Tensor):
        return torch.addcdiv(leaf, mean * tree.align(lr, leaf), root, value=-unbias)
    return torch.addcdiv(leaf, mean, root, value=-lr * unbias)


def with_weight_decay(base: Optimiser, decay: float) -> Optimiser:
    """L2 as part of the gradient, as torch's SGD and Adam do it."""

    def step(params: Tree, grad: Tree, state: State, lr: float | Tensor) -> tuple[Tree, State]:
        return base.step(params, tree.apply(lambda g, leaf: torch.add(g, leaf, alpha=decay), grad, params), state, lr)

    return Optimiser(base.init, step, base.gradient_weight)
