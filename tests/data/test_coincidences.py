"""Rows that are equal at two hospitals: what chance explains is left in peace, copies are found."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import wardround
from tests.data.planted_mistakes import by_hospital, coarse_federation, cohort_of, with_copies_elsewhere
from tests.real_data import shared_data
from wardround.core.notices import Notice
from wardround.data.checks.before_training import check_splits
from wardround.data.checks.coincidences import ALWAYS, expected_pairs, explained_by_chance
from wardround.data.cohort import Cohort, load_cohort
from wardround.data.sources.csv.hospital_files import csv
from wardround.data.sources.heart import heart
from wardround.study.schema import Preparation

EQUAL_ROWS = ("shared-rows", "equal-rows", "leak", "copies")


def found(data: Cohort) -> list[Notice]:
    return [notice for notice in check_splits(data, by_hospital(data), False) if notice.code in EQUAL_ROWS]


def false_alarms(seeds: range) -> list[int]:
    return [seed for seed in seeds if found(cohort_of(*coarse_federation(seed)))]


def missed(seeds: range) -> list[int]:
    lost = []
    for seed in seeds:
        table, target, hospital, count = with_copies_elsewhere(seed)
        refused = {
            notice.site: notice for notice in found(cohort_of(table, target, hospital)) if notice.code == "shared-rows"
        }
        if "h0" not in refused or refused["h0"].severity != "error" or refused["h0"].counts["rows"] < count:
            lost.append(seed)
    return lost


def test_coarse_columns_are_no_copies_and_every_plant_is_found() -> None:
    assert false_alarms(range(4)) == []
    assert missed(range(4)) == []


@pytest.mark.slow
def test_200_federations_with_coarse_columns_and_200_with_copies() -> None:
    assert false_alarms(range(200)) == []
    assert missed(range(200)) == []


@pytest.mark.slow
def test_the_heart_hospitals_in_any_few_columns() -> None:
    """Their patients are different people, and in few columns hundreds of rows are equal."""
    records = heart().load()
    assert isinstance(records.features, pd.DataFrame)
    rng, equal = np.random.default_rng(0), 0
    for _ in range(40):
        places = np.sort(rng.permutation(13)[: rng.integers(2, 12)])
        columns = tuple(records.columns[place] for place in places)
        fewer = replace(records, features=records.features[[c.name for c in columns]], columns=columns, recorded={})
        data = cohort_of(fewer.features, records.target, records.hospital)  # type: ignore[arg-type]
        equal += int(pd.Series(data.prints).duplicated().sum())
        assert [notice for notice in found(data) if notice.code != "copies"] == []
    assert equal > 1000


def test_what_is_expected_is_what_occurs_where_columns_are_independent() -> None:
    """Six columns of 2, 3, 4, 5, 6 and 7 equally frequent levels and a target: 1 pair in 2 * 5040 is equal."""
    rng = np.random.default_rng(1)
    table = pd.DataFrame({f"c{n}": rng.integers(0, n, 3000).astype(float) for n in range(2, 8)})
    hospital = np.repeat(np.array(["a", "b"], dtype=object), 1500)
    data = cohort_of(table, rng.integers(0, 2, 3000), hospital)
    here, there = np.arange(1500), np.arange(1500, 3000)
    pairs = 1500**2 / (2 * 5040)
    assert expected_pairs(data.hashed, here, there) == pytest.approx(pairs, rel=0.1)
    assert expected_pairs(data.hashed, here) == pytest.approx(1500 * 1499 / 2 / (2 * 5040), rel=0.15)


def test_a_column_that_follows_from_another_adds_no_evidence() -> None:
    rng = np.random.default_rng(2)
    table = pd.DataFrame({f"c{n}": rng.integers(0, n, 1000).astype(float) for n in range(2, 7)})
    hospital = np.repeat(np.array(["a", "b"], dtype=object), 500)
    target = rng.integers(0, 2, 1000)
    once = cohort_of(table, target, hospital)
    twice = cohort_of(table.assign(**{f"again{n}": table[f"c{n}"] * 2.5 for n in range(2, 7)}), target, hospital)
    equal = int(np.isin(once.prints[:500], once.prints[500:]).sum())
    assert equal > 50
    assert explained_by_chance(twice.hashed, np.arange(500), np.arange(500, 1000)) >= equal
    assert found(once) == found(twice) == []


def test_copies_do_not_explain_themselves() -> None:
    """However many rows of continuous columns are copied, none of them is expected."""
    rng = np.random.default_rng(3)
    half = pd.DataFrame({f"x{n}": rng.normal(size=200) for n in range(4)})
    hospital = np.repeat(np.array(["a", "b"], dtype=object), 200)
    target = np.tile(rng.integers(0, 2, 200), 2)
    order = np.concatenate(
        [np.arange(200), 200 + rng.permutation(200)]
    )  # so that copies are on both sides of the splits
    data = cohort_of(pd.concat([half, half], ignore_index=True).iloc[order], target[order], hospital)
    assert explained_by_chance(data.hashed, np.arange(200), np.arange(200, 400)) == ALWAYS
    assert {(notice.code, notice.severity) for notice in found(data)} == {("shared-rows", "error"), ("leak", "error")}


def test_patients_whose_numbers_can_be_compared_are_different_people() -> None:
    """The issue is not whether rows are equal, but whether they are one patient's."""
    table, target, hospital, count = with_copies_elsewhere(0)
    rows = len(target)
    different = np.arange(rows).astype(str)
    known = cohort_of(table, target, hospital, patient=different)
    assert {(notice.severity, notice.code) for notice in found(known)} == {("warning", "equal-rows")}
    assert found(known)[0].counts["rows"] == count
    # each hospital numbers its patients for itself: nobody knows, and the rows speak
    own = replace(known.records, numbering={name: name for name in known.records.hospitals})
    assert "error" in {notice.severity for notice in found(replace(known, records=own))}
    same = different.copy()
    same[rows - count :] = ["0"] * count  # one patient at two hospitals
    assert "error" in {notice.severity for notice in found(cohort_of(table, target, hospital, patient=same))}


def test_coarse_rows_of_known_patients_are_not_even_warned_of() -> None:
    table, target, hospital = coarse_federation(1)
    data = cohort_of(table, target, hospital, patient=np.arange(len(target)).astype(str))
    assert pd.Series(data.prints).duplicated().any()
    assert found(data) == []


def test_the_same_file_twice_is_found_however_coarse_it_is() -> None:
    table = pd.DataFrame({"age": 40.0 + np.arange(60) % 30})
    both = pd.concat([table, table], ignore_index=True)
    hospital = np.repeat(np.array(["north", "south"], dtype=object), 60)
    target = np.tile(np.arange(60) % 2, 2)
    (shared, *_) = found(cohort_of(both, target, hospital))
    assert (shared.code, shared.counts["rows"], shared.counts["of"]) == ("shared-rows", 60, 60)


def test_clevelands_patients_under_another_name() -> None:
    """1,025 rows are Cleveland's 302 again, with the target turned round."""
    path = shared_data("seed-csv") / "cardiac_arrest_dataset_1025.csv"
    alone = load_cohort(csv({"arrest": path}, "target"), Preparation())
    assert [(notice.code, notice.severity, notice.counts["rows"]) for notice in found(alone)] == [
        ("copies", "error", 723)
    ]
    arrest = pd.read_csv(path).astype(float)
    uci = heart(hospitals=("cleveland",)).load()
    assert isinstance(uci.features, pd.DataFrame)
    cleveland = uci.features.astype(float)
    # the two files code some columns differently: compared is what is a measurement in both
    names = ["age", "sex", "trestbps", "chol", "thalach", "oldpeak", "fbs", "exang"]
    both = pd.concat([arrest[names], cleveland[names]], ignore_index=True)
    target = np.concatenate([1 - arrest["target"].to_numpy(dtype=np.int64), uci.target])
    hospital = np.repeat(np.array(["arrest", "cleveland"], dtype=object), [len(arrest), len(cleveland)])
    refused = {(notice.code, notice.site): notice for notice in found(cohort_of(both, target, hospital))}
    assert refused["shared-rows", "cleveland"].severity == "error"
    assert refused["shared-rows", "cleveland"].counts["rows"] > 290


def test_shared_numbers_of_files_are_compared_and_own_numbers_are_not(tmp_path: Any) -> None:
    rng = np.random.default_rng(5)
    rows = [f"{rng.normal():.6f},{rng.normal():.6f},{'no' if i % 2 else 'yes'}" for i in range(80)]
    files = {}
    for start, name in ((0, "north"), (500, "south")):
        files[name] = tmp_path / f"{name}.csv"
        own = [*rows[:20], *(f"{rng.normal():.6f},{rng.normal():.6f},{'no' if i % 2 else 'yes'}" for i in range(60))]
        files[name].write_text("mrn,a,b,died\n" + "".join(f"{start + i},{row}\n" for i, row in enumerate(own)))
    for shared, expected in ((False, ("shared-rows", "error")), (True, ("equal-rows", "warning"))):
        data = {"source": "csv", "files": {k: str(v) for k, v in files.items()}, "target": "died", "patient": "mrn"}
        raw = {"name": "ids", "data": {**data, "shared_ids": shared}, "arms": [{"algorithm": "fedavg"}]}
        plan = wardround.load_plan(*wardround.load_study(raw))
        shown = [notice for notice in wardround.runs.plan.check_study(plan) if notice.code in EQUAL_ROWS[:2]]
        assert {(notice.code, notice.severity) for notice in shown} == {expected}
