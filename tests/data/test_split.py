import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wardround.data.records import Records
from wardround.data.split import fingerprints, same_patient, split_site


@given(
    rows=st.integers(6, 200),
    share=st.floats(0.1, 0.5),
    validation=st.floats(0, 0.3),
    classes=st.integers(2, 5),
    seed=st.integers(0, 99),
)
@settings(max_examples=100, deadline=None)
def test_every_row_is_on_one_side_and_classes_keep_their_shares(
    rows: int, share: float, validation: float, classes: int, seed: int
) -> None:
    target = np.random.default_rng(seed).integers(0, classes, rows)
    split = split_site("a", np.arange(rows), target, np.arange(rows), share, validation, np.random.default_rng(seed))
    assert sorted(split.rows.tolist()) == list(range(rows))
    assert abs(len(split.test) - share * rows) <= classes + 1
    for value in np.unique(target):
        inside = int((target == value).sum())
        assert abs(int((target[split.test] == value).sum()) - share * inside) <= 1.01
        assert (target[split.train] == value).any()  # a class is never lost to the test rows


def test_rows_of_one_patient_stay_together() -> None:
    rng = np.random.default_rng(0)
    patient = rng.integers(0, 30, 200)
    split = split_site("a", np.arange(200), rng.integers(0, 2, 200), patient, 0.3, 0.2, rng)
    sides = [set(patient[rows]) for rows in (split.train, split.validation, split.test)]
    assert sum(map(len, sides)) == len(set.union(*sides))
    assert all(sides)


def test_identical_rows_count_as_one_patient_where_no_id_is_known() -> None:
    table = pd.DataFrame({"x": [1.0, 2.0, 1.0, 1.0], "y": [5.0, 5.0, 5.0, 5.0]})
    records = Records(table, np.array([0, 0, 0, 1]), ("no", "yes"), np.array(["a"] * 4, dtype=object))
    assert same_patient(records, fingerprints(records)).tolist() == [0, 1, 0, 2]  # the last differs in its label


def test_the_same_generator_gives_the_same_split() -> None:
    target = np.array([0, 1] * 50)
    first, second = (
        split_site("a", np.arange(100), target, np.arange(100), 0.2, 0.1, np.random.default_rng(5)) for _ in range(2)
    )
    assert np.array_equal(first.test, second.test)
    assert np.array_equal(first.validation, second.validation)


@pytest.mark.parametrize(("rows", "test"), [(95, 19), (83, 17), (44, 9), (71, 14)])
def test_the_heart_papers_sites_give_twenty_percent(rows: int, test: int) -> None:
    target = np.arange(rows) % 2
    split = split_site("a", np.arange(rows), target, np.arange(rows), 0.2, 0.0, np.random.default_rng(1))
    assert len(split.test) == test
