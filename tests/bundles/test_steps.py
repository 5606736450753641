"""Prediction is a list of steps: one more adds a column everywhere, and a wrong order is noticed."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from tests.bundles.untrained_bundles import made
from wardround.bundles import STEPS, Bundle, PredictOptions, Step, predict_file, predict_rows, predict_table
from wardround.bundles.predict.pipeline import Predicting, Types, known
from wardround.bundles.predict.predict import output_columns
from wardround.core.errors import StudyError

ROWS = pd.DataFrame({"age": [61.0, None], "crp": [3.0, 4.0], "sodium": [140.0, 139.0]})


def largest_share(rows: Predicting) -> Predicting:
    """The column that moves the score of a logistic model most."""
    shares = known(rows.prepared).x * rows.bundle.params["weight"].numpy()[0]
    names = np.array(rows.bundle.recipe.names)[np.abs(shares).argmax(axis=1)]
    return rows.adding({"because": pa.array(names, pa.string(), mask=known(rows.scored).unscored)})


def because(bundle: Bundle, options: PredictOptions) -> Types:
    return {"because": pa.string()}


EXPLAINED = (*STEPS, Step("explain", largest_share, because))


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return made(tmp_path / "bundle")


def test_the_steps_are_those_of_the_documentation() -> None:
    assert [step.name for step in STEPS] == ["read", "prepare", "score", "calibrate", "interval", "decide", "refer"]


def test_one_more_step_adds_its_column_to_tables_files_and_single_rows(bundle: Bundle, tmp_path: Path) -> None:
    weight = bundle.params["weight"].double().numpy()[0]
    huge = pd.DataFrame([1e200 * np.sign(weight) * [1, -1, 0]], columns=list(ROWS))  # infinite, and of either sign
    patients = pd.concat([ROWS, huge], ignore_index=True)
    plain, table = predict_table(bundle, patients), predict_table(bundle, patients, steps=EXPLAINED)
    assert list(table) == [*plain, "because"]
    pd.testing.assert_frame_equal(table[list(plain)], plain)
    assert table["because"].iloc[0] in bundle.recipe.names
    assert table["because"].isna().tolist() == [False, False, True]  # of numbers too large there is no prediction
    patients.to_csv(tmp_path / "rows.csv", index=False)
    predict_file(bundle, tmp_path / "rows.csv", tmp_path / "out.parquet", steps=EXPLAINED)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "out.parquet"), table)
    [first, *_] = predict_rows(bundle, [{"age": 61, "crp": 3, "sodium": 140}], steps=EXPLAINED)
    assert first["because"] == table["because"].iloc[0]


def test_a_column_of_a_step_cannot_be_kept_from_the_file_as_well(bundle: Bundle) -> None:
    with pytest.raises(StudyError, match="'because' is also a column of the predictions"):
        predict_table(bundle, ROWS.assign(because="x"), keep=["because"], steps=EXPLAINED)


def test_a_step_before_the_one_that_it_needs_is_a_mistake(bundle: Bundle) -> None:
    with pytest.raises(LookupError, match="comes before the one whose result it needs"):
        predict_table(bundle, ROWS, steps=(EXPLAINED[-1], *STEPS))


def test_the_columns_are_known_before_the_first_row(bundle: Bundle) -> None:
    assert (
        list(output_columns(bundle, steps=EXPLAINED).columns) == list(predict_table(bundle, ROWS, steps=EXPLAINED))[1:]
    )
    nothing = predict_table(bundle, ROWS.iloc[:0], steps=EXPLAINED)
    assert list(nothing)[-1] == "because"
    assert len(nothing) == 0
