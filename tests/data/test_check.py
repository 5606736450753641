"""Checks before training: each trap is found, named and counted, and no patient's value is in a message."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import wardround
from tests.real_data import shared_data
from wardround.core.errors import CheckError
from wardround.core.notices import CHECKS, Notice, line_of
from wardround.data.checks.before_training import check_splits, refuse_errors
from wardround.data.cohort import Cohort, load_cohort
from wardround.data.records import Column, Records
from wardround.data.sources.csv.hospital_files import csv
from wardround.data.split import Split, fingerprints
from wardround.runs.plan import check_study, load_plan
from wardround.study.schema import Preparation


def cohort(rows: int = 80, **columns: np.ndarray) -> Cohort:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"age": rng.normal(60, 10, rows), **columns})
    records = Records(
        table,
        np.arange(rows) % 2,
        ("no", "yes"),
        np.array(["a"] * (rows // 2) + ["b"] * (rows - rows // 2), dtype=object),
        tuple(Column(name) for name in table.columns),
    )
    return Cohort(records, np.arange(rows), fingerprints(records), ())


def splits(rows: int = 80) -> list[Split]:
    half, empty = rows // 2, np.array([], dtype=np.int64)
    return [
        Split("a", np.arange(0, half - 10), empty, np.arange(half - 10, half)),
        Split("b", np.arange(half, rows - 10), empty, np.arange(rows - 10, rows)),
    ]


def found(data: Cohort, sides: list[Split], overlapping: bool = False) -> dict[tuple[str, str], Notice]:
    notices = check_splits(data, sides, overlapping)
    assert {notice.code for notice in notices} <= set(CHECKS)
    return {(notice.code, notice.site): notice for notice in notices}


def test_sound_data_give_no_finding() -> None:
    assert found(cohort(), splits()) == {}


def test_copies_at_two_sites_are_an_error_with_their_count() -> None:
    data = cohort()
    table = data.records.features
    assert isinstance(table, pd.DataFrame)
    table.iloc[70:75] = table.iloc[0:5].to_numpy()  # b's test rows are a's training rows again
    again = Cohort(data.records, data.row_numbers, fingerprints(data.records), ())
    findings = found(again, splits())
    assert findings["shared-rows", "a"].counts == {"rows": 5, "of": 40, "by_chance": 2}
    assert findings["leak", "b"].severity == "error"
    assert findings["leak", "b"].counts == {"rows": 5, "of": 10}
    with pytest.raises(CheckError, match=r'accept = \["shared-rows"\]') as refused:
        refuse_errors(findings.values())
    assert refused.value.notice == findings["shared-rows", "a"]
    assert f"Also: {line_of(findings['leak', 'b'])}" in str(refused.value)


def test_the_same_patient_at_two_sites_is_found_by_id_even_when_the_rows_differ() -> None:
    data = cohort()
    patient = np.array([f"p{i}" for i in range(80)], dtype=object)
    patient[40:44] = patient[0:4]
    records = Records(**{**vars(data.records), "patient": patient})
    findings = found(Cohort(records, data.row_numbers, data.prints, ()), splits())
    assert findings["shared-rows", "b"].severity == "error"
    assert findings["shared-rows", "b"].counts == {"rows": 4, "of": 40}


def test_a_partition_that_overlaps_by_design_is_warned_of_and_a_study_may_accept_an_error() -> None:
    data = cohort()
    shared = [splits()[0], Split("b", np.arange(20, 60), np.array([], dtype=np.int64), np.arange(60, 80))]
    assert {notice.severity for notice in found(data, shared, overlapping=True).values()} == {"warning"}
    assert "error" in {notice.severity for notice in found(data, shared).values()}
    accepted = check_splits(data, shared, False, accept=["shared-rows", "leak"])
    refuse_errors(accepted)
    assert {(notice.severity, notice.accepted) for notice in accepted} == {("warning", True)}


def test_empty_and_constant_columns_are_named_for_the_site_that_has_them() -> None:
    never = np.where(np.arange(80) < 40, np.nan, np.arange(80.0))
    constant = np.where(np.arange(80) < 40, np.arange(80.0), 7.0)
    findings = found(cohort(crp=never, hr=constant), splits())
    assert findings["empty-column", "a"].columns == ("crp",)
    assert findings["constant-column", "b"].columns == ("hr",)
    assert ("constant-column", "a") not in findings


def test_a_column_that_a_hospital_does_not_record_is_not_called_empty() -> None:
    never = np.where(np.arange(80) < 40, np.nan, np.arange(80.0))
    whole = cohort(crp=never, hr=never[::-1].copy())
    recorded = {"a": ("age", "hr"), "b": ("age", "crp", "hr")}
    data = replace(whole, records=replace(whole.records, recorded=recorded))
    findings = found(data, splits())
    assert ("empty-column", "a") not in findings  # its file has no crp
    assert findings["empty-column", "b"].columns == ("hr",)  # its file has hr, and no value


def test_odd_values_are_counted_by_column_and_never_shown() -> None:
    """Three heart rates of 1111 at site b, on either side of the split, and none at a."""
    rate = 60.0 + np.arange(80) % 41
    rate[[45, 60, 75]] = 1111.0
    data = cohort(hr=rate, steps=np.where(np.arange(80) == 50, -9e9, np.arange(80.0)))
    findings = found(data, splits())
    odd = findings["odd-values", "b"]
    assert (odd.severity, odd.columns, odd.per_column) == ("warning", ("hr", "steps"), {"hr": 3, "steps": 1})
    assert "1111" not in repr(odd)
    assert ("odd-values", "a") not in findings


def test_what_is_odd_is_judged_among_a_sites_own_numbers() -> None:
    """A unit that differs between hospitals is no typo; codes and dates have no odd values."""
    rows = np.arange(80)
    other_unit = np.where(rows < 40, 100.0 + rows % 20, 4000.0 + rows % 20)
    assert not [key for key in found(cohort(chol=other_unit), splits()) if key[0] == "odd-values"]
    days = np.where(rows == 3, 5000.0, 20 + rows % 9)
    whole = cohort(seen=days)
    assert ("odd-values", "a") in found(whole, splits())
    columns = tuple(replace(column, dates=column.name == "seen") for column in whole.records.columns)
    dates = Cohort(replace(whole.records, columns=columns), whole.row_numbers, whole.prints, ())
    assert ("odd-values", "a") not in found(dates, splits())


@pytest.mark.parametrize(
    ("name", "smaller"),
    [
        ("heart-hospitals", {}),
        ("heart-schemas", {}),
        ("csv-hospitals", {}),
        ("fedprox-stragglers", {"data.largest": 60, "evaluation.seeds.count": 1}),
        pytest.param("fedprox-stragglers", {}, marks=pytest.mark.slow),
    ],
)
def test_the_shipped_studies_have_no_odd_values(name: str, smaller: dict[str, int]) -> None:
    plan = load_plan(*wardround.load_study(name, changes={"evaluation.seeds.count": 2, **smaller}))
    assert "odd-values" not in {notice.code for notice in check_study(plan)}


def test_the_three_impossible_heart_rates() -> None:
    path = shared_data("seed-csv") / "Medicaldataset_heart_attack.csv"
    data = load_cohort(csv({"clinic": path}, "Result"), Preparation())
    rows = np.arange(len(data.records))
    (odd,) = [
        f
        for f in check_splits(data, [Split("clinic", rows[:900], rows[:0], rows[900:])], False)
        if f.code == "odd-values"
    ]
    assert odd.per_column == {"Heart rate": 3}


def test_a_missing_class_and_few_rows_are_warnings() -> None:
    data = cohort()
    even = np.arange(40, 80, 2)
    sides = [splits()[0], Split("b", even[:15], np.array([], dtype=np.int64), even[15:])]
    findings = found(data, sides)
    missing = findings["missing-class", "b"]
    assert (missing.classes, missing.counts, missing.details) == (("yes",), {"of": 2}, {"part": "test"})
    assert findings["few-rows", "b"].counts == {"rows": 20, "test": 5}


def test_a_site_without_test_rows_cannot_be_accepted_away() -> None:
    sides = [splits()[0], Split("b", np.arange(40, 80), *[np.array([], dtype=np.int64)] * 2)]
    with pytest.raises(CheckError) as refused:
        refuse_errors(check_splits(cohort(), sides, False))
    assert refused.value.notice == Notice("no-rows", "error", "b", counts={"rows": 40}, details={"part": "test"})
    assert "accept" not in refused.value.remedy


def test_no_value_of_a_patient_is_in_any_message() -> None:
    secret = np.full(80, 77310.25)
    data = cohort(marker=secret)
    table = data.records.features
    assert isinstance(table, pd.DataFrame)
    table.iloc[70:75] = table.iloc[0:5].to_numpy()
    findings = found(Cohort(data.records, data.row_numbers, fingerprints(data.records), ()), splits())
    assert findings
    assert not any("77310" in repr(notice) for notice in findings.values())
