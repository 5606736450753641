"""The shipped study `csv-hospitals`: its two made-up files are what the generator writes, and a copy of it runs."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import wardround
from benchmarks.csv_hospitals import ROWS, admissions, text_of
from wardround.core.errors import DataError
from wardround.data.records import Records
from wardround.runs.catalog import find_study

STUDY = find_study("csv-hospitals")
SHARED = ("age", "sex", "heart_rate", "temperature", "systolic", "sodium", "potassium", "lactate")


@pytest.fixture(scope="module")
def records() -> Records:
    study, families = wardround.load_study("csv-hospitals")
    loaded: Records = families.sources["csv"](**study.data.options).load()
    return loaded


@pytest.mark.parametrize("name", ROWS)
def test_the_shipped_files_are_those_of_the_generator(name: str) -> None:
    shipped = STUDY.parent / "files" / "csv-hospitals" / f"{name}.csv"
    assert shipped.read_text(encoding="utf-8") == text_of(name)


def test_each_hospital_is_understood_as_it_was_made(records: Records) -> None:
    assert records.recorded == {
        "north": (*SHARED, "crp at north", "creatinine", "ward", "smoker"),
        "south": (*SHARED, "crp at south", "egfr", "diabetes", "triage"),
    }
    assert {column.name for column in records.columns if column.kind == "categorical"} == {
        "sex",
        "crp at south",
        "ward",
        "smoker",
        "diabetes",
        "triage",
    }
    assert isinstance(records.features, pd.DataFrame)
    for name in ROWS:
        truth, rows = admissions(name), records.hospital == name
        assert records.classes == ("survived", "died")
        np.testing.assert_array_equal(records.target[rows], truth["dead"])  # although 0 means dead in the south
        np.testing.assert_array_equal(records.features["age"][rows], truth["age"])
        assert records.patient is not None
        assert len(set(records.patient[rows].tolist())) == truth["who"].nunique() < len(truth)


def test_the_dead_do_not_come_back() -> None:
    for name in ROWS:
        rows = admissions(name)
        before = rows[rows["who"].duplicated(keep="last")]
        assert len(before) > 20
        assert not before["dead"].any()


def test_a_copy_of_the_study_runs_elsewhere(tmp_path: Path) -> None:
    shutil.copy(STUDY, tmp_path / "study.toml")
    shutil.copytree(STUDY.parent / "files" / "csv-hospitals", tmp_path / "files" / "csv-hospitals")
    changes = {"training.rounds": 2, "evaluation.seeds.count": 1}
    run = wardround.run_study(tmp_path / "study.toml", tmp_path / "runs", quick=True, changes=changes)
    assert list(run.results["arms"]) == ["local", "fedavg", "fedprox"]
    assert set(run.results["arms"]["fedavg"]["sites"]) == {"north", "south"}


@pytest.mark.slow
def test_the_scores_are_not_too_sure_of_themselves(tmp_path: Path) -> None:
    """A template to copy: what it trains should be about as sure as it is right. 60 rounds at a rate of 0.1: 0.3."""
    run = wardround.run_study("csv-hospitals", tmp_path)
    for name, arm in run.results["arms"].items():
        assert 0.7 < arm["calibration"]["slope"]["value"] < 1.3, name
        assert arm["metrics"]["loss"]["mean"] < 0.55, name  # a coin that knows how many die: 0.65


def test_the_words_of_the_south_are_refused_without_labels() -> None:
    study, families = wardround.load_study("csv-hospitals")
    options = {**study.data.options, "labels": {"north": study.data.options["labels"]["north"]}}
    with pytest.raises(DataError, match=r"'0', '1'.*'survived'.*'south' has '0', '1'"):
        families.sources["csv"](**options).load()
