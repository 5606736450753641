"""The report of a number: prediction intervals, the spread of passes, referral, calibration and residuals."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import wardround
from tests.report.test_report import page_of
from wardround.core.errors import StudyError
from wardround.report import Evidence, make_tables, read_evidence, sections_of
from wardround.report.sections import load_section
from wardround.runs.catalog import load_study
from wardround.runs.folder import RunFolder
from wardround.runs.plan import load_plan, rehearse

SIZES = {"north": 240, "south": 180, "island": 36}
TASKS: dict[str, Any] = {
    "days": {"kind": "regression", "unit": "days"},
    "visits": {"kind": "count", "dispersion": 0.4, "exposure": "months"},
}
FIGURES = {"interval-coverage", "number-referral", "predicted-observed", "residuals"}


def hospital_files(folder: Path, target: str) -> dict[str, str]:
    rng = np.random.default_rng(4)
    files = {}
    for name, rows in SIZES.items():
        x = rng.normal(size=(rows, 3))
        months = rng.uniform(1, 12, rows).round(1)
        days = np.exp(1 + 0.4 * x[:, 0]) * rng.gamma(4, 0.25, rows)
        visits = rng.negative_binomial(3, 3 / (3 + 0.4 * months * np.exp(0.4 * x[:, 0])))
        table = pd.DataFrame(x.round(3), columns=["a", "b", "c"])
        table = table.assign(days=days.round(2)) if target == "days" else table.assign(months=months, visits=visits)
        table.to_csv(folder / f"{name}.csv", index=False)
        files[name] = str(folder / f"{name}.csv")
    return files


def study_of(folder: Path, target: str, **task: Any) -> dict[str, Any]:
    data = {"source": "csv", "files": hospital_files(folder, target), "target": target, "task": TASKS[target] | task}
    return {
        "name": target,
        "data": data,
        "training": {"rounds": 6, "lr": 0.1},
        "uncertainty": {"method": "none", "alpha": 0.1},
        "evaluation": {"validation_share": 0.2, "seeds": {"first": 1, "count": 2}},
        "arms": [
            {"name": "together", "algorithm": "fedavg"},
            {"name": "alone", "algorithm": "local"},
            {"name": "passes", "algorithm": "fedavg", "uncertainty.method": "laplace"},
        ],
    }


@pytest.fixture(scope="module", params=list(TASKS))
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> wardround.StudyRun:
    folder = tmp_path_factory.mktemp(request.param)
    return wardround.run_study(study_of(folder, request.param), folder / "runs")


@pytest.fixture(scope="module")
def evidence(run: wardround.StudyRun) -> Evidence:
    return read_evidence(RunFolder(run.folder))


def test_a_study_of_a_number_has_intervals_and_no_sets(evidence: Evidence) -> None:
    for name, arm in evidence.results["arms"].items():
        summary = arm["uncertainty"]
        assert summary["sets"] is None
        assert arm["decision_curve"] is None
        assert arm["calibration"]["slope"]["interval"][0] < 1 < arm["calibration"]["slope"]["interval"][1] + 0.5
        assert 0.75 < summary["intervals"]["coverage"]["mean"] <= 1
        assert set(summary["intervals"]["sites"]) == set(SIZES)
        assert summary["intervals"]["sites"]["island"]["validation"] < 9
        assert summary["intervals"]["sites"]["island"]["why"]
        assert (summary["parts"]["epistemic"] is not None) == (name == "passes")


def test_the_section_says_what_was_asked_for_and_what_came(evidence: Evidence) -> None:
    text = " ".join(load_section("numbers.intervals").values["sentences"](evidence))
    assert "should hold the outcome in 90 % of rows" in text
    assert "No interval in together at island: 7 validation rows are too few" in text
    assert "Passes disagree about a row by" in text
    regression = evidence.task.kind == "regression"
    assert ("all rows of a hospital have intervals of the same width" in text) == regression
    assert ("by the width of its interval" in text) == (not regression)
    assert (" days wide on average" in text) == regression
    for wrong in ("None", "nan", "bits", "sets of answers"):
        assert wrong not in text


def test_its_tables_are_there_and_those_of_classes_are_not(evidence: Evidence) -> None:
    tables = {table.name: table for table in make_tables(evidence).values()}
    assert {"intervals", "intervals-at-sites", "number-calibration", "number-referral"} <= set(tables)
    assert not {"calibration", "uncertainty", "referral"} & set(tables)
    assert {"numbers.intervals", "numbers.residuals"} <= set(sections_of(evidence))
    assert "uncertainty" not in sections_of(evidence)
    rows = {row[0]: row for row in tables["intervals"].rows}
    assert set(rows) == {"together", "alone", "passes"}
    at = [row for row in tables["intervals-at-sites"].rows if row[1] == "island"]
    assert all(row[4] is None for row in at)  # it has no interval


@pytest.mark.rendered
def test_its_figures_are_drawn_and_the_page_is_whole(run: wardround.StudyRun, evidence: Evidence) -> None:
    wardround.build_report(run.folder)
    page = page_of(run.folder)
    assert {path.stem for path in (run.folder / "figures").glob("*.svg")} >= FIGURES
    assert {f"figure-{name}" for name in FIGURES} | {"intervals"} <= set(page.ids)
    assert "Calibration and residuals" in page.text


@pytest.mark.parametrize(
    ("target", "task", "problem"),
    [
        ("days", {"loss": "huber"}, "no likelihood"),
        ("visits", {"dispersion": "fitted"}, "not in the last layer"),
    ],
)
def test_laplace_is_refused_where_there_is_no_likelihood_of_the_last_layer(
    target: str, task: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(StudyError, match=problem) as raised:
        rehearse(load_plan(*load_study(study_of(tmp_path, target, **task))))
    assert raised.value.where.endswith("arms: passes: uncertainty: method")


def test_dropout_is_refused_for_a_linear_model(tmp_path: Path) -> None:
    study = study_of(tmp_path, "days") | {"uncertainty": {"method": "dropout"}}
    with pytest.raises(StudyError, match="has no dropout"):
        rehearse(load_plan(*load_study(study)))


def test_seeds_are_an_ensemble_whose_disagreement_is_in_units(tmp_path: Path) -> None:
    study = study_of(tmp_path, "days") | {
        "uncertainty": {"method": "ensemble"},
        "model": {"kind": "mlp", "hidden": [4]},
    }
    study["evaluation"] = {**study["evaluation"], "vary": ["batches", "init"]}
    study["arms"] = [{"name": "together", "algorithm": "fedavg"}]
    results = read_evidence(RunFolder(wardround.run_study(study, tmp_path / "runs").folder)).results
    summary = results["arms"]["together"]["uncertainty"]
    assert (summary["method"], summary["passes"], summary["seeds"]) == ("ensemble", 2, 1)
    assert 0 < summary["parts"]["epistemic"] < summary["intervals"]["width"]
    assert summary["referral"]["at"]["referred"] > 0


def test_of_several_outcomes_a_page_is_about_its_own(evidence: Evidence) -> None:
    other = {**evidence.results, "task": {"kind": "binary", "names": ["no", "yes"]}}
    outcomes = {"first": dict(evidence.results), "second": other}
    both = replace(evidence, results={**evidence.results, "task": {}, "outcome": "first", "outcomes": outcomes})
    assert both.task == evidence.task
    assert both.unit == evidence.unit
    assert both.of_outcome("second").task.kind == "binary"


def test_across_hospitals_it_stays_in_their_bundles(evidence: Evidence) -> None:
    arms = {name: {**arm, "uncertainty": None} for name, arm in evidence.results["arms"].items()}
    deployed = replace(evidence, results={**evidence.results, "deployed": True, "arms": arms})
    assert "numbers.intervals" in sections_of(deployed)
    [sentence] = load_section("numbers.intervals").values["sentences"](deployed)
    assert "Nothing of that left it" in sentence
    section = load_section("numbers.intervals")
    assert all(table(deployed) is None for table in section.tables)
    assert all(drawing.draw is None or drawing.draw(deployed) is None for drawing in section.figures.values())
