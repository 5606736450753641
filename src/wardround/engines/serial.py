"""Reference engine: one site after another. Slow, obvious, and what the others are tested against."""

from collections.abc import Iterator, Sequence

from wardround import seeds, tree
from wardround.engines.engine import Engine
from wardround.engines.threads import threads_for, torch_threads
from wardround.local import Memory, Outcome, batches, local_train
from wardround.optimisers import optimiser_for
from wardround.rounds import Assignment, RoundRecord, Run, Trial, rounds, start
from wardround.tree import Tree


def train_sites(trial: Trial, run: Run, assignments: Sequence[Assignment]) -> Iterator[tuple[Assignment, Outcome]]:
    threads = threads_for(run)
    for assignment in assignments:
        with torch_threads(threads):
            outcome = train_site(trial, run, assignment)
        yield assignment, outcome


def train_site(trial: Trial, run: Run, assignment: Assignment) -> Outcome:
    site, training = assignment.site, trial.training
    key = (run.round, site.name)
    order = batches(
        len(site.train), assignment.epochs, training.batch_size, seeds.generator(trial.batch_seed, "batches", *key)
    )
    return local_train(
        trial.algorithm,
        trial.model,
        optimiser_for(training),
        site.train,
        order,
        trial.algorithm.broadcast(run.server, assignment.number),
        run.memories[site.name],
        training.lr_in(run.round),
        seeds.generator(trial.batch_seed, "dropout", *key),
    )


def start_one(trials: Sequence[Trial]) -> Run:
    return start(trials[0])


def rounds_of_one(trials: Sequence[Trial], run: Run) -> Iterator[tuple[Run, list[RoundRecord]]]:
    for after, record in rounds(run, trials[0], train_sites):
        yield after, [record]


def leaves_of_run(run: Run) -> tuple[int, Tree]:
    """Everything a run holds, as one flat tree: the server's parts, then what each site keeps."""
    leaves = {f"server/{name}": leaf for name, leaf in tree.flatten(run.server).items()}
    for site, memory in run.memories.items():
        kept = {"algorithm": tree.flatten(memory.algorithm), "private": memory.private, "buffers": memory.buffers}
        leaves |= {f"memory/{site}/{name}": leaf for name, leaf in tree.flatten(kept).items()}
    return run.round, leaves


def restore_run(trials: Sequence[Trial], round_number: int, leaves: Tree) -> Run:
    parts = tree.unflatten(leaves)
    by_site = {site: tree.unflatten(kept) for site, kept in tree.unflatten(parts.get("memory", {})).items()}
    memories = {}
    for site in trials[0].sites:
        kept = by_site.get(site.name, {})
        algorithm = tree.unflatten(kept.get("algorithm", {}))
        memories[site.name] = Memory(algorithm, kept.get("private", {}), kept.get("buffers", {}))
    return Run(round_number, tree.unflatten(parts.get("server", {})), memories)


def runs_of_one(trials: Sequence[Trial], run: Run) -> list[Run]:
    return [run]


SERIAL: Engine[Run] = Engine(start_one, rounds_of_one, leaves_of_run, restore_run, runs_of_one)
