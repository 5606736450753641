"""What leaves a site that makes one step on one row: the worst case for the patient behind it.

The step is the program's own (`local_train`), plain SGD without augmentation or dropout, with the arm's protection or
without it. Whoever sees the update divides by the learning rate and takes away what does not depend on the row.
"""

from dataclasses import dataclass, replace

import torch

from wardround.core import seeds, tree
from wardround.core.tree import Tree
from wardround.privacy.dp.example_dp import PrivateGradient, Rule
from wardround.privacy.dp.protection import Streams
from wardround.training.local import Memory, local_train
from wardround.training.optimisers import optimiser_for
from wardround.training.trial import Run, Trial


@dataclass(frozen=True)
class Seen:
    """What the attacker has: the weights that were sent out, and the gradient that came back."""

    params: Tree
    buffers: Tree
    gradient: Tree  # of the shared leaves
    standard: bool = False  # every image has mean 0 and SD 1, as the study says


def seen(trial: Trial, run: Run, number: int, row: int, rule: Rule | None, streams: Streams) -> Seen:
    """From one step of a site on one of its training rows; with a rule, clipped and with noise."""
    site = trial.sites[number]
    memory = run.memories[site.name]
    training = replace(trial.training, optimiser="sgd", momentum=0.0, weight_decay=0.0)
    model = replace(trial.model, mask_shapes={})
    shared = trial.algorithm.broadcast(run.server, number)
    lr = training.lr_in(0)
    outcome = local_train(
        trial.algorithm,
        model,
        optimiser_for(training),
        site.train,
        [torch.tensor([row])],
        shared,
        memory,
        lr,
        seeds.generator(trial.seed, "attack: dropout"),  # of which there is none
        private=None if rule is None else PrivateGradient(model, rule, streams("noise")),
    )
    start = trial.algorithm.begin(shared, memory.algorithm)
    gradient = tree.scale(outcome.moved or {}, -1 / lr)
    params = {**start, **memory.private}
    levels = site.train.levels
    by_itself = levels is not None and bool((levels != levels[:1]).any())
    return Seen(params, memory.buffers, without_penalty(trial, params, gradient), by_itself)


def without_penalty(trial: Trial, params: Tree, gradient: Tree) -> Tree:
    """The penalty depends on the weights alone, which the attacker has."""
    if trial.model.penalty is None:
        return gradient
    leaves = {name: leaf.detach().requires_grad_() for name, leaf in params.items()}
    with torch.enable_grad():
        known = torch.autograd.grad(trial.model.penalty(leaves), list(leaves.values()), materialize_grads=True)
    own = dict(zip(leaves, known, strict=True))
    return {name: leaf - own[name] for name, leaf in gradient.items()}


def forgetful(run: Run, first: Run) -> Run:
    """The run as an attacker can know it: what sites keep to themselves is as it was in the beginning."""
    kept = {
        site: Memory(memory.algorithm, memory.private, run.memories[site].buffers)
        for site, memory in first.memories.items()
    }
    return replace(run, memories=kept)
