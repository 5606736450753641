"""From which score on a class is called: chosen on validation rows, given by the study, or one half."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

import wardround
from tests.evaluation.finding_predictions import records_of
from tests.evaluation.synthetic_predictions import by_skill
from wardround.evaluation.prediction import SitePrediction
from wardround.evaluation.results import results
from wardround.evaluation.summaries.site_summary import own_thresholds, site_summary
from wardround.evaluation.thresholds import LEAST_EACH, LEAST_ROWS, choose_thresholds, class_threshold
from wardround.tasks import class_task

SKILL = {"fedavg": 2.0, "local": 0.7}


def study(**evaluation: Any) -> Any:
    raw = {
        "name": "thresholds",
        "data": {"source": "heart"},
        "evaluation": {"seeds": {"first": 1, "count": 2}, "validation_share": 0.2, **evaluation},
        "arms": [{"algorithm": name} for name in SKILL],
    }
    return wardround.load_study(raw)[0]


def rare(rows: int, draw: int) -> pd.DataFrame:
    """Scores of a rare outcome: honest, and hardly ever above one half."""
    predictions = by_skill(SKILL, seeds=(1, 2), patients=rows, tested=rows, rng_seed=draw)
    keep = (predictions["label"] == 0) | (predictions["row"] % 9 == 0)
    return predictions[keep].assign(score=lambda table: 0.3 * table["score"])


def content_of(validation: pd.DataFrame | None, **evaluation: Any) -> tuple[dict[str, Any], pd.DataFrame]:
    test = rare(600, 1)
    moved = None if validation is None else validation.assign(row=validation["row"] + 10_000)
    return results(study(**evaluation), test, pd.DataFrame(), records_of(test), validation=moved), test


def by_scikit_learn(part: pd.DataFrame) -> float:
    """Where sensitivity + specificity is best."""
    from sklearn.metrics import roc_curve

    false, true, cut = roc_curve(part["label"], part["score"], drop_intermediate=False)
    return float(cut[np.argmax(true - false)])


def test_the_threshold_is_where_youdens_index_is_best_on_validation_rows() -> None:
    from sklearn.metrics import accuracy_score, f1_score

    validation = rare(600, 2)
    content, test = content_of(validation)
    table = choose_thresholds(validation)
    assert table is not None
    chosen: dict[tuple[str, int], float] = table["label"].to_dict()  # type: ignore[assignment]
    for arm in SKILL:
        figures: dict[str, list[float]] = {"accuracy": [], "f1": []}
        for seed in (1, 2):
            mine = validation[(validation["arm"] == arm) & (validation["seed"] == seed)]
            cut = chosen[arm, seed]
            lower = mine["score"][mine["score"] < by_scikit_learn(mine)].max()
            assert lower < cut <= by_scikit_learn(mine)  # midway to the next lower score
            part = test[(test["arm"] == arm) & (test["seed"] == seed)]
            figures["accuracy"].append(accuracy_score(part["label"], part["score"] >= cut))
            figures["f1"].append(f1_score(part["label"], part["score"] >= cut))
        for metric, values in figures.items():
            assert content["arms"][arm]["metrics"][metric]["mean"] == pytest.approx(np.mean(values))
        calls = content["arms"][arm]["predicted_classes"]
        mean = (chosen[arm, 1] + chosen[arm, 2]) / 2
        assert calls["threshold"] == {"mean": pytest.approx(mean, abs=1e-3), "chosen": True}
        assert calls["never_predicted"] == []


def test_a_number_holds_for_every_arm_and_is_not_chosen_on_anything() -> None:
    from sklearn.metrics import accuracy_score

    content, test = content_of(rare(600, 2), threshold=0.1)
    for arm in SKILL:
        parts = [part for _, part in test[test["arm"] == arm].groupby("seed")]
        expected = np.mean([accuracy_score(part["label"], part["score"] >= 0.1) for part in parts])
        assert content["arms"][arm]["metrics"]["accuracy"]["mean"] == pytest.approx(expected)
        assert content["arms"][arm]["predicted_classes"]["threshold"] == {"mean": pytest.approx(0.1), "chosen": False}


def test_without_validation_rows_it_is_one_half_and_the_answer_says_that_nobody_is_called() -> None:
    content, test = content_of(None)
    rows = test[test["arm"] == "fedavg"]
    calls = content["arms"]["fedavg"]["predicted_classes"]
    assert calls["threshold"] == {"mean": 0.5, "chosen": False}
    assert calls["never_predicted"] == [1]
    assert calls["rows"] == [int((rows["label"] == 0).sum()), int((rows["label"] == 1).sum())]
    assert calls["predicted"] == [len(rows), 0]
    assert calls["constant_accuracy"] == pytest.approx((rows["label"] == 0).mean())
    (sentence,) = [entry for entry in content["answer"] if entry["about"] == "predicted_classes"]
    assert sentence["text"].startswith("fedavg and local never predict class 1, which ")
    share = f"{100 * calls['constant_accuracy']:.1f} %"
    assert sentence["text"].endswith(f"with {share}, that of predicting the most frequent class for everybody.")


def test_few_rows_or_scores_that_rank_wrongly_choose_nothing() -> None:
    rng = np.random.default_rng(0)
    label = (np.arange(60) % 3 == 0).astype(int)
    good = label + rng.normal(size=60)
    assert not np.isnan(class_threshold(label, good))
    assert np.isnan(class_threshold(label[: LEAST_ROWS - 1], good[: LEAST_ROWS - 1]))
    few = np.r_[np.ones(LEAST_EACH - 1, dtype=int), np.zeros(60 - LEAST_EACH + 1, dtype=int)]
    assert np.isnan(class_threshold(few, good))
    assert np.isnan(class_threshold(label, -10.0 * label))
    assert np.isnan(class_threshold(label, np.where(np.arange(60) == 3, np.nan, good)))


def at_a_site(rows: int, draw: int) -> SitePrediction:
    predictions = rare(rows, draw)
    part = predictions[(predictions["arm"] == "fedavg") & (predictions["seed"] == 1)]
    label, score = part["label"].to_numpy(), part["score"].to_numpy()
    nothing = np.zeros(len(label))  # losses and hits after a round, which nothing here is about
    return SitePrediction("north", part["row"].to_numpy(), label, score, nothing, nothing, task=class_task(2))


def test_across_hospitals_each_chooses_on_its_own_rows_and_keeps_the_threshold() -> None:
    from sklearn.metrics import accuracy_score

    validation, test = at_a_site(600, 2), at_a_site(600, 1)
    chosen = own_thresholds(class_task(2), validation, 5)
    assert chosen is not None
    assert chosen[0] == class_threshold(validation.label, validation.score)
    summary = site_summary(test, {}, 5, chosen)
    assert summary["metrics"]["accuracy"] == pytest.approx(accuracy_score(test.label, test.score >= chosen[0]))
    assert "threshold" not in str(summary)
    few = own_thresholds(class_task(2), validation, 10_000)  # too few patients of a class to choose by
    assert few is not None
    assert np.isnan(few).all()
    assert own_thresholds(class_task(2), None, 5) is None
    given = own_thresholds(class_task(2), None, 5, 0.1)
    assert given is not None
    assert given.tolist() == [0.1]
    halves = site_summary(test, {}, 5, None)
    assert halves["metrics"]["accuracy"] == pytest.approx(accuracy_score(test.label, test.score >= 0.5))
