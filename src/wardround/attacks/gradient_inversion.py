"""Reconstruct a patient's row from the update of a single local step on it.

The step is the worst case for the patient: the program's own `local_train` on one row, plain SGD without augmentation
or dropout, with or without the arm's protection. The attacker divides the update by the learning rate and subtracts
what does not depend on the row.

* Where the first layer is linear with an intercept, its gradient is error x row and its intercept's gradient is the
  error: the row is their quotient, exactly (Geiping et al., NeurIPS 2020, arXiv:2003.14053, proposition 3.1).
* Elsewhere the attack searches for a smooth row whose gradient has the same direction, by cosine (same paper, section
  4). The label is first read off the last layer's gradient (Zhao et al. 2020, arXiv:2001.02610).

The attacker knows the model, its weights and the study, and nothing about the row. The search does well on networks
whose convolutions feed a linear layer. On deep residual networks it mostly ends in a false minimum, because their
gradients jump whenever a rectifier opens or closes. A failed search there does not mean that nothing leaks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wardround.core import seeds, tree
from wardround.core.threads import torch_threads
from wardround.core.tree import Tree
from wardround.models.model import Model
from wardround.privacy.dp.example_dp import PrivateGradient, Rule
from wardround.privacy.dp.protection import Streams
from wardround.training.local import Memory, local_train
from wardround.training.optimisers import optimiser_for
from wardround.training.trial import Run, Trial


@dataclass(frozen=True)
class Observation:
    """What the attacker has: the weights that were sent out, and the gradient that came back."""

    params: Tree
    buffers: Tree
    gradient: Tree  # of the shared leaves
    standardised: bool = False  # the study scales each image to mean 0 and SD 1


def observe_step(trial: Trial, run: Run, number: int, row: int, rule: Rule | None, streams: Streams) -> Observation:
    """One step of a site on one of its training rows; with a rule, clipped and noisy."""
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
        seeds.generator(trial.seed, "attack: dropout"),  # unused: the model has no dropout here
        private=None if rule is None else PrivateGradient(model, rule, streams("noise")),
    )
    start = trial.algorithm.begin(shared, memory.algorithm)
    gradient = tree.scale(outcome.moved or {}, -1 / lr)
    params = {**start, **memory.private}
    levels = site.train.levels
    standardised = levels is not None and bool((levels != levels[:1]).any())
    return Observation(params, memory.buffers, without_penalty(trial, params, gradient), standardised)


def without_penalty(trial: Trial, params: Tree, gradient: Tree) -> Tree:
    """The attacker can subtract the penalty: it depends on the weights alone."""
    if trial.model.penalty is None:
        return gradient
    leaves = {name: leaf.detach().requires_grad_() for name, leaf in params.items()}
    with torch.enable_grad():
        gradients = torch.autograd.grad(trial.model.penalty(leaves), list(leaves.values()), materialize_grads=True)
    penalty_gradient = dict(zip(leaves, gradients, strict=True))
    return {name: leaf - penalty_gradient[name] for name, leaf in gradient.items()}


def with_initial_memory(run: Run, first: Run) -> Run:
    """The run as an attacker can know it: the sites' private state is as it was before the first round."""
    memories = {
        site: Memory(memory.algorithm, memory.private, run.memories[site].buffers)
        for site, memory in first.memories.items()
    }
    return replace(run, memories=memories)


SMOOTHNESS = 2e-2  # weight of total variation beside the cosine
FASTEST = 0.1  # step, in units in which pixels have a standard deviation of about one
SLOWEST = 0.002


@dataclass(frozen=True)
class Effort:
    """How long the search runs."""

    steps: int = 600  # longer searches were no better on our test images
    starts: int = 1


def reconstruct(
    model: Model, observation: Observation, shape: Sequence[int], generator: torch.Generator, effort: Effort
) -> Tensor:
    """A row of this shape, from the gradient of the loss on it."""
    closed = from_first_layer(observation.gradient, shape)
    return closed if closed is not None else by_matching(model, observation, shape, generator, effort)


def from_first_layer(gradient: Tree, shape: Sequence[int]) -> Tensor | None:
    """Least squares over the quotients of all outputs; None where the first layer is not linear with an intercept."""
    names = list(gradient)
    weight = gradient[names[0]]
    bias = gradient.get(names[0].removesuffix("weight") + "bias")
    if weight.dim() != 2 or weight.shape[1] != math.prod(shape) or bias is None or bias.dim() != 1:
        return None
    length = bias.square().sum()
    return ((bias @ weight) / length.clamp(min=torch.finfo(bias.dtype).tiny)).reshape(tuple(shape))


def label_of(model: Model, gradient: Tree) -> Tensor:
    """The derivative of the loss by a score is probability - truth, so its sign gives the label.

    For findings, -1 where the gradient is 0: the finding is unknown, or the network is certain of it.
    """
    by_score = list(gradient.values())[-1]
    if by_score.dim() > 1:  # the last layer's intercept stays at its site; what a rectifier lets through is positive
        by_score = by_score.flatten(1).sum(1)
    if model.findings:
        return torch.where(by_score < 0, 1, torch.where(by_score > 0, 0, -1))
    if model.classes == 2:
        return (by_score[0] < 0).long()
    return by_score.argmin()


def by_matching(
    model: Model, observation: Observation, shape: Sequence[int], generator: torch.Generator, effort: Effort
) -> Tensor:
    """The best result over several random starts."""
    with torch_threads(1):  # steps on one row are too short to gain from a second thread
        candidates = [_search(model, observation, shape, generator, effort.steps) for _ in range(effort.starts)]
    return min(candidates, key=lambda candidate: candidate[0])[1]


def _search(
    model: Model, observation: Observation, shape: Sequence[int], generator: torch.Generator, steps: int
) -> tuple[float, Tensor]:
    label = label_of(model, observation.gradient).unsqueeze(0)
    leaves = {name: observation.params[name].detach().requires_grad_() for name in observation.gradient}
    target = list(observation.gradient.values())
    target_norm = torch.stack([leaf.square().sum() for leaf in target]).sum().sqrt()
    dtype = target[0].dtype
    x = (torch.randn(1, *shape, generator=generator, dtype=dtype)).requires_grad_()
    momentum, variance = torch.zeros_like(x), torch.zeros_like(x)
    best, best_x = math.inf, x.detach().clone()
    for step in range(steps):
        image = _standardise(x) if observation.standardised else x
        scores, _ = model.logits(
            {**observation.params, **leaves}, observation.buffers, image, {}
        )  # as in training, without dropout
        loss = model.row_losses(scores, label).sum()
        gradients = torch.autograd.grad(loss, list(leaves.values()), create_graph=True, materialize_grads=True)
        dot = torch.stack([(a * b).sum() for a, b in zip(gradients, target, strict=True)]).sum()
        norm = torch.stack([leaf.square().sum() for leaf in gradients]).sum().sqrt()
        distance = 1 - dot / (norm * target_norm + 1e-30)
        objective = distance + (SMOOTHNESS * total_variation(image) if x.dim() == 4 else 0)
        (slope,) = torch.autograd.grad(objective, x)
        if float(objective.detach()) < best:
            best, best_x = float(objective.detach()), image.detach().clone()
        with torch.no_grad():
            slope = slope.sign()  # Adam on signs: the cosine's slope is tiny where it matters
            momentum = 0.9 * momentum + 0.1 * slope
            variance = 0.999 * variance + 0.001 * slope.square()
            unbiased = momentum / (1 - 0.9 ** (step + 1)), variance / (1 - 0.999 ** (step + 1))
            pace = SLOWEST + (FASTEST - SLOWEST) * (1 + math.cos(math.pi * step / steps)) / 2
            x -= pace * unbiased[0] / (unbiased[1].sqrt() + 1e-8)
    return best, best_x[0]


def _standardise(x: Tensor) -> Tensor:
    """Mean 0 and SD 1. Otherwise the search may end in an image of the right shape and the wrong contrast, which
    GroupNorm cannot tell apart."""
    return (x - x.mean()) / x.std(correction=0).clamp(min=1e-6)


def total_variation(x: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels."""
    return (x[..., 1:, :] - x[..., :-1, :]).abs().mean() + (x[..., :, 1:] - x[..., :, :-1]).abs().mean()
