"""The section on time and participation."""

from typing import Any

import pytest

import wardround
from tests.report.test_report import page_of
from tests.report_consistency import contradictions
from wardround.report import read_evidence
from wardround.report.sections.participation.virtual_time import (
    SECTION,
    lines,
    participation_figure,
    participation_table,
    staleness_figure,
    time_table,
)
from wardround.runs.folder import RunFolder

STUDY: dict[str, Any] = {
    "name": "timely",
    "data": {"source": "heart"},
    "sites": {"partition": "iid", "count": 6, "speed": {"sites": {"site-06": 0.05}}},
    "training": {"rounds": 4, "lr": 0.1},
    "evaluation": {"seeds": {"first": 1, "count": 3}},
    "arms": [
        {"name": "waiting", "algorithm": "fedavg"},
        {
            "name": "buffered",
            "algorithm": "fedavg",
            "training.rounds": 80,
            "training.asynchronous": {"buffer": 2, "most_stale": 200},
        },
        {
            "name": "strict",
            "algorithm": "fedavg",
            "training.rounds": 20,
            "training.asynchronous": {"buffer": 1, "most_stale": 8},
        },
    ],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> wardround.StudyRun:
    made = wardround.run_study(STUDY, tmp_path_factory.mktemp("timely"))
    wardround.build_report(made.folder)
    return made


def test_the_section_is_on_the_page_and_contradicts_nothing(run: wardround.StudyRun) -> None:
    page, html = page_of(run.folder), (run.folder / "report.html").read_text()
    expected = {"time", "table-time", "table-participation", "figure-metric-over-time", "figure-staleness"}
    assert expected <= set(page.ids)
    evidence = read_evidence(RunFolder(run.folder))
    for line in lines(evidence):
        assert line.replace("'", "&#39;") in html
    assert not contradictions(run.results, html)
    assert SECTION.anchor == "time"


def test_it_says_who_was_left_out_and_how_much_sooner_arms_were_as_good(run: wardround.StudyRun) -> None:
    text = " ".join(lines(read_evidence(RunFolder(run.folder))))
    assert "strict: hospitals counted in 0.0 to" in text
    assert "site-06 in less than half of the mean" in text
    assert "Rank correlation of taking part with training rows" in text
    assert ", of 6 hospitals only" in text
    notices = [notice for notice in run.results["notices"] if notice["code"] == "never-counted"]
    assert [(notice["site"], notice["arm"]) for notice in notices] == [("site-06", "strict")]
    sooner = {entry["arm"]: entry for entry in run.results["time_to_equal"]}
    assert sooner["buffered"]["reference"] == "waiting"
    assert "buffered reached the accuracy that waiting has at its end" in text or not sooner["buffered"]["reached"]


def test_tables_and_figures_say_what_results_say(run: wardround.StudyRun) -> None:
    evidence, arms = read_evidence(RunFolder(run.folder)), run.results["arms"]
    for row in time_table(evidence).rows:
        arm = arms[row[0]]["time"]
        assert row[2:4] == [arm["updates"], arm["seconds"]]
        assert row[5] == (arm["staleness"] or {}).get("largest")
    table = participation_table(evidence)
    assert len(table.rows) == 6
    last = dict(zip(table.columns, table.rows[-1], strict=True))
    assert last["hospital"] == "site-06"
    assert last["waiting: rounds, %"] == 1
    assert last["strict: rounds, %"] == 0
    stale, who = staleness_figure(evidence), participation_figure(evidence)
    assert stale is not None
    assert len(stale.axes) == 2
    assert who is not None
    (axes,) = who.axes
    assert len(axes.lines) == 18
    assert all(line.get_marker() not in ("None", "", None) for line in axes.lines)
