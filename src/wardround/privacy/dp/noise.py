"""Where sampling and noise come from: a stream of numbers for one purpose in one round.

In a simulation it comes from the study's seed, so that a run repeats; the guarantee of differential privacy then holds
against nobody who knows the seed. In a deployment it is a cryptographic stream, keyed by a secret that the site drew
from its operating system: whoever has the key repeats every bit, nobody else can tell one.
"""

import math
from hashlib import sha256
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from wardround.core import seeds
from wardround.core.extras import needs
from wardround.core.tree import Tree

KEY_BYTES = 32


class Stream(Protocol):
    def uniform(self, count: int) -> np.ndarray:
        """Uniform in (0, 1]."""

    def normal(self, count: int, dtype: torch.dtype) -> Tensor:
        """Standard normal, in this precision or in double."""


class SeededStream:
    """Repeatable, fast, and secret from nobody."""

    def __init__(self, seed: int, purpose: str, round_number: int, site: str) -> None:
        self.numbers = seeds.generator(seed, purpose, round_number, site)
        self.generator = torch.Generator().manual_seed(seeds.number(seed, f"{purpose} of tensors", round_number, site))

    def uniform(self, count: int) -> np.ndarray:
        return 1 - self.numbers.random(count)

    def normal(self, count: int, dtype: torch.dtype) -> Tensor:
        return torch.randn(count, generator=self.generator, dtype=dtype)


class SecretStream:
    """AES-256 in counter mode."""

    def __init__(self, key: bytes, purpose: str) -> None:
        with needs("deploy", "noise that nobody can repeat"):
            from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        own = sha256(key + b"\x1f" + purpose.encode()).digest()
        self.cipher = Cipher(algorithms.AES(own), modes.CTR(bytes(16))).encryptor()

    def uniform(self, count: int) -> np.ndarray:
        """53 bits each; never 0, of which there is no logarithm."""
        whole = np.frombuffer(self.cipher.update(bytes(8 * count)), dtype="<u8")
        return ((whole >> np.uint64(11)).astype(np.float64) + 1) * 2.0**-53

    def normal(self, count: int, dtype: torch.dtype) -> Tensor:
        """Box and Muller (1958), whatever `dtype` is in double precision: see `with_noise`."""
        half = -(-count // 2)
        both = torch.from_numpy(self.uniform(2 * half))
        radius, angle = both[:half].log().mul_(-2).sqrt_(), both[half:].mul_(2 * math.pi)
        return torch.cat([radius * angle.cos(), radius.mul_(angle.sin_())])[:count]


def chosen(stream: Stream, count: int, rate: float) -> np.ndarray:
    """Each of `count` by itself, with probability `rate`: the numbers of those that are chosen (Poisson sampling)."""
    return np.flatnonzero(stream.uniform(count) <= rate)


def with_noise(stream: Stream, leaves: Tree, spread: float, dtype: torch.dtype | None = None) -> Tree:
    """A tree with noise of this standard deviation on every number, drawn as one vector; in the precision `dtype`, or
    in the tree's own.

    Noise in double precision is added in double precision, and only the sum is rounded. Single numbers of a noise that
    was itself rounded to single precision have gaps, and a sum that falls where only one of two values could have
    brought it tells which it was (Mironov, CCS 2012).
    """
    sizes = [leaf.numel() for leaf in leaves.values()]
    drawn = stream.normal(sum(sizes), dtype or next(iter(leaves.values())).dtype).mul_(spread)
    parts = torch.split(drawn, sizes)
    return {
        name: (leaf + part.reshape(leaf.shape).to(leaf.device)).to(dtype or leaf.dtype)
        for (name, leaf), part in zip(leaves.items(), parts, strict=True)
    }


def site_key(secret: bytes, run: str, arm: str, seed: int, round_number: int) -> bytes:
    """From a site's own secret: the same question has the same answer, and the key of one round tells no other."""
    with needs("deploy", "noise that nobody can repeat"):
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    info = f"wardround\x1f{run}\x1f{arm}\x1f{seed}\x1f{round_number}".encode()
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(secret)
