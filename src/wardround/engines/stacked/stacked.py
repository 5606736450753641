"""Fast engine: the sites of many trials as one tensor program, along leading axes.

Trials of a stack have the same algorithm, model shape and training; they differ in seed, data, learning rate and the
values of the settings that are leaves of the server's state. The round is that of `training.rounds`, for all trials at
once; the local loop and the algorithm's functions are the same code.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from wardround.algorithms.algorithm import Algorithm, Arrival, Work
from wardround.algorithms.hierarchical import active_regions, as_merged
from wardround.algorithms.regions import Regions
from wardround.core import tree
from wardround.core.threads import torch_threads
from wardround.core.tree import State, Tree
from wardround.engines.engine import Engine
from wardround.engines.stacked.crew import Crew, crew_of, rosters_of, with_time, work_of
from wardround.engines.stacked.lanes import LaneBatch, LaneBatches, LaneOrder, RowPool
from wardround.models.model import Gradient
from wardround.training.intake import with_traffic
from wardround.training.local import Memory, Point, descend
from wardround.training.optimisers import optimiser_for
from wardround.training.round_record import RoundRecord
from wardround.training.rounds import first_weights, start
from wardround.training.schedule import Roster
from wardround.training.trial import Run, Trial


@dataclass(frozen=True)
class StackState:
    """`server` leaves are (trials, ...), `memory` and `private` leaves (trials, sites, ...).

    The next round writes into `memory` and `private`: copy them to keep an older state.
    """

    round: int
    server: State
    memory: State
    private: Tree
    earlier: Mapping[int, State] = field(default_factory=dict)  # what sites were sent that still work, by round


def start_stack(trials: Sequence[Trial]) -> StackState:
    # arms and seeds mostly begin with the same weights
    alike = {_first_weights_key(trial): trial for trial in trials}
    weights = {key: first_weights(trial) for key, trial in alike.items()}
    runs = [start(trial, weights[_first_weights_key(trial)]) for trial in trials]
    memories = [[run.memories[site.name] for site in trial.sites] for run, trial in zip(runs, trials, strict=True)]
    return StackState(
        0,
        _stack_states([run.server for run in runs]),
        _stack_states([_stack_states([memory.algorithm for memory in row]) for row in memories]),
        _stack_trees([_stack_trees([memory.private for memory in row]) for row in memories]),
    )


def _first_weights_key(trial: Trial) -> tuple[int, int, int]:
    return id(trial.model), trial.init_seed, id(trial.starting)


def rounds_of_stack(trials: Sequence[Trial], state: StackState) -> Iterator[tuple[StackState, list[RoundRecord]]]:
    pool = RowPool([site.train for trial in trials for site in trial.sites])
    sizes = [[len(site.train) for site in trial.sites] for trial in trials]
    crew: Crew | None = None
    while state.round < trials[0].training.rounds:
        # without autograd's bookkeeping where nothing is differentiated: a tenth of a small round
        with torch_threads(1), torch.inference_mode(trials[0].model.closed_gradient is not None):
            rosters = rosters_of(trials, state.round)
            if crew is None or crew.work != work_of(trials, rosters, state.round):
                crew = crew_of(trials, sizes, rosters, state.round)
            state, records = _round(trials, state, pool, crew, rosters)
        yield state, records


def _round(
    trials: Sequence[Trial], state: StackState, pool: RowPool, crew: Crew, rosters: Sequence[Roster]
) -> tuple[StackState, list[RoundRecord]]:
    first = trials[0]
    algorithm = first.algorithm
    if not crew.weights.numel():
        nothing = [_empty_record(t, trial, state, crew) for t, trial in enumerate(trials)]
        server = state.server
        if algorithm.regions is not None:
            server = aggregate_regions(algorithm, algorithm.regions, server, {}, crew.weights, (), state.round)
            nothing = with_regions(nothing, algorithm.regions, server)
        return StackState(state.round + 1, server, state.memory, state.private), nothing
    lane = (crew.trial_of, crew.site_of)
    shared = _sent(first, state, crew)
    memory, private = _pick(state.memory, lane), _pick_tree(state.private, lane)
    begin = algorithm.begin(shared, memory)
    lr = crew.rates(trials, state.round)
    end, losses, work = _local_work(first, crew.lanes, pool, begin, private, shared, memory, state.round, lr)
    update, kept = algorithm.finish(end.params, shared, memory, work)
    moved, private_end = tree.sub(end.params, begin), end.private
    if algorithm.own is not None:
        own = replace(first, algorithm=algorithm.own)
        own_begin = algorithm.own.begin(shared, memory)
        own_end, _, _ = _local_work(own, crew.lanes, pool, own_begin, private, shared, memory, state.round, lr)
        kept = {**kept, **algorithm.own.finish(own_end.params, shared, memory, work)[1]}
        private_end = own_end.private

    if first.training.mixes_models and crew.agos != (0,):  # how far the sites' models are from the shared one now
        away = tree.sub(shared["params"], _broadcast(first, state.server, *lane)["params"])
        update = {**update, "params": tree.add(update["params"], away)}

    def by_trial(leaf: Tensor) -> Tensor:
        return leaf.index_select(0, crew.back).reshape(*crew.weights.shape, *leaf.shape[1:])

    update = _map(update, by_trial)
    shares = crew.weights / crew.weights.sum(1, keepdim=True)
    server = tree.settle(_aggregate(first, state.server, update, crew, shares, state.round))
    _store(state.memory, kept, *lane)
    _store({"private": state.private}, {"private": private_end}, *lane)
    new = StackState(state.round + 1, server, state.memory, state.private, _earlier(trials, state))
    sizes = tree.count_bytes(shared) // len(losses), tree.count_bytes(update) // len(losses)
    records = _records(trials, crew, state, new, tree.apply(by_trial, moved), by_trial(losses), shares, sizes)
    if first.schedule is not None:
        records = [with_time(*each, sizes[0]) for each in zip(trials, rosters, records, strict=True)]
    return new, with_regions(records, algorithm.regions, server) if algorithm.regions else records


def _sent(first: Trial, state: StackState, crew: Crew) -> State:
    """What each lane was sent when its work began: now, or some rounds ago."""
    if crew.agos == (0,):
        return _broadcast(first, state.server, crew.trial_of, crew.site_of)
    now = first.algorithm.broadcast(state.server, 0)
    models = [state.earlier[state.round - ago] if ago else now for ago in crew.agos]
    return {
        part: {
            name: torch.stack([model[part][name] for model in models])[crew.ago_of, crew.trial_of] for name in leaves
        }
        for part, leaves in now.items()
    }


def _earlier(trials: Sequence[Trial], state: StackState) -> dict[int, State]:
    """As `training.rounds.earlier`, for all trials together."""
    needed = {n for trial in trials if trial.schedule is not None for n in trial.schedule.needed(state.round + 1)}
    models = ((n, state.earlier.get(n)) for n in sorted(needed))
    return {n: trials[0].algorithm.broadcast(state.server, 0) if model is None else model for n, model in models}


def _broadcast(first: Trial, server: State, trial_of: Tensor, site_of: Tensor) -> State:
    """What each lane is sent. One copy per trial serves all its sites, unless sites have models of their own."""
    if first.algorithm.regions is not None:
        return broadcast_regions(first.algorithm, first.algorithm.regions, server, trial_of, site_of)
    if not first.algorithm.personal:
        return _pick(first.algorithm.broadcast(server, 0), trial_of)
    if not any(server.values()):  # the coordinator holds nothing
        return _stack_states([first.algorithm.broadcast({}, site) for site in site_of.tolist()])
    to_each: Callable[..., State] = torch.vmap(first.algorithm.broadcast)
    return to_each(_pick(server, trial_of), site_of)


def _local_work(
    trial: Trial,
    lanes: LaneOrder,
    pool: RowPool,
    begin: Tree,
    private: Tree,
    shared: State,
    memory: State,
    round_number: int,
    lr: float | Tensor,
) -> tuple[Point, Tensor, Work]:
    """All lanes to their last step. Lanes that are done leave the stack, so that the rest goes on without them."""
    model, optimiser = trial.model, optimiser_for(trial.training)
    batches = LaneBatches(lanes, round_number, pool)

    def gradient(leaves: Tree, buffers: Tree, batch: LaneBatch) -> Gradient:
        grad, loss = model.stacked_gradient(leaves, batch.x, batch.y, batch.share, batch.masks, batch.copies)
        return grad, loss, buffers

    full = {**begin, **private}
    count = len(lanes.steps)
    start_loss = torch.full((count,), float("nan"), dtype=trial.dtype)
    if trial.algorithm.needs_start_loss:
        start_loss = _start_losses(trial, lanes, pool, full)
    point = Point(begin, private, {}, optimiser.init(full), torch.zeros(count, dtype=trial.dtype))
    done: list[Point] = []
    for first, last, at_work in lanes.segments():
        if at_work < len(point.loss):
            done.append(_cut(point, slice(at_work, None)))
            point = _cut(point, slice(0, at_work))
        head = slice(0, at_work)
        steps = batches.between(first, last, model, trial.dtype)
        point = descend(
            trial.algorithm,
            optimiser,
            gradient,
            point,
            steps,
            _pick(shared, head),
            _pick(memory, head),
            lr[head] if isinstance(lr, Tensor) else lr,
        )
    points = [point, *reversed(done)]
    step_counts = torch.from_numpy(lanes.steps).to(trial.dtype)
    weight = {number: optimiser.gradient_weight(number) for number in set(lanes.steps.tolist())}
    work = Work(
        steps=step_counts,
        lr_sum=lr * step_counts,
        gradient_weight=torch.tensor([weight[number] for number in lanes.steps.tolist()], dtype=trial.dtype),
        start_loss=start_loss,
    )
    params, private = (
        {name: torch.cat([getattr(ended, part)[name] for ended in points]) for name in getattr(point, part)}
        for part in ("params", "private")
    )
    losses = torch.cat([ended.loss for ended in points]) / step_counts
    return Point(params, private, {}, {}, losses), losses, work


def _start_losses(trial: Trial, lanes: LaneOrder, pool: RowPool, leaves: Tree) -> Tensor:
    """Mean loss on each lane's training rows, of the model that it begins with."""
    losses = []
    with torch.no_grad():
        for lane, place in enumerate(lanes.of_lane.tolist()):
            x, y = pool.take(torch.from_numpy(pool.of(lanes.distinct[place].rows)), trial.dtype)
            losses.append(trial.model.loss(_pick_tree(leaves, lane), {}, x, y, None)[0])
    return torch.stack(losses)


def _aggregate(first: Trial, server: State, update: State, crew: Crew, shares: Tensor, round_number: int) -> State:
    algorithm = first.algorithm
    if algorithm.regions is not None:
        return aggregate_regions(algorithm, algorithm.regions, server, update, crew.weights, crew.counted, round_number)
    if algorithm.aggregate_each is None:
        worth = shares if crew.factors is None else shares * crew.factors
        mean = _map(update, lambda leaf: (leaf * tree.align(worth, leaf)).sum(1))
        return algorithm.aggregate(server, mean, shares.shape[1] / len(first.sites))
    weights, updates = crew.weights.tolist(), [_unstack(of_trial) for of_trial in _unstack(update)]
    servers = []
    for t, (old, numbers) in enumerate(zip(_unstack(server), crew.counted, strict=True)):
        arrivals = [Arrival(n, weights[t][k], updates[t][k]) for k, n in enumerate(numbers)]
        servers.append(algorithm.aggregate_each(old, arrivals))
    return _stack_states(servers)


def _store(memory: State, new: State, trial_of: Tensor, site_of: Tensor) -> None:
    """Only lanes that counted are here, so that a dropped update leaves its site's old memory in force."""
    for part, leaves in memory.items():
        for name, leaf in leaves.items():
            leaf[trial_of, site_of] = new[part][name]


def _records(
    trials: Sequence[Trial],
    crew: Crew,
    old: StackState,
    new: StackState,
    moved: Tree,
    losses: Tensor,
    shares: Tensor,
    sizes: tuple[int, int],  # of what each site receives and sends, in bytes
) -> list[RoundRecord]:
    algorithm = trials[0].algorithm
    mean = tree.apply(lambda leaf: (leaf * tree.align(shares, leaf)).sum(1, keepdim=True), moved)
    spread = (tree.sum_of_squares(tree.sub(moved, mean), 2) * shares).sum(1).sqrt().tolist()
    norms = (tree.sum_of_squares(moved, 2).sqrt() * shares).sum(1).tolist()
    loss = (losses * shares).sum(1).tolist()
    change: list[float | None] = [None] * len(trials)
    if not algorithm.personal:
        change = tree.sum_of_squares(tree.sub(new.server["params"], old.server["params"]), 1).sqrt().tolist()
    settings = {name: leaf.tolist() for name, leaf in new.server.get("settings", {}).items()}
    down, up = (0, 0) if algorithm.pools else sizes  # pooled: the rows were brought together instead
    alike = RoundRecord("", 0, new.round, bytes_up=up * shares.shape[1])
    return [
        alike.but(
            arm=trial.arm,
            seed=trial.seed,
            loss=loss[t],
            update_norm=norms[t],
            divergence=spread[t],
            change=change[t],
            sites=crew.names[t][0],
            dropped=crew.names[t][1],
            bytes_down=down * sum(map(len, crew.names[t])),
            settings={name: values[t] for name, values in settings.items()},
        )
        for t, trial in enumerate(trials)
    ]


def _empty_record(t: int, trial: Trial, state: StackState, crew: Crew) -> RoundRecord:
    """Of a round in which everyone was dropped."""
    server, dropped = _pick(state.server, t), crew.names[t][1]
    down = tree.count_bytes(trial.algorithm.broadcast(server, 0)) * len(dropped)
    settings = {name: float(leaf) for name, leaf in server.get("settings", {}).items()}
    change = None if trial.algorithm.personal else 0.0
    return RoundRecord(
        arm=trial.arm,
        seed=trial.seed,
        round=state.round + 1,
        change=change,
        dropped=dropped,
        bytes_down=down,
        settings=settings,
    )


def runs_of_stack(trials: Sequence[Trial], state: StackState) -> list[Run]:
    """Each trial's run, as the reference engine would hold it: views, valid until the next round."""

    def memory(t: int, s: int) -> Memory:
        return Memory(_pick(state.memory, (t, s)), _pick_tree(state.private, (t, s)))

    return [
        Run(state.round, _pick(state.server, t), {site.name: memory(t, s) for s, site in enumerate(trial.sites)})
        for t, trial in enumerate(trials)
    ]


def models_of_stack(trials: Sequence[Trial], state: StackState) -> Tree:
    """The models with which the scored sites predict, one after another: (trials x sites, ...)."""
    trial_of = torch.tensor([t for t, trial in enumerate(trials) for _ in trial.scored])
    site_of = torch.tensor([trial.trainer_of(number) for trial in trials for number in range(len(trial.scored))])
    shared, lane = _broadcast(trials[0], as_merged(state.server), trial_of, site_of), (trial_of, site_of)
    return {**trials[0].algorithm.model_at(shared, _pick(state.memory, lane)), **_pick_tree(state.private, lane)}


def leaves_of_stack(state: StackState) -> tuple[int, Tree]:
    parts = {"server": tree.flatten(state.server), "memory": tree.flatten(state.memory), "private": state.private}
    earlier = {
        f"{n}/{name}": leaf for n, shared in state.earlier.items() for name, leaf in tree.flatten(shared).items()
    }
    return state.round, tree.flatten({**parts, "earlier": earlier})


def restore_stack(trials: Sequence[Trial], round_number: int, leaves: Tree) -> StackState:
    parts = tree.unflatten(leaves)
    server, memory = (tree.unflatten(parts.get(name, {})) for name in ("server", "memory"))
    earlier = {int(n): tree.unflatten(shared) for n, shared in tree.unflatten(parts.get("earlier", {})).items()}
    return StackState(round_number, server, memory, parts.get("private", {}), earlier)


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


def _unstack(state: State) -> list[State]:
    """The states along the leading axis, one by one; much quicker than to pick each. None where there are no leaves."""
    names = [(part, name) for part, leaves in state.items() for name in leaves]
    columns = zip(*(state[part][name].unbind(0) for part, name in names), strict=True)
    states: list[State] = []
    for leaves in columns:
        states.append({part: {} for part in state})
        for (part, name), leaf in zip(names, leaves, strict=True):
            states[-1][part][name] = leaf
    return states


def _pick_tree(leaves: Tree, index: Any) -> Tree:
    return {name: leaf[index] for name, leaf in leaves.items()}


def _stack_trees(trees: Sequence[Tree]) -> Tree:
    return {name: torch.stack([leaves[name] for leaves in trees]) for name in trees[0]}


def _stack_states(states: Sequence[State]) -> State:
    return {part: _stack_trees([state[part] for state in states]) for part in states[0]}


STACKED: Engine[StackState] = Engine(
    start_stack, rounds_of_stack, leaves_of_stack, restore_stack, runs_of_stack, _pick_tree, _stack_trees
)


def broadcast_regions(
    algorithm: Algorithm, regions: Regions, server: State, trial_of: Tensor, site_of: Tensor
) -> State:
    """What each lane receives, from one broadcast to each region."""
    shared = [algorithm.broadcast(server, regions.of_site.index(number)) for number in range(len(regions.names))]
    region_of = torch.tensor(regions.of_site)[site_of]
    return {
        part: {name: torch.stack([state[part][name] for state in shared])[region_of, trial_of] for name in leaves}
        for part, leaves in shared[0].items()
    }


def aggregate_regions(
    algorithm: Algorithm,
    regions: Regions,
    server: State,
    update: State,
    weights: Tensor,
    counted: Sequence[Sequence[int]],
    round_number: int,
) -> State:
    """`update` and `weights` are (trials, counted sites, ...). Where nobody counted, regions may still be averaged."""
    if algorithm.aggregate_regions is None:
        raise ValueError("an algorithm with regions aggregates them")
    if not weights.numel():
        nothing = [None] * len(regions.names)
        return algorithm.aggregate_regions(server, nothing, [0.0] * len(nothing), round_number)
    if algorithm.aggregate_each is not None:
        return _aggregate_updates_of_regions(algorithm, regions, server, update, weights, counted, round_number)
    region_of = torch.tensor([[regions.of_site[site] for site in sites] for sites in counted])
    inside = [region_of == number for number in range(len(regions.names))]
    totals = [(weights * own).sum(1) for own in inside]

    def means() -> Iterator[State]:
        for own, total in zip(inside, totals, strict=True):
            shares = weights * own / torch.where(total > 0, total, torch.ones_like(total))[:, None]
            yield {part: tree.apply(_mean_of(shares, own), leaves) for part, leaves in update.items()}

    return algorithm.aggregate_regions(server, means(), totals, round_number)


def _aggregate_updates_of_regions(
    algorithm: Algorithm,
    regions: Regions,
    server: State,
    update: State,
    weights: Tensor,
    counted: Sequence[Sequence[int]],
    round_number: int,
) -> State:
    """Trial by trial, as an algorithm that needs each update always does."""
    if algorithm.aggregate_regions is None:
        raise ValueError("an algorithm with regions aggregates them")
    servers = []
    for t, (old, of_trial) in enumerate(zip(_unstack(server), _unstack(update), strict=True)):
        updates = _unstack(of_trial)
        came: list[list[Arrival]] = [[] for _ in regions.names]
        for k, number in enumerate(counted[t]):
            came[regions.of_site[number]].append(Arrival(number, float(weights[t, k]), updates[k]))
        totals = [sum(arrival.weight for arrival in of_region) for of_region in came]
        servers.append(algorithm.aggregate_regions(old, [part or None for part in came], totals, round_number))
    return _stack_states(servers)


def _mean_of(shares: Tensor, inside: Tensor) -> Callable[[Tensor], Tensor]:
    def mean(leaf: Tensor) -> Tensor:
        # not by a share of 0 alone: another region's model may have diverged, and 0 times infinity is no number
        weighted = leaf * tree.align(shares, leaf)
        return torch.where(tree.align(inside, leaf), weighted, torch.zeros_like(weighted)).sum(1)

    return mean


def with_regions(records: Sequence[RoundRecord], regions: Regions, server: State) -> list[RoundRecord]:
    """The records with what regions cost; `server` is the state after the round."""
    size = tree.count_bytes({"params": server["params"]}) // len(records)
    active = active_regions(server).tolist()
    return [with_traffic(record, regions, count, size) for record, count in zip(records, active, strict=True)]
