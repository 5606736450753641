"""`wardround data describe FILE`: the schema as it is inferred, and what may be wrong with it."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from tests.real_data import shared_data
from wardround.cli.main import app
from wardround.core.notices import Notice
from wardround.data.describe import describe_data, describe_file

CLEVELAND = "age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal,num\n"


def described(folder: Path, **columns: Sequence[object]) -> pd.DataFrame:
    path = folder / "a.csv"
    pd.DataFrame(columns).to_csv(path, index=False)
    return describe_file(path).set_index("name")


def test_the_type_of_two_values_says_what_they_are(tmp_path: Path) -> None:
    description = described(
        tmp_path,
        sex=["f", "m"] * 10,
        flag=[0, 1] * 10,
        decimals=["0.0", "1", "0", "1.0"] * 5,
        code=[1, 2] * 10,
        three=[0, 1, 2, 1] * 5,
        patient_id=[1, 2] * 10,
        same=[1] * 20,
    )
    assert description["type"].to_dict() == {
        "sex": "binary (words)",
        "flag": "binary (0/1)",
        "decimals": "binary (0/1)",
        "code": "binary (numbers)",
        "three": "numeric",
        "patient_id": "id",
        "same": "numeric",
    }
    assert description.loc["same", "problems"] == "constant"


def test_a_column_that_is_mostly_missing(tmp_path: Path) -> None:
    description = described(tmp_path, x=[1.0, 2.0, *[None] * 3], half=[1.0, 2.0, 3.0, None, None], y=[1, 2, 3, 4, 5])
    assert description.loc["x", "problems"] == (
        'mostly missing (3 of 5): hardly recorded here; use `not_recorded`, or the type "ignore"'
    )
    assert description.loc[["half", "y"], "problems"].tolist() == ["", ""]


def far(folder: Path, values: Sequence[float]) -> str:
    return str(described(folder, x=values).loc["x", "problems"])


def test_values_far_from_all_others_are_counted(tmp_path: Path) -> None:
    """Quartiles of 60..100 are 70 and 90, so that ten ranges of 20 beyond them is 290. In logarithms the range is
    ln(90/70) = 0.25, and five of them beyond 90 is 316: what lies between the two is strange by one measure only."""
    usual = list(range(60, 101))
    assert np.percentile(usual, [25, 75]).tolist() == [70, 90]
    assert far(tmp_path, [*usual, 290]) == ""
    assert far(tmp_path, [*usual, 300]) == ""
    assert far(tmp_path, [*usual, 400]).startswith("1 impossible-looking")
    problem = "2 impossible-looking values, far from all others, the first in line 43"
    assert far(tmp_path, [*usual, 1111, 80, 1111]) == problem
    below = [value - 1000 for value in usual]  # where there are negative values, there is no logarithm to look at
    assert far(tmp_path, [*below, -709]) == ""
    assert far(tmp_path, [*below, -600]).startswith("1 impossible-looking")


def test_zeros_far_below_all_others_are_counted(tmp_path: Path) -> None:
    """Quartiles 137.5 and 142.5: zero is 27.5 ranges below, as where a gap was written as 0."""
    assert far(tmp_path, [*range(135, 146), 0, 0]).startswith("2 impossible-looking values")


def test_laboratory_values_over_orders_of_magnitude_are_believed(tmp_path: Path) -> None:
    """A log-normal of SD 2: every hundredth value is more than ten ranges out, and none is wrong."""
    values = np.exp(2 * np.random.default_rng(0).standard_normal(2000)).round(4)
    low, high = np.percentile(values, [25, 75])
    assert (values > high + 10 * (high - low)).sum() > 20
    assert far(tmp_path, values.tolist()) == ""


def test_no_measure_no_mark(tmp_path: Path) -> None:
    assert far(tmp_path, [0] * 30 + [1, 2, 500]) == ""  # more than half are one number
    assert far(tmp_path, [1, 2, 3, 4, 5, 6, 7, 8, 1000]) == ""  # fewer than ten


def test_numbers_with_decimal_commas_in_a_file_that_is_separated_by_commas(tmp_path: Path) -> None:
    commas = "looks like numbers with decimal commas: write points, or separate the file's cells by semicolons"
    texts = {
        "weight": [f"{60 + i},{i}" for i in range(12)],
        "whole": [*map(str, range(9)), "3,5", "4,5", "5,25"],  # most of them need no comma
        "cells": [f"1,{234 + i}" for i in range(12)],
        "words": [f"{i}, {i} and more" for i in range(12)],
        "dotted": [f"{i}.5" for i in range(12)],
        "two": ["a,b", "c"] * 6,
    }
    path = tmp_path / "a.csv"
    pd.DataFrame(texts).to_csv(path, index=False)
    problems = describe_file(path).set_index("name")["problems"]
    assert problems["weight"] == commas  # and not that it looks like an identifier
    assert problems["whole"].startswith(commas)
    assert problems["cells"] == commas.replace("commas:", "commas, or with commas between thousands:", 1)
    assert "commas" not in problems["words"] + problems["dotted"] + problems["two"]
    pd.DataFrame(texts).to_csv(path, index=False, sep=";")  # then they are numbers
    assert describe_file(path).set_index("name")["problems"][["weight", "whole", "cells"]].tolist() == [""] * 3


def test_copies_are_a_problem_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("mrn,x,y\n1,5,yes\n1,5,yes\n2,5,yes\n3,6,no\n")
    described = describe_data(str(path))
    assert described["rows"] == 4
    (notice,) = [notice for notice in described["notices"] if notice["severity"] == "warning"]
    assert (notice["code"], notice["counts"]) == ("file-copies", {"rows": 1, "of": 4})
    path.write_text("mrn,x,y\n1,5,yes\n2,5,yes\n3,6,no\n")
    notice = describe_data(str(path))["notices"][0]
    assert (notice["counts"], notice["details"]) == ({"rows": 1}, {"but_ids": True})
    path.write_text("mrn,x,y\n1,5,yes\n2,6,yes\n3,7,no\n")
    assert [notice["code"] for notice in describe_data(str(path))["notices"]] == ["may-be-target"]


def test_a_first_line_of_data_is_not_taken_for_names(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("64.5,2020-01-01,SECRET\n71,2020-01-02,u\n")
    described = describe_data(str(path))
    assert [column["name"] for column in described["columns"]] == ["column 1", "column 2", "column 3"]
    assert described["notices"][0]["code"] == "header-is-data"
    assert "SECRET" not in json.dumps(described, default=str)
    path.write_text("2020,2021,name of third,fourth\n1,2,3,4\n")  # years may be names
    assert [column["name"] for column in describe_data(str(path))["columns"]][:2] == ["2020", "2021"]


@pytest.mark.parametrize(
    ("name", "words", "positive", "negative"),
    [
        ("Result", "positive Negative", "positive", "negative"),
        ("target", "1 0", "1", "0"),
        ("Outcome", "yes no", "yes", "no"),
        ("diagnosis_at_discharge", "true false", "true", "false"),
        ("alive_at_30_days", "0 1", "1", "0"),
        ("state", "alive DEAD", "dead", "alive"),
    ],
)
def test_what_a_target_would_mean(tmp_path: Path, name: str, words: str, positive: str, negative: str) -> None:
    notices = described(tmp_path, **{name: words.split() * 5, "x": range(10)}).attrs["notices"]
    expected = Notice("may-be-target", "info", columns=(name,), classes=(negative, positive))
    assert [notice for notice in notices if notice.code == "may-be-target"] == [expected]


def test_yes_and_no_are_not_always_a_target(tmp_path: Path) -> None:
    columns: dict[str, Sequence[object]] = {
        "smoker": ["yes", "no"] * 5,
        "fbs": [0, 1] * 5,
        "target": ["ill", "well"] * 5,
        "result": ["yes", "ill"] * 5,
    }
    assert "may-be-target" not in {notice.code for notice in described(tmp_path, **columns).attrs["notices"]}


def test_the_command_shows_problems_and_notices(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x,died\n" + "5,yes\n" * 3 + "6,no\n")
    shown = CliRunner().invoke(app, ["data", "describe", str(path)], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert "problem: 2 rows are equal to an earlier row" in shown.output
    assert "note: 'died': as a target" in shown.output
    assert "binary (words)" in shown.output
    machine = json.loads(CliRunner().invoke(app, ["data", "describe", str(path), "--json"]).output)
    assert list(machine) == ["name", "rows", "notices", "columns"]
    assert machine["columns"][1]["type"] == "binary (words)"
    assert machine["columns"][0]["min"] is None  # of four values


# --- real files ---


def test_the_three_impossible_heart_rates_and_nothing_else() -> None:
    problems = describe_file(shared_data("seed-csv") / "Medicaldataset_heart_attack.csv").set_index("name")["problems"]
    assert problems["Heart rate"] == "3 impossible-looking values, far from all others, the first in line 65"
    assert problems.drop("Heart rate").tolist() == [""] * 8


def test_three_of_four_rows_are_copies() -> None:
    table = describe_file(shared_data("seed-csv") / "cardiac_arrest_dataset_1025.csv")
    assert table.attrs["duplicated_rows"] == 723
    assert table.attrs["notices"][0].counts == {"rows": 723, "of": 1025}
    assert table["problems"].tolist() == [""] * 14
    assert table.attrs["notices"][1].classes == ("0", "1")


def test_nothing_is_wrong_with_cleveland(tmp_path: Path) -> None:
    path = tmp_path / "cleveland.csv"
    path.write_text(CLEVELAND + (shared_data("uci-heart") / "processed.cleveland.data").read_text())
    table = describe_file(path)
    assert table["problems"].tolist() == [""] * 14
    assert "file-copies" not in {notice.code for notice in table.attrs["notices"]}
