"""The section on the choice of settings: what was tried, what was chosen, how flat the optimum is."""

import csv
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

import wardround
from tests.report.test_report import page_of
from tests.report_consistency import contradictions
from wardround.report import read_evidence
from wardround.report.sections.tuning import SECTION, against_values, chosen_table, lines, trials_table
from wardround.runs.folder import RunFolder

STUDY: dict[str, Any] = {
    "name": "chosen",
    "data": {"source": "heart", "hospitals": ["cleveland", "hungarian"]},
    "training": {"rounds": 3},
    "evaluation": {"validation_share": 0.25, "seeds": {"first": 1, "count": 3}, "metric": "brier"},
    "tuning": {
        "budget": 3,
        "method": "successive-halving",
        "space": {
            "training.lr": {"low": 0.01, "high": 1.0, "log": True},
            "mu": [0.1, 1.0],
            "model.intercept": ["shared", "private"],
        },
    },
    "arms": [{"algorithm": "fedavg"}, {"algorithm": "fedprox"}],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> wardround.StudyRun:
    made = wardround.run_study(STUDY, tmp_path_factory.mktemp("chosen"))
    wardround.build_report(made.folder)
    return made


def test_the_section_is_on_the_page_and_contradicts_nothing(run: wardround.StudyRun) -> None:
    page, html = page_of(run.folder), (run.folder / "report.html").read_text()
    assert {"tuning", "figure-tuning", "table-tuning", "table-tuning-trials"} <= set(page.ids)
    evidence = read_evidence(RunFolder(run.folder))
    for line in lines(evidence):
        assert line.replace("'", "&#39;") in html
    assert not contradictions(run.results, html)
    assert SECTION.anchor == "tuning"
    assert "each seed chose for itself: model.intercept, mu, training.lr" in html, "the design says so too"


def test_tables_say_what_results_say(run: wardround.StudyRun) -> None:
    arms = run.results["tuning"]["arms"]
    evidence = read_evidence(RunFolder(run.folder))
    chosen = chosen_table(evidence)
    for row in (dict(zip(chosen.columns, row, strict=True)) for row in chosen.rows):
        arm = arms[row["arm"]]
        kept = sum(own["trial"] == 0 for own in arm["chosen"].values())
        assert row["seeds that kept what is written"] == kept
        assert row["trainings spent"] == arm["spent"]["1"]["trainings"] <= 3
    trials = trials_table(evidence)
    assert len(trials.rows) == sum(len({t["trial"] for t in arm["trials"]}) for arm in arms.values())
    assert sum(row[-1] for row in trials.rows) == 6, "each of two arms is chosen a setting with each of three seeds"
    with (run.folder / "tables" / "tuning-trials.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(trials.rows)


def test_a_lower_error_is_better(run: wardround.StudyRun) -> None:
    for arm in run.results["tuning"]["arms"].values():
        for seed, own in arm["chosen"].items():
            rivals = [t["score"] for t in arm["trials"] if str(t["seed"]) == seed and t["rounds"] == arm["rounds"]]
            assert own["score"] == min(rivals)


@pytest.mark.rendered
def test_the_figure_has_a_panel_for_each_key_with_the_choice_marked(run: wardround.StudyRun) -> None:
    drawn = against_values(read_evidence(RunFolder(run.folder)))
    assert isinstance(drawn, Figure)
    panels = [axes for axes in drawn.axes if axes.get_visible()]
    assert [axes.get_xlabel() for axes in panels] == ["model.intercept", "mu", "training.lr"]
    assert panels[2].get_xscale() == "log"
    assert [text.get_text() for text in panels[0].get_xticklabels()] == ["shared", "private"]
    marked = [
        len(line.get_xdata())  # type: ignore[arg-type]
        for line in panels[0].get_lines()
        if line.get_markeredgecolor() == "black"
    ]
    assert sum(marked) == 6
    assert (Path(run.folder) / "figures" / "tuning.svg").is_file()
