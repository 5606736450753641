"""A row from the gradient of one step on it.

* Where the first layer is linear with an intercept, its gradient is error x row and its intercept's gradient is the
  error: the row is their quotient, exactly (Geiping et al., NeurIPS 2020, arXiv:2003.14053, proposition 3.1).
* Elsewhere a row is looked for whose gradient points where the seen one does, by cosine, and which is smooth (the same
  paper, section 4). Its label is read off the last layer's gradient first (Zhao et al. 2020, arXiv:2001.02610).

Whoever attacks knows the model, its weights and what the study says; of the row nothing. The search does well on
networks whose convolutions feed a linear layer. On deep residual networks it mostly ends in a false minimum, because
their gradients jump with every rectifier that opens or closes: that it fails there does not mean that nothing leaks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wardround.attacks.one_step import Seen
from wardround.core.threads import torch_threads
from wardround.core.tree import Tree
from wardround.models.model import Model

SMOOTHNESS = 2e-2  # weight of total variation beside the cosine
FASTEST = 0.1  # step, in units in which pixels have a standard deviation of about one
SLOWEST = 0.002


@dataclass(frozen=True)
class Effort:
    """How long a row is looked for."""

    steps: int = 600  # longer searches were no better on our images
    starts: int = 1


def reconstruct(model: Model, seen: Seen, shape: Sequence[int], generator: torch.Generator, effort: Effort) -> Tensor:
    """A row of this shape, from the gradient of the loss on it."""
    closed = from_first_layer(seen.gradient, shape)
    return closed if closed is not None else by_matching(model, seen, shape, generator, effort)


def from_first_layer(gradient: Tree, shape: Sequence[int]) -> Tensor | None:
    """By quotients, over all outputs of the layer together by least squares; None where the first layer is another."""
    names = list(gradient)
    weight = gradient[names[0]]
    bias = gradient.get(names[0].removesuffix("weight") + "bias")
    if weight.dim() != 2 or weight.shape[1] != math.prod(shape) or bias is None or bias.dim() != 1:
        return None
    length = bias.square().sum()
    return ((bias @ weight) / length.clamp(min=torch.finfo(bias.dtype).tiny)).reshape(tuple(shape))


def label_of(model: Model, gradient: Tree) -> Tensor:
    """The derivative of the loss by a score is probability - truth, so its sign tells the label.

    For findings 0 stands where the gradient is 0: the finding is unknown, or the network is certain of it.
    """
    by_score = list(gradient.values())[-1]
    if by_score.dim() > 1:  # the last layer's intercept stays at its site; what a rectifier lets through is positive
        by_score = by_score.flatten(1).sum(1)
    if model.findings:
        return torch.where(by_score < 0, 1, torch.where(by_score > 0, 0, -1))
    if model.classes == 2:
        return (by_score[0] < 0).long()
    return by_score.argmin()


def by_matching(model: Model, seen: Seen, shape: Sequence[int], generator: torch.Generator, effort: Effort) -> Tensor:
    """The best of several starts."""
    with torch_threads(1):  # steps on one row are too short for two threads to help one another
        found = [_one_start(model, seen, shape, generator, effort.steps) for _ in range(effort.starts)]
    return min(found, key=lambda one: one[0])[1]


def _one_start(
    model: Model, had: Seen, shape: Sequence[int], generator: torch.Generator, steps: int
) -> tuple[float, Tensor]:
    label = label_of(model, had.gradient).unsqueeze(0)
    leaves = {name: had.params[name].detach().requires_grad_() for name in had.gradient}
    seen = list(had.gradient.values())
    length = torch.stack([leaf.square().sum() for leaf in seen]).sum().sqrt()
    dtype = seen[0].dtype
    x = (torch.randn(1, *shape, generator=generator, dtype=dtype)).requires_grad_()
    momentum, variance = torch.zeros_like(x), torch.zeros_like(x)
    best, best_x = math.inf, x.detach().clone()
    for step in range(steps):
        image = _standard(x) if had.standard else x
        scores, _ = model.logits({**had.params, **leaves}, had.buffers, image, {})  # as in training, without dropout
        loss = model.row_losses(scores, label).sum()
        own = torch.autograd.grad(loss, list(leaves.values()), create_graph=True, materialize_grads=True)
        dot = torch.stack([(a * b).sum() for a, b in zip(own, seen, strict=True)]).sum()
        norm = torch.stack([leaf.square().sum() for leaf in own]).sum().sqrt()
        distance = 1 - dot / (norm * length + 1e-30)
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


def _standard(x: Tensor) -> Tensor:
    """With mean 0 and SD 1. Without it the search may end in an image of the right shape and another contrast, which
    GroupNorm does not tell apart."""
    return (x - x.mean()) / x.std(correction=0).clamp(min=1e-6)


def total_variation(x: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels."""
    return (x[..., 1:, :] - x[..., :-1, :]).abs().mean() + (x[..., :, 1:] - x[..., :, :-1]).abs().mean()
