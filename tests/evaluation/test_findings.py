"""Figures of rows with several findings: scikit-learn's, at thresholds that validation rows have chosen."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.evaluation.finding_predictions import (
    NAMES,
    NAN,
    SITES,
    a_study,
    by_scikit_learn,
    label_names,
    macro_by_scikit_learn,
    predictions,
    records_of,
    score_names,
)
from tests.figures_by_shape import grouped_metrics, metrics
from wardround.evaluation.calibration_curves import POINTS
from wardround.evaluation.findings import describe_findings, left_out
from wardround.evaluation.intervals import Resampling
from wardround.evaluation.results import results
from wardround.evaluation.scores import Scores
from wardround.evaluation.thresholds import best_threshold, choose_thresholds, untested
from wardround.tasks.class_metrics import METRICS, grouped_finding_metrics, mean_auc

FIXED = Resampling(0.0)


def chosen_on(validation: pd.DataFrame) -> pd.DataFrame:
    thresholds = choose_thresholds(validation)
    assert thresholds is not None
    return thresholds


def arrays(table: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    return table[label_names()].to_numpy(copy=True), table[score_names()].to_numpy(copy=True)


# ---- one set of rows


@pytest.mark.parametrize("draw", range(10))
def test_every_figure_is_scikit_learns_over_known_rows(draw: int) -> None:
    label, score = arrays(predictions({"a": 1.0}, draw=draw)[0])
    cuts = np.array([0.3, 0.5, 0.62])
    figures = metrics(label, score, cuts)
    assert set(figures) == set(METRICS)
    assert figures == pytest.approx(macro_by_scikit_learn(label, score, cuts.tolist()), abs=1e-7, nan_ok=True)
    assert figures["auc"] == pytest.approx(mean_auc(label, score), abs=1e-12)
    each = grouped_finding_metrics(np.zeros(len(label), dtype=int), 1, label, score, np.broadcast_to(cuts, score.shape))
    for f in range(len(NAMES)):
        ours = dict(zip(METRICS, each[f, 0], strict=True))
        assert ours == pytest.approx(by_scikit_learn(label[:, f], score[:, f], cuts[f]), abs=1e-7, nan_ok=True)


def test_a_finding_without_a_positive_row_is_left_out_of_figures_that_need_one_and_only_of_those() -> None:
    label, score = arrays(predictions({"a": 1.0})[0])
    label[label[:, 1] == 1, 1] = 0
    figures, rest = metrics(label, score), metrics(label[:, [0, 2]], score[:, [0, 2]])
    for name in ("auc", "pr_auc", "f1", "sensitivity", "ppv"):
        assert figures[name] == pytest.approx(rest[name], abs=1e-12)
    known = label[:, 1] >= 0
    quiet = (score[known, 1] < 0.5).mean()  # of a finding that nobody has, calling nobody is right
    assert figures["accuracy"] == pytest.approx((2 * rest["accuracy"] + quiet) / 3, abs=1e-12)
    assert figures["specificity"] == pytest.approx((2 * rest["specificity"] + quiet) / 3, abs=1e-12)


def test_a_finding_that_is_known_of_no_row_is_left_out_of_every_figure() -> None:
    label, score = arrays(predictions({"a": 1.0})[0])
    label[:, 1] = -1
    assert metrics(label, score) == pytest.approx(metrics(label[:, [0, 2]], score[:, [0, 2]]), abs=1e-12)


def test_where_nothing_is_known_nothing_is_said() -> None:
    label, score = np.full((4, 3), -1), np.full((4, 3), 0.5)
    assert all(np.isnan(value) for value in metrics(label, score).values())
    assert np.isnan(grouped_metrics(np.zeros(4, dtype=int), 2, label, score)).all()
    assert np.isnan(mean_auc(label, score))


def test_accuracy_counts_findings_and_not_rows() -> None:
    """mass: 2 of 4 right; fluid: known of one row, which is right. The mean over findings is 3/4, over labels 3/5."""
    label = np.array([[1, -1], [0, -1], [1, 1], [0, -1]])
    score = np.array([[0.9, 0.1], [0.9, 0.1], [0.1, 0.9], [0.1, 0.1]])
    assert metrics(label, score)["accuracy"] == pytest.approx(0.75)


# ---- many groups at once

CELL = st.tuples(st.sampled_from([-1, 0, 1]), st.sampled_from([0.0, 0.2, 0.4999999, 0.5, 0.7, 0.7000001, 1.0, NAN]))
ROWS = st.lists(st.tuples(st.integers(0, 3), CELL, CELL), max_size=30)


@settings(max_examples=300, deadline=None)
@given(ROWS, st.sampled_from([np.float32, np.float64]), st.booleans())
@example([], np.float64, False)
@example([(0, (-1, 0.5), (-1, 0.5))], np.float64, False)
@example([(0, (-1, NAN), (1, 0.5)), (0, (0, 0.1), (0, 0.5))], np.float64, False)
def test_each_group_has_the_figures_that_it_has_by_itself(rows: Any, dtype: type[np.floating], whole: bool) -> None:
    group = np.array([row[0] for row in rows], dtype=np.int64)
    label = np.array([[cell[0] for cell in row[1:]] for row in rows], dtype=np.int64).reshape(len(rows), 2)
    score = np.array([[cell[1] for cell in row[1:]] for row in rows], dtype=dtype).reshape(len(rows), 2)
    if whole:
        score = np.nan_to_num(score, nan=0.3)
    cuts = np.array([[0.2, 0.7], [0.5, 0.5], [0.7, 0.4999999], [0.3, 1.0]])
    group_figures = grouped_metrics(group, 4, label, score, cuts[group])
    for number in range(4):
        own = group == number
        expected = metrics(label[own], score[own], cuts[number])
        np.testing.assert_allclose(group_figures[number], [expected[name] for name in METRICS], rtol=0, atol=1e-12)


def test_a_large_group_too_where_a_group_by_itself_is_ranked() -> None:
    label, score = arrays(predictions({"a": 1.0}, rows=3000, digits=3)[0])
    group = np.arange(3000) % 2
    group_figures = grouped_metrics(group, 2, label, score)
    for number in range(2):
        expected = metrics(label[group == number], score[group == number])
        np.testing.assert_allclose(group_figures[number], [expected[name] for name in METRICS], rtol=0, atol=1e-12)


# ---- thresholds


def f1_at(label: np.ndarray, score: np.ndarray, threshold: float) -> float:
    """2 hits / (called + positive), over known rows."""
    called, positive = (score >= threshold) & (label >= 0), label == 1
    return float(2 * (called & positive).sum() / (called.sum() + positive.sum()))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([-1, 0, 0, 1]), st.integers(0, 12)), min_size=1, max_size=40))
def test_the_threshold_has_the_best_f1_of_all_that_there_are(rows: list[tuple[int, int]]) -> None:
    label, score = np.array([row[0] for row in rows]), np.array([row[1] for row in rows]) / 16
    best_cut = best_threshold(label, score)
    if not (label == 1).any():
        assert np.isnan(best_cut)
        return
    candidates = np.concatenate([score, np.linspace(0, 1, 65)])  # between any two scores as well
    best = max(f1_at(label, score, threshold) for threshold in candidates)
    assert f1_at(label, score, best_cut) == pytest.approx(best, abs=1e-12)
    higher = score[(label >= 0) & (score > best_cut)]  # of several that are best, the highest
    assert all(f1_at(label, score, threshold) < best - 1e-12 for threshold in higher)


def test_a_threshold_by_hand() -> None:
    """Called from 0.8 on: 1 hit of 1, F1 2/(1+2) = 2/3. From 0.6: 1 of 2. From 0.4: 2 of 3, F1 4/5. From 0.2: 4/6."""
    from sklearn import metrics as sk

    label, score = np.array([1, 0, 1, 0, -1]), np.array([0.8, 0.6, 0.4, 0.2, 0.9])
    assert best_threshold(label, score) == 0.4
    assert f1_at(label, score, 0.4) == sk.f1_score(label[:4], score[:4] >= 0.4) == 0.8
    assert np.isnan(best_threshold(np.array([0, -1]), np.array([0.2, 0.3])))
    assert np.isnan(best_threshold(np.array([1, 0]), np.array([0.2, NAN])))


def test_a_score_equal_to_the_threshold_is_called_in_single_precision_too() -> None:
    """0.1 in single precision is more than 0.1 in double; what chose the threshold must not fall below it."""
    score = np.array([0.1, 0.3, 0.7], dtype=np.float32)
    cut = best_threshold(np.array([1, 1, 1]), score)
    assert metrics(np.array([[1], [1], [1]]), score[:, None], np.array([cut]))["sensitivity"] == 1.0
    table = np.full((3, 1), cut)
    assert (score[:, None] >= table).all()


def test_thresholds_are_those_of_each_arm_and_seed() -> None:
    validation, _ = predictions({"fedavg": 2.0, "local": 0.5}, seeds=(1, 2), draw=3)
    chosen = chosen_on(validation.sample(frac=1, random_state=0))
    thresholds = chosen.to_dict("index")
    assert set(thresholds) == {("fedavg", 1), ("fedavg", 2), ("local", 1), ("local", 2)}
    for key, part in validation.groupby(["arm", "seed"]):
        for name in NAMES:
            expected = best_threshold(part[f"label_{name}"].to_numpy(), part[f"score_{name}"].to_numpy())
            assert thresholds[key][f"label_{name}"] == expected


def made(**changes: Any) -> dict[str, Any]:
    """Results of two arms with their thresholds; `changes` are done to the tables before."""
    seeds = changes.get("seeds", (1,))
    test, groups = predictions({"fedavg": 2.0, "local": 0.5}, seeds, draw=1)
    validation, _ = predictions({"fedavg": 2.0, "local": 0.5}, seeds, draw=2)
    test, validation = changes.get("test", lambda t: t)(test), changes.get("validation", lambda t: t)(validation)
    validation["row"] += changes.get("apart", 1000)  # other rows than are tested
    given_rows = None if changes.get("without") else validation
    return results(a_study(seeds=len(seeds)), test, groups, records_of(test), validation=given_rows)


def thresholds_of(content: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        arm: {name: finding["threshold"] for name, finding in described["findings"].items()}
        for arm, described in content["arms"].items()
    }


def test_thresholds_are_chosen_on_validation_rows_alone() -> None:
    def turned(table: pd.DataFrame) -> pd.DataFrame:
        """Test labels turned round, and unknown ones known."""
        return table.assign(**{name: (table[name] != 1).astype(np.int64) for name in label_names()})

    before, after = made(), made(test=turned)
    assert thresholds_of(before) == thresholds_of(after)
    figures = [content["arms"]["fedavg"]["metrics"]["auc"]["mean"] for content in (before, after)]
    assert figures[0] > 0.7
    assert figures[1] < 0.5
    assert thresholds_of(before) != thresholds_of(made(validation=turned))


def test_figures_are_those_at_the_chosen_thresholds() -> None:
    from sklearn import metrics as sk

    test, _ = predictions({"fedavg": 2.0, "local": 0.5}, draw=1)
    validation, _ = predictions({"fedavg": 2.0, "local": 0.5}, draw=2)
    content = made()
    assert content["primary_metric"] == "auc"
    assert content["findings"] == list(NAMES)
    for arm in ("fedavg", "local"):
        label, score = arrays(validation[validation["arm"] == arm])
        cuts = [best_threshold(label[:, f], score[:, f]) for f in range(3)]
        mine = test[test["arm"] == arm]
        label, score = arrays(mine)
        described = content["arms"][arm]
        expected = macro_by_scikit_learn(label, score, cuts)
        assert {name: described["metrics"][name]["mean"] for name in METRICS} == pytest.approx(expected, abs=1e-6)
        for site in SITES:
            there = (mine["site"] == site).to_numpy()
            expected = macro_by_scikit_learn(label[there], score[there], cuts)
            ours = {name: described["sites"][site][name]["mean"] for name in METRICS}
            assert ours == pytest.approx(expected, abs=1e-6)
        for f, name in enumerate(NAMES):
            finding, known = described["findings"][name], label[:, f] >= 0
            assert finding["threshold"] == {"mean": pytest.approx(cuts[f]), "chosen": True}
            assert (finding["rows"], finding["positives"]) == (known.sum(), (label[:, f] == 1).sum())
            (tn, fp), (fn, tp) = sk.confusion_matrix(label[known, f], score[known, f] >= cuts[f], labels=[0, 1])
            assert finding["confusion"] == {"tp": tp, "fp": fp, "fn": fn, "tn": tn}
            expected = by_scikit_learn(label[:, f], score[:, f], cuts[f])
            ours = {metric: finding["metrics"][metric]["mean"] for metric in METRICS}
            assert ours == pytest.approx(expected, abs=1e-6)
            for site in SITES:
                there = (mine["site"] == site).to_numpy()
                expected = by_scikit_learn(label[there, f], score[there, f], cuts[f])
                assert finding["sites"][site]["positives"] == (label[there, f] == 1).sum()
                for metric, figure in finding["sites"][site]["metrics"].items():
                    assert figure["mean"] == pytest.approx(expected[metric], abs=1e-6)


def test_a_patient_whom_any_site_tests_chooses_no_threshold() -> None:
    """Sites may overlap: one's validation rows are then another's test rows, or of the same patients."""
    test, groups = predictions({"fedavg": 2.0, "local": 0.5}, (1, 2), draw=1)
    validation, _ = predictions({"fedavg": 2.0, "local": 0.5}, (1, 2), draw=2)
    both = pd.concat([validation.assign(row=validation["row"] + 1000), validation], ignore_index=True)
    assert untested(both, test, groups)["row"].min() == 1000
    assert len(untested(both, test, groups)) == len(validation)
    one_tested = test[(test["row"] == 0) & (test["seed"] == 1) & (test["arm"] == "fedavg")]
    remaining_rows = untested(validation, one_tested, groups)
    gone = validation.drop(remaining_rows.index)
    assert set(zip(gone["arm"], gone["seed"], gone["row"], strict=True)) == {("fedavg", 1, 0), ("fedavg", 1, 1)}
    remaining_rows = untested(validation, one_tested, groups.iloc[:0])  # where no patients are known, a row is one
    assert validation.drop(remaining_rows.index)["row"].tolist() == [0]
    assert thresholds_of(made(apart=0)) == thresholds_of(
        made(without=True)
    )  # all are tested: none is left to choose on


def test_without_validation_rows_a_finding_is_called_at_one_half() -> None:
    thresholds = thresholds_of(made(without=True))
    assert thresholds["fedavg"] == {name: {"mean": 0.5, "chosen": False} for name in NAMES}


def test_a_finding_that_no_validation_row_has_is_called_at_one_half() -> None:
    thresholds = thresholds_of(made(validation=lambda table: table.assign(label_air=0)))
    assert thresholds["local"]["air"] == {"mean": 0.5, "chosen": False}
    assert thresholds["local"]["mass"]["chosen"]


def test_a_finding_that_no_test_row_has_is_named() -> None:
    content = made(test=lambda table: table.assign(label_fluid=table["label_fluid"].clip(upper=0)))
    for arm in content["arms"].values():
        assert arm["left_out"] == ["fluid"]
        assert arm["findings"]["fluid"]["metrics"]["auc"]["mean"] is None
        assert arm["findings"]["fluid"]["roc"] is None
        others = [arm["findings"][name]["metrics"]["auc"]["mean"] for name in ("mass", "air")]
        assert arm["metrics"]["auc"]["mean"] == pytest.approx(np.mean(others), abs=1e-12)
    assert made()["arms"]["fedavg"]["left_out"] == []


@pytest.mark.parametrize("columns", [score_names(), ["score_air"]])
def test_an_arm_that_has_diverged_has_no_figures_and_calls_nobody(columns: list[str]) -> None:
    """One finding's weights may grow beyond all numbers while the others' do not; the model is lost all the same."""

    def lost(table: pd.DataFrame) -> pd.DataFrame:
        return table.assign(**{name: table[name].where(table["arm"] != "local") for name in columns})

    content, whole = made(test=lost, validation=lost), made()
    local = content["arms"]["local"]
    assert all(figure["mean"] is None and figure["interval"] is None for figure in local["metrics"].values())
    assert all(figure["mean"] is None for site in local["sites"].values() for figure in site.values())
    air = local["findings"]["air"]
    assert air["threshold"] == {"mean": 0.5, "chosen": False}
    assert air["confusion"] == dict.fromkeys(("tp", "fp", "fn", "tn"), 0)
    assert air["roc"] is None
    assert air["pr"] is None
    assert air["positives"] == whole["arms"]["local"]["findings"]["air"]["positives"]
    assert local["left_out"] == []  # it is the model that is lost, not the finding
    assert content["arms"]["fedavg"] == whole["arms"]["fedavg"]
    assert all(test["difference"] is None and test["interval"] is None for test in content["tests"])


# ---- several seeds


def test_with_several_seeds_figures_are_means_over_them_and_counts_are_those_of_one() -> None:
    from sklearn import metrics as sk

    seeds = (1, 2, 3)
    test, _ = predictions({"fedavg": 2.0, "local": 0.5}, seeds, draw=1)
    validation, _ = predictions({"fedavg": 2.0, "local": 0.5}, seeds, draw=2)
    content = made(seeds=seeds)
    chosen = chosen_on(validation).to_dict("index")
    mine = test[test["arm"] == "fedavg"]
    each, cells = [], []
    for seed, part in mine.groupby("seed"):
        label, score = arrays(part)
        cuts = list(chosen["fedavg", seed].values())
        each.append(macro_by_scikit_learn(label, score, cuts))
        known = label[:, 0] >= 0
        cells.append(sk.confusion_matrix(label[known, 0], score[known, 0] >= cuts[0], labels=[0, 1]).ravel())
    table = pd.DataFrame(each)
    for name in METRICS:
        figure = content["arms"]["fedavg"]["metrics"][name]
        assert figure["mean"] == pytest.approx(table[name].mean(), abs=1e-6)
        assert figure["sd"] == pytest.approx(table[name].std(), abs=1e-6)
        assert figure["seeds"] == 3
    mass = content["arms"]["fedavg"]["findings"]["mass"]
    assert mass["rows"] == (mine["label_mass"] >= 0).sum() / 3
    assert mass["positives"] == (mine["label_mass"] == 1).sum() / 3
    assert mass["threshold"]["mean"] == pytest.approx(np.mean([chosen["fedavg", seed]["label_mass"] for seed in seeds]))
    tn, fp, fn, tp = np.mean(cells, axis=0)
    assert mass["confusion"] == pytest.approx({"tp": tp, "fp": fp, "fn": fn, "tn": tn})


def test_a_seed_that_has_diverged_counts_nowhere_and_the_others_do() -> None:
    def lost(table: pd.DataFrame) -> pd.DataFrame:
        return table.assign(**{name: table[name].where(table["seed"] != 2) for name in score_names()})

    content, rest = made(seeds=(1, 2, 3), test=lost), made(seeds=(1, 2, 3), test=lambda t: t[t["seed"] != 2])
    ours, others = (outcome["arms"]["fedavg"] for outcome in (content, rest))
    for name in METRICS:
        assert ours["metrics"][name]["mean"] == pytest.approx(others["metrics"][name]["mean"], abs=1e-12)
        assert ours["metrics"][name]["seeds"] == 2
    for name in NAMES:
        assert ours["findings"][name]["confusion"] == pytest.approx(others["findings"][name]["confusion"])
        assert ours["findings"][name]["roc"] == others["findings"][name]["roc"]


# ---- curves


@pytest.mark.parametrize(("rows", "digits"), [(60, 1), (400, 2), (3000, 6)])
def test_points_lie_on_scikit_learns_curves_and_span_them(rows: int, digits: int) -> None:
    from sklearn import metrics as sk

    table, groups = predictions({"a": 1.5}, rows=rows, digits=digits)
    described = describe_findings(Scores.of(table, groups), "a", FIXED)
    assert left_out(described) == []
    for name in NAMES:
        known = table[f"label_{name}"] >= 0
        label, score = table.loc[known, f"label_{name}"], table.loc[known, f"score_{name}"]
        fpr, tpr, _ = sk.roc_curve(label, score, drop_intermediate=False)
        roc = described[name]["roc"]
        assert set(zip(roc["fpr"], roc["tpr"], strict=True)) <= set(zip(fpr.tolist(), tpr.tolist(), strict=True))
        assert (roc["fpr"][0], roc["tpr"][0], roc["fpr"][-1], roc["tpr"][-1]) == (0, 0, 1, 1)
        assert sorted(roc["fpr"]) == roc["fpr"]
        assert len(roc["fpr"]) <= POINTS + 1
        precision, recall, _ = sk.precision_recall_curve(label, score)
        theirs = set(zip(recall.round(12).tolist(), precision.round(12).tolist(), strict=True))
        pr = described[name]["pr"]
        ours = zip(np.round(pr["recall"], 12).tolist(), np.round(pr["precision"], 12).tolist(), strict=True)
        assert set(ours) <= theirs
        assert pr["recall"][-1] == 1
        # few points of a long curve still enclose its area to within a step of 1 / POINTS
        assert np.trapezoid(roc["tpr"], roc["fpr"]) == pytest.approx(sk.roc_auc_score(label, score), abs=0.02)
