"""Fixed point: nothing wraps around, nothing is clipped, and what is lost is known."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wardround.core.errors import SecureSumError, StudyError
from wardround.privacy.secure_sum.fixed_point import CHUNK, Encoding

caps = st.builds(
    Encoding,
    sites=st.integers(1, 1000),
    most_weight=st.floats(1e-3, 1e6),
    largest=st.floats(1e-3, 1e4),
)


def signed(encoded: np.ndarray[Any, np.dtype[np.uint64]]) -> list[int]:
    return [int(value) for value in encoded.view(np.int64)]


def test_bits_by_hand() -> None:
    """4 sites x 1000 x 8 = 32,000 lies between 2**14 and 2**15, so that 63 - 15 = 48 bits are left."""
    encoding = Encoding(4, 1000, 8.0)
    assert (encoding.bits, encoding.weight_bits) == (48, 51)  # 4 x 1000 < 2**12
    assert (encoding.resolution, encoding.weight_resolution) == (2.0**-48, 2.0**-51)
    assert Encoding(1, 1, 1).bits == 62  # 2**63 itself is not below 2**63
    assert Encoding(4, 1, 0.125).bits == 63  # 4 x 1/8 x 2**63 would be 2**62, and half a step more still fits
    assert Encoding(50, 1e6, 1000.0).bits == 27


def test_elements_by_hand() -> None:
    encoding = Encoding(4, 1000, 8.0)
    encoded = encoding.encode(np.array([0.5, -0.25, 0.0, 8.0, -8.0]), 3.0)
    assert signed(encoded) == [3 * 2**47, -3 * 2**46, 0, 24 * 2**48, -24 * 2**48, 3 * 2**51]
    summed, weight = encoding.decode(encoded + encoded)
    assert weight == 6.0
    assert summed.tolist() == [3.0, -1.5, 0.0, 48.0, -48.0]


def test_elements_are_rounded_to_the_nearest_step() -> None:
    coarse = Encoding(4, 1e9, 1e9)  # one bit: steps of a half
    values = np.array([0.2, 0.3, -0.2, -0.3, 0.75, 1.25])
    assert signed(coarse.encode(values, 1.0))[:-1] == [0, 1, 0, -1, 2, 2]  # ties go to the even number


def test_a_product_that_a_double_rounds_up_does_not_overflow() -> None:
    """(2**30 - 1)(2**30 + 1) = 2**60 - 1, which is 2**60 as a double: with 3 bits it would be 2**63."""
    encoding = Encoding(1, 2**30 - 1, 2**30 + 1)
    assert encoding.bits == 2
    assert signed(encoding.encode(np.array([2.0**30 + 1, -(2.0**30) - 1]), 2**30 - 1))[:2] == [2**62, -(2**62)]


@given(caps)
def test_no_sum_can_reach_the_sign_bit_and_no_bit_is_wasted(encoding: Encoding) -> None:
    extreme = encoding.encode(np.array([encoding.largest, -encoding.largest]), encoding.most_weight)
    for element in signed(extreme):
        assert abs(element) * encoding.sites < 2**63
    product = encoding.sites * Fraction(encoding.most_weight) * Fraction(encoding.largest)
    assert product * 2 ** (encoding.bits + 2) > 2**63  # at most one bit is left unused, and only by a hair


@given(caps, st.data())
@settings(max_examples=60)
def test_the_mean_is_the_plain_one_to_the_resolution(encoding: Encoding, data: st.DataObject) -> None:
    sites = data.draw(st.integers(1, min(encoding.sites, 8)))
    shares = data.draw(st.lists(st.floats(0.01, 1), min_size=sites, max_size=sites))
    weights = [share * encoding.most_weight for share in shares]
    value = st.floats(-encoding.largest, encoding.largest)
    updates = [np.array(data.draw(st.lists(value, min_size=3, max_size=3))) for _ in range(sites)]
    total = np.zeros(4, np.uint64)
    for update, weight in zip(updates, weights, strict=True):
        total += encoding.encode(update, weight)
    summed, weight_sum = encoding.decode(total)
    half = Fraction(sites, 2)
    exact_weight = sum(map(Fraction, weights), Fraction(0))
    # half a step for each site, and the rounding of doubles: a product, and the sum when it is decoded
    rounding = exact_weight * Fraction(encoding.largest) * Fraction(2, 2**52)
    for column in range(3):
        exact = sum(
            (Fraction(w) * Fraction(float(u[column])) for u, w in zip(updates, weights, strict=True)), Fraction(0)
        )
        assert abs(Fraction(float(summed[column])) - exact) <= half * Fraction(encoding.resolution) + rounding
    lost = abs(Fraction(weight_sum) - exact_weight)
    assert lost <= half * Fraction(encoding.weight_resolution) + exact_weight * Fraction(1, 2**52)


def test_products_of_single_precision_and_whole_weights_are_exact() -> None:
    encoding = Encoding(10, 2**20, 1.0)  # 39 bits: steps of 2**-39
    values = (np.random.default_rng(0).integers(-(2**23), 2**23, 1000) / 2**23).astype(np.float32)
    encoded = encoding.encode(values, 999_983.0)
    exact = [Fraction(float(value)) * 999_983 * 2**encoding.bits for value in values]
    assert signed(encoded)[:-1] == exact


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, 2 * CHUNK + 7])
def test_pieces_and_leaves_make_no_difference(size: int) -> None:
    encoding = Encoding(4, 10, 1.0)
    values = np.random.default_rng(size).uniform(-1, 1, size)
    whole = encoding.encode(values, 2.5)
    assert whole.dtype == np.uint64
    assert signed(whole)[:-1] == [round(value) for value in np.ldexp(values * 2.5, encoding.bits)]
    assert np.array_equal(encoding.encode([values[: size // 3], values[size // 3 :]], 2.5), whole)
    if size % 2 == 0:
        assert np.array_equal(encoding.encode([values.reshape(2, -1)], 2.5), whole)


def test_the_update_is_not_changed() -> None:
    values = np.array([0.1, 0.2])
    Encoding(4, 10, 1.0).encode(values, 2.0)
    assert values.tolist() == [0.1, 0.2]


@pytest.mark.parametrize("bad", [1.0000001, -1.5, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("at", [0, CHUNK, 2 * CHUNK + 6])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_what_is_beyond_the_cap_is_refused_wherever_it_is(bad: float, at: int, kind: type) -> None:
    values: Any = np.zeros(2 * CHUNK + 7, kind)
    values[at] = bad
    problem = "no finite numbers" if not math.isfinite(bad) else "beyond the cap of 1"
    with pytest.raises(SecureSumError, match=problem) as caught:
        Encoding(4, 10, 1.0).encode(values, 2.0, site="north")
    assert caught.value.where == "north"
    assert str(bad) not in caught.value.problem  # a value of an update is nobody else's business


@pytest.mark.parametrize("weight", [10.0000001, -1e-9, math.nan, math.inf])
def test_a_weight_beyond_the_cap_is_refused(weight: float) -> None:
    with pytest.raises(SecureSumError, match="weight"):
        Encoding(4, 10, 1.0).encode(np.zeros(2), weight)


def test_a_site_without_rows_adds_nothing() -> None:
    assert not Encoding(4, 10, 1.0).encode(np.array([0.3, -1.0]), 0.0).any()


@pytest.mark.parametrize("field", ["sites", "most_weight", "largest"])
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, 1e31])
def test_caps_must_be_caps(field: str, value: float) -> None:
    settings: dict[str, Any] = {"sites": 4, "most_weight": 10.0, "largest": 1.0, field: value}
    with pytest.raises(StudyError, match=f"secure_sum: {field}"):
        Encoding(**settings)


def test_caps_that_leave_no_bits_are_refused() -> None:
    assert Encoding(4, 1e9, 1e9).bits == 1  # 4e18 x 2 = 8e18 is below 2**63 = 9.22e18
    with pytest.raises(StudyError, match="do not fit into 63 bits"):
        Encoding(4, 1e10, 1e9)


def test_a_sum_that_no_honest_sites_can_give_is_refused() -> None:
    encoding = Encoding(4, 10, 1.0)
    fair = encoding.encode(np.array([1.0, -1.0]), 10.0)
    assert encoding.decode(fair + fair + fair + fair)[1] == 40.0
    for wrong in ([0, 0, 2**63], [2**62, 0, int(fair[-1])], [0, 2**64 - 2**62, int(fair[-1])]):
        with pytest.raises(SecureSumError, match="outside what sites that keep to the caps can give"):
            encoding.decode(np.array(wrong, np.uint64))
