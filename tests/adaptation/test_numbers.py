"""A new hospital joins a shared part that predicts a number or a count: scales, fractions, figures, and refusals."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.bundles.number_runs import ADMISSIONS, STAY, number_study, patients
from wardround.adaptation.adapt import Adapted, adapt
from wardround.adaptation.newcomer import fraction
from wardround.bundles import load_bundle, load_shared, make_shared, predict_table
from wardround.bundles.build.shared_part import ABOUT, WEIGHTS
from wardround.bundles.sealed_files import seal
from wardround.core.errors import BundleError, DataError, RunError
from wardround.runs.execute import run_study

MODEL = {"kind": "adapter", "latent": 4, "hidden": [6]}
TASKS = {"stay": STAY, "admissions": ADMISSIONS}


def adapter_study(folder: Path, task: dict[str, Any]) -> dict[str, Any]:
    study = number_study(folder, task, model=MODEL, arms=[{"name": "fedavg", "algorithm": "fedavg"}])
    study["data"] |= {"schema": "own"}
    return study


@pytest.fixture(scope="module", params=list(TASKS))
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp(request.param)
    run = run_study(adapter_study(folder, TASKS[request.param]), folder / "runs", workers=1).folder
    return request.param, make_shared(run, arm="fedavg", out=folder / "part")


def hospital(folder: Path, target: str, task: str, table: pd.DataFrame | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (patients(160, 7) if table is None else table).to_csv(folder / "west.csv", index=False)
    ignored = (
        "types = { stay = 'ignore' }"
        if target == "admissions"
        else "types = { admissions = 'ignore', months = 'ignore' }"
    )
    data = f'source = "csv"\nfile = "west.csv"\ntarget = "{target}"\npatient = "patient"\n{task}\n{ignored}'
    (folder / "west.toml").write_text(f'name = "west"\n\n[data]\n{data}\n')
    return folder / "west.toml"


WRITTEN = {
    "stay": 'task = { kind = "regression", unit = "days" }',
    "admissions": 'task = { kind = "count", exposure = "months" }',
}


@pytest.fixture(scope="module")
def adapted(shared: tuple[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    target, part = shared
    folder = tmp_path_factory.mktemp("west")
    return adapt(part, hospital(folder, target, WRITTEN[target]), out=folder / "adapted", repeats=3, workers=1)


def test_the_part_holds_the_scale_in_which_it_was_trained(shared: tuple[str, Path]) -> None:
    target, folder = shared
    part = load_shared(folder)
    assert (part.classes, part.task.names, part.about["classes"]) == ((), (target,), [])
    assert part.task.is_scale(part.scale)
    values = pd.concat([patients(150, 0), patients(130, 1)])[target]
    assert part.scale[1] == pytest.approx(values.std() if target == "stay" else values.mean(), rel=0.2)


def test_the_bundle_predicts_in_units_with_the_parts_scale(shared: tuple[str, Path], adapted: Adapted) -> None:
    target, folder = shared
    bundle = load_bundle(adapted.bundle)
    assert bundle.scale == load_shared(folder).scale
    table = pd.read_parquet(adapted.folder / "predictions.parquet")
    saved = table[(table["way"] == "adapted") & (table["fraction"] == 1) & (table["seed"] == 1)]
    rows = patients(160, 7).iloc[saved["row"].to_numpy()].reset_index(drop=True)
    predictions = predict_table(bundle, rows)
    np.testing.assert_allclose(predictions["predicted"], saved["score"], rtol=1e-6)
    assert (saved["label"].to_numpy() == rows[target].to_numpy()).all()
    assert {"low", "high"} <= set(predictions)
    card = (adapted.bundle / "card.md").read_text()
    assert "Adapted or alone" in card
    assert "AUC" not in card


def test_figures_are_those_of_the_task(shared: tuple[str, Path], adapted: Adapted) -> None:
    target, _ = shared
    expected = ["mae", "rmse"] if target == "stay" else ["deviance", "mae"]
    content = adapted.results
    assert content["metrics"] == expected
    assert (content["classes"], content["target"]) == ({}, [])
    assert set(content["fractions"][-1]["difference"]) == set(expected)
    table = pd.read_parquet(adapted.folder / "predictions.parquet")
    whole = table[(table["way"] == "alone") & (table["fraction"] == 1)]
    errors = [(rows["score"] - rows["label"]).abs().mean() for _, rows in whole.groupby("seed")]
    assert content["fractions"][-1]["alone"]["mae"]["mean"] == pytest.approx(np.mean(errors))
    assert (adapted.folder / "curve.svg").stat().st_size > 0
    assert adapted.table().shape[0] == len(content["fractions"])


def test_fractions_have_rows_of_every_fifth() -> None:
    values = np.arange(100.0)
    strata = np.searchsorted(np.quantile(values, [0.2, 0.4, 0.6, 0.8]), values, side="right")
    rows = fraction(np.arange(100), strata, np.arange(100), 0.1, 3, "west")
    assert np.bincount(strata[rows], minlength=5).tolist() == [2, 2, 2, 2, 2]


def test_another_task_or_unit_is_refused(shared: tuple[str, Path], tmp_path: Path) -> None:
    target, part = shared
    other = "count" if target == "stay" else "regression"
    whole = patients(80, 3).assign(stay=lambda table: table["stay"].round())
    path = hospital(tmp_path / "a", target, f'task = "{other}"', whole)
    with pytest.raises(DataError, match=f"its outcome is read as {other}, and the shared part was trained for"):
        adapt(part, path, out=tmp_path / "out", repeats=1)
    wrong = {
        "stay": ('task = { kind = "regression", unit = "hours" }', "unit = 'hours'"),
        "admissions": ('task = { kind = "count", exposure = "months", dispersion = 0.5 }', "dispersion = 0.5"),
    }
    written, named = wrong[target]
    with pytest.raises(DataError, match=named):
        adapt(part, hospital(tmp_path / "b", target, written), out=tmp_path / "out", repeats=1)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("change", [{"target_scale": [1.0]}, {"target_scale": [1.0, -2.0]}, {"classes": ["stay"]}])
def test_a_sealed_part_with_a_wrong_scale_is_refused(
    shared: tuple[str, Path], tmp_path: Path, change: dict[str, Any]
) -> None:
    _, folder = shared
    (tmp_path / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes())
    about = json.loads((folder / ABOUT).read_bytes()) | change
    (tmp_path / ABOUT).write_bytes(seal(about, {WEIGHTS: (folder / WEIGHTS).read_bytes()}))
    with pytest.raises(BundleError, match="does not hold what a shared part"):
        load_shared(tmp_path)


def test_a_run_that_does_not_describe_its_models_gives_no_part(tmp_path: Path) -> None:
    run = run_study(adapter_study(tmp_path, STAY), tmp_path / "runs", workers=1).folder
    for path in (run / "models").rglob("seed-*.json"):
        path.unlink()
    with pytest.raises(RunError, match="is not there"):
        make_shared(run, arm="fedavg", out=tmp_path / "part")
