"""The shipped studies of a number and of a count: `heart-rate` and `visits`."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import wardround
from wardround.data.cohort import load_cohort, split_sites
from wardround.data.sources import SOURCES
from wardround.data.sources.visits import COLUMNS, visits
from wardround.study.schema import Evaluation, Preparation
from wardround.tasks import Count

ARMS = ["local", "pooled", "fedavg", "fedprox", "scaffold"]
SMALL = {"evaluation.seeds": {"first": 1, "count": 2}, "training.rounds": 3}


def test_the_visits_are_those_that_statsmodels_ships() -> None:
    from statsmodels.datasets import randhie

    table, records = randhie.load_pandas().data, visits().load()
    assert isinstance(records.features, pd.DataFrame)
    assert len(records) == len(table) == 20190
    assert np.array_equal(records.target[:, 0], table["mdvis"])
    assert (records.target[:, 1] == 1).all()
    assert isinstance(records.task, Count)
    assert records.task.dispersion == "fitted"
    counts = records.features["health"].value_counts()
    assert counts["good"] == table["hlthg"].sum()
    assert counts["excellent"] == len(table) - table[["hlthg", "hlthf", "hlthp"]].to_numpy().sum()
    for column in COLUMNS:
        if column.limits is not None:  # known without looking at rows, and wide enough
            assert records.features[column.name].between(*column.limits).all()


def test_rows_with_equal_features_are_one_person_who_is_never_trained_on_and_tested() -> None:
    cohort = load_cohort(visits(), Preparation())
    assert isinstance(cohort.records.features, pd.DataFrame)
    distinct = len(cohort.records.features.drop_duplicates())
    assert distinct == len(np.unique(cohort.patient)) == 2760
    study, families = wardround.load_study("visits")
    partition = study.arms[0].sites.build(families.partitioners)
    splits = split_sites(cohort, partition, Evaluation(), 7)
    trained = np.unique(np.concatenate([cohort.patient[split.train] for split in splits]))
    tested = np.unique(np.concatenate([cohort.patient[split.test] for split in splits]))
    assert not np.isin(tested, trained).any()
    by_site = [np.unique(cohort.patient[split.rows]) for split in splits]
    assert len(np.concatenate(by_site)) == distinct  # nobody is at two sites


def test_a_measurement_of_the_heart_data_is_predicted_without_the_diagnosis() -> None:
    records = SOURCES["heart"](target="thalach").load()
    assert {name: int((records.hospital == name).sum()) for name in records.hospitals} == {
        "cleveland": 303,
        "hungarian": 293,
        "switzerland": 122,
        "va": 147,
    }
    assert "thalach" not in {column.name for column in records.columns}
    assert isinstance(records.features, pd.DataFrame)
    assert not {"num", "disease"} & set(records.features.columns)
    rule_of_thumb = np.abs(220 - records.features["age"] - records.target).mean()
    assert rule_of_thumb == pytest.approx(30.8, abs=0.05)


@pytest.mark.parametrize(
    ("name", "primary"), [("heart-rate", "mae"), pytest.param("visits", "deviance", marks=pytest.mark.slow)]
)
def test_a_shipped_study_of_a_number_runs_and_is_reported(name: str, primary: str, tmp_path: Path) -> None:
    run = wardround.run_study(name, tmp_path, quick=True, changes=SMALL)
    results = run.results
    assert results["primary_metric"] == primary
    assert [arm for arm in results["arms"] if arm in ARMS] == ARMS
    for arm in ARMS:
        figures = {metric: content["mean"] for metric, content in results["arms"][arm]["metrics"].items()}
        assert all(np.isfinite(value) for value in figures.values()), arm
        assert figures["mae"] < (25 if name == "heart-rate" else 3.5)  # beats per minute; visits
    assert not [notice for notice in results["notices"] if notice["severity"] == "error"]


@pytest.mark.slow
def test_what_the_studies_say_came_out(tmp_path: Path) -> None:
    figures = {
        name: {
            arm: content["metrics"][metric]["mean"]
            for arm, content in wardround.run_study(name, tmp_path).results["arms"].items()
        }
        for name, metric in (("heart-rate", "mae"), ("visits", "deviance"))
    }
    rate, count = figures["heart-rate"], figures["visits"]
    said = {"local": 16.6, "pooled": 16.5, "fedavg": 16.7, "scaffold": 16.6, "fedavg-own-intercept": 16.5}
    assert {arm: rate[arm] for arm in said} == pytest.approx(said, abs=0.051)
    said = {"local": 4.247, "pooled": 4.193, "fedavg": 4.191, "fedprox": 4.189, "scaffold": 4.198}
    assert count == pytest.approx(said, abs=0.002)
