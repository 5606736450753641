"""The section on hospitals whose updates differ, and the notice: from a run with one inverted hospital in nine."""

from pathlib import Path
from typing import Any

import pytest

import wardround
from tests.deployment.test_screening_parity import INVERTED, study, wards
from tests.noticed import noticed
from tests.report.test_report import page_of
from tests.report_consistency import contradictions
from wardround.report import read_evidence
from wardround.report.sections.robustness.screening import all_lines, named_table, over_rounds
from wardround.runs.folder import RunFolder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> wardround.StudyRun:
    document: dict[str, Any] = study("notice")
    made = wardround.run_study(document, tmp_path_factory.mktemp("screened"), sources={"wards": wards}, workers=1)
    wardround.build_report(made.folder)
    return made


def test_the_section_and_the_notice_name_the_hospital_with_its_evidence(run: wardround.StudyRun) -> None:
    page, html = page_of(run.folder), (run.folder / "report.html").read_text()
    assert {"screening", "figure-screening", "table-screening"} <= set(page.ids)
    evidence = read_evidence(RunFolder(run.folder))
    assert f"updates of {INVERTED} (with 1 seed) differ from the others'" in all_lines(evidence)[0]
    table = named_table(evidence)
    assert table is not None
    (row,) = table.rows
    (entry,) = run.results["screening"]["arms"]["fedavg"]["named"]
    assert (row[1], row[3], row[6]) == (INVERTED, 3, entry["value"])
    (notice,) = noticed(run.results, "update-differs")
    assert notice["site"] == INVERTED
    assert f"mean cosine {entry['value']:.2f}, where -0.15 or less is named (round 3)" in notice["text"]
    assert not contradictions(run.results, html)


def test_the_figure_shows_every_hospital_and_colours_the_named_one(run: wardround.StudyRun) -> None:
    drawn = over_rounds(read_evidence(RunFolder(run.folder)))
    assert drawn is not None
    left, right = drawn.axes
    assert len(left.lines) == 9
    assert len(right.lines) == 10  # and the line at 0
    assert [line.get_label() for line in left.lines if not str(line.get_label()).startswith("_")] == [INVERTED]


def test_the_audit_log_has_it_once(run: wardround.StudyRun) -> None:
    lines = (Path(run.folder) / "audit.jsonl").read_text().splitlines()
    assert sum('"site named"' in line and INVERTED in line for line in lines) == 1


def test_where_sums_are_secure_nothing_is_compared_and_the_run_says_so(tmp_path: Path) -> None:
    document = study("notice", rounds=2) | {"privacy": {"secure_sum": {}}}
    made = wardround.run_study(document, tmp_path, sources={"wards": wards}, workers=1)
    (notice,) = noticed(made.results, "updates-not-compared")
    assert "under [privacy.secure_sum] nobody sees those of one site" in notice["text"]
    arm = made.results["screening"]["arms"]["fedavg"]
    assert (arm["hidden_by"], arm["named"], arm["rounds"]) == ("secure_sum", [], {})
