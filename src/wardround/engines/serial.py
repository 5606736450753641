"""Reference engine: one site after another. Slow, obvious, and what the others are tested against."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from wardround.algorithms.algorithm import Algorithm
from wardround.core import seeds, tree
from wardround.core.threads import torch_threads
from wardround.core.tree import State, Tree
from wardround.data.augment import augmenter
from wardround.data.site import Site
from wardround.engines.engine import Engine
from wardround.privacy.dp.example_dp import PrivateGradient
from wardround.privacy.dp.protection import Streams, clipped_update, generator_from, private_order, seeded_streams
from wardround.tasks import row_odds
from wardround.training.compression import compress_outcome
from wardround.training.local import Memory, Order, Outcome, batches, local_train
from wardround.training.optimisers import optimiser_for
from wardround.training.round_record import RoundRecord
from wardround.training.rounds import rounds, start
from wardround.training.row_mixing import mixer
from wardround.training.trial import Assignment, Run, Trial


def train_sites(trial: Trial, run: Run, assignments: Sequence[Assignment]) -> Iterator[tuple[Assignment, Outcome]]:
    if not trial.light and len(assignments) > 1 and not trial.sites[0].train.x.is_cuda:
        yield from _in_threads(trial, run, assignments, torch.get_num_threads())
        return
    threads = 1 if trial.light else torch.get_num_threads()
    for assignment in assignments:
        with torch_threads(threads):
            outcome = train_site(trial, run, assignment)
        yield assignment, outcome


def _in_threads(
    trial: Trial, run: Run, assignments: Sequence[Assignment], workers: int
) -> Iterator[tuple[Assignment, Outcome]]:
    """A large model's sites, each on one thread.

    Two threads on two sites are faster than two threads on one site, and no number depends on how many there are.
    Results come in site order; at most one per worker is waiting.
    """
    waiting: deque[tuple[Assignment, Future[Outcome]]] = deque()
    for assignment in assignments:
        waiting.append((assignment, _pool(workers).submit(train_site, trial, run, assignment)))
        if len(waiting) >= workers:
            first, outcome = waiting.popleft()
            yield first, outcome.result()
    for first, outcome in waiting:
        yield first, outcome.result()


@lru_cache(maxsize=1)
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, "site", initializer=torch.set_num_threads, initargs=(1,))


def train_site(trial: Trial, run: Run, assignment: Assignment) -> Outcome:
    site, started = assignment.site, assignment.started
    shared = run.shared(trial.algorithm, assignment.number, started)
    order = order_of(trial, site, started, assignment.epochs)
    return work(trial, site, started, order, shared, run.memories[site.name])


def order_of(trial: Trial, site: Site, round_number: int, epochs: int, streams: Streams | None = None) -> list[Tensor]:
    """Row numbers of each step. `streams` are a site's secret ones; a simulation has them from its seed."""
    if trial.privacy.example is not None:
        streams = streams or seeded_streams(trial.batch_seed, round_number, site.name)
        return private_order(site.train, trial.training.batch_size, epochs, streams)
    rng = seeds.generator(trial.batch_seed, "batches", round_number, site.name)
    strength = trial.training.oversample
    odds = row_odds(trial.model.task, site.train.labels.cpu(), strength) if strength else None
    return batches(len(site.train), epochs, trial.training.batch_size, rng, odds)


def work(
    trial: Trial,
    site: Site,
    round_number: int,
    order: Order,
    shared: State,
    memory: Memory,
    streams: Streams | None = None,
) -> Outcome:
    """One site's local work in one round, wherever it happens. `streams` are as `order_of` takes them."""
    outcome = _trained(trial, trial.algorithm, site, round_number, noted := Noted(order), shared, memory, streams)
    if trial.algorithm.own is not None:
        own = _trained(trial, trial.algorithm.own, site, round_number, noted.batches, shared, memory, streams)
        outcome = replace(outcome, memory=outcome.memory.with_own(own.memory))
    if trial.compression.kind != "none":
        return compress_outcome(trial, outcome, memory.residual, round_number, site.name)
    if trial.bound is not None:
        others = frozenset(outcome.update) - {"params"}
        outcome = replace(outcome, update=clipped_update(outcome.update, others, trial.bound))
    if trial.privacy.site is None:
        return outcome
    return replace(outcome, update=clipped_update(outcome.update, trial.algorithm.data_free, trial.privacy.site.clip))


class Noted:
    """The batches of a round, and which of them were used: time may be over before the last."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.batches: list[Tensor] = []

    def __iter__(self) -> Iterator[Tensor]:
        for batch in self.order:
            self.batches.append(batch)
            yield batch

    def __len__(self) -> int:
        return len(self.order)


def _trained(
    trial: Trial,
    algorithm: Algorithm,
    site: Site,
    round_number: int,
    order: Order,
    shared: State,
    memory: Memory,
    streams: Streams | None,
) -> Outcome:
    """With the same draws, whichever algorithm asks."""
    rule = trial.rule(trial.sites_in(round_number).index(site), round_number)
    secret = streams or seeded_streams(trial.batch_seed, round_number, site.name)

    def draws(purpose: str) -> np.random.Generator:
        if rule is not None:
            return generator_from(secret(purpose))
        return seeds.generator(trial.batch_seed, purpose, round_number, site.name)

    private = None
    if rule is not None:
        clip = float(memory.protection["clip"]) if memory.protection else None
        private = PrivateGradient(trial.model, rule, secret("noise"), clip)
    balanced = trial.training.class_weights == "balanced"
    weights = trial.model.task.class_weights(site.train.labels) if balanced else None
    return local_train(
        algorithm,
        trial.model,
        optimiser_for(trial.training),
        site.train,
        order,
        shared,
        memory,
        trial.training.lr_in(round_number),
        draws("dropout"),
        None if weights is None else weights.to(trial.dtype),
        augmenter(trial.training.augment, draws("augment")),
        private,
        mixer(trial.training.mix, site, draws("mix")),
    )


def rounds_of_run(trials: Sequence[Trial], run: Run) -> Iterator[tuple[Run, list[RoundRecord]]]:
    for after, record in rounds(run, trials[0], train_sites):
        yield after, [record]


def leaves_of_run(run: Run) -> tuple[int, Tree]:
    """Everything a run holds, as one flat tree: the server's parts, then what each site keeps."""
    leaves = {f"server/{name}": leaf for name, leaf in tree.flatten(run.server).items()}
    for site, memory in run.memories.items():
        leaves |= {f"memory/{site}/{name}": leaf for name, leaf in memory.leaves().items()}
    leaves |= {f"screening/{name}": leaf for name, leaf in run.screening.items()}
    for number, shared in run.earlier.items():
        leaves |= {f"earlier/{number}/{name}": leaf for name, leaf in tree.flatten(shared).items()}
    return run.round, leaves


def restore_run(trials: Sequence[Trial], round_number: int, leaves: Tree) -> Run:
    parts = tree.unflatten(leaves)
    by_site = tree.unflatten(parts.get("memory", {}))
    memories = {site.name: Memory.of(by_site.get(site.name, {})) for site in trials[0].sites}
    server = tree.unflatten(parts.get("server", {}))
    earlier = {int(n): tree.unflatten(shared) for n, shared in tree.unflatten(parts.get("earlier", {})).items()}
    return Run(round_number, server, memories, earlier, screening=parts.get("screening", {}))


SERIAL: Engine[Run] = Engine(
    lambda trials: start(trials[0]), rounds_of_run, leaves_of_run, restore_run, lambda trials, run: [run]
)
