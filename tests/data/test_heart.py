"""The shipped heart data are what UCI gives: counts, rates and gaps as the repository's description has them."""

import pytest

from wardround.core.errors import DataError, StudyError
from wardround.core.notices import Notice
from wardround.data.cohort import load_cohort
from wardround.data.prepare import complete_rows
from wardround.data.sources.heart import COLUMNS, HOSPITALS, heart, read_hospital
from wardround.data.sources.synthetic import synthetic
from wardround.study.schema import Preparation

ROWS = {"cleveland": 303, "hungarian": 294, "switzerland": 123, "va": 200}
DISEASE_PERCENT = {"cleveland": 45.9, "hungarian": 36.1, "switzerland": 93.5, "va": 74.5}
MALE_PERCENT = {"cleveland": 68, "hungarian": 72, "switzerland": 92, "va": 97}
MISSING = {
    "cleveland": {"ca": 4, "thal": 2},
    "hungarian": {
        "trestbps": 1,
        "chol": 23,
        "fbs": 8,
        "restecg": 1,
        "thalach": 1,
        "exang": 1,
        "slope": 190,
        "ca": 291,
        "thal": 266,
    },
    "switzerland": {
        "trestbps": 2,
        "fbs": 75,
        "restecg": 1,
        "thalach": 1,
        "exang": 1,
        "oldpeak": 6,
        "slope": 17,
        "ca": 118,
        "thal": 52,
    },
    "va": {
        "trestbps": 56,
        "chol": 7,
        "fbs": 7,
        "thalach": 53,
        "exang": 53,
        "oldpeak": 56,
        "slope": 102,
        "ca": 198,
        "thal": 166,
    },
}


@pytest.mark.parametrize("name", HOSPITALS)
def test_each_file_has_its_published_rows_rates_and_gaps(name: str) -> None:
    table = read_hospital(name)
    assert len(table) == ROWS[name]
    assert round(100 * (table["num"] > 0).mean(), 1) == DISEASE_PERCENT[name]
    assert round(100 * table["sex"].mean()) == MALE_PERCENT[name]
    gaps = table.isna().sum()
    assert {column: int(count) for column, count in gaps.items() if count} == MISSING[name]


def test_cleveland_has_297_complete_rows() -> None:
    assert len(complete_rows(heart(("cleveland",)).load())) == 297


def test_impossible_zeros_become_missing_and_are_counted() -> None:
    records = heart().load()
    chol = records.features["chol"]
    assert (chol == 0).sum() == 0
    assert int(chol[records.hospital == "switzerland"].isna().sum()) == 123
    assert int(chol[records.hospital == "va"].isna().sum()) == 7 + 49
    assert Notice("impossible-values", "info", "va", ("trestbps",), {"rows": 1}) in records.notices


def test_any_subset_of_hospitals_in_the_order_given() -> None:
    records = heart(("va", "cleveland")).load()
    assert records.hospitals == ("va", "cleveland")
    assert len(records) == 503
    assert [column.name for column in records.columns] == [column.name for column in COLUMNS]
    assert set(records.groups["sex"]) == {"male", "female"}


def test_a_hospital_named_twice_is_refused() -> None:
    with pytest.raises(StudyError, match="names one twice"):
        heart(("va", "va"))


def test_complete_rows_of_own_columns_are_found_in_a_table_of_one_type() -> None:
    """pandas gives such a table's gaps as an array that cannot be written to."""
    assert len(complete_rows(synthetic(count=2, features=3, largest=50).load(), in_own_columns=True)) == 100


def test_dropping_incomplete_rows_says_so_and_refuses_a_hospital_that_has_none() -> None:
    cohort = load_cohort(heart(("cleveland",)), Preparation(missing="drop"))
    assert len(cohort.records) == 297
    assert Notice("rows-dropped", "info", "cleveland", counts={"rows": 6, "of": 303}) in cohort.notices
    with pytest.raises(Exception, match=r"switzerland: none of its 123 rows is complete"):
        load_cohort(heart(), Preparation(missing="drop"))


def test_a_hospital_needs_no_value_of_what_it_does_not_record() -> None:
    """Of the files themselves: rows without "?", and without 0 for blood pressure or cholesterol, in other columns."""
    absent: dict[str, tuple[str, ...]] = dict.fromkeys(("hungarian", "va"), ("slope", "ca", "thal"))
    absent["switzerland"] = ("chol", "fbs", "ca")
    cohort = load_cohort(heart(), Preparation(missing="drop", schema="own", not_recorded=absent))
    counts = {hospital: int((cohort.records.hospital == hospital).sum()) for hospital in cohort.records.hospitals}
    for hospital, count in counts.items():
        whole = read_hospital(hospital)
        there = whole.notna() & ~((whole == 0) & whole.columns.isin(["trestbps", "chol"]))
        assert count == there.drop(columns=list(absent.get(hospital, ()))).all(axis=1).sum() > 0
    assert counts["cleveland"] == 297
    with pytest.raises(DataError, match=r"hungarian: none of its 294 rows is complete \(slope, ca, thal: no value"):
        load_cohort(heart(), Preparation(missing="drop", not_recorded=absent))
