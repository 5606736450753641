"""A bundle of images explained: where the model sees what it predicts, as files, a page, columns and answers."""

import base64
import json
import re
from io import BytesIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from tests.bundles.image_runs import as_files, garments, radiographs, run_of
from tests.serving.test_serve import Client
from wardround.bundles import EXPLAIN, STEPS, Bundle, bundle_from, explain_bundle, load_bundle, predict_file
from wardround.bundles.explain.explained_images import (
    EVEN,
    MOST_OUTPUTS,
    Lines,
    explain_images,
    explained_lines,
    highest_points,
)
from wardround.core import seeds
from wardround.core.errors import BundleError, DataError, StudyError
from wardround.data.records import Records
from wardround.explain import METHODS, Scorer
from wardround.serving.app import make_app
from wardround.serving.schema import answer_schema
from wardround.tasks import class_task, findings_task


@pytest.fixture(scope="module")
def records() -> Records:
    return radiographs()


@pytest.fixture(scope="module")
def bundle(records: Records, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("explained")
    finished = run_of(records, folder / "runs", arms=[{"name": "fedavg", "algorithm": "fedavg"}])
    return load_bundle(bundle_from(finished, arm="fedavg", site="hospital-1", out=folder / "b"))


@pytest.fixture(scope="module")
def folder(records: Records, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return as_files(records, np.arange(40), tmp_path_factory.mktemp("pictures") / "images")


def test_maps_are_those_of_the_bundles_model(bundle: Bundle, folder: Path, records: Records) -> None:
    """Against the method by itself, on rows as the bundle prepares them, compared with the mean of the folder."""
    maps = explain_images(bundle, folder, most=5)
    assert bundle.inputs.images is not None
    x = bundle.inputs.images.numbers(np.asarray(records.features)[:40], bundle.dtype)
    scorer = Scorer(bundle.model, bundle.params, bundle.buffers)
    draws = seeds.generator(0, "explanation")
    assert sorted(set(maps.row.tolist())) == [0, 1, 2, 3, 4]
    assert maps.compared_with == "the mean of 40 images of the source"
    for line, (row, output) in enumerate(zip(maps.row, maps.output, strict=True)):
        method = METHODS[maps.method]()
        alone = method.attribute(scorer.of(output), x[row : row + 1], x.mean(dim=0, keepdim=True), draws)
        np.testing.assert_allclose(maps.values[line], alone.values[0], atol=1e-6)
        assert maps.score[line] == pytest.approx(scorer.of(output).values(x[row : row + 1])[0], abs=1e-5)
        np.testing.assert_array_equal(maps.pixels[line], np.asarray(records.features)[row, 0])


def test_a_folder_holds_maps_overlays_checks_and_a_page(bundle: Bundle, folder: Path, tmp_path: Path) -> None:
    made = explain_bundle(bundle, folder, tmp_path / "why", rows=6, method="occlusion")
    names = sorted(path.name for path in (tmp_path / "why").iterdir())
    assert names == [
        "checks.csv", "explanation.html", "explanation.json", "maps.npz", "overlays", "rows.csv", "rows.parquet",
    ]  # fmt: skip
    rows = pd.read_parquet(tmp_path / "why" / "rows.parquet")
    pd.testing.assert_frame_equal(rows, made.rows)
    with np.load(tmp_path / "why" / "maps.npz") as stored:
        assert stored["maps"].shape == (len(rows), 6, 6)
    assert len(list((tmp_path / "why" / "overlays").iterdir())) == len(rows)
    about = json.loads((tmp_path / "why" / "explanation.json").read_text())
    assert (about["method"], about["rows"]) == ("occlusion", 6)
    checks = pd.read_csv(tmp_path / "why" / "checks.csv")
    assert len(checks) == 5
    page = (tmp_path / "why" / "explanation.html").read_text()
    pictures = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    assert pictures
    assert Image.open(BytesIO(base64.b64decode(pictures[0]))).size[0] > 500
    for sentence in about["failed_checks"]:
        assert sentence[:30] in page
    text = re.sub(r"base64,[^\"]+", "", page)
    assert not re.search(r"p0\d{3}|\.png", text)  # no patient, and no name of a file


def test_findings_are_explained_that_an_image_is_said_to_have() -> None:
    scores = np.array([[0.1, 2.0, 1.0, 3.0, 0.5], [-1.0, -2.0, -3.0, -0.5, -4.0]])
    predicted = np.array([[1, 1, 1, 1, 0], [0, 0, 0, 0, 0]])
    lines = explained_lines(findings_task(5), predicted, scores)
    assert MOST_OUTPUTS == 3
    assert [tuple(line) for line in zip(*lines, strict=True)] == [
        (0, 3, True),
        (0, 1, True),
        (0, 2, True),
        (1, 3, False),
    ]
    two = explained_lines(class_task(2), np.array([1, 0]), scores[:, :1])
    assert (two.output.tolist(), two.said.tolist()) == ([0, 0], [True, False])
    several = explained_lines(class_task(5), np.array([2, 4]), scores)
    assert isinstance(several, Lines)
    assert (several.output.tolist(), several.said.tolist()) == ([2, 4], [True, True])


def test_classes_are_explained_as_well(tmp_path: Path) -> None:
    finished = run_of(garments(), tmp_path / "runs", arms=[{"name": "fedavg", "algorithm": "fedavg"}])
    bundle = load_bundle(bundle_from(finished, arm="fedavg", site="shop-0", out=tmp_path / "b"))
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for number, image in enumerate(np.asarray(garments().features)[:6, 0]):
        Image.fromarray(image).save(pictures / f"{number}.png")
    maps = explain_images(bundle, pictures, most=6)
    assert maps.compared_with == EVEN  # six images are too few for a mean
    assert set(maps.names()) <= {"coat", "boot", "bag"}
    assert maps.predicted.all()


def test_an_image_of_another_size_or_in_colour_is_explained_as_it_is_predicted(bundle: Bundle, tmp_path: Path) -> None:
    """They become the bundle's size and grey, as for `predict`."""
    (tmp_path / "pictures").mkdir()
    colours = seeds.generator(1, "test").integers(0, 255, (20, 30, 3), dtype=np.uint8)
    Image.fromarray(colours).save(tmp_path / "pictures" / "one.png")
    maps = explain_images(bundle, tmp_path / "pictures", most=3)
    assert maps.values.shape[1:] == (6, 6)
    predict_file(bundle, tmp_path / "pictures", tmp_path / "scores.csv")
    scores = pd.read_csv(tmp_path / "scores.csv")
    expected = scores[f"score_{maps.names()[0]}"][0]
    assert torch.sigmoid(torch.tensor(maps.score[0])) == pytest.approx(expected, abs=1e-5)


def test_errors_say_what_to_do(bundle: Bundle, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="explains tables"):
        explain_images(bundle, folder, method="lime", most=2)
    with pytest.raises(StudyError, match="no method 'grad'"):
        explain_images(bundle, folder, method="grad", most=2)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no image"):
        explain_images(bundle, tmp_path / "empty", most=2)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "one.png").write_bytes(b"no image at all")
    with pytest.raises(DataError, match="none of its images has a prediction"):
        explain_images(bundle, tmp_path / "broken", most=2)


def test_a_table_has_no_images(untabled: Bundle, folder: Path) -> None:
    with pytest.raises(BundleError, match="takes no images"):
        explain_images(untabled, folder, most=2)


@pytest.fixture
def untabled(run: Path, tmp_path: Path) -> Bundle:
    from wardround.bundles import make_bundle

    return load_bundle(make_bundle(run, arm="fedavg", site="va", out=tmp_path / "table"))


def test_predictions_say_where_in_an_image_a_finding_is_seen(bundle: Bundle, folder: Path, tmp_path: Path) -> None:
    predict_file(bundle, folder, tmp_path / "scores.parquet", steps=(*STEPS, EXPLAIN))
    scores = pd.read_parquet(tmp_path / "scores.parquet")
    found = 0
    for finding in bundle.classes:
        places, predicted = scores[[f"highest_x_{finding}", f"highest_y_{finding}"]], scores[f"predicted_{finding}"]
        assert places[predicted == 0].isna().all(axis=None)
        found += int(places.notna().all(axis=1).sum())
        assert places[places.notna().all(axis=1)].map(lambda part: 0 < part < 1).all(axis=None)
    assert found > 5
    assert not [name for name in scores.columns if str(name).startswith("heat_map")]


def test_over_http_maps_are_pictures(bundle: Bundle, records: Records) -> None:
    client = Client(make_app(bundle))
    content = BytesIO()
    image = np.asarray(records.features)[3, 0]
    Image.fromarray(image).save(content, "PNG")
    row = {"image": base64.b64encode(content.getvalue()).decode()}
    answer = client.post("/predict", json={"rows": [row], "explain": True})
    assert answer.status_code == 200
    [told] = answer.json()["rows"]
    assert set(told) <= set(answer_schema(bundle)["properties"]["rows"]["items"]["properties"])
    for finding in bundle.classes:
        drawn = told[f"heat_map_{finding}"]
        assert (drawn is not None) == (told[f"predicted_{finding}"] == 1)
        if drawn is not None:
            pixels = np.asarray(Image.open(BytesIO(base64.b64decode(drawn))))
            assert pixels.shape == (6, 6)
            assert pixels.max() == 255
    plain = client.post("/predict", json={"rows": [row]}).json()["rows"][0]
    assert not [name for name in plain if name.startswith(("heat_map", "highest"))]


def test_the_highest_point_is_where_the_map_is_highest() -> None:
    heat = np.zeros((2, 4, 8))
    heat[0, 1, 6] = 1
    x, y = highest_points(heat)
    assert (x[0], y[0]) == (6.5 / 8, 1.5 / 4)
    assert np.isnan([x[1], y[1]]).all()
