"""Between local training and the intake: what bad sites send in place of their updates, in a simulation."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from wardround.adversaries import View
from wardround.adversaries.of_arm import BadSites
from wardround.core import seeds, tree
from wardround.core.tree import Tree
from wardround.training.intake import weight_of
from wardround.training.local import Outcome
from wardround.training.trial import Assignment, Run, Trial

MODEL = "params"  # the part of an update that is forged
Outcomes = Iterable[tuple[Assignment, Outcome]]


def with_forged(trial: Trial, run: Run, outcomes: Outcomes) -> Outcomes:
    """Outcomes in the order in which they came. Attackers see those of others, so that all are held at once."""
    active = [bad for bad in trial.forgers if run.round >= bad.from_round - 1]
    return _forged(trial, run, active, list(outcomes)) if active else outcomes


def _forged(
    trial: Trial, run: Run, active: Sequence[BadSites], outcomes: Sequence[tuple[Assignment, Outcome]]
) -> Iterator[tuple[Assignment, Outcome]]:
    all_bad = {number for bad in active for number in bad.numbers}
    honest = [outcome.update[MODEL] for assignment, outcome in outcomes if assignment.number not in all_bad]
    for assignment, outcome in outcomes:
        own = next((bad for bad in active if assignment.number in bad.numbers), None)
        if own is None or own.adversary.forge is None:
            yield assignment, outcome
            continue
        attackers = [other.update[MODEL] for worker, other in outcomes if worker.number in own.numbers]
        now = run.shared(trial.algorithm, assignment.number, assignment.started)[MODEL]
        before, kept = run.memories[assignment.site.name].adversary, outcome.memory
        moved = tree.sub(now, before) if before else None
        share = _share(trial, assignment, [worker for worker, _ in outcomes])
        rng = seeds.generator(trial.batch_seed, "forged update", run.round, assignment.site.name)
        forged: Tree = own.adversary.forge(View(outcome.update[MODEL], honest, attackers, share, moved), rng)
        if own.adversary.remembers:
            kept = replace(kept, adversary=now)
        yield assignment, replace(outcome, update={**outcome.update, MODEL: forged}, memory=kept)


def _share(trial: Trial, assignment: Assignment, workers: Sequence[Assignment]) -> float:
    """Of the mean, in its region where there are regions, that the site's update makes up."""
    regions = trial.algorithm.regions
    peers = [
        worker
        for worker in workers
        if regions is None or regions.of_site[worker.number] == regions.of_site[assignment.number]
    ]
    return weight_of(trial, assignment.site) / sum(weight_of(trial, worker.site) for worker in peers)
