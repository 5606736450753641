"""One round, from state to state. Engines differ only in how they run `train_sites`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import torch

from wardround.algorithms.hierarchical import as_merged, as_regional
from wardround.core import seeds, tree
from wardround.core.tree import State, Tree
from wardround.data.site import Site
from wardround.privacy.dp.noise import Stream
from wardround.study.schema import Compression, Privacy
from wardround.training.compression import first_residual
from wardround.training.forging import with_forged
from wardround.training.intake import Intake
from wardround.training.local import Memory, Outcome
from wardround.training.round_record import RoundRecord
from wardround.training.screen import assigned, screened
from wardround.training.trial import Assignment, Run, Trial

TrainSites = Callable[[Trial, Run, Sequence[Assignment]], Iterable[tuple[Assignment, Outcome]]]


def first_weights(trial: Trial) -> tuple[Tree, Tree]:
    params, buffers = trial.model.init(_init_seed(trial))
    return params if trial.starting is None else trial.starting.first(params), buffers


def _init_seed(trial: Trial) -> int:
    return seeds.number(trial.init_seed, "init") >> 1


def start(trial: Trial, weights: tuple[Tree, Tree] | None = None) -> Run:
    """`weights` are those of `first_weights`, where they are known already."""
    parts = _parts(trial, weights)
    memories = {site.name: _memory(trial, site, *parts) for site in trial.sites}
    return Run(0, trial.algorithm.init(parts[0], len(trial.sites)), memories)


def start_apart(trial: Trial) -> Run:
    """The coordinator's part only: in a deployment memories are at the sites."""
    return Run(0, trial.algorithm.init(_parts(trial)[0], len(trial.sites)), {})


def first_memory(trial: Trial, site: Site) -> Memory:
    """What a site keeps before its first round."""
    return _memory(trial, site, *_parts(trial))


def _memory(trial: Trial, site: Site, shared: Tree, private: Tree, buffers: Tree) -> Memory:
    if trial.model.at_site is not None:  # leaves whose shapes depend on the site's columns
        width = site.train.x.shape[1]
        names = [f"column {number}" for number in range(width)] if site.recipe is None else site.recipe.names
        own = trial.model.at_site(_init_seed(trial), site.name, names)
        private = {**private, **{name: leaf.to(site.train.x.device, trial.dtype) for name, leaf in own.items()}}
    if trial.starting is not None:
        private, buffers = trial.starting.kept_at(site.name, private, buffers)
    example = trial.privacy.example
    protection: Tree = {}
    if example is not None and example.adaptive is not None:  # only a clip that moves is remembered
        protection = {"clip": torch.tensor(example.longest, dtype=trial.dtype)}
    return Memory(trial.algorithm.init_memory(shared), private, buffers, protection, first_residual(trial, shared))


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
        assignments = assigned(trial, run)
        intake = Intake(trial, run, assignments)
        counted = [assignment for assignment in assignments if assignment.counts]
        regions = trial.algorithm.regions
        parts = regions.of_site if regions is not None else trial.groups
        if parts and trial.privacy.secure_sum is not None:  # each region, or group, has a sum of its own
            counted.sort(key=lambda assignment: parts[assignment.number])
        intake.take(with_forged(trial, run, train_sites(trial, run, counted)))
        if trial.root is not None:
            intake.root = root_update(trial, trial.root, run, train_sites)
        run, record = close(run, trial, assignments, intake)
        yield run, record


def root_update(trial: Trial, root: Site, run: Run, train_sites: TrainSites) -> State:
    """What the coordinator makes of its own rows, by the same work as a site's. It remembers nothing of it."""
    alone = replace(
        trial, sites=(root,), scored=(), privacy=Privacy(), compression=Compression(), groups=(), root=None, bound=None,
        forgers=(), turned={},
    )  # fmt: skip
    there = Run(run.round, run.server, {root.name: first_memory(alone, root)})
    [(_, outcome)] = train_sites(alone, there, [Assignment(root, 0, trial.training.local_epochs, True, run.round)])
    return outcome.update


class Taken(Protocol):
    """What a round has taken in: updates (`Intake`), or what stands for them where others have added them up."""

    @property
    def memories(self) -> Mapping[str, Memory]: ...

    def aggregate(self, server: State, noise: Stream | None = None) -> State:
        """The coordinator's next state."""

    def record(self, server: State, down: int) -> RoundRecord:
        """`down` are the bytes of what the coordinator broadcast."""


def close(
    run: Run, trial: Trial, assignments: Sequence[Assignment], intake: Taken, noise: Stream | None = None
) -> tuple[Run, RoundRecord]:
    """The run after a round, from what has been taken in. `noise` is a deployment's, for whole sites."""
    server = tree.settle(intake.aggregate(run.server, noise))
    sent = trial.roster(run.round).sent
    numbers = [a.number for a in assignments] if sent is None else sent
    down = sum(tree.count_bytes(trial.algorithm.broadcast(run.server, number)) for number in numbers)
    record = intake.record(server, down)
    memories = {**run.memories, **intake.memories}
    after = replace(run, round=run.round + 1, server=server, memories=memories, earlier=earlier(run, trial))
    return screened(trial, run, after, record, intake.seen) if isinstance(intake, Intake) else (after, record)


def earlier(run: Run, trial: Trial) -> dict[int, State]:
    """Of the models so far, those with which work began that is yet to count after this round."""
    needed = [] if trial.schedule is None else trial.schedule.needed(run.round + 1)
    return {number: run.shared(trial.algorithm, 0, number) for number in needed}


def site_model(trial: Trial, run: Run, trainer: int, regional: bool = False) -> tuple[Tree, Tree]:
    """The parameters and buffers with which a site predicts now.

    Where sites form regions, that is the model of all as it was last averaged; `regional` asks for the region's own, as
    it was before that.
    """
    memory = run.memories[trial.sites[trainer].name]
    shared = trial.algorithm.broadcast(as_regional(run.server) if regional else as_merged(run.server), trainer)
    return {**trial.algorithm.model_at(shared, memory.algorithm), **memory.private}, memory.buffers
