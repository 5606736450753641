"""Studies of several outcomes: one model, each outcome by its own metrics."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from wardround.algorithms import ALGORITHMS
from wardround.bundles import load_bundle, make_bundle, make_bundles, predict_table
from wardround.cli.studies.render_run import show_run
from wardround.core.errors import RunError, StudyError, WardroundError
from wardround.evaluation.outcome_results import content_of
from wardround.report import build_report, compare_runs
from wardround.runs.execute import StudyRun, run_study

ENGINES = ("serial", "stacked")
HOSPITALS = {"north": 90, "south": 70}
TASKS = {"stay": "regression", "visits": {"kind": "count", "exposure": "months"}}
ARMS = [{"name": "local", "algorithm": "local"}, {"name": "fedavg", "algorithm": "fedavg"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, rng = tmp_path_factory.mktemp("outcomes"), np.random.default_rng(5)
    for site, rows in HOSPITALS.items():
        age, months = rng.normal(60, 10, rows).round(), rng.uniform(1, 12, rows).round(1)
        table = {
            "age": age,
            "pressure": rng.normal(130, 15, rows).round(),
            "months": months,
            "died": np.where(rng.random(rows) < 1 / (1 + np.exp(-(age - 60) / 8)), "yes", "no"),
            "stay": (5 + 0.2 * (age - 60) + rng.normal(0, 2, rows)).round(1),
            "visits": rng.poisson(0.3 * months),
        }
        pd.DataFrame(table).to_csv(path / f"{site}.csv", index=False)
    return path


def study(folder: Path, data: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "name": "outcomes",
        "data": {"source": "csv", "files": {site: str(folder / f"{site}.csv") for site in HOSPITALS}, **data},
        "training": {"rounds": 4, "batch_size": 16},
        "evaluation": {"validation_share": 0.2, "seeds": {"first": 3, "count": 2}},
        "arms": ARMS,
        **more,
    }


TOGETHER = {"outcomes": ["stay", "died", "visits"], "task": TASKS}


@pytest.fixture(scope="module")
def together(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> StudyRun:
    return run_study(study(folder, TOGETHER), tmp_path_factory.mktemp("together"))


def predictions(run: StudyRun) -> pd.DataFrame:
    return pd.read_parquet(run.folder / "predictions.parquet")


def test_each_outcome_has_the_figures_of_its_own_task(together: StudyRun) -> None:
    content = together.results
    assert content["outcome"] == "stay"
    assert {name: part["primary_metric"] for name, part in content["outcomes"].items()} == {
        "stay": "mae",
        "died": "auc",
        "visits": "deviance",
    }
    table = predictions(together)
    assert list(table.columns) == [
        "arm", "seed", "site", "row",
        "label_stay", "label_died", "label_visits", "score_stay", "score_died", "score_visits",
    ]  # fmt: skip
    fedavg = table[table["arm"] == "fedavg"]
    errors = (fedavg["score_stay"] - fedavg["label_stay"]).abs().groupby(fedavg["seed"]).mean()
    mae = content["outcomes"]["stay"]["arms"]["fedavg"]["metrics"]["mae"]["mean"]
    assert mae == pytest.approx(errors.mean(), rel=1e-12)
    assert content["arms"]["fedavg"]["metrics"]["mae"]["mean"] == mae
    assert content["outcomes"]["died"]["classes"] == ["no", "yes"]
    assert sum(content_of(content, "died")["sites"][0]["sites"]["north"]["classes"].values()) == HOSPITALS["north"]
    assert json.loads((together.folder / "results.json").read_text())["task"]["kind"] == "outcomes"


def test_linear_heads_learn_what_they_would_learn_alone(together: StudyRun, folder: Path, tmp_path: Path) -> None:
    """Without a shared layer the outcomes share nothing but the rows of a batch. The split is that of the first."""
    ignored = {"types": {"died": "ignore", "visits": "ignore", "months": "ignore"}}
    alone = run_study(study(folder, {"target": "stay", "task": "regression", **ignored}), tmp_path)
    ours, theirs = predictions(together), predictions(alone)
    np.testing.assert_array_equal(ours["row"], theirs["row"])
    np.testing.assert_allclose(ours["score_stay"], theirs["score"], rtol=1e-6)


def test_a_weight_changes_what_a_shared_layer_learns(folder: Path, tmp_path: Path) -> None:
    small = {"model": {"kind": "mlp", "hidden": [4]}, "arms": ARMS[1:]}
    scores = [
        predictions(run_study(study(folder, {**TOGETHER, "outcome_weights": {"stay": weight}}, **small), tmp_path))
        for weight in (1.0, 20.0)
    ]
    assert not np.allclose(scores[0]["score_died"], scores[1]["score_died"], atol=1e-4)


def test_both_engines_give_the_same(together: StudyRun, folder: Path, tmp_path: Path) -> None:
    serial = run_study(study(folder, TOGETHER), tmp_path, engine="serial")
    ours, theirs = predictions(together), predictions(serial)
    for column in ("score_stay", "score_died", "score_visits"):
        np.testing.assert_allclose(ours[column], theirs[column], rtol=1e-5, atol=1e-6)


def test_rows_without_one_of_the_outcomes_are_left_out_and_counted(folder: Path, tmp_path: Path) -> None:
    for site in HOSPITALS:
        table = pd.read_csv(folder / f"{site}.csv")
        if site == "north":
            table.loc[:4, "stay"] = np.nan
            table.loc[3:9, "died"] = None
        table.to_csv(tmp_path / f"{site}.csv", index=False)
    run = run_study(study(tmp_path, {**TOGETHER}, arms=ARMS[1:]), tmp_path / "runs")
    assert run.results["sites"][0]["sites"]["north"]["train"] < 0.65 * (HOSPITALS["north"] - 9)
    left_out = [n["counts"]["rows"] for n in run.results["notices"] if n["code"] == "rows-without-target"]
    assert left_out == [5, 5]  # of stay; then of died, among those that are left


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "one": ({"outcomes": ["stay"]}, "data: outcomes"),
    "twice": ({"outcomes": ["stay", "stay"]}, "data: outcomes"),
    "target too": ({**TOGETHER, "target": "stay"}, "data: target"),
    "neither": ({"task": "regression"}, "data: target"),
    "positive": ({**TOGETHER, "positive": "yes"}, "data: positive"),
    "one word": ({"outcomes": ["stay", "died"], "task": "regression"}, "data: task"),
    "task of a stranger": ({"outcomes": ["stay", "died"], "task": {"dead": "binary"}}, "data: task"),
    "no such task": ({"outcomes": ["stay", "died"], "task": {"stay": "regresion"}}, "data: task"),
    "no table": ({"outcomes": ["stay", "died"], "task": {"stay": 3}}, "data: task: stay"),
    "weight of a stranger": ({**TOGETHER, "outcome_weights": {"dead": 1.0}}, "data: outcome_weights"),
    "no weight": ({**TOGETHER, "outcome_weights": {"stay": 0.0}}, "data: outcome_weights: stay"),
    "weights of one": ({"target": "died", "outcome_weights": {"died": 2.0}}, "data: outcome_weights"),
    "exposure": (
        {"outcomes": ["visits", "months"], "task": {"visits": TASKS["visits"], "months": "regression"}},
        "data: task",
    ),
    "no column": ({"outcomes": ["stay", "dies"], "task": {"stay": "regression"}}, "north.csv"),
    "a number as classes": ({"outcomes": ["died", "stay"]}, "target 'stay'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_predicted_together_is_one_clear_error(name: str, folder: Path, tmp_path: Path) -> None:
    data, where = WRONG[name]
    with pytest.raises(WardroundError) as error:
        run_study(study(folder, data), tmp_path)
    assert where in error.value.where, str(error.value)
    assert error.value.remedy


def test_uncertainty_and_class_weights_are_refused(folder: Path, tmp_path: Path) -> None:
    for more in ({"uncertainty": {"method": "none"}}, {"training": {"rounds": 1, "class_weights": "balanced"}}):
        with pytest.raises(WardroundError, match="several"):
            run_study(study(folder, TOGETHER, **more), tmp_path)


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_a_bundle_of_one_outcome_predicts_as_the_run_did(model: str, folder: Path, tmp_path: Path) -> None:
    """It is given out only if it does; here its answers for raw rows are compared once more."""
    options = {"kind": "mlp", "hidden": [4]} if model == "mlp" else {"kind": "linear"}
    run = run_study(study(folder, TOGETHER, model=options, arms=ARMS[1:]), tmp_path / "runs")
    table, raw = predictions(run), pd.read_csv(folder / "north.csv")
    tested = table[(table["seed"] == 3) & (table["site"] == "north")]
    for outcome, column in (("stay", "predicted"), ("died", "score"), ("visits", "predicted")):
        path = make_bundle(run.folder, arm="fedavg", site="north", outcome=outcome, out=tmp_path / outcome)
        answers = predict_table(load_bundle(path), raw.iloc[tested["row"]])
        np.testing.assert_allclose(answers[column], tested[f"score_{outcome}"], rtol=1e-5)


def test_a_bundle_names_its_outcome(together: StudyRun, tmp_path: Path) -> None:
    for outcome, problem in ((None, "several outcomes"), ("dies", "no outcome")):
        with pytest.raises(StudyError, match=problem):
            make_bundle(together.folder, arm="fedavg", site="north", outcome=outcome, out=tmp_path / "bundle")
    every = make_bundles(together.folder, sites=["south"], out=tmp_path)
    assert sorted(key for key, _ in every.folders) == sorted(
        f"{arm}: {name}" for arm in ("local", "fedavg") for name in TOGETHER["outcomes"]
    )


PUBLIC: dict[str, Any] = {
    **TOGETHER,
    "ranges": {"age": [18, 110], "pressure": [60, 260], "stay": [0, 40], "visits": [0, 20]},
    "scale": "ranges",
    "missing": "range",
    "public": True,
}
REGIONS = {"kind": "hierarchical", "regions": {"all": ["north", "south"]}}
CIRCUMSTANCES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "example": (PUBLIC, {"privacy": {"example": {"epsilon": 8.0, "delta": 1e-4, "clip": 1.0}}}),
    "site": (TOGETHER, {"privacy": {"site": {"epsilon": 8.0, "delta": 1e-2, "clip": 1.0}}}),
    "regions": (TOGETHER, {"topology": REGIONS}),
}


@pytest.mark.parametrize("name", CIRCUMSTANCES)
def test_outcomes_are_trained_with_privacy_and_in_regions(name: str, folder: Path, tmp_path: Path) -> None:
    data, more = CIRCUMSTANCES[name]
    run = run_study(study(folder, data, arms=ARMS[1:], **more), tmp_path)
    scores = predictions(run)[["score_stay", "score_died", "score_visits"]]
    assert np.isfinite(scores.to_numpy()).all()
    assert scores["score_died"].between(0, 1).all()
    assert (scores["score_visits"] > 0).all()


def test_without_a_range_of_every_number_patients_are_not_promised_privacy(folder: Path, tmp_path: Path) -> None:
    ranges = {name: limits for name, limits in PUBLIC["ranges"].items() if name != "visits"}
    more = CIRCUMSTANCES["example"][1]
    with pytest.raises(StudyError, match="visits"):
        run_study(study(folder, {**PUBLIC, "ranges": ranges}, arms=ARMS[1:], **more), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "split"])
def test_outcomes_are_trained_by_every_algorithm_in_both_engines(name: str, folder: Path, tmp_path: Path) -> None:
    arms = [{"name": name, "algorithm": name}]
    runs = [run_study(study(folder, TOGETHER, arms=arms), tmp_path / engine, engine=engine) for engine in ENGINES]
    ours, theirs = (predictions(run) for run in runs)
    for column in ("score_stay", "score_died", "score_visits"):
        np.testing.assert_allclose(ours[column], theirs[column], rtol=1e-4, atol=1e-5)


def test_runs_with_different_outcomes_are_not_compared(together: StudyRun, folder: Path, tmp_path: Path) -> None:
    ignored = {"died": "ignore", "stay": "ignore"}
    count = {"target": "visits", "task": TASKS["visits"], "types": ignored}
    other = run_study(study(folder, count, arms=ARMS[1:]), tmp_path)
    with pytest.raises(RunError, match="no metric in common"):
        compare_runs([together.folder, other.folder])


def test_the_terminal_and_the_report_tell_of_every_outcome(
    together: StudyRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = tmp_path / "run"
    shutil.copytree(together.folder, whole)
    build_report(whole)
    assert {path.name for path in whole.glob("report*.html")} == {
        "report.html", "report-died.html", "report-visits.html",
    }  # fmt: skip
    page = (whole / "report-died.html").read_text(encoding="utf-8")
    assert "AUC" in page
    assert 'href="report.html"' in page
    show_run(StudyRun(whole, together.results, fresh=True), str(whole / "report.html"))
    shown = capsys.readouterr().out
    for name in ("died", "visits"):
        assert together.results["outcomes"][name]["answer"][0]["text"][:40] in " ".join(shown.split())
        assert f"report-{name}.html" in "".join(shown.split())
