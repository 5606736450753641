"""Our metrics are scikit-learn's, and are undefined where they should be."""

import numpy as np
import pytest

from tests.figures_by_shape import metrics
from wardround.tasks.class_metrics import METRICS


@pytest.mark.parametrize("seed", range(20))
def test_two_classes_agree_with_scikit_learn(seed: int) -> None:
    from sklearn import metrics as sk

    rng = np.random.default_rng(seed)
    label = rng.integers(0, 2, 60)
    score = np.round(rng.random(60), 2)  # rounding makes ties
    ours, called = metrics(label, score), score >= 0.5
    theirs = {
        "accuracy": sk.accuracy_score(label, called),
        "auc": sk.roc_auc_score(label, score),
        "pr_auc": sk.average_precision_score(label, score),
        "f1": sk.f1_score(label, called),
        "sensitivity": sk.recall_score(label, called),
        "specificity": sk.recall_score(label, called, pos_label=0),
        "ppv": sk.precision_score(label, called),
        "npv": sk.precision_score(label, called, pos_label=0),
        "brier": sk.brier_score_loss(label, score),
        "loss": sk.log_loss(label, np.clip(score, 1e-7, 1 - 1e-7)),
    }
    assert ours == pytest.approx(theirs, abs=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_several_classes_agree_with_scikit_learn(seed: int) -> None:
    from sklearn import metrics as sk

    rng = np.random.default_rng(seed)
    label = rng.permutation(np.arange(90) % 4)
    score = rng.dirichlet(np.ones(4), 90)
    ours, called = metrics(label, score), score.argmax(axis=1)
    assert ours["accuracy"] == pytest.approx(sk.accuracy_score(label, called))
    assert ours["auc"] == pytest.approx(sk.roc_auc_score(label, score, multi_class="ovr"))
    assert ours["pr_auc"] == pytest.approx(sk.average_precision_score(label, score))
    assert ours["f1"] == pytest.approx(sk.f1_score(label, called, average="macro"))
    assert ours["sensitivity"] == pytest.approx(sk.recall_score(label, called, average="macro"))
    assert ours["ppv"] == pytest.approx(sk.precision_score(label, called, average="macro"))
    assert ours["loss"] == pytest.approx(sk.log_loss(label, score))
    assert ours["brier"] == pytest.approx(((score - np.eye(4)[label]) ** 2).sum(axis=1).mean())


def test_a_class_without_rows_is_left_out_of_the_averages() -> None:
    from sklearn import metrics as sk

    rng = np.random.default_rng(0)
    label, score = rng.integers(0, 2, 50), rng.dirichlet(np.ones(3), 50)
    macro = np.mean([sk.roc_auc_score(label == c, score[:, c]) for c in (0, 1)])
    assert metrics(label, score)["auc"] == pytest.approx(macro)


def test_what_is_not_defined_is_nan() -> None:
    one_class = metrics(np.ones(5, dtype=int), np.full(5, 0.9))
    assert np.isnan(one_class["auc"])
    assert np.isnan(one_class["specificity"])
    assert np.isnan(one_class["npv"])
    assert one_class["sensitivity"] == 1.0
    assert all(np.isnan(value) for value in metrics(np.array([], dtype=int), np.array([])).values())
    assert set(one_class) == set(METRICS)


def test_a_certain_error_has_a_finite_loss() -> None:
    assert metrics(np.array([1]), np.array([0.0]))["loss"] == pytest.approx(-np.log(1e-7))
