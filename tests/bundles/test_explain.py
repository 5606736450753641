"""Explanations of a bundle's predictions: true to its scores, the same however rows come, and in files."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.special import logit

from tests.bundles.number_runs import ADMISSIONS, STAY, number_run
from tests.bundles.untrained_bundles import write_bundle
from tests.cli.test_commands import wardround
from wardround.bundles import (
    EXPLAIN,
    STEPS,
    Bundle,
    FinishedRun,
    as_estimator,
    bundle_from,
    explain_bundle,
    explain_run,
    explain_table,
    load_bundle,
    predict_file,
    predict_rows,
    predict_table,
)
from wardround.bundles.explain.explained_rows import FILLED, background_of
from wardround.bundles.out_of_distribution import by_ranges
from wardround.core.errors import BundleError, DataError, StudyError

EXPLAINED = (*STEPS, EXPLAIN)


@pytest.fixture(scope="module")
def table(finished: FinishedRun) -> pd.DataFrame:
    """Rows with gaps, one of which has a category that no hospital has."""
    features = finished.plan.cohort_of(finished.plan.study.arms[0]).records.features
    assert isinstance(features, pd.DataFrame)
    rows = features.iloc[200:320].reset_index(drop=True).astype(object)
    rows.loc[3, "cp"] = 9.0
    return rows


@pytest.fixture(scope="module")
def network(finished: FinishedRun, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return load_bundle(bundle_from(finished, arm="network", site="va", out=tmp_path_factory.mktemp("n") / "b"))


def test_contributions_of_a_linear_bundle_are_its_weights_times_the_distance_from_the_average(
    bundle: Bundle, table: pd.DataFrame
) -> None:
    explained = explain_table(bundle, table)
    explanation = explained.explanation
    weights = bundle.params["weight"].double().numpy()[0]
    by_number = (explained.prepared - bundle.out_of_distribution.mean) * weights
    names = [column.own_name for column in bundle.recipe.columns]
    behind = np.array([names[[c.name for c in bundle.recipe.columns].index(n)] for n in bundle.recipe.layout.columns])
    for place, name in enumerate(explanation.columns):
        expected = by_number[:, behind == name].sum(axis=1)
        np.testing.assert_allclose(explanation.values[:, 0, place], expected, atol=1e-5)
    assert explanation.method == "linear-shapley"
    assert explained.unscored == 0


def test_base_and_contributions_add_up_to_the_score_that_is_predicted(
    bundle: Bundle, network: Bundle, table: pd.DataFrame
) -> None:
    for own in (bundle, network):
        explanation = explain_table(own, table).explanation
        score = predict_table(own, table)["score"].to_numpy()
        total = explanation.base + explanation.values.sum(axis=2)
        np.testing.assert_allclose(total[:, 0], logit(score), atol=1e-4)
    assert explain_table(network, table).explanation.method == "sampled-shapley"  # of 13 columns


def test_numbers_and_counts_are_explained_in_units_and_log_rates(tmp_path: Path) -> None:
    for task, turned_back in ((STAY, lambda total: total), (ADMISSIONS, np.exp)):
        run = number_run(tmp_path / task["kind"], task)
        own = load_bundle(bundle_from(run, arm="fedavg", site="north", out=tmp_path / f"{task['kind']}-b"))
        rows = pd.read_csv(tmp_path / task["kind"] / "files" / "north.csv").assign(months=1)
        explanation = explain_table(own, rows).explanation
        total = (explanation.base + explanation.values.sum(axis=2))[:, 0]
        np.testing.assert_allclose(turned_back(total), predict_table(own, rows)["predicted"], rtol=1e-4)


def test_reasons_are_the_largest_contributions_and_the_same_however_a_row_comes(
    network: Bundle, table: pd.DataFrame, tmp_path: Path
) -> None:
    answer = predict_table(network, table, steps=EXPLAINED)
    explanation = explain_table(network, table).explanation
    for row in (0, 3, 77):
        own = explanation.values[row, 0]
        order = np.argsort(-np.abs(own), kind="stable")[:3]
        reasons = [answer[f"reason_{place}"].tolist()[row] for place in (1, 2, 3)]
        assert reasons == [explanation.columns[place] for place in order]
        np.testing.assert_allclose(answer["contribution_1"].to_numpy()[row], own[order[0]], atol=1e-5)
    table.to_csv(tmp_path / "rows.csv", index=False)
    predict_file(network, tmp_path / "rows.csv", tmp_path / "out.parquet", steps=EXPLAINED)
    read = pd.read_parquet(tmp_path / "out.parquet")
    pd.testing.assert_series_equal(read["reason_1"], answer["reason_1"])
    request = {str(name): None if value != value else value for name, value in table.iloc[7].to_dict().items()}
    [one] = predict_rows(network, [request], None, EXPLAINED)
    assert one["reason_2"] == answer["reason_2"].tolist()[7]
    assert one["contribution_2"] == pytest.approx(answer["contribution_2"].tolist()[7], abs=1e-5)


def test_of_several_classes_the_predicted_one_has_reasons(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(rng.normal(size=(40, 3)), columns=["age", "crp", "sodium"])
    own = load_bundle(write_bundle(tmp_path / "classes", kind="mlp", classes=("a", "b", "c"), threshold=None))
    answer, explanation = predict_table(own, rows, steps=EXPLAINED), explain_table(own, rows).explanation
    assert explanation.outputs == ("a", "b", "c")
    softmax = np.exp(explanation.scores) / np.exp(explanation.scores).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(softmax, answer[["score_a", "score_b", "score_c"]], atol=1e-5)
    predicted = [explanation.outputs.index(name) for name in answer["predicted"]]
    of_predicted = explanation.values[np.arange(40), predicted]
    largest = np.abs(of_predicted).argmax(axis=1)
    assert answer["reason_1"].tolist() == [explanation.columns[place] for place in largest]
    np.testing.assert_allclose(answer["contribution_1"], of_predicted[np.arange(40), largest], atol=1e-5)
    by_class = explanation.by_column()
    assert by_class.index.names == ["row", "output"]
    assert len(by_class) == 120


def test_an_estimator_explains_and_may_compare_with_given_rows(network: Bundle, table: pd.DataFrame) -> None:
    model = as_estimator(network)
    alike = model.explain(table.iloc[:1], background=table.iloc[:1])
    assert np.abs(alike.to_numpy()).max() < 1e-6  # nothing differs from itself
    assert alike.attrs["scale"] == "log odds"
    assert model.explain(table.iloc[:4]).shape == (4, 13)
    with pytest.raises(StudyError, match="no method 'shap'"):
        model.explain(table, method="shap")
    with pytest.raises(StudyError, match="explains linear models"):
        model.explain(table, method="linear-shapley")


def test_a_bundle_of_protected_patients_is_explained_without_anything_of_them(
    finished: FinishedRun, table: pd.DataFrame, bundle: Bundle
) -> None:
    protected = replace(bundle, out_of_distribution=by_ranges())
    background = background_of(protected)
    assert background.words == FILLED
    gaps = {column.own_name: [None] for column in bundle.recipe.columns}
    prepared = explain_table(bundle, pd.DataFrame(gaps)).prepared
    indicators = len(bundle.recipe.layout.indicators)
    np.testing.assert_allclose(background.rows.numpy()[:, :-indicators], prepared[:, :-indicators], atol=1e-6)
    assert not background.rows[:, -indicators:].any()


def test_the_card_names_what_contributes_most(bundle: Bundle, finished: FinishedRun) -> None:
    card = bundle.about["card"]["explanation"]
    trial = finished.plan.trial(finished.plan.study.arm("fedavg"), 1)
    x = next(site for site in trial.scored if site.name == "cleveland").test.x.double().numpy()
    by_number = np.abs((x - bundle.out_of_distribution.mean) * bundle.params["weight"].double().numpy()[0])
    oldpeak = by_number[:, bundle.recipe.names.index("oldpeak")].mean()
    assert card["rows"] == len(x)
    assert card["largest"]["oldpeak"] == pytest.approx(oldpeak, rel=1e-4)
    assert sorted(card["largest"].values(), reverse=True) == list(card["largest"].values())
    assert "| oldpeak | " in (bundle.path / "card.md").read_text()


def test_the_answer_names_the_arm_and_every_site_is_explained(run: Path, tmp_path: Path) -> None:
    results = json.loads((run / "results.json").read_text())
    made = explain_run(run, tmp_path / "why", rows=40)
    assert made.about["arm"] == results["decision"]["arm"]
    assert made.about["sites"] == ["cleveland", "hungarian", "switzerland", "va"]
    names = {path.relative_to(tmp_path / "why").as_posix() for path in (tmp_path / "why").rglob("*.*")}
    assert {"rows.csv", "rows.parquet", "importance.csv", "effects.csv", "explanation.json"} <= names
    assert {"explanation.html", "figures/importance.png", "figures/effects.svg"} <= names
    read = pd.read_parquet(tmp_path / "why" / "rows.parquet")
    assert read.groupby("site")["row"].nunique().to_dict() == dict.fromkeys(made.about["sites"], 10)
    content = made.content
    assert set(content["hospitals"]) == set(made.about["sites"])
    whole = content["whole"]["importance"]["oldpeak"]["increase"] * content["whole"]["rows"]
    parts = sum(o["importance"]["oldpeak"]["increase"] * o["rows"] for o in content["hospitals"].values())
    assert whole == pytest.approx(parts)
    with pytest.raises(BundleError, match="is there already"):
        explain_run(run, tmp_path / "why")


def test_a_linear_arm_has_its_coefficients_over_seeds(run: Path, finished: FinishedRun, tmp_path: Path) -> None:
    made = explain_run(run, tmp_path / "why", arm="intercepts", rows=8)
    known = made.content["coefficients"]
    weights = [finished.folder.load_model("intercepts", seed)["server/params/weight"][0] for seed in (1, 2)]
    names = finished.plan.trial(finished.plan.study.arm("intercepts"), 1).scored[0].recipe.layout.names  # type: ignore[union-attr]
    age = next(line for line in known["whole"] if line["term"] == "age")
    place = names.index("age")
    assert age["coefficient"] == pytest.approx(float((weights[0][place] + weights[1][place]) / 2), rel=1e-5)
    assert age["ratio"] == pytest.approx(np.exp(age["coefficient"]))
    assert age["interval"][0] < age["coefficient"] < age["interval"][1]
    assert {line["term"] for own in known["hospitals"].values() for line in own} == {"intercept"}


def test_an_explanation_of_a_table_is_checked(network: Bundle, table: pd.DataFrame, tmp_path: Path) -> None:
    """What fails is in the page in words; the default method follows the model, and LIME is looked at beside it."""
    table.to_csv(tmp_path / "rows.csv", index=False)
    made = explain_bundle(network, tmp_path / "rows.csv", tmp_path / "why", rows=20)
    kinds = [check.name for check in made.checks]
    assert kinds == ["deletion", "insertion", "randomisation", "stability", "agreement"]
    by_name = {check.name: check for check in made.checks}
    assert by_name["deletion"].passed
    assert by_name["insertion"].passed
    page = (tmp_path / "why" / "explanation.html").read_text()
    assert "Is it true to the model?" in page
    assert len(pd.read_csv(tmp_path / "why" / "checks.csv")) == 5
    for sentence in made.about["failed_checks"]:
        assert sentence[:25] in page


def test_files_of_a_bundle_and_what_cannot_be_explained(bundle: Bundle, table: pd.DataFrame, tmp_path: Path) -> None:
    table.to_csv(tmp_path / "rows.csv", index=False)
    made = explain_bundle(bundle, tmp_path / "rows.csv", tmp_path / "why", rows=30)
    assert made.about["rows"] == 30
    assert made.rows["row"].nunique() == 30
    page = (tmp_path / "why" / "explanation.html").read_text()
    assert "Coefficients" in page
    assert "<script" not in page
    table.drop(columns="chol").to_csv(tmp_path / "less.csv", index=False)
    with pytest.raises(DataError, match="no column 'chol'"):
        explain_bundle(bundle, tmp_path / "less.csv", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_the_command_says_what_is_missing(run: Path, heart_bundle: Path, tmp_path: Path) -> None:
    missing = wardround("explain", heart_bundle, "--out", tmp_path / "a")
    assert missing.returncode == 3
    assert "a bundle holds no rows" in missing.stderr
    assert "is for a bundle" in wardround("explain", run, tmp_path / "rows.csv", "--out", tmp_path / "a").stderr
    assert "is for a run" in wardround("explain", heart_bundle, "--arm", "fedavg", "--out", tmp_path / "a").stderr
    assert "no site 'rome'" in wardround("explain", run, "--site", "rome", "--out", tmp_path / "a").stderr
    done = wardround("explain", run, "--arm", "local", "--site", "va", "--rows", "5", "--out", tmp_path / "a", "--json")
    assert done.returncode == 0
    told = json.loads(done.stdout)
    assert told["sites"] == ["va"]
    assert told["rows"] == 5
