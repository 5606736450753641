"""What hospitals tell is enough for the results, and says nothing of fewer patients than they agreed on."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import wardround
from tests.evaluation.deployed_summaries import as_deployed, facts_of, lines_of, prediction
from tests.figures_by_shape import metrics
from tests.noticed import noticed
from wardround.deployment.common.site_counts import describe_deployed
from wardround.evaluation.calibration_curves import decision_curve
from wardround.evaluation.deployed_results import diverged_arms, withheld
from wardround.evaluation.participation.hospitals import participation, was_there
from wardround.evaluation.scores import Scores
from wardround.evaluation.summaries.merged_summaries import gather_summaries, merge_summaries
from wardround.evaluation.summaries.score_histograms import EDGES, score_cells
from wardround.evaluation.summaries.site_summary import site_summary
from wardround.privacy.disclosure.small_cells import suppress_small_classes
from wardround.tasks import class_task
from wardround.tasks.class_metrics import METRICS, THRESHOLDS

RANKED = ("auc", "pr_auc")  # need the order of all sites' rows
SMALLEST = 5
TWO = class_task(2)
STUDY: dict[str, Any] = {
    "name": "told",
    "data": {"source": "heart"},
    "training": {"rounds": 3, "local_epochs": 2},
    "evaluation": {"seeds": {"first": 1, "count": 4}, "validation_share": 0.2, "threshold": 0.5, "reference": "fedavg"},
    "arms": [{"algorithm": "fedavg"}, {"algorithm": "fedprox", "mu": [0.0, 1.0]}, {"algorithm": "local"}],
    "selection": {"arms": ["fedprox"], "on": "validation", "metric": "loss"},
    "deployment": {"smallest_cell": SMALLEST},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> wardround.StudyRun:
    return wardround.run_study(STUDY, tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def results(run: wardround.StudyRun, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    content = as_deployed(run, STUDY, tmp_path_factory.mktemp("told") / "run").read_json("results.json")
    assert isinstance(content, dict)
    return content


def read(run: wardround.StudyRun, name: str) -> pd.DataFrame:
    return pd.read_parquet(run.folder / f"{name}.parquet")


# Figures over all sites


def full_lines(predictions: pd.DataFrame) -> pd.DataFrame:
    """Without the sites and seeds at which a class is so small that something is withheld."""
    sizes = predictions.groupby(["seed", "site", "label", "arm"])["row"].transform("size")
    small = predictions.assign(small=sizes < SMALLEST).groupby(["seed", "site"])["small"].transform("any")
    both = predictions.groupby(["seed", "site"])["label"].transform("nunique") == 2
    return predictions[~small & both]


def test_every_metric_without_ranks_is_that_of_the_predictions(run: wardround.StudyRun) -> None:
    predictions = full_lines(read(run, "predictions"))
    assert predictions["site"].nunique() >= 3
    exact = Scores.of(predictions)
    summaries = gather_summaries(lines_of(predictions, read(run, "groups")), exact.arms, exact.seeds, TWO)
    exact_places = [place for place, name in enumerate(METRICS) if name not in RANKED]
    auc = METRICS.index("auc")
    for arm in exact.arms:
        np.testing.assert_allclose(
            summaries.overall[arm][:, exact_places], exact.overall[arm][:, exact_places], rtol=0, atol=1e-12
        )
        bound = summaries.auc_error_bound(arm)
        assert bound is not None
        assert np.abs(summaries.overall[arm][:, auc] - exact.overall[arm][:, auc]).max() <= bound + 1e-12
        assert set(summaries.by_site[arm]) == set(exact.by_site[arm])
        assert np.isnan(summaries.overall[arm][:, METRICS.index("pr_auc")]).all()  # no bound is known for it
        for site, figures in summaries.by_site[arm].items():
            np.testing.assert_allclose(figures, exact.by_site[arm][site], rtol=0, atol=1e-12)


def test_accuracy_brier_and_loss_are_over_all_sites_even_where_a_class_is_small(
    run: wardround.StudyRun, results: Mapping[str, Any]
) -> None:
    assert len(full_lines(read(run, "predictions"))) < len(read(run, "predictions"))
    for arm in ("fedavg", "local"):
        for metric in ("accuracy", "brier", "loss"):
            for key in ("mean", "sd"):
                theirs = run.results["arms"][arm]["metrics"][metric][key]
                assert results["arms"][arm]["metrics"][metric][key] == pytest.approx(theirs, abs=1e-12)


Rows = list[tuple[int, int, float]]  # site, label, score
# scores on borders, next to each other, at the ends, and anywhere
SCORES = st.one_of(st.sampled_from([0.0, 0.05, 0.4999999, 0.5, 0.7, 0.95, 1.0]), st.floats(0, 1, width=32))
ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), SCORES), min_size=1, max_size=120)


def summaries_of(rows: Rows, smallest: int) -> tuple[list[dict[str, Any]], np.ndarray, np.ndarray]:
    """What the sites of some rows tell, with labels and scores of those who tell of their classes."""
    site, label = (np.array([row[part] for row in rows]) for part in (0, 1))
    score = np.array([row[2] for row in rows], dtype=np.float32)
    summaries, included_rows = [], np.zeros(len(rows), dtype=bool)
    for number in np.unique(site):
        mine = site == number
        summary = site_summary(prediction(label[mine], score[mine]), {}, smallest)
        if not summary.get("suppressed"):
            summaries.append(summary)
            included_rows |= mine & (summary["histogram"] is not None)
    return summaries, label[included_rows], score[included_rows]


@settings(max_examples=300, deadline=None)
@given(ROWS, st.integers(1, 6))
@example([(0, 1, 1.0), (1, 0, 1.0), (0, 0, 0.95), (1, 1, 0.0)], 1)
def test_auc_is_within_its_bound_whatever_the_scores(rows: Rows, smallest: int) -> None:
    summaries, label, score = summaries_of(rows, smallest)
    merged_figures, bound = merge_summaries(TWO, summaries)
    wanted = metrics(label, score)["auc"]
    if math.isnan(wanted):
        assert math.isnan(merged_figures["auc"])
    else:
        assert abs(merged_figures["auc"] - wanted) <= bound + 1e-9
        assert 0 <= bound <= 1


@settings(max_examples=200, deadline=None)
@given(ROWS, st.integers(1, 6))
def test_counts_add_up_whatever_the_scores(rows: Rows, smallest: int) -> None:
    summaries, label, score = summaries_of(rows, smallest)
    merged_figures, wanted = (
        merge_summaries(TWO, [summary for summary in summaries if summary["histogram"] is not None])[0],
        metrics(label, score),
    )
    for name in METRICS:
        if name not in RANKED:
            assert merged_figures[name] == pytest.approx(wanted[name], abs=1e-12, nan_ok=True)


def test_one_site_alone_has_its_exact_auc() -> None:
    rng = np.random.default_rng(0)
    label, score = rng.integers(0, 2, 80), rng.random(80)
    merged_figures, bound = merge_summaries(TWO, [site_summary(prediction(label, score), {}, SMALLEST)])
    assert merged_figures["auc"] == pytest.approx(metrics(label, score)["auc"], abs=1e-12)
    assert bound == 0


def test_the_order_in_which_sites_answer_changes_no_bit() -> None:
    rng = np.random.default_rng(1)
    summaries = [site_summary(prediction(rng.integers(0, 2, 60), rng.random(60)), {}, SMALLEST) for _ in range(6)]
    assert merge_summaries(TWO, summaries) == merge_summaries(TWO, summaries[::-1])


@pytest.mark.parametrize("seed", range(5))
def test_several_classes_add_up_and_have_no_auc_over_all_sites(seed: int) -> None:
    rng = np.random.default_rng(seed)
    label, score = rng.integers(0, 3, 120), rng.dirichlet(np.ones(4), 120)  # the fourth class has no row
    summaries = [
        site_summary(prediction(label[part], score[part]), {}, SMALLEST) for part in np.split(np.arange(120), 2)
    ]
    assert all(len(summary["sums"]["confusion"]) == 4 and summary["histogram"] is None for summary in summaries)
    merged_figures, wanted = merge_summaries(class_task(4), summaries)[0], metrics(label, score)
    assert math.isnan(merged_figures["auc"])
    for name in METRICS:
        if name not in RANKED:
            assert merged_figures[name] == pytest.approx(wanted[name], abs=1e-12)


def test_a_site_that_diverged_takes_the_figures_of_its_arm_and_seed_away() -> None:
    label = np.arange(40) % 2
    lost = site_summary(prediction(label, np.full(40, np.nan)), {"sex": np.full(40, "female", dtype=object)}, SMALLEST)
    assert lost == {"rows": 40, "diverged": True}
    good = site_summary(prediction(label, label * 0.8), {}, SMALLEST)
    where = {"arm": "fedavg", "subset": "test"}
    lines = [
        {**where, "seed": 1, "site": "north", **lost},
        {**where, "seed": 1, "site": "south", **good},
        {**where, "seed": 2, "site": "south", **good},
    ]
    summaries = gather_summaries(lines, ["fedavg"], [1, 2], TWO)
    assert np.isnan(summaries.overall["fedavg"][0]).all()
    assert summaries.overall["fedavg"][1, 0] == 1
    assert np.isnan(summaries.by_site["fedavg"]["north"]).all()
    assert summaries.by_site["fedavg"]["south"][:, 0].tolist() == [1, 1]
    assert summaries.calibration("fedavg") is None
    assert summaries.decision_curve("fedavg") is None
    (notice,) = diverged_arms(lines, 2)
    assert (notice.code, notice.arm, notice.seeds) == ("diverged", "fedavg", (1, 2))


# What must not be told


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from numbers(item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


@settings(max_examples=300, deadline=None)
@given(st.lists(st.floats(0, 1, width=32), max_size=60), st.integers(1, 8))
@example([0.1, *[0.9] * 9], 5)  # one row alone on its side of 0.5
@example([0.2, 0.2, 0.2, 0.2, 0.2, 0.4], 5)  # too few at the end
def test_no_cell_is_small_and_cells_hold_every_row_once(scores: list[float], smallest: int) -> None:
    score = np.array(scores, dtype=np.float32)
    exact = score.astype(np.float64)
    if 0 < len(score) < smallest:
        return  # such a class is never told of
    cells = score_cells(score, np.arange(len(score)), smallest)
    assert sum(cell["rows"] for cell in cells) == len(score)
    sides = [(score < 0.5).sum(), (score >= 0.5).sum()]
    for cell in cells:
        assert cell["rows"] >= smallest
        assert cell["low"] in EDGES
        assert cell["high"] in EDGES
        inside = (exact >= cell["low"]) & ((exact < cell["high"]) | (cell["high"] == 1))
        assert inside.sum() == cell["rows"]
        assert cell["score_sum"] == pytest.approx(exact[inside].sum())
        if not any(0 < side < smallest for side in sides):
            assert cell["high"] <= 0.5 or cell["low"] >= 0.5
    assert all(a["high"] <= b["low"] for a, b in pairwise(cells))


def test_the_borders_of_cells_are_the_thresholds_of_decision_curves() -> None:
    assert list(EDGES) == [0.0, *THRESHOLDS.tolist(), 1.0]
    assert len(EDGES) == 21
    for border in EDGES[1:-1]:  # float32's borders are just above or below
        (cell,) = score_cells(np.array([border], dtype=np.float32), np.zeros(1), 1)
        assert (float(np.float32(border)) >= border) == (cell["low"] == border)


def test_a_small_class_leaves_nothing_by_class() -> None:
    label = np.array([1] * 4 + [0] * 36)
    score = np.random.default_rng(2).random(40)
    summary = site_summary(prediction(label, score), {}, SMALLEST)
    assert summary["small_classes"] == [1]
    assert summary["sums"]["confusion"] is None
    assert summary["histogram"] is None
    assert {name for name, value in summary["metrics"].items() if value is not None} == {"accuracy", "brier", "loss"}
    assert 4 not in numbers(summary)
    assert 36 not in numbers(summary)
    enough = site_summary(prediction(np.array([1] * 5 + [0] * 35), score), {}, SMALLEST)
    assert enough["histogram"] is not None
    none = site_summary(prediction(np.zeros(40, dtype=int), score), {}, SMALLEST)  # no row is no patient
    assert none["histogram"][1] == []


@pytest.mark.parametrize("rows", [0, 1, 4])
def test_a_small_site_says_so_and_nothing_else(rows: int) -> None:
    label = np.arange(rows) % 2
    groups = {"sex": np.full(rows, "female", dtype=object)}
    assert site_summary(prediction(label, label * 0.9), groups, SMALLEST) == {"suppressed": True}


def group_sizes(summary: Mapping[str, Any], kind: str = "sex") -> dict[str, int]:
    return {value: group["rows"] for value, group in summary["groups"][kind].items()}


def sexes(*sizes: int, unknown: int = 0) -> np.ndarray:
    names = np.repeat(np.array(["female", "male", "other"], dtype=object)[: len(sizes)], sizes)
    return np.concatenate([names, np.full(unknown, None, dtype=object)])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (sexes(20, 30), {"female": 20, "male": 30}),
        (sexes(8, 30), {}),  # all rows less the men are 8 women
        (sexes(20, 30, unknown=3), {"male": 30}),  # all rows less both are 3 of no known sex
        (sexes(8, 30, 8), {"male": 30}),  # 16 others, of whom nobody knows who is who
        (sexes(8, 30, unknown=5), {"male": 30}),
        (sexes(unknown=40), {}),
    ],
    ids=["both", "few women", "few unknown", "two small", "small and unknown", "nobody known"],
)
def test_a_small_group_cannot_be_worked_out_from_the_rest(values: np.ndarray, expected: dict[str, int]) -> None:
    label = np.arange(len(values)) % 2
    summary = site_summary(prediction(label, np.linspace(0, 1, len(values))), {"sex": values}, SMALLEST)
    assert group_sizes(summary) == expected


def test_a_small_class_of_a_group_cannot_be_worked_out_from_the_rest() -> None:
    """16 women with 2 positives, 30 men with 15: all rows less the men would give the women's."""
    label = np.concatenate([np.arange(16) < 2, np.arange(30) % 2]).astype(int)
    values = sexes(16, 30)
    summary = site_summary(prediction(label, np.linspace(0, 1, 46)), {"sex": values}, SMALLEST)
    assert group_sizes(summary) == {"female": 16, "male": 30}
    assert summary["histogram"] is not None
    for group in summary["groups"]["sex"].values():
        assert group["histogram"] is None
        assert group["sums"]["confusion"] is None
        assert group["metrics"]["accuracy"] is not None


GROUPED = st.lists(
    st.tuples(st.integers(0, 1), st.floats(0, 1, width=32), st.sampled_from(["female", "male", "other", None])),
    max_size=90,
)


@settings(max_examples=200, deadline=None)
@given(GROUPED, st.integers(2, 12))
def test_nothing_that_is_told_counts_fewer_patients_than_agreed(
    rows: list[tuple[int, float, str | None]], smallest: int
) -> None:
    label, score = np.array([row[0] for row in rows], dtype=int), np.array([row[1] for row in rows], dtype=np.float32)
    summary = site_summary(
        prediction(label, score), {"sex": np.array([row[2] for row in rows], dtype=object)}, smallest
    )
    assert json.loads(json.dumps(summary)) == summary  # plain data
    if summary.get("suppressed"):
        assert len(rows) < smallest
        return
    parts = [summary, *summary["groups"]["sex"].values()]
    for part in parts:
        assert part["rows"] >= smallest
        for cells in part["histogram"] or []:
            assert all(cell["rows"] >= smallest for cell in cells)
    rest = summary["rows"] - sum(part["rows"] for part in parts[1:])
    assert len(parts) == 1 or rest == 0 or rest >= max(smallest, 10)
    for number in (0, 1):  # of each class, those that can be worked out
        known = [sum(cell["rows"] for cell in part["histogram"][number]) for part in parts[1:] if part["histogram"]]
        left = int((label == number).sum()) - sum(known)
        assert not known or left == 0 or left >= smallest


def test_class_counts_are_withheld_two_at_a_time() -> None:
    def visible_counts(**counts: int) -> dict[str, int | None]:
        """Each row is another patient."""
        ends = np.cumsum([0, *counts.values()])
        return suppress_small_classes({name: np.arange(ends[n], ends[n + 1]) for n, name in enumerate(counts)}, 5)

    assert visible_counts(no=37, yes=3) == {"no": None, "yes": None}
    assert visible_counts(no=37, yes=5) == {"no": 37, "yes": 5}
    assert visible_counts(no=37, yes=0) == {"no": 37, "yes": 0}
    assert visible_counts(a=1, b=2, c=20, d=9) == {"a": None, "b": None, "c": 20, "d": None}
    assert visible_counts(a=3, b=3, c=20) == {"a": None, "b": None, "c": 20}
    assert visible_counts(a=3) == {"a": None}
    one_patient = {"no": np.arange(37), "yes": np.full(12, 40)}
    assert suppress_small_classes(one_patient, 5) == {"no": None, "yes": None}
    again = {"a": np.full(9, 1), "b": np.array([1, 2, 3, 4, 1]), "c": np.arange(5, 25)}  # four patients in a and b
    assert suppress_small_classes(again, 5) == dict.fromkeys("abc")


def test_one_patient_with_many_rows_is_one_patient() -> None:
    """Twelve films of one patient are the only ones with the disease."""
    label = np.array([1] * 12 + [0] * 60)
    score = np.random.default_rng(2).random(72)
    people = np.array([0] * 12 + list(range(1, 61)))
    site_prediction = replace(prediction(label, score), patients=people)
    sex = np.array(["female"] * 12 + ["male"] * 60, dtype=object)
    summary = site_summary(site_prediction, {"sex": sex}, SMALLEST)
    assert summary["small_classes"] == [1]
    assert summary["histogram"] is None
    assert summary["groups"]["sex"] == {}  # the men are told of with all rows less the one woman
    assert site_summary(prediction(label, score), {"sex": sex}, SMALLEST)["histogram"] is not None
    assert site_summary(replace(site_prediction, patients=np.zeros(72)), {}, SMALLEST) == {"suppressed": True}


def test_cells_hold_enough_patients_however_many_rows() -> None:
    """Rows of one patient lie close together, as a network's scores of one patient's images do."""
    people = np.repeat(np.arange(12), 10)
    score = np.clip(people / 12 + np.random.default_rng(0).normal(0, 0.01, 120), 0, 1)
    cells = score_cells(score, people, SMALLEST)
    assert sum(cell["rows"] for cell in cells) == 120
    for cell in cells:
        inside = (score >= cell["low"]) & ((score < cell["high"]) | (cell["high"] == 1))
        assert len(np.unique(people[inside])) >= SMALLEST
    assert len(cells) < len(score_cells(score, np.arange(120), SMALLEST))


# The whole of results.json


def test_the_results_have_the_shape_of_a_simulations(run: wardround.StudyRun, results: Mapping[str, Any]) -> None:
    assert results["deployed"] is True
    assert run.results["deployed"] is False
    assert {*results, "privacy", "start_from"} == set(run.results)  # which the ledger and the start tell
    assert results["columns"] is None
    assert results["leakage"] == {}
    for arm, arm_results in results["arms"].items():
        theirs = run.results["arms"][arm]
        assert set(arm_results) == set(theirs)
        assert set(arm_results["sites"]) == set(theirs["sites"])
        assert theirs["auc_error_bound"] == 0
        assert 0 < arm_results["auc_error_bound"] < 0.2
        assert arm_results["calibration"]["slope"] is None
        assert arm_results["cost"] == theirs["cost"]
        assert arm_results["convergence"] == theirs["convergence"]
    assert {test["bootstrap"]["unit"] for test in results["tests"] if test["bootstrap"]} == {"seeds"}
    for ours, theirs in zip(results["tests"], run.results["tests"], strict=True):
        if ours["metric"] in ("accuracy", "brier", "loss"):
            assert ours["difference"] == pytest.approx(theirs["difference"], abs=1e-12)
            assert ours["p_value"] == pytest.approx(theirs["p_value"], abs=1e-6)
    for ours, theirs in zip(results["benefit"], run.results["benefit"], strict=True):
        assert ours["site"] == theirs["site"]
        if ours["metric"] in ("accuracy", "brier"):
            assert ours["difference"] == pytest.approx(theirs["difference"], abs=1e-12)


def test_the_same_values_are_selected(run: wardround.StudyRun, results: Mapping[str, Any]) -> None:
    """By the loss, which is over all rows and so the same."""
    (ours,), (theirs,) = results["selection"], run.results["selection"]
    assert ours["chosen"] == theirs["chosen"]
    assert ours["scores"] == pytest.approx(theirs["scores"], abs=1e-12)
    name = "fedprox[selected]"
    assert results["arms"][name]["metrics"]["accuracy"]["mean"] == pytest.approx(
        run.results["arms"][name]["metrics"]["accuracy"]["mean"], abs=1e-12
    )


@pytest.mark.slow
def test_a_held_out_site_selects_too(tmp_path_factory: pytest.TempPathFactory) -> None:
    study = {**STUDY, "selection": {"arms": ["fedprox"], "on": "site", "site": "va"}}
    study_run = wardround.run_study(study, tmp_path_factory.mktemp("runs"))
    deployed_results = as_deployed(study_run, study, tmp_path_factory.mktemp("told") / "run").read_json("results.json")
    assert deployed_results["selection"][0]["chosen"] == study_run.results["selection"][0]["chosen"]
    assert set(deployed_results["arms"]) == set(study_run.results["arms"])


def test_a_warning_names_each_site_and_class_that_withholds(results: Mapping[str, Any]) -> None:
    notices = noticed(results, "figures-withheld", site="switzerland")
    assert any(notice["details"] == {"part": "tested"} and len(notice["classes"]) == 1 for notice in notices)
    study = wardround.load_study(STUDY)[0]
    where = {"arm": "fedavg", "site": "va", "subset": "test"}
    lines = [{**where, "seed": seed, "suppressed": True} for seed in (1, 2)]
    (notice,) = withheld(study, lines, ["no", "yes"])
    assert (notice.site, notice.seeds, notice.details, notice.classes) == ("va", (2, 4), {"part": "tested"}, ())
    for_selection = [{**line, "subset": "validation"} for line in lines]
    (notice,) = withheld(study, for_selection, ["no", "yes"])
    assert (notice.details, notice.seeds) == ({"part": "to select by"}, (2, 4))
    assert withheld(replace(study, selection=None), for_selection, ["no", "yes"]) == []


def test_subgroups_are_over_the_sites_that_tell_of_them(run: wardround.StudyRun, results: Mapping[str, Any]) -> None:
    lines = lines_of(read(run, "predictions"), read(run, "groups"))
    subgroup = results["arms"]["fedavg"]["subgroups"]["sex"]["male"]
    rows = [0] * 4
    right = [0] * 4
    for line in (line for line in lines if line["arm"] == "fedavg"):
        part = line.get("groups", {}).get("sex", {}).get("male")
        if part:
            rows[line["seed"] - 1] += part["rows"]
            right[line["seed"] - 1] += part["sums"]["right"]
    assert subgroup["rows"] == np.mean(rows)
    assert subgroup["metrics"]["accuracy"]["mean"] == pytest.approx(np.mean(np.divide(right, rows)))
    assert list(results["arms"]["fedavg"]["subgroups"]) == ["sex", "age"]


def test_the_decision_curve_is_exact_where_nothing_was_merged() -> None:
    rng = np.random.default_rng(4)
    label = rng.integers(0, 2, 400)
    score = np.clip(0.5 + 0.2 * (label - 0.5) + rng.normal(scale=0.3, size=400), 0, 1)
    for smallest, atol in ((1, 1e-12), (40, 0.06)):
        line = {"arm": "a", "seed": 1, "site": "north", **site_summary(prediction(label, score), {}, smallest)}
        curve = gather_summaries([line], ["a"], [1], TWO).decision_curve("a")
        wanted = decision_curve(label, score)
        assert curve is not None
        assert wanted is not None
        assert curve["interpolated"] is (smallest > 1)
        np.testing.assert_allclose(curve["treat_all"], wanted["treat_all"], atol=1e-12)
        np.testing.assert_allclose(curve["net_benefit"][:14], wanted["net_benefit"][:14], atol=atol)


def test_reliability_has_the_means_of_all_rows() -> None:
    rng = np.random.default_rng(5)
    label, score = rng.integers(0, 2, 300), rng.random(300)
    line = {"arm": "a", "seed": 1, "site": "north", **site_summary(prediction(label, score), {}, SMALLEST)}
    reliability = gather_summaries([line], ["a"], [1], TWO).calibration("a")
    assert reliability is not None
    bins = reliability["bins"]
    assert sum(part["rows"] for part in bins) == 300
    assert sum(part["rows"] * part["score"] for part in bins) == pytest.approx(score.sum())
    assert sum(part["rows"] * part["positive"] for part in bins) == pytest.approx(label.sum())
    assert all(a["score"] <= b["score"] for a, b in pairwise(bins))


def test_sites_are_described_as_in_a_simulation_as_far_as_they_are_known(run: wardround.StudyRun) -> None:
    plan = wardround.load_plan(*wardround.load_study(STUDY))
    theirs = run.results["sites"][0]
    (ours,) = describe_deployed(plan.study, facts_of(plan, smallest=1), theirs["features"])
    assert set(ours) == set(theirs)
    same = ("data", "partition", "rows", "arms", "features", "sites")
    assert {key: ours[key] for key in same} == {key: theirs[key] for key in same}
    assert ours["patients"] is None
    for key in ("sizes", "js", "kl", "gini"):
        assert ours["heterogeneity"][key] == theirs["heterogeneity"][key]
    assert ours["heterogeneity"]["mmd"] is None
    facts = facts_of(plan, smallest=10)
    assert set(facts["switzerland"]["classes"].values()) == {None}  # 8 without the disease
    withheld_there = describe_deployed(plan.study, facts, None)[0]["heterogeneity"]
    known = [pair["js"] for pair in withheld_there["pairs"] if "switzerland" not in (pair["site_a"], pair["site_b"])]
    assert None not in known
    assert withheld_there["js"] == pytest.approx(np.mean(known))


def test_who_took_part_in_what_is_counted() -> None:
    records = pd.DataFrame({"sites": [["a", "b"], ["a"], ["a"]], "dropped": [[], ["b"], ["b"]]})
    attendance = participation(["a", "b", "c"], ["a", "b"], ["a"], {"c": "late"}, records)
    assert attendance == {
        "a": {"joined": True, "rounds": 3, "of": 3, "scored": True, "reason": None},
        "b": {"joined": True, "rounds": 1, "of": 3, "scored": False, "reason": None},
        "c": {"joined": False, "rounds": 0, "of": 0, "scored": False, "reason": "late"},
    }
    assert [was_there(entry) for entry in attendance.values()] == [True, False, False]
