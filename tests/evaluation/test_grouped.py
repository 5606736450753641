"""Figures of all groups at once are those of each group by itself, and those of pandas with scikit-learn."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.evaluation.synthetic_predictions import by_skill
from tests.figures_by_shape import grouped_metrics, metrics
from wardround.evaluation.scores import Scores
from wardround.tasks import METRIC_FACTS
from wardround.tasks.class_metrics import METRICS, PAIRS

GROUPS = 5
NAN = float("nan")
Row = tuple[int, int, float]  # group, label, score


def one_by_one(group: np.ndarray, count: int, label: np.ndarray, score: np.ndarray) -> np.ndarray:
    """What is to be equalled: `metrics` of each group's rows, in the order of METRICS."""
    each = [metrics(label[group == number], score[group == number]) for number in range(count)]
    return np.array([[figures[name] for name in METRICS] for figures in each])


def assert_same(group: np.ndarray, count: int, label: np.ndarray, score: np.ndarray) -> None:
    group_figures = grouped_metrics(group, count, label, score)
    assert group_figures.shape == (count, len(METRICS))
    np.testing.assert_allclose(group_figures, one_by_one(group, count, label, score), rtol=0, atol=1e-12)


# few different scores, so that ties are common; few rows, so that groups are empty or have one class
SCORES = st.sampled_from([0.0, 0.2, 0.4999999, 0.5, 0.7, 0.7000001, 1.0])
ROWS = st.lists(st.tuples(st.integers(0, GROUPS - 1), st.integers(0, 1), SCORES), max_size=40)


@settings(max_examples=200, deadline=None)
@given(ROWS)
@example([])
@example([(0, 1, 0.7), (0, 1, 0.2), (1, 0, 0.7), (1, 0, 0.2)])  # one class each
@example([(2, 0, 0.5), (2, 1, 0.5), (2, 1, 0.5)])  # all scores alike: an AUC of one half
@example([(0, 0, 0.7), (4, 1, 0.7)])  # a tie across groups is none
def test_each_group_has_the_figures_that_it_has_by_itself(rows: list[Row]) -> None:
    group, label = (np.array([row[part] for row in rows], dtype=np.int64) for part in (0, 1))
    assert_same(group, GROUPS, label, np.array([row[2] for row in rows], dtype=np.float64))


@settings(max_examples=100, deadline=None)
@given(ROWS, st.sets(st.integers(0, GROUPS - 1), max_size=2))
def test_a_score_that_is_no_number_takes_away_its_groups_figures_and_no_others(rows: list[Row], lost: set[int]) -> None:
    rows = [*rows, *((number, 1, NAN) for number in sorted(lost)), *((number, 0, 0.3) for number in range(GROUPS))]
    group, label = (np.array([row[part] for row in rows], dtype=np.int64) for part in (0, 1))
    score = np.array([row[2] for row in rows], dtype=np.float64)
    group_figures = grouped_metrics(group, GROUPS, label, score)
    assert set(np.flatnonzero(np.isnan(group_figures).all(axis=1)).tolist()) == lost
    assert_same(group, GROUPS, label, score)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_groups_too_where_a_group_by_itself_is_ranked(dtype: type[np.floating]) -> None:
    rng = np.random.default_rng(1)
    group = np.repeat([0, 2, 3], [900, 40, 2000])  # in the first and the last, more pairs than are compared one by one
    label = rng.integers(0, 2, len(group))
    assert (label[group == 0] == 1).sum() * (label[group == 0] == 0).sum() > PAIRS
    score = np.round(rng.random(len(group)), 3).astype(dtype)
    order = rng.permutation(len(group))
    assert_same(group[order], 4, label[order], score[order])


@pytest.mark.parametrize("seed", range(10))
def test_several_classes_too(seed: int) -> None:
    rng = np.random.default_rng(seed)
    group = rng.choice([0, 1, 3], 60, p=[0.6, 0.35, 0.05])  # group 2 is empty, group 3 small
    label = np.where(group == 1, rng.integers(0, 2, 60), rng.integers(0, 4, 60))  # group 1 lacks two classes
    score = np.round(rng.dirichlet(np.ones(4), 60), 1)
    score[np.flatnonzero(group == 3)[:1]] = NAN
    assert_same(group, 4, label, score)
    assert np.isnan(grouped_metrics(group, 4, label, score)[2]).all()


def by_scikit_learn(part: pd.DataFrame) -> list[float]:
    """In the order of METRICS, for rows of both classes with calls of both kinds."""
    from sklearn import metrics as sk

    label, score = part["label"], part["score"]
    called = score >= 0.5
    return [
        sk.accuracy_score(label, called),
        sk.roc_auc_score(label, score),
        sk.average_precision_score(label, score),
        sk.f1_score(label, called),
        sk.recall_score(label, called),
        sk.recall_score(label, called, pos_label=0),
        sk.precision_score(label, called),
        sk.precision_score(label, called, pos_label=0),
        sk.brier_score_loss(label, score),
        sk.log_loss(label, score),
    ]


@pytest.fixture(scope="module")
def predictions() -> pd.DataFrame:
    """Two arms, seeds out of order, rows in no order at all; the second arm was not tested in the north."""
    table = by_skill({"fedavg": 2.0, "local": 1.0}, seeds=(12, 3, 7), patients=200, tested=90)
    table = table[(table["arm"] == "fedavg") | (table["site"] == "south")]
    return table.sample(frac=1, random_state=0, ignore_index=True)


def test_overall_figures_are_those_of_each_arm_and_seed(predictions: pd.DataFrame) -> None:
    scores = Scores.of(predictions)
    assert set(scores.arms) == {"fedavg", "local"}
    assert scores.seeds == (3, 7, 12)
    for arm, figures in scores.overall.items():
        mine = predictions[predictions["arm"] == arm]
        expected = [by_scikit_learn(part) for _, part in mine.groupby("seed")]  # groupby sorts the seeds too
        np.testing.assert_allclose(figures, expected, atol=1e-12)


def test_figures_by_site_are_pandas_groups_and_sites_without_rows_are_left_out(predictions: pd.DataFrame) -> None:
    by_site = Scores.of(predictions).by_site
    assert {arm: set(sites) for arm, sites in by_site.items()} == {"fedavg": {"north", "south"}, "local": {"south"}}
    for arm, sites in by_site.items():
        for site, figures in sites.items():
            mine = predictions[(predictions["arm"] == arm) & (predictions["site"] == site)]
            expected = [by_scikit_learn(part) for _, part in mine.groupby("seed")]
            np.testing.assert_allclose(figures, expected, atol=1e-12)


def test_figures_by_subgroup_are_pandas_groups_and_rows_of_no_known_group_count_nowhere(
    predictions: pd.DataFrame,
) -> None:
    kind = np.array(["female", "male", None], dtype=object)
    of_row = {row: kind[row % 3] for row in range(200) if row % 3 < 2}
    scores = Scores.of(predictions)
    figures, rows = scores.by_group(of_row, ["female", "male", "nobody"])
    assert figures.shape == (2, 3, 3, len(METRICS))
    assert (rows[:, :, 2] == 0).all()
    assert np.isnan(figures[:, :, 2]).all()
    joined = predictions.assign(kind=predictions["row"].map(of_row)).dropna(subset="kind")
    assert rows.sum() == len(joined) < len(predictions)
    for (arm, seed, value), part in joined.groupby(["arm", "seed", "kind"]):
        place = scores.arms.index(str(arm)), scores.seeds.index(seed), ["female", "male"].index(str(value))
        assert rows[place] == len(part)
        np.testing.assert_allclose(figures[place], by_scikit_learn(part), atol=1e-12)


def test_the_rows_of_an_arm_are_found_in_any_order(predictions: pd.DataFrame) -> None:
    scores = Scores.of(predictions)
    for arm in scores.arms:
        assert scores.of_arm(arm).tolist() == np.flatnonzero(predictions["arm"] == arm).tolist()


def test_several_classes_have_a_score_for_each() -> None:
    from sklearn import metrics as sk

    rng = np.random.default_rng(3)
    label, score = np.arange(30) % 3, rng.dirichlet(np.ones(3), 30)
    columns = {f"score_{name}": score[:, number] for number, name in enumerate(("low", "mid", "high"))}
    frame = pd.DataFrame({"arm": "a", "seed": 1, "site": "north", "row": np.arange(30), "label": label, **columns})
    figures = dict(zip(METRICS, Scores.of(frame).overall["a"][0], strict=True))
    assert figures["accuracy"] == pytest.approx(sk.accuracy_score(label, score.argmax(axis=1)))
    assert figures["auc"] == pytest.approx(sk.roc_auc_score(label, score, multi_class="ovr"))
    assert figures["loss"] == pytest.approx(sk.log_loss(label, score))


def test_of_a_group_with_few_of_a_class_only_means_over_all_rows_are_given() -> None:
    """Five rows of each class are enough; with four deaths an AUC would be about four patients, and with none of them
    there is none anyhow."""
    deaths = {"five": 5, "four": 4, "none": 0}
    table = pd.DataFrame({"arm": "fedavg", "seed": 1, "site": "a", "row": np.arange(60)})
    kind = np.repeat(list(deaths), 20)
    table["label"] = [int(place < deaths[name]) for name in deaths for place in range(20)]
    table["score"] = np.random.default_rng(0).random(60)
    groups = pd.DataFrame({"row": np.arange(60), "ward": kind})
    (found,) = Scores.of(table, groups).subgroups()
    known = {name: ~np.isnan(found.figures[0, 0, place]) for place, name in enumerate(found.values)}
    over_rows = np.array([METRIC_FACTS[name].over_rows for name in METRICS])
    assert known["five"].all()
    assert known["four"].tolist() == over_rows.tolist()
    assert not known["none"][METRICS.index("auc")]
    assert found.rows[0, 0].tolist() == [20, 20, 20]
