"""Copies of rows: counted, and told from honest equal rows of a coarse table."""

from math import inf

import numpy as np
import pandas as pd
import pytest

from wardround.core.errors import CheckError
from wardround.core.notices import Notice
from wardround.data.checks.before_training import check_splits, refuse_errors
from wardround.data.checks.coincidences import ALWAYS
from wardround.data.checks.duplicates import copies
from wardround.data.cohort import Cohort
from wardround.data.records import Column, Records
from wardround.data.sources.heart import heart
from wardround.data.split import Split, fingerprints


def cohort(table: pd.DataFrame, patient: np.ndarray | None = None) -> Cohort:
    kinds = {True: "numeric", False: "categorical"}
    columns = tuple(Column(name, kinds[table[name].dtype.kind == "f"]) for name in table)  # type: ignore[arg-type]
    hospital = np.array(["a"] * len(table), dtype=object)
    records = Records(table, np.arange(len(table)) % 2, ("no", "yes"), hospital, columns, patient)
    return Cohort(records, np.arange(len(table)), fingerprints(records), ())


def fine(rows: int, columns: int = 4) -> pd.DataFrame:
    """Every value differs from all others of its column."""
    rng = np.random.default_rng(0)
    return pd.DataFrame({f"x{i}": rng.normal(size=rows) for i in range(columns)})


def with_copies(rows: int, count: int, columns: int = 4) -> pd.DataFrame:
    """The last `count` rows are the first ones again, target and all."""
    table = fine(rows, columns)
    table.iloc[rows - count :] = table.iloc[:count].to_numpy()
    return table


def copies_notice(data: Cohort) -> Notice | None:
    rows, empty = np.arange(len(data.records)), np.array([], dtype=np.int64)
    splits = [Split("a", rows[::2], empty, rows[1::2])]
    return next((notice for notice in check_splits(data, splits, False) if notice.code == "copies"), None)


def test_copies_among_fine_columns_are_beyond_chance() -> None:
    """96 rows differ in every column and 4 come again: no pair is nearly equal, so that chance expects none."""
    summary = copies(cohort(with_copies(100, 4)), np.arange(100))
    assert (summary.count, summary.rows, summary.explained) == (4, 100, ALWAYS)
    assert summary.beyond_chance
    assert not summary.many


def test_few_copies_warn_and_a_tenth_is_an_error() -> None:
    assert copies_notice(cohort(with_copies(100, 6))) == Notice("copies", "warning", "a", counts={"rows": 6, "of": 100})
    assert copies_notice(cohort(with_copies(100, 20))) == Notice("copies", "error", "a", counts={"rows": 20, "of": 100})


def test_a_pair_or_two_may_always_be() -> None:
    assert copies_notice(cohort(with_copies(100, 2))) is None
    assert copies_notice(cohort(fine(100))) is None


def test_three_columns_say_nothing_however_fine_they_are() -> None:
    assert copies(cohort(with_copies(100, 50, columns=3)), np.arange(100)).explained == inf
    constant = with_copies(100, 50, columns=3).assign(ward=1.0)  # a column that never varies is none
    assert copies_notice(cohort(constant)) is None
    assert copies_notice(cohort(with_copies(100, 50))) is not None


@pytest.mark.parametrize("seed", range(5))
def test_a_coarse_table_has_honest_equal_rows(seed: int) -> None:
    """Six columns of two or three words that tell partly the same: hundreds of 500 rows are equal by chance."""
    rng = np.random.default_rng(seed)
    sick = rng.random(500) < 0.4
    words = {f"sign{i}": np.where(rng.random(500) < 0.2 + 0.5 * sick, "yes", "no") for i in range(4)}
    words["grade"] = rng.choice(["low", "mid", "high"], 500)
    words["site"] = rng.choice(["left", "right"], 500)
    data = cohort(pd.DataFrame(words, dtype=object))
    assert copies(data, np.arange(500)).count > 250
    assert copies_notice(data) is None


def test_rows_of_one_patient_are_no_copies_but_those_of_two_patients_are() -> None:
    table, rows = with_copies(100, 20), np.arange(100)
    same = np.array([f"p{i % 80}" for i in rows], dtype=object)  # rows 80 to 99 are of patients 0 to 19 again
    assert copies(cohort(table, same), rows).count == 0
    other = np.array([f"p{i}" for i in rows], dtype=object)
    assert copies(cohort(table, other), rows).count == 20
    counts, details = {"rows": 20, "of": 100}, {"patients_known": True}
    assert copies_notice(cohort(table, other)) == Notice("copies", "error", "a", counts=counts, details=details)


def test_images_are_not_looked_at() -> None:
    target = np.zeros(40, dtype=np.int64)
    records = Records(np.zeros((40, 2, 2), dtype=np.uint8), target, ("no", "yes"), np.array(["a"] * 40, dtype=object))
    assert copies(Cohort(records, np.arange(40), fingerprints(records), ()), np.arange(40)).count == 0


def test_the_heart_hospitals_have_one_copy_each_at_two_of_them_and_no_finding() -> None:
    records = heart().load()
    data = Cohort(records, np.arange(len(records)), fingerprints(records), ())
    by_hospital = {name: copies(data, np.flatnonzero(records.hospital == name)) for name in records.hospitals}
    assert {name: summary.count for name, summary in by_hospital.items()} == {
        "cleveland": 0,
        "hungarian": 1,
        "switzerland": 0,
        "va": 1,
    }
    assert not any(summary.beyond_chance for summary in by_hospital.values())


def test_the_study_is_refused_and_may_accept() -> None:
    data = cohort(with_copies(100, 40))
    rows, empty = np.arange(100), np.array([], dtype=np.int64)
    alone = [Split("a", rows[:80], empty, rows[80:])]
    with pytest.raises(CheckError, match=r"accept") as refused:
        refuse_errors(notice for notice in check_splits(data, alone, False) if notice.code == "copies")
    assert refused.value.notice == Notice("copies", "error", "a", counts={"rows": 40, "of": 100})
    refuse_errors(notice for notice in check_splits(data, alone, False, ["copies"]) if notice.code == "copies")
    apart = [Split("a", rows[:40], empty, rows[40:60]), Split("b", rows[60:80], empty, rows[80:])]
    codes = {notice.code for notice in check_splits(data, apart, False)}
    assert "shared-rows" in codes  # at two sites it is that, and not copies within one of them
    assert "copies" not in codes
