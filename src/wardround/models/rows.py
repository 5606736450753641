"""Gradients of single rows, or of all rows of one patient, without writing most of them down.

One pass forward and one back to every layer's output; what the gradient of a row with respect to a layer's weights is
then follows from the layer's input and the gradient at its output (Goodfellow 2015, arXiv:1510.01799). For a linear
layer it is an outer product: its length is a product of lengths, and a weighted sum over rows is one matrix product
(Bu et al., ICML 2023, arXiv:2210.00038). For a convolution the rows' gradients are written down, layer by layer.
Where a layer has no rule here, `by_layers` gives None and the caller differentiates row by row.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional as F
from torch.nn.grad import conv2d_weight

from wardround.tree import Tree, align

ROUNDING = 64  # units of the last place, of a sum of some thousand products: more than their square root


@dataclass(frozen=True)
class Patients:
    """Which rows of a batch belong together. `part` is each row's share of its patient's mean."""

    place: Tensor  # number of each row's patient
    count: int
    part: Tensor

    @classmethod
    def of(cls, patients: Tensor, dtype: torch.dtype) -> "Patients":
        place = torch.unique(patients, return_inverse=True)[1]
        rows = torch.bincount(place) if len(place) else place
        return cls(place, len(rows), (1 / rows.to(dtype))[place] if len(place) else rows.to(dtype))

    @property
    def alone(self) -> bool:
        """Whether every patient has one row here."""
        return self.count == len(self.place)

    def means(self, each: Tensor) -> Tensor:
        """Over each patient's rows; `each` has a row's gradient at each place of its first axis."""
        if self.alone:
            return each.new_empty(each.shape).index_copy_(0, self.place, each)
        scaled = each * align(self.part, each)
        return each.new_zeros(self.count, *each.shape[1:]).index_add_(0, self.place, scaled)

    def squared_lengths(self, each: Tensor) -> Tensor:
        """Of each patient's mean."""
        if not self.alone:
            means = torch.linalg.vector_norm(self.means(each).flatten(1), dim=1, dtype=torch.float64)
            return self._never_too_small(means.square(), torch.linalg.vector_norm(each.flatten(1), dim=1))
        squares = _squared(each)
        return squares.new_empty(squares.shape).index_copy_(0, self.place, squares)

    def lengths_of_products(self, left: Tensor, right: Tensor) -> Tensor:
        """Squared length of each patient's mean of outer products left x right."""
        if self.alone:
            squares = left.square().sum(1) * right.square().sum(1)
            return squares.new_empty(squares.shape).index_copy_(0, self.place, squares)
        # |sum of a_r b_r'|^2 is the sum over pairs of rows of (a_r.a_s)(b_r.b_s); in double precision, because little
        # may be left of it
        wide, high, part = left.double(), right.double(), self.part.double()
        pairs = (wide @ wide.mT) * (high @ high.mT) * torch.outer(part, part)
        by_row = (pairs * (self.place.unsqueeze(0) == self.place.unsqueeze(1))).sum(1)
        squares = by_row.new_zeros(self.count).index_add_(0, self.place, by_row)
        return self._never_too_small(squares, left.norm(dim=1) * right.norm(dim=1))

    def _never_too_small(self, squares: Tensor, rows: Tensor) -> Tensor:
        """Where a patient's rows, whose lengths are `rows`, nearly cancel, rounding is all that is left. A length that
        comes out too small would be a clip too large, so that what rounding may have taken is added."""
        most = squares.new_zeros(self.count).index_add_(0, self.place, (rows * self.part).to(squares.dtype))
        unsure = ROUNDING * torch.finfo(squares.dtype).eps * most.square()
        lengths = (squares.clamp(min=0) + unsure).sqrt() + ROUNDING * torch.finfo(rows.dtype).eps * most
        return lengths.square().to(rows.dtype)


def _squared(each: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(each.flatten(1), dim=1)
    return lengths.square()


# a row's part of the patients' gradients: squared lengths, and the sum when each row is multiplied with a number
LayerPart = tuple[Tensor, Callable[[Tensor], Tree]]


def of_layer(layer: nn.Module, x: Tensor, g: Tensor, patients: Patients, names: dict[str, str]) -> LayerPart:
    """`x` went into the layer, `g` is the gradient at its output; `names` are the leaves' full names."""
    if isinstance(layer, nn.Linear) and x.dim() == 2:
        return _of_linear(x, g, patients, names)
    if isinstance(layer, nn.Conv2d):
        deep = patients.alone and _pairs_are_fewer(layer, g)
        return (_of_deep_convolution if deep else _of_convolution)(layer, x, g, patients, names)
    each: Tree = {}
    if isinstance(layer, nn.Linear):
        each = {"weight": torch.einsum("b...o,b...i->boi", g, x), "bias": g.flatten(1, -2).sum(1)}
    elif isinstance(layer, nn.GroupNorm):
        flat = (g.flatten(2), F.group_norm(x, layer.num_groups, eps=layer.eps).flatten(2))
        each = {"weight": (flat[0] * flat[1]).sum(2), "bias": flat[0].sum(2)}
    elif isinstance(layer, nn.LayerNorm):
        normal = F.layer_norm(x, layer.normalized_shape, eps=layer.eps)
        shape = (len(x), -1, *layer.normalized_shape)
        each = {"weight": (g * normal).reshape(shape).sum(1), "bias": g.reshape(shape).sum(1)}
    each = {names[short]: leaf for short, leaf in each.items() if short in names}
    squares = sum(patients.squared_lengths(leaf) for leaf in each.values())

    def summed(factors: Tensor) -> Tree:
        return {name: (factors @ leaf.flatten(1)).reshape(leaf.shape[1:]) for name, leaf in each.items()}

    return torch.as_tensor(squares), summed


def _of_linear(x: Tensor, g: Tensor, patients: Patients, names: dict[str, str]) -> LayerPart:
    squares = torch.zeros(patients.count, dtype=x.dtype, device=x.device)
    if "weight" in names:
        squares = squares + patients.lengths_of_products(x, g)
    if "bias" in names:
        squares = squares + patients.squared_lengths(g)

    def summed(factors: Tensor) -> Tree:
        scaled = g * factors.unsqueeze(1)
        found = {"weight": lambda: scaled.mT @ x, "bias": lambda: scaled.sum(0)}
        return {name: found[short]() for short, name in names.items()}

    return squares, summed


def _patches(layer: nn.Conv2d, x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """What each place of the output saw, (rows, places, height x width x channels of a kernel), and the gradient there,
    (rows, places, channels). Channels come last, so that they are copied in one piece: half the time of `F.unfold`."""
    across, down = int(layer.padding[1]), int(layer.padding[0])
    wide = F.pad(x, (across, across, down, down)).permute(0, 2, 3, 1).contiguous()
    rows, line, pixel, channel = wide.stride()
    size = (len(x), *g.shape[2:], *layer.kernel_size, x.shape[1])
    steps = (layer.stride[0] * line, layer.stride[1] * pixel, layer.dilation[0] * line, layer.dilation[1] * pixel)
    windows = wide.as_strided(size, (rows, *steps, channel))
    places = g.shape[2] * g.shape[3]
    return windows.reshape(len(x), places, -1), g.permute(0, 2, 3, 1).reshape(len(x), places, g.shape[1])


def _pairs_are_fewer(layer: nn.Conv2d, g: Tensor) -> bool:
    """Whether pairs of places are fewer than weights: deep in a network, where images are small and channels many
    (Bu et al., NeurIPS 2022, arXiv:2205.10683)."""
    return 2 * (g.shape[2] * g.shape[3]) ** 2 < layer.weight.numel()


def _of_deep_convolution(
    layer: nn.Conv2d, x: Tensor, g: Tensor, patients: Patients, names: dict[str, str]
) -> LayerPart:
    """As for a linear layer that runs at every place: lengths from pairs of places, sums by the convolution's own
    gradient."""
    patches, at_output = _patches(layer, x, g)
    squares = torch.zeros(patients.count, dtype=x.dtype, device=x.device)
    if "weight" in names:
        pairs = torch.bmm(patches, patches.mT).mul_(torch.bmm(at_output, at_output.mT))
        # places may cancel, and then rounding must not make a length too small: it is added as it may have been
        most = (patches.norm(dim=2) * at_output.norm(dim=2)).sum(1).square()
        by_row = (pairs.sum((1, 2)) + ROUNDING * torch.finfo(x.dtype).eps * most).clamp_(min=0)
        squares = squares.index_copy(0, patients.place, by_row)
    if "bias" in names:
        squares = squares + patients.squared_lengths(at_output.sum(1))
    del patches

    def summed(factors: Tensor) -> Tree:
        scaled = g * align(factors, g)
        found: dict[str, Callable[[], Tensor]] = {
            "weight": lambda: _weight_gradient(layer, x, scaled),
            "bias": lambda: scaled.sum((0, 2, 3)),
        }
        return {name: found[short]() for short, name in names.items()}

    return squares, summed


def _weight_gradient(layer: nn.Conv2d, x: Tensor, g: Tensor) -> Tensor:
    found: Tensor = conv2d_weight(x, layer.weight.shape, g, layer.stride, layer.padding, layer.dilation)  # type: ignore[no-untyped-call]
    return found


def _of_convolution(layer: nn.Conv2d, x: Tensor, g: Tensor, patients: Patients, names: dict[str, str]) -> LayerPart:
    """Every row's gradient, written down with channels last."""
    patches, at_output = _patches(layer, x, g)
    each = {"weight": torch.bmm(at_output.mT, patches).flatten(1), "bias": at_output.sum(1)}
    each = {short: leaf for short, leaf in each.items() if short in names}
    del patches
    out, channels, high, wide = layer.weight.shape

    def summed(factors: Tensor) -> Tree:
        found = {short: factors @ leaf for short, leaf in each.items()}
        if "weight" in found:
            found["weight"] = found["weight"].reshape(out, high, wide, channels).permute(0, 3, 1, 2)
        return {names[short]: leaf for short, leaf in found.items()}

    return torch.as_tensor(sum(patients.squared_lengths(leaf) for leaf in each.values())), summed


def is_known(layer: nn.Module) -> bool:
    """Whether a layer's own weights have a rule here. A class that is derived from one of these may do anything."""
    if type(layer) is nn.Conv2d:
        return layer.groups == 1 and not isinstance(layer.padding, str) and layer.padding_mode == "zeros"
    return type(layer) in (nn.Linear, nn.GroupNorm, nn.LayerNorm)


class Caught:
    """Inputs and outputs of a module's layers while it runs."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.inputs: dict[str, Tensor] = {}
        self.versions: dict[str, int] = {}
        self.outputs: dict[str, GradientEdge] = {}
        self.twice = False
        self.apart = False  # whether rows were seen to have nothing to do with each other
        self.layers = {name: part for name, part in module.named_modules() if list(part.parameters(recurse=False))}
        self.known = all(is_known(part) for part in self.layers.values()) and _unshared(module)
        for name, part in self.layers.items() if self.known else ():
            part.register_forward_hook(self._catch(name))

    def _catch(self, name: str) -> Any:
        def hook(part: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> None:
            self.twice = self.twice or name in self.inputs
            self.inputs[name], self.versions[name] = given[0], given[0]._version
            # an edge of the graph, not the tensor: what comes next may write into it (`relu(inplace=True)`)
            self.outputs[name] = get_gradient_edge(made)

        return hook

    def clear(self) -> None:
        self.inputs, self.versions, self.outputs, self.twice = {}, {}, {}, False

    def usable(self, rows: int) -> bool:
        """Whether every layer ran once, with rows along its first axis, and nobody wrote into what went into it."""
        return not self.twice and all(
            len(one) == rows and one._version == self.versions[name] for name, one in self.inputs.items()
        )


def _unshared(module: nn.Module) -> bool:
    every = [id(leaf) for part in module.modules() for leaf in part.parameters(recurse=False)]
    return len(every) == len(set(every))


def _rows_apart(caught: Caught, run: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Whether no row reaches another, which the rules here rest on. Tried out, once: with all rows but the first no
    numbers, the first must come through every layer as a number, at the first place."""
    others_lost = x.detach().clone()
    others_lost[1:] = torch.nan
    with torch.enable_grad():
        losses = run(others_lost.requires_grad_())
    seen = [losses.detach(), *(one.detach() for one in caught.inputs.values())]
    caught.apart = caught.usable(len(x)) and all(bool(one[0].isfinite().all()) for one in seen)
    caught.clear()
    return caught.apart


def by_layers(
    caught: Caught, trained: set[str], run: Callable[[Tensor], Tensor], x: Tensor, patients: Patients
) -> tuple[Tensor, Callable[[Tensor], Tree]] | None:
    """`run` gives the rows' losses. None where a layer has no rule or ran twice, or where rows reach each other."""
    if not caught.known:
        return None
    caught.clear()
    if x.dim() == 4:
        x = x.to(memory_format=torch.channels_last)  # as `Model.gradient` does it
    if not caught.apart and len(x) > 1 and not _rows_apart(caught, run, x):
        return None
    with torch.enable_grad():
        # something before the first layer must want a gradient for there to be one at its output
        total = run(x.detach().requires_grad_()).sum()
        names = list(caught.outputs)
        found = torch.autograd.grad(total, [caught.outputs[name] for name in names], allow_unused=True)
    if not caught.usable(len(x)):
        caught.clear()
        return None
    squares: Tensor = torch.zeros(patients.count, dtype=x.dtype, device=x.device)
    sums: list[Callable[[Tensor], Tree]] = []
    for name, g in zip(names, found, strict=True):
        prefix = f"{name}." if name else ""
        own = {
            short: f"{prefix}{short}"
            for short, _ in caught.layers[name].named_parameters(recurse=False)
            if f"{prefix}{short}" in trained
        }
        if own and g is not None:
            part, summed = of_layer(caught.layers[name], caught.inputs[name].detach(), g.detach(), patients, own)
            squares = squares + part
            sums.append(summed)
    caught.clear()

    def all_summed(factors: Tensor) -> Tree:
        gathered: Tree = {}
        for one in sums:
            gathered |= one(factors)
        return gathered

    return squares.sqrt(), all_summed
