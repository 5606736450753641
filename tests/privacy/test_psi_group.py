"""The group of psi_group.py against arithmetic that is written out here, and points that must be refused."""

from hashlib import sha512

import pytest

from wardround.core.errors import MachineError
from wardround.privacy.psi import group as psi_group
from wardround.privacy.secure_sum.masks import pack

PRIME = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, PRIME) % PRIME
Point = tuple[int, int]
IDENTITY: Point = (0, 1)
KEY = psi_group.scalar(bytes(32), b"test")


def add(point: Point, other: Point) -> Point:
    """The law of twisted Edwards curves with a = -1."""
    (x1, y1), (x2, y2) = point, other
    product = D * x1 * x2 * y1 * y2
    x = (x1 * y2 + y1 * x2) * pow(1 + product, -1, PRIME)
    y = (y1 * y2 + x1 * x2) * pow(1 - product, -1, PRIME)
    return x % PRIME, y % PRIME


def times(number: int, point: Point) -> Point:
    total = IDENTITY
    while number:
        total = add(total, point) if number & 1 else total
        point, number = add(point, point), number >> 1
    return total


def encode(point: Point) -> bytes:
    return (point[1] | (point[0] & 1) << 255).to_bytes(32, "little")


def root(square: int) -> int | None:
    guess = pow(square, (PRIME + 3) // 8, PRIME)
    for candidate in (guess, guess * pow(2, (PRIME - 1) // 4, PRIME) % PRIME):
        if (candidate * candidate - square) % PRIME == 0:
            return candidate
    return None


def decode(encoded: bytes) -> Point:
    number = int.from_bytes(encoded, "little")
    y, sign = number & (1 << 255) - 1, number >> 255
    x = root((y * y - 1) * pow(D * y * y + 1, -1, PRIME) % PRIME)
    assert x is not None
    return (x if x & 1 == sign else -x % PRIME), y


def elligator(uniform: bytes) -> Point:
    """Elligator 2 for curve25519, brought to edwards25519 and out of the small subgroups; the top bit is x's sign."""
    number = int.from_bytes(uniform, "little")
    r, sign = number & (1 << 255) - 1, number >> 255
    u = -486662 * pow(1 + 2 * r * r, -1, PRIME) % PRIME
    if root((u**3 + 486662 * u * u + u) % PRIME) is None:
        u = (-u - 486662) % PRIME
    y = (u - 1) * pow(u + 1, -1, PRIME) % PRIME
    x, y = decode(y.to_bytes(32, "little"))
    return times(8, (x if x & 1 == sign else -x % PRIME, y))


BASE = decode((4 * pow(5, -1, PRIME) % PRIME).to_bytes(32, "little"))


def small() -> list[Point]:
    """The eight points whose order divides 8, from a point of the whole curve without its part of prime order."""
    y = next(
        y
        for y in range(2, 100)
        if root((y * y - 1) * pow(D * y * y + 1, -1, PRIME) % PRIME) is not None
        and times(4 * ORDER, decode(y.to_bytes(32, "little"))) != IDENTITY
    )
    eighth = times(ORDER, decode(y.to_bytes(32, "little")))
    return [times(number, eighth) for number in range(8)]


def test_the_arithmetic_here_is_that_of_the_curve() -> None:
    assert times(ORDER, BASE) == IDENTITY
    assert len(set(small())) == 8
    assert all(times(8, point) == IDENTITY for point in small())


@pytest.mark.parametrize("name", [b"", b"17", "Amélie".encode(), b"x" * 300])
def test_a_hidden_id_is_the_sum_of_two_maps_of_its_hash_times_the_key(name: bytes) -> None:
    wide = sha512(pack(b"wardround patient", b"context") + name).digest()
    point = add(elligator(wide[:32]), elligator(wide[32:]))
    assert psi_group.hidden(b"context", KEY, [name]) == [encode(times(int.from_bytes(KEY, "little"), point))]


def test_the_order_of_keys_does_not_matter_and_other_contexts_have_other_points() -> None:
    other = psi_group.scalar(bytes(32), b"another")
    assert other != KEY
    names = [b"1", b"2", b"3"]
    first_points, two = (psi_group.hidden(b"context", key, names) for key in (KEY, other))
    assert psi_group.multiply(other, b"".join(first_points)) == psi_group.multiply(KEY, b"".join(two))
    assert not set(first_points) & {*two, *psi_group.hidden(b"elsewhere", KEY, names)}


def test_threads_keep_the_order() -> None:
    names = [str(number).encode() for number in range(2 * psi_group.CHUNK + 3)]
    alone = psi_group.hidden(b"", KEY, names, threads=1)
    assert psi_group.hidden(b"", KEY, names, threads=3) == alone
    assert psi_group.multiply(KEY, b"".join(alone), threads=3) == psi_group.multiply(KEY, b"".join(alone), threads=1)
    assert psi_group.add_up(alone, threads=3) == psi_group.add_up(alone[::-1], threads=1)


def test_keys_are_below_the_order_and_not_zero() -> None:
    keys = [int.from_bytes(psi_group.scalar(bytes([n]) * 32), "little") for n in range(50)]
    assert all(0 < key < ORDER for key in keys)
    assert len(set(keys)) == 50


@pytest.mark.parametrize("number", range(8))
def test_points_of_small_order_are_refused(number: int) -> None:
    with pytest.raises(psi_group.InvalidPoint):
        psi_group.multiply(KEY, encode(small()[number]))


@pytest.mark.parametrize("number", range(8))
def test_points_of_mixed_order_are_refused(number: int) -> None:
    """With them, a party could learn the key modulo 8 and tell lists apart. Number 0 is the base point itself."""
    point = encode(add(BASE, small()[number]))
    if number == 0:
        assert psi_group.multiply(KEY, point) == [encode(times(int.from_bytes(KEY, "little"), BASE))]
        return
    with pytest.raises(psi_group.InvalidPoint):
        psi_group.multiply(KEY, point)


@pytest.mark.parametrize(
    "encoded",
    [
        (2).to_bytes(32, "little"),  # the equation has no x for it
        (PRIME + 1).to_bytes(32, "little"),  # the neutral point in a second spelling
        bytes(31),
        bytes(33),
    ],
)
def test_what_is_not_a_point_is_refused_wherever_it_stands(encoded: bytes) -> None:
    good = b"".join(psi_group.hidden(b"", KEY, [b"1", b"2"]))
    for points in (encoded + good, good + encoded):
        with pytest.raises(psi_group.InvalidPoint):
            psi_group.multiply(KEY, points)


def test_a_library_that_takes_bad_points_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As libsodium did before CVE-2025-69277 was mended: the base point plus the point (0, -1) passed."""
    from nacl import bindings

    x, y = BASE
    assert encode((-x % PRIME, -y % PRIME)) == psi_group.MIXED_ORDER
    psi_group.sodium.cache_clear()
    monkeypatch.setattr(bindings, "crypto_scalarmult_ed25519_noclamp", lambda number, point: point)
    with pytest.raises(MachineError, match="too old"):
        psi_group.sodium()
    psi_group.sodium.cache_clear()
