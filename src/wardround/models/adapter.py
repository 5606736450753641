"""Hospitals with different columns: a private adapter from each hospital's columns to one space, a shared rest.

adapter   private   this hospital's columns -> `latent` numbers, of length one but for a factor
encoder   shared    layers with LayerNorm, which needs no statistics of a batch or a site
head      shared    scores; or private, so that each hospital reads the shared space in its own way

With `align`, hospitals are pulled towards the same distribution in the space between adapter and encoder. What is
known of all hospitals' distribution is a leaf of the model like any other (`alignment.all`): it follows what it sees
by steps of gradient descent, is sent, clipped, masked, noised and averaged as every weight is. What a hospital knows
of its own (`alignment.own`) is private.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wardround.core import seeds
from wardround.core.errors import StudyError
from wardround.core.settings import Count, Fraction, NonNegative
from wardround.core.tree import Tree
from wardround.models.model import Dropout, Model, ModelBuilder, Shape, from_module
from wardround.study.facts import ModelFacts, declares
from wardround.study.schema import Arm

FIRST = "adapter.first"  # the one layer whose shape depends on a hospital's columns
ALL, OWN = "alignment.all", "alignment.own"
FOLLOW_ALL, FOLLOW_OWN = 0.3, 2.0  # steps, for one of the weights: what is known of all moves little while a site works
MOST_LR_ALIGNED = 1 / FOLLOW_OWN  # beyond, a mean would overshoot what it follows
SEEN = 0.05  # of the way from nothing: a mean of less is not used yet
WAVES = 128  # random features of the kernel by which `mmd` compares


@declares(ModelFacts(seeds=10, keeps_private=True, own_columns=True, check=lambda arm: refuse_alignment(arm)))
def adapter(
    latent: Count = 16,
    hidden: tuple[Count, ...] = (32,),
    adapter_hidden: tuple[Count, ...] = (),
    head: Literal["shared", "private"] = "shared",
    dropout: Fraction = 0.0,
    start: Literal["names", "random"] = "names",
    align: Literal["none", "coral", "mmd"] = "none",
    align_weight: NonNegative = 1.0,
) -> ModelBuilder:
    """`start = "names"`: columns of the same name start with the same weights at all hospitals, drawn from the name
    alone. Nothing is sent for it."""

    def build(shape: Shape) -> Model:
        if len(shape.inputs) != 1:
            raise StudyError("model: adapter", "is for tables, and these data are images", "Use cnn or residual.")

        def module() -> nn.Module:
            return _Network(shape, latent, hidden, adapter_hidden, dropout, align)

        private = ("adapter.", OWN, *(("head.",) if head == "private" else ()))
        plain = from_module(module, shape, private)
        model = replace(plain, at_site=lambda seed, site, names: first_layer(plain, seed, site, names, start))
        if align == "none":
            return model
        extra = _pull(statistic_of(align, latent), latent_of(adapter_hidden), align_weight)
        return replace(model, extra=extra, row_gradients=None)  # hooks on layers know nothing of the pull

    return build


def refuse_alignment(arm: Arm) -> None:
    """Running means follow rows by plain steps of gradient descent: a step of another length gives another mean."""
    where = f"arms: {arm.name}: model: align"
    if arm.model.options.get("align", "none") == "none":
        return
    if arm.training.optimiser == "adam" or arm.algorithm.facts.adaptive_server:
        problem = "running means need plain steps, at the sites and at the coordinator, and these are adaptive"
        raise StudyError(where, problem, 'Use optimiser = "sgd" and an algorithm such as fedprox, or align = "none".')
    if arm.training.lr > MOST_LR_ALIGNED:
        problem = f"with a learning rate above {MOST_LR_ALIGNED:g} running means overshoot"
        raise StudyError(where, problem, f"Lower `training.lr` to {MOST_LR_ALIGNED:g} or less.")


class _Network(nn.Module):
    """The shared part is built first: its weights must not depend on how many columns a hospital has."""

    def __init__(
        self,
        shape: Shape,
        latent: int,
        hidden: tuple[int, ...],
        adapter_hidden: tuple[int, ...],
        dropout: float,
        align: str,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in pairwise((latent, *hidden)):
            layers += [nn.Linear(before, after), nn.LayerNorm(after), nn.ReLU()]
            if dropout:
                layers.append(Dropout(dropout, (after,)))
        self.encoder = nn.Sequential(*layers)
        self.head = nn.Linear((latent, *hidden)[-1], shape.outputs)
        if align != "none":
            size = 1 + statistic_of(align, latent)(torch.zeros(1, latent)).shape[1]
            self.alignment = nn.ParameterDict({"all": torch.zeros(size), "own": torch.zeros(size)})
        widths = (*adapter_hidden, latent)
        self.adapter = nn.ModuleDict({"first": nn.Linear(shape.inputs[0], widths[0])})
        for number, (before, after) in enumerate(pairwise(widths)):
            self.adapter[f"next{number}"] = nn.Linear(before, after)

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.adapter.values()):
            x = layer(x if number == 0 else F.relu(x))
        scores: Tensor = self.head(self.encoder(in_space(x)))
        return scores


def in_space(x: Tensor) -> Tensor:
    """Points of the shared space have the same length at all hospitals."""
    return F.layer_norm(x, x.shape[-1:])


def first_layer(model: Model, seed: int, site: str, names: Sequence[str], start: str) -> Tree:
    """The adapter's first layer for these columns."""
    width, rows = len(names), len(model.init(seed)[0][f"{FIRST}.bias"])
    limit = 1 / math.sqrt(width)

    def drawn(what: str, size: int) -> Tensor:
        purpose = f"adapter {what}" if start == "names" else f"adapter {what} at {site}"
        return torch.from_numpy(seeds.generator(seed, purpose).uniform(-limit, limit, size))

    columns = [drawn(f"column {name}", rows) for name in names]
    return {f"{FIRST}.weight": torch.stack(columns, dim=1), f"{FIRST}.bias": drawn("intercept", rows)}


def latent_of(adapter_hidden: Sequence[int]) -> Callable[[Tree, Tensor], Tensor]:
    """Where the adapter puts rows."""
    layers = (FIRST, *(f"adapter.next{number}" for number in range(len(adapter_hidden))))

    def latent(params: Tree, x: Tensor) -> Tensor:
        for number, name in enumerate(layers):
            x = F.linear(x if number == 0 else F.relu(x), params[f"{name}.weight"], params[f"{name}.bias"])
        return in_space(x)

    return latent


def statistic_of(align: str, latent: int) -> Callable[[Tensor], Tensor]:
    """What is compared of each row: its means over rows are a distribution's mean and second moments (Sun and Saenko,
    ECCV Workshops 2016), or its embedding by random features of a Gaussian kernel (Gretton et al., JMLR 2012; Rahimi
    and Recht, NIPS 2007)."""
    if align == "coral":
        first, second = torch.triu_indices(latent, latent)
        # off the diagonal each moment stands for two
        weight = torch.where(first == second, 1.0, math.sqrt(2.0))

        def moments(z: Tensor) -> Tensor:
            return torch.cat([z, z[:, first] * z[:, second] * weight.to(z)], dim=1) / math.sqrt(latent)

        return moments
    rng = seeds.generator(0, "mmd features")
    # points of the space are sqrt(2 latent) apart where nothing relates them: the kernel's width
    turns = torch.from_numpy(rng.normal(0, 1 / math.sqrt(2 * latent), (latent, WAVES)))
    shifts = torch.from_numpy(rng.uniform(0, 2 * math.pi, WAVES))
    return lambda z: torch.cos(z @ turns.to(z) + shifts.to(z)) * math.sqrt(2 / WAVES)


def running_mean(followed: Tensor) -> Tensor:
    """A leaf that began at nothing has come only part of the way. Its first number followed ones, and says how far."""
    return followed[1:] / followed[:1].clamp(min=SEEN)


def _pull(
    statistic: Callable[[Tensor], Tensor], latent: Callable[[Tree, Tensor], Tensor], strength: float
) -> Callable[[Tree, Tensor], Tensor]:
    """A part of each row's loss that has a gradient and no value: the recorded loss stays that of the labels.

    Half the squared distance of a site's mean statistic from that of all has the gradient (own - all) x d statistic
    for each row. Both means are running ones, so that a row's part depends on no other row of its batch: it can be
    clipped for its patient.
    """

    def pull(params: Tree, x: Tensor) -> Tensor:
        seen = statistic(latent(params, x))
        apart = (running_mean(params[OWN]) - running_mean(params[ALL])).detach()
        target = torch.cat([torch.ones_like(seen[:, :1]), seen.detach()], dim=1)
        follow = FOLLOW_OWN * (params[OWN] - target).square() + FOLLOW_ALL * (params[ALL] - target).square()
        total = strength * (seen @ apart) + follow.sum(-1) / 2
        return total - total.detach()

    return pull
