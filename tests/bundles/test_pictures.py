"""Bundles of images: what they predict from files is what their run predicted, and what cannot be read is told."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from tests.bundles.image_runs import ARMS, as_files, garments, radiographs, run_of
from wardround.bundles import (
    Bundle,
    FinishedRun,
    PredictOptions,
    bundle_from,
    load_bundle,
    predict_file,
    predict_images,
    predict_table,
)
from wardround.bundles.inputs import LOOKS, looks_of
from wardround.bundles.predict.scoring import IMAGES
from wardround.core.errors import BundleError, DataError, StudyError
from wardround.data.records import Records
from wardround.runs.folder import Predictions
from wardround.uncertainty.decision import TOO_LARGE

SITE = "hospital-1"


@pytest.fixture(scope="module")
def records() -> Records:
    return radiographs()


@pytest.fixture(scope="module")
def run(records: Records, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return run_of(records, tmp_path_factory.mktemp("runs"), arms=ARMS)


@pytest.fixture(scope="module")
def bundles(run: FinishedRun, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    folder = tmp_path_factory.mktemp("bundles")
    names = [str(arm["name"]) for arm in ARMS]
    return {name: load_bundle(bundle_from(run, arm=name, site=SITE, out=folder / name)) for name in names}


@pytest.fixture(scope="module")
def files(run: FinishedRun, records: Records, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site's test images."""
    return as_files(records, saved(run, "fedavg").index.to_numpy(), tmp_path_factory.mktemp("files") / "images")


def saved(run: FinishedRun, arm: str, kind: Predictions = "predictions") -> pd.DataFrame:
    """What the run saved of the site's test rows, in the order of the rows."""
    table = run.folder.other_predictions(kind)
    assert table is not None
    chosen = table[(table["arm"] == arm) & (table["site"] == SITE)].set_index("row").sort_index()
    return chosen[[name for name in chosen if str(name).startswith("score")]]


@pytest.mark.parametrize("arm", [str(arm["name"]) for arm in ARMS])
def test_files_are_predicted_as_the_run_predicted(
    run: FinishedRun, bundles: dict[str, Bundle], files: Path, tmp_path: Path, arm: str
) -> None:
    """From PNG files, by their table, in which words are written otherwise than the source has them."""
    expected = saved(run, arm)
    summary = predict_file(bundles[arm], files / "list.csv", tmp_path / "out.csv")
    predictions = pd.read_csv(tmp_path / "out.csv", keep_default_na=False)
    assert (summary.rows, summary.unscored) == (len(expected), 0)
    assert predictions["image"].tolist() == [f"{row:04}.png" for row in expected.index]
    assert np.abs(predictions[expected.columns].to_numpy() - expected.to_numpy()).max() <= 1e-6
    assert "patient" not in " ".join(predictions.columns).lower()


def test_without_a_party_its_stand_in_is_used(
    run: FinishedRun, bundles: dict[str, Bundle], files: Path, tmp_path: Path
) -> None:
    """The run has predicted so too. A folder of images says nothing of ages, so that it comes to the same."""
    expected, bundle = saved(run, "vertical", "missing_party"), bundles["vertical"]
    tables = []
    for source, how in ((files / "list.csv", PredictOptions(without=("records",))), (files, PredictOptions())):
        summary = predict_file(bundle, source, tmp_path / "out.csv", options=how)
        tables.append(pd.read_csv(tmp_path / "out.csv"))
        assert summary.absent == {"records": len(expected)}
        assert (tables[-1]["absent"] == "records").all()
        assert np.abs(tables[-1][expected.columns].to_numpy() - expected.to_numpy()).max() <= 1e-6
    assert np.abs(saved(run, "vertical").to_numpy() - expected.to_numpy()).max() > 1e-4
    lines = (files / "list.csv").read_text().splitlines()
    (files / "some.csv").write_text("\n".join(line.rpartition(",")[0] for line in lines))
    with pytest.raises(DataError, match="there is no column 'view'") as caught:
        predict_file(bundle, files / "some.csv", tmp_path / "out.csv")
    (files / "some.csv").unlink()
    assert "--without records" in caught.value.remedy
    with pytest.raises(StudyError, match="'radiology' is always needed"):
        predict_file(bundle, files, tmp_path / "out.csv", options=PredictOptions(without=("radiology",)))


def test_gaps_are_filled_and_a_party_is_absent_only_without_its_columns(
    bundles: dict[str, Bundle], records: Records
) -> None:
    rows = np.flatnonzero(records.groups["age"].isna())[:4]
    images, table = np.asarray(records.features)[rows], records.groups.iloc[rows]
    predictions = predict_images(bundles["vertical"], images, table)
    assert (predictions["absent"] == "").all()
    nothing = predict_images(bundles["vertical"], images, table.assign(sex=None, view=None))
    assert (nothing["absent"] == "").all()
    without = predict_images(bundles["vertical"], images)
    assert (without["absent"] == "records").all()


def test_an_archive_a_folder_and_memory_give_the_same_to_the_last_bit(
    run: FinishedRun, bundles: dict[str, Bundle], records: Records, files: Path, tmp_path: Path
) -> None:
    bundle, rows = bundles["vertical"], saved(run, "vertical").index.to_numpy()
    images, group = np.asarray(records.features)[rows, 0], records.groups.iloc[rows]
    whole = predict_images(bundle, images, group)
    np.savez(
        tmp_path / "images.npz",
        test_images=images,
        test_age=group["age"].fillna(0).to_numpy().astype(np.int64),
        test_sex_m=(group["sex"] == "male").to_numpy(),
        test_view_ap=(group["view"] == "AP").to_numpy(),
        test_patient_id=np.asarray(records.patient)[rows].astype("S8"),
    )
    predict_file(bundle, tmp_path / "images.npz", tmp_path / "out.parquet", keep=("patient",))
    predictions = pd.read_parquet(tmp_path / "out.parquet")
    assert predictions["image"].tolist()[:2] == ["test-0", "test-1"]
    assert predictions["patient"].tolist() == np.asarray(records.patient)[rows].tolist()
    predict_file(bundle, files / "list.csv", tmp_path / "again.parquet")
    listed = pd.read_parquet(tmp_path / "again.parquet")
    for other in (predictions.drop(columns=["patient"]), listed):
        pd.testing.assert_frame_equal(other.drop(columns="image"), whole.drop(columns="image"), check_exact=True)
    assert len(whole) > IMAGES  # more than a tile
    single = predict_images(bundle, images[5:6], group.iloc[5:6]).drop(columns=["row", "image"])
    pd.testing.assert_frame_equal(
        single, whole.iloc[[5]].drop(columns=["row", "image"]).reset_index(drop=True), check_exact=True
    )


def test_three_classes_in_images(tmp_path: Path) -> None:
    records = garments()
    finished = run_of(records, tmp_path / "runs", data={"scale": "image"})
    bundle = load_bundle(bundle_from(finished, arm="fedavg", site="shop-1", out=tmp_path / "b"))
    table = finished.folder.predictions()
    expected = table[table["site"] == "shop-1"].set_index("row")
    scores = [f"score_{name}" for name in bundle.classes]
    predictions = predict_images(bundle, np.asarray(records.features)[expected.index])
    assert np.abs(predictions[scores].to_numpy() - expected[scores].to_numpy()).max() <= 1e-6
    assert predictions["predicted"].tolist() == [
        bundle.classes[place] for place in predictions[scores].to_numpy().argmax(axis=1)
    ]
    assert bundle.uncertainty is not None
    assert (bundle.events, bundle.uncertainty.method) == ((), "dropout")
    for name in bundle.classes:
        assert (predictions[f"low_{name}"] <= predictions[f"score_{name}"]).all()
        assert (predictions[f"high_{name}"] >= predictions[f"score_{name}"]).all()
    named = {" or ".join(name for place, name in enumerate(bundle.classes) if n >> place & 1) for n in range(1, 8)}
    assert set(predictions["prediction_set"]) <= {*named, "none"}


def test_a_regions_own_model(run: FinishedRun, bundles: dict[str, Bundle], records: Records, tmp_path: Path) -> None:
    bundle = load_bundle(bundle_from(run, arm="regions", site=SITE, region="east", out=tmp_path / "east"))
    expected = saved(run, "regions", "regional")
    images = np.asarray(records.features)[expected.index]
    own = predict_images(bundle, images)[expected.columns].to_numpy()
    assert np.abs(own - expected.to_numpy()).max() <= 1e-6
    assert np.abs(own - predict_images(bundles["regions"], images)[expected.columns].to_numpy()).max() > 1e-6
    assert (bundle.about["region"], bundles["regions"].about["region"]) == ("east", None)
    assert "own model of region east" in (bundle.path / "card.md").read_text()
    for region, problem in (("west", "is in 'east'"), ("north", "no region with a training site is called 'north'")):
        with pytest.raises(StudyError, match=problem):
            bundle_from(run, arm="regions", site=SITE, region=region, out=tmp_path / "x")
    with pytest.raises(StudyError, match="form no regions"):
        bundle_from(run, arm="fedavg", site=SITE, region="east", out=tmp_path / "x")


def test_thresholds_and_calibration_of_each_finding_come_from_validation_rows(
    run: FinishedRun, bundles: dict[str, Bundle]
) -> None:
    """The best F1 on the site's own validation rows, or that of all sites where a finding is too rare here."""
    bundle = bundles["fedavg"]
    by_name = {entry["name"]: entry for entry in bundle.about["findings"]}
    assert list(by_name) == list(bundle.classes) == ["mass", "fluid", "air"]
    plan = run.plan
    trial = plan.trial(plan.study.arm("fedavg"), bundle.about["seed"])
    rows = next(site for site in trial.scored if site.name == SITE).validation
    x, label = (part.numpy() for part in rows.take(torch.arange(len(rows)), trial.dtype))
    score = bundle.scores(x)
    for place, name in enumerate(bundle.classes):
        known = label[:, place] >= 0
        y, s, cut = label[known, place], score[known, place], by_name[name]["threshold"]["value"]
        if "of this site" not in by_name[name]["threshold"]["why"]:
            assert min((y == 1).sum(), (y == 0).sum()) < 5
            assert cut == run.results["arms"]["fedavg"]["findings"][name]["threshold"]["mean"]
            continue

        def f1(at: float, y: np.ndarray = y, s: np.ndarray = s) -> float:
            return float(2 * ((s >= at) & (y == 1)).sum() / ((s >= at).sum() + (y == 1).sum()))

        assert f1(cut) == max(f1(at) for at in s)
        assert cut not in s
        assert by_name[name]["calibration"]["rows"] == known.sum()
    assert bundle.about["rows"]["validation"] == len(label)


def test_a_bundle_holds_no_image(bundles: dict[str, Bundle], records: Records) -> None:
    content = b"".join(path.read_bytes() for path in sorted(bundles["fedavg"].path.iterdir()))
    assert not any(image.tobytes() in content for image in np.asarray(records.features))
    about = json.loads((bundles["fedavg"].path / "preparation.json").read_text())
    assert about["images"]["shape"] == [1, 6, 6]
    assert about["images"]["scale"] == "site"


def test_images_that_cannot_be_read_are_counted_and_named_and_nothing_is_written(
    bundles: dict[str, Bundle], files: Path, tmp_path: Path
) -> None:
    for path in sorted(files.glob("*.png"))[:3]:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / "cut.png").write_bytes(next(files.glob("*.png")).read_bytes()[:40])
    (tmp_path / "text.jpg").write_text("Smith-1234")
    with pytest.raises(DataError, match=r"2 of 5 images cannot be read: cut.png \(damaged.*text.jpg") as caught:
        predict_file(bundles["fedavg"], tmp_path, tmp_path / "out.csv")
    assert "Smith" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir() if "out" in path.name) == []
    (tmp_path / "list.csv").write_text("image\ncut.png\ngone.png\n")
    with pytest.raises(DataError, match=r"1 of 2 images are not there: line 3\n"):
        predict_file(bundles["fedavg"], tmp_path / "list.csv", tmp_path / "out.csv")


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("nowhere", "there is no such file or folder"),
        ("empty", "there is no image in it"),
        ("x.txt", "is neither a folder of images"),
        ("x.npz", "cannot be opened"),
        ("x.csv", "no column says which image a row is of"),
        ("-", "images are not read from it"),
    ],
)
def test_what_is_no_source_of_images(bundles: dict[str, Bundle], tmp_path: Path, source: str, problem: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "x.txt").write_text("text")
    (tmp_path / "x.npz").write_text("text")
    (tmp_path / "x.csv").write_text("file name of it,b\n1,2\n")
    with pytest.raises(DataError, match=problem):
        predict_file(bundles["fedavg"], source if source == "-" else tmp_path / source, tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


def test_one_image_of_another_size_and_with_16_bits(bundles: dict[str, Bundle], tmp_path: Path) -> None:
    wide = np.kron(np.arange(36, dtype=np.uint16).reshape(6, 6) * 1700, np.ones((3, 3), dtype=np.uint16))
    Image.fromarray(wide).save(tmp_path / "one.png")
    assert predict_file(bundles["fedavg"], tmp_path / "one.png", tmp_path / "out.csv").rows == 1
    from_file = pd.read_csv(tmp_path / "out.csv")["score_mass"][0]
    assert predict_images(bundles["fedavg"], wide[None])["score_mass"][0] == from_file
    with pytest.raises(DataError, match="an array of 2 axes"):
        predict_images(bundles["fedavg"], wide)
    with pytest.raises(DataError, match="the bundle is for images"):
        predict_table(bundles["fedavg"], pd.DataFrame({"age": [1]}))


def test_noise_and_inverted_images_are_far(bundles: dict[str, Bundle], records: Records) -> None:
    """One in a hundred images like the training images is, so that a fifth is far from chance."""
    images = np.asarray(records.features)[:, 0]
    noise = np.random.default_rng(0).integers(0, 256, images.shape).astype(np.uint8)
    usual, inverted, noisy = (
        predict_images(bundles["fedavg"], x)["out_of_distribution"].mean() for x in (images, 255 - images, noise)
    )
    assert usual < 0.05
    assert inverted > 0.95
    assert noisy > 0.95
    assert predict_images(bundles["fedavg"], noise[:9])["refer"].all()


def test_how_an_image_looks_by_hand() -> None:
    """Left half white, right half black, 8 x 8."""
    image = np.zeros((1, 1, 8, 8), dtype=np.uint8)
    image[..., :4] = 255
    looks = dict(zip(LOOKS, looks_of(image)[0].tolist(), strict=True))
    assert [looks[f"brightness of part 1.{column}"] for column in (1, 2, 3, 4)] == [1, 1, 0, 0]
    assert (looks["contrast"], looks["dark pixels"], looks["bright pixels"]) == (0.5, 0.5, 0.5)
    assert looks["change from left to right"] == pytest.approx(1 / 7)  # one of seven neighbours
    assert looks["change from top to bottom"] == 0


def test_images_that_files_could_not_give_are_refused(records: Records, tmp_path: Path) -> None:
    layers = replace(records, features=np.repeat(np.asarray(records.features), 2, axis=1))
    finished = run_of(layers, tmp_path / "runs")
    with pytest.raises(BundleError, match="its images are 2 x 6 x 6 of uint8, and files are read as squares"):
        bundle_from(finished, arm="fedavg", site=SITE, out=tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_a_row_with_one_finding_whose_score_is_no_number_has_no_prediction(
    bundles: dict[str, Bundle], records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, original = next(iter(bundles.values())), Bundle.scores

    def broken(self: Bundle, *rows: np.ndarray) -> np.ndarray:
        scores = original(self, *rows).copy()
        scores[1, 0] = np.nan
        return scores

    assert len(bundle.answer.columns("score")) > 1
    monkeypatch.setattr(Bundle, "scores", broken)
    answers = predict_images(bundle, np.asarray(records.features)[:3])
    scores = answers[list(bundle.answer.scores)]
    assert scores.isna().all(axis=1).tolist() == [False, True, False]
    assert TOO_LARGE.text in answers["why"][1]
