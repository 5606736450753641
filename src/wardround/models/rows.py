"""Gradients of single rows, or of all rows of one patient, without writing most of them down.

One pass forward and one back to every layer's output; what the gradient of a row with respect to a layer's weights is
then follows from the layer's input and the gradient at its output (Goodfellow 2015, arXiv:1510.01799), by the rules of
`row_rules`. Where a layer has no rule, `by_layers` gives None and the caller differentiates row by row.

A network in single precision sees rows in blocks of one size, because matrix products round differently for different
numbers of rows: a patient's gradient must not depend on how many others were drawn. See `patients`.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from wardround.models.patients import Patients
from wardround.models.row_rules import is_known, of_layer, of_rows
from wardround.tree import Tree

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


def _rows_apart(caught: Caught, run: RowLosses, x: Tensor) -> bool:
    """Whether no row reaches another, which the rules here rest on. Tried out, once, with rows that are nobody's: where
    the second is no number, the first must come through every layer as a number, at the first place."""
    tried = torch.linspace(-1, 1, 2 * x[0].numel()).reshape(2, *x.shape[1:]).to(x)
    tried[1:] = torch.nan
    with torch.enable_grad():
        losses = run(tried.requires_grad_(), torch.zeros(2, dtype=torch.int64, device=x.device))
    seen = [losses.detach(), *(one.detach() for one in caught.inputs.values())]
    caught.apart = caught.usable(2) and all(bool(one[0].isfinite().all()) for one in seen)
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
    """By layer, what is kept of each row. None where a layer cannot be relied on."""
    parts: dict[str, list[Tree]] = {}
    for block, rows in _blocks(x):
        caught.clear()
        with torch.enable_grad():
            # something before the first layer must want a gradient for there to be one at its output
            total = run(block.detach().requires_grad_(), rows).sum()
            names = list(caught.outputs)
            found = torch.autograd.grad(total, [caught.outputs[name] for name in names], allow_unused=True)
        if not caught.usable(len(block)):
            caught.clear()
            return None
        for name, g in zip(names, found, strict=True):
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
    for name, kept in rows.items():
        part, summed = of_layer(caught.layers[name], kept, patients, trained[name])
        squares = squares + part
        sums.append(summed)

    def all_summed(factors: Tensor) -> Tree:
        gathered: Tree = {}
        for one in sums:
            gathered |= one(factors)
        return gathered

    return squares.sqrt(), all_summed


def _leaves(name: str, layer: nn.Module, params: Tree) -> dict[str, str]:
    """A layer's own leaves that are trained: their short and their full names."""
    prefix = f"{name}." if name else ""
    shorts = [short for short, _ in layer.named_parameters(recurse=False)]
    return {short: prefix + short for short in shorts if prefix + short in params}
