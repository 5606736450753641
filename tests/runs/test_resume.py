"""A run that dies at any moment goes on to the same numbers, to the last bit."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import wardround
from tests.representatives import represented
from wardround.core.errors import RunError
from wardround.runs import checkpoint
from wardround.runs.execute import execute
from wardround.runs.folder import RunFolder

STUDY: dict[str, Any] = {
    "name": "mortal",
    "data": {"source": "heart", "hospitals": ["cleveland", "hungarian"]},
    "sites": {"partition": "dirichlet", "count": 5, "smallest": 20},
    "model": {"kind": "mlp", "hidden": [8], "dropout": 0.2},
    "training": {"rounds": 12, "local_epochs": 2, "lr": 0.1, "share": 0.6},
    "evaluation": {"seeds": {"first": 1, "count": 2}, "reference": "scaffold"},
    "arms": [{"algorithm": "scaffold"}, {"algorithm": "fedadam"}, {"algorithm": "clustered"}],
}


def numbers(folder: Path) -> dict[str, Any]:
    """All that a run computed; only how long it took is left out."""
    results = json.loads((folder / "results.json").read_text())
    for arm in results["arms"].values():
        del arm["cost"]["seconds"], arm["cost"]["seed_seconds"]
    records = [replace(record, seconds=0.0) for record in wardround.read_records(folder)]
    weights = {
        str(path.relative_to(folder)): path.read_bytes() for path in sorted((folder / "models").rglob("*.safetensors"))
    }
    predictions = pd.read_parquet(folder / "predictions.parquet")
    return {"results": results, "records": records, "weights": weights, "predictions": predictions.to_json()}


@pytest.fixture(scope="module", params=represented(["stacked", "serial"], by=["stacked"]))
def undisturbed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    run = wardround.run_study(STUDY, tmp_path_factory.mktemp("undisturbed"), engine=request.param)
    assert not (run.folder / "state").exists()
    return request.param, numbers(run.folder)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint after every round, so that any of them can be the last."""
    monkeypatch.setattr(checkpoint, "SHORTEST_PAUSE", 0.0)
    monkeypatch.setattr(checkpoint, "SHARE_OF_TIME", 1e9)


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
def test_stopping_after_any_rounds_and_going_on_gives_the_same_bits(
    undisturbed: tuple[str, dict[str, Any]], tmp_path: Path, seed: int
) -> None:
    engine, expected = undisturbed
    plan = wardround.load_plan(*wardround.load_study(STUDY))
    folder = RunFolder.of(plan.study, tmp_path)
    rng = np.random.default_rng(seed)
    for _ in range(3):  # stopped three times
        steps = execute(plan, folder, engine)
        for _ in range(int(rng.integers(1, 9))):
            next(steps, None)
        steps.close()
        plan = wardround.load_plan(*wardround.load_study(STUDY))
    assert not folder.complete
    with (folder.path / "records.jsonl").open("a") as file:
        file.write('{"arm": "scaffold", "half a li')  # what a dying process may leave
    resumed = wardround.resume_study(folder.path)
    assert resumed.fresh
    assert numbers(folder.path) == expected


IN_TIME: dict[str, Any] = {
    **STUDY,
    "name": "mortal-in-time",
    "sites": {**STUDY["sites"], "speed": {"kind": "lognormal"}, "away": {"share": 0.2, "length": 50}},
    "training": {"rounds": 12, "lr": 0.1},
    "evaluation": {"seeds": {"first": 1, "count": 1}, "reference": "late"},
    "deployment": {"quorum": 2, "deadline": 50},
    "arms": [
        {"name": "buffered", "algorithm": "fedadam", "training.asynchronous.buffer": 2},
        {"name": "mixed", "algorithm": "fedprox", "training.asynchronous.buffer": 1},
        {"name": "late", "algorithm": "fedavg", "training.late": "on"},
    ],
}


@pytest.mark.usefixtures("often")
def test_asynchronous_rounds_go_on_with_the_models_that_work_began_with(tmp_path: Path) -> None:
    expected = numbers(wardround.run_study(IN_TIME, tmp_path / "undisturbed").folder)
    plan = wardround.load_plan(*wardround.load_study(IN_TIME))
    folder, rng = RunFolder.of(plan.study, tmp_path), np.random.default_rng(0)
    for _ in range(6):
        steps = execute(plan, folder)
        for _ in range(int(rng.integers(1, 7))):
            next(steps, None)
        steps.close()
        plan = wardround.load_plan(*wardround.load_study(IN_TIME))
    assert not folder.complete
    wardround.resume_study(folder.path)
    assert numbers(folder.path) == expected
    stale = [s for record in expected["records"] for s in record.staleness.values()]
    assert max(stale) > 1


def kill_at_random(tmp_path: Path, seed: int, kills: int, workers: int = 1) -> tuple[Path, int]:
    """Run in a real process, killed `kills` times without warning, then to its end."""
    path = tmp_path / "study.json"
    path.write_text(json.dumps(STUDY))
    code = f"""
import json, wardround
from wardround.runs import checkpoint
checkpoint.SHORTEST_PAUSE, checkpoint.SHARE_OF_TIME = 0.0, 1e9
print("ready", flush=True)
wardround.run_study(json.load(open({str(path)!r})), {str(tmp_path)!r}, engine="stacked", workers={workers},
                    progress=lambda step: print(step.done, flush=True))
"""
    rng, died = np.random.default_rng(seed), 0
    for _ in range(kills):
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for _ in range(int(rng.integers(1, 25 // kills))):  # of 36 steps, so that it never comes to its end
            process.stdout.readline()
        time.sleep(float(rng.random()) * 0.02)
        process.send_signal(signal.SIGKILL)
        died += process.wait() == -signal.SIGKILL
        process.stdout.close()
        for study in tmp_path.glob("*/study.toml"):
            list(wardround.read_records(study.parent))  # whatever a killed process leaves can be read
    assert not list(tmp_path.glob("*/results.json"))
    run = wardround.run_study(STUDY, tmp_path, engine="stacked")
    assert run.fresh
    return run.folder, died


def killed_and_resumed(tmp_path: Path, seed: int, kills: int, workers: int = 1) -> dict[str, Any]:
    folder = tmp_path / f"killed-{seed}"
    folder.mkdir()
    finished, died = kill_at_random(folder, seed, kills, workers)
    assert died == kills
    return numbers(finished)


@pytest.mark.slow
def test_killed_processes_leave_nothing_that_hurts(tmp_path: Path) -> None:
    expected = numbers(wardround.run_study(STUDY, tmp_path / "undisturbed", engine="stacked").folder)
    assert killed_and_resumed(tmp_path, seed=0, kills=2) == expected


@pytest.mark.slow
def test_units_that_are_killed_side_by_side_lose_no_record_and_repeat_none(tmp_path: Path) -> None:
    expected = numbers(wardround.run_study(STUDY, tmp_path / "undisturbed", engine="stacked").folder)
    for seed in range(40, 44):
        assert killed_and_resumed(tmp_path, seed, kills=3, workers=2) == expected


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(1, 16), range(16, 31)], ids=["first half", "second half"])
def test_thirty_random_kills_give_thirty_times_the_same_result(tmp_path: Path, seeds: range) -> None:
    expected = numbers(wardround.run_study(STUDY, tmp_path / "undisturbed", engine="stacked").folder)
    for seed in seeds:
        assert killed_and_resumed(tmp_path, seed, kills=1) == expected


def stopped_after_two_rounds(tmp_path: Path) -> RunFolder:
    plan = wardround.load_plan(*wardround.load_study(STUDY))
    folder = RunFolder.of(plan.study, tmp_path)
    steps = execute(plan, folder)
    next(steps)
    next(steps)
    steps.close()
    return folder


@pytest.mark.usefixtures("often")
def test_a_run_that_was_begun_in_other_circumstances_does_not_go_on(tmp_path: Path) -> None:
    folder = stopped_after_two_rounds(tmp_path)
    with pytest.raises(RunError, match="begun with other engine"):
        wardround.run_study(STUDY, tmp_path, engine="serial")
    environment = json.loads((folder.path / "environment.json").read_text())
    environment["versions"]["torch"] = "1.0"
    (folder.path / "environment.json").write_text(json.dumps(environment))
    with pytest.raises(RunError, match="begun with other versions"):
        wardround.resume_study(folder.path)
    assert wardround.run_study(STUDY, tmp_path, again=True).fresh


@pytest.mark.usefixtures("often")
def test_a_damaged_checkpoint_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    folder = stopped_after_two_rounds(tmp_path)
    path = folder.path / "state" / "units" / "00000.safetensors"
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(RunError, match=r"is damaged .*\n  Start anew with --again"):
        wardround.resume_study(folder.path)


def test_what_is_not_a_run_folder_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run folder"):
        wardround.resume_study(tmp_path)


def test_resuming_a_complete_run_shows_it(tmp_path: Path) -> None:
    run = wardround.run_study(STUDY, tmp_path)
    again = wardround.resume_study(run.folder)
    assert not again.fresh
    assert again.results == run.results
