"""Models of coalitions put together from the updates of one training of all: nothing trains again.

The model of a coalition is the first one plus its members' updates of every round, weighted among themselves (Song,
Tong and Wei, IEEE Big Data 2019, "one-round" reconstruction). In each round members began with the model of all, so
that their updates are not what they would have been without the others: cheap, and an approximation.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from wardround.core import seeds, tree
from wardround.core.errors import StudyError
from wardround.core.tree import State, Tree
from wardround.engines import serial
from wardround.evaluation.hospitals.shapley import coalitions
from wardround.runs.contribution.worths import Key, Worth, worth_of
from wardround.runs.plan import Plan
from wardround.training.intake import weight_of
from wardround.training.local import Outcome
from wardround.training.rounds import rounds, start
from wardround.training.trial import Assignment, Run, Trial

MODELS = 300  # that are put together, with each seed: all coalitions of up to eight sites
MODEL = "params"


def refuse_irreproducible(trial: Trial) -> None:
    """An algorithm whose next model is not the last plus the mean of updates."""
    first = start(trial)
    shared = trial.algorithm.broadcast(first.server, 0)
    one: State = {MODEL: {name: torch.ones_like(leaf) for name, leaf in first.server.get(MODEL, {}).items()}}
    sums = set(shared) <= {MODEL, "settings"} and trial.algorithm.needs == "mean" and not trial.algorithm.personal
    if sums:
        after = trial.algorithm.aggregate(first.server, one, 1.0)[MODEL]
        sums = all(torch.equal(after[name], leaf + 1) for name, leaf in first.server[MODEL].items())
    if not sums or trial.model.private or any(memory.buffers for memory in first.memories.values()):
        problem = f"the model of {trial.arm} is not the sum of what its sites send"
        remedy = 'Choose an arm with fedavg or fedprox, or write method = "leave-one-out".'
        raise StudyError("contribution: method", problem, remedy)


def reconstructed_worths(plan: Plan, trial: Trial, players: Sequence[str]) -> dict[Key, Worth]:
    """Of one seed."""
    first, moved, last = summed_updates(trial)
    asked = coalitions(len(players), MODELS, seeds.generator(trial.seed, "coalitions"))
    worths: dict[Key, Worth] = {}
    for coalition in asked:
        params = put_together(trial, first, moved, coalition)
        run = replace(last, server={**last.server, MODEL: params})
        worths[trial.seed, coalition] = worth_of(plan, trial, run, players, coalition)
    return worths


def summed_updates(trial: Trial) -> tuple[Tree, list[Tree], Run]:
    """The first model, each site's updates added up over all rounds, and the run at its end."""
    run = start(trial)
    first = run.server[MODEL]
    moved = [tree.zeros_like(first) for _ in trial.sites]

    def listening(trial: Trial, run: Run, work: Sequence[Assignment]) -> Iterator[tuple[Assignment, Outcome]]:
        for assignment, outcome in serial.train_sites(trial, run, work):
            tree.add_into({MODEL: moved[assignment.number]}, {MODEL: outcome.update[MODEL]})
            yield assignment, outcome

    for after, _ in rounds(run, replace(trial, screening=None), listening):
        run = after
    return first, moved, run


def put_together(trial: Trial, first: Tree, moved: Sequence[Tree], coalition: int) -> Tree:
    members = [n for n in range(len(moved)) if coalition >> n & 1]
    weights = [weight_of(trial, trial.sites[n]) for n in members]
    model = first
    for n, weight in zip(members, weights, strict=True):
        model = tree.add(model, tree.scale(moved[n], weight / sum(weights)))
    return model
