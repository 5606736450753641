"""What a row's gradient with respect to a layer's weights is, from the layer's input and the gradient at its output.

For a linear layer it is an outer product: its length is a product of lengths, and a weighted sum over rows is one
matrix product (Bu et al., ICML 2023, arXiv:2210.00038). So it is at every place of a convolution; deep in a network,
where places are few and weights many, lengths come from pairs of places (Bu et al., NeurIPS 2022, arXiv:2205.10683).
For other layers the rows' gradients are written down.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wardround.models.patients import Patients, of_pairs, pieces, weighted_sum
from wardround.tree import Tree, align

INTO, AT_OUTPUT = "into", "at output"
# squared lengths of the patients' gradients, and the rows' sum when each is multiplied with a number
LayerPart = tuple[Tensor, Callable[[Tensor], Tree]]


def is_known(layer: nn.Module) -> bool:
    """Whether a layer's own weights have a rule here. A class that is derived from one of these may do anything."""
    if type(layer) is nn.Conv2d:
        return layer.groups == 1 and not isinstance(layer.padding, str) and layer.padding_mode == "zeros"
    return type(layer) in (nn.Linear, nn.GroupNorm, nn.LayerNorm)


def of_rows(layer: nn.Module, x: Tensor, g: Tensor, names: dict[str, str]) -> Tree:
    """What is kept of each row of a block: `x` went into the layer, `g` is the gradient at its output.

    All that is computed in the network's own precision is computed here. `names` are the leaves that are trained.
    """
    if _is_product(layer, x, g):
        return {INTO: x, AT_OUTPUT: g}
    each: dict[str, Callable[[], Tensor]] = {}
    if isinstance(layer, nn.Conv2d):
        patches, at_output = _patches(layer, x, g)
        each = {"weight": lambda: torch.bmm(at_output.mT, patches).flatten(1), "bias": lambda: at_output.sum(1)}
    elif isinstance(layer, nn.Linear):
        each = {"weight": lambda: torch.einsum("b...o,b...i->boi", g, x), "bias": lambda: g.flatten(1, -2).sum(1)}
    elif isinstance(layer, nn.GroupNorm):
        normal = F.group_norm(x, layer.num_groups, eps=layer.eps)
        each = {"weight": lambda: (g * normal).flatten(2).sum(2), "bias": lambda: g.flatten(2).sum(2)}
    elif isinstance(layer, nn.LayerNorm):
        normal = F.layer_norm(x, layer.normalized_shape, eps=layer.eps)
        shape = (len(x), -1, *layer.normalized_shape)
        each = {"weight": lambda: (g * normal).reshape(shape).sum(1), "bias": lambda: g.reshape(shape).sum(1)}
    return {short: each[short]() for short in names}


def of_layer(layer: nn.Module, rows: Tree, patients: Patients, names: dict[str, str]) -> LayerPart:
    """`rows` is what was kept of all rows; `names` are the leaves' full names."""
    if INTO in rows and isinstance(layer, nn.Conv2d):
        return _of_deep_convolution(layer, rows[INTO], rows[AT_OUTPUT], patients, names)
    if INTO in rows:
        return _of_linear(rows[INTO].double(), rows[AT_OUTPUT].double(), patients, names)

    def summed(factors: Tensor) -> Tree:
        found = {short: weighted_sum(factors, leaf) for short, leaf in rows.items()}
        if isinstance(layer, nn.Conv2d) and "weight" in found:
            found["weight"] = _as_kernel(layer, found["weight"])
        return {names[short]: leaf for short, leaf in found.items()}

    return torch.as_tensor(sum(patients.lengths_of(leaf) for leaf in rows.values())), summed


def _is_product(layer: nn.Module, x: Tensor, g: Tensor) -> bool:
    """Whether the layer is linear, or a convolution with fewer pairs of places than weights."""
    if isinstance(layer, nn.Conv2d):
        return 2 * (g.shape[2] * g.shape[3]) ** 2 < layer.weight.numel()
    return isinstance(layer, nn.Linear) and x.dim() == 2


def _of_linear(x: Tensor, g: Tensor, patients: Patients, names: dict[str, str]) -> LayerPart:
    squares = []
    if "weight" in names:
        squares.append(patients.lengths_of_products(x, g))
    if "bias" in names:
        squares.append(patients.lengths_of(g))

    def summed(factors: Tensor) -> Tree:
        scaled = g * factors.unsqueeze(1)
        found = {"weight": lambda: scaled.mT @ x, "bias": lambda: scaled.sum(0)}
        return {name: found[short]() for short, name in names.items()}

    return torch.as_tensor(sum(squares)), summed


def _of_deep_convolution(
    layer: nn.Conv2d, x: Tensor, g: Tensor, patients: Patients, names: dict[str, str]
) -> LayerPart:
    """As for a linear layer that runs at every place: lengths from pairs of places, sums as a matrix product."""
    size = layer.weight[0].numel() * g.shape[2] * g.shape[3]
    at_bias = g.double().sum((2, 3))
    squares = []
    if "weight" in names:

        def of_means(rows: Tensor) -> Tensor:
            both = _patches(layer, x[rows.flatten()], g[rows.flatten()])
            left, right = (one.double().reshape(len(rows), -1, one.shape[2]) for one in both)
            return of_pairs(left, right)[0] / rows.shape[1] ** 2

        in_pieces = zip(pieces(x, size), pieces(g, size), strict=True)
        found = [of_pairs(*(one.double() for one in _patches(layer, *both))) for both in in_pieces]
        single, most = (torch.cat(one) for one in zip(*found, strict=True))
        squares.append(patients.squared_lengths(single, most, of_means, size))
    if "bias" in names:
        squares.append(patients.lengths_of(at_bias))

    def weight_sum(factors: Tensor) -> Tensor:
        total = factors.new_zeros(layer.out_channels, layer.weight[0].numel())
        for own, wide, high in zip(pieces(factors, size), pieces(x, size), pieces(g, size), strict=True):
            patches, at_output = (one.double() for one in _patches(layer, wide, high))
            total.addmm_(at_output.mul_(align(own, at_output)).flatten(0, 1).mT, patches.flatten(0, 1))
        return _as_kernel(layer, total)

    def summed(factors: Tensor) -> Tree:
        found = {"weight": lambda: weight_sum(factors), "bias": lambda: factors @ at_bias}
        return {name: found[short]() for short, name in names.items()}

    return torch.as_tensor(sum(squares)), summed


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


def _as_kernel(layer: nn.Conv2d, weight: Tensor) -> Tensor:
    """From channels last, as `_patches` has them, to a layer's own order."""
    out, channels, high, wide = layer.weight.shape
    return weight.reshape(out, high, wide, channels).permute(0, 3, 1, 2)
