"""A run in MLflow's store, through its own client: an experiment for the study, a run for the study, one below it for
each arm, and one below that for each seed if wanted."""

import os
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from wardround.core.errors import RunError
from wardround.core.extras import load, needs
from wardround.tracking.export import Exported, run_folder_name
from wardround.tracking.tracked_run import Curves, TrackedArm, TrackedRun

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

MOST_METRICS, MOST_PARAMS = 1000, 100  # that the client takes at once
LONGEST_PARAM, LONGEST_TAG = 6000, 5000
ID, DONE = "wardround.run", "FINISHED"
REMEDY = "Give a tracking URI, such as sqlite:///mlflow.db or http://localhost:5000, and see that it can be reached."


def write(tracked: TrackedRun, uri: str, each_seed: bool) -> Exported:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # before the import: nothing is told to anybody
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    with needs("mlflow", "export --to mlflow"):
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        if uri.startswith("sqlite:"):
            import alembic  # noqa: F401 - the store of a file needs both
            import sqlalchemy  # noqa: F401
    try:
        client = MlflowClient(tracking_uri=uri)
        fresh = _write(client, tracked, each_seed)
    except MlflowException as error:
        problem = f"MLflow cannot write there ({error.error_code})"
        raise RunError(uri, problem, REMEDY) from None
    shown = f"mlflow ui --backend-store-uri {uri}" if "://" in uri and not uri.startswith("http") else f"open {uri}"
    return Exported(uri, len(tracked.arms), fresh, shown)


def _write(client: "MlflowClient", tracked: TrackedRun, each_seed: bool) -> bool:
    known = client.get_experiment_by_name(tracked.name)
    experiment = client.create_experiment(tracked.name) if known is None else known.experiment_id
    for earlier in client.search_runs([experiment], f"tags.`{ID}` = '{tracked.id}'"):
        if earlier.info.status == DONE:
            return False
        _remove(client, experiment, earlier.info.run_id)  # what a process that died left behind
    began = int(tracked.began.timestamp() * 1000)

    def entry(name: str, below: str = "", **tags: str) -> str:
        parent = {"mlflow.parentRunId": below} if below else {}
        run = client.create_run(experiment, start_time=began, run_name=name, tags={**parent, **tags})
        return str(run.info.run_id)

    study = entry(run_folder_name(tracked), **{ID: tracked.id})
    tags = {"mlflow.note.content": f"{tracked.question}\n\n{tracked.answer}", **tracked.tags}
    _log(client, study, tags={key: value[:LONGEST_TAG] for key, value in tags.items() if value})
    for path in tracked.artifacts:
        client.log_artifact(study, str(path), "figures" if path.parent.name == "figures" else None)
    for arm in tracked.arms:
        own = entry(arm.name, study, arm=arm.name)
        _log(client, own, _params(arm), metrics=[*_points(arm.curves, began), *_finals(arm, began)])
        for seed in arm.seeds if each_seed else ():
            below = entry(f"{arm.name} seed {seed.seed}", own, arm=arm.name, seed=str(seed.seed))
            _log(client, below, metrics=list(_points(seed.curves, began)))
            client.set_terminated(below, DONE)
        client.set_terminated(own, DONE)
    client.set_terminated(study, DONE)  # last, so that only a whole one counts as there
    return True


def _remove(client: "MlflowClient", experiment: str, run: str) -> None:
    for below in client.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{run}'"):
        _remove(client, experiment, below.info.run_id)
    client.delete_run(run)


def _entities() -> ModuleType:
    return load("mlflow.entities", "mlflow", "export --to mlflow")


def _params(arm: TrackedArm) -> dict[str, str]:
    return {key: value[:LONGEST_PARAM] for key, value in arm.params.items()}


def _points(curves: Curves, time: int) -> Iterator[Any]:
    for name, curve in curves.items():
        for number, value in curve.items():
            yield _entities().Metric(f"round/{name}", value, time, number)


def _finals(arm: TrackedArm, time: int) -> Iterator[Any]:
    for name, value in arm.final.items():
        yield _entities().Metric(name, value, time, 0)


def _log(
    client: "MlflowClient",
    run: str,
    params: Mapping[str, str] | None = None,
    metrics: list[Any] | None = None,
    tags: Mapping[str, str] | None = None,
) -> None:
    """In portions that the client takes."""
    entries = [_entities().Param(key, value) for key, value in (params or {}).items()]
    for start in range(0, len(entries), MOST_PARAMS):
        client.log_batch(run, params=entries[start : start + MOST_PARAMS])
    for start in range(0, len(metrics or []), MOST_METRICS):
        client.log_batch(run, metrics=(metrics or [])[start : start + MOST_METRICS])
    if tags:
        client.log_batch(run, tags=[_entities().RunTag(key, value) for key, value in tags.items()])
