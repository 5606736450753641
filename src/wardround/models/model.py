"""What a model is: pure functions over named leaves. Modules are used functionally and hold no weights of their own."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import local

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from wardround.core.errors import StudyError
from wardround.core.tree import Tree, clone
from wardround.data.site import Block
from wardround.models.patient_gradients import Caught, Patients, by_layers
from wardround.tasks import Task

SMALL_MODEL = 100_000  # parameters; below this a step is shorter than the time to start it
Gradient = tuple[Tree, Tensor, Tree]  # of the loss, the loss, the buffers after the step
# params, x, y, each row's share of the mean (and copies, see `stacked_gradient`) -> gradient and loss; for one site, or
# for a stack of sites along the first axis
ClosedGradient = Callable[..., tuple[Tree, Tensor]]
# params, x, y, masks, which rows belong to one patient -> the length of each patient's gradient (of the mean loss over
# the patient's rows, without the penalty), and the sum of the rows' gradients when each is multiplied with a number,
# both in double precision. None where the model cannot say it without differentiating row by row
RowGradients = Callable[[Tree, Tensor, Tensor, Tree, Patients], tuple[Tensor, Callable[[Tensor], Tree]] | None]


class Dropout(nn.Module):
    """Its mask is an input, drawn by purpose like all randomness: a buffer that the training step fills in for each
    batch, and the number one at prediction."""

    mask: Tensor

    def __init__(self, p: float, shape: tuple[int, ...]) -> None:
        """`shape` is that of one row at this layer."""
        super().__init__()
        self.p, self.shape = p, shape
        self.register_buffer("mask", torch.ones(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.mask


def mask_shapes(module: nn.Module) -> dict[str, tuple[float, tuple[int, ...]]]:
    """Name of each mask, with its probability of dropping and the shape of one row."""
    return {
        (f"{name}.mask" if name else "mask"): (part.p, part.shape)
        for name, part in module.named_modules()
        if isinstance(part, Dropout)
    }


@dataclass(frozen=True)
class Shape:
    """The data that a model is built for: the shape of a row, and what is predicted."""

    inputs: tuple[int, ...]
    task: Task
    parts: tuple[Block, ...] = ()  # whose numbers of a row are whose, where parties hold different ones

    @property
    def outputs(self) -> int:
        """Scores that a model has to give for a row."""
        return self.task.outputs


@dataclass(frozen=True)
class Cut:
    """A network in parts: one at each party, which makes an embedding of its numbers, and one where the labels are.

    `top(params, embeddings, present, masks, buffers)` gives scores; an embedding that is not present is replaced.
    """

    parts: tuple[Block, ...]
    labels: str | None  # the party whose embedding is always there; None: it has none, only the labels
    bottoms: Mapping[str, "Model"]
    top: Callable[..., Tensor]
    width: int  # of an embedding


@dataclass(frozen=True)
class SecondLabels:
    """Of rows that are mixtures of two: what the second one is labelled, and its share of the mixture."""

    y: Tensor
    share: Tensor


@dataclass(frozen=True)
class FeatureMaps:
    """What layers of an image network see, for explanations that ask where. `layers` are named from the image to the
    scores, and `at(params, buffers, x, layer)` gives a prediction's scores, and the maps (rows, channels, height,
    width) of which they are a differentiable function."""

    layers: tuple[str, ...]
    at: Callable[[Tree, Tree, Tensor, str], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Model:
    """Weights (`params`) are trained; `buffers` (BatchNorm statistics) are not, and never leave their site.

    `logits(params, buffers, x, masks)` returns scores and new buffers; `masks` are the dropout masks of a training
    step, and None means prediction. Leaves whose names begin with a prefix in `private` stay at their site.
    """

    init: Callable[[int], tuple[Tree, Tree]]
    logits: Callable[[Tree, Tree, Tensor, Tree | None], tuple[Tensor, Tree]]
    task: Task
    private: tuple[str, ...] = ()
    mask_shapes: dict[str, tuple[float, tuple[int, ...]]] = field(default_factory=dict)
    penalty: Callable[[Tree], Tensor] | None = None
    closed_gradient: ClosedGradient | None = None
    row_gradients: RowGradients | None = None
    # for a site with columns of its own: seed, site, names of its features -> the leaves whose shape depends on them
    at_site: Callable[[int, str, Sequence[str]], Tree] | None = None
    # a part of each row's loss that does not come from its scores: params, x -> (rows,)
    extra: Callable[[Tree, Tensor], Tensor] | None = None
    cut: Cut | None = None
    linear: bool = False  # whether scores are linear in the inputs, so that a column has one coefficient
    feature_maps: FeatureMaps | None = None  # of a network with convolutions

    @cached_property
    def blank(self) -> tuple[Tree, Tree]:
        """Weights and buffers without numbers, for whoever asks for shapes and types: those of a large model need not
        be drawn for that."""
        params, buffers = self.init(0)
        return {n: leaf.to("meta") for n, leaf in params.items()}, {n: leaf.to("meta") for n, leaf in buffers.items()}

    @cached_property
    def size(self) -> int:
        """Number of parameters."""
        return sum(leaf.numel() for leaf in self.blank[0].values())

    @cached_property
    def shared_size(self) -> int:
        """Number of parameters that are sent, which is the same at every site."""
        return sum(leaf.numel() for name, leaf in self.blank[0].items() if not self.is_private(name))

    def is_private(self, name: str) -> bool:
        return name.startswith(self.private) if self.private else False

    def masks(self, rng: np.random.Generator, rows: int, dtype: torch.dtype) -> Tree:
        """Kept cells are scaled up by 1 / (1 - p), so that prediction needs no change."""
        return {
            name: torch.from_numpy(rng.random((rows, *shape), dtype=np.float32) >= p).to(dtype) / (1 - p)
            for name, (p, shape) in self.mask_shapes.items()
        }

    def loss(
        self,
        params: Tree,
        buffers: Tree,
        x: Tensor,
        y: Tensor,
        masks: Tree | None,
        weights: Tensor | None = None,
        second: SecondLabels | None = None,
    ) -> tuple[Tensor, Tree]:
        """Mean loss of a batch with the model's own penalty. `weights` are the task's `class_weights`."""
        losses, buffers = self.losses(params, buffers, x, y, masks, weights, second)
        loss = losses.mean()
        return (loss + self.penalty(params) if self.penalty else loss), buffers

    def losses(
        self,
        params: Tree,
        buffers: Tree,
        x: Tensor,
        y: Tensor,
        masks: Tree | None,
        weights: Tensor | None = None,
        second: SecondLabels | None = None,
    ) -> tuple[Tensor, Tree]:
        """Of each row, without the penalty."""
        scores, buffers = self.logits(params, buffers, x, masks)
        losses = self.task.row_losses(scores, y, weights)
        if second is not None:
            losses = torch.lerp(losses, self.task.row_losses(scores, second.y, weights), second.share)
        return (losses if self.extra is None else losses + self.extra(params, x)), buffers

    def gradient(
        self,
        params: Tree,
        buffers: Tree,
        x: Tensor,
        y: Tensor,
        masks: Tree,
        weights: Tensor | None = None,
        second: SecondLabels | None = None,
    ) -> Gradient:
        """Of `loss`, for one training step."""
        weight = None if weights is None else self.task.row_weights(y, weights)
        if self.closed_gradient is not None and (weights is None or weight is not None):
            share = x.new_full((len(x),), 1 / len(x)) if weight is None else weight.to(x.dtype) / len(x)
            if second is not None:  # a mixture is two rows, the same but for the label, with a share each
                of_second = None if weights is None else self.task.row_weights(second.y, weights)
                other = torch.full_like(share, 1 / len(x)) if of_second is None else of_second.to(x.dtype) / len(x)
                share = torch.cat([share * (1 - second.share), other * second.share])
                x, y = torch.cat([x, x]), torch.cat([y, second.y])
            grad, value = self.closed_gradient(params, x, y, share)
            return grad, value, buffers
        leaves = {name: leaf.detach().requires_grad_() for name, leaf in params.items()}
        if x.dim() == 4:  # channels last takes a third off a convolution's step; `contiguous` would not do it
            x = x.to(memory_format=torch.channels_last)
        loss, buffers = self.loss(leaves, buffers, x, y, masks, weights, second)
        grads = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)  # unused weights do not move
        return dict(zip(leaves, grads, strict=True)), loss.detach(), {k: v.detach() for k, v in buffers.items()}

    def stacked_gradient(
        self, params: Tree, x: Tensor, y: Tensor, share: Tensor, masks: Tree, copies: int = 1
    ) -> tuple[Tree, Tensor]:
        """The same for a stack of sites along the first axis. `share` is each row's weight in its site's mean; rows
        that pad a short batch have 0. With a closed gradient, `copies` consecutive models may share a batch, which `x`,
        `y` and `share` then hold once."""
        if self.closed_gradient is not None:
            return self.closed_gradient(params, x, y, share, *([copies] if copies > 1 else []))

        def loss(params: Tree, x: Tensor, y: Tensor, share: Tensor, masks: Tree) -> Tensor:
            total = (self.losses(params, {}, x, y, masks)[0] * share).sum()
            return total + self.penalty(params) if self.penalty else total

        grads, value = vmap(grad_and_value(loss))(params, x, y, share, masks)
        return grads, value.detach()

    def stacked_logits(self, params: Tree, x: Tensor) -> Tensor:
        """Scores for a stack of models, each with rows of its own."""
        return vmap(lambda params, x: self.logits(params, {}, x, None)[0])(params, x)


TASK = "task."  # before the names of a task's own leaves


def built(build: "ModelBuilder", shape: Shape) -> Model:
    """A model with the task's own leaves behind its scores, where the task has any. They have no closed gradient."""
    model, first = build(shape), shape.task.leaves
    if not first:
        return model
    names = {f"{TASK}{name}": value for name, value in first.items()}

    def init(seed: int) -> tuple[Tree, Tree]:
        params, buffers = model.init(seed)
        like = next(iter(params.values()))
        return params | {name: like.new_full((1,), value) for name, value in names.items()}, buffers

    def behind(scores: Tensor, params: Tree) -> Tensor:
        leaves = [params[name].expand(*scores.shape[:-1], 1) for name in names]
        return torch.cat([scores, *leaves], dim=-1)

    def without(params: Tree) -> Tree:
        return {name: leaf for name, leaf in params.items() if name not in names}

    def logits(params: Tree, buffers: Tree, x: Tensor, masks: Tree | None) -> tuple[Tensor, Tree]:
        scores, buffers = model.logits(without(params), buffers, x, masks)
        return behind(scores, params), buffers

    cut = model.cut
    if cut is not None:
        top = cut.top
        cut = replace(cut, top=lambda params, *others: behind(top(without(params), *others), params))
    maps = with_scores(model.feature_maps, lambda params, scores: behind(scores, params), without)
    return replace(
        model, init=init, logits=logits, closed_gradient=None, row_gradients=None, cut=cut, feature_maps=maps
    )


def with_scores(
    maps: FeatureMaps | None, changed: Callable[[Tree, Tensor], Tensor], leaves: Callable[[Tree], Tree] = dict
) -> FeatureMaps | None:
    """Of a model whose scores are others: `changed(params, scores)`. `leaves` are those that the network itself has."""
    if maps is None:
        return None
    at = maps.at

    def of_changed(params: Tree, buffers: Tree, x: Tensor, layer: str) -> tuple[Tensor, Tensor]:
        scores, found = at(leaves(params), buffers, x, layer)
        return changed(params, scores), found

    return replace(maps, at=of_changed)


ModelBuilder = Callable[[Shape], Model]  # what a model's factory returns, once the data are known


def from_module(
    build: Callable[[], nn.Module],
    shape: Shape | Task,
    private: tuple[str, ...] = (),
    feature_layers: tuple[str, ...] = (),
) -> Model:
    """Any torch module as a model. Dropout must be `wardround.models.Dropout`, whose masks are seeded inputs.

    `shape` is what the builder was given; its task alone will do. `feature_layers` are the names of submodules that
    give feature maps of an image, from the image to the scores: Grad-CAM looks at one of them.

    Weights that the module freezes (`requires_grad = False`) are part of the module: neither trained nor sent.
    """
    training = _built(build, 0)
    _refuse_hidden_randomness(training)
    training.train()
    shapes = mask_shapes(training)
    tied = _has_tied_weights(training)  # to look for them at each call is a sixth of a small network's step
    frozen = {name: leaf.detach() for name, leaf in training.named_parameters() if not leaf.requires_grad}
    training = _without_weights(training)

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
            return functional_call(own.predicting, {**fixed, **params, **buffers}, (x,), tie_weights=tied), buffers
        buffers = clone(buffers)  # BatchNorm writes into them
        return functional_call(own.training, {**fixed, **params, **buffers, **masks}, (x,), tie_weights=tied), buffers

    def maps_at(params: Tree, buffers: Tree, x: Tensor, layer: str) -> tuple[Tensor, Tensor]:
        seen: list[Tensor] = []

        def catch(part: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            seen.append(output.detach().requires_grad_())
            return seen[0].clone()  # the next layer may write into what it is given

        if not hasattr(own, "seen"):
            own.seen = deepcopy(training).eval()
        hook = own.seen.get_submodule(layer).register_forward_hook(catch)
        try:
            fixed = {name: leaf.to(x) for name, leaf in frozen.items()}
            with torch.enable_grad():
                scores = functional_call(own.seen, {**fixed, **params, **buffers}, (x,), tie_weights=tied)
        finally:
            hook.remove()
        return scores, seen[0]

    def row_gradients(
        params: Tree, x: Tensor, y: Tensor, masks: Tree, patients: Patients
    ) -> tuple[Tensor, Callable[[Tensor], Tree]] | None:
        if not hasattr(own, "caught"):
            own.caught = Caught(deepcopy(training))
        fixed = {name: leaf.to(x) for name, leaf in frozen.items()}

        def losses(x: Tensor, rows: Tensor | slice) -> Tensor:
            leaves = {**fixed, **params, **{name: mask[rows] for name, mask in masks.items()}}
            return model.task.row_losses(functional_call(own.caught.module, leaves, (x,)), y[rows])

        return by_layers(own.caught, params, losses, x, patients)

    task = shape.task if isinstance(shape, Shape) else shape
    maps = FeatureMaps(feature_layers, maps_at) if feature_layers else None
    model = Model(init, logits, task, private, shapes, row_gradients=row_gradients, feature_maps=maps)
    return model


def _has_tied_weights(module: nn.Module) -> bool:
    """Whether a weight has two names."""
    return any(
        len(list(named(remove_duplicate=False))) > len(list(named()))
        for named in (module.named_parameters, module.named_buffers)
    )


def _without_weights(module: nn.Module) -> nn.Module:
    """A copy that keeps no weights: every call lends it some, and each copy of it would be as large. The module itself
    stays as it is, because what built it may hold on to its layers."""
    blanks = {
        id(leaf): nn.Parameter(torch.empty_like(leaf, device="meta")) if leaf.requires_grad else leaf
        for leaf in module.parameters()
    }
    return deepcopy(module, blanks)


def _built(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Torch's modules draw their first weights from the global generator, which is restored afterwards."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.default_generator.manual_seed(
            seed
        )  # torch.manual_seed also seeds every accelerator, at ten times the cost
        return build()


def _refuse_hidden_randomness(module: nn.Module) -> None:
    for name, part in module.named_modules():
        rate = getattr(part, "dropout", 0)  # of recurrent and attention layers; of others it may be a layer
        hidden = isinstance(part, nn.modules.dropout._DropoutNd | nn.RReLU) or (
            isinstance(rate, int | float) and rate > 0
        )
        if hidden and not isinstance(part, Dropout):
            raise StudyError(
                f"model: {name}",
                f"{type(part).__name__} draws from torch's global generator, so runs would not repeat",
                "Use wardround.models.Dropout instead.",
            )
