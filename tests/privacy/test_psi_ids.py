"""How patient ids are read before they are matched, and which columns are refused."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wardround.core.errors import DataError
from wardround.privacy.psi.patient_ids import DIGITS, LEADING_ZEROS, TEXT, read_ids


@pytest.mark.parametrize(
    ("spelling", "other"),
    [
        ("P-17", "  P-17\n"),
        ("17", 17),
        ("17", np.int64(17)),
        ("17", "\uff11\uff17"),  # full-width digits
        ("Ame\u0301lie", "Am\u00e9lie"),  # a letter with its accent apart, and in one
        ("fi-1", "\ufb01-1"),  # a ligature
    ],
)
def test_two_spellings_of_one_id_are_one(spelling: Any, other: Any) -> None:
    assert read_ids("lab", [spelling]).ids == read_ids("lab", [other]).ids


@pytest.mark.parametrize(("first_id", "other"), [("a1", "A1"), ("7", "007"), ("1 7", "17"), ("1-7", "17"), (7, 70)])
def test_ids_that_may_be_two_patients_stay_two(first_id: Any, other: Any) -> None:
    assert read_ids("lab", [first_id]).ids != read_ids("lab", [other]).ids


def test_a_patient_with_several_rows_is_one_and_keeps_them_in_order() -> None:
    patients = read_ids("radiology", ["b", "a", "c", "a", "b", "a"])
    assert patients.ids == ("a", "b", "c")
    assert [patients.rows_of(patient).tolist() for patient in range(3)] == [[1, 3, 5], [0, 4], [2]]
    assert patients.patient_of_each_row().tolist() == [0, 0, 0, 1, 1, 2]
    some = patients.only([2, 0])
    assert some.ids == ("a", "c")
    assert [some.rows_of(patient).tolist() for patient in range(2)] == [[1, 3, 5], [2]]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=60))
def test_every_row_is_some_patients_once(values: list[int]) -> None:
    patients = read_ids("lab", values)
    assert sorted(patients.rows.tolist()) == list(range(len(values)))
    for number, patient in zip(patients.rows, patients.patient_of_each_row(), strict=True):
        assert patients.ids[patient] == str(values[number])


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ([], "has no rows"),
        (["a", None], "row 2 has no patient id"),
        (["a", "  ", "b", ""], r"2 rows \(first: row 2\) have no patient id"),
        ([1, pd.NA], "row 2 has no patient id"),
        ([1, float("nan")], "row 2 has no patient id"),
        (pd.Series([1.0, 2.0]), r"2 rows \(first: row 1\) have a patient id that is neither text nor a whole number"),
        ([True, False], "neither text nor a whole number"),
        ([b"a"], "neither text nor a whole number"),
        ([("a", "b")], "neither text nor a whole number"),
        ([1, 2, "3"], "of two types: text in 1 rows, numbers in 2"),
        (["\ufeff12"], "row 1 has a patient id with a character that cannot be seen"),  # a byte order mark
        (["12", "1\u200b3"], "row 2 has a patient id with a character that cannot be seen"),
        (["a\tb"], "a character that cannot be seen"),
        (["a\udc80"], "a character that cannot be seen"),  # a byte that was not UTF-8
        (["P1", "P2", "P1 "], r"1 rows have a patient id that differs .* \(first: rows 1 and 3\)"),
        (["x", "\uff18", "8", "8 "], r"2 rows have a patient id that differs .* \(first: rows 2 and 3\)"),
    ],
)
def test_a_column_that_does_not_say_who_is_who_is_refused(values: Any, problem: str) -> None:
    with pytest.raises(DataError, match=problem) as caught:
        read_ids("lab", values)
    assert caught.value.where == "lab"


def test_no_error_shows_an_id() -> None:
    for values in (["secret-17", "secret-17 "], ["secret-17\u200b"], [17.25, 17.5], ["secret-17", 17]):
        with pytest.raises(DataError) as caught:
            read_ids("lab", values)
        assert "17" not in str(caught.value)
    assert "secret-17" not in repr(read_ids("lab", ["secret-17"]))


@pytest.mark.parametrize(
    ("values", "form"),
    [([1, 20], DIGITS), (["0", "10"], DIGITS), (["01", "10"], LEADING_ZEROS), (["1", "a"], TEXT), ([-1], TEXT)],
)
def test_the_form_of_ids_is_known(values: Any, form: str) -> None:
    assert read_ids("lab", values).form == form
