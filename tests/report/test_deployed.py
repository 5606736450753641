"""The report of a run across hospitals: complete without a row of anybody, and it says what it lacks and why."""

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import wardround
from tests.evaluation.deployed_summaries import as_deployed
from tests.report.test_report import FIGURES, HEART, OF_IMAGES, SECTIONS, page_of, small
from wardround.core.errors import RunError
from wardround.report import build
from wardround.runs.audit import BEGUN, FINISHED, AuditLog, file_hash
from wardround.runs.folder import RunFolder
from wardround.runs.record_form import table_of

ACROSS: dict[str, Any] = {
    **{key: value for key, value in HEART.items() if key != "arms"},
    "name": "across",
    "arms": [arm for arm in HEART["arms"] if arm["algorithm"] != "pooled"],
    "deployment": {"quorum": 3, "deadline": 90.0, "smallest_cell": 5},
}
NEED_ROWS = {"distributions", "correlation"}
LATE = {"joined": True, "rounds": 25, "of": 27, "scored": True, "reason": None}
PRESENT = {site: {**LATE, "rounds": 27} for site in ("cleveland", "hungarian", "switzerland", "va")}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> wardround.StudyRun:
    return wardround.run_study(ACROSS, tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def folder(made: wardround.StudyRun, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    deployed_folder = as_deployed(made, ACROSS, tmp_path_factory.mktemp("told") / "across")
    results = deployed_folder.read_json("results.json")
    deployed_folder.write_json("results.json", {**results, "participation": PRESENT | {"va": LATE}})
    wardround.build_report(deployed_folder.path)
    return deployed_folder


def test_it_is_complete_but_for_what_needs_rows(folder: RunFolder) -> None:
    page = page_of(folder.path)
    assert set(page.ids) >= SECTIONS
    assert len(page.ids) == len(set(page.ids))
    assert not page.outside
    assert {path.stem for path in (folder.path / "figures").glob("*.svg")} == FIGURES - NEED_ROWS - OF_IMAGES
    tables = {path.stem for path in (folder.path / "tables").glob("*.csv")}
    assert tables >= {"sites", "arms", "tests", "benefit", "best-single", "external", "selection", "subgroups"}
    assert not tables & {"calibration", "leakage"}
    assert not re.findall(r"\b(nan|None|NaN)\b", page.text)


@pytest.mark.slow
@pytest.mark.rendered
def test_no_figure_is_empty(folder: RunFolder, tmp_path: Path) -> None:
    """Lines and marks are drawn inside the axes of every one."""
    shutil.copytree(folder.path, tmp_path / "rendered")
    wardround.build_report(tmp_path / "rendered")
    for path in (tmp_path / "rendered" / "figures").glob("*.svg"):
        assert len(re.findall(r"<(path|use)\b", path.read_text())) > 10, path.name


def test_it_says_what_is_missing_and_why(folder: RunFolder) -> None:
    text = page_of(folder.path).text
    assert "predictions stay at their hospital" in text
    assert "Not here: the columns, in all rows and at each site; correlation of the columns." in text
    assert "The bootstrap draws seeds anew and not patients" in text
    assert "Slope and intercept need rows" in text
    assert "This was a simulation" not in text
    assert "predictions.parquet" not in text
    assert "switzerland: fewer than 5 patients tested of class" in text
    bound = max(
        arm["auc_error_bound"]
        for arm in folder.read_json("results.json")["arms"].values()
        if not arm["variant"] and not arm["train_at"]
    )
    assert 0 < bound < 0.25
    assert text.count(f"may be off by up to {bound:.3f}") == 2


def test_the_design_names_quorum_deadline_and_who_was_missing(folder: RunFolder) -> None:
    text = page_of(folder.path).text
    assert "across 4 hospitals" in text
    assert "a round closed with the work of 3 of them, after 90 seconds if not all had answered" in text
    assert "va: its work counted in 25 of 27 rounds over all arms and seeds" in text


def test_no_small_count_is_in_the_folder(folder: RunFolder) -> None:
    assert [path.name for path in folder.path.glob("*.parquet")] == ["records.parquet"]
    switzerland = folder.read_json("results.json")["sites"][0]["sites"]["switzerland"]
    assert switzerland["classes"] == {"no disease": 8, "disease": 115}
    for line in folder.summaries():
        for cells in line.get("histogram") or []:
            assert all(cell["rows"] >= 5 for cell in cells)


@pytest.mark.parametrize("name", ["summaries.jsonl", "results.json"])
def test_a_folder_without_a_part_is_refused_by_name(folder: RunFolder, tmp_path: Path, name: str) -> None:
    shutil.copytree(folder.path, tmp_path / "broken")
    (tmp_path / "broken" / name).unlink()
    with pytest.raises(RunError, match=re.escape(name)):
        wardround.build_report(tmp_path / "broken")


def test_summaries_that_are_not_those_of_the_run_are_refused(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "draw_all", lambda *_: {})  # which takes most of the time
    lines = folder.summaries()
    cases: Mapping[str, bytes] = {
        "junk": b"junk\n",
        "no fields": b"{}\n",
        "one seed less": b"".join(json.dumps(line).encode() + b"\n" for line in lines if line["seed"] != 2),
        "changed": b"".join(json.dumps({**line, "rows": 99}).encode() + b"\n" for line in lines),
    }
    for name, content in cases.items():
        shutil.copytree(folder.path, tmp_path / name)
        log = AuditLog(tmp_path / name / "audit.jsonl")
        log.add(BEGUN)
        files = {file: file_hash(folder.path / file) for file in ("results.json", "summaries.jsonl")}
        log.add(FINISHED, files=files)
        wardround.build_report(tmp_path / name)
        (tmp_path / name / "summaries.jsonl").write_bytes(content)
        with pytest.raises(RunError, match="summaries"):
            wardround.build_report(tmp_path / name)


def test_runs_across_hospitals_stand_side_by_side_unpaired(made: wardround.StudyRun, folder: RunFolder) -> None:
    for paths in ([made.folder, folder.path], [folder.path, made.folder]):
        comparison = wardround.compare_runs(paths)
        assert [table.name for table in comparison.tables] == ["figures"]
        assert any("predictions stay at their hospital" in note for note in comparison.notes)
        place = [column.split(",")[0] for column in comparison.tables[0].columns].index("accuracy")
        for row in comparison.tables[0].rows:  # AUC is not the same: a site with few of a class keeps its own to itself
            assert row[place] == pytest.approx(row[place + 1])


@pytest.mark.slow
@pytest.mark.rendered
def test_one_seed_no_curve_and_classes_that_are_withheld(tmp_path: Path) -> None:
    """The least that a coordinator may know: no round was evaluated, and every class is too small to tell of."""
    study = small("least", evaluation={"seeds": {"count": 1}, "reference": "fedavg"}, deployment={"smallest_cell": 60})
    run = wardround.run_study(study, tmp_path / "runs")
    without_figures = [replace(record, figures={}) for record in wardround.read_records(run.folder)]
    pq.write_table(table_of(without_figures), run.folder / "records.parquet")
    deployed_folder = as_deployed(run, study, tmp_path / "least")
    wardround.build_report(deployed_folder.path)
    page = page_of(deployed_folder.path)
    assert "figure-test-accuracy" not in page.ids
    assert (
        "too few patients for figures to leave it (`smallest_cell`) (2 sites): cleveland (no disease, disease), va"
        in (page.text)
    )
    assert "withheld" in page.text
    assert not re.findall(r"\b(nan|None|NaN)\b", page.text)
