"""Calibration: errors by hand and by simulation, temperatures against scipy, and what they do to held-out rows."""

from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_softmax, softmax

from wardround.evaluation.calibration_curves import reliability
from wardround.tasks import Binary, Multiclass, Multilabel
from wardround.tasks.probabilities import ProbabilityTask
from wardround.uncertainty.calibration import (
    COLDEST,
    HOTTEST,
    ece,
    error_by_chance,
    expected_error,
    fit_temperature,
    likeliest,
    log_loss,
)
from wardround.uncertainty.scales import binary_slope, multiclass_slope

Kind = Literal["two", "several", "findings"]
KINDS: tuple[Kind, ...] = ("two", "several", "findings")
TWO = Binary(("well", "ill"))
TASKS: dict[Kind, ProbabilityTask] = {
    "two": TWO,
    "several": Multiclass(tuple("abcd")),
    "findings": Multilabel(tuple("abc")),
}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
CLIPPED = 1e-5  # what keeping scores from 0 and 1 may change in a loss


def drawn(kind: Kind, rows: int, seed: int, stretch: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Labels that follow true scores, and scores `stretch` times as far from even: too sure where it is above 1."""
    rng = np.random.default_rng(seed)
    if kind == "several":
        true = rng.normal(scale=1.5, size=(rows, 4))
        chances = softmax(true, axis=1).cumsum(axis=1)
        label = (rng.random((rows, 1)) > chances[:, :-1]).sum(axis=1)
        return label, softmax(stretch * true, axis=1)
    true = rng.normal(scale=1.5, size=rows if kind == "two" else (rows, 3))
    label = (rng.random(true.shape) < expit(true)).astype(np.int64)
    if kind == "findings":
        label[rng.random(label.shape) < 0.1] = -1
    return label, expit(stretch * true)


# Errors


def test_errors_by_hand() -> None:
    """Ten bins of five rows are a row each."""
    score = np.array([0.10, 0.12, 0.90, 0.95, 1.00])
    happened = np.array([0, 1, 1, 0, 1])
    assert expected_error(happened, score) == pytest.approx((0.1 + 0.88 + 0.1 + 0.95 + 0) / 5)


def test_a_bin_holds_every_row_once_and_the_error_is_bounded() -> None:
    label, score = drawn("two", 997, 1)
    points = reliability(label, score)
    assert sum(point["rows"] for point in points) == 997
    assert sum(point["rows"] * point["positive"] for point in points) == pytest.approx(label.sum())
    # no binning finds less than scores and labels differ by overall, nor more than they do row by row
    assert abs(score.mean() - label.mean()) <= expected_error(label, score) <= np.abs(score - label).mean()


def test_bins_of_equally_many_rows_see_a_rare_finding() -> None:
    """All scores are below 0.1 and right on average, but upside down: one bin of equal width would not see it."""
    score = np.linspace(0.0, 0.099, 1000)
    happened = (np.arange(1000)[::-1] % 1000 < 0).astype(np.int64)
    happened[:50] = 1  # the lowest scores, 4.95 % of them on average
    assert abs(score.mean() - happened.mean()) < 0.001
    assert expected_error(happened, score) > 0.08


def test_events_of_each_kind() -> None:
    label, score = np.array([0, 2]), np.array([[0.7, 0.2, 0.1], [0.5, 0.3, 0.2]])
    ((right, confidence),) = Multiclass(tuple("abc")).events(label, score)
    assert right.tolist() == [1, 0]
    assert confidence.tolist() == [0.7, 0.5]
    event_pairs = Multilabel(("a", "b")).events(np.array([[1, -1], [0, 1]]), np.array([[0.9, 0.8], [0.3, 0.4]]))
    assert [(happened.tolist(), probability.tolist()) for happened, probability in event_pairs] == [
        ([1, 0], [0.9, 0.3]),
        ([1], [0.4]),
    ]


def test_without_rows_or_with_a_diverged_model_there_is_no_error() -> None:
    none = np.array([])
    assert np.isnan(expected_error(none, none))
    assert np.isnan(error_by_chance(none))
    assert np.isnan(ece(TWO, np.array([0, 1]), np.array([0.5, np.nan])))
    assert np.isnan(ece(Multilabel(("a", "b")), np.full((4, 2), -1), np.full((4, 2), 0.5)))
    assert ece(
        Multilabel(("a", "b")), np.array([[-1, 0], [-1, 0]]), np.array([[0.5, 0.1], [0.5, 0.3]])
    ) == pytest.approx(0.2)


def test_the_error_by_chance_is_what_scores_that_are_right_have() -> None:
    """Mean over 400 draws; the SD of one draw's error is below a third of it, so that a mean strays by 1.7 %."""
    rng = np.random.default_rng(0)
    score = rng.beta(0.8, 2.0, 600)
    errors = [expected_error((rng.random(600) < score).astype(np.int64), score) for _ in range(400)]
    assert np.std(errors) < np.mean(errors) / 3
    assert error_by_chance(score) == pytest.approx(float(np.mean(errors)), rel=0.05)


# Temperatures


def by_scipy(kind: Kind, label: np.ndarray, score: np.ndarray) -> list[float]:
    """The likeliest temperatures, by a search over the loss itself."""

    def two(happened: np.ndarray, probability: np.ndarray) -> float:
        z = np.log(probability / (1 - probability))
        return search(lambda t: float((np.logaddexp(0, z / t) - happened * z / t).mean()))

    def search(loss: Callable[[float], float]) -> float:
        return float(minimize_scalar(loss, bounds=(COLDEST, HOTTEST), method="bounded", options={"xatol": 1e-10}).x)

    if kind == "several":
        logs = np.log(score)
        return [search(lambda t: float(-log_softmax(logs / t, axis=1)[np.arange(len(label)), label].mean()))]
    return [two(*pair) for pair in TASKS[kind].events(label, score)]


@EVERY_KIND
@pytest.mark.parametrize("stretch", [0.5, 1.0, 2.5])
def test_the_likeliest_temperatures_are_those_of_a_search_by_scipy(kind: Kind, stretch: float) -> None:
    label, score = drawn(kind, 400, 3, stretch)
    score = np.clip(score, 1e-6, 1 - 1e-6)
    if kind == "several":
        temperatures = [likeliest(multiclass_slope(label, np.log(score)))]
    else:
        temperatures = [
            likeliest(binary_slope(happened, np.log(probability / (1 - probability))))
            for happened, probability in TASKS[kind].events(label, score)
        ]
    # a search that only sees the loss finds its place to a thousandth, and no lower loss
    assert temperatures == pytest.approx(by_scipy(kind, label, score), rel=2e-3)


def test_how_far_it_goes_is_by_how_clear_it_is() -> None:
    """1 + (b - 1) (1 - (1.96 / t)^2) for the likeliest b = 1 / temperature, and t the slope at 1 in its SDs."""
    label, score = drawn("two", 200, 2, 1.8)
    z = np.log(score / (1 - score))
    slope = z * (score - label)
    t = slope.sum() / np.sqrt((slope**2).sum())
    assert abs(t) > 1.96
    b = 1 / likeliest(binary_slope(label, z))
    assert 1 / fit_temperature(TWO, label, score).values[0] == pytest.approx(1 + (b - 1) * (1 - (1.96 / t) ** 2))


@EVERY_KIND
@pytest.mark.parametrize("stretch", [0.5, 2.5])
def test_the_true_temperature_is_found(kind: Kind, stretch: float) -> None:
    """1 / temperature has a standard error of 1 / sqrt(rows x mean of z^2 p (1 - p)) times 1 / stretch, which for true
    scores z with an SD of 1.5 is 2.2 / sqrt(rows), less for several classes: 2.3 % of 9,000 known rows. Four of them
    are allowed."""
    label, score = drawn(kind, 10_000, 8, stretch)
    assert 1 / fit_temperature(TASKS[kind], label, score).values == pytest.approx(1 / stretch, rel=4 * 0.023)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(KINDS),
    st.integers(0, 10**6),
    st.integers(30, 200),
    st.sampled_from([-1.0, 0.0, 0.2, 1.0, 4.0, 30.0]),
)
def test_the_loss_on_the_rows_it_is_fitted_on_never_rises_and_no_order_changes(
    kind: Kind, seed: int, rows: int, stretch: float
) -> None:
    """Scores upside down, all alike, or of a model that is all but certain are among them."""
    label, score = drawn(kind, rows, seed, stretch)
    fitted = fit_temperature(TASKS[kind], label, score)
    scaled = fitted.of(score)
    assert scaled.shape == score.shape
    assert np.isfinite(scaled).all()
    assert log_loss(TASKS[kind], label, scaled) <= log_loss(TASKS[kind], label, score) + CLIPPED
    assert (fitted.values >= COLDEST).all()
    assert (fitted.values <= HOTTEST).all()
    if kind == "several":
        assert scaled.sum(axis=1) == pytest.approx(np.ones(rows))
        picked = np.arange(rows)
        assert scaled.max(axis=1) == pytest.approx(scaled[picked, score.argmax(axis=1)])
    else:
        order = np.argsort(score, axis=0)
        assert (np.diff(np.take_along_axis(scaled, order, axis=0), axis=0) >= 0).all()


def test_a_model_that_is_never_or_always_right_goes_towards_a_limit() -> None:
    score = np.linspace(0.05, 0.95, 60)
    right, z = (score > 0.5).astype(np.int64), np.log(score / (1 - score))
    assert likeliest(binary_slope(right, z)) == COLDEST
    assert likeliest(binary_slope(1 - right, z)) == HOTTEST
    assert fit_temperature(TWO, right, score).values[0] < 0.1
    assert fit_temperature(TWO, 1 - right, score).values[0] > 5


@EVERY_KIND
def test_too_few_rows_fit_nothing(kind: Kind) -> None:
    label, score = drawn(kind, 29, 5, 3.0)
    fitted = fit_temperature(TASKS[kind], label, score)
    assert not fitted.fitted.any()
    assert fitted.of(score) == pytest.approx(score, abs=CLIPPED)


def test_a_finding_that_few_have_keeps_its_scores_while_others_are_fitted() -> None:
    label, score = drawn("findings", 200, 5, 3.0)
    label[:, 1] = 0
    label[:4, 1] = 1
    fitted = fit_temperature(TASKS["findings"], label, score)
    assert fitted.fitted.tolist() == [True, False, True]
    assert fitted.values[1] == 1.0


def test_right_scores_keep_a_temperature_of_one() -> None:
    """In 95 of 100 draws, because the test is at 1.96 SDs: of 400 draws 380, with an SD of 4.4. Four are allowed."""
    counts = [(fit_temperature(TWO, *drawn("two", 300, seed)).values == 1).sum() for seed in range(400)]
    assert abs(sum(counts) - 380) < 4 * 4.4


def test_many_rows_of_a_patient_are_no_more_evidence_than_one() -> None:
    """Every patient's row, ten times: the likeliest temperature is the same, and so is what chance could make of it."""
    for seed in range(40):
        label, score = drawn("two", 120, seed, 1.3)
        once = fit_temperature(TWO, label, score)
        again = fit_temperature(TWO, np.repeat(label, 10), np.repeat(score, 10), np.repeat(np.arange(120), 10))
        assert again.values == pytest.approx(once.values)
    rejections = [
        fit_temperature(TWO, *(np.repeat(array, 10) for array in drawn("two", 120, seed, 1.3))).values[0] != 1
        for seed in range(40)
    ]
    known = [fit_temperature(TWO, *drawn("two", 120, seed, 1.3)).values[0] != 1 for seed in range(40)]
    assert sum(rejections) > sum(known) + 5  # rows that are taken for patients show more than there is


def test_patients_of_either_outcome_are_needed() -> None:
    label, score = drawn("two", 400, 3, 3.0)
    people = np.where(label == 1, np.arange(400) % 9, np.arange(400))  # all the ill are nine patients
    assert fit_temperature(TWO, label, score).fitted.all()
    assert not fit_temperature(TWO, label, score, people).fitted.any()


def raised(kind: Kind, stretch: float, beyond_chance: float, monkeypatch: pytest.MonkeyPatch) -> float:
    """By how much the error of 2,850 other rows changes, on average over 60 draws of 150 rows to fit."""
    monkeypatch.setattr("wardround.uncertainty.calibration.BEYOND_CHANCE", beyond_chance)
    changes = []
    for seed in range(60):
        label, score = drawn(kind, 3000, 100 + seed, stretch)
        fitted = fit_temperature(TASKS[kind], label[:150], score[:150])
        changes.append(
            ece(TASKS[kind], label[150:], fitted.of(score[150:])) - ece(TASKS[kind], label[150:], score[150:])
        )
    return float(np.mean(changes))


@pytest.mark.slow
@EVERY_KIND
@pytest.mark.parametrize("stretch", [1.0, 1.15, 1.3])
def test_over_many_draws_held_out_rows_are_no_worse(
    kind: Kind, stretch: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Validation rows as few as a hospital's, and scores that are right or a little too sure, as those of networks are.
    Where they are right whatever is fitted is chance: what is taken does a fifth of the harm that the likeliest would.
    """
    ours, likeliest_one = (raised(kind, stretch, beyond, monkeypatch) for beyond in (1.96, 0.0))
    assert likeliest_one > 0.008 or stretch > 1
    assert ours < likeliest_one / 5 or stretch > 1
    assert ours < (0.001 if stretch < 1.3 else -0.002) or stretch == 1


@EVERY_KIND
@pytest.mark.parametrize("stretch", [0.4, 3.0])
def test_held_out_rows_are_better_calibrated_where_scores_were_wrong(kind: Kind, stretch: float) -> None:
    label, score = drawn(kind, 4000, 11, stretch)
    fitted = fit_temperature(TASKS[kind], label[:1000], score[:1000])
    before, after = (
        ece(TASKS[kind], label[1000:], score[1000:]),
        ece(TASKS[kind], label[1000:], fitted.of(score[1000:])),
    )
    assert after < before / 2


@pytest.mark.parametrize("seed", range(10))
def test_held_out_rows_are_not_worse_calibrated_where_scores_were_right(seed: int) -> None:
    """Scores that are right already: what is fitted is chance, and the error can rise by no more than the scores move.

    Dividing logits by a temperature changes no order, so that adaptive bins hold the same rows, and the error changes
    by at most the mean |p' - p|. With b = 1 / temperature that is at most |b - 1| / min(1, b) times the largest
    u s'(u) of the logistic function s, which is 0.2239. And b strays from 1 by 1 / sqrt(sum z^2 p (1 - p)), its
    standard error; four of them are allowed.
    """
    label, score = drawn("two", 8000, seed)
    fitted = fit_temperature(TWO, label[:4000], score[:4000])
    p, z = score[:4000], np.log(score[:4000] / (1 - score[:4000]))
    inverse, four = 1 / fitted.values[0], 4 / np.sqrt((z**2 * p * (1 - p)).sum())
    assert abs(inverse - 1) < four
    before, after = ece(TWO, label[4000:], score[4000:]), ece(TWO, label[4000:], fitted.of(score[4000:]))
    moved = np.abs(fitted.of(score[4000:]) - score[4000:]).mean()
    assert after <= before + moved
    assert moved <= 0.2239 * abs(inverse - 1) / min(1.0, inverse) + 1e-15
    assert 0.2239 * four / (1 - four) < 0.04
