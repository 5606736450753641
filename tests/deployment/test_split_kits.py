"""From a split on disk to hospitals: kits that name each site's part, and class images deployed as simulated."""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.deployment import hospital_files as hospitals
from tests.deployment.parity import assert_parity
from tests.medmnist_files import layout
from tests.radiographs import cohort_of
from wardround.core.errors import DeployError
from wardround.core.threads import torch_threads
from wardround.data.cohort import split_sites
from wardround.data.partition.by_hospital import by_hospital
from wardround.data.records import Records
from wardround.data.sources.split_on_disk import split_on_disk
from wardround.data.split_files.export import export_split
from wardround.deployment import CoordinatorKit, SiteFile, open_source
from wardround.deployment.provisioning.split_kits import kits_of_split
from wardround.runs.catalog import families, load_study
from wardround.runs.drafting.study_of_flags import Flags, study_of
from wardround.study.schema import Evaluation

NAMES = hospitals.NAMES[:3]


def split_of_classes(out: Path, colours: int = 3) -> Path:
    content = layout("eight", times=6)
    pixels = np.moveaxis(content["train_images"], 3, 1)[:, :colours, ::2, ::2]
    count = len(pixels)
    records = Records(
        np.ascontiguousarray(pixels),
        (content["train_labels"][:, 0] % 4).astype(np.int64),
        ("a", "b", "c", "d"),
        np.array([NAMES[(row // 4) % 3] for row in range(count)], dtype=object),
        groups=pd.DataFrame(index=range(count)),
    )
    records = records.take(np.argsort([NAMES.index(name) for name in records.hospital], kind="stable"))
    cohort = cohort_of(records)
    export_split(cohort, split_sites(cohort, by_hospital(), Evaluation(test_share=0.25), 1), out)
    return out


def study(folder: Path, **training: Any) -> dict[str, Any]:
    content = study_of(Flags(str(folder), mu=(0.1,), rounds=2), families())
    model = {"kind": "cnn", "channels": [3, 4], "hidden": 8}
    return {**content, "model": model, "training": {**content["training"], **training}}


@pytest.mark.parametrize("colours", [1, 3])
def test_class_images_of_a_split_are_deployed_as_they_are_simulated(tmp_path: Path, colours: int) -> None:
    """Each site reads its own file and nothing else; the simulation reads the folder."""
    folder = split_of_classes(tmp_path / "split", colours)
    sources = {name: partial(split_on_disk, folder / f"{name}.npz") for name in NAMES}
    augment = {"augment": {"flip": "horizontal", "rotate": 10, "noise": 0.05}} if colours == 3 else {}
    with torch_threads(1):
        assert_parity(study(folder, **augment), tmp_path / "run", sources)


def test_kits_name_each_sites_part_and_are_made_once(tmp_path: Path) -> None:
    folder = split_of_classes(tmp_path / "split")
    parsed, known = load_study(study(folder))
    kits, made = kits_of_split(parsed, known, None, ["127.0.0.1"], 9123)
    assert made
    assert kits == folder / "kits"
    assert CoordinatorKit.load(kits).sites == NAMES
    whole = split_on_disk(folder).load()
    for name in NAMES:
        site = SiteFile.load(kits / "sites" / name)
        assert site.coordinator == "127.0.0.1:9123"
        assert site.data == {"source": "split-on-disk", "path": f"../../../{name}.npz"}
        own = open_source(site, known).load()
        assert set(own.hospital) == {name}
        np.testing.assert_array_equal(own.features, np.asarray(whole.features)[whole.hospital == name])
    moved = folder.rename(tmp_path / "elsewhere")  # paths in kits begin at the kits
    assert len(open_source(SiteFile.load(moved / "kits" / "sites" / NAMES[0]), known).load())
    os.rename(moved, folder)
    assert kits_of_split(parsed, known, None, None, None) == (kits, False)
    with pytest.raises(DeployError, match="the kits are made"):
        kits_of_split(parsed, known, None, None, 9124)


def test_without_a_kit_only_a_split_is_known(tmp_path: Path) -> None:
    parsed, known = load_study("heart-deployed")
    with pytest.raises(DeployError, match="no kit is named"):
        kits_of_split(parsed, known, None, None, None)
    with pytest.raises(DeployError, match="no coordinator's kit here"):
        kits_of_split(parsed, known, tmp_path / "kits", None, None)


def test_a_kits_study_is_the_same_study_where_the_split_is_not(tmp_path: Path) -> None:
    parsed, known = load_study(study(split_of_classes(tmp_path / "split")))
    kits, _ = kits_of_split(parsed, known, tmp_path / "kits", None, None)
    assert str(tmp_path) not in (kits / "coordinator" / "study.toml").read_text()
    assert load_study(kits / "sites" / NAMES[0] / "study.toml")[0].hash == parsed.hash
    other = replace(parsed.arms[0].training, rounds=3)
    assert load_study(study(tmp_path / "split", rounds=other.rounds))[0].hash != parsed.hash
