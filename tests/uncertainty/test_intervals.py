"""Prediction intervals of numbers: the rank of the cut, exact coverage by resampling, and what gives none."""

import numpy as np
import pytest
from scipy import stats

from wardround.core.errors import StudyError
from wardround.tasks import Count, Regression
from wardround.tasks.summed import SummedTask
from wardround.uncertainty.conformal import rank
from wardround.uncertainty.intervals import (
    IntervalCut,
    fit_interval_cut,
    interval_coverage,
    least_rows,
    prediction_intervals,
    row_scale,
    shown_intervals,
)

DAYS = Regression(("days",))
VISITS = Count(("visits",))
OVERDISPERSED = Count(("visits",), dispersion=0.5)
ALPHA, RESAMPLINGS = 0.1, 200


def drawn(task: SummedTask, rows: int, rng: np.random.Generator, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Outcomes, and predictions of a model that is biased and does not know how much outcomes vary."""
    z = rng.normal(size=rows)
    if task is DAYS:
        return 8 + 3 * z + scale * rng.gamma(2, 2, rows) * np.exp(z / 2), 12 + 2 * z
    mean = 6 * np.exp(0.5 * z)
    counts = rng.negative_binomial(3, 3 / (3 + mean))
    return counts.astype(np.float64), 1.2 * mean


@pytest.mark.parametrize(("rows", "alpha"), [(505, 0.1), (777, 0.05), (400, 0.2)])
@pytest.mark.parametrize("task", [DAYS, VISITS, OVERDISPERSED], ids=["regression", "poisson", "negative binomial"])
def test_coverage_over_200_resamplings_is_what_is_to_be_expected(task: SummedTask, rows: int, alpha: float) -> None:
    """Validation rows are drawn from a fixed pool, and the rest are test rows, so that all rows are exchangeable,
    however wrong the model is. No two are equally far from their prediction. Then only ranks count: of m test rows the
    number covered is beta-binomial, with m, k and n + 1 - k, where k = ceil((n + 1)(1 - alpha)) is the rank of the cut
    among n validation rows (Vovk, ACML 2012). The share has the mean k / (n + 1), and an SD of

        sqrt(q (1 - q) / m  x  (m + n + 1) / (n + 2))        with q = k / (n + 1)

    which is 1.5 points for n = 505 and m = 2000, and 2.2 for n = 400 and alpha = 0.2. Draws of the pool are independent
    given the pool, so that the mean over 200 of them has an SD of at most 0.16 points: half a point is three of them.
    """
    tested = 2000
    label, score = drawn(task, rows + tested, np.random.default_rng(5))
    strange = np.abs(label - score) / row_scale(task, score)
    assert len(np.unique(strange)) == len(strange)
    expected = rank(rows, alpha) / (rows + 1)
    sd = stats.betabinom(tested, rank(rows, alpha), rows + 1 - rank(rows, alpha)).std() / tested
    by_hand = np.sqrt(expected * (1 - expected) / tested * (tested + rows + 1) / (rows + 2))
    assert sd == pytest.approx(by_hand)
    assert sd / np.sqrt(RESAMPLINGS) < 0.0017
    coverages, shown = [], []
    for seed in range(RESAMPLINGS):
        order = np.random.default_rng([seed, 3]).permutation(rows + tested)
        known, new = order[:rows], order[rows:]
        cut = fit_interval_cut(task, label[known], score[known], alpha)
        coverages.append(interval_coverage(*prediction_intervals(task, cut, score[new]), label[new]))
        shown.append(interval_coverage(*shown_intervals(task, cut, score[new]), label[new]))
    assert abs(np.mean(coverages) - expected) < 0.005
    assert np.std(coverages) == pytest.approx(sd, rel=0.25)  # its SD strays by 1 / sqrt(400)
    # whole numbers between the ends: the same rows are covered, unless there is none between them
    assert np.mean(shown) == pytest.approx(np.mean(coverages), abs=1e-3)
    assert (np.array(shown) >= coverages).all()


@pytest.mark.parametrize("rows", [9, 19, 23, 57])
def test_coverage_with_few_rows_is_exact_as_well(rows: int) -> None:
    """20,000 cuts of standard normal residuals, all at once; a cut c covers 2 Phi(c) - 1 of all rows, so that no test
    rows are needed. The coverage of one cut is Beta(k, n + 1 - k), with an SD of 9 points for n = 9: the mean of
    20,000 strays by 0.07 points."""
    strange = np.abs(np.random.default_rng(rows).normal(size=(20_000, rows)))
    place = rank(rows, ALPHA)
    cuts = np.partition(strange, place - 1, axis=1)[:, place - 1]
    some = [fit_interval_cut(DAYS, row, np.zeros(rows), ALPHA).value for row in strange[:20]]
    assert some == pytest.approx(cuts[:20].tolist())
    assert (2 * stats.norm.cdf(cuts) - 1).mean() == pytest.approx(place / (rows + 1), abs=0.005)


def test_intervals_by_hand() -> None:
    """Nine rows: the ninth of the sorted residuals is the cut."""
    label = np.array([1.0, 2, 3, 4, 5, 6, 7, 8, 19])
    cut = fit_interval_cut(DAYS, label, np.zeros(9))
    assert (cut.value, cut.rows, cut.why) == (19, 9, "")
    low, high = prediction_intervals(DAYS, cut, np.array([10.0, -1.0]))
    assert low == pytest.approx([-9, -20])
    assert high == pytest.approx([29, 18])
    assert interval_coverage(low, high, np.array([29.0, 18.5])) == 0.5
    assert np.isnan(interval_coverage(low[:0], high[:0], label[:0]))


def test_intervals_of_counts_grow_with_the_expected_count_and_hold_whole_numbers_from_nothing_on() -> None:
    """With a cut of 2, a Poisson mean of 4 has 4 +- 4, one of 100 has 100 +- 20; variances of 4 + 8 and 100 + 5000 with
    a dispersion of 0.5 have 4 +- 6.9 and 100 +- 142.8."""
    cut, score = IntervalCut(0.1, 2.0, 30), np.array([4.0, 100.0, 0.09])
    assert np.stack(prediction_intervals(VISITS, cut, score), axis=1) == pytest.approx(
        np.array([[0, 8], [80, 120], [-0.51, 0.69]]), abs=1e-6
    )
    assert np.stack(shown_intervals(VISITS, cut, score), axis=1).tolist() == [[0, 8], [80, 120], [0, 0]]
    assert np.stack(shown_intervals(OVERDISPERSED, cut, score[:2]), axis=1).tolist() == [[0, 10], [0, 242]]


def test_where_no_whole_number_lies_within_the_next_on_either_side_do() -> None:
    low, high = VISITS.possible(np.array([0.2, 3.1, -4.0, 2.0]), np.array([0.7, 3.9, -1.0, 2.0]))
    assert low.tolist() == [0, 3, 0, 2]
    assert high.tolist() == [1, 4, 0, 2]


def test_a_row_that_is_exactly_as_far_as_the_cut_is_within_it() -> None:
    """The same predictions and outcomes as in validation: rounding takes none of them out."""
    rng = np.random.default_rng(0)
    for task in (DAYS, VISITS):
        label, score = drawn(task, 99, rng)
        cut = fit_interval_cut(task, label, score)
        assert interval_coverage(*shown_intervals(task, cut, score), label) >= 90 / 99 - 1e-12
        same = np.full(99, 3.3)
        cut = fit_interval_cut(task, np.arange(99.0), same)
        assert interval_coverage(*shown_intervals(task, cut, same), np.arange(99.0)) >= 90 / 99 - 1e-12


@pytest.mark.parametrize(("alpha", "least"), [(0.1, 9), (0.05, 19), (0.2, 4), (0.5, 1), (0.3, 3), (0.9, 1), (0.01, 99)])
def test_too_few_rows_give_no_interval_and_say_why(alpha: float, least: int) -> None:
    assert least_rows(alpha) == least
    assert rank(least, alpha) <= least
    label = np.arange(float(least))
    enough = fit_interval_cut(DAYS, label, np.zeros(least), alpha)
    assert np.isfinite(enough.value)
    assert enough.why == ""
    too_few = fit_interval_cut(DAYS, label[1:], np.zeros(least - 1), alpha)
    assert f"{least - 1} validation rows are too few" in too_few.why
    assert f"needs {least}" in too_few.why
    low, high = prediction_intervals(VISITS, too_few, np.array([2.0]))
    assert (low[0], high[0]) == (-np.inf, np.inf)


@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.1, float("nan")])
def test_an_alpha_that_is_no_share_is_refused(alpha: float) -> None:
    with pytest.raises(StudyError, match="alpha"):
        fit_interval_cut(DAYS, np.zeros(20), np.zeros(20), alpha)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_outcomes_and_predictions_that_are_no_numbers_are_refused_without_telling_them(wrong: float) -> None:
    fine, bad = np.full(20, 271.5), np.append(np.full(19, 271.5), wrong)
    for label, score in ((fine, bad), (bad, fine)):
        with pytest.raises(StudyError, match="no finite number") as raised:
            fit_interval_cut(DAYS, label, score)
        assert "271" not in str(raised.value)
    with pytest.raises(ValueError, match="predictions of them"):
        fit_interval_cut(DAYS, fine, fine[1:])


def test_a_sites_cut_holds_for_that_site_and_not_for_one_whose_patients_vary_more() -> None:
    rng = np.random.default_rng(4)
    here, there = (drawn(DAYS, 4000, rng, scale) for scale in (1.0, 3.0))
    own = fit_interval_cut(DAYS, there[0][:2000], there[1][:2000])
    others = fit_interval_cut(DAYS, here[0][:2000], here[1][:2000])
    covered = [
        interval_coverage(*prediction_intervals(DAYS, cut, there[1][2000:]), there[0][2000:]) for cut in (own, others)
    ]
    assert covered[0] == pytest.approx(0.9, abs=0.03)
    assert covered[1] < 0.7


def test_a_predicted_count_of_all_but_nothing_makes_no_count_infinitely_strange() -> None:
    cut = fit_interval_cut(VISITS, np.zeros(20), np.full(20, 1e-300))
    assert np.isfinite(cut.value)
    assert np.isfinite(fit_interval_cut(VISITS, np.ones(20), np.full(20, 1e-300)).value)
