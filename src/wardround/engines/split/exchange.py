"""One round of split learning: parties send embeddings, the label holder sends back their gradients.

    party               label holder
    -----               ------------
    embed(block)  --->  learn(block, embeddings): a step for each batch of the block
    learn(gradients) <- the loss's gradient by each embedding

A block of one batch is exactly the training of the whole network. In a longer block the label holder's steps use
embeddings from before the block, and a party's steps use gradients from there: fewer messages, and staler ones. All
use the same optimiser, whose state starts anew each round.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wardround.core import seeds
from wardround.core.tree import State, Tree
from wardround.models.joined import TOP, below, numbers_of, prefixed, presence
from wardround.models.model import Cut, Model
from wardround.privacy.dp.noise import Stream, with_noise
from wardround.study.schema import EmbeddingNoise
from wardround.training.optimisers import Optimiser

# SplitMix64 in signed numbers (Steele, Lea and Flood, OOPSLA 2014); the first is 2**64 over the golden ratio
STEP = 0x9E3779B97F4A7C15 - 2**64
FIRST, SECOND = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64


@dataclass(frozen=True)
class Own:
    """A party's part of a batch: its numbers, and the dropout masks of its layers."""

    x: Tensor
    masks: Tree


@dataclass(frozen=True)
class Labelled:
    """The label holder's part of a batch. `own` is None where it has labels and no features."""

    y: Tensor
    own: Own | None
    present: Mapping[str, Tensor]  # which rows' patients each other party knows
    masks: Tree  # of the top, and of parties that are left out in training


class Party:
    """A party without labels, during one round."""

    def __init__(
        self,
        bottom: Model,
        optimiser: Optimiser,
        params: Tree,
        buffers: Tree,
        lr: float,
        protect: Callable[[Tensor], Tensor] = torch.Tensor.clone,
    ) -> None:
        self.bottom, self.optimiser, self.lr, self.protect = bottom, optimiser, lr, protect
        self.params, self.buffers = params, buffers
        self.state: State = optimiser.init(params)
        self.waiting: list[Own] = []
        self.cached: tuple[Tree, Tensor, Tree] | None = None  # of a block of one batch: it need not be computed twice

    def embed(self, block: Sequence[Own]) -> list[Tensor]:
        """What leaves for the label holder."""
        self.waiting = list(block)
        if len(block) == 1:
            self.cached = self._forward(block[0])
            return [self.protect(self.cached[1].detach())]
        with torch.no_grad():
            return [self.protect(self._forward(own)[1].detach()) for own in block]

    def learn(self, gradients: Sequence[Tensor]) -> None:
        """One step for each batch of the block."""
        for own, gradient in zip(self.waiting, gradients, strict=True):
            leaves, embedding, self.buffers = self._forward(own) if self.cached is None else self.cached
            self.cached = None
            grads = torch.autograd.grad(embedding, list(leaves.values()), gradient, materialize_grads=True)
            grad = dict(zip(leaves, grads, strict=True))
            self.params, self.state = self.optimiser.step(self.params, grad, self.state, self.lr)
        self.waiting = []

    def _forward(self, own: Own) -> tuple[Tree, Tensor, Tree]:
        leaves = {name: leaf.detach().requires_grad_() for name, leaf in self.params.items()}
        embedding, buffers = self.bottom.logits(leaves, self.buffers, own.x, own.masks)
        return leaves, embedding, {name: leaf.detach() for name, leaf in buffers.items()}


class LabelHolder:
    """The party with the labels, during one round: the top, and a part of its own where it has features."""

    def __init__(
        self,
        model: Model,
        cut: Cut,
        optimiser: Optimiser,
        params: Tree,
        buffers: Tree,
        lr: float,
        weights: Tensor | None = None,
    ) -> None:
        self.model, self.cut, self.optimiser, self.lr, self.weights = model, cut, optimiser, lr, weights
        self.params, self.buffers = params, buffers  # TOP.leaf, and PARTY.leaf of its own part
        self.state: State = optimiser.init(params)
        self.loss, self.steps = 0.0, 0

    def learn(self, block: Sequence[Labelled], embeddings: Mapping[str, Sequence[Tensor]]) -> dict[str, list[Tensor]]:
        """A step for each batch; the gradients for each other party."""
        gradients: dict[str, list[Tensor]] = {party: [] for party in embeddings}
        for number, batch in enumerate(block):
            inputs = {party: batches[number].detach().requires_grad_() for party, batches in embeddings.items()}
            for party, gradient in self._step(batch, inputs).items():
                gradients[party].append(gradient)
        return gradients

    def _step(self, batch: Labelled, embeddings: Mapping[str, Tensor]) -> dict[str, Tensor]:
        leaves = {name: leaf.detach().requires_grad_() for name, leaf in self.params.items()}
        seen, party = dict(embeddings), self.cut.labels
        if party is not None and batch.own is not None:
            prefix = f"{party}."
            seen[party], after = self.cut.bottoms[party].logits(
                below(leaves, prefix), below(self.buffers, prefix), batch.own.x, batch.own.masks
            )
            self.buffers = prefixed({name: leaf.detach() for name, leaf in after.items()}, prefix)
        scores = self.cut.top(leaves, seen, batch.present, batch.masks)
        loss = self.model.task.row_losses(scores, batch.y, self.weights).mean()
        grads = torch.autograd.grad(loss, [*leaves.values(), *embeddings.values()], materialize_grads=True)
        grad = dict(zip(leaves, grads, strict=False))
        self.params, self.state = self.optimiser.step(self.params, grad, self.state, self.lr)
        self.loss += float(loss.detach())
        self.steps += 1
        return dict(zip(embeddings, grads[len(leaves) :], strict=True))


def protection(settings: EmbeddingNoise | None, stream: Stream) -> Callable[[Tensor], Tensor]:
    """Clipping and noise of an embedding before it leaves its party. The gradient that comes back is used as if it were
    that of the unprotected embedding."""
    if settings is None:
        return torch.Tensor.clone

    def protect(embedding: Tensor) -> Tensor:
        cut = clipped(embedding, settings.clip)
        if not settings.noise:
            return cut
        return with_noise(stream, {"": cut}, settings.noise * settings.clip)[""]

    return protect


def clipped(embedding: Tensor, clip: float) -> Tensor:
    length = embedding.norm(dim=1, keepdim=True)
    cut: Tensor = embedding * (clip / length.clamp(min=clip))
    return cut


def through_channel(model: Model, settings: EmbeddingNoise, seed: int) -> Model:
    """The model with embeddings that are clipped and get noise also in prediction.

    A row's noise is a function of the seed, the party, its weights and the row's own numbers, so that its prediction
    does not depend on other rows or on their order.
    """
    cut = cut_of(model)
    keys = {part.party: seeds.number(seed, "noise on predictions", site=part.party) for part in cut.parts}

    def logits(params: Tree, buffers: Tree, x: Tensor, masks: Tree | None) -> tuple[Tensor, Tree]:
        if masks is not None:
            return model.logits(params, buffers, x, masks)
        seen = {}
        for part in cut.parts:
            prefix = f"{part.party}."
            own = below(params, prefix)
            embedding, _ = cut.bottoms[part.party].logits(own, below(buffers, prefix), numbers_of(part, x), None)
            if part.party != cut.labels:
                embedding = clipped(embedding, settings.clip)
                if settings.noise:
                    drawn = noise_of_rows(keys[part.party], own, x, cut.width) * (settings.noise * settings.clip)
                    embedding = (embedding + drawn).to(embedding.dtype)
            seen[part.party] = embedding
        return cut.top(params, seen, presence(cut.parts, x), None, below(buffers, TOP)), buffers

    return replace(model, logits=logits)


def noise_of_rows(key: int, own: Tree, x: Tensor, width: int) -> Tensor:
    """Standard normal numbers in double precision, `width` for each row of `x`, as a function of the key, a party's
    weights and the row. Integer tensors only: exact everywhere, and `torch.func.vmap` works. For simulations: it hides
    nothing from anybody who knows the key."""
    half = -(-width // 2)
    counters = torch.arange(1, 2 * half + 1, device=x.device) * STEP
    drawn = _mixed((hash_of_rows(key, x) + hash_of_weights(key, own))[:, None] + counters)
    uniform = (_shifted(drawn, 11) + 1).double() * 2.0**-53  # never 0, of which there is no logarithm
    radius, angle = (-2 * uniform[:, :half].log()).sqrt(), uniform[:, half:] * (2 * math.pi)
    return torch.cat([radius * angle.cos(), radius * angle.sin()], dim=1)[:, :width]  # Box and Muller (1958)


def hash_of_rows(key: int, x: Tensor) -> Tensor:
    """64 bits for each row. Numbers are mixed with their places before they are added up: two that change places make
    another row."""
    bits = (x.reshape(len(x), -1).double() + 0.0).view(torch.int64)  # -0 becomes 0
    places = _mixed(torch.arange(bits.shape[1], device=x.device) * STEP + key)
    return _mixed(_mixed(bits + places).sum(dim=1) + key)


def hash_of_weights(key: int, own: Tree) -> Tensor:
    """One number. Every seed trains other weights, so that no two seeds have the same noise."""
    return torch.stack([hash_of_rows(key, own[name].reshape(1, -1)) for name in sorted(own)]).cumsum(0).sum()


def _mixed(whole: Tensor) -> Tensor:
    """The last steps of SplitMix64: every bit depends on every other."""
    whole = (whole ^ _shifted(whole, 30)) * FIRST
    whole = (whole ^ _shifted(whole, 27)) * SECOND
    return whole ^ _shifted(whole, 31)


def _shifted(whole: Tensor, by: int) -> Tensor:
    """To the right, with zeros from the left."""
    return (whole >> by) & ((1 << (64 - by)) - 1)


def cut_of(model: Model) -> Cut:
    if model.cut is None:
        raise ValueError("a model without parts cannot be split")
    return model.cut


def parts_of(cut: Cut, leaves: Tree) -> tuple[dict[str, Tree], Tree]:
    """A whole model's leaves: those of each party without labels, and those of the label holder."""
    others = [part.party for part in cut.parts if part.party != cut.labels]
    apart = {party: below(leaves, f"{party}.") for party in others}
    held = {name: leaf for name, leaf in leaves.items() if not name.startswith(tuple(f"{p}." for p in others))}
    return apart, held


def whole_of(apart: Mapping[str, Tree], held: Tree) -> Tree:
    """The other way."""
    leaves = dict(held)
    for party, own in apart.items():
        leaves |= prefixed(own, f"{party}.")
    return leaves


def bytes_of(messages: Mapping[str, Sequence[Tensor]]) -> int:
    return sum(tensor.nbytes for batches in messages.values() for tensor in batches)
