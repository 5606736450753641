"""Whose exposure a total epsilon covers: by the study's shares, by its splits, and in words."""

import csv
import json
import math
from io import StringIO
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import wardround
from tests.privacy.test_validate import EXAMPLE, plan_of, study
from wardround.cli.main import app
from wardround.privacy.dp.exposure import exposure_text, planned_exposure
from wardround.report import read_evidence
from wardround.report.sections.privacy import spending
from wardround.report.sections.privacy.private_arms import epsilon_lines
from wardround.report.sections.privacy.spending import (
    protection_sentences,
    protection_table,
    spent_lines,
    spent_table,
    total_table,
)
from wardround.runs.folder import RunFolder
from wardround.runs.spending import as_plain, counted_exposure, planned_spending


def seeds(count: int, **more: Any) -> dict[str, Any]:
    return {"seeds": {"first": 1, "count": count}, **more}


def told_of(**changes: Any) -> dict[str, Any] | None:
    return planned_exposure(wardround.load_study(study(**changes))[0])


def test_new_splits_leave_few_who_always_train() -> None:
    """Twenty seeds and a fifth for testing: 0.8^20 is 1.2 %."""
    exposure = told_of(evaluation=seeds(20, test_share=0.2))
    assert exposure is not None
    assert exposure["train_with_every_seed"] == pytest.approx(0.8**20)
    assert "20 seeds drew new splits, so that this is true of about 1.2 % of the patients" in exposure_text(exposure)
    assert "All others were test or validation patients with at least one seed" in exposure_text(exposure)
    both = told_of(evaluation=seeds(3, test_share=0.2, validation_share=0.1))
    assert both is not None
    assert both["train_with_every_seed"] == pytest.approx(0.7**3)


def test_a_split_that_stays_covers_its_training_patients() -> None:
    exposure = told_of(evaluation=seeds(20, test_share=0.25, vary=["batches", "init"]))
    assert exposure is not None
    assert (exposure["splits"], exposure["train_with_every_seed"]) == (1, 0.75)
    assert exposure_text(exposure).startswith(
        "The total epsilon covers the training patients, about 75 % of the patients;"
    )
    assert exposure_text(exposure).endswith("The split is the same with every seed.")


def test_nobody_is_exposed_without_privacy_of_patients() -> None:
    assert told_of(arm={"privacy.example": "off"}) is None


def test_patients_are_counted_where_splits_are_known() -> None:
    plan = plan_of(study(evaluation=seeds(4, test_share=0.3), data__hospitals=["cleveland", "va"]))
    arm = plan.study.arms[0]
    trained = [
        {int(row) for split in plan.splits(arm, seed) for row in split.train} for seed in plan.study.evaluation.seeds
    ]
    always = set.intersection(*trained)
    patient = plan.cohort_of(arm).patient
    exposure = counted_exposure(plan)
    assert exposure is not None
    assert exposure["patients_with_every_seed"] == len(np.unique(patient[sorted(always)]))
    assert exposure["patients"] == len(np.unique(patient))
    assert exposure["train_with_every_seed"] == pytest.approx(0.7**4, abs=0.06)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> wardround.StudyRun:
    """With an arm without a clip and one whose noise falls."""
    asked = study(
        evaluation=seeds(2),
        training__rounds=2,
        training__batch_size=1000,
        data__hospitals=["cleveland", "va"],
    )
    asked["arms"] = [
        {"algorithm": "fedavg", "name": "private"},
        {"algorithm": "fedavg", "name": "falling", "privacy.example.noise_schedule": {"last": 0.5}},
        {"algorithm": "fedavg", "name": "unclipped", "privacy.example.clip": "none"},
    ]
    return wardround.run_study(asked, tmp_path_factory.mktemp("runs"))


@pytest.mark.slow
def test_the_whole_report_can_be_made(run: wardround.StudyRun) -> None:
    page = wardround.build_report(run.folder).read_text(encoding="utf-8")
    assert "Without a clip: unclipped." in page


def test_tables_and_figures_know_an_epsilon_that_is_infinite(run: wardround.StudyRun) -> None:
    evidence = read_evidence(RunFolder(run.folder), checked=True)
    protection, spent, total = (table(evidence) for table in (protection_table, spent_table, total_table))
    assert protection is not None
    assert spent is not None
    assert total is not None
    (row,) = [row for row in csv.DictReader(StringIO(protection.csv())) if row["arm"] == "unclipped"]
    assert (row["differential privacy of"], row["clip"], row["spent"]) == ("nothing", "none", "inf")
    assert total.rows[0][-1] == math.inf
    assert "in the last round" in spent.columns
    assert [name for line in epsilon_lines(evidence) for _, name in line.arms] == ["private", "falling"]
    for draw in (spending.budget, spending.gradient_lengths, spending.cost_of_epsilon):
        assert draw(evidence) is not None


def test_report_results_and_terminal_say_it(run: wardround.StudyRun) -> None:
    privacy_results = json.loads((run.folder / "results.json").read_text())["privacy"]
    assert privacy_results["exposure"]["splits"] == 2
    assert privacy_results["arms"]["unclipped"]["example"]["epsilon"] == "infinite"
    assert {row["epsilon"] for row in privacy_results["arms"]["unclipped"]["sites"].values()} == {"infinite"}
    assert {row["epsilon"] for row in privacy_results["total"].values()} == {"infinite"}
    for row in privacy_results["arms"]["falling"]["sites"].values():
        assert row["noise_last"] == pytest.approx(row["noise"] / 2, rel=1e-5)
        assert 1.9 < row["epsilon"] <= 2
    evidence = read_evidence(RunFolder(run.folder), checked=True)
    text = " ".join(protection_sentences(evidence))
    assert exposure_text(privacy_results["exposure"]) in text
    assert "Without a clip: unclipped." in text
    assert "private 2, falling 2." in text
    assert "unclipped: not clipped: epsilon infinite" in spent_lines(evidence)
    shown = " ".join(CliRunner().invoke(app, ["privacy", "spent", str(run.folder)]).stdout.split())
    assert exposure_text(privacy_results["exposure"]) in shown
    assert "infinite" in shown
    plain = CliRunner().invoke(app, ["privacy", "spent", str(run.folder / "ledger.jsonl"), "--json"]).stdout
    assert {row["add_remove"] for row in json.loads(plain)["total"]} == {"infinite"}


def test_the_plan_says_infinite() -> None:
    plan = plan_of(study(privacy__example={**EXAMPLE, "clip": "none"}))
    plain_plan = as_plain(plan, planned_spending(plan))
    assert (
        {row["epsilon"] for row in plain_plan["arms"]}
        == {row["epsilon"] for row in plain_plan["total"].values()}
        == {"infinite"}
    )
    assert {row["epsilon_target"] for row in plain_plan["arms"]} == {"infinite"}
    assert plain_plan["exposure"]["splits"] == 1
