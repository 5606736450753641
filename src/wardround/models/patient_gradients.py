"""Lengths and weighted sums of patients' gradients, without writing down the gradients of most rows.

A row's gradient with respect to the weights of a layer follows from the layer's input and the gradient at its output.
For a linear layer it is an outer product: its length is a product of lengths, and a weighted sum over rows is one
matrix product (Bu et al., ICML 2023, arXiv:2210.00038). So it is at every place of a convolution; deep in a network,
where places are few and weights many, lengths come from pairs of places (Bu et al., NeurIPS 2022, arXiv:2205.10683).
For other layers the rows' gradients are written down.

What a patient adds to the sum must depend on the patient's own rows and on nobody else's: else one patient more would
also change what thousands of others add. So lengths and sums are in double precision, and each patient's length is
computed in the same way whether or not others have several rows.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional as F

from wardround.core.tree import Tree, align

# 64 units of the last place of a sum of some thousand products: more than their square root
ROUNDING = 64 * torch.finfo(torch.float64).eps
AT_A_TIME = 2**18  # numbers that are turned into double precision at once: so many stay in a processor's cache


@dataclass(frozen=True)
class Patients:
    """Which rows of a batch belong together. `part` is each row's share of its patient's mean."""

    place: Tensor  # number of each row's patient
    count: int
    part: Tensor

    @classmethod
    def of(cls, patients: Tensor) -> "Patients":
        place = torch.unique(patients, return_inverse=True)[1]
        rows = torch.bincount(place) if len(place) else place
        return cls(place, len(rows), (1 / rows.double())[place] if len(place) else rows.double())

    @property
    def alone(self) -> bool:
        """Whether every patient has one row here."""
        return self.count == len(self.place)

    @cached_property
    def repeated(self) -> list[tuple[Tensor, Tensor]]:
        """Patients with several rows, grouped by their number of rows: the patients, and their rows (patient, row)."""
        if self.alone:
            return []
        order = torch.argsort(self.place, stable=True)
        rows = torch.bincount(self.place)
        begins = rows.cumsum(0) - rows
        groups = []
        for many in torch.unique(rows[rows > 1]).tolist():
            who = torch.nonzero(rows == many).squeeze(1)
            groups.append((who, order[begins[who].unsqueeze(1) + torch.arange(many, device=order.device)]))
        return groups

    def means(self, each: Tensor) -> Tensor:
        """Over each patient's rows; `each` has a row's gradient at each place of its first axis."""
        if self.alone:
            return each.new_empty(each.shape).index_copy_(0, self.place, each)
        return each.new_zeros(self.count, *each.shape[1:]).index_add_(0, self.place, each * align(self.part, each))

    def squared_lengths(self, single: Tensor, most: Tensor, of_means: Callable[[Tensor], Tensor], size: int) -> Tensor:
        """Of each patient's mean gradient. `single` are the rows' own, for patients who have but one, and `most` what
        a row's length is if nothing in it cancels. `of_means` gives those of patients with several rows, from the
        numbers of their rows, a patient a line; it works with `size` numbers for each row."""
        squares = single.new_empty(self.count).index_copy_(0, self.place, never_too_small(single, most))
        for who, rows in self.repeated:
            parts = torch.split(rows, max(1, AT_A_TIME // (size * rows.shape[1])))
            squares[who] = never_too_small(torch.cat([of_means(part) for part in parts]), most[rows].mean(1))
        return squares

    def lengths_of(self, each: Tensor) -> Tensor:
        """Squared, where rows' gradients are written down."""
        each = each.flatten(1)
        parts = [each] if each.dtype == torch.float64 else chunks(each, each.shape[1])
        lengths = torch.cat([torch.linalg.vector_norm(part.double(), dim=1) for part in parts])

        def of_means(rows: Tensor) -> Tensor:
            means: Tensor = torch.linalg.vector_norm(each[rows].double().mean(1), dim=1)
            return means.square()

        return self.squared_lengths(lengths.square(), lengths, of_means, each.shape[1])

    def lengths_of_products(self, left: Tensor, right: Tensor) -> Tensor:
        """Squared, where a row's gradient is the outer product left x right, in double precision."""
        most = torch.linalg.vector_norm(left, dim=1) * torch.linalg.vector_norm(right, dim=1)

        def of_means(rows: Tensor) -> Tensor:
            return of_pairs(left[rows], right[rows])[0] / rows.shape[1] ** 2

        return self.squared_lengths(most.square(), most, of_means, left.shape[1])


def of_pairs(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Of sums of outer products over places, (any, places, numbers) in double precision: squared lengths, and what the
    lengths are if nothing cancels. |sum of a_p b_p'|^2 is the sum over pairs of places of (a_p.a_q)(b_p.b_q)."""
    pairs = torch.bmm(left, left.mT).mul_(torch.bmm(right, right.mT))
    return pairs.sum((1, 2)), pairs.diagonal(dim1=1, dim2=2).sqrt().sum(1)


def never_too_small(squares: Tensor, most: Tensor) -> Tensor:
    """Where a patient's rows or places nearly cancel, rounding is all that is left of squares. A length that comes out
    too small would be a clip too large, so that what rounding may have taken is added: for everybody, always."""
    return squares.clamp(min=0).addcmul(most, most, value=ROUNDING)


def weighted_sum(factors: Tensor, each: Tensor) -> Tensor:
    """Of the rows of `each`, in double precision, without a copy of all of them in it."""
    flat = each.flatten(1)
    if flat.dtype == torch.float64:
        return (factors @ flat).reshape(each.shape[1:])
    total = factors.new_zeros(flat.shape[1])
    for own, part in zip(chunks(factors, flat.shape[1]), chunks(flat, flat.shape[1]), strict=True):
        total.addmv_(part.double().mT, own)
    return total.reshape(each.shape[1:])


def chunks(rows: Tensor, size: int) -> Iterator[Tensor]:
    """Chunks of rows whose numbers, `size` per row, fit into the cache in double precision."""
    return iter(torch.split(rows, max(1, AT_A_TIME // max(1, size))))


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
        sums = {short: weighted_sum(factors, leaf) for short, leaf in rows.items()}
        if isinstance(layer, nn.Conv2d) and "weight" in sums:
            sums["weight"] = _as_kernel(layer, sums["weight"])
        return {names[short]: leaf for short, leaf in sums.items()}

    return torch.as_tensor(sum(patients.lengths_of(leaf) for leaf in rows.values())), summed


def _is_product(layer: nn.Module, x: Tensor, g: Tensor) -> bool:
    """Whether the layer is linear, or a convolution with fewer pairs of places than weights."""
    if isinstance(layer, nn.Conv2d):
        return 2 * (g.shape[2] * g.shape[3]) ** 2 < layer.weight.numel()
    return isinstance(layer, nn.Linear) and x.dim() == 2


def _of_linear(x: Tensor, g: Tensor, patients: Patients, names: dict[str, str]) -> LayerPart:
    squares = {"weight": lambda: patients.lengths_of_products(x, g), "bias": lambda: patients.lengths_of(g)}

    def summed(factors: Tensor) -> Tree:
        scaled = g * factors.unsqueeze(1)
        sums = {"weight": lambda: scaled.mT @ x, "bias": lambda: scaled.sum(0)}
        return {name: sums[short]() for short, name in names.items()}

    return torch.as_tensor(sum(squares[short]() for short in names)), summed


def _of_deep_convolution(
    layer: nn.Conv2d, x: Tensor, g: Tensor, patients: Patients, names: dict[str, str]
) -> LayerPart:
    """As for a linear layer that runs at every place: lengths from pairs of places, sums as a matrix product."""
    size = layer.weight[0].numel() * g.shape[2] * g.shape[3]
    at_bias = g.double().sum((2, 3))

    def of_means(rows: Tensor) -> Tensor:
        patches = _patches(layer, x[rows.flatten()], g[rows.flatten()])
        left, right = (part.double().reshape(len(rows), -1, part.shape[2]) for part in patches)
        return of_pairs(left, right)[0] / rows.shape[1] ** 2

    def weight_lengths() -> Tensor:
        in_chunks = zip(chunks(x, size), chunks(g, size), strict=True)
        lengths = [of_pairs(*(part.double() for part in _patches(layer, *both))) for both in in_chunks]
        single, most = map(torch.cat, zip(*lengths, strict=True))
        return patients.squared_lengths(single, most, of_means, size)

    squares: dict[str, Callable[[], Tensor]] = {"weight": weight_lengths, "bias": lambda: patients.lengths_of(at_bias)}

    def weight_sum(factors: Tensor) -> Tensor:
        total = factors.new_zeros(layer.out_channels, layer.weight[0].numel())
        for own, wide, high in zip(chunks(factors, size), chunks(x, size), chunks(g, size), strict=True):
            patches, at_output = (part.double() for part in _patches(layer, wide, high))
            total.addmm_(at_output.mul_(align(own, at_output)).flatten(0, 1).mT, patches.flatten(0, 1))
        return _as_kernel(layer, total)

    def summed(factors: Tensor) -> Tree:
        sums = {"weight": lambda: weight_sum(factors), "bias": lambda: factors @ at_bias}
        return {name: sums[short]() for short, name in names.items()}

    return torch.as_tensor(sum(squares[short]() for short in names)), summed


def _patches(layer: nn.Conv2d, x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """What each place of the output saw, (rows, places, height x width x channels of a kernel), and the gradient there,
    (rows, places, channels). Channels come last, so that they are copied in one piece: half the time of `F.unfold`."""
    horizontal, vertical = int(layer.padding[1]), int(layer.padding[0])
    wide = F.pad(x, (horizontal, horizontal, vertical, vertical)).permute(0, 2, 3, 1).contiguous()
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


# In full blocks of 16 rows or more, a row's numbers were seen to be the same bits at every place and in any company.
# The last block is shorter, and its rows may differ in their last digits.
BLOCK = 32
RowLosses = Callable[[Tensor, Tensor | slice], Tensor]  # inputs, and which rows of the batch they are -> their losses


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
        def hook(part: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            self.twice = self.twice or name in self.inputs
            self.inputs[name], self.versions[name] = inputs[0], inputs[0]._version
            # an edge of the graph, not the tensor: what comes next may write into it (`relu(inplace=True)`)
            self.outputs[name] = get_gradient_edge(output)

        return hook

    def clear(self) -> None:
        self.inputs, self.versions, self.outputs, self.twice = {}, {}, {}, False

    def usable(self, rows: int) -> bool:
        """Whether every layer ran once, with rows along its first axis, and nobody wrote into what went into it."""
        return not self.twice and all(
            len(x) == rows and x._version == self.versions[name] for name, x in self.inputs.items()
        )


def _unshared(module: nn.Module) -> bool:
    ids = [id(leaf) for part in module.modules() for leaf in part.parameters(recurse=False)]
    return len(ids) == len(set(ids))


def _rows_apart(caught: Caught, run: RowLosses, x: Tensor) -> bool:
    """Whether no row reaches another, which the rules here rest on. Tried out, once, with rows that are nobody's: where
    the second is no number, the first must come through every layer as a number, at the first place."""
    tried = torch.linspace(-1, 1, 2 * x[0].numel()).reshape(2, *x.shape[1:]).to(x)
    tried[1:] = torch.nan
    with torch.enable_grad():
        losses = run(tried.requires_grad_(), torch.zeros(2, dtype=torch.int64, device=x.device))
    seen = [losses.detach(), *(x.detach() for x in caught.inputs.values())]
    caught.apart = caught.usable(2) and all(bool(values[0].isfinite().all()) for values in seen)
    caught.clear()
    return caught.apart


def _blocks(x: Tensor) -> Iterator[tuple[Tensor, slice]]:
    """Rows that go through the network together, and which they are."""
    size = len(x) if x.dtype == torch.float64 else BLOCK
    for begin in range(0, len(x), size):
        rows = slice(begin, begin + size)
        yield x[rows], rows


def _of_all_rows(
    caught: Caught, trained: dict[str, dict[str, str]], run: RowLosses, x: Tensor
) -> dict[str, Tree] | None:
    """By layer, what is stored of each row. None if a layer cannot be relied on."""
    parts: dict[str, list[Tree]] = {}
    for block, rows in _blocks(x):
        caught.clear()
        with torch.enable_grad():
            # something before the first layer must want a gradient for there to be one at its output
            total = run(block.detach().requires_grad_(), rows).sum()
            names = list(caught.outputs)
            grads = torch.autograd.grad(total, [caught.outputs[name] for name in names], allow_unused=True)
        if not caught.usable(len(block)):
            caught.clear()
            return None
        for name, g in zip(names, grads, strict=True):
            if g is not None and trained[name]:
                own = of_rows(caught.layers[name], caught.inputs[name].detach(), g.detach(), trained[name])
                parts.setdefault(name, []).append(own)
    caught.clear()
    return {name: _joined(blocks) for name, blocks in parts.items()}


def _joined(blocks: list[Tree]) -> Tree:
    if len(blocks) == 1:
        return blocks[0]
    return {name: torch.cat([block[name] for block in blocks]) for name in blocks[0]}


def by_layers(
    caught: Caught, params: Tree, run: RowLosses, x: Tensor, patients: Patients
) -> tuple[Tensor, Callable[[Tensor], Tree]] | None:
    """None where a layer has no rule or ran twice, or where rows reach each other."""
    if not caught.known:
        return None
    caught.clear()
    if x.dim() == 4:
        x = x.to(memory_format=torch.channels_last)  # as `Model.gradient` does it
    if not caught.apart and not _rows_apart(caught, run, x):
        return None
    trained = {name: _leaves(name, layer, params) for name, layer in caught.layers.items()}
    rows = _of_all_rows(caught, trained, run, x)
    if rows is None:
        return None
    squares: Tensor = torch.zeros(patients.count, dtype=torch.float64, device=x.device)
    sums: list[Callable[[Tensor], Tree]] = []
    for name, of_name in rows.items():
        part, summed = of_layer(caught.layers[name], of_name, patients, trained[name])
        squares = squares + part
        sums.append(summed)

    def all_summed(factors: Tensor) -> Tree:
        return {name: leaf for summed in sums for name, leaf in summed(factors).items()}

    return squares.sqrt(), all_summed


def _leaves(name: str, layer: nn.Module, params: Tree) -> dict[str, str]:
    """A layer's own leaves that are trained: their short and their full names."""
    prefix = f"{name}." if name else ""
    shorts = [short for short, _ in layer.named_parameters(recurse=False)]
    return {short: prefix + short for short in shorts if prefix + short in params}
