"""Attacks on membership: chance where nothing leaks, and more than chance where something does."""

import numpy as np
import pytest

from wardround.attacks.membership import auc, confidence_scores, halves, likelihood_ratio, measure


def own(count: int) -> np.ndarray:
    return np.arange(count)


def test_auc_counts_pairs_and_half_of_ties() -> None:
    # pairs: (1,0) above, (1,1) tied, (0,0) tied, (0,1) below: (1 + 0.5 + 0.5 + 0) / 4
    assert auc(np.array([1.0, 0.0]), np.array([0.0, 1.0])) == 0.5
    assert auc(np.array([2.0, 3.0]), np.array([0.0, 1.0])) == 1.0
    assert auc(np.array([0.0, 0.0]), np.array([0.0, 1.0])) == 0.25


def test_confidence_is_the_logit_of_the_true_class_s_probability() -> None:
    p = np.array([0.01, 0.5, 0.9, 0.999])
    np.testing.assert_allclose(confidence_scores(-np.log(p)), np.log(p / (1 - p)), rtol=1e-9)
    assert np.isfinite(confidence_scores(np.array([0.0, 1e4]))).all()


def test_scores_by_chance_are_no_attack() -> None:
    rng = np.random.default_rng(1)
    result = measure(rng.normal(size=800), rng.normal(size=400), (own(800), own(400)), rng)
    assert result.interval[0] < 0.5 < result.interval[1]
    assert abs(result.auc - 0.5) < 0.05
    assert [caught.false_alarms for caught in result.caught] == [0.01]  # a thousandth of 400 is less than one


def test_how_many_are_caught_is_counted_above_the_last_that_may_be_wrong() -> None:
    others = np.arange(1000.0)  # 10 of them lie above 989, one above 998
    members = np.array([989.0, 989.5, 998.5, 1000.0])
    rare, seldom = measure(members, others, (own(4), own(1000)), np.random.default_rng(1)).caught
    assert (rare.false_alarms, rare.share) == (0.001, 0.5)
    assert (seldom.false_alarms, seldom.share) == (0.01, 0.75)
    assert rare.interval[0] < 0.5 < rare.interval[1]


def test_a_patient_s_rows_are_drawn_together() -> None:
    """Ten rows that are all alike and one patient's tell no more than one row: the interval stays wide."""
    rng = np.random.default_rng(2)
    by_patient = rng.normal(0.5, 1, size=30)
    others = rng.normal(size=300)
    rows = np.repeat(by_patient, 10)
    together = measure(rows, others, (np.repeat(own(30), 10), own(300)), np.random.default_rng(3)).interval
    apart = measure(rows, others, (own(300), own(300)), np.random.default_rng(3)).interval
    assert together[1] - together[0] > 1.5 * (apart[1] - apart[0])


def test_every_row_is_in_half_of_the_shadow_models_and_patients_stay_whole() -> None:
    people = np.array([7, 7, 3, 9, 9, 9, 1, 4])
    chosen = halves(people, 6, np.random.default_rng(1))
    assert chosen.shape == (6, 8)
    np.testing.assert_array_equal(chosen.sum(0), 3)
    for patient in np.unique(people):
        assert (chosen[:, people == patient].std(axis=1) == 0).all()


def test_a_row_s_own_difficulty_is_seen_by_the_likelihood_ratio_and_not_by_a_threshold() -> None:
    """Rows differ in difficulty by far more than training changes their loss: a threshold sees little of it."""
    rng = np.random.default_rng(5)
    rows, shadows = 600, 16
    difficulty = rng.normal(0, 3, rows)
    present = halves(own(rows), shadows, rng)
    member = rng.random(rows) < 0.5
    scores = difficulty + 1.0 * present + rng.normal(0, 0.5, (shadows, rows))
    target = difficulty + 1.0 * member + rng.normal(0, 0.5, rows)
    ratio = likelihood_ratio(target, scores, present)
    assert auc(target[member], target[~member]) < 0.65
    # with known centres the best possible is Phi(1 / (0.5 sqrt 2)) = 0.92
    assert 0.85 < auc(ratio[member], ratio[~member]) < 0.95


@pytest.mark.parametrize("shadows", [4, 256])
def test_a_row_with_its_own_spread_needs_many_shadow_models(shadows: int) -> None:
    rng = np.random.default_rng(6)
    present = halves(own(50), shadows, rng)
    result = likelihood_ratio(np.zeros(50), rng.normal(size=(shadows, 50)), present)
    assert np.isfinite(result).all()
