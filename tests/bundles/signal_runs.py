"""Runs whose rows are signals, small and quick."""

from pathlib import Path
from typing import Any

import numpy as np

from wardround.bundles import FinishedRun, open_finished_run
from wardround.core.threads import torch_threads
from wardround.data.records import Records
from wardround.data.sources import SOURCES
from wardround.runs.execute import run_study

ECG: dict[str, Any] = {"source": "synthetic-ecg", "rows": 160, "hospitals": 2, "seconds": 4, "rate": 50, "skew": 0.0}
TRAINING = {"rounds": 1, "batch_size": 16, "lr": 0.01, "optimiser": "adam"}


def ecgs(**changes: Any) -> Records:
    settings = {key: value for key, value in {**ECG, **changes}.items() if key != "source"}
    return SOURCES["synthetic-ecg"](**settings).load()


def run_of(folder: Path, **changes: Any) -> FinishedRun:
    document = {
        "name": "signals",
        "question": "Does it run?",
        "data": ECG,
        "model": {"kind": "cnn1d", "widths": [4, 8]},
        "training": TRAINING,
        "evaluation": {"seeds": {"count": 1}, "validation_share": 0.2, "test_share": 0.25, "every": 0},
        "arms": [{"algorithm": "fedavg"}],
        **changes,
    }
    with torch_threads(1):
        return open_finished_run(run_study(document, folder, workers=1).folder)


def write_visits(path: Path, patients: int = 60) -> None:
    """Of those who die the pulse rises from visit to visit."""
    rng = np.random.default_rng(4)
    lines = ["patient,time,pulse,pressure,died,hospital"]
    for patient in range(patients):
        died, day = patient % 2, 0.0
        for visit in range(int(rng.integers(1, 7))):
            day += float(rng.integers(1, 30))
            pulse = 70 + 4 * visit * died + rng.normal(0, 3)
            pressure = "" if rng.random() < 0.3 else f"{rng.normal(125, 10):.0f}"
            where = ("north", "south")[patient % 4 // 2]
            lines.append(f"{patient},{day:g},{pulse:.0f},{pressure},{('no', 'yes')[died]},{where}")
    path.write_text("\n".join(lines) + "\n")
