"""Whom federation helped: figures made up so that the answer is known, and a run of the four real hospitals."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import wardround
from tests.evaluation.synthetic_predictions import with_accuracy
from tests.small_federations import after, assert_same_tree
from wardround.evaluation.comparisons.benefit import benefit, best_single, by_number_of_sites, spread
from wardround.evaluation.scores import Scores
from wardround.evaluation.summaries.merged_summaries import Summaries
from wardround.study.schema import Study
from wardround.tasks import class_task
from wardround.tasks.classes import AT_SITES

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
EXTRA = 0.25  # 20 % test rows, 80 % training rows
ROWS = 40
SOME: dict[str, Any] = {"name": "some", "algorithm": "fedavg"}


def study(*arms: dict[str, Any], **changes: Any) -> Study:
    raw = {
        "name": "benefit",
        "data": {"source": "heart"},
        "evaluation": {"seeds": {"first": 1, "count": 4}},
        "arms": [*arms],
        **changes,
    }
    return wardround.load_study(raw)[0]


def scores(hits: Mapping[tuple[str, str], Sequence[int]]) -> Scores:
    """For (arm, site): how many of 40 rows are right with seeds 1, 2, ..."""
    right = {(arm, seed, site): (n, ROWS) for (arm, site), line in hits.items() for seed, n in enumerate(line, 1)}
    return Scores.of(with_accuracy(right))


def corrected_interval(values: np.ndarray) -> list[float]:
    half = stats.t.ppf(0.975, len(values) - 1) * np.sqrt((1 / len(values) + EXTRA) * values.var(ddof=1))
    return [values.mean() - half, values.mean() + half]


FEDAVG, LOCAL = {"algorithm": "fedavg"}, {"algorithm": "local"}


def test_a_hospital_gains_loses_or_neither_can_be_said() -> None:
    """In accuracy and, turned round, in Brier's score, which falls by 0.8 for each row that becomes right."""
    table = {
        ("fedavg", "gainer"): [30, 31, 30, 31],
        ("local", "gainer"): [20, 20, 21, 20],
        ("fedavg", "loser"): [20, 20, 21, 20],
        ("local", "loser"): [30, 31, 30, 31],
        ("fedavg", "unsure"): [20, 30, 20, 30],
        ("local", "unsure"): [28, 21, 27, 22],
    }
    entries = benefit(study(FEDAVG, LOCAL), scores(table), ["fedavg", "local"], AT_SITES)
    by_place = {(entry["site"], entry["metric"]): entry for entry in entries}
    assert {entry["arm"] for entry in entries} == {"fedavg"}
    assert {entry["against"] for entry in entries} == {"local"}
    for site, verdict in (("gainer", "gains"), ("loser", "loses"), ("unsure", "no evidence")):
        difference = (np.array(table["fedavg", site]) - np.array(table["local", site])) / ROWS
        for metric, factor in (("accuracy", 1.0), ("brier", -0.8)):
            entry = by_place[site, metric]
            assert entry["difference"] == pytest.approx(factor * difference.mean())
            assert entry["interval"] == pytest.approx(corrected_interval(factor * difference))
            assert entry["verdict"] == verdict, (site, metric)
            assert entry["seeds"] == 4
            t = difference.mean() / np.sqrt((1 / 4 + EXTRA) * difference.var(ddof=1))
            assert entry["p_value"] == pytest.approx(2 * stats.t.sf(abs(t), 3))


def test_an_equal_hospital_neither_gains_nor_loses_and_a_single_seed_tells_nothing() -> None:
    same = {(arm, "north"): [25, 26, 25, 26] for arm in ("fedavg", "local")}
    for entry in benefit(study(FEDAVG, LOCAL), scores(same), ["fedavg", "local"], AT_SITES):
        assert (entry["difference"], entry["p_value"], entry["verdict"]) == (0.0, 1.0, "no evidence")
    once = {("fedavg", "north"): [35], ("local", "north"): [25]}
    for entry in benefit(study(FEDAVG, LOCAL), scores(once), ["fedavg", "local"], AT_SITES):
        assert (entry["interval"], entry["p_value"], entry["verdict"]) == (None, None, "cannot be told")


def test_a_seed_in_which_one_of_them_diverged_does_not_count() -> None:
    table = scores({("fedavg", "north"): [30, 31, 30, 31], ("local", "north"): [20, 20, 21, 20]})
    lost = (table.arm == table.arms.index("local")) & (table.seed == 0)
    broken = Scores(**{**vars(table), "score": np.where(lost, np.nan, table.score)})
    entry = benefit(study(FEDAVG, LOCAL), broken, ["fedavg", "local"], AT_SITES)[0]
    assert entry["seeds"] == 3
    assert entry["difference"] == pytest.approx((31 + 30 + 31 - 20 - 21 - 20) / 3 / ROWS)
    everything = Scores(**{**vars(table), "score": np.full_like(table.score, np.nan)})
    entry = benefit(study(FEDAVG, LOCAL), everything, ["fedavg", "local"], AT_SITES)[0]
    assert (entry["difference"], entry["verdict"], entry["seeds"]) == (None, "cannot be told", 0)


def test_without_hospitals_that_train_alone_there_is_nothing_to_compare_with() -> None:
    table = scores({("fedavg", "north"): [30, 31, 30, 31]})
    assert benefit(study(FEDAVG), table, ["fedavg"], AT_SITES) == []
    both = scores({("fedavg", "north"): [30], ("local", "north"): [30]})
    assert benefit(study(FEDAVG, LOCAL), both, ["fedavg"], AT_SITES) == []  # local is of another variant


def test_the_spread_over_sites_is_that_of_their_mean_accuracies() -> None:
    table = scores({("a", "north"): [30, 32], ("a", "south"): [20, 22], ("a", "east"): [28, 28]})
    figures = spread(table, "a", "accuracy")
    assert figures["sd"] == pytest.approx(np.std([31 / 40, 21 / 40, 28 / 40], ddof=1))
    assert figures["lowest"] == {"site": "south", "accuracy": pytest.approx(21 / 40)}
    assert figures["highest"] == {"site": "north", "accuracy": pytest.approx(31 / 40)}
    single_site = spread(scores({("a", "north"): [30, 32]}), "a", "accuracy")
    assert single_site["sd"] is None
    assert single_site["lowest"] == single_site["highest"]
    withheld = Summaries(("a",), (1, 2), {}, class_task(2))
    assert spread(withheld, "a", "accuracy") == {"sd": None, "lowest": None, "highest": None}


def test_the_best_single_model_is_picked_for_each_site_among_all_hospitals_and_its_own() -> None:
    arms = (FEDAVG, LOCAL, {"algorithm": "pooled"}, {**SOME, "train_at": [["cleveland"], ["va"], ["cleveland", "va"]]})
    parsed_study = study(*arms)
    names = [arm.name for arm in parsed_study.arms]
    table: dict[tuple[str, str], list[int]] = {(name, site): [20, 22] for name in names for site in ("cleveland", "va")}
    table["some[train_at=va]", "cleveland"] = [30, 32]  # at Cleveland, a model from VA is the best single one
    table["local", "va"] = [33, 35]  # at VA, its own
    table["some[train_at=cleveland+va]", "va"] = [40, 40]  # of two hospitals: no single model, however good
    table["fedavg", "cleveland"] = [32, 34]
    table["fedavg", "va"] = [32, 36]
    by_place = {
        (entry["arm"], entry["site"]): entry for entry in best_single(parsed_study, scores(table), names, "accuracy")
    }
    assert set(by_place) == {("fedavg", "cleveland"), ("fedavg", "va")}  # not pooled, not the partial arms, not local
    here, there = by_place["fedavg", "cleveland"], by_place["fedavg", "va"]
    assert (here["best"], here["best_accuracy"]) == ("va", pytest.approx(31 / 40))
    assert (here["difference"], here["as_good"]) == (pytest.approx(2 / 40), True)
    assert (there["best"], there["best_accuracy"]) == ("va (local)", pytest.approx(34 / 40))
    assert (there["difference"], there["as_good"]) == (pytest.approx(0.0), True)
    table["fedavg", "va"] = [32, 35]
    worse = best_single(parsed_study, scores(table), names, "accuracy")
    assert [entry["as_good"] for entry in worse if entry["site"] == "va"] == [False]


def test_two_algorithms_at_one_hospital_are_two_rivals() -> None:
    parsed_study = study(
        FEDAVG, {**SOME, "train_at": [["va"]]}, {"name": "prox", "algorithm": "fedprox", "train_at": [["va"]]}
    )
    names = [arm.name for arm in parsed_study.arms]
    table = {("fedavg", "va"): [30, 31], (names[1], "va"): [35, 36], (names[2], "va"): [20, 21]}
    (entry,) = best_single(parsed_study, scores(table), names, "accuracy")
    assert entry["best_accuracy"] == pytest.approx(35.5 / ROWS)


def test_without_arms_that_train_at_one_hospital_there_is_no_best_single_model() -> None:
    parsed_study = study(FEDAVG, LOCAL, {**SOME, "train_at": [["cleveland", "va"]]})
    names = [arm.name for arm in parsed_study.arms]
    assert best_single(parsed_study, scores({(name, "va"): [20, 21] for name in names}), names, "accuracy") == []


def test_accuracy_by_number_of_sites_is_told_apart_inside_and_outside() -> None:
    slow = {"name": "slow", "algorithm": "fedavg", "training.lr": 0.01}
    some = {**SOME, "train_at": [["cleveland"], ["va"], ["cleveland", "va"]]}
    parsed_study = study(FEDAVG, some, {"algorithm": "fedprox"}, slow)
    names = [arm.name for arm in parsed_study.arms]
    sites = ("cleveland", "va", "hungarian")
    table: dict[tuple[str, str], list[int]] = {
        (name, site): [8 * (number + 1) + place, 8 * (number + 1) + place]
        for number, name in enumerate(names[:4])
        for place, site in enumerate(sites)
    }
    # another algorithm, and another way of training: no part of this
    table |= {(name, site): [1, 1] for name in ("fedprox", "slow") for site in sites}
    single_site, two, three = by_number_of_sites(parsed_study, scores(table), names, "accuracy")
    # rows right at Cleveland, VA and in Hungary: fedavg 8, 9, 10; from Cleveland 16, 17, 18; from VA 24, 25, 26;
    # from both 32, 33, 34
    assert [(entry["sites"], entry["combinations"]) for entry in (single_site, two, three)] == [(1, 2), (2, 1), (3, 1)]
    assert single_site["inside"]["mean"] == pytest.approx(np.mean([16, 25]) / ROWS)
    assert single_site["outside"]["mean"] == pytest.approx(np.mean([17, 18, 24, 26]) / ROWS)
    assert two["inside"]["mean"] == pytest.approx(np.mean([32, 33]) / ROWS)
    assert two["outside"]["mean"] == pytest.approx(34 / ROWS)
    assert three["inside"]["mean"] == pytest.approx(np.mean([8, 9, 10]) / ROWS)
    assert three["outside"] is None
    assert {entry["algorithm"] for entry in (single_site, two, three)} == {"fedavg"}


def test_an_arm_on_other_data_is_not_set_against_hospitals_that_train_alone() -> None:
    parsed_study = study(FEDAVG, LOCAL, {"name": "other", "algorithm": "fedavg", "data.hospitals": ["cleveland"]})
    table = {(arm, "cleveland"): [20, 21] for arm in ("fedavg", "local", "other")}
    assert {entry["arm"] for entry in benefit(parsed_study, scores(table), ["fedavg", "local", "other"], AT_SITES)} == {
        "fedavg"
    }


# The four hospitals

SUBSETS = [["cleveland"], ["hungarian"], ["va"], ["cleveland", "va"], ["cleveland", "hungarian", "va"]]
REAL: dict[str, Any] = {
    "name": "subsets",
    "data": {"source": "heart"},
    "training": {"rounds": 2, "lr": 0.1},
    "evaluation": {"seeds": {"first": 1, "count": 3}, "reference": "fedavg", "metric": "accuracy"},
    "arms": [FEDAVG, LOCAL, {**SOME, "train_at": SUBSETS}],
    "variants": [{"name": "slow", "training.lr": 0.01, "arms": ["fedavg", "local"]}],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> wardround.StudyRun:
    return wardround.run_study(REAL, tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def accuracy(run: wardround.StudyRun) -> dict[tuple[str, str], np.ndarray]:
    """Of (arm, site), over seeds, by scikit-learn from the saved predictions."""
    from sklearn.metrics import accuracy_score

    predictions = pd.read_parquet(run.folder / "predictions.parquet")
    return {
        (str(arm), str(site)): np.array(
            [accuracy_score(p["label"], p["score"] >= 0.5) for _, p in part.groupby("seed")]
        )
        for (arm, site), part in predictions.groupby(["arm", "site"])
    }


def test_every_arm_is_scored_at_every_hospital(accuracy: dict[tuple[str, str], np.ndarray]) -> None:
    arms = ["fedavg", "local", "fedavg@slow", "local@slow", *(f"some[train_at={'+'.join(s)}]" for s in SUBSETS)]
    assert set(accuracy) == {(arm, site) for arm in arms for site in HOSPITALS}


def test_the_runs_benefit_is_computed_from_its_predictions(run: wardround.StudyRun) -> None:
    from sklearn.metrics import accuracy_score, brier_score_loss, roc_auc_score

    predictions = pd.read_parquet(run.folder / "predictions.parquet").astype({"score": np.float64})
    computed = {
        "accuracy": lambda p: accuracy_score(p["label"], p["score"] >= 0.5),
        "auc": lambda p: roc_auc_score(p["label"], p["score"]),
        "brier": lambda p: brier_score_loss(p["label"], p["score"]),
    }
    entries = run.results["benefit"]
    places = {(entry["arm"], entry["against"], entry["site"], entry["metric"]) for entry in entries}
    pairs = (("fedavg", "local"), ("fedavg@slow", "local@slow"))  # each in its own variant; partial arms are left out
    assert places == {(*pair, site, metric) for pair in pairs for site in HOSPITALS for metric in computed}
    for entry in entries:
        there = predictions[predictions["site"] == entry["site"]]
        lines = []
        for arm in (entry["arm"], entry["against"]):
            mine = [part for _, part in there[there["arm"] == arm].groupby("seed")]
            defined = [part["label"].nunique() == 2 or entry["metric"] != "auc" for part in mine]
            line = [computed[entry["metric"]](p) if ok else np.nan for p, ok in zip(mine, defined, strict=True)]
            lines.append(np.array(line))
        difference = lines[0] - lines[1]
        known = difference[~np.isnan(difference)]
        assert entry["seeds"] == len(known)
        if len(known) > 1:
            assert entry["difference"] == pytest.approx(known.mean())
            limits = np.clip(corrected_interval(known), -1, 1)  # as far as figures can differ
            assert entry["uncorrected"]["interval"] == pytest.approx(limits)


def test_the_runs_best_single_models_are_those_of_the_predictions(
    run: wardround.StudyRun, accuracy: dict[tuple[str, str], np.ndarray]
) -> None:
    singles = {subset[0]: f"some[train_at={subset[0]}]" for subset in SUBSETS if len(subset) == 1}
    entries = run.results["best_single"]
    assert [(entry["arm"], entry["site"]) for entry in entries] == [("fedavg", site) for site in HOSPITALS]
    for entry in entries:
        site = entry["site"]
        rivals = {single: accuracy[arm, site].mean() for single, arm in singles.items()}
        rivals[f"{site} (local)"] = accuracy["local", site].mean()
        assert entry["best_accuracy"] == pytest.approx(max(rivals.values()))
        assert rivals[entry["best"]] == pytest.approx(entry["best_accuracy"])
        ours = accuracy["fedavg", site].mean()
        assert entry["difference"] == pytest.approx(ours - entry["best_accuracy"])
        assert entry["as_good"] == (ours >= entry["best_accuracy"] - 1e-9)


def test_the_runs_accuracy_by_number_of_sites_is_that_of_the_predictions(
    run: wardround.StudyRun, accuracy: dict[tuple[str, str], np.ndarray]
) -> None:
    entries = run.results["by_number_of_sites"]
    assert [(entry["sites"], entry["combinations"]) for entry in entries] == [(1, 3), (2, 1), (3, 1), (4, 1)]
    for entry in entries:
        chosen = [subset for subset in SUBSETS if len(subset) == entry["sites"]]
        names = {f"some[train_at={'+'.join(subset)}]": subset for subset in chosen} or {"fedavg": list(HOSPITALS)}
        for side in ("inside", "outside"):
            lines = [
                accuracy[arm, site]
                for arm, subset in names.items()
                for site in HOSPITALS
                if (site in subset) == (side == "inside")
            ]
            if not lines:
                assert entry[side] is None
                continue
            mean = np.mean(lines, axis=0)  # of each seed, over combinations and sites
            assert entry[side]["mean"] == pytest.approx(mean.mean())
            assert entry[side]["interval"] == pytest.approx(corrected_interval(mean))


def test_a_hospital_that_averages_with_nobody_trains_as_the_local_arm_does_there() -> None:
    """Without indicators and one-hot columns, whose number depends on who takes part."""
    changes = {"data.categories": "codes", "data.indicator": False, "training.precision": "float64"}
    plan = wardround.load_plan(*wardround.load_study(REAL, changes=changes))
    for seed in (1, 2):
        local = after(plan.trial(plan.study.arm("local"), seed), 2)
        for site in ("cleveland", "hungarian", "va"):
            alone = after(plan.trial(plan.study.arm(f"some[train_at={site}]"), seed), 2)
            assert_same_tree(alone.server["params"], local.memories[site].algorithm["params"], atol=1e-12)


def test_partial_arms_are_not_tested_against_the_reference(run: wardround.StudyRun) -> None:
    """In them other hospitals train than in the reference."""
    assert {test["arm"] for test in run.results["tests"]} == {"local", "local@slow"}
