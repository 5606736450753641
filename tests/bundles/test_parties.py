"""Bundles of a network whose features several parties hold: the same predictions as in the run, with all or without."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.runs.test_vertical_studies import PARTIES, study
from wardround.bundles import (
    EXPLAIN,
    STEPS,
    Bundle,
    FinishedRun,
    PredictOptions,
    bundle_from,
    explain_table,
    load_bundle,
    open_finished_run,
    predict_file,
    predict_rows,
    predict_table,
)
from wardround.bundles.inputs import Inputs, read_inputs, write_inputs
from wardround.bundles.predict.blocks import RequiredColumns
from wardround.bundles.predict.predict import required_columns
from wardround.core.errors import DataError, StudyError
from wardround.core.threads import torch_threads
from wardround.runs.execute import run_study

SITE = "hungarian"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """Of the heart hospitals' rows, whose laboratory knows seven patients in ten."""
    arms = [{"algorithm": "split"}, {"algorithm": "pooled", "topology.kind": "flat"}]
    document = study(topology__known={"laboratory": 0.7}, evaluation__validation_share=0.2, arms=arms)
    with torch_threads(1):
        folder = run_study(document, tmp_path_factory.mktemp("runs"), workers=1).folder
    return open_finished_run(folder)


@pytest.fixture(scope="module")
def bundle(run: FinishedRun, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return load_bundle(bundle_from(run, arm="split", site=SITE, out=tmp_path_factory.mktemp("b") / "split"))


def recorded(run: FinishedRun, arm: str, name: str = SITE) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """The site's test rows, their scores in the run, and whom the laboratory knows."""
    plan = run.plan
    trial = plan.trial(plan.study.arm(arm), 42)
    site = next(scored_site for scored_site in trial.scored if scored_site.name == name)
    saved = run.folder.predictions()
    chosen = saved[(saved["arm"] == arm) & (saved["site"] == name)].set_index("row").loc[site.test_rows]
    flag = next(part.present for part in site.blocks if part.party == "laboratory")
    table = plan.cohort_of(plan.study.arm(arm)).records.features
    assert isinstance(table, pd.DataFrame)
    assert flag is not None
    rows = table.iloc[site.test_rows].reset_index(drop=True)
    return rows, chosen["score"].to_numpy(), site.test.x[:, flag].numpy() > 0


def test_rows_are_predicted_as_in_the_run_with_what_each_party_knew(run: FinishedRun, bundle: Bundle) -> None:
    table, expected, known = recorded(run, "split")
    assert 0 < known.sum() < len(known)
    predictions = predict_table(bundle, table[known])
    assert np.abs(predictions["score"].to_numpy() - expected[known]).max() <= 1e-6
    assert (predictions["absent"] == "").all()
    unknown = predict_table(bundle, table[~known], options=PredictOptions(without=("laboratory",)))
    assert np.abs(unknown["score"].to_numpy() - expected[~known]).max() <= 1e-6
    assert (unknown["absent"] == "laboratory").all()


def test_a_party_that_has_only_gaps_is_there_as_in_the_run(run: FinishedRun, tmp_path: Path) -> None:
    """Of some veterans no value is known of anything that cardiology holds. It knows the patients all the same: their
    gaps were filled in training, and the run has scored them so."""
    bundle = load_bundle(bundle_from(run, arm="split", site="va", out=tmp_path / "b"))
    table, expected, known = recorded(run, "split", "va")
    nothing = table[PARTIES["cardiology"]].isna().all(axis=1).to_numpy() & known
    assert nothing.any()
    predictions = predict_table(bundle, table[nothing])
    assert np.abs(predictions["score"].to_numpy() - expected[nothing]).max() <= 1e-6
    assert (predictions["absent"] == "").all()
    row = {str(name): None if value != value else value for name, value in table[nothing].iloc[0].to_dict().items()}
    short = {name: value for name, value in row.items() if name not in PARTIES["cardiology"]}
    answers = predict_rows(bundle, [row, short])  # the same request may have both
    assert [answer["absent"] for answer in answers] == ["", "cardiology"]
    assert answers[0]["score"] == predictions["score"][0]
    assert answers[1]["score"] != answers[0]["score"]


def test_all_parties_at_one_place(run: FinishedRun, tmp_path: Path) -> None:
    bundle = load_bundle(bundle_from(run, arm="pooled", site=SITE, out=tmp_path / "b"))
    table, expected, known = recorded(run, "pooled")
    assert known.all()
    predictions = predict_table(bundle, table)
    assert (predictions["absent"] == "").all()
    assert np.abs(predictions["score"].to_numpy() - expected).max() <= 1e-6


def test_a_file_without_a_partys_columns_or_told_to_leave_it_out(
    run: FinishedRun, bundle: Bundle, tmp_path: Path
) -> None:
    """And the run says the same of its test rows while the laboratory is missing."""
    table, _, _ = recorded(run, "split")
    left_out = predict_table(bundle, table, options=PredictOptions(without=("laboratory",)))
    lacking = predict_table(bundle, table.drop(columns=PARTIES["laboratory"]))
    pd.testing.assert_frame_equal(left_out, lacking, check_exact=True)
    absent = run.folder.other_predictions("missing_party")
    assert absent is not None
    chosen = absent[(absent["site"] == SITE) & (absent["party"] == "laboratory")].sort_values("row")
    assert np.abs(left_out["score"].to_numpy() - chosen["score"].to_numpy()).max() <= 1e-6
    table.drop(columns=["chol"]).to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(DataError, match="there is no column 'chol'"):
        predict_file(bundle, tmp_path / "rows.csv", tmp_path / "out.csv")
    table.drop(columns=["age"]).to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(DataError, match="there is no column 'age'"):
        predict_file(bundle, tmp_path / "rows.csv", tmp_path / "out.csv")
    with pytest.raises(StudyError, match="'clinic' is always needed"):
        predict_table(bundle, table, options=PredictOptions(without=("clinic",)))
    assert not (tmp_path / "out.csv").exists()


def test_single_rows_may_leave_a_party_out(run: FinishedRun, bundle: Bundle) -> None:
    table, _, _ = recorded(run, "split")
    row = table.iloc[3].to_dict()
    plain = {str(name): None if value != value else value for name, value in row.items()}
    short = {name: value for name, value in plain.items() if name not in PARTIES["laboratory"]}
    [answer] = predict_rows(bundle, [short])
    assert answer["absent"] == "laboratory"
    with pytest.raises(DataError, match="there is no 'fbs'"):
        predict_rows(bundle, [{**short, "chol": 200.0}])


def test_what_is_asked_of_a_file(bundle: Bundle) -> None:
    asked = required_columns(bundle)
    assert set(asked.needed) == set(PARTIES["clinic"])
    assert [set(party) for party in asked.parties] == [set(PARTIES["laboratory"]), set(PARTIES["cardiology"])]
    assert list(RequiredColumns(["a"], parties=[["b", "c"]]).locate(["a", "x"], "file")) == ["a"]
    assert list(RequiredColumns(["a"], parties=[["b", "c"]]).locate(["c", "a", "b"], "file")) == ["a", "b", "c"]


def test_lines_that_do_not_make_up_a_row_are_refused(bundle: Bundle) -> None:
    content = write_inputs(bundle.inputs)
    assert read_inputs(content, bundle.recipe) == bundle.inputs
    assert (write_inputs(Inputs()), read_inputs({}, bundle.recipe)) == ({}, Inputs())
    parties = content["parties"]
    for changed in (
        {**content, "places": content["places"][1:]},
        {**content, "places": [*content["places"][1:], 10**6]},
        {**content, "parties": parties[1:]},
        {**content, "parties": [{**parties[0], "stop": parties[0]["stop"] + 1}, *parties[1:]]},
        {**content, "parties": [parties[0], {**parties[1], "present": 0}, parties[2]]},
        {**content, "parties": [parties[0], {**parties[1], "party": "clinic"}, parties[2]]},
        {**content, "parties": [{**parties[0], "shape": [1]}, *parties[1:]]},
    ):
        with pytest.raises(ValueError, match=r"party|parties"):
            read_inputs(changed, bundle.recipe)


def test_a_model_that_was_scored_through_noise_is_refused(tmp_path: Path) -> None:
    """In a bundle all parts are at one place, so that it would predict without the noise of the run."""
    document = study(topology__embeddings={"clip": 1.0, "noise": 1.0}, training__rounds=1)
    with torch_threads(1):
        finished = open_finished_run(run_study(document, tmp_path / "runs", workers=1).folder)
    with pytest.raises(StudyError, match="scored with noise between the parties") as caught:
        bundle_from(finished, arm="split", site=SITE, out=tmp_path / "b")
    assert "without [topology.embeddings]" in caught.value.remedy
    assert not (tmp_path / "b").exists()


def test_contributions_add_up_to_the_score_with_and_without_a_party(run: FinishedRun, bundle: Bundle) -> None:
    """What says whether a party knows a row is no column: its numbers are the row's own."""
    rows, _, known = recorded(run, "split")
    own = rows[known].head(20)
    explanation = explain_table(bundle, own).explanation
    total = (explanation.base + explanation.values.sum(axis=2))[:, 0]
    np.testing.assert_allclose(1 / (1 + np.exp(-total)), predict_table(bundle, own)["score"], atol=1e-5)
    assert set(explanation.columns) == {column.own_name for column in bundle.recipe.columns}
    without = PredictOptions(("laboratory",))
    assert predict_table(bundle, own, options=without, steps=(*STEPS, EXPLAIN))["reason_1"].notna().all()
