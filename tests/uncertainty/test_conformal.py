"""Prediction sets: the rank of the cut, exact coverage by resampling, and the promises that are not made."""

from functools import partial
from typing import Literal

import numpy as np
import pytest
from scipy import stats

from wardround.core.errors import StudyError
from wardround.evaluation.uncertainty.uncertainty_scores import expected_coverage
from wardround.tasks import Binary, Multiclass, Multilabel
from wardround.tasks.probabilities import ProbabilityTask
from wardround.uncertainty.conformal import (
    coverage,
    fit_cuts,
    held,
    prediction_sets,
    rank,
    set_sizes,
    strangeness,
)

ALPHA = 0.1
ROWS, RESAMPLINGS = 199, 200  # (199 + 1) x 0.9 is whole: the coverage to be expected is exactly 0.9
Kind = Literal["two", "several", "findings"]
TWO = Binary(("well", "ill"))
TASKS: dict[Kind, ProbabilityTask] = {
    "two": TWO,
    "several": Multiclass(tuple("abcd")),
    "findings": Multilabel(tuple("abc")),
}
one_cut = partial(fit_cuts, each_label=False)  # for all labels of a question
KINDS = pytest.mark.parametrize("kind", ["two", "several", "findings"])


def drawn(kind: Kind, rows: int, rng: np.random.Generator, shift: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Labels and scores of a model that is neither calibrated nor very good; `shift` makes it worse in other ways."""
    if kind == "several":
        label = rng.integers(0, 4, rows)
        z = rng.normal(size=(rows, 4)) + 1.5 * np.eye(4)[label] + shift
        return label, np.exp(3 * z) / np.exp(3 * z).sum(axis=1, keepdims=True)
    label = (rng.random(rows if kind == "two" else (rows, 3)) < 0.3).astype(np.int64)
    return label, 1 / (1 + np.exp(-2 * rng.normal(loc=1.5 * label - 1 + shift)))


@pytest.mark.parametrize(
    ("rows", "alpha", "place"),
    [
        (9, 0.1, 9),
        (8, 0.1, 9),
        (10, 0.1, 10),
        (19, 0.1, 18),
        (99, 0.1, 90),
        (999, 0.1, 900),
        (19, 0.05, 19),
        (0, 0.1, 1),
    ],
)
def test_the_rank_of_the_cut(rows: int, alpha: float, place: int) -> None:
    """ceil((n + 1)(1 - alpha)), though 0.9 is no binary fraction; above n there is nothing to cut by."""
    assert rank(rows, alpha) == place


def test_sets_by_hand() -> None:
    """Nine rows: the ninth of the sorted 1 - p is the cut, that of the row whose label had 0.2."""
    score = np.array([0.9, 0.8, 0.2, 0.7, 0.6, 0.95, 0.85, 0.75, 0.65])
    cuts = one_cut(TWO, np.ones(9, dtype=np.int64), score)
    assert cuts.values == pytest.approx([0.8, 0.8])
    sets = prediction_sets(TWO, cuts, np.array([0.1, 0.3, 0.5, 0.81]))
    assert sets.tolist() == [[True, False], [True, True], [True, True], [False, True]]
    assert set_sizes(sets).tolist() == [1, 2, 2, 1]
    assert held(sets, np.array([1, 1, 0, 1])).tolist() == [False, True, True, True]
    assert coverage(sets, np.array([1, 1, 0, 1])) == pytest.approx(0.75)


def test_a_set_may_be_empty_where_no_label_is_as_likely_as_those_of_validation_rows() -> None:
    cuts = one_cut(TWO, np.ones(99, dtype=np.int64), np.full(99, 0.9))
    assert set_sizes(prediction_sets(TWO, cuts, np.array([0.5, 0.95, 0.05]))).tolist() == [0, 1, 1]


def test_adaptive_strangeness_by_hand() -> None:
    values = strangeness(Multiclass(tuple("abc")), np.array([[0.2, 0.5, 0.3], [0.1, 0.1, 0.8]]), kind="adaptive")
    assert values == pytest.approx(np.array([[0.8, 0.0, 0.5], [0.8, 0.9, 0.0]]))
    assert strangeness(TWO, np.array([0.3])) == pytest.approx(np.array([[0.3, 0.7]]))


@KINDS
def test_too_few_rows_exclude_nothing(kind: Kind) -> None:
    rng = np.random.default_rng(1)
    cuts = one_cut(TASKS[kind], *drawn(kind, 8, rng))
    assert np.isinf(cuts.values).all()
    label, score = drawn(kind, 50, rng)
    assert prediction_sets(TASKS[kind], cuts, score).all()
    assert (coverage(prediction_sets(TASKS[kind], cuts, score), label) == 1).all()
    assert expected_coverage(((8, 50),), ALPHA) == (1.0, 1.0)


@pytest.mark.parametrize("alpha", [0.0, 1.0, 2.0])
def test_an_alpha_that_is_no_share_is_refused(alpha: float) -> None:
    with pytest.raises(StudyError, match="alpha"):
        one_cut(TWO, np.array([1]), np.array([0.5]), alpha)


def covered(kind: Kind, seed: int, test_rows: int, each_label: bool = False, shape: str = "plain") -> np.ndarray:
    rng = np.random.default_rng([seed, 17])
    cuts = one_cut(TASKS[kind], *drawn(kind, ROWS, rng), ALPHA, kind="adaptive" if shape == "adaptive" else "plain")
    label, score = drawn(kind, test_rows, rng)
    return np.atleast_1d(coverage(prediction_sets(TASKS[kind], cuts, score), label))


@KINDS
def test_coverage_over_resamplings_is_what_was_asked_for_and_single_ones_lie_within_their_interval(kind: Kind) -> None:
    """The coverage of 2,000 rows given 199 has an SD of 2.2 points, so that a mean over 200 has one of 0.16 points;
    half a point is three of them. Of the single ones 1 % may lie outside: with 200 (600 for findings) more than 7 (15)
    are improbable (below one in a hundred)."""
    coverages = np.stack([covered(kind, seed, 2000) for seed in range(RESAMPLINGS)])
    sd = stats.betabinom(2000, 180, 20).std() / 2000
    assert sd == pytest.approx(0.022, abs=0.001)
    assert np.abs(coverages.mean(axis=0) - (1 - ALPHA)).max() < 0.005
    low, high = expected_coverage(((ROWS, 2000),), ALPHA)
    outside = int(((coverages < low) | (coverages > high)).sum())
    assert outside <= stats.binom(coverages.size, 0.01).ppf(0.999)
    assert coverages.std(axis=0) == pytest.approx(
        np.full(coverages.shape[1], sd), rel=0.2
    )  # its SD strays by 1 / sqrt(400)


@KINDS
def test_adaptive_sets_cover_at_least_what_was_asked_for_and_hold_the_likeliest_label(kind: Kind) -> None:
    coverages = np.stack([covered(kind, seed, 500, shape="adaptive") for seed in range(RESAMPLINGS)])
    assert (coverages.mean(axis=0) > 1 - ALPHA - 0.005).all()
    rng = np.random.default_rng(5)
    cuts = one_cut(TASKS[kind], *drawn(kind, ROWS, rng), ALPHA, kind="adaptive")
    _, score = drawn(kind, 300, rng)
    assert set_sizes(prediction_sets(TASKS[kind], cuts, score)).min() >= 1


def test_adaptive_sets_are_larger_for_unclear_rows() -> None:
    rng = np.random.default_rng(2)
    cuts = one_cut(TASKS["several"], *drawn("several", 2000, rng), ALPHA, kind="adaptive")
    clear, unclear = np.array([[0.97, 0.01, 0.01, 0.01]]), np.full((1, 4), 0.25)
    sizes = set_sizes(prediction_sets(TASKS["several"], cuts, np.concatenate([clear, unclear])))
    assert sizes[0] == 1
    assert sizes[1] >= 3


def test_the_distribution_of_coverage_is_beta_binomial() -> None:
    """Against 20,000 draws of uniform strangenesses; the largest gap of two such distributions is 0.0195 or less with
    probability 0.999 (Kolmogorov)."""
    rng = np.random.default_rng(0)
    n, m, k = 19, 30, 18
    cut = np.sort(rng.random((20_000, n)), axis=1)[:, k - 1]
    number = rng.binomial(m, cut)
    expected = stats.betabinom(m, k, n + 1 - k).cdf(np.arange(m + 1))
    shares = np.searchsorted(np.sort(number), np.arange(m + 1), side="right") / 20_000
    assert np.abs(shares - expected).max() < 0.0195
    low, high = expected_coverage(((n, m),), ALPHA)
    assert ((number >= low * m) & (number <= high * m)).mean() > 0.985


def test_a_rare_finding_is_missed_by_sets_that_are_not_made_for_each_label() -> None:
    """One row in twenty has it. Sets that hold for 90 % of all rows may leave out "present" for all of those; sets for
    each label hold for 90 % of the ill."""
    rng = np.random.default_rng(3)
    label = (rng.random((6000, 1)) < 0.05).astype(np.int64)
    score = 1 / (1 + np.exp(-(rng.normal(size=label.shape) + 1.0 * label - 3)))
    fitted, tested = slice(0, 3000), slice(3000, None)
    ill = np.where(label[tested] == 1, 1, -1)
    task = Multilabel(("rare",))
    together = prediction_sets(task, one_cut(task, label[fitted], score[fitted]), score[tested])
    apart_cuts = fit_cuts(task, label[fitted], score[fitted], each_label=True)
    apart = prediction_sets(task, apart_cuts, score[tested])
    assert coverage(together, label[tested])[0] == pytest.approx(0.9, abs=0.02)
    assert coverage(together, ill)[0] < 0.2
    positives = int((label[fitted] == 1).sum())
    assert apart_cuts.rows.tolist() == [[3000 - positives, positives]]
    low, high = expected_coverage(((positives, int((ill == 1).sum())),), ALPHA)
    assert low <= coverage(apart, ill)[0] <= high


def test_a_sites_cut_holds_for_that_site_and_not_for_another() -> None:
    rng = np.random.default_rng(4)
    here, there = [drawn("two", 4000, rng, shift) for shift in (0.0, 1.5)]
    both = [np.concatenate([a[:2000], b[:2000]]) for a, b in zip(here, there, strict=True)]
    cuts = {
        "own": one_cut(TWO, there[0][:2000], there[1][:2000]),
        "other's": one_cut(TWO, here[0][:2000], here[1][:2000]),
        "all": one_cut(TWO, both[0], both[1]),
    }
    coverages = {
        name: float(coverage(prediction_sets(TWO, site_cuts, there[1][2000:]), there[0][2000:]))
        for name, site_cuts in cuts.items()
    }
    low, high = expected_coverage(((2000, 2000),), ALPHA)
    assert low <= coverages["own"] <= high
    assert coverages["other's"] < coverages["all"] < low


def test_labels_that_are_not_known_count_nowhere() -> None:
    rng = np.random.default_rng(6)
    label, score = drawn("findings", 300, rng)
    hidden = label.copy()
    hidden[:100, 1] = -1
    cuts, of_known = one_cut(TASKS["findings"], hidden, score), one_cut(TASKS["findings"], label[100:], score[100:])
    assert cuts.rows.tolist() == [[300, 300], [200, 200], [300, 300]]
    assert cuts.values[1] == pytest.approx(of_known.values[1])
    sets = prediction_sets(TASKS["findings"], cuts, score)
    assert coverage(sets, hidden)[1] == pytest.approx(coverage(sets[100:], label[100:])[1])
    assert not held(sets, hidden)[:100, 1].any()
