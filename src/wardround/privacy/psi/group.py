"""The group in which patient ids are hidden: the points of prime order on edwards25519, from libsodium by PyNaCl.

An id becomes a point of which nobody knows the logarithm: SHA-512 gives two numbers, Elligator 2 (Bernstein et al.,
CCS 2013) makes a point of each, and their sum is as good as a random point (Brier et al., CRYPTO 2010; the same idea as
hash_to_curve in RFC 9380). The logarithm must be unknown: if an id were a number times the base point, whoever sees one
hidden id could try all others on it. libsodium refuses points that are not on the curve, of small order, of mixed
order, or written in another form than the one that is valid, whenever it multiplies one.

Lists of points are byte strings of 32 bytes for each. libsodium works outside Python's lock, so that threads help.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, reduce
from hashlib import sha512
from types import ModuleType

from wardround.core.extras import missing_extra, needs
from wardround.privacy.secure_sum.masks import derive, pack

MATCHING = "matching patients"  # where an error says it is
POINT = 32  # bytes
CHUNK = 512  # points that a thread takes at a time
# The base point plus the point of order 2. libsodium took such points for valid until the end of 2025 (CVE-2025-69277).
MIXED_ORDER = bytes.fromhex("95" + 31 * "99")


class InvalidPoint(ValueError):
    """Somewhere in a list stands something that is not a point of the group."""


@cache
def sodium() -> ModuleType:
    """PyNaCl's bindings, once they have shown that they refuse a bad point."""
    with needs("privacy", MATCHING):
        from nacl import bindings
    if not bindings.has_crypto_core_ed25519 or not bindings.has_crypto_scalarmult_ed25519:
        raise missing_extra("privacy", MATCHING, "PyNaCl was built with a libsodium that is cut short")
    try:
        bindings.crypto_scalarmult_ed25519_noclamp((5).to_bytes(32, "little"), MIXED_ORDER)
    except RuntimeError:
        return bindings
    raise missing_extra("privacy", MATCHING, "libsodium is too old: it takes points of mixed order")


def scalar(secret: bytes, *purpose: bytes) -> bytes:
    """A number below the order of the group. From 64 bytes, so that none is noticeably more likely than another."""
    wide = derive(secret, b"scalar low", *purpose) + derive(secret, b"scalar high", *purpose)
    reduced: bytes = sodium().crypto_core_ed25519_scalar_reduce(wide)
    return reduced


def hidden(context: bytes, key: bytes, names: Sequence[bytes], threads: int | None = None) -> list[bytes]:
    """The point of each name, times the key. `context` keeps the points of one matching apart from those of others."""
    library = sodium()
    mapped, add, times = (
        library.crypto_core_ed25519_from_uniform,
        library.crypto_core_ed25519_add,
        library.crypto_scalarmult_ed25519_noclamp,
    )
    start = sha512(pack(b"wardround patient", context))

    def hide(name: bytes) -> bytes:
        state = start.copy()
        state.update(name)
        wide = state.digest()
        point: bytes = times(key, add(mapped(wide[:POINT]), mapped(wide[POINT:])))
        return point

    return _in_chunks(lambda some: [hide(name) for name in some], names, threads)


def multiply(key: bytes, points: bytes, threads: int | None = None) -> list[bytes]:
    """Each point times the key; an error if one of them is none."""
    times = sodium().crypto_scalarmult_ed25519_noclamp
    try:
        return _in_chunks(lambda some: [times(key, point) for point in some], split(points), threads)
    except RuntimeError:  # a kind of PyNaCl's own
        raise InvalidPoint from None


def add_up(points: Sequence[bytes], threads: int | None = None) -> bytes:
    """The sum of points: one value for a whole set, in whatever order.

    To find two sets with the same sum is as hard as discrete logarithms (Bellare and Micciancio, EUROCRYPT 1997).
    """
    add = sodium().crypto_core_ed25519_add
    return reduce(add, _in_chunks(lambda some: [reduce(add, some)], points, threads))


def split(points: bytes) -> list[bytes]:
    if len(points) % POINT:
        raise InvalidPoint
    return [points[start : start + POINT] for start in range(0, len(points), POINT)]


def _in_chunks(
    work: Callable[[Sequence[bytes]], list[bytes]], items: Sequence[bytes], threads: int | None
) -> list[bytes]:
    """The work on pieces of a list side by side; the results in the order of the list."""
    count = _processors() if threads is None else threads
    chunks = [items[start : start + CHUNK] for start in range(0, len(items), CHUNK)]
    if count < 2 or len(chunks) < 2:
        return [done for chunk in chunks for done in work(chunk)]
    with ThreadPoolExecutor(count) as pool:
        return [done for part in pool.map(work, chunks) for done in part]


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
