"""Mistakes in the local loop, the rounds and the optimisers."""

from dataclasses import replace
from inspect import signature
from typing import Any

import torch

from tests.mutants.mutant import Mutant, returns, with_field, with_part
from wardround.core import tree
from wardround.training import intake, local, optimisers, trial
from wardround.training.intake import Intake
from wardround.training.trial import Trial

FACTS = "algorithms/test_facts.py"
REFERENCES = "algorithms/test_against_references.py"
MODELS = "contract/test_models.py"


def _memory_with(**change: Any) -> Any:
    def mistake(original: Any, *args: Any, **kwargs: Any) -> Any:
        before = signature(original).bind(*args, **kwargs).arguments["memory"]
        outcome = original(*args, **kwargs)
        return replace(outcome, memory=replace(outcome.memory, **{name: read(before) for name, read in change.items()}))

    return mistake


def _buffers_sent(original: Any, *args: Any, **kwargs: Any) -> Any:
    outcome = original(*args, **kwargs)
    buffers = outcome.memory.buffers
    return replace(outcome, update={**outcome.update, "buffers": buffers} if buffers else outcome.update)


def _roster_of_the_arm(original: Any, self: Any, number: int) -> Any:
    return original(replace(self, batch_seed=self.batch_seed + len(self.algorithm.sound_with)), number)


def _damped(original: Any, momentum: float) -> Any:
    optimizer = original(momentum)
    return replace(
        optimizer, step=lambda p, g, s, lr: optimizer.step(p, tree.scale(g, torch.tensor(1 - momentum)), s, lr)
    )


def _without_correction(original: Any, *args: Any, **kwargs: Any) -> Any:
    optimizer = original(*args, **kwargs)

    def step(params: Any, grad: Any, state: Any, lr: float) -> Any:
        after, later = optimizer.step(params, grad, {**state, "steps": {"taken": state["steps"]["taken"] + 1e9}}, lr)
        return after, {**later, "steps": {"taken": state["steps"]["taken"] + 1}}

    return replace(optimizer, step=step)


MUTANTS = (
    Mutant(
        "sites count alike instead of by rows",
        intake.weight_of,
        returns(1.0),
        "FedAvg counts a site by its rows",
        (f"{FACTS}::test_fedavg_counts_a_site_by_its_rows",),
    ),
    Mutant(
        "sites count by the rows that they visited",
        Intake.weight_of,
        lambda original, self, assignment: original(self, assignment) * assignment.epochs,
        "a late site counts by its rows, not by its work",
        (f"{REFERENCES}::test_fedavg",),
    ),
    Mutant(
        "a dropped site's update counts",
        trial.assign,
        lambda original, *args: [replace(assignment, counts=True) for assignment in original(*args)],
        "a dropped site changes neither the server nor its memory",
        (f"{FACTS}::test_a_dropped_site_changes_neither_the_server_nor_its_memory",),
    ),
    Mutant(
        "each arm draws sites of its own",
        Trial.roster,
        _roster_of_the_arm,
        "two arms with one seed see the same rosters",
        (f"{FACTS}::test_two_arms_with_one_seed_see_the_same_batches_and_rosters",),
    ),
    Mutant(
        "batch norm's statistics are sent",
        local.local_train,
        _buffers_sent,
        "an update has exactly the bytes of the weights",
        (f"{MODELS}::test_an_update_has_exactly_the_bytes_of_the_weights",),
    ),
    Mutant(
        "batch norm's statistics start anew in each round",
        local.local_train,
        _memory_with(buffers=lambda before: before.buffers),
        "statistics are those that torch keeps",
        (f"{MODELS}::test_statistics_are_those_that_torch_keeps",),
    ),
    Mutant(
        "private leaves are forgotten after each round",
        local.local_train,
        _memory_with(private=lambda before: before.private),
        "private leaves are trained as shared ones are",
        (f"{MODELS}::test_private_leaves_are_trained_as_shared_ones_are",),
    ),
    Mutant(
        "momentum damps the gradient",
        optimisers.sgd,
        _damped,
        "momentum is that of torch",
        (f"{REFERENCES}::test_local_optimisers_are_those_of_torch_begun_anew_each_round",),
    ),
    Mutant(
        "the weight of gradients ignores momentum",
        optimisers.sgd,
        with_part(gradient_weight=lambda right, steps: float(steps)),
        "the weight of gradients is the paper's closed form",
        (f"{FACTS}::test_the_weight_of_gradients_is_the_papers_closed_form",),
    ),
    Mutant(
        "weight decay is forgotten",
        optimisers.with_weight_decay,
        lambda original, base, decay: base,
        "weight decay is that of torch",
        (f"{REFERENCES}::test_local_optimisers_are_those_of_torch_begun_anew_each_round",),
    ),
    Mutant(
        "adam does not correct its bias",
        optimisers.adam,
        _without_correction,
        "Adam is that of torch",
        (f"{REFERENCES}::test_local_optimisers_are_those_of_torch_begun_anew_each_round",),
    ),
    Mutant(
        "a round in which everyone is dropped is an update of nothing",
        Trial.roster,
        with_field(dropped=frozenset()),
        "a round in which everyone is dropped changes nothing",
        (f"{FACTS}::test_a_round_in_which_everyone_is_dropped_changes_nothing",),
    ),
)
