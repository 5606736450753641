"""Training goes on with every task: numbers in the units of the old training, several outcomes each by itself."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from safetensors.torch import load_file

from tests.report_consistency import contradictions
from tests.runs.continual.chained_studies import plan_of, refusal, run
from wardround.bundles import make_bundle
from wardround.report import build_report
from wardround.runs.execute import StudyRun

TASKS: dict[str, dict[str, Any]] = {
    "binary": {"target": "died"},
    "multiclass": {"target": "ward"},
    "regression": {"target": "stay", "task": "regression"},
    "huber": {"target": "stay", "task": {"kind": "regression", "loss": "huber"}},
    "count": {"target": "visits", "task": "count"},
    "outcomes": {"outcomes": ["died", "stay"], "task": {"stay": "regression"}},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("files"), np.random.default_rng(4)
    for place, hospital in enumerate("abcd"):
        x = rng.normal(size=(90, 3))
        stay = 10 + 3 * x[:, 0] - 2 * x[:, 1] + 1.5 * rng.normal(size=90) + 5 * place
        pd.DataFrame(
            {
                "x0": x[:, 0],
                "x1": x[:, 1],
                "x2": x[:, 2],
                "died": np.where(x[:, 0] + rng.normal(size=90) > 0, "yes", "no"),
                "ward": np.array(["icu", "medical", "surgical"])[(x @ rng.normal(size=(3, 3)) + place).argmax(axis=1)],
                "stay": stay.round(3),
                "visits": rng.poisson(np.exp(0.5 + 0.4 * x[:, 2])),
            }
        ).to_csv(folder / f"{hospital}.csv", index=False)
    return folder


def document(files: Path, name: str, task: str, hospitals: str, rounds: int = 10, **start: Any) -> dict[str, Any]:
    used = {key for key in ("died", "ward", "stay", "visits") if key not in str(TASKS[task])}
    frames = files / f"{name}-{task}"
    frames.mkdir(exist_ok=True)
    for hospital in hospitals:  # a file has the outcome of its task, and no other one
        table = pd.read_csv(files / f"{hospital}.csv").drop(columns=list(used))
        table.to_csv(frames / f"{hospital}.csv", index=False)
    paths = {hospital: str(frames / f"{hospital}.csv") for hospital in hospitals}
    return {
        "name": f"{name}-{task}",
        "data": {"source": "csv", "files": paths, **TASKS[task]},
        "model": {"kind": "linear", **({"start_from": start} if start else {})},
        "training": {"rounds": rounds, "batch_size": 1000, "lr": 0.1, "precision": "float64"},
        "evaluation": {"seeds": {"first": 1, "count": 2}},
        "arms": [{"algorithm": "fedavg"}],
    }


def after(files: Path, old: StudyRun, task: str, hospitals: str = "cd", rounds: int = 10) -> dict[str, Any]:
    return document(files, "later", task, hospitals, rounds, run=str(old.folder), arm="fedavg")


@pytest.mark.parametrize("task", TASKS)
def test_ten_rounds_and_ten_more_are_twenty(files: Path, task: str, tmp_path: Path) -> None:
    first = run(document(files, "first", task, "ab"), tmp_path)
    second = run(after(files, first, task, "ab"), tmp_path)
    whole = run(document(files, "whole", task, "ab", rounds=20), tmp_path)
    for seed in (1, 2):
        ours, theirs = (load_file(f.folder / "models" / "fedavg" / f"seed-{seed}.safetensors") for f in (second, whole))
        assert max(float((ours[name] - leaf).abs().max()) for name, leaf in theirs.items()) < 1e-12


@pytest.mark.parametrize("task", TASKS)
def test_other_hospitals_go_on_and_the_report_says_what_was_forgotten(files: Path, task: str, tmp_path: Path) -> None:
    first = run(document(files, "first", task, "ab"), tmp_path)
    later = run(after(files, first, task), tmp_path)
    content = later.results["start_from"]["fedavg"]["forgetting"]
    assert set(content["sites"]) == {"a", "b"}
    metric = later.results["primary_metric"]
    assert content["mean"]["difference"][metric]["difference"] is not None
    build_report(later.folder)
    html = (later.folder / "report.html").read_text()
    assert content["sentence"].replace("'", "&#39;") in html
    assert contradictions(later.results, html) == []


@pytest.mark.parametrize("task", ["regression", "count"])
def test_a_number_stays_in_the_units_in_which_the_model_was_trained(files: Path, task: str, tmp_path: Path) -> None:
    """Else the first model would already be another one."""
    first = run(document(files, "first", task, "ab"), tmp_path)
    still = run({**after(files, first, task), "training": {"rounds": 1, "lr": 1e-12, "precision": "float64"}}, tmp_path)
    entry = still.results["start_from"]["fedavg"]["forgetting"]["mean"]["difference"]
    assert entry[still.results["primary_metric"]]["difference"] == pytest.approx(0, abs=1e-9)
    scales = [
        json.loads((f.folder / "models" / "fedavg" / "seed-1.json").read_text())["target_scale"] for f in (first, still)
    ]
    assert scales[0] == scales[1] != []
    bundle = make_bundle(first.folder, arm="fedavg", site="a", out=tmp_path / "bundle")
    plan = plan_of(document(files, "from-bundle", task, "cd", bundle=str(bundle)))
    trial = plan.trial(plan.study.arms[0], 1)
    assert plan.target_scale_of(plan.study.arms[0], 1) == tuple(scales[0])
    assert trial.starting is not None


def test_the_units_stay_when_the_old_run_is_gone(files: Path, tmp_path: Path) -> None:
    """A bundle is compared with what the run has predicted."""
    first = run(document(files, "first", "regression", "ab"), tmp_path)
    later = run(after(files, first, "regression"), tmp_path)
    shutil.rmtree(first.folder)
    bundle = make_bundle(later.folder, arm="fedavg", site="c", out=tmp_path / "bundle")
    scale = json.loads((later.folder / "models" / "fedavg" / "seed-1.json").read_text())["target_scale"]
    assert json.loads((bundle / "bundle.json").read_text())["target_scale"] == scale


def test_each_outcome_has_its_own_forgetting(files: Path, tmp_path: Path) -> None:
    first = run(document(files, "first", "outcomes", "ab"), tmp_path)
    later = run(after(files, first, "outcomes"), tmp_path)
    stay = later.results["outcomes"]["stay"]["start_from"]["fedavg"]
    died = later.results["outcomes"]["died"]["start_from"]["fedavg"]
    assert died == later.results["start_from"]["fedavg"]
    assert stay["digest"] == died["digest"]
    assert "mae" in stay["forgetting"]["mean"]["difference"]
    assert "auc" in died["forgetting"]["mean"]["difference"]


def test_another_task_is_refused(files: Path, tmp_path: Path) -> None:
    first = run(document(files, "first", "regression", "ab"), tmp_path)
    cases = {
        "huber": "its task has other settings: loss is squared there and huber here",
        "count": "its task is regression",
    }
    for task, problem in cases.items():
        plan = plan_of(after(files, first, task))
        assert problem in refusal(lambda plan=plan: plan.trial(plan.study.arms[0], 1))  # type: ignore[misc]


def test_seeds_that_share_rows_cannot_have_several_units(files: Path, tmp_path: Path) -> None:
    first = run(document(files, "first", "regression", "ab"), tmp_path)
    later = after(files, first, "regression")
    later["evaluation"] |= {"vary": ["batches"]}
    assert "whose targets were scaled differently" in refusal(lambda: run(later, tmp_path))
    later["model"]["start_from"]["seed"] = 1
    assert run(later, tmp_path).fresh
