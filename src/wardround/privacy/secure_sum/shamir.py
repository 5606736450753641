"""Shamir's secret sharing (Communications of the ACM 22, 1979): any `threshold` shares give a secret, fewer nothing.

A secret is the value at 0 of a polynomial of degree threshold - 1, whose other coefficients are drawn evenly from a
prime field; the share of holder k is its value at k. Whoever has one share less knows nothing: each possible secret
goes through their points with exactly one polynomial.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

PRIME = 2**256 + 297  # the smallest prime above 2**256, so that every secret of 32 bytes is an element
SECRET_BYTES = 32
SHARE_BYTES = 33
DRAW_BYTES = 48  # for one coefficient: 128 bits more than the field has, so that the remainder is even to 2**-127


def coefficients(drawn: bytes, prime: int = PRIME) -> list[int]:
    """Elements of the field from random bytes, `DRAW_BYTES` for each."""
    return [int.from_bytes(drawn[at : at + DRAW_BYTES], "big") % prime for at in range(0, len(drawn), DRAW_BYTES)]


def split(secret: int, drawn: Sequence[int], holders: int, prime: int = PRIME) -> list[int]:
    """A share for each of the holders 1, 2, ...; the threshold is one more than there are drawn coefficients."""
    if not 0 <= secret < prime or not len(drawn) < holders < prime:
        raise ValueError("the secret must be in the field, and there must be at least as many holders as the threshold")
    shares = []
    for holder in range(1, holders + 1):
        value = 0
        for coefficient in reversed(drawn):
            value = (value + coefficient) * holder % prime
        shares.append((value + secret) % prime)
    return shares


def combine(shares: Mapping[int, int], prime: int = PRIME) -> int:
    """The secret from exactly `threshold` shares by holder. Wrong shares give another number, not an error."""
    factors = _factors(tuple(sorted(shares)), prime)
    return sum(factor * shares[holder] for holder, factor in factors) % prime


@lru_cache(maxsize=8)  # one round asks for the secrets of many sites from the same holders
def _factors(holders: tuple[int, ...], prime: int) -> tuple[tuple[int, int], ...]:
    """Lagrange's factors at 0."""
    factors = []
    for holder in holders:
        above = below = 1
        for other in holders:
            if other != holder:
                above = above * other % prime
                below = below * (other - holder) % prime
        factors.append((holder, above * pow(below, -1, prime) % prime))
    return tuple(factors)
