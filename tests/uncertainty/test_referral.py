"""Referral: figures on the rows that are kept, by hand; oracles and coins; cuts from validation rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.figures_by_shape import metrics
from wardround.core.errors import StudyError
from wardround.tasks.class_metrics import THRESHOLD
from wardround.uncertainty.referral import SHARES, ReferralCurve, refer, referral_curves, referral_cut, referred_rows


def referral_curve(
    label: np.ndarray,
    score: np.ndarray,
    uncertainty: np.ndarray,
    metric: str = "accuracy",
    threshold: np.ndarray | float = THRESHOLD,
    shares: tuple[float, ...] = SHARES,
) -> ReferralCurve:
    def figures(rows: np.ndarray) -> dict[str, float]:
        return metrics(label[rows], score[rows], threshold)

    return referral_curves(uncertainty, figures, (metric,), shares)[metric]


def test_a_curve_by_hand() -> None:
    """Ten rows; the two wrong ones are the most and the third most uncertain."""
    label = np.ones(10, dtype=np.int64)
    score = np.where(np.isin(np.arange(10), [3, 7]), 0.2, 0.9)
    uncertainty = np.linspace(0.1, 0.5, 10)
    uncertainty[3], uncertainty[7] = 0.9, 0.6
    uncertainty[0] = 0.7
    curve = referral_curve(label, score, uncertainty, shares=(0.0, 0.1, 0.2, 0.3, 0.9))
    assert curve.rows == (10, 9, 8, 7, 1)
    assert curve.figures == pytest.approx((0.8, 8 / 9, 7 / 8, 1.0, 1.0))
    area = 0.1 * (0.8 + 8 / 9) / 2 + 0.1 * (8 / 9 + 7 / 8) / 2 + 0.1 * (7 / 8 + 1) / 2 + 0.6
    assert curve.area == pytest.approx(area / 0.9)
    assert curve.gain == pytest.approx(area / 0.9 - 0.8)


def rows(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    true = rng.normal(scale=1.5, size=count)
    return (rng.random(count) < 1 / (1 + np.exp(-true))).astype(np.int64), 1 / (1 + np.exp(-true))


def test_an_oracle_is_best_a_coin_is_worth_nothing_and_doubt_lies_between() -> None:
    """By a coin the accuracy at each share strays by sqrt(0.2 / kept) or less, below 2 points with 90 % of 5,000
    referred; an area of such figures by less."""
    label, score = rows(5000, 1)
    wrong = (score >= 0.5) != (label == 1)
    rng = np.random.default_rng(2)
    oracle = referral_curve(label, score, wrong + 0.1 * rng.random(5000))
    coin = referral_curve(label, score, rng.random(5000))
    doubt = referral_curve(label, score, -np.abs(score - 0.5))
    assert abs(coin.gain) < 0.02
    assert coin.gain + 0.05 < doubt.gain < oracle.gain
    # calibrated scores: each share's accuracy is the mean of max(p, 1 - p) over the surest rows
    sure = np.sort(np.maximum(score, 1 - score))[::-1]
    for figure, row_count in zip(doubt.figures, doubt.rows, strict=True):
        assert figure == pytest.approx(sure[:row_count].mean(), abs=4 * 0.5 / np.sqrt(row_count))
    share = wrong.mean()
    assert all(figure == 1 for figure, at in zip(oracle.figures, oracle.shares, strict=True) if at > share + 0.001)


@pytest.mark.parametrize("metric", ["accuracy", "auc"])
def test_figures_are_scikit_learns_on_the_rows_that_are_kept(metric: str) -> None:
    from sklearn.metrics import roc_auc_score

    label, score = rows(300, 3)
    uncertainty = np.random.default_rng(4).random(300)
    curve = referral_curve(label, score, uncertainty, metric, shares=(0.0, 0.2))
    mask = uncertainty <= np.sort(uncertainty)[239]
    expected = roc_auc_score(label[mask], score[mask]) if metric == "auc" else (label == (score >= 0.5))[mask].mean()
    assert curve.figures[1] == pytest.approx(expected)


def test_rows_with_findings_are_referred_as_a_whole() -> None:
    label = np.array([[1, 0], [0, 1], [1, 1], [0, 0]])
    score = np.array([[0.9, 0.1], [0.2, 0.8], [0.1, 0.9], [0.3, 0.6]])
    curve = referral_curve(label, score, np.array([0.1, 0.2, 0.9, 0.4]), shares=(0.0, 0.25, 0.5))
    assert curve.figures == pytest.approx((6 / 8, 5 / 6, 1.0))
    at_07 = referral_curve(label, score, np.array([0.1, 0.2, 0.9, 0.4]), threshold=np.array([0.5, 0.7]), shares=(0.0,))
    assert at_07.figures == pytest.approx((7 / 8,))


def test_a_figure_that_is_not_defined_is_left_out_of_the_area() -> None:
    assert ReferralCurve((0.0, 0.5, 0.9), (0.6, 0.8, float("nan")), (10, 5, 1)).area == pytest.approx(0.7)
    assert np.isnan(ReferralCurve((0.0,), (0.6,), (10,)).area)


def test_what_has_no_order_is_refused() -> None:
    label, score = rows(5, 1)
    with pytest.raises(StudyError, match="one number for each row"):
        referral_curve(label, score, np.zeros((5, 2)))
    with pytest.raises(StudyError, match="no number"):
        referral_curve(label, score, np.array([0, 1, 2, np.nan, 3]))
    with pytest.raises(StudyError, match="not a share"):
        referral_cut(score, 1.2)


def test_shares_are_rounded_to_the_nearest_row() -> None:
    assert [referred_rows(10, share) for share in (0.0, 0.04, 0.05, 0.06, 0.1, 0.3, 1.0)] == [0, 0, 0, 1, 1, 3, 10]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=60), st.floats(0, 1))
def test_a_cut_refers_the_share_of_validation_rows_or_less_where_some_are_equal(
    values: list[int], share: float
) -> None:
    uncertainty = np.array(values) / 20
    cut = referral_cut(uncertainty, share)
    referred = refer(uncertainty, cut)
    wanted = referred_rows(len(values), share)
    assert referred.sum() <= wanted
    remainder = np.sort(uncertainty)[: len(values) - wanted]
    if wanted < len(values):  # who is referred is more uncertain than who is kept, and all who are that are referred
        assert referred.sum() == (uncertainty > remainder.max()).sum()
    else:
        assert referred.all()
    assert not np.isin(cut, uncertainty)


def test_a_cut_refers_about_as_many_rows_that_come_later() -> None:
    """Exchangeable rows: the share referred of 4,000, by a cut from 1,000, strays by sqrt(0.16 / 1000 + 0.16 / 4000),
    1.4 points; four of them are allowed."""
    rng = np.random.default_rng(7)
    cut = referral_cut(rng.gamma(2.0, size=1000), 0.2)
    assert refer(rng.gamma(2.0, size=4000), cut).mean() == pytest.approx(0.2, abs=0.057)


def test_without_any_row_nobody_is_referred() -> None:
    assert referral_cut(np.zeros(0), 0.2) == np.inf
    assert not refer(np.array([0.0, 1.0]), referral_cut(np.zeros(0), 1.0)).any()
