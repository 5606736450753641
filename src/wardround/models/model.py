"""What a model is: pure functions over named leaves. Modules are used functionally and hold no weights of their own."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from threading import local

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional as F

from wardround.errors import StudyError
from wardround.models.dropout import Dropout, draw_masks, mask_shapes
from wardround.tree import Tree, clone

SMALL_MODEL = 100_000  # parameters; below this a step is shorter than the time to start it
Gradient = tuple[Tree, Tensor, Tree]  # of the loss, the loss, the buffers after the step
# params, x, y, each row's share of the mean (and copies, see `stacked_gradient`) -> gradient and loss; for one site, or
# for a stack of sites along the first axis
ClosedGradient = Callable[..., tuple[Tree, Tensor]]


@dataclass(frozen=True)
class Shape:
    """What the data ask of a model."""

    inputs: tuple[int, ...]
    classes: int

    @property
    def outputs(self) -> int:
        """Two classes need one score; several need one each."""
        return 1 if self.classes == 2 else self.classes


@dataclass(frozen=True)
class Model:
    """Weights (`params`) are trained; `buffers` (BatchNorm statistics) are not, and never leave their site.

    `logits(params, buffers, x, masks)` returns scores and new buffers; `masks` are the dropout masks of a training
    step, and None means prediction. Leaves whose names begin with a prefix in `private` stay at their site.
    """

    init: Callable[[int], tuple[Tree, Tree]]
    logits: Callable[[Tree, Tree, Tensor, Tree | None], tuple[Tensor, Tree]]
    classes: int
    private: tuple[str, ...] = ()
    mask_shapes: dict[str, tuple[float, tuple[int, ...]]] = field(default_factory=dict)
    penalty: Callable[[Tree], Tensor] | None = None
    closed_gradient: ClosedGradient | None = None

    @cached_property
    def size(self) -> int:
        """Number of parameters."""
        return sum(leaf.numel() for leaf in self.init(0)[0].values())

    def is_private(self, name: str) -> bool:
        return name.startswith(self.private) if self.private else False

    def masks(self, rng: np.random.Generator, rows: int, dtype: torch.dtype) -> Tree:
        return draw_masks(self.mask_shapes, rng, rows, dtype)

    def loss(self, params: Tree, buffers: Tree, x: Tensor, y: Tensor, masks: Tree | None) -> tuple[Tensor, Tree]:
        """Mean loss of a batch with the model's own penalty."""
        scores, buffers = self.logits(params, buffers, x, masks)
        loss = row_losses(scores, y, self.classes).mean()
        return (loss + self.penalty(params) if self.penalty else loss), buffers

    def gradient(self, params: Tree, buffers: Tree, x: Tensor, y: Tensor, masks: Tree) -> Gradient:
        """Of `loss`, for one training step."""
        if self.closed_gradient is not None:
            grad, value = self.closed_gradient(params, x, y, x.new_full((len(x),), 1 / len(x)))
            return grad, value, buffers
        leaves = {name: leaf.detach().requires_grad_() for name, leaf in params.items()}
        if x.dim() == 4:  # channels last takes a third off a convolution's step; `contiguous` would not do it
            x = x.to(memory_format=torch.channels_last)
        loss, buffers = self.loss(leaves, buffers, x, y, masks)
        grads = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)  # unused weights do not move
        return dict(zip(leaves, grads, strict=True)), loss.detach(), {k: v.detach() for k, v in buffers.items()}

    def stacked_gradient(
        self, params: Tree, x: Tensor, y: Tensor, share: Tensor, masks: Tree, copies: int = 1
    ) -> tuple[Tree, Tensor]:
        """The same for a stack of sites along the first axis. `share` is each row's part of its site's mean; a row
        that only fills up a short batch has 0. With a closed gradient, `copies` models after one another may share a
        batch, of which `x`, `y` and `share` then hold one."""
        if self.closed_gradient is not None:
            return self.closed_gradient(params, x, y, share, *([copies] if copies > 1 else []))

        def loss(params: Tree, x: Tensor, y: Tensor, share: Tensor, masks: Tree) -> Tensor:
            scores, _ = self.logits(params, {}, x, masks)
            total = (row_losses(scores, y, self.classes) * share).sum()
            return total + self.penalty(params) if self.penalty else total

        grads, value = vmap(grad_and_value(loss))(params, x, y, share, masks)
        return grads, value.detach()

    def stacked_logits(self, params: Tree, x: Tensor) -> Tensor:
        """Scores for a stack of models, each with rows of its own."""
        return vmap(lambda params, x: self.logits(params, {}, x, None)[0])(params, x)


ModelBuilder = Callable[[Shape], Model]  # what a model's factory returns, once the data are known


def row_losses(scores: Tensor, y: Tensor, classes: int) -> Tensor:
    """Cross-entropy of each row, from logits."""
    if classes == 2:
        return F.binary_cross_entropy_with_logits(scores.squeeze(-1), y.to(scores.dtype), reduction="none")
    return F.cross_entropy(scores, y, reduction="none")


def probabilities(scores: Tensor, classes: int) -> Tensor:
    """Of the positive class for two classes, of each class otherwise."""
    return torch.sigmoid(scores.squeeze(-1)) if classes == 2 else torch.softmax(scores, dim=-1)


def from_module(build: Callable[[], nn.Module], classes: int, private: tuple[str, ...] = ()) -> Model:
    """Any torch module as a model. Dropout must be `wardround.models.Dropout`, whose masks are seeded inputs.

    Weights that the module freezes (`requires_grad = False`) are part of the module: neither trained nor sent.
    """
    training = _built(build, 0)
    _refuse_hidden_randomness(training)
    training.train()
    shapes = mask_shapes(training)
    frozen = {name: leaf.detach() for name, leaf in training.named_parameters() if not leaf.requires_grad}

    own = local()  # a module of its own for each thread: a functional call lends it the weights for a moment

    def init(seed: int) -> tuple[Tree, Tree]:
        fresh = _built(build, seed)
        params = {name: leaf.detach().clone() for name, leaf in fresh.named_parameters() if leaf.requires_grad}
        buffers = {name: leaf.detach().clone() for name, leaf in fresh.named_buffers() if name not in shapes}
        return params, buffers

    def logits(params: Tree, buffers: Tree, x: Tensor, masks: Tree | None) -> tuple[Tensor, Tree]:
        if not hasattr(own, "training"):
            own.training, own.predicting = deepcopy(training), deepcopy(training).eval()
        fixed = {name: leaf.to(x) for name, leaf in frozen.items()}
        if masks is None:
            return functional_call(own.predicting, {**fixed, **params, **buffers}, (x,)), buffers
        buffers = clone(buffers)  # BatchNorm writes into them
        return functional_call(own.training, {**fixed, **params, **buffers, **masks}, (x,)), buffers

    return Model(init, logits, classes, private, shapes)


def _built(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Torch's modules draw their first weights from the global generator; it is lent for the moment and put back."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.default_generator.manual_seed(
            seed
        )  # torch.manual_seed also seeds every accelerator, at ten times the cost
        return build()


def _refuse_hidden_randomness(module: nn.Module) -> None:
    for name, part in module.named_modules():
        hidden = (
            isinstance(part, nn.modules.dropout._DropoutNd | nn.RReLU) or float(getattr(part, "dropout", 0) or 0) > 0
        )
        if hidden and not isinstance(part, Dropout):
            raise StudyError(
                f"model: {name}",
                f"{type(part).__name__} draws from torch's global generator, so runs would not repeat",
                "Use wardround.models.Dropout instead.",
            )
