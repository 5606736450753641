"""`wardround export`: one complete run into one tracker."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from os import PathLike
from pathlib import Path

from wardround.core.errors import RunError, StudyError, as_name, as_path, suggest
from wardround.tracking.tracked_run import TrackedRun, read_run

# What each is written by, and where it is written unless something else is said.
DESTINATIONS: Mapping[str, tuple[str, str]] = {
    "mlflow": ("wardround.tracking.mlflow_runs", "sqlite:///mlflow.db"),
    "tensorboard": ("wardround.tracking.tensorboard_events", "tensorboard"),
}


@dataclass(frozen=True)
class Exported:
    where: str
    arms: int
    fresh: bool  # False: it was there already
    show: str  # the command that shows it


def export_run(run: str | PathLike[str], to: str, out: str = "", *, each_seed: bool = False) -> Exported:
    """Write a complete run, or that of a run folder, for MLflow or TensorBoard.

    `out` is a tracking URI of MLflow, or the folder that TensorBoard is given. There is one entry for each arm, with
    means over its seeds; with `each_seed` one for each seed too. Predictions are not written.
    """
    if as_name(to, "--to") not in DESTINATIONS:
        raise StudyError("--to", f"{to!r} is no tracker that is known", suggest(to, DESTINATIONS, "Trackers"))
    if out != "":
        as_path(out, "--out")
    module, usual = DESTINATIONS[to]
    write: Callable[[TrackedRun, str, bool], Exported] = import_module(module).write
    return write(read_run(as_path(run, "run", RunError)), out or usual, each_seed)


def run_folder_name(tracked: TrackedRun) -> str:
    return Path(tracked.folder).resolve().name
