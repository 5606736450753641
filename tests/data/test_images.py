"""Images of any kind: every layout of MedMNIST, folders by class, tables, CheXpert, VinDr-CXR; what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.data.nih_folders import noticed
from tests.medmnist_files import COUNTS, LAYOUTS, as_folder, as_table, layout, saved
from wardround.core.errors import DataError, StudyError
from wardround.data.describe import describe_data
from wardround.data.records import BOX_COLUMNS, Records
from wardround.data.sources.images import images


def assert_equal(a: Records, b: Records) -> None:
    np.testing.assert_array_equal(a.features, b.features)
    np.testing.assert_array_equal(a.target, b.target)
    assert a.split is not None
    assert b.split is not None
    assert a.split.tolist() == b.split.tolist()


@pytest.mark.parametrize(
    ("name", "kind", "shape", "classes"),
    [
        ("two", "binary", (1, 28, 28), 2),
        ("eight", "multiclass", (3, 28, 28), 8),
        ("fourteen", "multilabel", (1, 28, 28), 14),
        ("ordinal", "multiclass", (3, 28, 28), 5),
    ],
)
def test_every_layout_of_medmnist_is_read_as_it_is(
    tmp_path: Path, name: str, kind: str, shape: tuple[int, ...], classes: int
) -> None:
    content = layout(name)
    records = images(saved(tmp_path / "file.npz", content)).load()
    assert records.task.kind == kind
    assert records.classes == tuple(map(str, range(classes)))
    assert np.asarray(records.features).shape[1:] == shape
    pixels = np.concatenate([content[f"{part}_images"] for part in ("train", "val", "test")])
    channels = pixels[:, np.newaxis] if pixels.ndim == 3 else np.moveaxis(pixels, 3, 1)
    np.testing.assert_array_equal(records.features, channels)
    labels = np.concatenate([content[f"{part}_labels"] for part in ("train", "val", "test")])
    np.testing.assert_array_equal(records.target.reshape(labels.shape), labels)
    assert describe_data(str(tmp_path / "file.npz"))["rows"] == len(records)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_folder_of_the_same_images_is_the_same(tmp_path: Path, name: str) -> None:
    content = layout(name)
    records = images(saved(tmp_path / "file.npz", content)).load()
    assert_equal(images(as_table(tmp_path / "table", content)).load(), records)
    if name != "fourteen":
        assert_equal(images(as_folder(tmp_path / "folder", content)).load(), records)


def test_names_are_the_files_or_the_studys(tmp_path: Path) -> None:
    content = layout("two")
    path = saved(tmp_path / "plain.npz", content)
    assert images(path, classes=("normal", "pneumonia")).load().classes == ("normal", "pneumonia")
    named = saved(tmp_path / "named.npz", {**content, "label_names": np.array(["healthy", "ill"])})
    assert images(named).load().classes == ("healthy", "ill")
    with pytest.raises(StudyError, match="names its labels itself: healthy, ill"):
        images(named, classes=("ill", "healthy")).load()
    with pytest.raises(StudyError, match="1 names, of which 1 differ, for 2 labels"):
        images(path, classes=("normal",)).load()
    folder = as_folder(tmp_path / "folder", content)
    assert images(folder, classes=("1", "0")).load().target.tolist() == [
        1 - label for label in images(folder).load().target.tolist()
    ]


def test_size_and_colour_may_be_others(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", layout("eight"))
    grey = images(path, size=14, colour="grey").load()
    assert np.asarray(grey.features).shape[1:] == (1, 14, 14)
    folder = as_folder(tmp_path / "folder", layout("eight"))
    np.testing.assert_array_equal(images(folder, size=14, colour="grey").load().features, grey.features)
    two = images(saved(tmp_path / "b.npz", layout("two")), colour="rgb").load()
    np.testing.assert_array_equal(two.features, np.repeat(np.asarray(two.features)[:, :1], 3, axis=1))


def test_capitals_other_files_and_hidden_ones(tmp_path: Path) -> None:
    folder = as_folder(tmp_path, layout("two"), suffix=".PNG")
    (folder / "train" / "0" / "letter.pdf").write_bytes(b"%PDF-1.4")
    (folder / "Thumbs.db").write_bytes(b"x")
    (folder / ".DS_Store").write_bytes(b"x")
    records = images(folder).load()
    assert len(records) == 34
    assert noticed(records, "image-no-image").counts == {"images": 2}
    again = describe_data(str(folder))
    assert any("letter.pdf" in notice["text"] for notice in again["notices"])


def refusal(path: Path, **settings: Any) -> str:
    with pytest.raises(DataError) as caught:
        images(path, **settings).load()
    return str(caught.value)


def test_a_file_that_is_not_what_it_says_is_one_clear_error(tmp_path: Path) -> None:
    whole = saved(tmp_path / "whole.npz", layout("two"))
    (tmp_path / "cut.npz").write_bytes(whole.read_bytes()[:3000])
    assert "cannot be opened (BadZipFile)" in refusal(tmp_path / "cut.npz")
    plain = layout("two")

    def spoilt(**changes: np.ndarray) -> str:
        return refusal(saved(tmp_path / "spoilt.npz", {**plain, **changes}))

    stacked = {f"{part}_labels": np.zeros((count, 1, 2), int) for part, count in COUNTS.items()}
    assert "its labels have the shape (34, 1, 2), neither one nor several for each image" in spoilt(**stacked)
    assert "19 rows for 20 images" in spoilt(train_labels=plain["train_labels"][:19])
    assert "does not hold numbers or texts of one kind and shape" in spoilt(val_labels=np.zeros((6, 3), int))
    assert "not whole numbers from 0 on" in spoilt(test_labels=np.full((8, 1), -1))
    assert "classes are numbered from 0 to 9999" in spoilt(test_labels=np.full((8, 1), 123456))
    coloured = np.zeros((8, 28, 28, 3), np.uint8)
    assert "different channels: train_images grey, val_images grey, test_images in colour" in spoilt(
        test_images=coloured
    )
    assert "not squares of one size" in spoilt(test_images=np.zeros((8, 20, 28), np.uint8))
    lacking = {name: values for name, values in plain.items() if name != "val_labels"}
    assert "has no val_labels" in refusal(saved(tmp_path / "lacking.npz", lacking))


def test_a_folder_that_cannot_be_used_is_one_clear_error(tmp_path: Path) -> None:
    folder = as_folder(tmp_path / "mixed", layout("two"))
    Image.fromarray(np.zeros((28, 28, 3), np.uint8)).save(folder / "train" / "0" / "zz.png")
    assert "34 images are grey and 1 in colour" in refusal(folder)
    assert len(images(folder, colour="grey").load()) == 35
    alone = as_folder(tmp_path / "alone", layout("two"))
    Image.fromarray(np.zeros((28, 28), np.uint8)).save(alone / "loose.png")
    assert "no class's folder" in refusal(alone)
    (tmp_path / "one" / "cats").mkdir(parents=True)
    Image.fromarray(np.zeros((28, 28), np.uint8)).save(tmp_path / "one" / "cats" / "a.png")
    assert "one class only" in refusal(tmp_path / "one")
    (tmp_path / "none").mkdir()
    assert "there is no image in it" in refusal(tmp_path / "none")
    broken = as_folder(tmp_path / "broken", layout("two"))
    (broken / "train" / "0" / "letter.png").write_bytes(b"%PDF-1.4 not a picture")
    assert "cannot be read" in refusal(broken)
    assert "unreadable" in refusal(broken)
    assert "2 folders are of no class in `classes`" in refusal(folder, classes=("a", "b"), colour="grey")


def test_chexperts_layout(tmp_path: Path) -> None:
    """Two tables whose paths begin with the archive's name; a blank is 0, and -1 as the study says."""
    head = "Path,Sex,Age,Frontal/Lateral,AP/PA,No Finding,Edema,Pleural Effusion\n"
    rows = {
        "train": [
            ("patient00001/study1/view1_frontal.jpg", "1.0,,"),
            ("patient00002/study1/view1_frontal.jpg", ",1.0,-1.0"),
        ],
        "valid": [("patient64541/study1/view1_frontal.jpg", "0.0,0.0,1.0")],
    }
    for place, (part, images_of) in enumerate(rows.items()):
        lines = []
        for name, cells in images_of:
            (tmp_path / part / name).parent.mkdir(parents=True)
            Image.fromarray(np.full((40, 30), 50 + place, np.uint8)).save(tmp_path / part / name)
            lines.append(f"CheXpert-v1.0-small/{part}/{name},Female,68,Frontal,AP,{cells}")
        (tmp_path / f"{part}.csv").write_text(head + "\n".join(lines) + "\n")
    records = images(tmp_path, size=16, uncertain="one").load()
    assert records.classes == ("No Finding", "Edema", "Pleural Effusion")
    assert records.target.tolist() == [[1, 0, 0], [0, 1, 1], [0, 0, 1]]
    assert records.split is not None
    assert records.split.tolist() == ["train", "train", "validation"]
    assert records.patient is not None
    assert len(set(records.patient.tolist())) == 3
    assert images(tmp_path, size=16, classes=("Edema",)).load().classes == ("Edema",)


def test_vindrs_layout_keeps_boxes(tmp_path: Path) -> None:
    """Three readers an image: a finding counts where at least half of them marked it, and then all of their boxes."""
    (tmp_path / "train").mkdir()
    for name in ("aa", "bb"):
        Image.fromarray(np.full((50, 100), 90, np.uint8)).save(tmp_path / "train" / f"{name}.png")
    (tmp_path / "train.csv").write_text(
        "image_id,class_name,class_id,rad_id,x_min,y_min,x_max,y_max\n"
        "aa,Cardiomegaly,3,R1,10,20,60,45\n"
        "aa,Cardiomegaly,3,R2,20,20,60,45\n"
        "aa,Nodule/Mass,8,R1,1,1,5,5\n"
        "aa,No finding,14,R3,,,,\n"
        "bb,No finding,14,R1,,,,\n"
        "bb,No finding,14,R2,,,,\n"
    )
    records = images(tmp_path, size=16).load()
    assert records.classes == ("Cardiomegaly", "Nodule/Mass")
    assert records.target.tolist() == [[1, 0], [0, 0]]
    assert records.boxes is not None
    assert list(records.boxes.columns) == list(BOX_COLUMNS)
    expected = [[0, 0, 0.1, 0.4, 0.5, 0.5], [0, 0, 0.2, 0.4, 0.4, 0.5]]
    np.testing.assert_allclose(records.boxes.to_numpy(float), expected, atol=1e-12)
    text = (tmp_path / "train.csv").read_text()
    (tmp_path / "train.csv").write_text(text.replace("10,20,60,45", "10,20,,45"))
    assert "have no box of four numbers" in refusal(tmp_path, size=16)
