"""The report of a study that started from a trained model."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from typer.testing import CliRunner

from tests.report.test_report import page_of
from tests.report_consistency import contradictions
from tests.runs.continual.chained_studies import NEW, OLD, after, run, study
from wardround.bundles import make_bundle
from wardround.cli.main import app
from wardround.report import build_report, read_evidence
from wardround.report.sections.forgetting import (
    composed_lines,
    forgetting_figure,
    forgetting_lines,
    forgetting_table,
    limit_lines,
    start_lines,
)
from wardround.runs.execute import StudyRun
from wardround.runs.folder import RunFolder

SEEDS: dict[str, Any] = {"evaluation": {"seeds": {"first": 1, "count": 3}}}
ARMS = [{"algorithm": "fedavg"}, {"name": "anew", "algorithm": "fedavg", "model.start_from": "off"}]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chain")


@pytest.fixture(scope="module")
def old(out: Path) -> StudyRun:
    return run(study("old", **SEEDS), out)


@pytest.fixture(scope="module")
def later(old: StudyRun, out: Path) -> StudyRun:
    made = run(after(old, hospitals=NEW, arms=ARMS, training={"rounds": 10, "lr": 2.0}, **SEEDS), out)
    build_report(made.folder)
    return made


def test_the_section_says_it_all(old: StudyRun, later: StudyRun) -> None:
    page, html = page_of(later.folder), (later.folder / "report.html").read_text()
    assert {"forgetting", "figure-forgetting", "table-forgetting"} <= set(page.ids)
    content = later.results["start_from"]
    assert list(content) == ["fedavg"]
    for line in (*start_lines(content), *forgetting_lines(content)):
        assert line.replace("'", "&#39;") in html
    assert start_lines(content) == [
        f"fedavg started from the model of the run {old.folder.name}, arm fedavg, with the same seed, trained at "
        f"cleveland and hungarian (digest {content['fedavg']['digest'][:12]}). Columns are scaled by the same public "
        "ranges as then."
    ]
    assert contradictions(later.results, html) == []
    assert str(old.folder.parent) not in html  # where runs are kept is nobody's business
    assert f"starting from {old.folder.name}, arm fedavg (digest" in html
    with (later.folder / "tables" / "forgetting.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["old hospital"] for row in rows] == [*OLD, "mean over the old hospitals"]


def test_a_plain_run_has_no_such_section(old: StudyRun) -> None:
    build_report(old.folder)
    assert "forgetting" not in page_of(old.folder).ids
    assert old.results["start_from"] == {}


def test_the_figure_has_a_mark_for_every_old_hospital(later: StudyRun) -> None:
    evidence = read_evidence(RunFolder(later.folder))
    drawn = forgetting_figure(evidence)
    assert drawn is not None
    assert [label.get_text() for label in drawn.axes[0].get_yticklabels()] == list(OLD)
    table = forgetting_table(evidence)
    assert table is not None
    assert len(table.rows) == 3


def test_the_terminal_says_it(later: StudyRun, old: StudyRun, out: Path, tmp_path: Path) -> None:
    file = tmp_path / "later.toml"
    document = after(old, hospitals=NEW, arms=ARMS, training={"rounds": 10, "lr": 2.0}, **SEEDS)
    file.write_text(tomli_w.dumps(document))
    shown = " ".join(CliRunner().invoke(app, ["run", str(file), "--out", str(out)]).output.split())
    assert later.results["start_from"]["fedavg"]["forgetting"]["sentence"] in shown
    checked = CliRunner().invoke(app, ["check", str(file)])
    assert "start fedavg started from the model of the run" in " ".join(checked.output.split())
    told = json.loads(CliRunner().invoke(app, ["check", str(file), "--json"]).output)["start_from"]["fedavg"]
    assert told["digest"] == later.results["start_from"]["fedavg"]["digest"]


def test_hospitals_of_earlier_trainings_are_not_measured(later: StudyRun, out: Path) -> None:
    third = run(after(later, "third", hospitals=("va", "cleveland"), **SEEDS), out)
    assert set(third.results["start_from"]["fedavg"]["forgetting"]["sites"]) == set(NEW)
    assert forgetting_lines(third.results["start_from"])[-1] == (
        "What fedavg forgot at cleveland and hungarian, of trainings before that, was not measured."
    )


def test_what_could_not_be_measured_is_said(old: StudyRun, out: Path, tmp_path: Path) -> None:
    bundle = make_bundle(old.folder, arm="fedavg", site="cleveland", seed=2, out=tmp_path / "bundle")
    document = {
        **study("from-bundle", NEW, **SEEDS),
        "model": {"kind": "logistic", "start_from": {"bundle": str(bundle)}},
    }
    made = run(document, out)
    lines = [*start_lines(made.results["start_from"]), *forgetting_lines(made.results["start_from"])]
    assert "fedavg started from the model of the bundle bundle, arm fedavg, of its seed 2" in lines[0]
    assert lines[1] == (
        "Whether fedavg forgot anything at the old hospitals could not be measured: a bundle has no rows of the "
        "hospitals that it was trained at."
    )
    build_report(made.folder)
    html = (made.folder / "report.html").read_text()
    assert lines[1] in html
    evidence = read_evidence(RunFolder(made.folder))
    assert forgetting_figure(evidence) is None
    assert limit_lines(evidence)[0] in html


def test_privacy_of_both_is_in_the_report(out: Path) -> None:
    pytest.importorskip("dp_accounting")
    private = {"privacy": {"example": {"epsilon": 2.0, "delta": 1e-4, "clip": 1.0}}}
    first = run(study("private", **private), out)
    made = run(after(first, "private-later", hospitals=("cleveland", "va"), **private), out)
    build_report(made.folder)
    html = (made.folder / "report.html").read_text()
    (line,) = composed_lines(made.results["start_from"])
    assert "fedavg: the training before and this one cost patients of cleveland most: epsilon 2." in line
    assert line in html
    assert "table-composed-privacy" in page_of(made.folder).ids
