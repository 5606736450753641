"""Data sets in Arrow and Parquet files as the libraries of Hugging Face write them, made here with pyarrow."""

import json
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.medmnist_files import COUNTS, layout, saved
from wardround.core.errors import DataError, StudyError
from wardround.data.describe import describe_data
from wardround.data.sources.hugging_face import hugging_face
from wardround.data.sources.images import images

IMAGE = {"_type": "Image"}
TYPE = pa.struct({"bytes": pa.binary(), "path": pa.string()})


def encoded(pixels: np.ndarray) -> bytes:
    file = BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    return file.getvalue()


def table(pixels: np.ndarray, labels: Sequence[Any], kind: Any, name: str = "label") -> pa.Table:
    cells = pa.array([{"bytes": encoded(picture), "path": None} for picture in pixels], TYPE)
    made = pa.table({"image": cells, name: pa.array(labels)})
    about = {"info": {"features": {"image": IMAGE, **({name: kind} if kind else {})}}}
    return made.replace_schema_metadata({"huggingface": json.dumps(about)})


def arrow(path: Path, content: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, content.schema) as writer:
        writer.write_table(content, max_chunksize=5)


def class_label(names: Sequence[str]) -> dict[str, Any]:
    return {"_type": "ClassLabel", "names": list(names)}


def test_a_saved_data_set_is_that_of_the_same_npz(tmp_path: Path) -> None:
    content, names = layout("eight"), [f"cell {number}" for number in range(8)]
    for part in COUNTS:
        made = table(content[f"{part}_images"], content[f"{part}_labels"][:, 0].tolist(), class_label(names))
        arrow(tmp_path / "set" / {"val": "validation"}.get(part, part) / "data-00000-of-00001.arrow", made)
    (tmp_path / "set" / "dataset_dict.json").write_text('{"splits": ["train", "validation", "test"]}')
    records = hugging_face(tmp_path / "set").load()
    expected = images(saved(tmp_path / "a.npz", content)).load()
    np.testing.assert_array_equal(records.features, expected.features)
    np.testing.assert_array_equal(records.target, expected.target)
    assert records.split is not None
    assert expected.split is not None
    assert records.split.tolist() == expected.split.tolist()
    assert records.classes == tuple(names)
    assert describe_data(str(tmp_path / "set"))["rows"] == len(records)


def test_findings_in_the_parquet_files_of_the_cache(tmp_path: Path) -> None:
    content = layout("fourteen")
    lists = {part: [np.flatnonzero(row).tolist() for row in content[f"{part}_labels"]] for part in COUNTS}
    kind = {"_type": "Sequence", "feature": class_label([f"finding {number}" for number in range(14)])}
    (tmp_path / "data").mkdir()
    for part in ("train", "test"):
        made = table(content[f"{part}_images"], lists[part], kind, "findings")
        pq.write_table(made, tmp_path / "data" / f"{part}-00000-of-00001.parquet")
    records = hugging_face(tmp_path).load()
    assert records.task.kind == "multilabel"
    np.testing.assert_array_equal(records.target, np.concatenate([content["train_labels"], content["test_labels"]]))
    assert np.asarray(records.features).shape == (28, 1, 28, 28)


def test_words_are_classes_and_columns_may_be_named(tmp_path: Path) -> None:
    content = layout("two")
    words = [("ill", "well")[label] for label in content["train_labels"][:, 0]]
    arrow(tmp_path / "set.arrow", table(content["train_images"], words, None, "diagnosis"))
    with pytest.raises(DataError, match="no column is known to hold labels"):
        hugging_face(tmp_path).load()
    with pytest.raises(StudyError, match="Did you mean 'diagnosis'"):
        hugging_face(tmp_path, label="diagnoses").load()
    records = hugging_face(tmp_path, label="diagnosis", size=14).load()
    assert records.classes == ("ill", "well")
    assert records.split is None
    assert np.asarray(records.features).shape == (20, 1, 14, 14)
    other = hugging_face(tmp_path, label="diagnosis", classes=("well", "ill")).load()
    np.testing.assert_array_equal(other.target, 1 - records.target)


def test_what_cannot_be_read_is_one_clear_error(tmp_path: Path) -> None:
    content = layout("two")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no \.arrow or \.parquet file"):
        hugging_face(tmp_path / "empty").load()
    good = table(content["train_images"], content["train_labels"][:, 0].tolist(), class_label(["a", "b"]))
    arrow(tmp_path / "cut" / "train.arrow", good)
    whole = (tmp_path / "cut" / "train.arrow").read_bytes()
    (tmp_path / "cut" / "train.arrow").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="is damaged, or no file of Arrow"):
        hugging_face(tmp_path / "cut").load()
    outside = pa.array([{"bytes": None, "path": "/elsewhere/secret7.png"}] * 20, TYPE)
    arrow(tmp_path / "outside" / "train.arrow", good.set_column(0, "image", outside))
    with pytest.raises(DataError, match="not in it, but in files elsewhere") as caught:
        hugging_face(tmp_path / "outside").load()
    assert "secret7" not in str(caught.value)
    gaps = good.set_column(1, "label", pa.array([None, *[1] * 19]))
    arrow(tmp_path / "gaps" / "train.arrow", gaps)
    with pytest.raises(DataError, match="1 images have no label"):
        hugging_face(tmp_path / "gaps").load()
    broken = pa.array([{"bytes": b"%PDF", "path": None}, *good["image"].to_pylist()[1:]], TYPE)
    arrow(tmp_path / "broken" / "train.arrow", good.set_column(0, "image", broken))
    with pytest.raises(DataError, match="1 of 20 images cannot be read"):
        hugging_face(tmp_path / "broken").load()
