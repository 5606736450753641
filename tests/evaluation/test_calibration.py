"""Calibration and decision curves: known truth, statsmodels called directly, and sums done by hand."""

import warnings
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import expit, logit
from sklearn.metrics import roc_auc_score
from statsmodels.regression.linear_model import OLS

from wardround.evaluation.calibration_curves import (
    BINS,
    calibration,
    calibration_of,
    decision_curve,
    decision_curve_of,
    number_calibration,
    ranking_of,
    reliability,
    residual_bins,
    score_histogram,
    wilson,
)
from wardround.tasks import Count, Regression, class_task, findings_task
from wardround.tasks.class_metrics import THRESHOLDS

MANY = 20_000


def patients(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """True logits, and labels that follow them."""
    rng = np.random.default_rng(seed)
    true = rng.normal(scale=1.2, size=count)
    return true, (rng.random(count) < expit(true)).astype(np.int64)


def calibrated(label: np.ndarray, score: np.ndarray, row: np.ndarray | None = None) -> dict[str, Any]:
    figures = calibration(label, score, np.arange(len(label)) if row is None else row)
    assert figures is not None
    return figures


@pytest.mark.parametrize(
    ("stretch", "shift", "slope", "intercept"),
    [
        (1.0, 0.0, 1.0, 0.0),
        (2.0, 0.0, 0.5, None),  # too sure of itself: the label's logit moves by half of what the score's does
        (0.5, 0.0, 2.0, None),  # too timid
        (1.0, 1.0, 1.0, -1.0),  # too high throughout: the label's logit is the score's less one
        (1.0, -0.5, 1.0, 0.5),
    ],
    ids=["calibrated", "too sure", "too timid", "too high", "too low"],
)
def test_what_is_wrong_with_the_scores_is_found(
    stretch: float, shift: float, slope: float, intercept: float | None
) -> None:
    true, label = patients(MANY)
    figures = calibrated(label, expit(stretch * true + shift))
    parts = {"slope": slope} if intercept is None else {"slope": slope, "intercept": intercept}
    for name, expected in parts.items():
        low, high = figures[name]["interval"]
        assert low < expected < high  # a 95 % interval; the draw is fixed
        assert figures[name]["value"] == pytest.approx(expected, abs=0.05)
        assert high - low < 0.15 * max(1.0, expected)


def test_the_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    """95 % of 300 studies of 150 patients, each tested twice. Three standard deviations are 3.8 points."""
    hits = {"slope": 0, "intercept": 0}
    for seed in range(300):
        true, label = patients(150, seed)
        figures = calibrated(np.tile(label, 2), np.tile(expit(true), 2), np.tile(np.arange(150), 2))
        for name, expected in (("slope", 1.0), ("intercept", 0.0)):
            low, high = figures[name]["interval"]
            hits[name] += low <= expected <= high
    assert 0.91 < hits["slope"] / 300 < 0.99
    assert 0.91 < hits["intercept"] / 300 < 0.99


def test_patients_tested_several_times_do_not_make_the_intervals_narrower() -> None:
    true, label = patients(400)
    score = expit(1.5 * true + 0.2)
    once = calibrated(label, score)
    ten = calibrated(np.tile(label, 10), np.tile(score, 10), np.tile(np.arange(400), 10))
    strangers = calibrated(np.tile(label, 10), np.tile(score, 10))
    for name in ("slope", "intercept"):
        assert ten[name]["value"] == pytest.approx(once[name]["value"], abs=1e-6)
        width, width_of_ten, if_strangers = (np.ptp(figures[name]["interval"]) for figures in (once, ten, strangers))
        assert width_of_ten == pytest.approx(width, rel=0.02)  # but for the small-sample factor
        assert if_strangers == pytest.approx(width / np.sqrt(10), rel=0.02)


@pytest.mark.parametrize("seed", range(3))
def test_slope_and_intercept_are_those_of_statsmodels(seed: int) -> None:
    from statsmodels.discrete.discrete_model import Logit
    from statsmodels.genmod.families import Binomial
    from statsmodels.genmod.generalized_linear_model import GLM

    true, label = patients(300, seed)
    rng = np.random.default_rng(seed)
    row = rng.integers(0, 120, 300)
    x = 1.4 * true + rng.normal(size=300)
    figures = calibrated(label, expit(x), row)
    # another program of statsmodels for the slope: Newton's method on the likelihood instead of reweighted squares
    sloped = Logit(label, np.column_stack([np.ones(300), x])).fit(
        disp=0, cov_type="cluster", cov_kwds={"groups": row}, tol=1e-10
    )
    assert figures["slope"]["value"] == pytest.approx(sloped.params[1], abs=1e-6)
    assert figures["slope"]["interval"] == pytest.approx(sloped.conf_int()[1].tolist(), abs=1e-4)
    fixed = GLM(label, np.ones(300), Binomial(), offset=x).fit(cov_type="cluster", cov_kwds={"groups": row})
    assert figures["intercept"]["value"] == pytest.approx(fixed.params[0])
    assert figures["intercept"]["interval"] == pytest.approx(fixed.conf_int()[0].tolist())
    # and what the intercept means: moved by it, the scores predict as many positives as there are
    assert expit(x + figures["intercept"]["value"]).sum() == pytest.approx(label.sum())


def test_scores_of_exactly_zero_and_one_are_taken_as_nearly_so() -> None:
    true, label = patients(300)
    score = expit(3 * true)
    score[[0, 1]] = [0.0, 1.0]
    label[[0, 1]] = [0, 1]
    figures = calibrated(label, score)
    assert np.isfinite([*figures["slope"]["interval"], *figures["intercept"]["interval"]]).all()


TRUE, LABEL = patients(60)
SCORE = expit(TRUE)


@pytest.mark.parametrize(
    ("label", "score"),
    [
        (np.ones(60, dtype=np.int64), SCORE),
        (LABEL, np.full(60, 0.4)),
        (LABEL, np.where(np.arange(60) == 7, np.nan, SCORE)),
        (np.array([], dtype=np.int64), np.array([])),
    ],
    ids=["one class", "scores all alike", "diverged", "no rows"],
)
def test_where_it_cannot_be_computed_it_is_none(label: np.ndarray, score: np.ndarray) -> None:
    assert calibration(label, score, np.arange(len(label))) is None


def test_only_one_probability_has_a_line_on_the_logit_scale_and_a_decision_curve() -> None:
    rows, classes = np.arange(60), np.column_stack([1 - SCORE, SCORE])
    both = np.column_stack([LABEL, LABEL])
    assert calibration_of(class_task(2), LABEL, SCORE, rows) == calibration(LABEL, SCORE, rows)
    assert decision_curve_of(class_task(2), LABEL, SCORE) == decision_curve(LABEL, SCORE)
    for task, label in ((class_task(3), LABEL), (findings_task(2), both)):
        assert calibration_of(task, label, classes, rows) is None
        assert decision_curve_of(task, label, classes) is None


def test_scores_that_separate_the_classes_have_no_slope() -> None:
    score = np.linspace(0.05, 0.95, 60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # see the known defect below
        assert calibration((score > 0.5).astype(np.int64), score, np.arange(60)) is None


def test_scores_that_separate_the_classes_make_no_noise() -> None:
    score = np.linspace(0.05, 0.95, 60)
    assert calibration((score > 0.5).astype(np.int64), score, np.arange(60)) is None


def test_scores_that_are_all_alike_once_clipped_have_no_slope() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert calibration(LABEL, SCORE * 1e-9, np.arange(60)) is None


def test_a_model_that_is_always_certain_has_a_finite_intercept() -> None:
    """45 of 50 certain scores are right; the five wrong ones say 1."""
    label = np.arange(50) % 2
    score = np.where(np.arange(50) < 40, label, 1).astype(np.float64)
    x = logit(np.clip(score, 1e-6, 1 - 1e-6))
    expected = brentq(lambda moved: expit(x + moved).sum() - label.sum(), -50, 50)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        figures = calibration(label, score, np.arange(50))
    assert figures is None or figures["intercept"]["value"] == pytest.approx(expected, abs=1e-3)


def test_the_bins_hold_every_row_once_in_order_of_the_score() -> None:
    true, label = patients(1234)
    score = expit(true)
    bins = reliability(label, score)
    assert len(bins) == BINS
    assert sum(score_bin["rows"] for score_bin in bins) == 1234
    assert max(score_bin["rows"] for score_bin in bins) - min(score_bin["rows"] for score_bin in bins) <= 1
    assert [score_bin["score"] for score_bin in bins] == sorted(score_bin["score"] for score_bin in bins)
    assert sum(score_bin["rows"] * score_bin["score"] for score_bin in bins) == pytest.approx(score.sum())
    assert sum(score_bin["rows"] * score_bin["positive"] for score_bin in bins) == pytest.approx(label.sum())
    assert calibrated(label, score)["bins"] == reliability(label, score, patient=np.arange(1234))


def test_the_bins_are_scikit_learns_quantiles() -> None:
    from sklearn.calibration import calibration_curve

    true, label = patients(1000, 4)
    score = expit(true)
    positive, mean = calibration_curve(label, score, n_bins=BINS, strategy="quantile")
    bins = reliability(label, score)
    assert [score_bin["score"] for score_bin in bins] == pytest.approx(mean.tolist())
    assert [score_bin["positive"] for score_bin in bins] == pytest.approx(positive.tolist())


def test_fewer_rows_than_bins_give_a_bin_each() -> None:
    bins = reliability(np.array([1, 0, 1]), np.array([0.9, 0.1, 0.4]))
    assert bins == [
        {"score": 0.1, "positive": 0.0, "rows": 1},
        {"score": 0.4, "positive": 1.0, "rows": 1},
        {"score": 0.9, "positive": 1.0, "rows": 1},
    ]


def at(curve: dict[str, list[float]] | None, threshold: float) -> tuple[float, float]:
    assert curve is not None
    place = curve["threshold"].index(threshold)
    return curve["net_benefit"][place], curve["treat_all"][place]


def test_net_benefit_by_hand() -> None:
    """Four patients. A false alarm costs threshold / (1 - threshold) of what a hit is worth."""
    curve = decision_curve(np.array([0, 1, 0, 1]), np.array([0.1, 0.3, 0.6, 0.8]))
    assert at(curve, 0.2) == pytest.approx((2 / 4 - 1 / 4 * 0.25, 2 / 4 - 2 / 4 * 0.25))
    assert at(curve, 0.3) == pytest.approx((2 / 4 - 1 / 4 * 3 / 7, 2 / 4 - 2 / 4 * 3 / 7))  # 0.3 itself is acted on
    assert at(curve, 0.5) == pytest.approx((1 / 4 - 1 / 4, 2 / 4 - 2 / 4))
    assert at(curve, 0.75) == pytest.approx((1 / 4, 2 / 4 - 2 / 4 * 3))
    assert at(curve, 0.9) == pytest.approx((0.0, 2 / 4 - 2 / 4 * 9))


def test_acting_on_all_is_worth_nothing_where_the_threshold_is_the_share_of_positives() -> None:
    label = (np.arange(100) < 30).astype(np.int64)
    curve = decision_curve(label, np.ones(100))
    assert at(curve, 0.3) == pytest.approx((0.0, 0.0), abs=1e-12)
    assert curve is not None
    assert curve["net_benefit"] == pytest.approx(curve["treat_all"])  # scores of 1 act on all
    odds = THRESHOLDS / (1 - THRESHOLDS)
    assert curve["treat_all"] == pytest.approx((0.3 - 0.7 * odds).tolist())


def test_a_perfect_model_is_worth_the_share_of_positives_at_every_threshold_and_none_is_better() -> None:
    true, label = patients(500)
    perfect, usual = decision_curve(label, label.astype(float)), decision_curve(label, expit(true))
    assert perfect is not None
    assert usual is not None
    assert perfect["net_benefit"] == pytest.approx([label.mean()] * len(THRESHOLDS))
    assert all(a <= b for a, b in zip(usual["net_benefit"], perfect["net_benefit"], strict=True))


def test_a_decision_curve_needs_scores() -> None:
    assert decision_curve(LABEL, np.where(np.arange(60) == 7, np.nan, SCORE)) is None
    assert decision_curve(LABEL[:0], SCORE[:0]) is None
    assert decision_curve(np.zeros(60, dtype=np.int64), SCORE) is not None  # nobody is ill: acting can only cost


# Numbers


def drawn_numbers(rows: int = 300, repeats: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Outcomes, predictions and patients, of whom each may have several rows that are alike."""
    rng = np.random.default_rng(8)
    patient = np.repeat(np.arange(rows // repeats), repeats)
    score = 50 + 10 * rng.normal(size=rows)
    label = 5 + 0.8 * score + rng.normal(size=rows // repeats)[patient] * 4 + rng.normal(size=rows)
    return label, score, patient


@pytest.mark.parametrize("repeats", [1, 3])
def test_the_line_of_numbers_and_its_intervals_are_those_of_statsmodels(repeats: int) -> None:
    label, score, patient = drawn_numbers(repeats=repeats)
    entry = number_calibration(label, score, patient)
    assert entry is not None
    fitted = OLS(label, np.column_stack([np.ones(len(score)), score])).fit(
        cov_type="cluster", cov_kwds={"groups": patient}, use_t=False
    )
    for place, name in enumerate(("intercept", "slope")):
        assert entry[name]["value"] == pytest.approx(fitted.params[place])
        assert entry[name]["interval"] == pytest.approx(fitted.conf_int()[place].tolist())
    figures = Regression(("days",)).figures(label, score)
    assert entry["slope"]["value"] == pytest.approx(figures["calibration_slope"])
    assert entry["intercept"]["value"] == pytest.approx(figures["calibration_intercept"])


def test_bins_of_numbers_hold_every_row_once_and_none_is_a_patient() -> None:
    label, score, _ = drawn_numbers()
    bins = residual_bins(label, score)
    assert len(bins) == BINS
    assert sum(part["rows"] for part in bins) == 300
    lowest = np.argsort(score)[:30]
    assert bins[0] == pytest.approx(
        {
            "score": score[lowest].mean(),
            "observed": label[lowest].mean(),
            "residual": (label - score)[lowest].mean(),
            "residual_sd": (label - score)[lowest].std(ddof=1),
            "rows": 30,
        }
    )
    assert [part["rows"] for part in residual_bins(label[:35], score[:35])] == [12, 12, 11]
    assert [part["rows"] for part in residual_bins(label[:4], score[:4])] == [4]
    assert residual_bins(label[:1], score[:1]) == residual_bins(label[:0], score[:0]) == []


def test_numbers_have_a_line_and_no_decision_curve() -> None:
    label, score, patient = drawn_numbers()
    for task in (Regression(("days",)), Count(("visits",))):
        assert calibration_of(task, label, score, patient) == number_calibration(label, score, patient)
        assert decision_curve_of(task, label, score) is None


def test_where_numbers_have_no_line_there_is_none() -> None:
    label, score, patient = drawn_numbers()
    alike = np.full(300, 1e6 / 3)
    assert number_calibration(label, alike, patient) is None
    assert number_calibration(label, np.where(np.arange(300) == 7, np.nan, score), patient) is None
    assert number_calibration(label, np.where(np.arange(300) == 7, np.inf, score), patient) is None
    assert number_calibration(label, score, np.zeros(300)) is None  # one patient says nothing of others
    assert number_calibration(label[:2], score[:2], patient[:2]) is None
    assert number_calibration(label[:0], score[:0], patient[:0]) is None


def test_large_numbers_that_differ_little_lose_no_digits() -> None:
    label, score, patient = drawn_numbers()
    near, far = number_calibration(label, score, patient), number_calibration(label + 1e9, score + 1e9, patient)
    assert near is not None
    assert far is not None
    assert far["slope"]["value"] == pytest.approx(near["slope"]["value"], rel=1e-5)
    assert far["slope"]["interval"] == pytest.approx(near["slope"]["interval"], rel=1e-4)


def test_the_interval_of_a_share_is_wilsons_and_a_patient_counts_once() -> None:
    """Of 10 rows, 3 with the event. Wilson: middle (0.3 + 1.9208 / 10) / 1.38415, half its root, by hand."""
    label, score = np.array([1] * 3 + [0] * 7), np.linspace(0.1, 0.9, 10)
    assert wilson(0.3, 10) == pytest.approx([0.10779, 0.60322], abs=1e-5)
    (alone,) = reliability(label, score, 1, np.arange(10))
    # residuals 3 * 0.49 + 7 * 0.09 = 2.1, times 10 / 9: as uncertain as 0.21 * 100 / 2.3333 = 9 rows
    assert alone["interval"] == pytest.approx(wilson(0.3, 9))
    repeated = [np.tile(part, 4) for part in (label, score, np.arange(10))]  # the same patients with four seeds
    (again,) = reliability(repeated[0], repeated[1], 1, repeated[2])
    assert again["rows"] == 40
    assert again["interval"] == pytest.approx(alone["interval"])
    (none,) = reliability(np.zeros(10), score, 1, np.arange(10))
    assert none["interval"] == pytest.approx([0, 0.27753], abs=1e-5)  # 3.8415 / 13.8415: no event in ten patients


def test_curves_of_classes_have_the_area_that_the_metric_has() -> None:
    true, label = patients(400)
    score, seed = expit(true).round(1), np.zeros(400, dtype=int)  # ties
    ranking = ranking_of(class_task(2), label, score, seed, 1)
    (entry,) = ranking.values()
    assert (entry["rows"], entry["positives"]) == (400, label.sum())
    assert np.trapezoid(entry["roc"]["tpr"], entry["roc"]["fpr"]) == pytest.approx(roc_auc_score(label, score))
    classes = np.stack([score, 1 - score, np.zeros(400)], axis=1)
    several = ranking_of(class_task(["a", "b", "c"]), 1 - label, classes, seed, 1)
    assert list(several) == ["a", "b", "c"]
    assert several["c"]["roc"] is None
    assert several["a"]["roc"] == entry["roc"]


def test_a_seed_that_diverged_is_in_no_curve_and_findings_have_their_own() -> None:
    label, score = np.array([0, 1, 0, 1]), np.array([0.1, 0.9, np.nan, 0.2])
    (entry,) = ranking_of(class_task(2), label, score, np.array([0, 0, 1, 1]), 2).values()
    assert entry["roc"] == {"fpr": [0, 0, 1], "tpr": [0, 1, 1]}
    assert entry["rows"] == 2
    assert ranking_of(findings_task(["a"]), label[:, None], score[:, None], np.zeros(4), 1) == {}


def test_a_histogram_counts_every_row_once() -> None:
    label, score = np.array([0, 1, 1, 0]), np.array([0.0, 0.05, 1.0, 0.95])
    assert score_histogram(label, score) == {"negative": [1, *[0] * 8, 1], "positive": [1, *[0] * 8, 1]}
    assert score_histogram(label, np.full(4, np.nan)) is None
