"""Fast engine: the sites of many trials as one tensor program, along leading axes.

Trials of a stack have the same algorithm, model shape and training; they differ in seed, data and the values of the
settings that are leaves of the server's state. The round is that of `wardround.rounds`, for all trials at once; the
local loop and the algorithm's functions are the same code.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wardround import tree
from wardround.algorithms.algorithm import Arrival, Work
from wardround.engines.engine import Engine
from wardround.engines.lanes import Lane, LaneBatch, LaneBatches, MaskStreams, RowPool
from wardround.engines.threads import torch_threads
from wardround.local import Memory, Point, descend
from wardround.models.model import Gradient
from wardround.optimisers import optimiser_for
from wardround.rounds import Roster, RoundRecord, Run, Trial, roster, start
from wardround.tree import State, Tree


@dataclass(frozen=True)
class StackState:
    """`server` leaves are (trials, ...), `memory` and `private` leaves (trials, sites, ...).

    The next round writes into `memory` and `private`: whoever wants to keep an older state must copy them.
    """

    round: int
    server: State
    memory: State
    private: Tree


def start_stack(trials: Sequence[Trial]) -> StackState:
    runs = [start(trial) for trial in trials]
    memories = [[run.memories[site.name] for site in trial.sites] for run, trial in zip(runs, trials, strict=True)]
    return StackState(
        0,
        _stack_states([run.server for run in runs]),
        _stack_states([_stack_states([memory.algorithm for memory in row]) for row in memories]),
        _stack_trees([_stack_trees([memory.private for memory in row]) for row in memories]),
    )


def rounds_of_stack(trials: Sequence[Trial], state: StackState) -> Iterator[tuple[StackState, list[RoundRecord]]]:
    pool = RowPool([site.train for trial in trials for site in trial.sites])
    while state.round < trials[0].training.rounds:
        with torch_threads(1):
            state, records = _round(trials, state, pool)
        yield state, records


def _round(trials: Sequence[Trial], state: StackState, pool: RowPool) -> tuple[StackState, list[RoundRecord]]:
    first = trials[0]
    algorithm, training = first.algorithm, first.training
    drawn: dict[int, Roster] = {}
    for trial in trials:
        if trial.batch_seed not in drawn:
            drawn[trial.batch_seed] = roster(training, len(trial.sites), trial.batch_seed, state.round)
    rosters = [drawn[trial.batch_seed] for trial in trials]
    counted = [[n for n in one.numbers if n not in one.dropped] for one in rosters]
    width = len(counted[0])
    if width == 0:
        nothing = [_empty_record(t, r, state) for t, r in zip(trials, rosters, strict=True)]
        return StackState(state.round + 1, state.server, state.memory, state.private), nothing

    lanes = [
        Lane(trial.batch_seed, trial.sites[n].name, trial.sites[n].train, one.epochs[n])
        for trial, one, numbers in zip(trials, rosters, counted, strict=True)
        for n in numbers
    ]
    work_plan = LaneBatches(lanes, training.batch_size, state.round, pool, training.local_epochs)
    trial_of = torch.arange(len(trials)).repeat_interleave(width)
    site_of = torch.tensor([n for numbers in counted for n in numbers])
    sort = torch.from_numpy(work_plan.order)
    trial_sorted, site_sorted = trial_of[sort], site_of[sort]

    shared = _broadcast(first, state.server, trial_sorted, site_sorted)
    memory = _pick(state.memory, (trial_sorted, site_sorted))
    private = _pick_tree(state.private, (trial_sorted, site_sorted))
    begin = algorithm.begin(shared, memory)
    end, losses, work = _local_work(first, work_plan, pool, begin, private, shared, memory, state.round)
    update, kept = algorithm.finish(end.params, shared, memory, work)
    moved = tree.sub(end.params, begin)

    back = torch.argsort(sort)
    shape = (len(trials), width)
    update = _map(update, lambda leaf: leaf[back].reshape(*shape, *leaf.shape[1:]))
    weights = torch.tensor(
        [
            [float(len(trial.sites[n].train)) if algorithm.weighting == "samples" else 1.0 for n in numbers]
            for trial, numbers in zip(trials, counted, strict=True)
        ],
        dtype=losses.dtype,
    )
    shares = weights / weights.sum(1, keepdim=True)
    server = tree.settle(_aggregate(first, state.server, update, weights, shares, counted))
    _keep(state.memory, kept, trial_sorted, site_sorted)
    _keep({"private": state.private}, {"private": end.private}, trial_sorted, site_sorted)
    new = StackState(state.round + 1, server, state.memory, state.private)
    moved = tree.apply(lambda leaf: leaf[back].reshape(*shape, *leaf.shape[1:]), moved)
    records = _records(trials, rosters, state, new, moved, losses[back].reshape(shape), shares, shared, update)
    return new, records


def _broadcast(first: Trial, server: State, trial_of: Tensor, site_of: Tensor) -> State:
    """What each lane is sent. One copy per trial serves all its sites, unless sites have models of their own."""
    if not first.algorithm.personal:
        return _pick(first.algorithm.broadcast(server, 0), trial_of)
    sent = [
        first.algorithm.broadcast(_pick(server, t), s) for t, s in zip(trial_of.tolist(), site_of.tolist(), strict=True)
    ]
    return _stack_states(sent)


def _local_work(
    trial: Trial,
    plan: LaneBatches,
    pool: RowPool,
    begin: Tree,
    private: Tree,
    shared: State,
    memory: State,
    round_number: int,
) -> tuple[Point, Tensor, Work]:
    """All lanes to their last step. Lanes that are done leave the stack, so that the rest goes on without them."""
    model, optimiser = trial.model, optimiser_for(trial.training)
    lr, masks = trial.training.lr_in(round_number), MaskStreams(plan)

    def gradient(leaves: Tree, buffers: Tree, batch: LaneBatch) -> Gradient:
        grad, loss = model.stacked_gradient(leaves, batch.x, batch.y, batch.share, batch.masks)
        return grad, loss, buffers

    full = {**begin, **private}
    lanes = len(plan.steps)
    start_loss = torch.full((lanes,), float("nan"), dtype=trial.dtype)
    if trial.algorithm.needs_start_loss:
        start_loss = _start_losses(trial, plan, pool, full)
    point = Point(begin, private, {}, optimiser.init(full), torch.zeros(lanes, dtype=trial.dtype))
    done: list[Point] = []
    for first, last, at_work in plan.segments():
        if at_work < len(point.loss):
            done.append(_cut(point, slice(at_work, None)))
            point = _cut(point, slice(0, at_work))
        head = slice(0, at_work)
        point = descend(
            trial.algorithm,
            optimiser,
            gradient,
            point,
            plan.batches(first, last, model, trial.dtype, masks),
            _pick(shared, head),
            _pick(memory, head),
            lr,
        )
    pieces = [point, *reversed(done)]
    steps = torch.from_numpy(plan.steps).to(trial.dtype)
    weight = {count: optimiser.gradient_weight(count) for count in np.unique(plan.steps).tolist()}
    work = Work(
        steps=steps,
        lr_sum=lr * steps,
        gradient_weight=torch.tensor([weight[count] for count in plan.steps.tolist()], dtype=trial.dtype),
        start_loss=start_loss,
    )
    end = Point(
        {name: torch.cat([piece.params[name] for piece in pieces]) for name in point.params},
        {name: torch.cat([piece.private[name] for piece in pieces]) for name in point.private},
        {},
        {},
        torch.cat([piece.loss for piece in pieces]),
    )
    return end, end.loss / steps, work


def _start_losses(trial: Trial, plan: LaneBatches, pool: RowPool, leaves: Tree) -> Tensor:
    """Mean loss on each lane's training rows, of the model that it begins with."""
    from wardround.models.model import row_losses

    losses = []
    with torch.no_grad():
        for lane, place in enumerate(plan.of_lane.tolist()):
            rows = torch.from_numpy(pool.of(plan.distinct[place].rows))
            x, y = pool.take(rows, trial.dtype)
            mine = _pick_tree(leaves, lane)
            scores, _ = trial.model.logits(mine, {}, x, None)
            loss = row_losses(scores, y, trial.model.classes).mean()
            losses.append(loss + trial.model.penalty(mine) if trial.model.penalty else loss)
    return torch.stack(losses)


def _aggregate(
    first: Trial, server: State, update: State, weights: Tensor, shares: Tensor, counted: list[list[int]]
) -> State:
    algorithm = first.algorithm
    if algorithm.aggregate_each is None:
        mean = _map(update, lambda leaf: (leaf * tree.align(shares, leaf)).sum(1))
        return algorithm.aggregate(server, mean, shares.shape[1] / len(first.sites))
    made = []
    for t, numbers in enumerate(counted):
        arrivals = [Arrival(n, float(weights[t, k]), _pick(update, (t, k))) for k, n in enumerate(numbers)]
        made.append(algorithm.aggregate_each(_pick(server, t), arrivals))
    return _stack_states(made)


def _keep(memory: State, kept: State, trial_of: Tensor, site_of: Tensor) -> None:
    """Only lanes that counted are here, so that a dropped update leaves its site's old memory in force."""
    for part, leaves in memory.items():
        for name, leaf in leaves.items():
            leaf[trial_of, site_of] = kept[part][name]


def _records(
    trials: Sequence[Trial],
    rosters: Sequence[Roster],
    old: StackState,
    new: StackState,
    moved: Tree,
    losses: Tensor,
    shares: Tensor,
    shared: State,
    update: State,
) -> list[RoundRecord]:
    mean = tree.apply(lambda leaf: (leaf * tree.align(shares, leaf)).sum(1, keepdim=True), moved)
    spread = (_sum_of_squares(tree.sub(moved, mean), 2) * shares).sum(1).sqrt().tolist()
    norms = (_sum_of_squares(moved, 2).sqrt() * shares).sum(1).tolist()
    loss = (losses * shares).sum(1).tolist()
    change: list[float | None] = [None] * len(trials)
    if not trials[0].algorithm.personal:
        change = _sum_of_squares(tree.sub(new.server["params"], old.server["params"]), 1).sqrt().tolist()
    settings = {name: leaf.tolist() for name, leaf in new.server.get("settings", {}).items()}
    lanes = shares.numel()
    down, up = tree.count_bytes(shared) // lanes, tree.count_bytes(update) // lanes
    free = trials[0].algorithm.pools  # the rows were brought together instead
    return [
        RoundRecord(
            round=new.round,
            loss=loss[t],
            update_norm=norms[t],
            divergence=spread[t],
            change=change[t],
            sites=tuple(trial.sites[n].name for n in one.numbers if n not in one.dropped),
            dropped=tuple(trial.sites[n].name for n in one.numbers if n in one.dropped),
            bytes_down=0 if free else down * len(one.numbers),
            bytes_up=0 if free else up * shares.shape[1],
            settings={name: values[t] for name, values in settings.items()},
        )
        for t, (trial, one) in enumerate(zip(trials, rosters, strict=True))
    ]


def _empty_record(trial: Trial, one: Roster, state: StackState) -> RoundRecord:
    down = tree.count_bytes(trial.algorithm.broadcast(_pick(state.server, 0), 0))
    dropped = tuple(trial.sites[n].name for n in one.numbers)
    settings = {name: float(leaf[0]) for name, leaf in state.server.get("settings", {}).items()}
    change = None if trial.algorithm.personal else 0.0
    return RoundRecord(state.round + 1, None, None, None, change, (), dropped, down * len(dropped), 0, settings)


def runs_of_stack(trials: Sequence[Trial], state: StackState) -> list[Run]:
    """Each trial's run, as the reference engine would hold it: views, good until the next round."""
    return [
        Run(
            state.round,
            _pick(state.server, t),
            {
                site.name: Memory(
                    _pick(state.memory, (t, s)),
                    _pick_tree(state.private, (t, s)),
                )
                for s, site in enumerate(trial.sites)
            },
        )
        for t, trial in enumerate(trials)
    ]


def leaves_of_stack(state: StackState) -> tuple[int, Tree]:
    parts = {"server": tree.flatten(state.server), "memory": tree.flatten(state.memory), "private": state.private}
    return state.round, tree.flatten(parts)


def restore_stack(trials: Sequence[Trial], round_number: int, leaves: Tree) -> StackState:
    parts = tree.unflatten(leaves)
    server, memory = (tree.unflatten(parts.get(name, {})) for name in ("server", "memory"))
    return StackState(round_number, server, memory, parts.get("private", {}))


def _sum_of_squares(leaves: Tree, axes: int) -> Tensor:
    """Per position of the first `axes` axes, over all leaves."""
    return torch.stack(
        [leaf.flatten(axes).square().sum(-1) if leaf.dim() > axes else leaf.square() for leaf in leaves.values()]
    ).sum(0)


def _cut(point: Point, part: slice) -> Point:
    def cut(leaf: Tensor) -> Tensor:
        return leaf[part] if leaf.dim() else leaf  # Adam's count of steps is one number for all

    return Point(
        tree.apply(cut, point.params),
        tree.apply(cut, point.private),
        {},
        _map(point.optimiser, cut),
        point.loss[part],
    )


def _map(state: State, function: Callable[[Tensor], Tensor]) -> State:
    return {part: tree.apply(function, leaves) for part, leaves in state.items()}


def _pick(state: State, index: Any) -> State:
    return {part: _pick_tree(leaves, index) for part, leaves in state.items()}


def _pick_tree(leaves: Tree, index: Any) -> Tree:
    return {name: leaf[index] for name, leaf in leaves.items()}


def _stack_trees(trees: Sequence[Tree]) -> Tree:
    return {name: torch.stack([one[name] for one in trees]) for name in trees[0]}


def _stack_states(states: Sequence[State]) -> State:
    return {part: _stack_trees([one[part] for one in states]) for part in states[0]}


STACKED: Engine[StackState] = Engine(start_stack, rounds_of_stack, leaves_of_stack, restore_stack, runs_of_stack)
