"""Streams of sampling and noise: repeatable for whoever has the key, and distributed as the accountant assumes."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from tests.privacy.reference_gradients import looks_standard_normal
from wardround.privacy.dp.noise import SecretStream, SeededStream, Stream, chosen, site_key, with_noise

KEY = bytes(range(32))
DRAWS = 40_000


def secret(purpose: str = "noise", key: bytes = KEY) -> SecretStream:
    return SecretStream(key, purpose)


def seeded() -> SeededStream:
    return SeededStream(7, "privacy: noise", 3, "site-1")


@pytest.fixture(params=["secret", "seeded"])
def stream(request: pytest.FixtureRequest) -> Stream:
    return secret() if request.param == "secret" else seeded()


def test_the_same_key_gives_the_same_numbers_and_any_other_key_or_purpose_gives_others() -> None:
    first = secret().uniform(100)
    assert (first == secret().uniform(100)).all()
    for other in (secret("sampling"), secret(key=bytes(32)), secret("noise ")):
        assert not (other.uniform(100) == first).any()


def test_a_stream_goes_on_and_does_not_begin_again() -> None:
    key_stream, whole = secret(), secret().uniform(30)
    assert (np.concatenate([key_stream.uniform(11), key_stream.uniform(19)]) == whole).all()


def test_aes_in_counter_mode_is_what_the_numbers_come_from() -> None:
    """By hand: the key is a hash of key and purpose, the text is zeros, the highest 53 of 64 bits count."""
    from hashlib import sha256

    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    own = sha256(KEY + b"\x1fnoise").digest()
    block = Cipher(algorithms.AES(own), modes.ECB()).encryptor().update(bytes(16))  # the counter's first value is 0
    words = [int.from_bytes(block[:8], "little"), int.from_bytes(block[8:], "little")]
    assert secret().uniform(2).tolist() == [((word >> 11) + 1) / 2**53 for word in words]


def test_uniform(stream: Stream) -> None:
    drawn = stream.uniform(DRAWS)
    assert drawn.min() > 0  # there is no logarithm of 0
    assert drawn.max() <= 1
    assert stats.kstest(drawn, "uniform").pvalue > 0.01


def test_normal(stream: Stream) -> None:
    drawn = stream.normal(DRAWS, torch.float64).numpy()
    assert drawn.dtype == np.float64
    assert stats.kstest(drawn, "norm").pvalue > 0.01
    # both halves of Box and Muller's pairs, and the pairs among each other
    half = DRAWS // 2
    assert abs(np.corrcoef(drawn[:half], drawn[half:])[0, 1]) < 4 / math.sqrt(half)
    assert abs(np.corrcoef(drawn[:half] ** 2, drawn[half:] ** 2)[0, 1]) < 4 / math.sqrt(half)
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 4 / math.sqrt(DRAWS)


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_as_many_as_were_asked_for(stream: Stream, count: int) -> None:
    assert stream.normal(count, torch.float64).shape == (count,)
    assert stream.uniform(count).shape == (count,)


@pytest.mark.parametrize("rate", [0.03, 0.25, 0.9])
def test_each_is_chosen_by_itself(stream: Stream, rate: float) -> None:
    steps, count = 4000, 25
    drawn = np.zeros((steps, count), dtype=bool)
    for step in range(steps):
        drawn[step, chosen(stream, count, rate)] = True
    # each by itself with this probability: counts over steps, and over patients, are binomial
    spread = math.sqrt(steps * rate * (1 - rate))
    assert (np.abs(drawn.sum(axis=0) - steps * rate) < 4.5 * spread).all()
    sizes = drawn.sum(axis=1)
    assert abs(sizes.mean() - count * rate) < 4.5 * math.sqrt(count * rate * (1 - rate) / steps)
    # a number of patients that was fixed would have no variance, one in blocks more
    assert sizes.var(ddof=1) / (count * rate * (1 - rate)) == pytest.approx(1, abs=0.12)
    # nothing of one step can be told from the one before
    assert abs(np.corrcoef(drawn[1:].ravel(), drawn[:-1].ravel())[0, 1]) < 4.5 / math.sqrt(steps * count)


def test_rates_of_one_and_of_almost_nothing(stream: Stream) -> None:
    assert chosen(stream, 5, 1.0).tolist() == [0, 1, 2, 3, 4]
    assert chosen(stream, 5, 1e-12).tolist() == []


def test_noise_is_one_vector_over_all_leaves(stream: Stream) -> None:
    leaves = {"a": torch.zeros(100, 50, dtype=torch.float64), "b": torch.full((5000,), 3.0, dtype=torch.float64)}
    noisy = with_noise(stream, leaves, 2.5)
    assert noisy["a"].shape == (100, 50)
    noise = torch.cat([noisy["a"].flatten(), noisy["b"] - 3.0]).numpy()
    assert looks_standard_normal(noise / 2.5)
    assert len(np.unique(noise)) == len(noise)
    assert (leaves["a"] == 0).all()  # nobody's tree is written into


def test_noise_of_a_secret_stream_is_rounded_with_the_sum_and_not_before() -> None:
    """In single precision a noise near -1 is a multiple of 2^-24. On 1 it would give multiples of 2^-24 only, where
    numbers near 0 are a thousand times finer: from such a sum everybody could tell the 1 (Mironov, CCS 2012)."""
    count = 20_000
    summed = with_noise(secret(), {"a": torch.ones(count)}, 1.0)["a"]
    assert summed.dtype == torch.float32
    small = summed[summed.abs() < 0.01].double()
    assert len(small) > 50
    off_grid = (small * 2**24) != (small * 2**24).round()
    assert off_grid.double().mean() > 0.9


def test_a_sites_key_depends_on_everything_that_names_a_round() -> None:
    arguments = (KEY, "run", "arm", 42, 3)
    assert site_key(*arguments) == site_key(*arguments)
    assert len(site_key(*arguments)) == 32
    others = [
        (bytes(32), "run", "arm", 42, 3),
        (KEY, "run2", "arm", 42, 3),
        (KEY, "run", "arm[mu=0.1]", 42, 3),
        (KEY, "run", "arm", 43, 3),
        (KEY, "run", "arm", 42, 4),
        (KEY, "run", "arm", 4, 23),
    ]
    assert len({site_key(*arguments), *(site_key(*other) for other in others)}) == len(others) + 1


def test_a_seeded_stream_depends_on_purpose_round_and_site() -> None:
    first = seeded().normal(50, torch.float64)
    for other in (
        SeededStream(8, "privacy: noise", 3, "site-1"),
        SeededStream(7, "privacy: sampling", 3, "site-1"),
        SeededStream(7, "privacy: noise", 4, "site-1"),
        SeededStream(7, "privacy: noise", 3, "site-2"),
    ):
        assert not torch.equal(other.normal(50, torch.float64), first)
