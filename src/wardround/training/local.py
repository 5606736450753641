"""The only local training loop. Every engine runs `descend`: for one site, or for a stack of sites."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from wardround.algorithms.algorithm import Algorithm, Work
from wardround.core import tree
from wardround.core.tree import State, Tree
from wardround.data.site import Rows
from wardround.models.model import Gradient, Model, SecondLabels
from wardround.privacy.dp.example_dp import PrivateGradient
from wardround.training.optimisers import Optimiser

Batch = TypeVar("Batch")


@dataclass(frozen=True)
class Memory:
    """What a site keeps between rounds. `private` leaves and `buffers` belong to the model and never leave the site."""

    algorithm: State = field(default_factory=dict)
    private: Tree = field(default_factory=dict)
    buffers: Tree = field(default_factory=dict)
    protection: Tree = field(default_factory=dict)  # `clip`, where it moves
    residual: Tree = field(default_factory=dict)  # what compression has left out of updates so far, where it is kept
    adversary: Tree = field(default_factory=dict)  # of a simulated bad site: the model that it was sent last

    def settled(self) -> "Memory":
        return self.laid_out(tree.settle)

    def laid_out(self, how: Callable[[State], State]) -> "Memory":
        """`how` is a layout of `tree`, such as `tree.settle`."""
        model = how({"private": self.private, "buffers": self.buffers})
        return Memory(
            how(self.algorithm), model["private"], model["buffers"], self.protection, self.residual, self.adversary
        )

    def with_own(self, own: "Memory") -> "Memory":
        """What stays after two models were trained: the private part of the model belongs to the site's own."""
        return replace(self, algorithm={**self.algorithm, **own.algorithm}, private=own.private, buffers=own.buffers)

    def leaves(self) -> Tree:
        """All of it as one flat tree."""
        parts = {
            "algorithm": tree.flatten(self.algorithm),
            "private": self.private,
            "buffers": self.buffers,
            "protection": self.protection,
            "residual": self.residual,
            "adversary": self.adversary,
        }
        return tree.flatten(parts)

    @classmethod
    def of(cls, leaves: Tree) -> "Memory":
        parts = tree.unflatten(leaves)
        named = (parts.get(name, {}) for name in ("private", "buffers", "protection", "residual", "adversary"))
        return cls(tree.unflatten(parts.get("algorithm", {})), *named)


@dataclass(frozen=True)
class Outcome:
    """The result of a site's local work: `update` leaves, `memory` stays, the rest is for the record.

    With compression `sent` is what leaves, and `update` is what the coordinator makes of it.
    """

    update: State
    memory: Memory
    moved: Tree | None  # None where it stayed at its site
    loss: Tensor  # mean over the round's batches
    moved_by: float | None = None  # its length, where only that is known
    sent: State | None = None  # None: the update itself
    error: float | None = None  # of compression: length of what it lost over that of the update

    @property
    def leaving(self) -> State:
        return self.update if self.sent is None else self.sent

    @property
    def length(self) -> float:
        if self.moved is None:
            return float("nan") if self.moved_by is None else self.moved_by
        return float(tree.squared_norm(self.moved).sqrt())


@dataclass(frozen=True)
class Point:
    """The state of local work: everything that a step changes."""

    params: Tree  # shared leaves
    private: Tree
    buffers: Tree
    optimiser: State
    loss: Tensor  # summed over the steps so far


GradientAt = Callable[[Tree, Tree, Batch], Gradient]  # all leaves, buffers, a batch


def descend(
    algorithm: Algorithm,
    optimiser: Optimiser,
    gradient: GradientAt[Batch],
    point: Point,
    batches: Iterable[Batch],
    shared: State,
    memory: State,
    lr: float | Tensor,
) -> Point:
    """One step per batch. For one site, or for a stack of sites along the leading axis of every leaf."""
    params, private, buffers, state, total = point.params, point.private, point.buffers, point.optimiser, point.loss
    for batch in batches:
        grad, loss, buffers = gradient({**params, **private}, buffers, batch)
        corrected = algorithm.correct({name: grad[name] for name in params}, params, shared, memory)
        both, state = optimiser.step({**params, **private}, {**grad, **corrected}, state, lr)
        params, private = {name: both[name] for name in params}, {name: both[name] for name in private}
        total = total + loss
    return Point(params, private, buffers, state, total)


def orders(rows: int, epochs: int, rng: np.random.Generator, odds: np.ndarray | None = None) -> np.ndarray:
    """The order of rows in each epoch. Fewer epochs give the first of the same orders, so stragglers are comparable.

    With `odds`, as many rows as there are, each drawn by itself with these probabilities.
    """
    if odds is not None:
        return rng.choice(rows, (epochs, rows), p=odds)
    return rng.permuted(_unshuffled(rows, epochs), axis=1)


@lru_cache(maxsize=1024)
def _unshuffled(rows: int, epochs: int) -> np.ndarray:
    return np.tile(np.arange(rows), (epochs, 1))


def batches(
    rows: int, epochs: int, batch_size: int, rng: np.random.Generator, odds: np.ndarray | None = None
) -> list[Tensor]:
    """Row numbers of every step."""
    drawn = torch.from_numpy(orders(rows, epochs, rng, odds))
    return [batch for order in drawn for batch in torch.split(order, batch_size)]


class Order(Protocol):
    """Row numbers of each step. Its length is asked for when the last step is done."""

    def __iter__(self) -> Iterator[Tensor]: ...
    def __len__(self) -> int: ...


def local_train(
    algorithm: Algorithm,
    model: Model,
    optimiser: Optimiser,
    rows: Rows,
    order: Order,
    shared: State,
    memory: Memory,
    lr: float,
    mask_rng: np.random.Generator,
    weights: Tensor | None = None,
    change: Callable[[Tensor], Tensor] | None = None,
    private: PrivateGradient | None = None,
    mix: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, SecondLabels | None]] | None = None,
) -> Outcome:
    """One site's work: a step per batch in `order`, from the model that it received.

    `weights` are those of the loss, `change` augments each batch of images and `mix` mixes its rows. With `private`,
    each step's gradient is clipped by patient and gets noise before it is used.
    """
    images = rows.x.dim() == 4
    if images:
        shared, memory = tree.for_convolutions(shared), memory.laid_out(tree.for_convolutions)
    start = algorithm.begin(shared, memory.algorithm)
    dtype = next(iter(start.values())).dtype

    def number(value: float) -> Tensor:
        return torch.tensor(value, dtype=dtype)

    def gradient(leaves: Tree, buffers: Tree, batch: Tensor) -> Gradient:
        x, y = rows.take(batch, dtype, change)
        masks = {name: mask.to(x.device) for name, mask in model.masks(mask_rng, len(batch), dtype).items()}
        if private is not None:
            return private(leaves, buffers, x, y, masks, rows.people[batch])
        x, second = (x, None) if mix is None else mix(batch, x, y)
        return model.gradient(leaves, buffers, x, y, masks, weights, second)

    full = {**start, **memory.private}
    start_loss = _loss_on(model, full, memory.buffers, rows) if algorithm.needs_start_loss else number(float("nan"))
    point = Point(start, memory.private, memory.buffers, optimiser.init(full), number(0.0))
    point = descend(algorithm, optimiser, gradient, point, order, shared, memory.algorithm, lr)
    work = Work(
        steps=number(len(order)),
        lr_sum=number(lr * len(order)),
        gradient_weight=number(optimiser.gradient_weight(len(order))),
        start_loss=start_loss,
    )
    update, state = algorithm.finish(point.params, shared, memory.algorithm, work)
    protection = {"clip": number(private.clip)} if private is not None and memory.protection else {}
    moved, after = tree.sub(point.params, start), Memory(state, point.private, point.buffers, protection)
    if images:  # the sum of updates does not depend on the layout here
        update, moved, after = tree.settle(update), tree.settle({"": moved})[""], after.settled()
    return Outcome(update, after, moved, point.loss / len(order))


def _loss_on(model: Model, params: Tree, buffers: Tree, rows: Rows, chunk: int = 4096) -> Tensor:
    """Mean loss on all rows, some at a time so that images fit into memory."""
    dtype = next(iter(params.values())).dtype
    total = torch.zeros((), dtype=dtype)
    with torch.no_grad():
        for part in torch.split(torch.arange(len(rows)), chunk):
            x, y = rows.take(part, dtype)
            total = total + model.loss(params, buffers, x, y, None)[0] * len(part)
    return total / len(rows)
