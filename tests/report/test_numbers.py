"""Reports of numbers and counts: in units, in the field's words, and without a word of classes."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import wardround
from tests.report.test_report import page_of
from wardround.cli.studies.render_run import show_run
from wardround.evaluation.comparisons.measures import Measure, digits_of, measure_of, plainly, recorded_task, signed
from wardround.report import make_tables, read_evidence
from wardround.report.compare import compare_runs
from wardround.report.evidence import Evidence
from wardround.runs.folder import RunFolder
from wardround.tasks import METRIC_FACTS, TASKS

CLASS_WORDS = (
    *("AUC", "accuracy", "sensitivity", "specificity", "PPV", "NPV", "Brier", "F1", "decision curve", "confusion"),
    *("positive class", "of one class", "stratified by class", "points of", "classes"),
)
SIZES = {"north": 120, "south": 90, "alike": 40, "tiny": 6}
DATA: dict[str, Any] = {
    "stay": {"kind": "regression", "unit": "days"},
    "visits": {"kind": "count", "unit": "visits", "exposure": "months"},
}


def files(folder: Path, target: str) -> dict[str, str]:
    """One site has the same value in all rows, one has six patients."""
    rng, paths = np.random.default_rng(7), {}
    for name, rows in SIZES.items():
        age, months = rng.normal(60, 12, rows).round(), rng.integers(1, 12, rows)
        stay = (np.exp(2.5 + 0.02 * (age - 60)) * rng.gamma(4, 0.25, rows)).round(2)
        visits = rng.poisson(0.3 * months * np.exp(0.02 * (age - 60)))
        if name == "alike":
            stay[:], visits[:] = 12.0, 2
        table = pd.DataFrame({"age": age, "sex": rng.choice(["f", "m"], rows)})
        table = table.assign(stay=stay) if target == "stay" else table.assign(visits=visits, months=months)
        table.to_csv(folder / f"{name}.csv", index=False)
        paths[name] = str(folder / f"{name}.csv")
    return paths


def study(folder: Path, target: str, seeds: int = 3, **changes: Any) -> dict[str, Any]:
    return {
        "name": target,
        "data": {"source": "csv", "files": files(folder, target), "target": target, "task": DATA[target]},
        "training": {"rounds": 4, "lr": 0.1},
        "evaluation": {"seeds": {"first": 1, "count": seeds}},
        "arms": [{"name": name, "algorithm": name} for name in ("local", "fedavg", "pooled")],
        **changes,
    }


@pytest.fixture(scope="module", params=list(DATA))
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> wardround.StudyRun:
    folder = tmp_path_factory.mktemp(request.param)
    made = wardround.run_study(study(folder, request.param), out=folder / "runs")
    wardround.build_report(made.folder)
    return made


@pytest.fixture
def evidence(run: wardround.StudyRun) -> Evidence:
    return read_evidence(RunFolder(run.folder))


def shown_text(folder: Path) -> str:
    """Page, captions and figures; without the study file and the references, which name what they name."""
    html = (folder / "report.html").read_text(encoding="utf-8")
    html = re.sub(r'<section id="(study|methods|checklist)".*?</section>', "", html, flags=re.DOTALL)
    html = re.sub(r"<(style|script).*?</\1>", "", html, flags=re.DOTALL)
    return re.sub(r"<[^>]+>", " ", html)


@pytest.mark.rendered
def test_no_word_of_classes_is_in_a_report_of_numbers(run: wardround.StudyRun) -> None:
    text = shown_text(run.folder)
    found = [word for word in CLASS_WORDS if re.search(rf"\b{word}\b", text, re.IGNORECASE)]
    assert not found
    assert not re.findall(r"\b(nan|None|NaN)\b", text)


@pytest.mark.rendered
def test_the_figures_are_those_that_the_task_declares(run: wardround.StudyRun, evidence: Evidence) -> None:
    drawn = {path.stem for path in (run.folder / "figures").glob("*.svg")}
    assert drawn >= {"target", "predicted-observed", "residuals", "test-mae", "primary-metric", "benefit"}
    assert not drawn & {"sites", "calibration", "decision-curve", "test-accuracy"}
    assert ("observed-expected" in drawn) == (evidence.task.kind == "count")
    assert "Left of 0: joining helped" in page_of(run.folder).text


def test_tables_are_in_units_with_the_numbers_of_the_results(run: wardround.StudyRun, evidence: Evidence) -> None:
    arms, unit = make_tables(evidence)["arms"], evidence.unit
    place = arms.columns.index(f"RMSE, {unit}")
    for row in arms.rows:
        assert row[place] == run.results["arms"][row[0]]["metrics"]["rmse"]["mean"]
    limits = [value for row in arms.rows for value in row[3:5]]
    assert max(limits) > 1, "limits of errors end at 1 no more than errors do"
    assert min(limits) >= 0
    headings = [
        column for table in make_tables(evidence).values() for column in table.columns if table.name != "leakage"
    ]
    assert not [heading for heading in headings if "points" in heading or "%" in heading.replace("95 % CI", "")]


def test_sites_have_mean_and_spread_and_few_patients_are_withheld(run: wardround.StudyRun, evidence: Evidence) -> None:
    counts = run.results["sites"][0]["sites"]
    table = pd.read_csv(evidence_file(evidence, "north"))
    assert counts["north"]["target"]["mean"] == pytest.approx(table[evidence.task.names[0]].mean())
    assert counts["north"]["target"]["sd"] == pytest.approx(table[evidence.task.names[0]].std())
    assert set(counts["tiny"]["target"].values()) == {None}
    assert counts["alike"]["target"]["sd"] == 0
    if evidence.task.columns:
        assert counts["north"]["target"]["rate"] == pytest.approx(table["visits"].sum() / table["months"].sum())
    assert not {"min", "max", "least", "largest"} & set(counts["north"]["target"])
    text = page_of(run.folder).text
    assert "of the labels in fifths" in text
    assert "all6for training5for testing1" in "".join(text.split("\n"))


def evidence_file(evidence: Evidence, site: str) -> str:
    return str(evidence.study["data"]["files"][site])


def test_the_terminal_and_the_answer_speak_in_units(
    run: wardround.StudyRun, evidence: Evidence, capsys: pytest.CaptureFixture[str]
) -> None:
    show_run(run, None)
    printed = " ".join(capsys.readouterr().out.split())
    assert not [word for word in ("AUC", "accuracy", "points") if word in printed]
    assert "until 105 % of the final mean absolute error" in printed
    texts = " ".join(sentence["text"] for sentence in run.results["answer"])
    assert ("days" in texts) == (evidence.task.kind == "regression")  # a deviance has no unit
    assert "points" not in texts


def test_runs_of_numbers_are_compared_in_units(run: wardround.StudyRun, evidence: Evidence, tmp_path: Path) -> None:
    target = evidence.task.names[0]
    other = study(tmp_path, target, training={"rounds": 2, "lr": 0.1})
    second = wardround.run_study(other, out=tmp_path / "runs")
    tables = {table.name: table for table in compare_runs([run.folder, second.folder]).tables}
    assert f"mae, {evidence.unit}, A" in tables["figures"].columns
    assert "per cent" not in tables["figures"].note
    assert evidence.headline.points in tables["paired"].columns


@pytest.mark.rendered
def test_one_seed_and_a_diverged_arm(tmp_path: Path) -> None:
    """Intervals are over patients; the diverged arm is in the tables and not in the figures."""
    arms = [
        *({"name": name, "algorithm": name} for name in ("local", "fedavg")),
        {"name": "wild", "algorithm": "fedavg", "training.lr": 1e4},
    ]
    made = wardround.run_study(study(tmp_path, "stay", 1, arms=arms), out=tmp_path / "runs")
    evidence = read_evidence(RunFolder(made.folder))
    assert made.results["interval"]["method"].startswith("bootstrap over patients")
    assert evidence.off_scale in (["wild"], [])  # none where it has left the numbers altogether
    assert evidence.headline.measure.digits == 2
    wardround.build_report(made.folder)
    assert "wild" in {row[0] for row in make_tables(evidence)["arms"].rows}
    assert all(len(cell) < 12 for row in make_tables(evidence)["arms"].shown() for cell in row)


def test_digits_follow_the_size_of_the_errors() -> None:
    assert [digits_of([size]) for size in (1.51, 16.5, 173.0, 4e5, 0.0123, 1e-9)] == [2, 1, 0, 0, 4, 6]
    assert digits_of([1.5, 1.6, 1e30]) == 2
    assert digits_of([None, 0.0]) == 3
    assert (plainly(1.234, 2), plainly(1e30, 2), signed(-1e30, 2), signed(0.001, 2)) == (
        *("1.23", "1.0e+30", "-1.0e+30", "0.00"),
    )


def test_differences_and_figures_in_words() -> None:
    days = Measure(METRIC_FACTS["mae"], "days", 1)
    assert (days.figure(3.24), days.difference(-0.43), days.difference(0.43, with_unit=False), days.least) == (
        *("3.2 days", "-0.4 days", "+0.4", "0.1 days"),
    )
    assert days.limits({"interval": [-0.62, -0.04], "verdict": "gains"}) == "-0.62 to -0.04"
    assert Measure.of("r2").difference(0.02) == "+0.020"
    assert Measure.of("accuracy").difference(0.02) == "+2.0 points"


def test_results_of_earlier_versions_have_classes_or_findings() -> None:
    counts = {"sites": {"north": {"classes": {"well": 3, "ill": 4}}}}
    assert recorded_task({"sites": [counts]}).names == ("well", "ill")
    assert recorded_task({"findings": ["effusion"], "sites": []}).findings == ("effusion",)
    assert measure_of({"primary_metric": "auc"}, "auc").unit == ""


@pytest.mark.parametrize("kind", TASKS)
def test_every_metric_that_a_task_shows_is_one_of_its_own(kind: str) -> None:
    task = TASKS[kind](("a",) if TASKS[kind].name_count == 1 else ("a", "b"))
    facts, own = task.report, {metric.name for metric in task.metrics}
    named = {*facts.arms, *facts.terminal, *facts.with_sd, *facts.outside, *facts.runs, *facts.may_lack}
    assert named | {metric for choice in facts.groups for metric in choice} <= own
    assert task.primary not in facts.beside(task.primary)
    assert facts.outcome
