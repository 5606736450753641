"""The check of reports can fail: it finds what is planted."""

import json
from pathlib import Path
from typing import Any

import pytest

import wardround
from tests.report.test_report import small
from tests.report_consistency import contradictions


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> wardround.StudyRun:
    study_run = wardround.run_study(small("agreeing"), tmp_path_factory.mktemp("runs"))
    wardround.build_report(study_run.folder)
    return study_run


def test_a_verdict_that_its_interval_contradicts_is_found(run: wardround.StudyRun) -> None:
    page = (run.folder / "report.html").read_text(encoding="utf-8")
    results: Any = json.loads((run.folder / "results.json").read_text(encoding="utf-8"))
    assert contradictions(results, page) == []
    entry = next(entry for entry in results["benefit"] if entry["verdict"] == "no evidence")
    entry["verdict"] = "gains"
    assert any(".benefit[" in line for line in contradictions(results, page))


def test_a_row_and_a_sentence_that_contradict_their_interval_are_found(tmp_path: Path) -> None:
    head = (
        "<table><tr><th>arm</th><th>points</th><th>95 % CI from</th><th>95 % CI to</th><th>p</th><th>verdict</th></tr>"
    )
    row = "<tr><td>a</td><td>+8.7</td><td>+3.9</td><td>+13.5</td><td>0.001</td><td>no evidence</td></tr></table>"
    assert len(contradictions({}, head + row)) == 2  # the interval, and the p-value
    for sentence in (
        "Joining helped: with fedavg, +8.7 points of AUC against training alone (95 % CI -3.9 to +13.5).",
        "There is no evidence that joining helped or harmed: +8.7 points (95 % CI +3.9 to +13.5).",
        "No arm differs from local by more than chance can explain (fedavg, 95 % CI +0.2 to +1.0).",
    ):
        assert len(contradictions({}, f"<p>{sentence}</p>")) == 1, sentence
