"""Updates as whole numbers modulo 2**64, so that masks can hide them and their sum is exact in any order.

A site's element is `weight * value * 2**bits`, rounded to the nearest whole number; its weight travels as one more
element. Two public caps, on a site's weight and on the absolute value of an update, fix `bits` such that no sum of so
many sites reaches 2**63. So nothing can wrap around: what is beyond a cap is refused at the site that has it, before
it sends anything. Nothing is ever clipped in silence.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wardround.core import tree
from wardround.core.errors import SecureSumError, StudyError
from wardround.core.tree import State
from wardround.study.schema import SecureSum

LIMIT = 2**63
CHUNK = 1 << 15  # values at a time, so that what is in work stays in the processor's cache

Whole = NDArray[np.uint64]
Values = NDArray[np.floating[Any]]
Shapes = Mapping[str, tuple[int, ...]]  # of an update's leaves by their flat names, in their order


@dataclass(frozen=True)
class Encoding:
    """How updates become whole numbers. Public, and the same at every site and at the coordinator.

    `sites` are how many at most are added up, `most_weight` is the most that one of them may weigh, `largest` the
    largest absolute value of an update's element.
    """

    sites: int
    most_weight: float
    largest: float

    def __post_init__(self) -> None:
        for name in ("sites", "most_weight", "largest"):
            value = getattr(self, name)
            if not 1e-30 <= value <= 1e30:
                raise StudyError(f"secure_sum: {name}", f"{value} is no cap", "Give a number above 0.")
        if min(self.bits, self.weight_bits) < 0:
            problem = (
                f"{self.sites} sites x weight {self.most_weight:g} x value {self.largest:g} do not fit into 63 bits"
            )
            raise StudyError("secure_sum", problem, "Lower the largest weight or the largest value.")

    @cached_property
    def bits(self) -> int:
        """Of an element after the point."""
        return _bits(self.sites, Fraction(self.most_weight) * Fraction(self.largest))

    @cached_property
    def weight_bits(self) -> int:
        return _bits(self.sites, Fraction(self.most_weight))

    @property
    def resolution(self) -> float:
        """The step of an element `weight * value`. Rounding moves the sum of n sites by n/2 steps at most.

        The product itself is rounded to 53 significant bits, as any double; products of a float32 and a whole weight
        below 2**29 are exact.
        """
        return math.ldexp(1.0, -self.bits)

    @property
    def weight_resolution(self) -> float:
        return math.ldexp(1.0, -self.weight_bits)

    def encode(self, values: Values | Iterable[Values], weight: float, site: str = "this site") -> Whole:
        """`weight * values` and the weight after them. Several arrays are laid end to end, each in its own order."""
        if not 0 <= weight <= self.most_weight:  # not a number is neither
            problem = f"a weight of {weight:g} is outside 0 to {self.most_weight:g}"
            raise SecureSumError(
                site, problem, "Raise `most_weight` in the study; every site must then approve it anew."
            )
        leaves = [leaf.reshape(-1) for leaf in ([values] if isinstance(values, np.ndarray) else values)]
        encoded = np.empty(sum(leaf.size for leaf in leaves) + 1, np.uint64)
        factor = math.ldexp(weight, self.bits)  # exact: a power of two changes the exponent only
        start = 0
        for chunk in _chunks(leaves):
            product = chunk.astype(np.float64)
            if not (max(product.max(), -product.min()) <= self.largest):  # also where it is not a number
                raise self._too_large(product, site)
            product *= factor
            np.rint(product, out=product)
            encoded[start : start + product.size] = product.astype(np.int64).view(np.uint64)
            start += product.size
        encoded[-1] = round(math.ldexp(weight, self.weight_bits))
        return encoded

    def decode(self, total: Whole) -> tuple[NDArray[np.float64], float]:
        """Sum of the weighted values, and sum of the weights. Their quotient is the weighted mean."""
        weight = math.ldexp(int(total[-1]), -self.weight_bits)
        summed = total[:-1].view(np.int64).astype(np.float64)
        summed *= self.resolution
        slack = self.sites * (self.resolution + self.weight_resolution * self.largest)
        bound = weight * self.largest * (1 + 2**-40) + slack
        most = max(summed.max(), -summed.min()) if summed.size else 0.0
        if weight > self.sites * (self.most_weight + self.weight_resolution) or most > bound:
            problem = "the sum is outside what sites that keep to the caps can give"
            raise SecureSumError("coordinator", problem, "A site broke the protocol. Find out which before you go on.")
        return summed, weight

    def _too_large(self, product: NDArray[np.float64], site: str) -> SecureSumError:
        if not np.isfinite(product).all():
            remedy = "Lower the learning rate, or clip updates."
            return SecureSumError(site, "the update has elements that are no finite numbers", remedy)
        problem = f"the update has an element beyond the cap of {self.largest:g}"
        return SecureSumError(site, problem, "Clip updates, or raise `largest` in the study.")


def _bits(sites: int, most: Fraction) -> int:
    """The most bits after the point for which the sum stays below 2**63. In fractions, which do not round."""
    most *= 1 + Fraction(1, 2**52)  # a product of doubles may be rounded up
    room = Fraction(LIMIT) / (sites * most)
    bits = room.numerator.bit_length() - room.denominator.bit_length() + 1  # too many by two at most
    while sites * (most * Fraction(2) ** bits + Fraction(1, 2)) >= LIMIT:
        bits -= 1
    return bits


def _chunks(leaves: Iterable[Values]) -> Iterator[Values]:
    for leaf in leaves:
        for start in range(0, leaf.size, CHUNK):
            yield leaf[start : start + CHUNK]


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
