"""Randomness derived from its purpose.

Every draw is keyed by (seed, purpose, round, site): no draw can disturb another, and two arms with
one seed see the same patients in the same batches, so that every comparison is paired.
"""

from hashlib import sha256

import numpy as np


def generator(seed: int, purpose: str, round_number: int = 0, site: str = "") -> np.random.Generator:
    """An independent stream for one purpose. The same arguments always give the same stream."""
    key = f"{seed}\x1f{purpose}\x1f{round_number}\x1f{site}".encode()
    # a counter-based generator takes the hash as its key; seeding any other kind costs twice the time
    return np.random.Generator(np.random.Philox(key=np.frombuffer(sha256(key).digest()[:16], dtype="<u8")))


def number(seed: int, purpose: str, round_number: int = 0, site: str = "") -> int:
    """A 63-bit seed for libraries that take a number instead of a generator."""
    return int(generator(seed, purpose, round_number, site).integers(2**63))
