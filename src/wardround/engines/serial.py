"""Reference engine: one site after another. Slow, obvious, and what the others are tested against."""

from collections.abc import Iterator, Sequence

from wardround import seeds
from wardround.engines.threads import threads_for, torch_threads
from wardround.local import Outcome, batches, local_train
from wardround.optimisers import optimiser_for
from wardround.rounds import Assignment, Run, Trial


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
