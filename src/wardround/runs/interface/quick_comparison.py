"""`wardround.compare`: tables of hospitals to an answer, in one line."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from wardround.core.errors import StudyError, shown
from wardround.runs.execute import Progress, run_study
from wardround.runs.interface.study_run import StudyRun

ARMS = (
    {"name": "local", "algorithm": "local"},
    {"name": "fedavg", "algorithm": "fedavg"},
    {"name": "fedprox", "algorithm": "fedprox", "mu": 0.1},
)
# Those of the shipped study of heart disease, whose hospitals are of the usual size: hundreds of patients each.
TRAINING = {
    "rounds": 30,
    "local_epochs": 5,
    "batch_size": 32,
    "lr": 0.1,
    "lr_decay": {"factor": 0.95, "every": 10, "minimum": 0.001},
}


def compare(
    sites: Mapping[str, Any],
    target: str,
    *,
    patient: str | None = None,
    task: str | Mapping[str, Any] | None = None,
    question: str | None = None,
    name: str = "comparison",
    out: str | Path = "runs",
    changes: Mapping[str, Any] | None = None,
    again: bool = False,
    progress: Callable[[Progress], None] | None = None,
    workers: int | None = None,
) -> StudyRun:
    """Is training together better than each hospital alone? Local training, FedAvg and FedProx on the same splits.

    `sites` has a DataFrame, or the path of a CSV file, for each hospital; `target` is the column to predict and
    `patient` the column that says whose a row is. `task` is "regression" or "count" for numbers. `changes` are dotted
    keys of the study file, such as `{"training.rounds": 50, "data.columns": "common"}`. The rest is as `run_study`
    has it.

        run = wardround.compare({"north": north, "south": south}, target="died", patient="patient_id")
    """
    return run_study(
        comparison_study(sites, target, patient=patient, task=task, question=question, name=name),
        out,
        changes=changes,
        again=again,
        progress=progress,
        workers=workers,
    )


def comparison_study(
    sites: Mapping[str, Any],
    target: str,
    *,
    patient: str | None = None,
    task: str | Mapping[str, Any] | None = None,
    question: str | None = None,
    name: str = "comparison",
) -> dict[str, Any]:
    """The study of `compare`, as `run_study` takes it."""
    if not isinstance(sites, Mapping):
        problem = f"expected a table for each hospital, found {shown(sites)}"
        raise StudyError("sites", problem, 'Write {"north": df_north, "south": df_south}.')
    for setting, column in (("target", target), ("patient", patient)):
        if column is not None and not (isinstance(column, str) and column.isprintable()):
            raise StudyError(setting, f"expected the name of a column, found {shown(column)}", "Give it as a text.")
    asked = f"Does training together predict {target!r} better than each hospital alone?"
    optional = {"patient": patient, "task": task}
    return {
        "name": name,
        "question": asked if question is None else question,
        "data": {
            "source": "csv",
            "files": dict(sites),
            "target": target,
            **{key: value for key, value in optional.items() if value is not None},
            # scaled by sums over all hospitals, so that a number means the same everywhere
            "scale": "federated",
        },
        "model": {"l2": 0.01},
        "training": dict(TRAINING),
        "evaluation": {"test_share": 0.2, "validation_share": 0.2, "reference": "local"},
        "arms": [dict(arm) for arm in ARMS],
    }
