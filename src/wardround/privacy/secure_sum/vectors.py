"""An update as one vector of numbers, and back: what a secure sum adds up."""

import math
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

from wardround.core import tree
from wardround.core.tree import State
from wardround.privacy.secure_sum.fixed_point import Encoding
from wardround.study.schema import SecureSum

Shapes = Mapping[str, tuple[int, ...]]  # of an update's leaves by their flat names, in their order


def shapes_of(update: State) -> dict[str, tuple[int, ...]]:
    return {name: tuple(leaf.shape) for name, leaf in tree.flatten(update).items()}


def arrays_of(update: State) -> list[np.ndarray]:
    """The leaves as they are, without a copy."""
    return [leaf.detach().cpu().numpy() for leaf in tree.flatten(update).values()]


def mean_of(summed: np.ndarray, weight: float, shapes: Shapes, dtype: torch.dtype) -> State:
    """The weighted mean of the updates, from the sum of the weighted values and of the weights."""
    flat: dict[str, Tensor] = {}
    start = 0
    for name, shape in shapes.items():
        size = math.prod(shape)
        part = summed[start : start + size] / weight
        flat[name] = torch.from_numpy(part.reshape(shape)).to(dtype)
        start += size
    return tree.unflatten(flat)


def encoding_of(secure: SecureSum, sites: int) -> Encoding:
    return Encoding(sites, float(secure.most_rows), secure.largest)


def size_of(shapes: Iterable[tuple[int, ...]]) -> int:
    return sum(math.prod(shape) for shape in shapes)
