"""Exact intervals, and bounds on epsilon from counts."""

import math

import numpy as np
import pytest

from wardround.attacks.bounds import draws_for, epsilon_bound, interval, largest_bound


@pytest.mark.parametrize(
    ("hits", "draws", "low", "high"),
    [
        # the ends solve (1 - p)^n = 0.025 and p^n = 0.025 where no draw, or every draw, is a hit
        (0, 10, 0.0, 1 - 0.025 ** (1 / 10)),
        (10, 10, 0.025 ** (1 / 10), 1.0),
        # published tables give 0.2245 and 0.2245 from either side for 1 and 9 of 10: 0.0025 to 0.4450
        (1, 10, 0.00252857854446, 0.44501611702833),
        (5, 10, 0.18708602844739, 0.81291397155261),
    ],
)
def test_clopper_and_pearson(hits: int, draws: int, low: float, high: float) -> None:
    actual_low, actual_high = interval(hits, draws)
    assert float(actual_low) == pytest.approx(low, abs=1e-10)
    assert float(actual_high) == pytest.approx(high, abs=1e-10)


def test_the_interval_has_the_coverage_that_it_promises() -> None:
    rng = np.random.default_rng(1)
    hits = rng.binomial(200, 0.03, size=4000)
    low, high = interval(hits, 200)
    assert ((low <= 0.03) & (high >= 0.03)).mean() >= 0.95


def test_perfect_guesses_show_what_so_many_draws_can_show() -> None:
    with_patient, without_patient = np.ones(2000), np.zeros(2000)
    bound = epsilon_bound(with_patient, without_patient, delta=1e-5)
    low, high = 0.025 ** (1 / 1000), 1 - 0.025 ** (1 / 1000)  # half of the draws choose, the other half count
    assert (bound.right, bound.wrong, bound.draws) == (1000, 0, 1000)
    assert bound.epsilon == pytest.approx(math.log((low - 1e-5) / high))
    assert bound.epsilon == bound.limit == largest_bound(1000, 1e-5)


def test_scores_that_say_nothing_show_nothing() -> None:
    rng = np.random.default_rng(2)
    assert epsilon_bound(rng.normal(size=20_000), rng.normal(size=20_000), delta=1e-5).epsilon < 0.1


def test_either_guess_may_be_the_telling_one() -> None:
    """Whoever is absent is sometimes certain to be: then saying "absent" tells more than saying "present"."""
    rng = np.random.default_rng(3)
    without_patient = np.where(rng.random(10_000) < 0.3, -1.0, 0.0)
    bound = epsilon_bound(np.zeros(10_000), without_patient, delta=1e-5)
    assert bound.guess == "absent"
    assert bound.epsilon > 5


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
def test_randomised_response_is_bounded_by_its_epsilon_and_close_to_it(epsilon: float) -> None:
    """It tells the truth with probability e^epsilon / (1 + e^epsilon), so that its ratio of rates is e^epsilon."""
    rng, truth = np.random.default_rng(4), math.exp(epsilon) / (1 + math.exp(epsilon))
    with_patient = (rng.random(200_000) < truth).astype(float)
    without_patient = (rng.random(200_000) >= truth).astype(float)
    bound = epsilon_bound(with_patient, without_patient, delta=0.0).epsilon
    assert 0.95 * epsilon < bound <= epsilon


def test_as_many_draws_as_a_claim_needs() -> None:
    for claim in (2.0, 5.0, 8.0):
        draws = draws_for(claim, fewest=100, most=10**7)
        assert draws % 2 == 0
        assert claim + 1 < largest_bound(draws // 2, 1e-5) < claim + 2
    assert draws_for(1000.0, 100, 5000) == 5000
    assert draws_for(0.0, 100, 5000) == 100
