"""A split that was written to disk, read back: the same images, labels and sides."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.radiographs import NAMES, SIZE, cohort_of, some_radiographs
from wardround.core.errors import RunError
from wardround.data.cohort import split_sites
from wardround.data.partition.by_hospital import by_hospital
from wardround.data.records import SPLIT_PARTS, Records
from wardround.data.sources.chest_xray import chest_xray
from wardround.data.split import Split
from wardround.data.split_files.export import export_split
from wardround.study.schema import Evaluation

ALIKE = {"train": "train", "validation": "val", "test": "test"}


def exported(records: Records, out: Path, **evaluation: Any) -> tuple[Split, ...]:
    cohort = cohort_of(records)
    splits = split_sites(cohort, by_hospital(), Evaluation(**evaluation), 3)
    written = export_split(cohort, splits, out)
    assert written == {f"{split.site}.npz": len(split.rows) for split in splits}
    return splits


def read(path: Path) -> Records:
    return chest_xray(path, size=SIZE, findings=NAMES).load()


@pytest.mark.parametrize("validation_share", [0.0, 0.2])
def test_what_was_written_reads_back_as_it_was(tmp_path: Path, validation_share: float) -> None:
    records = some_radiographs(90, unknown=0.1)
    for split in exported(records, tmp_path / "split", validation_share=validation_share):
        again = read(tmp_path / "split" / f"{split.site}.npz")
        expected = records.take(split.rows)
        np.testing.assert_array_equal(again.features, expected.features)
        np.testing.assert_array_equal(again.target, expected.target)  # unknown ones too
        assert again.classes == NAMES
        assert again.split is not None
        assert (
            again.split.tolist() == np.repeat(SPLIT_PARTS, [len(getattr(split, side)) for side in SPLIT_PARTS]).tolist()
        )
        for name in ("sex", "view", "age"):
            assert again.groups[name].tolist() == expected.groups[name].tolist()
        assert again.patient is not None
        assert expected.patient is not None
        pairs = set(zip(again.patient, expected.patient, strict=True))  # other numbers for the same patients
        assert len(pairs) == len(set(again.patient)) == len(set(expected.patient))


def test_what_a_flag_cannot_say_is_left_out_and_ages_are_kept_to_the_month(tmp_path: Path) -> None:
    records = some_radiographs(60)
    views = records.groups["view"].mask(records.groups.index % 7 == 0, "LATERAL")
    ages = records.groups["age"].mask(records.groups.index % 5 == 0).where(records.groups.index % 3 != 0, 0.25)
    changed = replace(records, groups=records.groups.assign(view=views, age=ages))
    (split, *_) = exported(changed, tmp_path / "split")
    again = read(tmp_path / "split" / f"{split.site}.npz")
    assert "view" not in again.groups  # a lateral view is not a PA view
    assert again.groups["sex"].tolist() == changed.take(split.rows).groups["sex"].tolist()
    expected = changed.take(split.rows).groups["age"]
    assert expected.isna().any()
    assert (expected == 0.25).any()
    pd.testing.assert_series_equal(again.groups["age"].astype(float), expected, check_names=False)


def test_no_patients_number_leaves_with_a_file(tmp_path: Path) -> None:
    records = some_radiographs(60)
    (split, *_) = exported(records, tmp_path / "images")
    with np.load(tmp_path / "images" / f"{split.site}.npz", allow_pickle=False) as file:
        assert set(file) >= {f"{side}_{name}" for side in ALIKE.values() for name in ("images", "labels", "patient_id")}
        assert "allow_pickle" not in file
        numbers = np.concatenate([file[f"{side}_patient_id"] for side in ALIKE.values()])
    assert records.patient is not None
    assert numbers.tolist() == pd.factorize(records.patient[split.rows])[0].tolist()
    table = replace(
        records,
        features=pd.DataFrame({"x": np.arange(len(records), dtype=float)}),
        target=np.arange(len(records)) % 2,
        classes=("no", "yes"),
        boxes=None,
    )
    cohort = cohort_of(table)
    splits = split_sites(cohort, by_hospital(), Evaluation(), 3)
    export_split(cohort, splits, tmp_path / "tables")
    written = pd.read_csv(tmp_path / "tables" / f"{splits[0].site}.csv")
    expected = pd.factorize(records.patient[splits[0].rows])[0]
    assert written["patient"].tolist() == expected.tolist()
    assert not any("p0" in line for line in (tmp_path / "tables" / f"{splits[0].site}.csv").read_text().splitlines())


def test_colours_come_last_in_a_file(tmp_path: Path) -> None:
    grey = some_radiographs(60)
    assert isinstance(grey.features, np.ndarray)
    coloured = replace(grey, features=np.repeat(grey.features, 3, axis=1), target=grey.target[:, 0], classes=("a", "b"))
    (split, *_) = exported(coloured, tmp_path / "split")
    with np.load(tmp_path / "split" / f"{split.site}.npz", allow_pickle=False) as file:
        assert file["train_images"].shape == (len(split.train), SIZE, SIZE, 3)
        np.testing.assert_array_equal(file["train_images"][..., 1], grey.features[split.train, 0])
        np.testing.assert_array_equal(file["test_labels"], coloured.target[split.test])


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="not an empty folder"):
        exported(some_radiographs(60), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
