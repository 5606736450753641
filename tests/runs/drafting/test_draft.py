"""`wardround init`: what it finds in hospitals' files, and that what it writes passes the check and runs."""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import wardround
from tests.runs.drafting.hospital_csv_files import PLAIN, age, crp, outcome, serial, write
from wardround.cli.main import app
from wardround.core.errors import CheckError, DataError, StudyError, WardroundError
from wardround.core.toml_files import parse_toml
from wardround.runs.drafting.draft import Draft, init_study, possible_targets
from wardround.runs.interface.quick_comparison import comparison_study


def drafted(files: list[Path], target: str = "died", **options: Any) -> tuple[Draft, dict[str, Any]]:
    draft = init_study(files, target, out=files[0].parent / "study.toml", **options)
    return draft, parse_toml(draft.text)


def said(draft: Draft) -> str:
    return " ".join(draft.assumptions)


def test_three_files_become_a_study_that_is_checked_and_runs(tmp_path: Path) -> None:
    files = [write(tmp_path, name) for name in ("north", "south", "east")]
    draft, study = drafted(files)
    assert study["data"]["files"] == {name: f"{name}.csv" for name in ("north", "south", "east")}
    assert (study["data"]["target"], study["data"]["patient"]) == ("died", "patient_id")
    assert [arm["name"] for arm in study["arms"]] == ["local", "fedavg", "fedprox"]
    assert study["evaluation"]["reference"] == "local"
    assert "every row is another patient" in said(draft)
    assert "'yes' is the event" in said(draft)
    assert [notice.columns for notice in draft.notices if notice.code == "column-left-out"] == [("admitted",)]
    for line in draft.text.splitlines():  # each key that decides something says what it decides
        if re.match(r"(target|patient|columns|missing|scale|rounds|lr|seeds|reference|test_share|mu|l2) =", line):
            assert "  # " in line, line
    small = {"evaluation.seeds.count": 2, "training.rounds": 2}
    run = wardround.run_study(draft.path, tmp_path / "runs", changes=small)
    assert list(run.results["arms"]) == ["local", "fedavg", "fedprox"]


def test_a_target_that_hospitals_write_in_other_words_is_offered_first(tmp_path: Path) -> None:
    words = {"north": {"yes": "yes", "no": "no"}, "south": {"yes": "1", "no": "0"}}
    files = []
    for name, own in words.items():
        file = write(tmp_path, name)
        rows = file.read_text(encoding="utf-8").splitlines()
        ends = [row.rpartition(",") for row in rows[1:]]
        assert {word for *_, word in ends} == {"yes", "no"}
        file.write_text("\n".join([rows[0], *(f"{start},{own[word]}" for start, _, word in ends)]), encoding="utf-8")
        files.append(file)
    first = possible_targets(files)[0]
    assert (first.name, first.what) == ("died", "2 classes")


def test_the_study_is_that_of_compare(tmp_path: Path) -> None:
    files = {name: write(tmp_path, name) for name in ("north", "south")}
    draft, _ = drafted(list(files.values()))
    written, _ = wardround.load_study(draft.path)
    compared = comparison_study(files, "died", patient="patient_id", name="died")
    assert written.hash == wardround.load_study(compared)[0].hash


def test_a_file_that_is_there_is_replaced_only_with_force(tmp_path: Path) -> None:
    files = [write(tmp_path, name) for name in ("north", "south")]
    (tmp_path / "study.toml").write_text("mine")
    with pytest.raises(StudyError, match="is there already"):
        drafted(files)
    assert (tmp_path / "study.toml").read_text() == "mine"
    drafted(files, force=True)
    assert parse_toml((tmp_path / "study.toml").read_text())["name"] == "died"


def test_hospitals_can_be_named(tmp_path: Path) -> None:
    files = [write(tmp_path, "export1"), write(tmp_path, "export2")]
    _, study = drafted(files, names={"St. Mary": files[1]})
    assert study["data"]["files"] == {"export1": "export1.csv", "St. Mary": "export2.csv"}
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(StudyError, match="two files would be of a hospital 'export1'"):
        drafted([files[0], write(other, "export1", seed=1)], force=True)
    with pytest.raises(StudyError, match="is not among the files"):
        drafted(files, names={"east": tmp_path / "east.csv"}, force=True)


def test_paths_begin_at_the_study_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "studies").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ("north", "south"):
        write(tmp_path / "data", name)
    draft = init_study(["data/north.csv", "data/south.csv"], "died", out="studies/mortality.toml")
    study = parse_toml(draft.text)
    assert study["data"]["files"]["north"] == "../data/north.csv"
    assert study["name"] == "mortality"
    os.chdir("/")
    wardround.load_plan(*wardround.load_study(tmp_path / "studies" / "mortality.toml"))


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (lambda rng, rows: rng.integers(0, 2, rows).tolist(), "classes"),
        (lambda rng, rows: rng.integers(1, 5, rows).tolist(), "classes"),
        (lambda rng, rows: rng.poisson(3, rows).tolist(), "count"),
        (lambda rng, rows: rng.integers(40, 180, rows).tolist(), "regression"),
        (lambda rng, rows: rng.normal(size=rows).round(3).tolist(), "regression"),
        (lambda rng, rows: rng.choice(["mild", "grave", "none at all"], rows).tolist(), "classes"),
    ],
    ids=["0 and 1", "grades", "count", "whole numbers", "numbers", "three words"],
)
def test_the_kind_of_target_follows_from_its_cells(tmp_path: Path, values: Any, kind: str) -> None:
    files = [write(tmp_path, name, {"pid": serial("p"), "age": age, "y": values}) for name in ("north", "south")]
    _, study = drafted(files, "y")
    assert study["data"].get("task", "classes") == kind
    assert study["model"]["kind"] == ("logistic" if kind == "classes" else "linear")


def test_the_kind_and_the_event_can_be_given(tmp_path: Path) -> None:
    files = [
        write(tmp_path, name, {"age": age, "crp": crp, "y": lambda rng, rows: rng.integers(1, 4, rows).tolist()})
        for name in ("north", "south")
    ]
    _, study = drafted(files, "y", task="regression")
    assert study["data"]["task"] == "regression"
    words = [
        write(tmp_path, name, {"age": age, "left": lambda rng, rows: rng.choice(["home", "away"], rows).tolist()})
        for name in ("a", "b")
    ]
    draft, study = drafted(words, "left", positive="away", force=True)
    assert study["data"]["positive"] == "away"
    assert "'away' is the event" in said(draft)
    with pytest.raises(StudyError, match="is no kind of target"):
        drafted(files, "y", task="binary", force=True)


def test_patients_are_found_by_name_and_may_have_another_at_each_hospital(tmp_path: Path) -> None:
    def twice(_: np.random.Generator, rows: int) -> list[int]:
        return [row // 2 for row in range(rows)]

    north = write(tmp_path, "north", {"visit_id": serial("v"), "mrn": twice, "age": age, "crp": crp, "died": outcome})
    south = write(tmp_path, "south", {"case_id": serial("c"), "pid": twice, "age": age, "crp": crp, "died": outcome})
    draft, study = drafted([north, south])
    assert study["data"]["patients"] == {"north": "mrn", "south": "pid"}
    assert "160 rows are of 80 patients" in said(draft)
    _, study = drafted([north, write(tmp_path, "east", {"mrn": twice, "age": age, "died": outcome})], force=True)
    assert study["data"]["patient"] == "mrn"
    plain = [write(tmp_path, name, {"age": age, "crp": crp, "died": outcome}) for name in ("a", "b")]
    draft, study = drafted(plain, force=True)
    assert "patient" not in study["data"]
    assert "--patient" in said(draft)


def test_columns_that_some_hospitals_lack_are_left_out_or_each_uses_its_own(tmp_path: Path) -> None:
    more = {**PLAIN, "lactate": crp}
    draft, study = drafted([write(tmp_path, "north", more), write(tmp_path, "south")])
    assert study["data"]["columns"] == "common"
    assert "not used: 'lactate'" in said(draft)
    own = {"patient_id": serial("p"), "died": outcome}
    north = write(tmp_path, "north", {**own, "age": age, "a": crp, "b": crp, "c": crp})
    south = write(tmp_path, "south", {**own, "age": age, "d": crp, "e": crp})
    draft, study = drafted([north, south], force=True)
    assert (study["data"]["columns"], study["data"]["schema"]) == ("own", "own")
    assert study["model"]["kind"] == "adapter"
    assert "pooled" not in draft.text


def test_columns_that_would_be_refused_or_misread_are_left_out_and_said_so(tmp_path: Path) -> None:
    def below(rng: np.random.Generator, rows: int) -> list[str]:
        return [str(value) if value > 5 else "<5" for value in rng.exponential(40, rows).round(2)]

    def commas(rng: np.random.Generator, rows: int) -> list[str]:
        return [str(value).replace(".", ",") for value in rng.normal(5, 1, rows).round(2)]

    columns = {**PLAIN, "troponin": below, "potassium": commas}
    draft, study = drafted([write(tmp_path, name, columns) for name in ("north", "south")])
    assert study["data"]["types"] == {"troponin": "ignore", "potassium": "ignore"}
    assert "decimal commas" in said(draft)
    assert "<5" not in draft.text
    semicolons = [write(tmp_path, name, columns, separator=";") for name in ("a", "b")]
    _, study = drafted(semicolons, force=True)
    assert study["data"]["types"] == {"troponin": "ignore"}  # where commas are no separators they are decimal signs


def test_a_column_that_tells_the_outcome_is_left_out_and_said_so(tmp_path: Path) -> None:
    def write_with_leak(name: str) -> Path:
        path = write(tmp_path, name)
        header, *rows = path.read_text().splitlines()
        told = [f"{row},{9 if row.endswith('yes') else 1}" for row in rows]
        path.write_text("\n".join([f"{header},days_to_death", *told]) + "\n")
        return path

    draft, study = drafted([write_with_leak(name) for name in ("north", "south")])
    assert study["data"]["types"] == {"days_to_death": "ignore"}
    assert "'days_to_death': it tells the outcome by itself" in said(draft)


def test_files_that_cannot_be_compared_get_one_clear_error_and_write_nothing(tmp_path: Path) -> None:
    north = write(tmp_path, "north")
    picture = tmp_path / "scan.csv"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0")
    same = tmp_path / "same.csv"
    same.write_bytes(north.read_bytes())
    without = write(tmp_path, "without", {name: make for name, make in PLAIN.items() if name != "died"})
    empty = write(tmp_path, "empty", {**PLAIN, "died": lambda rng, rows: [""] * rows})
    header = tmp_path / "header.csv"
    header.write_text("patient_id,age,died\n")
    constant = [write(tmp_path, n, {**PLAIN, "died": lambda rng, rows: ["no"] * rows}) for n in ("a", "b")]
    cases: list[tuple[list[Path], type[WardroundError], str]] = [
        ([north], DataError, "one file is one hospital"),
        ([north, picture], DataError, "not a text file, but perhaps an image"),
        ([north, same], DataError, "has the same content as"),
        ([north, without], DataError, "there is no column 'died'"),
        ([north, empty], DataError, "has no value in 'died'"),
        ([north, header], DataError, "no row below it"),
        ([north, tmp_path / "nowhere.csv"], DataError, "there is no such file"),
        ([north, tmp_path], DataError, "this is a folder"),
        (constant, CheckError, "every training row is of class 'no'"),
    ]
    wrong = []
    for files, kind, message in cases:
        try:
            drafted(files)
            wrong.append(f"{message}: no error")
        except WardroundError as error:
            if type(error) is not kind or message not in str(error):
                wrong.append(f"{message}: {type(error).__name__} {error}")
    assert not wrong, "\n".join(wrong)
    assert not (tmp_path / "study.toml").exists()


def test_a_target_that_is_constant_at_one_hospital_is_remarked(tmp_path: Path) -> None:
    constant = write(tmp_path, "south", {**PLAIN, "died": lambda rng, rows: ["no"] * rows})
    draft, _ = drafted([write(tmp_path, "north"), constant])
    assert ("missing-class", "south") in {(notice.code, notice.site) for notice in draft.notices}


def test_without_a_target_the_columns_that_could_be_it_are_listed(tmp_path: Path) -> None:
    extra = {**PLAIN, "visits": lambda rng, rows: rng.poisson(3, rows).tolist()}
    files = [write(tmp_path, "north", {**extra, "only_here": age}), write(tmp_path, "south", extra)]
    found = {candidate.name: candidate.what for candidate in possible_targets(files)}
    assert found == {
        "died": "2 classes",
        "ward": "3 classes",
        "age": "a number",
        "crp": "a number",
        "visits": "a count",
    }
    assert next(iter(found)) == "died"


def test_in_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("north", "south"):
        write(tmp_path, name)
    call = CliRunner()
    listed = call.invoke(app, ["init", "north.csv", "south.csv"])
    assert "wardround init north.csv south.csv --target died" in listed.output
    shown = call.invoke(app, ["init", "north.csv", "south.csv", "--target", "died", "--name", "Nord=north.csv"])
    assert shown.exit_code == 0, shown.output
    assert "study.toml is written" in shown.output
    assert "Nord (80 rows)" in shown.output
    assert "wardround run study.toml --open" in shown.output
    assert not re.search(r"p00\d\d|2024-", shown.output + Path("study.toml").read_text())  # no patient's value


@pytest.mark.slow
def test_fifty_files(tmp_path: Path) -> None:
    files = [write(tmp_path, f"hospital{number:02}", rows=60) for number in range(50)]
    draft, study = drafted(files)
    assert len(study["data"]["files"]) == 50
    assert "50 hospitals" in said(draft)
