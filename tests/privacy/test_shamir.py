"""Shamir's shares: enough of them give the secret, and one fewer gives nothing at all."""

from collections import Counter
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wardround.privacy.secure_sum import shamir


def test_shares_are_values_of_the_polynomial() -> None:
    assert shamir.split(5, [3, 2], 4, prime=97) == [10, 19, 32, 49]  # 5 + 3 k + 2 k**2


def test_every_set_of_enough_holders_gets_the_secret() -> None:
    shares = dict(enumerate(shamir.split(42, [11, 95], 6, prime=97), 1))
    for holders in combinations(shares, 3):
        assert shamir.combine({holder: shares[holder] for holder in holders}, prime=97) == 42


@given(st.integers(0, 2**256 - 1), st.binary(min_size=2 * 48, max_size=2 * 48), st.permutations(range(1, 6)))
def test_secrets_of_32_bytes_come_back(secret: int, drawn: bytes, order: list[int]) -> None:
    shares = shamir.split(secret, shamir.coefficients(drawn), 5)
    assert shamir.combine({holder: shares[holder - 1] for holder in order[:3]}) == secret


def test_one_share_less_says_nothing_about_the_secret() -> None:
    """All secrets and all polynomials of degree 2 modulo 11: for every secret, two holders see every pair once."""
    prime = 11
    seen: dict[int, Counter[tuple[int, int]]] = {}
    for secret in range(prime):
        polynomials = product(range(prime), repeat=2)
        shares = (shamir.split(secret, drawn, 4, prime) for drawn in polynomials)
        seen[secret] = Counter((share[1], share[3]) for share in shares)
    every_pair_once = Counter(product(range(prime), repeat=2))
    assert all(counts == every_pair_once for counts in seen.values())


def test_the_field_holds_every_secret_of_32_bytes_and_is_a_field() -> None:
    """Miller and Rabin's test with 40 bases: a composite number passes with a probability below 4**-40."""
    prime = shamir.PRIME
    assert 2**256 < prime < 2 ** (8 * shamir.SHARE_BYTES)
    odd, twos = prime - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in range(2, 42):
        powers = [pow(base, odd << step, prime) for step in range(twos)]
        assert powers[0] == 1 or prime - 1 in powers


def test_coefficients_cover_the_field_evenly() -> None:
    """Numbers of 384 bits modulo a prime of 257 bits: no remainder is likelier than another by more than 2**-127."""
    assert 2 ** (8 * shamir.DRAW_BYTES) // shamir.PRIME >= 2**126
    assert shamir.coefficients(b"\xff" * 48) == [(2**384 - 1) % shamir.PRIME]
    assert shamir.coefficients(bytes(47) + b"\x05" + bytes(47) + b"\x07") == [5, 7]


@pytest.mark.parametrize(("secret", "drawn", "holders"), [(97, [1], 3), (-1, [1], 3), (5, [1, 2, 3], 3), (5, [1], 97)])
def test_what_cannot_be_shared_is_refused(secret: int, drawn: list[int], holders: int) -> None:
    with pytest.raises(ValueError, match="in the field"):
        shamir.split(secret, drawn, holders, prime=97)
