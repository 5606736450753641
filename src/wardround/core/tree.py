"""Arithmetic on parameter trees: flat dicts from name to tensor.

Functions return new trees and do not write into their arguments, except those whose names end with `into` or `within`.
Leaves may carry leading axes (a stack of sites, a stack of runs): plain broadcasting then applies one formula to all of
them at once. A number per site or run, such as mu, has the leading axes alone; `scale` lines it up. Nothing here
branches on a value.
"""

from collections.abc import Callable, Mapping
from hashlib import sha256

import torch
from torch import Tensor

Tree = dict[str, Tensor]
PIECE = 2**18  # numbers that stay in a processor's cache
State = dict[str, Tree]  # named trees: {"params": ..., "control": ...}


def apply(function: Callable[..., Tensor], first: Tree, *rest: Tree) -> Tree:
    return {name: function(leaf, *(tree[name] for tree in rest)) for name, leaf in first.items()}


def add(a: Tree, b: Tree) -> Tree:
    return {name: leaf + b[name] for name, leaf in a.items()}


def sub(a: Tree, b: Tree) -> Tree:
    return {name: leaf - b[name] for name, leaf in a.items()}  # once a step: each microsecond counts


def scale(a: Tree, factor: float | Tensor) -> Tree:
    """Multiply by one number, or by one for each position of the leading axes."""
    if isinstance(factor, Tensor) and factor.dim():
        return {name: leaf * align(factor, leaf) for name, leaf in a.items()}
    return {name: leaf * factor for name, leaf in a.items()}


def add_scaled(a: Tree, b: Tree, factor: Tensor) -> Tree:
    """a + factor x b, in one pass."""
    return {name: torch.addcmul(leaf, b[name], align(factor, leaf)) for name, leaf in a.items()}


def align(factor: Tensor, leaf: Tensor) -> Tensor:
    """`factor` with axes of length 1 added behind, until it has as many as `leaf`."""
    return factor.view(*factor.shape, *(1,) * (leaf.dim() - factor.dim()))  # half the time of adding two shapes


def zeros_like(a: Tree) -> Tree:
    return apply(torch.zeros_like, a)


def squared_norm(a: Tree) -> Tensor:
    """Sum of squares over all leaves, as one vector."""
    return torch.stack([torch.linalg.vector_norm(leaf).square() for leaf in a.values()]).sum() if a else torch.zeros(())


def sum_of_squares(a: Tree, axes: int) -> Tensor:
    """Over all leaves, for each position of their first `axes` axes."""
    return torch.stack(
        [leaf.flatten(axes).square().sum(-1) if leaf.dim() > axes else leaf.square() for leaf in a.values()]
    ).sum(0)


def clone(a: Tree) -> Tree:
    return apply(torch.clone, a)


def settle(state: State) -> State:
    """Every leaf in one plain layout. Sums depend on it in their last bit, and a file brings back no other."""
    return {part: apply(Tensor.contiguous, leaves) for part, leaves in state.items()}


def for_convolutions(state: State) -> State:
    """Kernels in the layout in which convolutions are fastest, channels last; all else as it is."""

    def laid_out(leaf: Tensor) -> Tensor:
        return leaf.contiguous(memory_format=torch.channels_last) if leaf.dim() == 4 else leaf

    return {part: apply(laid_out, leaves) for part, leaves in state.items()}


def scale_state(state: State, factor: float | Tensor) -> State:
    return {part: scale(leaves, factor) for part, leaves in state.items()}


def add_into(total: State, more: State) -> State:
    """Adds in place, because new memory is what takes time for a large model. Nobody else may hold `total`."""
    for part, leaves in total.items():
        for name, leaf in leaves.items():
            leaf.add_(more[part][name])
    return total


def add_scaled_into(total: State | None, more: State, factor: float) -> State:
    """total + factor x more, in place, some numbers at a time: as many as stay in the processor's cache."""
    if total is None:
        return scale_state(more, factor)
    for part, leaves in total.items():
        for name, leaf in leaves.items():
            other = more[part][name]
            if leaf.numel() > PIECE and leaf.is_contiguous() and other.is_contiguous():
                mine_and_other = (torch.split(flat.view(-1), PIECE) for flat in (leaf, other))
                for mine, piece in zip(*mine_and_other, strict=True):
                    mine.add_(piece * factor)
            else:
                leaf.add_(other * factor)
    return total


def scale_within(state: State, factor: float) -> State:
    """In place. Nobody else may hold `state`."""
    for leaves in state.values():
        for leaf in leaves.values():
            leaf.mul_(factor)
    return state


def as_rows(leaves: Tree) -> Tensor:
    """A row for each position of the leading axis, in memory of its own."""
    return torch.cat([leaf.flatten(1) if leaf.dim() > 1 else leaf.unsqueeze(1) for leaf in leaves.values()], dim=1)


def as_leaves(rows: Tensor, like: Tree) -> Tree:
    """The reverse, in the shapes of `like`."""
    parts = torch.split(rows, [leaf[0].numel() for leaf in like.values()], dim=1)
    return {name: part.reshape(leaf.shape) for (name, leaf), part in zip(like.items(), parts, strict=True)}


def count_bytes(state: Mapping[str, Tree]) -> int:
    """Size of what is sent: the tensors' own bytes, without any framing."""
    return sum(leaf.numel() * leaf.element_size() for leaves in state.values() for leaf in leaves.values())


def flatten(state: State) -> Tree:
    """One flat tree, as safetensors stores it. Names join with '/', which part names therefore never contain."""
    return {f"{part}/{name}": leaf for part, leaves in state.items() for name, leaf in leaves.items()}


def unflatten(flat: Mapping[str, Tensor]) -> State:
    state: State = {}
    for key, leaf in flat.items():
        part, name = key.split("/", 1)
        state.setdefault(part, {})[name] = leaf
    return state


def leaves_hash(leaves: Tree) -> bytes:
    """SHA-256 of names, types, shapes and numbers, in whatever order they come."""
    digest = sha256()
    for name in sorted(leaves):
        leaf = leaves[name].detach().contiguous().cpu()
        digest.update(f"{name}\x1f{leaf.dtype}\x1f{tuple(leaf.shape)}\x1f".encode() + leaf.numpy().tobytes())
    return digest.digest()
