"""Targets that are no numbers, or impossible ones: one clear refusal or notice each, and never a patient's value."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.hostile_files.patient_values import DAY, NAME, NUMBER, leaks, raised_by
from tests.data.number_hospitals import COUNT, SITES, Tables, everywhere, hospitals, notices_of, put, study_of
from wardround.core.errors import WardroundError
from wardround.core.notices import line_of
from wardround.tasks import read_task

WHOLE = int(NUMBER)


def without(column: str, site: str) -> Callable[[Tables], None]:
    def change(tables: Tables) -> None:
        del tables[site][column]

    return change


# a change to the files, what [data] says, and what the error says
IN_FILES: dict[str, tuple[Callable[[Tables], None], Mapping[str, Any], str]] = {
    "infinite": (
        put("stay", "inf", NUMBER),
        {},
        "column 'stay' at 'north': 1 values are infinite, the first in line 2",
    ),
    "minus infinity": (put("stay", "-inf"), {}, "1 values are infinite"),
    "text": (put("stay", NUMBER, NAME), {}, "1 of 80 values are not numbers, the first in line 3"),
    "all text": (everywhere("stay", lambda t: [NAME] * len(t)), {}, "80 of 80 values are not numbers"),
    "a date": (put("stay", DAY), {}, "1 of 80 values are not numbers"),
    "dates": (everywhere("stay", lambda t: [DAY] * len(t)), {}, "holds dates, and a number is to be predicted"),
    "classes at one": (
        everywhere("stay", lambda t: [NAME, "no"] * 40, ("south",)),
        {},
        "column 'stay' at 'south': 80 of 80 values are not numbers",
    ),
    "numbers at one": (
        everywhere("stay", lambda t: ["yes", "no"] * 40, ("north", "east")),
        {"task": "binary"},
        "target 'stay'",
    ),
    "one value": (everywhere("stay", lambda t: NUMBER), {}, "'stay' is the same in all training rows of all sites"),
    "all zero": (everywhere("admissions", lambda t: 0), COUNT, "'admissions' is the same in all training rows of all"),
    "negative count": (put("admissions", -WHOLE), COUNT, "1 of 80 values are negative, and a count is not"),
    "part of a count": (put("admissions", NUMBER), COUNT, "1 of 80 values are no whole numbers, and a count is"),
    "no exposure": (without("months", "south"), COUNT, "there is no column 'months', which the study names"),
    "gap in exposure": (put("months", ""), COUNT, "1 of 80 values are not above 0, and an exposure is"),
    "zero exposure": (put("months", 0, 0), COUNT, "2 of 80 values are not above 0, and an exposure is"),
    "negative exposure": (put("months", -NUMBER), COUNT, "are not above 0, and an exposure is; the first is in line 2"),
    "infinite exposure": (put("months", "inf"), COUNT, "column 'months' at 'north': 1 values are infinite"),
    "text as exposure": (put("months", NAME), COUNT, "column 'months' at 'north': 1 of 80 values are not numbers"),
    "three of two classes": (
        everywhere("stay", lambda t: (["a", "b", "c"] * 30)[: len(t)]),
        {"task": "binary"},
        "it has 3 classes, and binary has two",
    ),
    "two of several classes": (
        everywhere("stay", lambda t: ["no", "yes"] * 40),
        {"task": "multiclass"},
        "it has 2 classes, and multiclass has three or more",
    ),
    "a number as classes": (lambda tables: None, {"task": ""}, 'write `task = "regression"`, or `task = "count"`'),
}


@pytest.mark.parametrize("name", IN_FILES)
def test_a_target_that_cannot_be_predicted_is_one_error_without_its_values(name: str, tmp_path: Path) -> None:
    change, data, expected = IN_FILES[name]
    tables = hospitals()
    change(tables)
    error = raised_by(lambda: notices_or_error(study_of(tmp_path, tables, data)))
    assert isinstance(error, WardroundError)
    assert expected in str(error)
    assert error.remedy
    assert not leaks(error)


def notices_or_error(study: Mapping[str, Any]) -> None:
    notices_of(study)


COUNTED = {"kind": "count", "exposure": "months"}
# what the study says, in [data] and elsewhere, and what the error says; no file needs to be read
IN_TEXT: dict[str, tuple[Mapping[str, Any], Mapping[str, Any], str]] = {
    "unknown": ({"task": "regresion"}, {}, "Did you mean 'regression'?"),
    "unknown kind": ({"task": {"kind": "counts"}}, {}, "data: task: kind: 'counts' is no kind of outcome"),
    "no kind": ({"task": {"loss": "huber"}}, {}, "data: task: kind: no kind is named"),
    "findings": ({"task": "multilabel"}, {}, "a column of a file holds one class or number of each row"),
    "setting of another": ({"task": {"kind": "regression", "exposure": "months"}}, {}, "exposure: no such setting"),
    "setting": ({"task": {"kind": "count", "dispersion": -1}}, {}, "dispersion: -1.0 is out of range"),
    "positive": ({"positive": "1"}, {}, "data: positive: is about classes, and the task is regression"),
    "classes": ({"classes": ["a", "b"]}, {}, "data: classes: is about classes"),
    "labels": ({"labels": {"north": {"a": "b"}}}, {}, "data: labels: is about classes"),
    "reversed range": ({"ranges": {"stay": [30, 0]}}, {}, "data: ranges: stay: the limits are not in order"),
    "reversed in task": ({"task": {"kind": "regression", "range": [30, 0]}}, {}, "range: the limits are not in order"),
    "range of a count": ({**COUNT, "task": {**COUNTED, "range": [-1, 9]}}, {}, "a count is never below 0"),
    "two ranges": (
        {"ranges": {"stay": [0, 30]}, "task": {"kind": "regression", "range": [0, 20]}},
        {},
        "task: range: `ranges` gives another one",
    ),
    "exposure is target": (
        {**COUNT, "task": {**COUNTED, "exposure": "admissions"}},
        {},
        "exposure: 'admissions' is predicted itself",
    ),
    "exposure is patient": ({**COUNT, "patient": "months"}, {}, "exposure: 'months' is predicted itself, or names"),
    "exposure as a feature": ({**COUNT, "types": {"months": "numeric"}}, {}, "'months' belongs to what is predicted"),
    "exposure as the age": ({**COUNT, "age": "months"}, {}, "data: age: 'months' belongs to what is predicted"),
    "target as a feature": ({"types": {"stay": "ignore"}}, {}, "data: types: 'stay' belongs to what is predicted"),
    "another task in an arm": (
        {},
        {"arms": [{"algorithm": "fedavg"}, {"name": "b", "algorithm": "fedavg", "data.task": "count"}]},
        "arms: b: data: task: it predicts another kind of outcome than the other arms",
    ),
    "other settings in an arm": (
        COUNT,
        {
            "arms": [
                {"algorithm": "fedavg"},
                {"name": "b", "algorithm": "fedavg", "data.task": {**COUNTED, "dispersion": 0.5}},
            ]
        },
        "they predict different outcomes, different classes, or numbers of different kinds",
    ),
    "class weights": (
        {},
        {"training": {"rounds": 1, "class_weights": "balanced"}},
        "training: class_weights: is about rare classes of one outcome, and a number is predicted",
    ),
    "oversampling": ({}, {"training": {"rounds": 1, "oversample": 0.5}}, "training: oversample: is about rare classes"),
    "SMOTE": (
        {},
        {"training": {"rounds": 1, "mix": {"kind": "smote"}}},
        "training: mix: SMOTE is about rare classes of one outcome, and there are none",
    ),
    "metric of classes": ({}, {"evaluation": {"metric": "auc"}}, "metric: 'auc' is not a possible value"),
    "logistic": ({}, {"model": {"kind": "logistic"}}, "logistic regression predicts classes, and stay is a number"),
}


def test_settings_that_do_not_go_with_the_task_are_refused_with_the_reason(tmp_path: Path) -> None:
    wrong = []
    for name, (data, sections, expected) in IN_TEXT.items():
        study = study_of(tmp_path, hospitals(), data, **sections)
        error = raised_by(lambda study=study: notices_or_error(study))  # type: ignore[misc]
        if not isinstance(error, WardroundError) or expected not in str(error) or not error.remedy:
            wrong.append(f"{name}: {error!r}")
    assert not wrong


def lines(folder: Path, change: Callable[[Tables], None], data: Mapping[str, Any] | None = None) -> list[str]:
    tables = hospitals()
    change(tables)
    return [line_of(notice) for notice in notices_of(study_of(folder, tables, data))]


def test_rows_without_a_number_are_left_out_and_counted(tmp_path: Path) -> None:
    told = lines(tmp_path, put("stay", "", "NA", ""))
    assert "north: 3 of 80 rows left out, without a value in 'stay'" in told


def test_a_hospital_where_all_have_one_number_is_warned_of(tmp_path: Path) -> None:
    for name, change, data in (
        ("stay", everywhere("stay", lambda t: NUMBER, ("north",)), None),
        ("admissions", everywhere("admissions", lambda t: 0, ("north",)), COUNT),
    ):
        told = lines(tmp_path, change, data)
        assert f"north: {name!r} is the same in all training rows" in "\n".join(told)
        assert "73919" not in "\n".join(told)


def test_numbers_outside_the_declared_range_are_counted(tmp_path: Path) -> None:
    told = lines(tmp_path, put("stay", NUMBER, -1), {"ranges": {"stay": [0, 60]}})
    assert any("north: 2 of 80 values of 'stay' lie outside the declared range" in line for line in told)
    assert "73919" not in "\n".join(told)


def test_a_target_in_numbers_is_read_with_the_column_beside_it(tmp_path: Path) -> None:
    from wardround.data.sources.csv.hospital_files import csv

    tables = hospitals(20)
    study = study_of(tmp_path, tables, COUNT)
    files = {site: Path(path) for site, path in study["data"]["files"].items()}
    records = csv(files, "admissions", task=COUNT["task"]).load()  # type: ignore[arg-type]
    expected = np.concatenate([tables[site][["admissions", "months"]].to_numpy(dtype=float) for site in SITES])
    assert np.array_equal(records.target, expected)
    assert "months" not in {column.name for column in records.columns}
    assert records.task.to_json()["exposure"] == "months"


def test_impossible_settings_of_a_task_that_comes_from_elsewhere_are_refused() -> None:
    for content in (
        {"kind": "regression", "names": ["stay"], "range": [3.0, 1.0]},
        {"kind": "count", "names": ["n"], "range": [-1.0, 1.0]},
        {"kind": "count", "names": ["n"], "exposure": "n"},
    ):
        assert isinstance(raised_by(lambda content=content: read_task(content)), WardroundError)  # type: ignore[misc]
