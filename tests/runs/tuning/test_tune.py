"""A tuned study from its trials to its results: the same budget for all, no test row, the same bits after a stop."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from typer.testing import CliRunner

import wardround
from tests.runs.test_resume import numbers
from wardround.cli.main import app
from wardround.core.errors import StudyError
from wardround.deployment.common.deployable import refuse_undeployable
from wardround.engines import ENGINES
from wardround.evaluation import prediction
from wardround.evaluation.prediction import predict
from wardround.runs import checkpoint
from wardround.runs.execute import execute
from wardround.runs.finished_run import open_run
from wardround.runs.folder import RunFolder
from wardround.runs.tuning.tune import refuse_without_validation

SPACE: dict[str, Any] = {
    "training.lr": {"low": 0.01, "high": 1.0, "log": True},
    "mu": [0.01, 1.0],
    "model.l2": [0.0, 0.1],
}
STUDY: dict[str, Any] = {
    "name": "tuned",
    "data": {"source": "heart", "hospitals": ["cleveland", "hungarian"]},
    "training": {"rounds": 4, "lr": 0.05},
    "evaluation": {"seeds": {"first": 1, "count": 2}, "validation_share": 0.25},
    "tuning": {"method": "successive-halving", "budget": 3, "space": SPACE},
    "arms": [{"algorithm": "fedavg"}, {"algorithm": "fedprox"}, {"algorithm": "local"}],
}
ELSEWHERE = ("", "")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tuned")


@pytest.fixture(scope="module")
def halved(out: Path) -> wardround.StudyRun:
    return wardround.run_study(STUDY, out)


def test_budgets_are_equal_by_the_records(halved: wardround.StudyRun) -> None:
    tuning = halved.results["tuning"]
    rounds = Counter((record.arm, record.seed) for record in wardround.read_records(halved.folder))
    spent = {
        (arm, seed): sum(n for (name, s), n in rounds.items() if name.startswith(f"{arm}?trial=") and s == seed)
        for arm in ("fedavg", "fedprox", "local")
        for seed in (1, 2)
    }
    assert len(set(spent.values())) == 1
    assert 0 < next(iter(spent.values())) <= 3 * 4
    assert tuning["equal_budgets"]
    for (arm, seed), count in spent.items():
        said = tuning["arms"][arm]["spent"][str(seed)]
        assert said["rounds"] == count
        assert said["trainings"] == count / 4
        assert rounds[arm, seed] == 4, "then each trains once more with what was chosen"
    assert set(halved.results["arms"]) == {"fedavg", "fedprox", "local"}
    assert "mu" not in halved.results["arms"]["fedprox"]["algorithm"], "each seed has its own"


def test_a_missing_round_in_the_records_shows(halved: wardround.StudyRun) -> None:
    from wardround.runs.tuning.chosen import describe_tuning
    from wardround.runs.tuning.tune import Tuned, tasks_of
    from wardround.study.tuning_methods import Attempt

    _, plan = open_run(halved.folder, ELSEWHERE)
    tuned = Tuned(tasks_of(plan))
    for arm, entry in halved.results["tuning"]["arms"].items():
        for seed in (1, 2):
            own = [t for t in entry["trials"] if t["seed"] == seed]
            tuned.attempts[arm, seed] = [Attempt(t["trial"], t["values"], t["rounds"], t["score"]) for t in own]
    records = RunFolder(halved.folder).records()
    assert describe_tuning(plan, tuned, records)["equal_budgets"]
    assert not describe_tuning(plan, tuned, records[records.index != 0])["equal_budgets"]


def test_scores_are_those_of_validation_rows_and_no_test_row_is_seen(
    halved: wardround.StudyRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Trained once more by the reference engine, the choice has the score that is told, by another library."""
    folder, plan = open_run(halved.folder, ELSEWHERE)
    tests = folder.predictions()
    for arm in plan.study.arms:
        for seed in plan.study.evaluation.seeds:
            own = halved.results["tuning"]["arms"][arm.name]["chosen"][str(seed)]
            trial = plan.trial(arm, seed)
            assert trial.training.lr == own["values"]["training.lr"]
            state = ENGINES["serial"].start([trial])
            for after, _ in ENGINES["serial"].rounds([trial], state):
                state = after
            sites = predict(trial, ENGINES["serial"].runs([trial], state)[0], "validation")
            label, score = (np.concatenate([getattr(site, name) for site in sites]) for name in ("label", "score"))
            assert own["score"] == pytest.approx(roc_auc_score(label, score), abs=1e-5)
            tested = tests[(tests["arm"] == arm.name) & (tests["seed"] == seed)]["row"]
            assert not set(tested) & set(np.concatenate([site.rows for site in sites]).tolist())

    asked = []

    def watched(trial: Any, run: Any, subset: str = "test") -> Any:
        asked.append((trial.arm, subset))
        return predict(trial, run, subset)  # type: ignore[arg-type]

    for place in ("wardround.runs.tuning.tune.predict", "wardround.runs.execute.predict"):
        monkeypatch.setattr(place, watched)
    wardround.run_study(STUDY, tmp_path, workers=1)
    trials = {subset for arm, subset in asked if "?trial=" in arm}
    assert trials == {"validation"}
    assert prediction.predict is predict


def test_it_is_deterministic_and_the_number_of_workers_does_not_matter(
    halved: wardround.StudyRun, tmp_path: Path
) -> None:
    again = wardround.run_study(STUDY, tmp_path, workers=2)
    assert numbers(again.folder) == numbers(halved.folder)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "SHORTEST_PAUSE", 0.0)
    monkeypatch.setattr(checkpoint, "SHARE_OF_TIME", 1e9)


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(
    ("method", "engine"),
    [
        ("successive-halving", "auto"),
        pytest.param("successive-halving", "serial", marks=pytest.mark.slow),
        pytest.param("bayesian", "auto", marks=pytest.mark.slow),
        pytest.param("random", "auto", marks=pytest.mark.slow),
    ],
)
def test_stopped_anywhere_it_goes_on_to_the_same_bits(
    halved: wardround.StudyRun, tmp_path: Path, method: str, engine: str
) -> None:
    study = {**STUDY, "tuning": {**STUDY["tuning"], "method": method}}
    expected = numbers(halved.folder)
    if (method, engine) != ("successive-halving", "auto"):
        expected = numbers(wardround.run_study(study, tmp_path / "whole", engine=engine).folder)
    folder, stops, rng = RunFolder.of(wardround.load_study(study)[0], tmp_path), 0, np.random.default_rng(5)
    while True:  # after each few steps it is stopped, in every wave and between them
        source = folder.path / "study.toml" if stops else study  # in the file keys stand in another order
        steps = execute(wardround.load_plan(*wardround.load_study(source)), folder, engine, workers=1)
        wanted = int(rng.integers(2, 9)) if stops < 6 else 10_000
        if sum(1 for _, _ in zip(range(wanted), steps, strict=False)) < wanted:
            break
        steps.close()
        stops += 1
    assert stops >= 3
    assert folder.complete
    assert numbers(folder.path) == expected


@pytest.mark.slow
@pytest.mark.parametrize("method", ["successive-halving", "bayesian"])
def test_killed_at_any_moment_it_goes_on_to_the_same_bits(tmp_path: Path, method: str) -> None:
    study = {**STUDY, "tuning": {**STUDY["tuning"], "method": method}}
    path = tmp_path / "study.json"
    path.write_text(json.dumps(study))
    code = f"""
import json, wardround
from wardround.runs import checkpoint
checkpoint.SHORTEST_PAUSE, checkpoint.SHARE_OF_TIME = 0.0, 1e9
print("ready", flush=True)
wardround.run_study(json.load(open({str(path)!r})), {str(tmp_path)!r}, workers=2,
                    progress=lambda step: print(step.done, flush=True))
"""
    rng = np.random.default_rng(2)
    for _ in range(6):
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for _ in range(int(rng.integers(1, 30))):
            process.stdout.readline()
        time.sleep(float(rng.random()) * 0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    assert os.path.isdir(RunFolder.of(wardround.load_study(study)[0], tmp_path).path)
    resumed = wardround.run_study(study, tmp_path)
    whole = wardround.run_study(study, tmp_path / "whole")
    assert numbers(resumed.folder) == numbers(whole.folder)


def test_what_comes_after_a_run_knows_the_choices(halved: wardround.StudyRun, tmp_path: Path) -> None:
    """A bundle, the plan of the finished run, and the run shown again."""
    chosen = halved.results["tuning"]["arms"]["fedprox"]["chosen"]["2"]["values"]
    _, plan = open_run(halved.folder, ELSEWHERE)
    assert plan.arm("fedprox", 2).algorithm.options["mu"] == chosen["mu"]
    assert plan.arm("fedprox", 2).model.options["l2"] == chosen["model.l2"]
    made = wardround.make_bundle(halved.folder, arm="fedprox", seed=2, site="cleveland", out=tmp_path / "bundle")
    assert made.exists()
    again = wardround.run_study(STUDY, halved.folder.parent)
    assert not again.fresh
    assert again.results["tuning"] == halved.results["tuning"]


def test_networks_of_several_sizes_and_secure_sums_are_tuned(tmp_path: Path) -> None:
    study = {
        **STUDY,
        "data": {"source": "heart", "hospitals": ["cleveland", "hungarian", "va"]},
        "model": {"kind": "mlp", "hidden": [4]},
        "training": {"rounds": 2},
        "evaluation": {"seeds": {"first": 1, "count": 1}, "validation_share": 0.25},
        "tuning": {"budget": 3, "space": {"model.hidden": [[4], [6], [3, 2]], "training.local_epochs": [1, 2]}},
        "arms": [
            {"algorithm": "fedavg"},
            {"name": "secure", "algorithm": "fedavg", "privacy.secure_sum.largest": 64.0},
        ],
    }
    run = wardround.run_study(study, tmp_path)
    arms = run.results["tuning"]["arms"]
    assert all(trial["score"] is not None for arm in arms.values() for trial in arm["trials"])
    assert [t["values"] for t in arms["fedavg"]["trials"]] == [t["values"] for t in arms["secure"]["trials"]]
    assert len({str(trial["values"]["model.hidden"]) for trial in arms["fedavg"]["trials"]}) > 1
    for plain, secure in zip(arms["fedavg"]["trials"], arms["secure"]["trials"], strict=True):
        assert plain["score"] == pytest.approx(secure["score"], abs=1e-3)


def test_hospitals_are_told_how_to_tune_before() -> None:
    study, _ = wardround.load_study(STUDY)
    with pytest.raises(StudyError, match="hospitals approve every training before the first") as error:
        refuse_undeployable(study, ["cleveland", "hungarian"])
    assert "simulation of public or synthetic rows" in error.value.remedy


def test_a_split_that_comes_without_validation_rows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = wardround.load_plan(*wardround.load_study(STUDY))
    refuse_without_validation(plan)
    drawn = plan.splits
    monkeypatch.setattr(
        plan, "splits", lambda *key: tuple(replace(s, validation=s.validation[:0]) for s in drawn(*key))
    )
    with pytest.raises(StudyError, match="no validation rows to compare settings on"):
        refuse_without_validation(plan)


def test_check_says_how_many_trainings_there_are(tmp_path: Path) -> None:
    import tomli_w

    path = tmp_path / "study.toml"
    path.write_text(tomli_w.dumps(STUDY))
    shown = CliRunner().invoke(app, ["check", str(path), "--set", "tuning.method=random"]).output
    assert "24 trainings: 18 try settings (random, 72 rounds), then 6 are compared." in shown
    content = json.loads(CliRunner().invoke(app, ["check", str(path), "--json"]).output)
    assert content["trainings"]["compared"] == 6
    refused = CliRunner().invoke(app, ["check", str(path), "--set", "tuning.budget=0"])
    assert isinstance(refused.exception, StudyError)
