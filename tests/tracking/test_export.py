"""Runs written for MLflow and TensorBoard are read back with those libraries and compared with the run's own files."""

import importlib.util
import json
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.test_commands import wardround
from wardround.core.errors import BundleError, MachineError, RunError, StudyError
from wardround.report.build import build_report
from wardround.runs.execute import run_study
from wardround.runs.records import read_records
from wardround.tracking import export_run
from wardround.tracking.tracked_run import plain, read_run


def needs_library(*modules: str) -> pytest.MarkDecorator:
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)} (extras outside `all`)")


MLFLOW = needs_library("mlflow", "sqlalchemy", "alembic")
TENSORBOARD = needs_library("tensorboardX", "tensorboard")
STUDY: dict[str, Any] = {
    "name": "tracked",
    "question": "Does it help?",
    "data": {"source": "heart"},
    "training": {"rounds": 3, "local_epochs": 1},
    "evaluation": {"seeds": {"first": 1, "count": 2}},
    "arms": [{"algorithm": "local"}, {"algorithm": "fedprox", "mu": [0.0, 0.5]}],
}
ARMS = ["local", "fedprox[mu=0.0]", "fedprox[mu=0.5]"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = run_study(STUDY, tmp_path_factory.mktemp("runs"))
    build_report(run.folder)
    return run.folder


@pytest.fixture(autouse=True)
def their_warnings_are_theirs() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def expected_curve(folder: Path, arm: str, figure: str) -> list[float]:
    by_round: dict[int, list[float]] = {}
    for record in read_records(folder):
        if record.arm == arm:
            by_round.setdefault(record.round, []).append(record.figures[figure])
    return [float(np.mean(by_round[number])) for number in sorted(by_round)]


def test_what_a_tracker_is_given(folder: Path) -> None:
    tracked, results = read_run(folder), json.loads((folder / "results.json").read_text())
    assert [arm.name for arm in tracked.arms] == ARMS
    own = tracked.arms[2]
    assert own.final["auc"] == results["arms"][own.name]["metrics"]["auc"]["mean"]
    assert own.final["sites/va/auc"] == results["arms"][own.name]["sites"]["va"]["auc"]["mean"]
    assert list(own.curves["test_loss"].values()) == expected_curve(folder, own.name, "test_loss")
    assert (own.params["training.rounds"], own.params["arm.algorithm"]) == ("3", "fedprox")
    assert own.params["arm.mu"] == "0.5"
    assert not [key for key in own.params if key.startswith("data.files")]
    written = {path.name for path in tracked.artifacts}
    assert {"report.html", "results.json", "study.toml", "primary-metric.png"} <= written
    assert not [name for name in written if name.endswith((".parquet", ".safetensors", ".jsonl"))]


@MLFLOW
def test_mlflow_reads_what_was_written(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.tracking import MlflowClient

    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    exported = export_run(folder, "mlflow", uri, each_seed=True)
    assert (exported.arms, exported.fresh) == (3, True)
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("tracked")
    assert experiment is not None
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert len(runs) == 1 + 3 + 3 * 2
    study, arm = runs[folder.name], runs[ARMS[2]]
    assert study.info.status == arm.info.status == "FINISHED"
    assert arm.data.tags["mlflow.parentRunId"] == study.info.run_id
    assert runs[f"{ARMS[2]} seed 2"].data.tags["mlflow.parentRunId"] == arm.info.run_id
    assert study.data.tags["question"] == "Does it help?"
    tracked = read_run(folder).arms[2]
    assert arm.data.metrics["auc"] == tracked.final["auc"]
    assert arm.data.params == dict(tracked.params)
    history = client.get_metric_history(arm.info.run_id, "round/test_loss")
    assert [(point.step, point.value) for point in history] == list(tracked.curves["test_loss"].items())
    listed = {entry.path for entry in client.list_artifacts(study.info.run_id)}
    assert {"report.html", "results.json", "study.toml", "figures"} == listed
    again = export_run(folder, "mlflow", uri)
    assert not again.fresh
    assert len(client.search_runs([experiment.experiment_id])) == len(runs)


@MLFLOW
def test_what_a_process_that_died_left_in_mlflow_is_replaced(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    with monkeypatch.context() as patch:

        def die(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(MlflowClient, "set_terminated", die)
        with pytest.raises(KeyboardInterrupt):
            export_run(folder, "mlflow", uri)
    assert export_run(folder, "mlflow", uri).fresh
    client = MlflowClient(tracking_uri=uri)
    runs = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    assert sorted(run.info.status for run in runs) == ["FINISHED"] * 4


@MLFLOW
def test_a_place_where_mlflow_cannot_write_is_one_clear_error(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="MLflow cannot write there"):
        export_run(folder, "mlflow", f"file://{tmp_path / 'mlruns'}")  # its old form, which it refuses itself
    with pytest.raises(RunError, match="MLflow cannot write there"):
        export_run(folder, "mlflow", "nonsense://here")


@TENSORBOARD
def test_tensorboard_reads_what_was_written(folder: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    exported = export_run(folder, "tensorboard", str(tmp_path / "events"), each_seed=True)
    places = {str(path.parent.relative_to(exported.where)) for path in Path(exported.where).rglob("*tfevents*")}
    names = [f"{number:02} {plain(arm)}" for number, arm in enumerate(ARMS, 1)]
    assert places == {".", *names, *(f"{name}/seed-{seed}" for name in names for seed in (1, 2))}
    events = EventAccumulator(str(Path(exported.where) / names[2]))
    events.Reload()
    tracked = read_run(folder).arms[2]
    curve = {event.step: event.value for event in events.Scalars("round/test_loss")}
    assert curve == pytest.approx(tracked.curves["test_loss"], abs=1e-6)  # it keeps single precision
    assert events.Scalars("final/auc")[0].value == pytest.approx(tracked.final["auc"], abs=1e-6)
    assert set(events.Tags()["scalars"]) == {f"round/{n}" for n in tracked.curves} | {
        f"final/{n}" for n in tracked.final
    }
    study = EventAccumulator(exported.where)
    study.Reload()
    (answer,) = study.Tensors("answer/text_summary")
    assert answer.tensor_proto.string_val[0].decode() == read_run(folder).answer
    with pytest.raises(BundleError, match="is there already"):
        export_run(folder, "tensorboard", str(tmp_path / "events"))


def test_errors_say_what_to_do(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StudyError, match="Did you mean 'mlflow'"):
        export_run(folder, "mlflw")
    stopped = Path(shutil.copytree(folder, tmp_path / "stopped"))
    (stopped / "results.json").unlink()
    with pytest.raises(RunError, match=r"has no results\.json"):
        export_run(stopped, "tensorboard", str(tmp_path / "events"))
    for module, tracker in (("tensorboardX", "tensorboard"), ("mlflow.tracking", "mlflow")):
        monkeypatch.setitem(__import__("sys").modules, module, None)
        with pytest.raises(MachineError, match=f"needs the extra '{tracker}'"):
            export_run(folder, tracker, str(tmp_path / "events"))
    assert not (tmp_path / "events").exists()


@TENSORBOARD
def test_in_a_terminal(folder: Path, tmp_path: Path) -> None:
    done = wardround("export", folder, "--to", "tensorboard", "--out", tmp_path / "events")
    assert done.returncode == 0, done.stderr
    assert "3 arms are written to" in done.stdout
    assert f"tensorboard --logdir {tmp_path / 'events'}" in done.stdout.replace("\n", "")
    assert wardround("export", folder, "--to", "wandb").returncode == 3
