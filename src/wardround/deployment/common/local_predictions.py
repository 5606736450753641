"""A hospital's own predictions and thresholds: files of a run that never leave it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from wardround.evaluation.prediction import SitePrediction
from wardround.runs.folder import RunFolder
from wardround.runs.prediction_tables import prediction_table

Trials = Sequence[tuple[str, int]]  # arm and seed of each


def keep_predictions(
    folder: Path,
    wave: int,
    trials: Trials,
    predictions: Sequence[SitePrediction],
    thresholds: Sequence[np.ndarray | None],
) -> None:
    """Predictions of a wave's trials on test rows. `thresholds` are those of the positive class or of findings."""
    if not predictions:
        return
    run, file = RunFolder(folder), f"wave-{wave:05}.parquet"
    run.write_table(f"predictions/{file}", prediction_table(trials, [[part] for part in predictions]))
    chosen = [(trial, cut) for trial, cut in zip(trials, thresholds, strict=True) if cut is not None]
    if chosen:
        columns = predictions[0].task.label_columns()
        table = pd.DataFrame(np.stack([cut for _, cut in chosen]), columns=columns)
        table.insert(0, "seed", [seed for (_, seed), _ in chosen])
        table.insert(0, "arm", [arm for (arm, _), _ in chosen])
        run.write_table(f"thresholds/{file}", table)


def load_predictions(folder: Path) -> pd.DataFrame | None:
    return _read(folder / "predictions")


def load_thresholds(folder: Path) -> pd.DataFrame | None:
    """In the form of `evaluation.thresholds.choose_thresholds`: by arm and seed, for each finding."""
    table = _read(folder / "thresholds")
    return None if table is None else table.set_index(["arm", "seed"])


def _read(folder: Path) -> pd.DataFrame | None:
    parts = sorted(folder.glob("*.parquet"))
    return pd.concat([pd.read_parquet(part) for part in parts], ignore_index=True) if parts else None
