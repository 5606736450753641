"""Arms that form a grid of a partition's number and an algorithm's: every cell in its place."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wardround
from tests.report.image_studies import SOURCES, grid_study
from tests.report.test_report import page_of
from wardround.evaluation.answer import answer as results_answer
from wardround.report import Evidence, answer, read_evidence
from wardround.report.arms import line_title, panel_title, read_grid
from wardround.report.sections import grid, hospitals, images
from wardround.runs.folder import RunFolder

LINES = ("fedprox, mu 0", "fedprox, mu 1", "scaffold")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> wardround.StudyRun:
    study_run = wardround.run_study(grid_study(), tmp_path_factory.mktemp("runs"), sources=SOURCES)
    wardround.build_report(study_run.folder)
    return study_run


@pytest.fixture(scope="module")
def evidence(run: wardround.StudyRun) -> Evidence:
    return read_evidence(RunFolder(run.folder))


def test_swept_values_come_in_their_order_and_algorithms_without_one_last(evidence: Evidence) -> None:
    cells = read_grid(evidence)
    assert cells is not None
    assert (cells.setting, cells.own) == ("alpha", "mu")
    assert cells.values == (0.5, 10.0)
    assert cells.lines == LINES
    assert cells.numbers == {"fedprox, mu 0": 0.0, "fedprox, mu 1": 1.0}
    assert cells.arm("fedprox, mu 1", 0.5) == "fedprox[alpha=0.5,mu=1.0]"
    assert cells.arm("scaffold", 10.0) == "scaffold[alpha=10.0]"


def test_what_is_no_grid(evidence: Evidence) -> None:
    def changed(change: Any) -> Evidence:
        arms = {name: change(dict(arm)) for name, arm in evidence.results["arms"].items()}
        return replace(evidence, results={**evidence.results, "arms": arms})

    def without(arm: dict[str, Any]) -> dict[str, Any]:
        del arm["partition"]
        return arm

    alike = changed(lambda arm: {**arm, "partition": {"name": "dirichlet", "alpha": 1.0}})
    words = changed(lambda arm: {**arm, "partition": {"name": f"by-{arm['partition']['alpha']}"}})
    twice = changed(lambda arm: {**arm, "family": "one", "algorithm": {"name": "fedavg"}})
    for other in (alike, words, twice, changed(without)):
        assert read_grid(other) is None
        assert grid.grid_map(other) is None


def test_the_map_and_the_table_hold_the_results(run: wardround.StudyRun, evidence: Evidence) -> None:
    figure = grid.grid_map(evidence)
    assert figure is not None
    axes = figure.axes[0]
    expected = [
        [run.results["arms"][name]["metrics"]["accuracy"]["mean"] for name in names]
        for names in (
            ("fedprox[alpha=0.5,mu=0.0]", "fedprox[alpha=10.0,mu=0.0]"),
            ("fedprox[alpha=0.5,mu=1.0]", "fedprox[alpha=10.0,mu=1.0]"),
            ("scaffold[alpha=0.5]", "scaffold[alpha=10.0]"),
        )
    ]
    assert np.asarray(axes.images[0].get_array()) == pytest.approx(100 * np.array(expected))
    assert [text.get_text() for text in axes.texts] == [f"{100 * value:.1f}" for row in expected for value in row]
    assert [text.get_text() for text in axes.get_yticklabels()] == list(LINES)
    with (run.folder / "tables" / "grid.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["alpha 0.5, %"]) for row in rows] == [100 * row[0] for row in expected]


def test_training_validation_and_test_rows_after_the_last_round(evidence: Evidence) -> None:
    figure = grid.grid_sides(evidence)
    assert figure is not None
    titles = [f"{side} {what}" for what in ("accuracy, %", "loss") for side in ("training", "validation", "test")]
    assert [axes.get_title() for axes in figure.axes] == titles
    loss = np.asarray(figure.axes[3].images[0].get_array())
    assert loss[2, 1] == evidence.results["curves"]["scaffold[alpha=10.0]"]["training_loss"][-1]


def test_lines_from_both_sides(evidence: Evidence) -> None:
    figure = grid.grid_lines(evidence)
    assert figure is not None
    left, right = figure.axes
    legends = [axes.get_legend() for axes in (left, right)]
    titles = [[text.get_text() for text in legend.get_texts()] for legend in legends if legend is not None]
    assert titles == [list(LINES), ["alpha 0.5", "alpha 10"]]
    assert [text.get_text() for text in right.get_xticklabels()] == ["0", "1", "scaffold"]


def test_curves_have_a_row_for_each_way_of_forming_sites(evidence: Evidence) -> None:
    assert panel_title(evidence, "fedprox[alpha=0.5,mu=1.0]") == "alpha 0.5"
    assert line_title(evidence, "fedprox[alpha=0.5,mu=1.0]") == "fedprox[mu=1.0]"
    assert line_title(evidence, "scaffold[alpha=10.0]") == "scaffold"
    figure = images.headline_curves(evidence)
    assert figure is not None
    assert [axes.get_ylabel() for axes in figure.axes] == ["alpha 10", "", "alpha 0.5", ""]
    assert [len(axes.lines) for axes in figure.axes] == [3, 3, 3, 3]


def test_sites_of_each_partition_are_told_apart(run: wardround.StudyRun) -> None:
    with (run.folder / "tables" / "sites.csv").open(newline="") as file:
        names = [row["site"] for row in csv.DictReader(file)]
    assert names[0] == "site-01 (alpha 10)"
    assert names[-1] == "site-03 (alpha 0.5)"
    with (run.folder / "tables" / "heterogeneity.csv").open(newline="") as file:
        rows = {row["sites formed with"]: row for row in csv.DictReader(file)}
    for described in run.results["sites"]:
        title = f"alpha {described['partition']['alpha']:g}"
        assert float(rows[title]["JS of labels"]) == described["heterogeneity"]["js"]


def test_the_page_has_all_of_it_and_speaks_of_accuracy(run: wardround.StudyRun) -> None:
    page = page_of(run.folder)
    assert {"figure-grid", "figure-grid-lines", "figure-grid-sides", "table-grid", "table-sides"} <= set(page.ids)
    assert {"figure-primary-metric", "figure-sites", "figure-roc", "figure-precision-recall"} <= set(page.ids)
    assert not set(page.ids) & {"findings", "figure-samples", "figure-test-accuracy"}
    assert "Accuracy of every arm" in page.text
    assert "ynthetic data" not in page.text


def test_training_alone_beside_one_partition_only(tmp_path: Path) -> None:
    """What joining changed is told of the arms that can be compared with it, which are not the first."""
    arms = [{"algorithm": "fedavg", "sites.alpha": [10.0, 1.0]}, {"algorithm": "local"}]
    study_run = wardround.run_study(grid_study(name="alone", arms=arms), tmp_path, sources=SOURCES)
    evidence = read_evidence(RunFolder(study_run.folder))
    assert any("Against training alone, fedavg[alpha=1.0] changed" in sentence for sentence in answer(evidence))
    figure = hospitals.benefit(evidence)
    assert figure is not None
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["fedavg[alpha=1.0]"]


def test_claims_that_are_only_set_side_by_side(evidence: Evidence) -> None:
    side_by_side = [{"outcome": "no verdict"}, {"outcome": "no verdict"}]
    sentences = results_answer({**evidence.results, "claims": side_by_side})
    assert sentences[-1]["text"] == "Of 2 published claims, 2 are set beside ours without a verdict."
    assert sentences[-1]["numbers"][0]["no verdict"] == 2
