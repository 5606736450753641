"""Hospitals whose files have different columns: what is one column of the table, and who records it."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from wardround.core.errors import DataError, StudyError
from wardround.core.notices import Notice
from wardround.data.agreement import recipes
from wardround.data.cohort import load_cohort
from wardround.data.prepare import encode
from wardround.data.records import SEX_WORDS, Column, Records
from wardround.data.sources.csv.hospital_files import csv
from wardround.study.schema import Preparation

NORTH = """age,sex,stage,smoker,lactate,admitted,died
50,m,1,yes,1.5,2020-01-01,yes
61,f,2,no,,2021-01-01,no
72,F,3,no,4.5,2022-01-01,no
"""
SOUTH = """Age,sex,stage,smoker,ward,admitted,died
40,female,low,no,icu,3,no
45,male,high,,icu,4,yes
"""


def load(folder: Path, north: str = NORTH, south: str = SOUTH, **choices: Any) -> Records:
    files = {"north": folder / "north.csv", "south": folder / "south.csv"}
    files["north"].write_text(north)
    files["south"].write_text(south)
    return csv(files, **{"target": "died", "columns": "own", **choices}).load()


def table(records: Records) -> pd.DataFrame:
    assert isinstance(records.features, pd.DataFrame)
    return records.features


def test_each_hospitals_columns_are_understood_by_themselves(tmp_path: Path) -> None:
    records = load(tmp_path, ranges={"admitted": (0.0, 30.0)})  # a date is a feature where the study names it
    assert records.columns == (
        Column("age"),
        Column("sex", "categorical", words=tuple(SEX_WORDS.items())),
        Column("stage at north", header="stage"),
        Column("stage at south", "categorical", header="stage"),
        Column("smoker", "categorical"),
        Column("lactate"),
        Column("admitted at north", limits=(0.0, 30.0), header="admitted", dates=True),
        Column("admitted at south", limits=(0.0, 30.0), header="admitted"),
        Column("Age"),
        Column("ward", "categorical"),
    )
    assert [column.own_name for column in records.columns[2:4]] == ["stage", "stage"]
    assert records.recorded == {
        "north": ("age", "sex", "stage at north", "smoker", "lactate", "admitted at north"),
        "south": ("sex", "stage at south", "smoker", "admitted at south", "Age", "ward"),
    }
    values = table(records)
    np.testing.assert_array_equal(values["stage at north"], [1, 2, 3, np.nan, np.nan])
    assert values["stage at south"].tolist() == [None, None, None, "low", "high"]
    assert values["sex"].tolist() == ["male", "female", "female", "female", "male"]
    assert values["smoker"].tolist() == ["yes", "no", "no", "no", None]
    np.testing.assert_array_equal(values["admitted at south"], [np.nan, np.nan, np.nan, 3, 4])
    # 20 years with 5 leap days from 2000-01-01 to 2020-01-01
    assert values["admitted at north"][0] == pytest.approx(7305 / 365.25)
    np.testing.assert_array_equal(records.groups["age"], [50, 61, 72, 40, 45])  # "age" here and "Age" there
    assert records.notices == (
        Notice("column-not-recorded", "info", "north", ("Age", "ward"), details={"use": "own"}),
        Notice("column-not-recorded", "info", "south", ("age", "lactate"), details={"use": "own"}),
        Notice("spellings-joined", "info", columns=("sex",), counts={"spellings": 5, "levels": 2}),
        Notice("dates-as-years", "info", columns=("admitted at north",)),
    )


def test_a_site_of_its_own_schema_has_its_own_inputs(tmp_path: Path) -> None:
    records = load(tmp_path, ranges={"admitted": (0.0, 30.0)})
    made_recipes = recipes(
        encode(records), {"north": np.arange(3), "south": np.arange(3, 5)}, Preparation(schema="own", indicator=False)
    )
    # by their names in the hospital's own file, in alphabetical order
    assert made_recipes["north"].names == ("admitted", "age", "lactate", "stage", "sex=male", "smoker=yes")
    assert made_recipes["south"].names == ("Age", "admitted", "sex=male", "smoker=no", "stage=low", "ward=icu")


def test_what_is_no_feature_at_one_hospital_may_be_one_at_another(tmp_path: Path) -> None:
    many = "code,died\n" + "".join(f"person {i},{'yes' if i % 2 else 'no'}\n" for i in range(12))
    few = "code,none,died\n" + "".join(f"{'uv'[i % 2]},,{'yes' if i % 2 else 'no'}\n" for i in range(12))
    records = load(tmp_path, many, few)
    assert records.columns == (Column("code", "categorical"),)
    assert records.recorded == {"north": (), "south": ("code",)}
    assert table(records)["code"].tolist() == [None] * 12 + ["u", "v"] * 6
    assert records.notices == (
        Notice("column-not-recorded", "info", "north", ("none",), details={"use": "own"}),
        Notice("column-left-out", "info", "north", ("code",), details={"reason": "id"}),
        Notice("column-left-out", "info", "south", ("none",), details={"reason": "empty"}),
    )


def test_a_declared_type_holds_for_every_hospital(tmp_path: Path) -> None:
    records = load(tmp_path, types={"stage": "categorical", "admitted": "ignore"})
    # codes in the north, words in the south: a category at both, and not the same one
    assert Column("stage at north", "categorical", coded=True, header="stage") in records.columns
    assert Column("stage at south", "categorical", header="stage") in records.columns
    assert table(records)["stage at north"].tolist() == ["1", "2", "3", None, None]
    other_records = load(
        tmp_path, south=SOUTH.replace("low", "4.0"), types={"stage": "categorical", "admitted": "ignore"}
    )
    assert Column("stage", "categorical") not in other_records.columns  # "high" is still a word
    same = load(
        tmp_path,
        NORTH.replace(",1,yes", ",low,yes").replace(",2,", ",,").replace(",3,", ",high,"),
        types={"stage": "categorical", "admitted": "ignore"},
    )
    assert Column("stage", "categorical") in same.columns
    assert table(same)["stage"].tolist() == ["low", None, "high", "low", "high"]
    with pytest.raises(DataError, match="column 'stage' at 'south': 2 of 2 values are not numbers"):
        load(tmp_path, types={"stage": "numeric"})


def test_mixed_cells_are_refused_at_their_own_hospital(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load(tmp_path, NORTH.replace("4.5", "<5").replace("61,f,2,no,,", "61,f,2,no,3,"))
    assert caught.value.problem == "numbers and text at 'north' (1 of 3 values are not numbers, the first in line 4)"


def test_ranges_and_levels_are_used_where_they_fit(tmp_path: Path) -> None:
    records = load(tmp_path, ranges={"stage": (1, 4)}, levels={"stage": ("high", "low")})
    by_name = {column.name: column for column in records.columns}
    assert (by_name["stage at north"].limits, by_name["stage at north"].levels) == ((1, 4), None)
    assert (by_name["stage at south"].limits, by_name["stage at south"].levels) == (None, ("high", "low"))
    with pytest.raises(StudyError, match="the column is text, which has no range"):
        load(tmp_path, ranges={"ward": (0, 1)})
    with pytest.raises(StudyError, match="data: levels: lactate: the column holds numbers, which have no levels"):
        load(tmp_path, levels={"lactate": ("a",)})
    with pytest.raises(StudyError, match="data: levels: admitted"):  # dates in the north, numbers in the south
        load(tmp_path, levels={"admitted": ("a",)})
    with pytest.raises(StudyError, match="no feature is called 'wrad'"):
        load(tmp_path, types={"wrad": "ignore"})


def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="column 'stage at north': two columns would have this name"):
        load(tmp_path, NORTH.replace("lactate", "stage at north"))


@pytest.mark.parametrize(
    ("usage", "north", "south"),
    [
        ("all", ("sex", "smoker", "lactate"), ("sex", "smoker", "ward")),
        ("common", ("sex", "smoker"), ("sex", "smoker")),
        ("own", ("sex", "smoker", "lactate"), ("sex", "smoker", "ward")),
    ],
)
def test_who_records_what(tmp_path: Path, usage: str, north: tuple[str, ...], south: tuple[str, ...]) -> None:
    ignored = dict.fromkeys(("age", "Age", "stage", "admitted"), "ignore")
    records = load(tmp_path, columns=usage, types=ignored)
    assert records.recorded == {"north": north, "south": south}


def test_with_the_same_columns_everybody_records_everything(tmp_path: Path) -> None:
    records = load(tmp_path, NORTH, NORTH, columns="same")
    names = ("age", "sex", "stage", "smoker", "lactate")
    assert records.recorded == {"north": names, "south": names}
    own = load(tmp_path, NORTH, NORTH)  # where nothing differs, "own" is "same"
    assert own.columns == records.columns
    assert own.recorded == records.recorded
    pd.testing.assert_frame_equal(table(own), table(records))


def test_age_groups_where_a_hospital_has_no_years(tmp_path: Path) -> None:
    records = load(tmp_path, south=SOUTH.replace("40,", "40-49,").replace("45,", "40-49,"))
    np.testing.assert_array_equal(records.groups["age"], [50, 61, 72, np.nan, np.nan])
    assert Notice("age-not-in-years", "info", "south", ("Age",)) in records.notices
    named = load(tmp_path, age="lactate")
    np.testing.assert_array_equal(named.groups["age"], [1.5, np.nan, 4.5, 40, 45])


def test_a_hospital_alone_is_told_what_it_lacks_and_not_refused(tmp_path: Path) -> None:
    """A kit says what the study says of all hospitals' columns; with differing columns one hospital lacks some."""
    path = tmp_path / "south.csv"
    path.write_text(SOUTH)
    choices: dict[str, Any] = {"types": {"lactate": "numeric", "ward": "ignore"}, "sex": "gender"}
    records = csv({"south": path}, "died", columns="own", **choices).load()
    assert records.notices == (
        Notice("declared-column-missing", "info", "south", ("lactate", "gender")),
        Notice("column-left-out", "info", "south", ("ward",), details={"reason": "ignore"}),
    )
    with pytest.raises(StudyError, match="data: types: no feature is called 'lactate'"):
        csv({"south": path}, "died", **choices).load()


def test_where_no_column_is_common_the_error_says_what_to_do(tmp_path: Path) -> None:
    north, south = "a,b,died\n1,2,yes\n3,4,no\n", "c,died\n1,yes\n2,no\n"
    with pytest.raises(DataError, match="no column name is shared by all hospitals") as caught:
        load(tmp_path, north, south, columns="common")
    assert 'columns = "own" with schema = "own" and model "adapter"' in caught.value.remedy
    north, south = "id,b,died\n1,2,yes\n3,4,no\n", "id,died\n1,yes\n2,no\n"
    with pytest.raises(DataError, match="none of the columns that all hospitals have is a feature: 'id'"):
        load(tmp_path, north, south, columns="common")


def test_rows_are_complete_in_the_columns_of_their_own_hospital(tmp_path: Path) -> None:
    """The north lacks a lactate in line 3, the south a smoker in line 3; everything else is there."""
    load(tmp_path)  # writes the files
    files = {name: tmp_path / f"{name}.csv" for name in ("north", "south")}
    types = {"stage": "ignore", "admitted": "ignore"}
    pairs: list[tuple[Any, Any]] = [("own", "own"), ("own", "common"), ("all", "own"), ("all", "common")]
    for usage, schema in pairs:
        source = csv(files, "died", columns=usage, types=types)
        cohort = load_cohort(source, Preparation(missing="drop", schema=schema))
        assert cohort.row_numbers.tolist() == [0, 2, 3], (usage, schema)
        assert Notice("rows-dropped", "info", "north", counts={"rows": 1, "of": 3}) in cohort.notices
        assert Notice("rows-dropped", "info", "south", counts={"rows": 1, "of": 2}) in cohort.notices
    with pytest.raises(DataError, match=r"none of its 3 rows is complete \(Age, ward: no value in any row\)"):
        load_cohort(csv(files, "died", columns="all", types=types), Preparation(missing="drop"))
