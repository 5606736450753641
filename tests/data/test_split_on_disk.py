"""A split on disk: read back as it was written, site by site, and refused where manifest and files do not fit."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.radiographs import NAMES, SIZE, cohort_of, some_radiographs
from wardround.core.errors import DataError, StudyError
from wardround.data.cohort import split_sites
from wardround.data.describe import describe_data
from wardround.data.partition.by_hospital import by_hospital
from wardround.data.records import SPLIT_PARTS, Column, Records
from wardround.data.sources import SOURCES
from wardround.data.sources.split_on_disk import split_on_disk
from wardround.data.split import Split
from wardround.data.split_files.export import Origin, export_split
from wardround.data.split_files.manifest import FILE, sha256_of
from wardround.study.schema import Evaluation
from wardround.tasks import Regression


def written(records: Records, out: Path, validation_share: float = 0.2) -> tuple[Split, ...]:
    splits = split_sites(cohort_of(records), by_hospital(), Evaluation(validation_share=validation_share), 3)
    origin = Origin("made-up", "by-hospital", {"disjoint": True}, 3)
    export_split(cohort_of(records), splits, out, origin)
    return splits


def expected(records: Records, splits: tuple[Split, ...]) -> Records:
    """The rows in the order of the files."""
    return records.take(np.concatenate([split.rows for split in splits]))


def classes_of_images(colours: int) -> Records:
    """One class of three in each image; no patient is known."""
    records = some_radiographs(80)
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 256, (len(records), colours, SIZE, SIZE), dtype=np.uint8)
    return replace(
        records,
        features=pixels,
        target=np.arange(len(records)) % 3,
        classes=("red", "green", "blue"),
        patient=None,
        groups=pd.DataFrame(index=range(len(records))),
        boxes=None,
    )


def assert_same(again: Records, before: Records, splits: tuple[Split, ...]) -> None:
    assert again.task == before.task
    assert again.classes == before.classes
    assert again.hospital.tolist() == np.repeat([s.site for s in splits], [len(s.rows) for s in splits]).tolist()
    parts = [np.repeat(SPLIT_PARTS, [len(getattr(s, part)) for part in SPLIT_PARTS]) for s in splits]
    assert again.split is not None
    assert again.split.tolist() == np.concatenate(parts).tolist()
    np.testing.assert_array_equal(again.target, before.target)
    assert again.target.dtype == before.target.dtype


def gaps_alike(table: pd.DataFrame | np.ndarray) -> pd.DataFrame:
    """A gap in text may be None or NaN."""
    frame = pd.DataFrame(table)
    return frame.astype(object).where(frame.notna(), None).astype(object)


@pytest.mark.parametrize("colours", [1, 3])
def test_images_of_one_class_each_read_back_to_the_last_bit(tmp_path: Path, colours: int) -> None:
    records = classes_of_images(colours)
    splits = written(records, tmp_path / "split")
    again, before = split_on_disk(tmp_path / "split").load(), expected(records, splits)
    assert_same(again, before, splits)
    np.testing.assert_array_equal(again.features, before.features)
    assert again.patient is None
    assert not again.synthetic
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "split").iterdir()} == {0o600}  # patients' rows


def test_images_with_findings_and_patients_read_back(tmp_path: Path) -> None:
    records = some_radiographs(90, unknown=0.1)
    splits = written(replace(records, synthetic=True), tmp_path)
    again, before = split_on_disk(tmp_path).load(), expected(records, splits)
    assert_same(again, before, splits)
    assert again.classes == NAMES
    assert again.synthetic
    assert again.patient is not None
    assert before.patient is not None
    pairs = set(zip(again.patient, before.patient, before.hospital, strict=True))
    assert len(pairs) == len(set(again.patient)) == len(set(zip(before.patient, before.hospital, strict=True)))
    for name in ("sex", "view", "age"):
        assert again.groups[name].tolist() == before.groups[name].tolist()


@pytest.mark.parametrize("target", ["disease", "thalach"])
def test_a_table_reads_back_with_gaps_kinds_and_groups(tmp_path: Path, target: str) -> None:
    records = SOURCES["heart"](target=target).load()
    splits = written(records, tmp_path)
    again = split_on_disk(tmp_path, task="" if target == "disease" else "regression").load()
    before = expected(records, splits)
    assert_same(again, before, splits)
    pd.testing.assert_frame_equal(gaps_alike(again.features), gaps_alike(before.features))
    pd.testing.assert_frame_equal(gaps_alike(again.groups), gaps_alike(before.groups))
    assert again.columns == records.columns
    assert again.outcome == records.outcome


def test_a_feature_may_be_called_label_or_split(tmp_path: Path) -> None:
    rows = 60
    table = pd.DataFrame({"label": np.arange(rows) / 7, "split": np.array(["a,b", 'c"', None] * 20, dtype=object)})
    records = Records(
        table,
        np.linspace(0, 1, rows) ** 3,
        (),
        np.array(["north", "south"] * 30, dtype=object),
        (Column("label"), Column("split", "categorical")),
        given_task=Regression(("stay",)),
        recorded={"north": ("label", "split"), "south": ("label",)},
    )
    splits = written(records, tmp_path)
    again = split_on_disk(tmp_path, task="regression").load()
    assert_same(again, expected(records, splits), splits)
    pd.testing.assert_frame_equal(gaps_alike(again.features), gaps_alike(expected(records, splits).features))
    assert dict(again.recorded) == {"north": ("label", "split"), "south": ("label",)}


def test_several_outcomes_read_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "a.csv").write_text(
        "x,died,stay\n"
        + "\n".join(f"{rng.random()},{'yes' if i % 3 else 'no'},{rng.random()}" for i in range(80))
        + "\n"
    )
    settings: dict[str, Any] = {"outcomes": ("died", "stay"), "task": {"stay": "regression"}}
    records = SOURCES["csv"](files={"a": tmp_path / "a.csv"}, **settings).load()
    splits = written(records, tmp_path / "split")
    again = split_on_disk(tmp_path / "split", **settings).load()
    assert_same(again, expected(records, splits), splits)
    with pytest.raises(StudyError, match="of another outcome"):
        split_on_disk(tmp_path / "split").load()


def test_a_site_reads_its_own_file_and_no_other(tmp_path: Path) -> None:
    records = classes_of_images(1)
    splits = written(records, tmp_path)
    own = splits[1]
    for split in splits:
        if split.site != own.site:
            (tmp_path / f"{split.site}.npz").unlink()
    again = split_on_disk(tmp_path / f"{own.site}.npz").load()
    np.testing.assert_array_equal(again.features, records.take(own.rows).features)
    assert set(again.hospital) == {own.site}
    with pytest.raises(DataError, match="is not there"):
        split_on_disk(tmp_path).load()


def test_a_split_and_each_file_of_it_can_be_described(tmp_path: Path) -> None:
    written(classes_of_images(3), tmp_path / "images")
    whole = describe_data(str(tmp_path / "images"))
    assert whole["summary"][0] == "made-up, split by by-hospital, seed 3"
    assert "3 sites" in whole["summary"][1]
    assert whole["columns"][0]["type"] == "uint8 3 x 6 x 6"
    one = describe_data(str(tmp_path / "images" / "hospital-1.npz"))
    assert one["rows"] == whole["hospitals"]["hospital-1"]["rows"]
    written(SOURCES["heart"]().load(), tmp_path / "tables")
    table = describe_data(str(tmp_path / "tables" / "va.csv"))
    assert table["summary"][1].startswith("va, one of 4 sites: ")
    assert "thal" in [column["name"] for column in table["columns"]]


def changed(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads((folder / FILE).read_text())
    change(content)
    (folder / FILE).write_text(json.dumps(content))


def rehashed(folder: Path) -> None:
    """As if the manifest had been written for the files as they now are."""
    changed(folder, lambda content: [s.update(sha256=sha256_of(folder / s["file"])) for s in content["sites"]])


def test_manifests_that_do_not_fit_are_one_clear_error_each(tmp_path: Path) -> None:
    records = classes_of_images(1)

    def refusal(name: str, spoil: Callable[[Path], object]) -> str:
        written(records, tmp_path / name)
        spoil(tmp_path / name)
        with pytest.raises(DataError) as caught:
            split_on_disk(tmp_path / name).load()
        return f"{caught.value.problem}. {caught.value.remedy}"

    def set_site(key: str, value: Any) -> Callable[[Path], None]:
        return lambda folder: changed(folder, lambda content: content["sites"][0].update({key: value}))

    def same_file(folder: Path) -> None:
        changed(folder, lambda content: content["sites"][0].update(file=content["sites"][1]["file"]))

    def relabelled(folder: Path) -> None:
        path = folder / "hospital-0.npz"
        with np.load(path) as file:
            content = dict(file)
        np.savez(path, **{**content, "train_labels": np.eye(3, dtype=np.int64)[content["train_labels"]]})
        rehashed(folder)

    def cut(folder: Path) -> None:
        path = folder / "hospital-0.npz"
        path.write_bytes(path.read_bytes()[:500])

    def cut_and_known(folder: Path) -> None:
        cut(folder)
        rehashed(folder)

    assert "its SHA-256 is another" in refusal("cut", cut)
    assert "cannot be opened" in refusal("cut-and-known", cut_and_known)
    assert "has no manifest.json" in refusal("none", lambda folder: (folder / FILE).unlink())
    assert "no manifest of a split" in refusal("later", lambda f: changed(f, lambda c: c.update(format="split 2")))
    assert "cannot be read" in refusal("json", lambda f: (f / FILE).write_text((f / FILE).read_text()[:200]))
    assert "cannot be read (KeyError)" in refusal("keys", lambda f: changed(f, lambda c: c.pop("task")))
    assert "not in this folder" in refusal("outside", set_site("file", "../hospital-0.npz"))
    assert "one of them twice" in refusal("twice", same_file)
    rows = {"train": 3, "validation": 2, "test": 1}
    assert "its images are not as many" in refusal("rows", set_site("rows", rows))
    assert "its images are not as many, or not of the shape, that manifest.json gives" in refusal(
        "shape", lambda f: changed(f, lambda c: c.update(image=[3, SIZE, SIZE]))
    )
    two = {"kind": "binary", "names": ["red", "green"]}
    assert "its labels are not those" in refusal("classes", lambda f: changed(f, lambda c: c.update(task=two)))
    assert "labels does not hold numbers or texts of one kind and shape" in refusal("labels", relabelled)


def test_a_table_that_does_not_fit_is_one_clear_error(tmp_path: Path) -> None:
    written(SOURCES["heart"]().load(), tmp_path)
    path = tmp_path / "va.csv"
    text = path.read_text()
    for name, other, problem in (
        ("header", text.replace("chol", "cholesterol", 1), "its columns or rows"),
        ("rows", text.rsplit("\n", 2)[0] + "\n", "its columns or rows"),
        ("parts", text.replace(",test,", ",train,"), "training, validation and test rows"),
        ("labels", text.replace("no disease", "healthy"), "its labels"),
        ("numbers", text.replace(",0.0,", ",none,"), "a column of numbers has texts"),
    ):
        path.write_text(other)
        rehashed(tmp_path)
        with pytest.raises(DataError, match=problem):
            split_on_disk(tmp_path).load()
        assert name


def test_no_value_of_a_patient_is_in_an_error(tmp_path: Path) -> None:
    written(SOURCES["heart"]().load(), tmp_path)
    path = tmp_path / "va.csv"
    path.write_text(path.read_text().replace(",0.0,", ",secret7,", 1))
    rehashed(tmp_path)
    with pytest.raises(DataError) as caught:
        split_on_disk(tmp_path).load()
    assert "secret7" not in str(caught.value)
