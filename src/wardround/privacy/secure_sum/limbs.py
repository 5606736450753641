"""Sums of an analysis as whole numbers modulo 2**64, fine enough for results that agree to 1e-8 and better.

A regression adds up numbers of very different sizes, and its last step needs more digits than one number of 63 bits has
between a safe cap and a fine step. So each number is a whole number of 40-bit limbs, and each limb travels as an
element of its own: those of up to 2**20 sites are added up without carrying over into the next. Each block of sums has
a public cap; the step to which its numbers are rounded follows from that cap alone. What is beyond a cap is refused at
the site that has it, before it sends anything.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from wardround.core.errors import SecureSumError, StudyError
from wardround.privacy.secure_sum.fixed_point import Whole

LIMBS, WIDTH = 6, 40
MASK = (1 << WIDTH) - 1
PAYLOAD = LIMBS * WIDTH  # bits of a number with its sign; the topmost limb has 23 bits to spare for the sum
MOST_SITES = 1 << 20

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Limbs:
    """`blocks` are the shape of each block of sums, and the largest absolute value of a site's number in it."""

    sites: int
    blocks: Mapping[str, tuple[tuple[int, ...], float]]

    def __post_init__(self) -> None:
        if not 0 < self.sites <= MOST_SITES:
            raise StudyError("secure_sum", f"{self.sites} sites do not fit", f"Add up at most {MOST_SITES}.")
        for name, (_, most) in self.blocks.items():
            if not (math.isfinite(most) and most > 0):
                raise StudyError(f"secure_sum: {name}", "the cap is no number above 0", "Please report it.")

    def bits(self, name: str) -> int:
        """After the point, such that no number of a site reaches 2**(PAYLOAD - 1)."""
        return PAYLOAD - 2 - math.frexp(self.blocks[name][1])[1]

    @cached_property
    def largest_cap(self) -> float:
        return max(most for _, most in self.blocks.values())

    @property
    def coarsest_step(self) -> float:
        """The sum of n sites is off by n/2 of these at most."""
        return math.ldexp(1.0, -min(map(self.bits, self.blocks)))

    @property
    def length(self) -> int:
        return LIMBS * sum(math.prod(shape) for shape, _ in self.blocks.values())

    def encode(self, sums: Arrays, site: str = "this site") -> Whole:
        elements: list[int] = []
        for name, (_, most) in self.blocks.items():
            bits = self.bits(name)
            for value in sums[name].ravel().tolist():
                if not abs(value) <= most:  # also where it is not a number
                    problem = f"a sum in {name!r} is beyond its public cap of {most:.3g}"
                    remedy = "Raise `most_rows` in [privacy.secure_sum], or declare the columns' `ranges` in [data]."
                    raise SecureSumError(site, problem, remedy)
                whole = _whole(value, bits)
                elements += [(whole >> shift) & MASK for shift in range(0, PAYLOAD - WIDTH, WIDTH)]
                elements.append((whole >> (PAYLOAD - WIDTH)) % (1 << 64))
        return np.array(elements, dtype=np.uint64)

    def decode(self, total: Whole) -> dict[str, np.ndarray]:
        decoded, start = {}, 0
        for name, (shape, most) in self.blocks.items():
            size = LIMBS * math.prod(shape)
            values = [self._number(limbs, self.bits(name)) for limbs in total[start : start + size].reshape(-1, LIMBS)]
            bound = self.sites * most * (1 + 2**-40)
            if any(abs(value) > bound for value in values):
                problem = f"the sum of {name!r} is outside what sites that keep to the caps can give"
                raise SecureSumError("coordinator", problem, "A site broke the protocol. Find out which first.")
            decoded[name] = np.array(values, dtype=np.float64).reshape(shape)
            start += size
        return decoded

    @staticmethod
    def _number(limbs: np.ndarray, bits: int) -> float:
        *low, top = (int(limb) for limb in limbs)
        top -= (1 << 64) if top >> 63 else 0
        whole = sum(limb << (place * WIDTH) for place, limb in enumerate(low)) + (top << (PAYLOAD - WIDTH))
        return _ratio(whole, bits)


def _whole(value: float, bits: int) -> int:
    """The whole number nearest to value x 2**bits; exact where the value has no finer bits."""
    mantissa, exponent = math.frexp(value)
    digits, shift = int(math.ldexp(mantissa, 53)), exponent - 53 + bits
    if shift >= 0:
        return digits << shift
    half = 1 << (-shift - 1)
    return (digits + half) >> -shift


def _ratio(whole: int, bits: int) -> float:
    return whole / (1 << bits) if bits >= 0 else float(whole << -bits)
