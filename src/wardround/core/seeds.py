"""Randomness derived from its purpose.

Every draw is keyed by (seed, purpose, round, site): no draw can disturb another, and two arms with
one seed see the same patients in the same batches, so that every comparison is paired.
"""

from hashlib import sha256
from typing import Any, cast

import numpy as np
from numpy.random.bit_generator import ISeedSequence


class _Digest(ISeedSequence):
    """A hash as a generator's initial state. numpy's SeedSequence would hash it again, at several times the cost."""

    def __init__(self, digest: bytes) -> None:
        self.digest = digest

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        return np.frombuffer(self.digest, dtype=np.dtype(dtype).newbyteorder("<"), count=n_words).astype(dtype)


def generator(seed: int, purpose: str, round_number: int = 0, site: str = "") -> np.random.Generator:
    """An independent stream for one purpose. The same arguments always give the same stream."""
    key = f"{seed}\x1f{purpose}\x1f{round_number}\x1f{site}".encode()
    first = cast("np.random.SeedSequence", _Digest(sha256(key).digest()))  # any ISeedSequence will do, the stubs differ
    return np.random.Generator(np.random.PCG64(first))


def number(seed: int, purpose: str, round_number: int = 0, site: str = "") -> int:
    """A 63-bit seed for libraries that take a number instead of a generator."""
    return int(generator(seed, purpose, round_number, site).integers(2**63))
