"""The only local training loop. Every engine runs this one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from wardround import tree
from wardround.algorithms.algorithm import Algorithm, Work
from wardround.data.site import Rows
from wardround.models.model import Model
from wardround.optimisers import Optimiser
from wardround.tree import State, Tree


@dataclass(frozen=True)
class Memory:
    """What a site keeps between rounds. `private` leaves and `buffers` belong to the model and never leave the site."""

    algorithm: State = field(default_factory=dict)
    private: Tree = field(default_factory=dict)
    buffers: Tree = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What a site's local work gave: `update` leaves, `memory` stays, the rest is for the record."""

    update: State
    memory: Memory
    moved: Tree
    loss: Tensor  # mean over the round's batches


def batches(rows: int, epochs: int, batch_size: int, rng: np.random.Generator) -> list[Tensor]:
    """Row numbers of every step. Fewer epochs give a beginning of the same list, so that stragglers are comparable."""
    orders = (torch.from_numpy(rng.permutation(rows)) for _ in range(epochs))
    return [batch for order in orders for batch in torch.split(order, batch_size)]


def local_train(
    algorithm: Algorithm,
    model: Model,
    optimiser: Optimiser,
    rows: Rows,
    order: Sequence[Tensor],
    shared: State,
    memory: Memory,
    lr: float,
    mask_rng: np.random.Generator,
) -> Outcome:
    """One step per batch in `order`, from the model that the site was sent; what leaves, what stays."""
    start = algorithm.begin(shared, memory.algorithm)
    dtype = next(iter(start.values())).dtype
    start_loss = (
        _loss_on(model, {**start, **memory.private}, memory.buffers, rows) if algorithm.needs_start_loss else None
    )
    params, private, buffers = start, memory.private, memory.buffers
    state = optimiser.init({**params, **private})
    losses = []
    for batch, x, y in _fetch(rows, order, dtype):
        masks = model.masks(mask_rng, len(batch), dtype)
        grad, loss, buffers = model.gradient({**params, **private}, buffers, x, y, masks)
        losses.append(loss)
        corrected = algorithm.correct({name: grad[name] for name in params}, params, shared, memory.algorithm)
        both, state = optimiser.step({**params, **private}, {**grad, **corrected}, state, lr)
        params, private = {name: both[name] for name in params}, {name: both[name] for name in private}

    def number(value: float) -> Tensor:
        return torch.tensor(value, dtype=dtype)

    work = Work(
        steps=number(len(order)),
        lr_sum=number(lr * len(order)),
        gradient_weight=number(optimiser.gradient_weight(len(order))),
        start_loss=number(float("nan")) if start_loss is None else start_loss,
    )
    update, kept = algorithm.finish(params, shared, memory.algorithm, work)
    return Outcome(update, Memory(kept, private, buffers), tree.sub(params, start), torch.stack(losses).mean())


def _fetch(rows: Rows, order: Sequence[Tensor], dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    for batch in order:
        yield batch, *rows.take(batch, dtype)


def _loss_on(model: Model, params: Tree, buffers: Tree, rows: Rows, chunk: int = 4096) -> Tensor:
    """Mean loss on all rows, in pieces so that images fit into memory."""
    dtype = next(iter(params.values())).dtype
    total = torch.zeros((), dtype=dtype)
    with torch.no_grad():
        for part in torch.split(torch.arange(len(rows)), chunk):
            x, y = rows.take(part, dtype)
            total = total + model.loss(params, buffers, x, y, None)[0] * len(part)
    return total / len(rows)
