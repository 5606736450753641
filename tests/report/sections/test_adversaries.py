"""A report says first that adversaries were simulated; its tables and figures are those of the results."""

from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

import wardround
from tests.report.test_report import page_of
from tests.report_consistency import contradictions
from wardround.report import read_evidence
from wardround.report.evidence import Evidence
from wardround.report.sections.robustness.adversaries import (
    attack_map,
    damage_table,
    hospital_damage_table,
    share_lines,
    who_table,
)
from wardround.runs.folder import RunFolder


def turned(*sites: str) -> list[dict[str, Any]]:
    return [{"sites": list(sites), "kind": "sign-flip", "strength": 5}]


STUDY: dict[str, Any] = {
    "name": "attacked",
    "data": {"source": "heart"},
    "sites": {"partition": "iid", "count": 6},
    "training": {"rounds": 3},
    "evaluation": {"seeds": {"first": 1, "count": 2}},
    "arms": [{"algorithm": "local"}, {"algorithm": "fedavg"}, {"algorithm": "fedprox", "mu": 1.0}],
    "variants": [
        {"name": "one", "adversaries": turned("site-01")},
        {"name": "two", "adversaries": turned("site-01", "site-02")},
        {"name": "labels", "adversaries": [{"sites": ["site-01"], "kind": "label-flip"}]},
    ],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> wardround.StudyRun:
    made = wardround.run_study(STUDY, tmp_path_factory.mktemp("attacked"))
    wardround.build_report(made.folder)
    return made


@pytest.fixture(scope="module")
def evidence(run: wardround.StudyRun) -> Evidence:
    return read_evidence(RunFolder(run.folder))


def test_it_is_said_before_anything_else(run: wardround.StudyRun) -> None:
    html = (run.folder / "report.html").read_text()
    sentence = run.results["adversaries"]["sentence"]
    assert "site-01, site-02" in sentence
    first = html.index(sentence)
    assert first < html.index("<main>") < html.index('id="adversaries"') < html.index('id="hospitals"')
    assert not contradictions(run.results, html)
    page = page_of(run.folder)
    assert {"adversaries", "table-adversaries-damage", "figure-adversaries-map"} <= set(page.ids)
    assert "figure-adversaries-share" in page.ids
    assert "nan" not in page.text.split()


def test_tables_say_what_results_say(run: wardround.StudyRun, evidence: Evidence) -> None:
    described = run.results["adversaries"]["arms"]
    damage = damage_table(evidence)
    assert [row[0] for row in damage.rows] == list(described)
    for row in damage.rows:
        entry = described[row[0]]
        assert row[2] == f"{entry['bad']} of 6"
        assert row[3] == run.results["arms"][entry["twin"]]["within_sites"]["auc"]["mean"]
        assert row[5] == entry["damage"]["auc"]["mean"]["difference"]
    assert len(who_table(evidence).rows) == len(described)
    by_hospital = hospital_damage_table(evidence)
    assert by_hospital is not None
    assert len(by_hospital.rows) == 4 * len(described)


def test_figures_have_a_cell_for_each_attack_and_a_point_for_each_number_of_bad_sites(evidence: Evidence) -> None:
    drawn = attack_map(evidence)
    assert isinstance(drawn, Figure)
    labels = [label.get_text().replace("\n", " ") for label in drawn.axes[0].get_xticklabels()]
    assert labels == ["nobody is bad", "sign-flip (strength 5)", "label-flip"]
    assert [label.get_text() for label in drawn.axes[0].get_yticklabels()] == ["fedavg", "fedprox"]
    lines = share_lines(evidence)
    assert isinstance(lines, Figure)
    (panel,) = [axes for axes in lines.axes if axes.get_visible()]
    assert panel.get_title() == "sign-flip (strength 5)", "one number of bad sites is no line"
    assert [line.get_label() for line in panel.get_lines() if np.size(line.get_xdata()) == 3] == ["fedavg", "fedprox"]


def test_a_study_with_one_attack_has_no_map_and_no_lines(tmp_path_factory: pytest.TempPathFactory) -> None:
    arms = [{"algorithm": "fedavg"}, {"name": "bad", "algorithm": "fedavg", "adversaries": turned("site-01")}]
    study = {**STUDY, "arms": arms, "variants": []}
    made = wardround.run_study(study, tmp_path_factory.mktemp("single"))
    alone = read_evidence(RunFolder(made.folder))
    assert attack_map(alone) is None
    assert share_lines(alone) is None
    assert len(damage_table(alone).rows) == 1
