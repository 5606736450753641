"""Images over HTTP: the numbers of `predict`, limits, and errors that repeat nothing of an image."""

import base64
from io import BytesIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from tests.bundles.image_runs import PARTIES, radiographs, run_of
from tests.serving.test_serve import Client
from wardround.bundles import Bundle, bundle_from, load_bundle, predict_file, predict_images
from wardround.bundles.predict import images as image_requests
from wardround.data.records import Records
from wardround.serving.app import make_app
from wardround.serving.schema import MOST_IMAGES, answer_schema, row_schema
from wardround.serving.serve import warm_up

SECRET = "Smith-1234"


@pytest.fixture(scope="module")
def records() -> Records:
    return radiographs()


@pytest.fixture(scope="module")
def bundle(records: Records, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("served")
    model = {"kind": "joined", "embedding": 3, "hidden": 4, "absent": 0.2, "dropout": 0.2}
    arms = [{"algorithm": "split", "model": model, "topology": {"kind": "vertical", "parties": PARTIES}}]
    finished = run_of(records, folder / "runs", arms=arms, training={"rounds": 1})
    return load_bundle(bundle_from(finished, arm="split", site="hospital-1", out=folder / "b"))


@pytest.fixture(scope="module")
def client(bundle: Bundle) -> Client:
    warm_up(bundle)
    return Client(make_app(bundle))


def in_base64(pixels: np.ndarray, kind: str = "PNG") -> str:
    file = BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return base64.b64encode(file.getvalue()).decode()


def test_answers_are_those_of_predict_to_the_last_bit(client: Client, bundle: Bundle, records: Records) -> None:
    images, known = np.asarray(records.features)[:5, 0], records.groups.iloc[:5]
    expected = predict_images(bundle, images, known).drop(columns=["row", "image"])
    request_rows = [
        {"image": in_base64(image), **{key: None if value != value else value for key, value in row.items()}}
        for image, row in zip(images, known.to_dict("records"), strict=True)
    ]
    answer = client.post("/predict", json={"rows": request_rows})
    assert answer.status_code == 200
    assert answer.json()["rows"] == expected.to_dict("records")
    assert list(answer.json()["rows"][0]) == list(answer_schema(bundle)["properties"]["rows"]["items"]["properties"])
    lone = client.post("/predict", json={"rows": [{"image": request_rows[0]["image"]}]}).json()["rows"][0]
    assert lone["absent"] == "records"


def test_the_schema_asks_for_the_image_and_says_what_else_there_is(bundle: Bundle) -> None:
    schema = row_schema(bundle)
    assert schema["required"] == ["image"]
    assert set(schema["properties"]) == {"image", "age", "sex", "view"}
    assert schema["properties"]["image"]["contentEncoding"] == "base64"


@pytest.mark.parametrize(
    ("image", "problem"),
    [
        (None, "there is no 'image'"),
        (SECRET, "'image' is not base64"),
        (base64.b64encode(SECRET.encode()).decode(), "the image cannot be read: damaged"),
        (base64.b64encode(b"\0" * 128 + b"DICM" + SECRET.encode()).decode(), "the image cannot be read: damaged"),
    ],
)
def test_what_is_no_image_is_told_without_repeating_it(client: Client, image: str | None, problem: str) -> None:
    answer = client.post("/predict", json={"rows": [{"image": image}]})
    assert answer.status_code == 422
    assert problem in answer.json()["error"]["problem"]
    assert SECRET not in answer.text


def test_limits(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"image": in_base64(np.zeros((6, 6), dtype=np.uint8))}
    many = client.post("/predict", json={"rows": [row] * (MOST_IMAGES + 1)})
    assert (many.status_code, "65 rows, and at most 64" in many.text) == (413, True)
    monkeypatch.setattr(image_requests, "MOST_PIXELS", 35)
    large = client.post("/predict", json={"rows": [row]})
    assert (large.status_code, "more than 35 pixels" in large.text) == (422, True)


def test_a_dicom_image_that_is_sent_is_read_as_the_file_is(bundle: Bundle, client: Client, tmp_path: Path) -> None:
    pydicom = pytest.importorskip("pydicom")
    from pydicom.uid import ExplicitVRLittleEndian

    data = pydicom.Dataset()
    data.Rows, data.Columns, data.SamplesPerPixel, data.BitsAllocated, data.BitsStored = 6, 6, 1, 8, 8
    data.HighBit, data.PixelRepresentation, data.PhotometricInterpretation = 7, 0, "MONOCHROME2"
    data.PixelData = np.arange(36, dtype=np.uint8).tobytes()
    data.SOPClassUID, data.SOPInstanceUID = "1.2.840.10008.5.1.4.1.1.1", "1.2.3"
    data.file_meta = pydicom.dataset.FileMetaDataset()
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data.save_as(tmp_path / "one", enforce_file_format=True)
    content = base64.b64encode((tmp_path / "one").read_bytes()).decode()
    [answer] = client.post("/predict", json={"rows": [{"image": content}]}).json()["rows"]
    predict_file(bundle, tmp_path, tmp_path / "out.parquet")
    table = pd.read_parquet(tmp_path / "out.parquet")
    assert table["image"].tolist() == ["one"]
    assert table["score_mass"][0] == answer["score_mass"]
