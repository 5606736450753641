"""One round, as data in and data out. Engines differ only in how `train_sites` happens."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from wardround import seeds, tree
from wardround.algorithms.algorithm import Algorithm, Arrival
from wardround.data.site import Site
from wardround.local import Memory, Outcome
from wardround.models.model import Model
from wardround.study import Training
from wardround.tree import State, Tree


@dataclass(frozen=True)
class Trial:
    """One arm with one seed: all that stays the same from round to round."""

    arm: str
    seed: int
    algorithm: Algorithm
    model: Model
    training: Training
    sites: tuple[Site, ...]  # that train
    scored: tuple[Site, ...]  # whose validation and test rows are predicted; the same sites, unless rows are pooled
    batch_seed: int
    init_seed: int

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if self.training.precision == "float64" else torch.float32

    def trainer_of(self, scored: int) -> int:
        """The number of the training site whose model predicts for a scored site."""
        return 0 if self.algorithm.pools else scored


@dataclass(frozen=True)
class Run:
    """Everything a run is between two rounds. Save it, load it, carry on: the same numbers."""

    round: int
    server: State
    memories: Mapping[str, Memory]


@dataclass(frozen=True)
class Assignment:
    """One site's work in one round."""

    site: Site
    number: int
    epochs: int
    counts: bool  # False: a straggler whose work is dropped


@dataclass(frozen=True)
class RoundRecord:
    """What a round looked like from outside. No value of a patient can be read from it."""

    round: int
    loss: float | None  # mean over the counted sites' batches
    update_norm: float | None  # mean length of the sites' local changes
    divergence: float | None  # root mean square distance of the sites' models from their mean
    change: float | None  # length of the shared model's change; None where sites have models of their own
    sites: tuple[str, ...]  # whose work counted
    dropped: tuple[str, ...]
    bytes_down: int
    bytes_up: int
    settings: Mapping[str, float]  # hyper-parameters that the coordinator holds, such as mu


TrainSites = Callable[[Trial, Run, Sequence[Assignment]], Iterable[tuple[Assignment, Outcome]]]


def first_weights(trial: Trial) -> tuple[Tree, Tree]:
    return trial.model.init(seeds.number(trial.init_seed, "init") >> 1)


def start(trial: Trial, weights: tuple[Tree, Tree] | None = None) -> Run:
    """`weights` are those of `first_weights`, where they are known already."""
    shared, private, buffers = _parts(trial, weights)
    memories = {site.name: Memory(trial.algorithm.init_memory(shared), private, buffers) for site in trial.sites}
    return Run(0, trial.algorithm.init(shared, len(trial.sites)), memories)


def start_apart(trial: Trial) -> Run:
    """The coordinator's part alone: in a deployment memories are at the sites."""
    return Run(0, trial.algorithm.init(_parts(trial)[0], len(trial.sites)), {})


def first_memory(trial: Trial) -> Memory:
    """What a site keeps before its first round."""
    shared, private, buffers = _parts(trial)
    return Memory(trial.algorithm.init_memory(shared), private, buffers)


def _parts(trial: Trial, weights: tuple[Tree, Tree] | None = None) -> tuple[Tree, Tree, Tree]:
    """Shared leaves, private leaves and buffers, in the trial's precision and on its device."""
    params, buffers = first_weights(trial) if weights is None else weights
    device = trial.sites[0].train.x.device
    params = {name: leaf.to(device, trial.dtype) for name, leaf in params.items()}
    buffers = {
        n: leaf.to(device, trial.dtype if leaf.is_floating_point() else leaf.dtype) for n, leaf in buffers.items()
    }
    shared = {name: leaf for name, leaf in params.items() if not trial.model.is_private(name)}
    private = {name: leaf for name, leaf in params.items() if trial.model.is_private(name)}
    return shared, private, buffers


def rounds(run: Run, trial: Trial, train_sites: TrainSites) -> Iterator[tuple[Run, RoundRecord]]:
    """Yield the run after each further round, up to the study's last."""
    while run.round < trial.training.rounds:
        assignments = assign(trial, run.round)
        counted = [assignment for assignment in assignments if assignment.counts]
        intake = Intake(trial.algorithm)
        memories = dict(run.memories)
        for assignment, outcome in train_sites(trial, run, counted):
            intake.add(assignment, outcome)
            # only now: a dropped update leaves the old memory in force
            memories[assignment.site.name] = outcome.memory.settled()
        server = tree.settle(intake.aggregate(run.server, len(trial.sites)))
        down = sum(tree.count_bytes(trial.algorithm.broadcast(run.server, a.number)) for a in assignments)
        record = intake.record(run, server, assignments, down)
        if trial.algorithm.pools:
            record = replace(record, bytes_down=0, bytes_up=0)  # the rows were brought together instead
        run = replace(run, round=run.round + 1, server=server, memories=memories)
        yield run, record


class Intake:
    """Updates as they arrive, in site order. Holds one sum, or each update where the algorithm needs them."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self.arrivals: list[Arrival] = []
        self.sum: State | None = None
        self.moved: Tree = {}
        self.weight = self.loss = self.norm = self.spread = 0.0
        self.names: list[str] = []
        self.bytes = 0

    @property
    def count(self) -> int:
        return len(self.names)

    def add(self, assignment: Assignment, outcome: Outcome) -> None:
        weight = float(len(assignment.site.train)) if self.algorithm.weighting == "samples" else 1.0
        if self.algorithm.needs == "each":
            self.arrivals.append(Arrival(assignment.number, weight, outcome.update))
        else:
            weighted = tree.scale_state(outcome.update, weight)
            self.sum = weighted if self.sum is None else tree.add_into(self.sum, weighted)
        self.weight += weight
        self.loss += weight * float(outcome.loss)
        self.norm += weight * outcome.length
        self._spread(outcome.moved, weight)
        self.names.append(assignment.site.name)
        self.bytes += tree.count_bytes(outcome.update)

    def _spread(self, moved: Tree | None, weight: float) -> None:
        """Welford's running mean and spread: no update has to be kept, and nothing cancels."""
        if moved is None:
            self.spread = float("nan")
            return
        part = weight / self.weight
        if not self.moved:
            self.moved = tree.clone(moved)
            return
        for name, mean in self.moved.items():
            away = moved[name] - mean
            self.spread += weight * (1 - part) * float(tree.squared_norm({name: away}))
            mean.add_(away, alpha=part)

    def aggregate(self, server: State, sites: int) -> State:
        if not self.count:
            return server
        if self.algorithm.aggregate_each is not None:
            return self.algorithm.aggregate_each(server, self.arrivals)
        mean = tree.scale_state(self.sum or {}, 1 / self.weight)
        return self.algorithm.aggregate(server, mean, self.count / sites)

    def record(self, run: Run, server: State, assignments: Sequence[Assignment], down: int) -> RoundRecord:
        return RoundRecord(
            round=run.round + 1,
            loss=self.loss / self.weight if self.count else None,
            update_norm=self.norm / self.weight if self.count else None,
            divergence=max(self.spread / self.weight, 0.0) ** 0.5 if self.count and self.spread >= 0 else None,
            change=None if self.algorithm.personal else _distance(run.server["params"], server["params"]),
            sites=tuple(self.names),
            dropped=tuple(a.site.name for a in assignments if a.site.name not in self.names),
            bytes_down=down,
            bytes_up=self.bytes,
            settings={name: float(leaf) for name, leaf in server.get("settings", {}).items()},
        )


@dataclass(frozen=True)
class Roster:
    """Which sites work in a round, by number, and how much."""

    numbers: tuple[int, ...]
    epochs: Mapping[int, int]
    dropped: frozenset[int]  # stragglers whose work does not count


def roster(training: Training, sites: int, seed: int, round_number: int) -> Roster:
    """Depends on (seed, round) only, so that every arm sees the same draw."""
    wanted = max(1, round(training.share * sites))
    chosen = list(range(sites))
    if wanted < sites:
        rng = seeds.generator(seed, "participation", round_number)
        chosen = sorted(rng.choice(sites, size=wanted, replace=False).tolist())
    epochs = dict.fromkeys(chosen, training.local_epochs)
    slow: list[int] = []
    if training.stragglers is not None:
        rng = seeds.generator(seed, "stragglers", round_number)
        slow = rng.choice(chosen, size=round(training.stragglers.share * wanted), replace=False).tolist()
        # x epochs, uniform between 1 and E, as in the FedProx paper
        epochs |= {number: int(rng.integers(1, training.local_epochs + 1)) for number in slow}
    drop = training.stragglers is not None and training.stragglers.policy == "drop"
    return Roster(tuple(chosen), epochs, frozenset(slow) if drop else frozenset())


def assign(trial: Trial, round_number: int) -> list[Assignment]:
    """The round's work, site by site."""
    drawn = roster(trial.training, len(trial.sites), trial.batch_seed, round_number)
    return [Assignment(trial.sites[n], n, drawn.epochs[n], n not in drawn.dropped) for n in drawn.numbers]


def site_model(trial: Trial, run: Run, trainer: int) -> tuple[Tree, Tree]:
    """The parameters and buffers with which a site predicts now."""
    memory = run.memories[trial.sites[trainer].name]
    shared = trial.algorithm.broadcast(run.server, trainer)
    return {**trial.algorithm.begin(shared, memory.algorithm), **memory.private}, memory.buffers


def _distance(before: Tree, after: Tree) -> float:
    return float(tree.squared_norm(tree.sub(after, before)).sqrt())
