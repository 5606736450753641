"""With `columns = "own"` a hospital reads its file alike, alone in a deployment or beside others in a simulation."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import wardround
from wardround.core.notices import Notice
from wardround.data.agreement import own_recipe
from wardround.data.prepare import encode
from wardround.data.records import Column, Records
from wardround.data.sources.csv.hospital_files import csv
from wardround.study.schema import Preparation

# Nearly every name means something else at another hospital. `grade` is declared to be a category everywhere: it holds
# codes in the north, words in the south and nothing in the west. `gender` is the sex in the west alone.
FILES = {
    "north": """id,age,sex,grade,stage,seen,lactate,smoker,ref,died
n1,50,m,1.0,1,2020-01-01,1.5,yes,a,yes
n2,61,f,2.0,2,2021-01-01,,no,b,no
n3,72,F,1,3,2022-01-01,4.5,,a,no
n4,55,M,,4,2022-06-01,2.5,no,b,yes
""",
    "south": """case;Age;sex;gender;grade;stage;seen;lactate;smoker;ref;alive
1;40,5;female;w;I;low;31.12.2020;1,5;yes;7;0
2;45;male;m;II;high;1.2.2021;2,25;no;8;1
3;47;male;M;;low;;3;no;9;1
4;48;female;w;3.0;high;2.2.2021;;yes;7;0
""",
    "west": """age;gender;grade;seen;lactate;smoker;died
33;M;;5;0,5;1;yes
34;F;;6;0,7;0;no
35;W;;7;;1;no
36;m;;8;0,9;0;yes
""",
}
CHOICES: dict[str, Any] = {
    "target": "died",
    "classes": ("no", "yes"),
    "columns": "own",
    "types": {"grade": "categorical", "ref": "categorical"},
    "ranges": {"stage": (1.0, 4.0), "lactate": (0.0, 20.0), "grade": (1.0, 3.0), "seen": (0.0, 30.0)},
    "levels": {"stage": ("high", "low"), "smoker": ("no", "yes")},
}


def together(folder: Path) -> Records:
    for name, text in FILES.items():
        (folder / f"{name}.csv").write_text(text, encoding="utf-8")
    files = {name: folder / f"{name}.csv" for name in FILES}
    by_site: dict[str, Any] = {
        "targets": {"south": "alive"},
        "patients": {"north": "id", "south": "case"},
        "labels": {"south": {"0": "yes", "1": "no"}},
    }
    return csv(files, **CHOICES, **by_site).load()


def alone(folder: Path, name: str) -> Records:
    """As a site file gives it: without what is said of other hospitals."""
    target = {"north": "died", "south": "alive", "west": "died"}[name]
    patient = {"north": "id", "south": "case", "west": None}[name]
    labels = {"south": {"south": {"0": "yes", "1": "no"}}}.get(name)
    own = {**CHOICES, "target": target, "patient": patient, "labels": labels}
    return csv({name: folder / f"{name}.csv"}, **own).load()


def assert_read_alike(whole: Records, own: Records, name: str) -> None:
    rows = np.flatnonzero(whole.hospital == name)
    part = whole.take(rows)
    recorded = {column.name: column for column in whole.columns if column.name in whole.recorded[name]}
    by_own_name = {column.own_name: column for column in recorded.values()}
    assert len(by_own_name) == len(recorded)
    assert set(by_own_name) == {column.own_name for column in own.columns} == set(own.recorded[name])
    assert isinstance(part.features, pd.DataFrame)
    assert isinstance(own.features, pd.DataFrame)
    for column in own.columns:  # kind, range, codes, levels, dates and words; the name may say whose it is
        there = by_own_name[column.own_name]
        empty = not own.features[column.name].notna().any()
        assert same_but_name(there, column, coded=empty) == column
        pd.testing.assert_series_equal(part.features[there.name], own.features[column.name], check_names=False)
    assert [own.classes[i] for i in own.target] == [part.classes[i] for i in part.target]
    assert own.vocabulary[name] == whole.vocabulary[name]
    for group in own.groups.columns:
        pd.testing.assert_series_equal(part.groups[group], own.groups[group])
    for settings in (Preparation(schema="own"), Preparation(schema="own", missing="mean", scale="none")):
        ours = own_recipe(encode(own), np.arange(len(own)), settings)
        theirs = own_recipe(encode(whole), rows, settings)
        assert ours.names == theirs.names
        np.testing.assert_array_equal(ours.apply(encode(own), np.arange(len(own))), theirs.apply(encode(whole), rows))


def same_but_name(column: Column, other: Column, coded: bool) -> Column:
    """Whether a column without values holds codes cannot be known, and is of no consequence."""
    renamed = replace(column, name=other.name, header=other.header)
    return replace(renamed, coded=other.coded, limits=other.limits) if coded else renamed


@pytest.mark.parametrize("name", FILES)
def test_a_hospital_reads_its_file_alone_as_in_a_simulation(tmp_path: Path, name: str) -> None:
    whole = together(tmp_path)
    assert_read_alike(whole, alone(tmp_path, name), name)


def test_what_differs_is_a_column_for_each_hospital(tmp_path: Path) -> None:
    whole = together(tmp_path)
    by_name = {column.name: column for column in whole.columns}
    assert (by_name["grade at north"].coded, by_name["grade at south"].coded) == (True, False)
    assert (by_name["grade at north"].limits, by_name["grade at south"].limits) == ((1.0, 3.0), None)
    assert isinstance(whole.features, pd.DataFrame)
    assert whole.features["grade at north"].dropna().tolist() == ["1", "2", "1"]  # codes have one spelling
    assert whole.features["grade at south"].dropna().tolist() == ["I", "II", "3.0"]  # words are as they are written
    assert whole.features["gender at west"].dropna().tolist() == ["male", "female", "female", "male"]
    assert whole.features["gender at south"].dropna().tolist() == ["w", "m", "M", "w"]  # its sex is called sex
    assert {"ref at north", "ref at south", "smoker at north", "seen at north", "stage at south"} <= set(by_name)
    assert "lactate" in by_name  # with points or with commas, it is a number


def test_a_range_that_does_not_fit_the_hospital_that_is_alone_is_told(tmp_path: Path) -> None:
    """At another hospital it fits: in a simulation nobody is told, and nothing is refused."""
    whole = together(tmp_path)
    assert "declaration-not-used" not in {notice.code for notice in whole.notices}
    expected = Notice("declaration-not-used", "info", columns=("stage",), details={"setting": "levels"})
    assert expected in alone(tmp_path, "north").notices


@pytest.mark.parametrize("name", ["north", "south"])
def test_the_hospitals_of_the_shipped_study(name: str) -> None:
    study, families = wardround.load_study("csv-hospitals")
    options = dict(study.data.options)
    whole = families.sources["csv"](**options).load()
    own = {key: value for key, value in options.items() if key not in ("files", "targets", "patients", "labels")}
    own |= {"files": {name: options["files"][name]}, "labels": {name: options["labels"][name]}}
    own |= {"target": options["targets"].get(name, options["target"])}
    own |= {"patient": options["patients"].get(name, options["patient"])}
    assert_read_alike(whole, families.sources["csv"](**own).load(), name)
