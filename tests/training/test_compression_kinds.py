"""Each kind of compression by itself: what is kept, what is lost, how large it is, and what is impossible in it."""

import math
from typing import Any, Literal, get_args, get_type_hints

import numpy as np
import pytest
import torch
from torch import Tensor

from wardround.core import tree
from wardround.core.tree import Tree
from wardround.study.schema import KIND_OF_SETTING, Compression
from wardround.training.compression import KINDS

BITS: tuple[Literal[2, 4, 8, 16], ...] = (2, 4, 8, 16)
SETTINGS = [
    Compression("float16"),
    Compression("top-k", share=0.3),
    Compression("top-k", share=1e-9),  # one number at least
    *(Compression("quantised", bits=bits) for bits in BITS),
]
NAMES = [f"{settings.kind}, {settings.share:g}, {settings.bits}" for settings in SETTINGS]


def quantised(bits: int) -> Compression:
    known: dict[str, Any] = {"bits": bits}  # mypy would have each of them written out
    return Compression("quantised", **known)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def leaves(dtype: torch.dtype = torch.float32, size: float = 1.0, seed: int = 0) -> Tree:
    """31 numbers in tensors of 0 to 2 dimensions: no multiple of what fits into a byte."""
    drawn = torch.from_numpy(rng(seed).normal(scale=size, size=31)).to(dtype)
    return {"weight": drawn[:21].reshape(7, 3), "bias": drawn[21:30], "scale": drawn[30]}


def through(values: Tree, settings: Compression, seed: int = 0) -> Tree:
    kind = KINDS[settings.kind]
    return kind.decompress(kind.compress(values, settings, rng(seed)), values, settings)


def flat(values: Tree) -> Tensor:
    return torch.cat([leaf.flatten() for leaf in values.values()])


def test_every_kind_of_the_study_file_is_there_and_has_the_settings_that_it_names() -> None:
    assert {"none", *KINDS} == set(get_args(get_type_hints(Compression)["kind"]))
    assert set(KIND_OF_SETTING) == set(vars(Compression())) - {"kind"}
    assert set(KIND_OF_SETTING.values()) < set(KINDS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("settings", SETTINGS, ids=NAMES)
def test_what_is_sent_has_the_declared_form_and_what_arrives_has_that_of_the_update(
    settings: Compression, dtype: torch.dtype
) -> None:
    kind, values = KINDS[settings.kind], leaves(dtype)
    sent = kind.compress(values, settings, rng())
    form = kind.form(values, settings)
    assert {name: (leaf.dtype, leaf.shape) for name, leaf in sent.items()} == {
        name: (leaf.dtype, leaf.shape) for name, leaf in form.items()
    }
    assert kind.problem(sent, values, settings) == ""
    arrived = kind.decompress(sent, values, settings)
    assert [(name, leaf.dtype, leaf.shape) for name, leaf in arrived.items()] == [
        (name, leaf.dtype, leaf.shape) for name, leaf in values.items()
    ]


def test_the_bytes_of_each_kind_are_those_of_its_formula() -> None:
    """n = 31 numbers in 3 tensors: 2 n + 2 x 3; (4 + 4) x round(0.3 n); ceil(n bits / 8) + 4 x 3."""
    expected = [68, 72, 8, 8 + 12, 16 + 12, 31 + 12, 62 + 12]
    sizes = [tree.count_bytes({"": KINDS[settings.kind].compress(leaves(), settings, rng())}) for settings in SETTINGS]
    assert sizes == expected


@pytest.mark.parametrize("settings", SETTINGS, ids=NAMES)
def test_nothing_is_written_into_the_update_and_the_same_draws_give_the_same_bytes(settings: Compression) -> None:
    values, kind = leaves(), KINDS[settings.kind]
    before = tree.clone(values)
    first, second = (kind.compress(values, settings, rng(5)) for _ in range(2))
    assert all(torch.equal(values[name], before[name]) for name in values)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("settings", SETTINGS, ids=NAMES)
def test_zeros_stay_zeros_and_a_model_that_has_left_the_numbers_stays_so(settings: Compression) -> None:
    zeros = tree.zeros_like(leaves())
    assert all(not leaf.any() for leaf in through(zeros, settings).values())
    for odd in (math.nan, math.inf):
        assert not flat(through(tree.apply(lambda leaf, odd=odd: leaf * odd, leaves()), settings)).isfinite().all()


# -- 16-bit floats


@pytest.mark.parametrize("size", [1.0, 1e-9, 1e-20, 1e9, 1e30])
def test_a_half_changes_a_number_by_a_2048th_of_itself_whatever_the_size_of_the_update(size: float) -> None:
    """Half precision has 11 bits: rounding changes a number by 2^-11 of itself at most. It ends at 6e-8 and at
    65,504, so that updates of 1e-9 would be gone without the exponent."""
    values = leaves(size=size, seed=3)
    arrived = through(values, Compression("float16"))
    for name, leaf in values.items():
        assert ((arrived[name] - leaf).abs() <= 2.0**-11 * leaf.abs()).all()
    assert (flat(arrived) != flat(values)).any()


def test_the_bound_holds_down_to_2_to_the_minus_28_of_the_largest_number_and_is_absolute_below() -> None:
    largest = 1.9
    small = torch.tensor([largest, *(largest * 2.0**-power * 1.2345 for power in range(1, 45))], dtype=torch.float64)
    arrived = through({"w": small}, Compression("float16"))["w"]
    near = small >= largest * 2.0**-28
    assert ((arrived - small).abs()[near] <= 2.0**-11 * small[near]).all()
    assert ((arrived - small).abs()[~near] <= 2.0**-39 * largest).all()
    assert (arrived[~near] == 0).any()


def test_powers_of_two_change_nothing_in_halves_but_their_exponent() -> None:
    values = leaves(torch.float64)
    by = 2.0**-41
    small = through(tree.scale(values, by), Compression("float16"))
    expected = tree.scale(through(values, Compression("float16")), by)
    assert all(torch.equal(small[name], expected[name]) for name in values)


# -- the largest


def test_the_largest_numbers_are_kept_exactly_and_the_others_are_zero() -> None:
    """Round(0.3 x 10) = 3 of the whole update, wherever they are: -4, 3 and the first of two 2s."""
    values = {"w": torch.tensor([[3.0, -1.0, 0.5], [-4.0, 2.0, 0.0]]), "b": torch.tensor([1.5, -2.0, 0.25, 1.0])}
    settings = Compression("top-k", share=0.3)
    sent = KINDS["top-k"].compress(values, settings, rng())
    assert sent["places"].tolist() == [0, 3, 4]
    assert sent["values"].tolist() == [3.0, -4.0, 2.0]
    arrived = through(values, settings)
    assert arrived["w"].tolist() == [[3.0, 0.0, 0.0], [-4.0, 2.0, 0.0]]
    assert arrived["b"].tolist() == [0.0] * 4


@pytest.mark.parametrize("share", [1e-6, 0.01, 0.1, 0.5, 1.0])
def test_what_the_largest_leave_out_is_no_larger_than_any_of_them(share: float) -> None:
    values = {"w": torch.from_numpy(rng(1).integers(-9, 10, size=1000) / 4.0)}  # many ties
    arrived = through(values, Compression("top-k", share=share))["w"]
    count = max(1, round(share * 1000))
    order = np.lexsort((np.arange(1000), -values["w"].abs().numpy()))[:count]
    expected = torch.zeros(1000, dtype=torch.float64)
    expected[order] = values["w"][order]
    assert torch.equal(arrived, expected)
    # of n numbers the k largest hold at least k / n of the squared length
    left = tree.squared_norm({"": values["w"] - arrived}) / tree.squared_norm(values)
    assert float(left) <= 1 - count / 1000 + 1e-12


# -- quantised


@pytest.mark.parametrize("bits", [2, 4, 8, 16])
def test_multiples_of_the_scale_arrive_as_they_are_and_all_others_within_one_of_it(bits: int) -> None:
    levels = 2 ** (bits - 1) - 1
    grid = {"w": torch.arange(-levels, levels + 1, max(1, levels // 50)).double() / 8}
    grid["w"][0], grid["w"][-1] = -levels / 8, levels / 8
    settings = quantised(bits)
    assert torch.equal(through(grid, settings)["w"], grid["w"])
    values = leaves(torch.float64)
    for name, arrived in through(values, settings).items():
        scale = values[name].abs().max() / levels
        assert ((arrived - values[name]).abs() < scale * (1 + 1e-12)).all()


@pytest.mark.parametrize("bits", [2, 4, 8, 16])
def test_quantised_numbers_have_the_right_mean_and_the_derived_variance(bits: int) -> None:
    """A number s (m + f) becomes s m or, with probability f, s (m + 1): mean s (m + f), variance s^2 f (1 - f)."""
    levels, count = 2 ** (bits - 1) - 1, 200_000
    fractions = [0.0, 0.125, 0.25, 0.5, 0.9]
    for fraction in fractions:
        number = (levels - 1 + fraction) / 16 if levels > 1 else fraction / 16
        settings = quantised(bits)
        values = {"w": torch.cat([torch.tensor([levels / 16]), torch.full((count,), -number)]).double()}
        arrived = through(values, settings, seed=bits)["w"][1:]
        spread = fraction * (1 - fraction)  # of 0 and 1; 5 standard errors of a mean and of a variance are allowed
        assert float(arrived.mean()) == pytest.approx(-number, abs=5 * math.sqrt(spread / count) / 16 + 1e-12)
        allowed = 5 * math.sqrt((1 - 4 * spread) * spread / count) + 10 / count
        assert 16**2 * float(arrived.var()) == pytest.approx(spread, abs=allowed)


def test_a_tensor_of_small_numbers_has_a_scale_of_its_own() -> None:
    values = {"large": torch.tensor([1000.0, -1000.0]), "small": torch.tensor([0.001, -0.0005])}
    arrived = through(values, Compression("quantised", bits=8))
    assert ((arrived["small"] - values["small"]).abs() <= 0.001 / 127).all()


@pytest.mark.parametrize("bits", [2, 4, 8, 16])
def test_every_code_survives_its_place_in_a_byte(bits: int) -> None:
    levels = 2 ** (bits - 1) - 1
    numbers = rng(2).integers(-levels, levels + 1, size=1003)
    numbers[:2] = levels, -levels
    values = {"w": torch.from_numpy(numbers).double()}
    assert torch.equal(through(values, quantised(bits))["w"], values["w"])


# -- what is impossible


def changed(settings: Compression, name: str, place: int, value: float) -> str:
    kind, values = KINDS[settings.kind], leaves()
    sent: dict[str, Any] = kind.compress(values, settings, rng())
    sent[name][place] = value
    return kind.problem(sent, values, settings)


def test_what_no_site_sends_is_named() -> None:
    largest, halves = Compression("top-k", share=0.3), Compression("float16")
    outside = "numbers at places that the model does not have"
    assert changed(largest, "places", -1, 31) == outside
    assert changed(largest, "places", 0, -1) == outside
    again = "two numbers for one place, or places out of order"
    sent = KINDS["top-k"].compress(leaves(), largest, rng())
    assert changed(largest, "places", 1, int(sent["places"][0])) == again
    assert changed(largest, "places", 0, int(sent["places"][2])) == again
    for exponent in (-101, 1010, 32767, -32768):
        assert changed(halves, "exponents", 1, exponent) == "exponents that no update has"
    for bits in (2, 4, 8):
        limit = 2 ** (bits - 1) - 1
        whole = changed(quantised(bits), "codes", 0, 255)
        assert whole == f"numbers of more than {limit} times their scale"
    finest = quantised(16)
    assert changed(finest, "codes", 4, -32768) == "numbers of more than 32767 times their scale"
    for scale in (-1.0, math.nan):
        assert changed(finest, "scales", 2, scale) == "a scale below zero"
