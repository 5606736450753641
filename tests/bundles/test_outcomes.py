"""Bundles of studies with several outcomes: each predicts one of them, with the head of its own."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.bundles.number_runs import STAY, number_run, number_study, outcome_study, patients
from wardround.bundles import FinishedRun, bundle_from, load_bundle, make_bundles, make_shared, open_finished_run
from wardround.bundles.predict.predict import predict_table
from wardround.bundles.sealed_files import ABOUT, seal
from wardround.core.errors import BundleError, StudyError
from wardround.runs.execute import run_study


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    folder = tmp_path_factory.mktemp("together")
    return open_finished_run(run_study(outcome_study(folder), folder / "runs", workers=1).folder)


@pytest.mark.parametrize("outcome", ["stay", "long", "frail", "admissions"])
def test_a_bundle_predicts_its_outcome_as_the_run_did(run: FinishedRun, tmp_path: Path, outcome: str) -> None:
    """Two of the outcomes have the same classes: their heads must not be taken for each other."""
    bundle = load_bundle(bundle_from(run, arm="fedavg", site="north", outcome=outcome, out=tmp_path / "b"))
    table = run.folder.predictions()
    saved = table[(table["arm"] == "fedavg") & (table["seed"] == 1) & (table["site"] == "north")]
    rows = patients(150, 0).iloc[saved["row"].to_numpy()].reset_index(drop=True)
    predictions = predict_table(bundle, rows)
    column = "score" if "score" in predictions else "predicted"
    np.testing.assert_allclose(predictions[column], saved[f"score_{outcome}"], rtol=1e-6, atol=1e-6)
    assert bundle.name == f"together-fedavg-north-{outcome}"
    card = (bundle.path / "card.md").read_text()
    assert f"# together: {outcome}, fedavg at north" in card
    own = run.results["outcomes"][outcome]["arms"]["fedavg"]["sites"]["north"]
    assert all(
        bundle.about["card"]["figures"]["this_site"][name] == own[name]
        for name in bundle.about["card"]["figures"]["metrics"]
    )


def test_an_outcome_must_be_named_where_there_are_several(run: FinishedRun, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="--outcome: the model predicts several outcomes") as caught:
        bundle_from(run, arm="fedavg", site="north", out=tmp_path / "b")
    assert "stay, long, frail, admissions" in caught.value.remedy
    with pytest.raises(StudyError, match="has no outcome 'stays'") as caught:
        bundle_from(run, arm="fedavg", site="north", outcome="stays", out=tmp_path / "b")
    assert "Did you mean 'stay'?" in caught.value.remedy
    assert not (tmp_path / "b").exists()


def test_of_every_arm_there_is_one_for_each_outcome(run: FinishedRun, tmp_path: Path) -> None:
    made = make_bundles(run.folder.path, sites=["south"], out=tmp_path)
    assert made.refused == {}
    assert set(made.folders) == {
        (f"{arm}: {outcome}", "south")
        for arm in ("fedavg", "local")
        for outcome in ("stay", "long", "frail", "admissions")
    }
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in made.folders.values()}


def test_an_adapter_is_for_one_outcome(run: FinishedRun, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="predicts several outcomes together"):
        make_shared(run.folder.path, arm="fedavg", out=tmp_path / "part")


def test_a_bundle_of_another_outcome_than_its_task_is_refused(run: FinishedRun, tmp_path: Path) -> None:
    folder = bundle_from(run, arm="fedavg", site="north", outcome="stay", out=tmp_path / "b")
    about = json.loads((folder / ABOUT).read_bytes())
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ABOUT}
    for outcome in ("long", "unknown"):
        about["model"]["shape"]["outcome"] = outcome
        (folder / ABOUT).write_bytes(seal(about, files))
        with pytest.raises(BundleError, match="does not hold what a bundle of format 3 holds"):
            load_bundle(folder)


def test_training_does_not_go_on_from_one_of_several_outcomes(run: FinishedRun, tmp_path: Path) -> None:
    folder = bundle_from(run, arm="fedavg", site="north", outcome="stay", out=tmp_path / "b")
    model = {"kind": "mlp", "hidden": [8], "start_from": {"bundle": str(folder)}}
    with pytest.raises(StudyError, match="its model was trained for all of them"):
        run_study(number_study(tmp_path, STAY, model=model), tmp_path / "runs")


def test_one_outcome_needs_no_name(tmp_path: Path) -> None:
    single = number_run(tmp_path, STAY)
    with pytest.raises(StudyError, match="the study has one outcome"):
        bundle_from(single, arm="fedavg", site="north", outcome="stay", out=tmp_path / "b")
    assert isinstance(single.folder.predictions(), pd.DataFrame)
