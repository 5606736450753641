"""Bundles that predict a number or a count: units, intervals, exposure, card, ONNX, and what is refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.bundles.number_runs import ADMISSIONS, STAY, number_run, number_study, patients
from wardround.bundles import (
    Bundle,
    FinishedRun,
    PredictOptions,
    bundle_from,
    load_bundle,
    predict_file,
    predict_rows,
    predict_table,
)
from wardround.bundles.build import assemble
from wardround.bundles.registry.bundle_differences import differences, headline
from wardround.bundles.sealed_files import ABOUT, UNCERTAINTY, as_text, seal
from wardround.core.errors import BundleError, DataError, StudyError
from wardround.tasks import Count, Regression
from wardround.uncertainty.decision import UNEXPOSED

COLUMNS = ["row", "predicted", "low", "high", "out_of_distribution", "refer", "why"]


@pytest.fixture(scope="module")
def stays(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return number_run(tmp_path_factory.mktemp("stays"), STAY)


@pytest.fixture(scope="module")
def admissions(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return number_run(tmp_path_factory.mktemp("admissions"), ADMISSIONS)


@pytest.fixture(scope="module")
def stay(stays: FinishedRun, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return load_bundle(bundle_from(stays, arm="fedavg", site="north", out=tmp_path_factory.mktemp("b") / "stay"))


@pytest.fixture(scope="module")
def admitted(admissions: FinishedRun, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return load_bundle(bundle_from(admissions, arm="fedavg", site="north", out=tmp_path_factory.mktemp("b") / "adm"))


def saved(run: FinishedRun, arm: str = "fedavg", site: str = "north", seed: int = 1) -> pd.DataFrame:
    table = run.folder.predictions()
    return table[(table["arm"] == arm) & (table["seed"] == seed) & (table["site"] == site)]


def test_predictions_are_the_runs_own_in_units(
    stays: FinishedRun, admissions: FinishedRun, stay: Bundle, admitted: Bundle
) -> None:
    table = patients(150, 0)
    for run, bundle, target in ((stays, stay, "stay"), (admissions, admitted, "admissions")):
        expected = saved(run)
        rows = table.iloc[expected["row"].to_numpy()].reset_index(drop=True)
        predictions = predict_table(bundle, rows)
        assert list(predictions) == COLUMNS
        np.testing.assert_allclose(predictions["predicted"], expected["score"], rtol=1e-6)
        assert (expected["label"].to_numpy() == rows[target].to_numpy()).all()
        assert (predictions["low"] <= predictions["high"]).all()
        assert predictions["predicted"].between(table[target].min() - 5, 2 * table[target].max()).all()


@pytest.mark.parametrize("arm", ["fedavg", "local"])
def test_a_bundle_of_every_arm_and_site(admissions: FinishedRun, tmp_path: Path, arm: str) -> None:
    for site in ("north", "south"):
        bundle = load_bundle(bundle_from(admissions, arm=arm, site=site, out=tmp_path / site))
        assert bundle.task == Count(("admissions",), exposure="months")
        assert bundle.about["target_scale"] == list(bundle.scale)
        assert (bundle.events, bundle.classes, bundle.about["threshold"], bundle.about["classes"]) == ((), (), None, [])


def test_intervals_hold_as_often_as_they_say(stays: FinishedRun, stay: Bundle, admitted: Bundle) -> None:
    fresh = patients(2000, 99)
    for bundle, target in ((stay, "stay"), (admitted, "admissions")):
        uncertainty = bundle.uncertainty
        assert uncertainty is not None
        assert uncertainty.method == "residuals"
        assert uncertainty.residuals is not None
        assert uncertainty.residuals.alpha == 0.1
        predictions = predict_table(bundle, fresh)
        inside = (fresh[target] >= predictions["low"]) & (fresh[target] <= predictions["high"])
        # one cut from 37 rows: its own coverage varies by some points
        assert 0.8 < inside.mean() <= 1
    trial = stays.plan.trial(stays.plan.study.arms[0], 1)
    site = next(site for site in trial.scored if site.name == "north")
    score = stay.scores(site.validation.x.numpy(), site.validation.labels.numpy())
    residuals = np.sort(np.abs(score - site.validation.labels.numpy()[:, 0]))
    place = int(np.ceil(0.9 * (len(residuals) + 1)))
    assert stay.uncertainty is not None
    assert stay.uncertainty.residuals is not None
    assert stay.uncertainty.residuals.value == pytest.approx(residuals[place - 1])


def test_counts_have_whole_ends_from_0_on_and_scale_with_the_exposure(admitted: Bundle) -> None:
    row = {"age": 70, "crp": 30.0, "ward": "surgery"}
    short, long = predict_rows(admitted, [{**row, "months": 2}, {**row, "months": 20}])
    assert long["predicted"] == pytest.approx(10 * short["predicted"], rel=1e-6)
    for answer in (short, long):
        assert answer["low"] >= 0
        assert answer["low"] == round(answer["low"])
        assert answer["high"] == round(answer["high"])
    assert long["high"] - long["low"] > short["high"] - short["low"]


def test_a_row_without_exposure_has_no_prediction_and_says_why(admitted: Bundle, tmp_path: Path) -> None:
    rows = pd.DataFrame({"age": [70.0] * 4, "crp": 30.0, "ward": "surgery", "months": [12.0, None, 0.0, -3.0]})
    predictions = predict_table(admitted, rows)
    assert predictions["predicted"].isna().tolist() == [False, True, True, True]
    assert predictions["low"].isna().tolist() == predictions["predicted"].isna().tolist()
    assert predictions["refer"].tolist() == [False, True, True, True]
    assert predictions["why"].tolist()[1:] == [f"{UNEXPOSED.text}: months"] * 3
    rows.to_csv(tmp_path / "rows.csv", index=False)
    summary = predict_file(admitted, tmp_path / "rows.csv", tmp_path / "out.parquet")
    assert (summary.unscored, summary.reasons, summary.predicted) == (3, {UNEXPOSED.code: 3}, {})
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "out.parquet"), predictions)


def test_a_file_without_the_column_of_the_exposure_is_refused(admitted: Bundle, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no column 'months'") as caught:
        predict_table(admitted, pd.DataFrame({"age": [70], "crp": [1.0], "ward": ["surgery"]}))
    assert "Needed: age, crp, ward, months" in caught.value.remedy
    with pytest.raises(DataError, match="there is no 'months'"):
        predict_rows(admitted, [{"age": 70, "crp": 1.0, "ward": "surgery"}])
    (tmp_path / "rows.csv").write_text("age,crp,ward,months\n70,1,surgery,12\n71,2,surgery,a secret year\n")
    with pytest.raises(DataError, match="line 3: column 'months': this is no number") as caught:
        predict_file(admitted, tmp_path / "rows.csv", tmp_path / "out.csv")
    assert "secret" not in str(caught.value)
    assert not (tmp_path / "out.csv").exists()


def test_without_an_exposure_column_every_row_has_an_exposure_of_1(tmp_path: Path) -> None:
    run = number_run(tmp_path, {"kind": "count"})
    bundle = load_bundle(bundle_from(run, arm="fedavg", site="south", out=tmp_path / "b"))
    assert "months" in [column.name for column in bundle.recipe.columns]
    expected = saved(run, site="south")
    rows = patients(130, 1).iloc[expected["row"].to_numpy() - 150]
    np.testing.assert_allclose(predict_table(bundle, rows)["predicted"], expected["score"], rtol=1e-6)


def test_too_few_validation_rows_give_no_interval_and_say_so(tmp_path: Path) -> None:
    evaluation = {"seeds": {"first": 1, "count": 1}, "validation_share": 0.03, "every": 0}
    run = number_run(tmp_path, STAY, evaluation=evaluation)
    bundle = load_bundle(bundle_from(run, arm="fedavg", site="south", out=tmp_path / "b"))
    assert bundle.uncertainty is not None
    assert bundle.uncertainty.method == "none"
    assert "validation rows are too few" in bundle.uncertainty.why
    assert "low" not in predict_table(bundle, patients(5, 3))
    assert "There is no interval: " in (bundle.path / "card.md").read_text()


def test_huge_numbers_are_marked_and_have_no_prediction(stay: Bundle) -> None:
    rows = pd.DataFrame({"age": [70.0, 1e300], "crp": [30.0, 1e300], "ward": ["surgery", "attic"]})
    predictions = predict_table(stay, rows)
    assert predictions["predicted"].isna().tolist() == [False, True]
    assert predictions["out_of_distribution"].tolist() == [False, True]
    assert "too large to compute with" in predictions["why"][1]
    assert "unseen level: ward" in predictions["why"][1]


def test_a_share_to_refer_needs_a_doubt_which_numbers_do_not_have(stay: Bundle) -> None:
    with pytest.raises(StudyError, match="the bundle knows no cut for it: of a number no doubt is computed"):
        predict_table(stay, patients(3, 1), options=PredictOptions(refer_share=0.1))
    plain = predict_table(stay, patients(3, 1), options=PredictOptions(uncertainty=False))
    assert list(plain) == ["row", "predicted", "out_of_distribution", "why"]


def test_the_card_speaks_of_units_error_calibration_and_coverage(
    stays: FinishedRun, stay: Bundle, admitted: Bundle
) -> None:
    text, card = (stay.path / "card.md").read_text(), stay.about["card"]
    at_site = stays.results["arms"]["fedavg"]["sites"]["north"]
    for name in ("mae", "rmse", "r2", "calibration_slope", "calibration_intercept"):
        assert card["figures"]["this_site"][name] == at_site[name]
    assert "A number: **stay** in days." in text
    for words in (
        "mean absolute error, in days (lower is better)",
        "R²",
        "calibration slope (1 is right)",
        "calibration intercept, in days (0 is right)",
        "All intervals are equally wide",
        "intervals that hold the outcome (target: 0.90)",
        "preparation and intervals are those of north",
    ):
        assert words in text
    for words in ("threshold", "Brier", "AUC", "class", "Predicted at", "sensitivity", "prediction set"):
        assert words not in text
    expected = saved(stays)
    figures = stay.task.figures(expected["label"].to_numpy(), expected["score"].to_numpy())
    assert card["calibration"]["before"]["calibration_slope"]["mean"] == pytest.approx(figures["calibration_slope"])
    covered = card["uncertainty"]["evaluation"]["interval"]["coverage"]
    predictions = predict_table(stay, patients(150, 0).iloc[expected["row"].to_numpy()])
    label = expected["label"].to_numpy()
    assert covered == pytest.approx(((label >= predictions["low"]) & (label <= predictions["high"])).mean())
    of_count = (admitted.path / "card.md").read_text()
    assert "how many **admissions** are expected of a row, for the exposure in its column months" in of_count
    assert "observed / expected (1 is right)" in of_count
    assert "deviance (lower is better)" in of_count
    assert "Intervals are wider where more events are expected." in of_count


def test_a_private_arm_reads_nothing_off_validation_rows(tmp_path: Path) -> None:
    limits = {"age": [0, 120], "crp": [0, 500], "stay": [0, 60]}
    data = {
        "ranges": limits,
        "levels": {"ward": ["medicine", "surgery"]},
        "missing": "range",
        "scale": "ranges",
        "public": True,
    }
    privacy = {"example": {"epsilon": 8.0, "delta": 1e-5, "clip": 1.0}}
    study_data = {**number_study(tmp_path, STAY)["data"], **data}
    arms = [{"name": "private", "algorithm": "fedavg"}]
    run = number_run(tmp_path, STAY, data=study_data, privacy=privacy, arms=arms)
    bundle = load_bundle(bundle_from(run, arm="private", site="north", out=tmp_path / "b"))
    assert bundle.scale == (30.0, 15.0)  # of the declared range
    assert bundle.uncertainty is not None
    assert (bundle.uncertainty.method, bundle.uncertainty.residuals) == ("none", None)
    assert bundle.about["card"]["calibration"]["before"] is None
    assert list(predict_table(bundle, patients(4, 5))) == ["row", "predicted", "out_of_distribution", "refer", "why"]


def test_scores_are_compared_in_the_spread_of_the_target(
    stays: FinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shifted(origin: Any, bundle: Bundle) -> None:
        return original(origin, replace(bundle, scale=(bundle.scale[0] + 1e-4, bundle.scale[1])))

    original = assemble.refuse_unequal
    monkeypatch.setattr(assemble, "refuse_unequal", shifted)
    with pytest.raises(BundleError, match="its scores differ from those in the run"):
        bundle_from(stays, arm="fedavg", site="north", out=tmp_path / "b")
    assert not (tmp_path / "b").exists()


def sealed_anew(folder: Path, change: Callable[[dict[str, Any], dict[str, Any]], Any]) -> None:
    about = json.loads((folder / ABOUT).read_bytes())
    uncertainty = json.loads((folder / UNCERTAINTY).read_bytes())
    change(about, uncertainty)
    (folder / UNCERTAINTY).write_bytes(as_text(uncertainty))
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ABOUT}
    (folder / ABOUT).write_bytes(seal(about, files))


@pytest.mark.parametrize(
    "change",
    [
        lambda about, uncertainty: about.pop("target_scale"),
        lambda about, uncertainty: about.update(target_scale=[1.0]),
        lambda about, uncertainty: about.update(target_scale=[1.0, 0.0]),
        lambda about, uncertainty: about.update(target_scale=["1", 2.0]),
        lambda about, uncertainty: about.update(task={"kind": "binary", "names": ["stay"]}),
        lambda about, uncertainty: about.update(task={"kind": "regression", "names": []}),
        lambda about, uncertainty: about.update(classes=["stay"]),
        lambda about, uncertainty: about.update(threshold={"value": 0.5}),
        lambda about, uncertainty: uncertainty.update(method="laplace"),
        lambda about, uncertainty: uncertainty["residuals"].update(value=-1.0),
        lambda about, uncertainty: uncertainty["residuals"].update(value=None),
        lambda about, uncertainty: uncertainty["residuals"].update(alpha=1.0),
        lambda about, uncertainty: uncertainty.pop("residuals"),
    ],
)
def test_a_sealed_bundle_of_a_number_that_does_not_fit_is_refused(
    stay: Bundle, tmp_path: Path, change: Callable[[dict[str, Any], dict[str, Any]], Any]
) -> None:
    copytree(stay.path, tmp_path / "copy")
    sealed_anew(tmp_path / "copy", lambda about, uncertainty: None)
    assert load_bundle(tmp_path / "copy").scale == stay.scale
    sealed_anew(tmp_path / "copy", change)
    with pytest.raises(BundleError, match="does not hold what a bundle of format 3 holds"):
        load_bundle(tmp_path / "copy")


def test_two_bundles_of_a_number_are_told_apart(stays: FinishedRun, stay: Bundle, tmp_path: Path) -> None:
    other = load_bundle(bundle_from(stays, arm="local", site="north", out=tmp_path / "b"))
    found = {(difference.topic, difference.what) for difference in differences(stay, other)}
    assert {("origin", "arm"), ("decision", "interval within"), ("weights", "length of the difference")} <= found
    name, value, _ = headline(stay.about) or ("", 0.0, None)
    assert (name, value) == ("mae", stay.about["card"]["figures"]["this_site"]["mae"]["mean"])


@pytest.mark.slow
def test_onnx_gives_numbers_in_units(stay: Bundle, admitted: Bundle, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    from wardround.bundles.build.onnx import TOLERANCE, export_onnx

    for bundle in (stay, admitted):
        path = tmp_path / f"{bundle.task.kind}.onnx"
        assert export_onnx(bundle, path) <= TOLERANCE
        x = np.random.default_rng(0).normal(size=(50, len(bundle.recipe.names))).astype(np.float32)
        session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        [scores] = session.run(["scores"], {"features": x})
        np.testing.assert_allclose(scores, bundle.scores(x), rtol=1e-5)
        metadata = {pair.key: pair.value for pair in onnx.load(str(path)).metadata_props}
        task = json.loads(metadata["wardround.task"])
        assert (task["kind"], json.loads(metadata["wardround.classes"])) == (bundle.task.kind, [])
        assert json.loads(metadata["wardround.threshold"]) is None
    months = np.full((50, 1), 12.0)
    np.testing.assert_allclose(12 * scores, admitted.scores(x, admitted.beside(months)), rtol=1e-5)


def test_tasks_say_what_a_row_without_outcome_needs() -> None:
    stay, count = Regression(("stay",)), Count(("admissions",), exposure="months")
    assert stay.unknown_target(np.zeros((2, 0)), (5.0, 2.0)).tolist() == [[0, 5, 2], [0, 5, 2]]
    y = count.unknown_target(np.array([[12.0], [1.0]]), (-2.0, 3.0))
    assert y.tolist() == [[0, 12, -2, 3], [0, 1, -2, 3]]
    assert count.scale_in(y) == (-2.0, 3.0)
    assert count.unusable(np.array([[12.0], [0.0], [np.nan], [-1.0]])).tolist() == [False, True, True, True]
    assert stay.unusable(np.zeros((3, 0))).tolist() == [False] * 3
