"""Threshold, calibration, out of distribution: exact numbers, and what happens where there are too few rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, logit

from wardround.bundles.build.validation_choices import RIDGE, choose_events, recalibrate
from wardround.bundles.bundle import Calibration
from wardround.bundles.out_of_distribution import RIDGE as FAR_RIDGE
from wardround.bundles.out_of_distribution import OutOfDistribution, by_distance, by_ranges
from wardround.evaluation.thresholds import LEAST_EACH, LEAST_ROWS, youden
from wardround.tasks import class_task


def test_youden_by_hand() -> None:
    """Calls at 0.7 and above: 2 of 3 positives, 0 of 2 negatives. At 0.4: 3 of 3 and 1 of 2. At 0.8: 1 of 3."""
    label, score = np.array([0, 1, 0, 1, 1]), np.array([0.1, 0.4, 0.6, 0.7, 0.8])
    assert youden(label, score) == pytest.approx((0.7 + 0.6) / 2)


def test_rows_with_one_score_are_called_together_and_the_highest_of_equals_is_taken() -> None:
    assert youden(np.array([0, 1, 1, 0]), np.array([0.5, 0.5, 0.5, 0.1])) == pytest.approx(0.3)
    label, score = np.array([0, 1, 0, 1]), np.array([0.1, 0.2, 0.3, 0.4])  # 1/2 above 0.35 and above 0.15
    assert youden(label, score) == pytest.approx(0.35)


def test_no_threshold_where_scores_say_nothing_or_the_opposite() -> None:
    assert youden(np.array([0, 1, 0, 1]), np.full(4, 0.3)) is None
    assert youden(np.array([1, 1, 0, 0]), np.array([0.1, 0.2, 0.8, 0.9])) is None


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), min_size=2, max_size=40))
def test_no_other_threshold_is_better(rows: list[tuple[bool, int]]) -> None:
    label, score = np.array([int(outcome) for outcome, _ in rows]), np.array([s / 20 for _, s in rows])
    if label.min() == label.max():
        return

    def index(threshold: float) -> float:
        return float((score[label == 1] >= threshold).mean() - (score[label == 0] >= threshold).mean())

    best = max(index(threshold) for threshold in [*np.unique(score), 2.0])
    cut = youden(label, score)
    assert best == pytest.approx(0.0, abs=1e-12) if cut is None else index(cut) == pytest.approx(best)


def test_recalibration_is_where_the_ridged_loss_is_flat() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(0, 2, 400)
    label = (rng.random(400) < expit(0.5 * x - 1)).astype(int)
    calibration = recalibrate(label, expit(x))
    assert calibration is not None
    p = expit(calibration.slope * x + calibration.intercept)
    assert float((x * (p - label)).sum() + RIDGE * (calibration.slope - 1)) == pytest.approx(0, abs=1e-7)
    assert float((p - label).sum() + RIDGE * calibration.intercept) == pytest.approx(0, abs=1e-7)
    assert calibration.slope == pytest.approx(0.5, abs=0.15)
    assert calibration.intercept == pytest.approx(-1, abs=0.3)


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(30, 80))
def test_recalibration_ends_for_scores_of_0_and_1_and_classes_that_are_separated(seed: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    label = (np.arange(rows) % 3 == 0).astype(int)
    calibration = recalibrate(label, np.where(rng.random(rows) < 0.9, label, 1 - label).astype(float))
    assert calibration is None or (
        np.isfinite([calibration.slope, calibration.intercept]).all() and calibration.slope > 0
    )


def test_a_calibration_by_hand() -> None:
    probabilities = Calibration(2.0, -1.0).of(np.array([0.5, 0.8, 0.0, 1.0]))
    assert probabilities[0] == pytest.approx(1 / (1 + np.e))
    assert probabilities[1] == pytest.approx(16 / (16 + np.e))  # odds 4, squared, over e
    assert 0 < probabilities[2] < probabilities[3] < 1
    assert float(logit(Calibration(1.0, 0.0).of(np.array([0.3])))[0]) == pytest.approx(float(logit(0.3)))


def test_a_choice_is_made_from_thirty_rows_with_five_of_each_class_on() -> None:
    def of(rows: int, positive: int, private: bool = False) -> tuple[bool, bool]:
        label = np.zeros(rows, dtype=int)
        label[:positive] = 1
        score = np.where(label == 1, 0.7, 0.4) + np.linspace(0, 0.1, rows)
        point = choose_events(class_task(["no", "yes"]), label, score, private)
        assert point.threshold is not None
        assert (point.threshold["value"] == 0.5) is not point.threshold["chosen"]
        assert bool(point.uncalibrated) is (point.calibration is None)
        return point.threshold["chosen"], point.calibration is not None

    assert of(LEAST_ROWS, LEAST_EACH) == (True, True)
    assert of(LEAST_ROWS - 1, 10) == (False, False)
    assert of(LEAST_ROWS, LEAST_EACH - 1) == (False, False)
    assert of(LEAST_ROWS, LEAST_ROWS - LEAST_EACH + 1) == (False, False)
    assert of(0, 0) == (False, False)
    assert of(200, 100, private=True) == (False, False)


def test_scores_that_rank_the_wrong_way_round_are_left_alone() -> None:
    label = np.repeat([0, 1], 30)
    point = choose_events(class_task(["no", "yes"]), label, np.linspace(0.9, 0.1, 60), private=False)
    assert point.threshold is not None
    assert (point.threshold["value"], point.threshold["chosen"], point.calibration) == (0.5, False, None)
    assert "does not mean a higher risk" in point.uncalibrated


def slowly_left_out(x: np.ndarray) -> np.ndarray:
    """Each row's distance with the others' mean and covariance, by inverting n matrices; units are those of all."""
    unit = x.std(axis=0)
    distances = []
    for place in range(len(x)):
        others = np.delete(x, place, axis=0) / unit
        apart = x[place] / unit - others.mean(axis=0)
        covariance = np.cov(others.T) + FAR_RIDGE * np.eye(x.shape[1])
        distances.append(np.sqrt(apart @ np.linalg.solve(covariance, apart)))
    return np.array(distances)


@pytest.mark.parametrize(("rows", "place"), [(40, 40), (99, 99), (100, 100), (150, 150), (250, 249)])
def test_the_cut_is_the_right_one_of_the_distances_with_each_row_left_out(rows: int, place: int) -> None:
    """The ceil(0.99 (n + 1))-th smallest, or the largest: of 250 rows the 249th, because 0.99 x 251 = 248.49."""
    x = np.random.default_rng(rows).normal(size=(rows, 4)) @ np.array(
        [[1, 0.5, 0, 0], [0, 1, 0, 0], [0, 0, 3, 1], [0, 0, 0, 0.1]]
    )
    assert by_distance(x).cut == pytest.approx(np.sort(slowly_left_out(x))[place - 1], rel=1e-9)


def test_distances_are_mahalanobis_distances_with_a_ridge() -> None:
    x = np.random.default_rng(3).normal(size=(60, 3)) * [1, 5, 0.2] + [0, 7, 1]
    rule = by_distance(x)
    unit = x.std(axis=0)
    covariance = np.cov((x / unit).T) + FAR_RIDGE * np.eye(3)
    apart = (x[:5] - x.mean(axis=0)) / unit
    expected = np.sqrt((apart * np.linalg.solve(covariance, apart.T).T).sum(axis=1))
    assert np.allclose(rule.distances(x[:5]), expected, rtol=1e-10)


def test_about_one_in_a_hundred_new_rows_is_far_and_strange_ones_are() -> None:
    rng = np.random.default_rng(8)
    mix = rng.normal(size=(6, 6))
    rule = by_distance(rng.normal(size=(2000, 6)) @ mix)
    new = rng.normal(size=(20_000, 6)) @ mix
    assert 0.004 < rule.marks(new).mean() < 0.02
    assert rule.marks(new + 10 * np.abs(mix).sum()).all()


def test_a_rare_level_does_not_widen_the_cut_for_everything_else() -> None:
    """One row of 150 has it. Measured in the column's own SD it would be 38 away, and nothing else ever rule."""
    x = np.random.default_rng(4).normal(size=(150, 5))
    without = by_distance(x).cut
    level = np.zeros((150, 1))
    level[7] = 1
    assert by_distance(np.hstack([x, level])).cut < 2 * without
    constant = by_distance(np.hstack([x, np.zeros((150, 1))]))
    assert constant.cut == pytest.approx(without)
    assert constant.distances(np.array([[0, 0, 0, 0, 0, 1.0]]))[0] > 6  # 1 / 0.5 / sqrt(0.1) = 6.3


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_numbers_beyond_all_bounds_are_far(value: float) -> None:
    rule = by_distance(np.random.default_rng(4).normal(size=(50, 2)))
    assert rule.marks(np.array([[0.0, value], [0.0, 0.0]])).tolist() == [True, False]


@pytest.mark.parametrize("rows", [1, 2])
def test_from_one_or_two_rows_nothing_can_be_said(rows: int) -> None:
    rule = by_distance(np.arange(2.0 * rows).reshape(rows, 2))
    assert rule.cut == 0
    assert rule.marks(np.array([[5.0, 5.0]])).tolist() == [True]


def test_ranges_alone_where_patients_are_protected() -> None:
    rule: OutOfDistribution = by_ranges()
    x = np.zeros((3, 4))
    assert rule.marks(x).tolist() == [False] * 3
    outside = {"age": np.array([True, False, False]), "chol": np.array([False, False, True])}
    assert rule.marks(x, outside).tolist() == [True, False, True]
