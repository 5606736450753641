"""Kappas against scikit-learn and statsmodels, and weights against repeated rows."""

import math

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score
from statsmodels.stats.inter_rater import aggregate_raters
from statsmodels.stats.inter_rater import fleiss_kappa as reference

from wardround.review.agreement import cohen_kappa, fleiss_kappa


@pytest.mark.parametrize("classes", [2, 4])
def test_cohens_kappa(classes: int) -> None:
    rng = np.random.default_rng(0)
    a, times = rng.integers(0, classes, 80), rng.integers(0, 4, 80)
    b = np.where(rng.random(80) < 0.6, a, rng.integers(0, classes, 80))
    assert cohen_kappa(a, b, np.ones(80), classes) == pytest.approx(cohen_kappa_score(a, b))
    repeated = cohen_kappa_score(np.repeat(a, times), np.repeat(b, times))
    assert cohen_kappa(a, b, times.astype(float), classes) == pytest.approx(repeated)


@pytest.mark.parametrize("classes", [2, 3])
def test_fleiss_kappa(classes: int) -> None:
    rng = np.random.default_rng(1)
    answers = rng.integers(0, classes, (40, 4))
    answers[:, 1] = np.where(rng.random(40) < 0.7, answers[:, 0], answers[:, 1])
    case = np.repeat(np.arange(40), 4)
    expected = reference(aggregate_raters(answers, n_cat=classes)[0])
    ours = fleiss_kappa(answers.ravel(), case, np.ones(160), np.ones(40), classes)
    assert ours == pytest.approx(expected)
    times = rng.integers(0, 3, 40)
    repeated = reference(aggregate_raters(np.repeat(answers, times, axis=0), n_cat=classes)[0])
    weighed = fleiss_kappa(answers.ravel(), case, np.ones(160), times.astype(float), classes)
    assert weighed == pytest.approx(repeated)


def test_a_reader_who_was_drawn_twice_does_not_agree_with_themselves() -> None:
    answers, case = np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1])  # two readers who never agree
    twice = np.array([2.0, 1.0, 2.0, 1.0])
    assert fleiss_kappa(answers, case, twice, np.ones(2), 2) < -0.7


def test_nothing_to_agree_on_is_no_number() -> None:
    same = np.ones(5, dtype=int)
    assert math.isnan(cohen_kappa(same, same, np.ones(5), 2))
    assert math.isnan(fleiss_kappa(same[:2], np.array([0, 1]), np.ones(2), np.ones(2), 2))  # one reader
