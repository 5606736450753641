"""Shapley values: axioms and closed forms, brute force over orders, and an error that covers."""

from itertools import permutations

import numpy as np
import pytest

from wardround.evaluation.hospitals.shapley import coalitions, fewest, shapley


def game(players: int, seed: int, curved: float = 1.0) -> dict[int, float]:
    """Additive, with less from each further player, and with chance of its own in every coalition."""
    rng = np.random.default_rng(seed)
    gains = rng.exponential(size=players)
    return {
        c: float(
            np.tanh(curved * sum(gains[p] for p in range(players) if c >> p & 1) / players)
            + (0.02 * rng.normal() if c else 0)
        )
        for c in range(2**players)
    }


def brute_force(players: int, worth: dict[int, float]) -> np.ndarray:
    values, orders = np.zeros(players), list(permutations(range(players)))
    for order in orders:
        coalition = 0
        for player in order:
            values[player] += worth[coalition | 1 << player] - worth[coalition]
            coalition |= 1 << player
    return values / len(orders)


def asked(players: int, budget: int, seed: int = 0) -> list[int]:
    return coalitions(players, budget, np.random.default_rng(seed))


@pytest.mark.parametrize("players", [1, 2, 3, 4, 5])
def test_with_all_coalitions_it_is_the_mean_over_all_orders(players: int) -> None:
    worth = game(players, 3)
    assert sorted(asked(players, 40)) == list(range(1, 2**players))
    found = shapley(players, worth)
    assert found.error is None
    np.testing.assert_allclose(found.values, brute_force(players, worth), atol=1e-12)


def test_symmetric_players_share_alike_and_a_dummy_gets_nothing() -> None:
    worth = {c: float((c & 0b0111).bit_count() ** 2) for c in range(16)}
    np.testing.assert_allclose(shapley(4, worth).values, [3, 3, 3, 0], atol=1e-12)


@pytest.mark.parametrize("players", [7, 10])
def test_what_is_drawn_is_different_in_pairs_and_within_the_budget(players: int) -> None:
    drawn, whole = asked(players, 40), 2**players - 1
    assert drawn[0] == whole
    assert len(set(drawn)) == len(drawn) <= 40
    assert all(whole ^ c in drawn for c in drawn[1:])
    assert len(drawn) >= 39
    assert asked(players, 40, seed=1) != drawn == asked(players, 40)


def test_an_additive_game_is_found_from_few_coalitions() -> None:
    gains = np.arange(10) - 3.0
    chosen = asked(10, fewest(10))
    worth = {c: float(sum(gains[p] for p in range(10) if c >> p & 1)) for c in (0, *chosen)}
    found = shapley(10, worth)
    np.testing.assert_allclose(found.values, gains, atol=1e-9)
    assert found.error is not None
    np.testing.assert_allclose(found.error, 0, atol=1e-9)


def test_shares_add_up_to_the_whole() -> None:
    worth = game(9, 5)
    found = shapley(9, {c: worth[c] for c in (0, *asked(9, 40))})
    assert found.values.sum() == pytest.approx(worth[2**9 - 1] - worth[0], abs=1e-12)


def test_the_error_is_about_as_large_as_the_estimate_is_wrong() -> None:
    """Twenty drawings for each of three games, against the exact values: errors in units of their standard error."""
    ratios = []
    for seed in range(3):
        worth = game(8, seed, curved=4.0)
        exact = shapley(8, worth).values
        for draw in range(20):
            found = shapley(8, {c: worth[c] for c in (0, *asked(8, 40, draw))})
            assert found.error is not None
            ratios.append((found.values - exact) / found.error)
    assert 0.6 < float(np.sqrt(np.mean(np.square(ratios)))) < 1.6


def test_more_coalitions_are_closer() -> None:
    worth = game(8, 1, curved=4.0)
    exact = shapley(8, worth).values

    def wrong(budget: int) -> float:
        drawn = [shapley(8, {c: worth[c] for c in (0, *asked(8, budget, seed))}).values for seed in range(20)]
        return float(np.sqrt(np.mean(np.square(np.array(drawn) - exact))))

    assert wrong(160) < 0.6 * wrong(30)
