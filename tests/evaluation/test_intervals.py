import numpy as np
import pytest
from scipy import stats

from wardround.evaluation.intervals import Resampling, mean_interval, p_value, summarise
from wardround.study.schema import Evaluation, Seeds


def test_without_resampling_it_is_the_ordinary_t_interval() -> None:
    x = np.random.default_rng(0).normal(size=12)
    expected = stats.t.interval(0.95, 11, loc=x.mean(), scale=stats.sem(x))
    assert mean_interval(x, Resampling(0.0)) == pytest.approx(expected)
    assert p_value(x, Resampling(0.0)) == pytest.approx(stats.ttest_1samp(x, 0).pvalue)


def test_the_correction_is_nadeau_and_bengios() -> None:
    """With J = 50 splits of 80/20: variance of the mean (1/50 + 0.25) s^2 instead of s^2 / 50, a factor of 13.5."""
    resampling = Resampling.of(Evaluation(test_share=0.2, seeds=Seeds(0, 50)))
    assert resampling.extra == pytest.approx(0.25)
    x = np.random.default_rng(1).normal(size=50)
    low, high = mean_interval(x, resampling) or (0.0, 0.0)
    plain_low, plain_high = mean_interval(x, Resampling(0.0)) or (0.0, 0.0)
    assert (high - low) / (plain_high - plain_low) == pytest.approx(np.sqrt(13.5))


def test_one_seed_has_no_interval_and_equal_arms_no_difference() -> None:
    assert mean_interval([0.8], Resampling(0.25)) is None
    assert p_value([0.1], Resampling(0.25)) is None
    assert p_value([0.0, 0.0, 0.0], Resampling(0.25)) == 1.0


def test_seeds_that_draw_no_new_split_say_nothing_of_other_patients() -> None:
    """A quarter as many test rows as training rows where the split is drawn; none where the source gives it."""
    assert Resampling.of(Evaluation(test_share=0.2)).extra == pytest.approx(0.25)
    assert Resampling.of(Evaluation(test_share=0.2, validation_share=0.4)).extra == pytest.approx(0.5)
    for fixed in (Evaluation(split="given"), Evaluation(vary=("batches", "init"))):
        assert Resampling.of(fixed).extra == 0
        assert Resampling.of(fixed).covers.startswith("nothing: ")
        assert summarise([0.7, 0.8, 0.9], Resampling.of(fixed))["interval"] is None


def test_the_same_difference_every_time_is_no_certainty() -> None:
    """3 of 60 rows with both of two new splits: a coincidence of a coarse figure, not an interval of width 0."""
    again = Resampling(0.25)
    assert mean_interval([0.05, 0.05], again) is None
    assert p_value([0.05, 0.05], again) is None
    assert mean_interval([0.0, 0.0], again) == (0.0, 0.0)  # two arms that do the same
    assert p_value([0.0, 0.0], again) == 1.0
    fixed = Resampling(0.0)  # on fixed test rows an interval speaks of training alone, which may have no randomness
    assert mean_interval([0.05, 0.05], fixed) == (0.05, 0.05)
