"""Runs whose rows are images, small and quick, and their images as files."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from tests.radiographs import a_study, some_radiographs, source_of
from wardround.bundles import FinishedRun, open_finished_run
from wardround.core.threads import torch_threads
from wardround.data.records import Records
from wardround.runs.execute import run_study

NETWORK = {"kind": "cnn", "channels": [2, 3], "hidden": 8, "kernel": 3, "norm": "group", "dropout": 0.3}
PARTIES = {"radiology": ["image"], "records": ["age", "sex", "view"]}
REGIONS = {"east": ["hospital-0", "hospital-1"], "west": ["hospital-2"]}
ARMS: list[dict[str, Any]] = [
    {"name": "fedavg", "algorithm": "fedavg"},
    {"name": "local", "algorithm": "local", "model": {"kind": "logistic"}},
    {"name": "own-norms", "algorithm": "fedavg", "model": {**NETWORK, "norm": "fedbn"}, "data.scale": "none"},
    {
        "name": "regions",
        "algorithm": "fedavg",
        "topology": {"kind": "hierarchical", "regions": REGIONS, "regional_rounds": 2},
    },
    {
        "name": "vertical",
        "algorithm": "split",
        "model": {"kind": "joined", "embedding": 3, "hidden": 4, "absent": 0.2},
        "topology": {"kind": "vertical", "parties": PARTIES},
    },
]


def radiographs() -> Records:
    """Three hospitals; of a few patients the age is not known."""
    records = some_radiographs(patients=170, unknown=0.05)
    age = records.groups["age"].where(np.arange(len(records)) % 17 > 0)
    return Records(
        records.features,
        records.target,
        records.classes,
        records.hospital,
        patient=records.patient,
        groups=records.groups.assign(age=age),
    )


def garments() -> Records:
    """Three classes by where an image is bright."""
    rng = np.random.default_rng(3)
    label = rng.integers(0, 3, 240)
    images = rng.integers(0, 150, (240, 1, 6, 6))
    for row, class_number in enumerate(label):
        images[row, 0, 2 * class_number : 2 * class_number + 2] += 60
    hospital = np.array([f"shop-{number % 2}" for number in range(240)], dtype=object)
    return Records(images.astype(np.uint8), label, ("coat", "boot", "bag"), hospital)


def run_of(records: Records, folder: Path, **changes: Any) -> FinishedRun:
    """Trained and opened again."""
    document = a_study(**{"model": NETWORK, "training": {"rounds": 2, "local_epochs": 1, "lr": 0.1}, **changes})
    document["evaluation"] = {"seeds": {"count": 1}, "validation_share": 0.3, "test_share": 0.25, "every": 0}
    sources = source_of(records)
    with torch_threads(1):  # on a busy machine more of them only wait for each other
        run = run_study(document, folder, sources=sources, workers=1).folder
    return open_finished_run(run, sources=sources)


def as_files(records: Records, rows: np.ndarray, folder: Path) -> Path:
    """PNG files, and a table that lists them as a hospital would."""
    folder.mkdir()
    names = [f"{row:04}.png" for row in rows]
    for name, row in zip(names, rows, strict=True):
        Image.fromarray(np.asarray(records.features)[row, 0]).save(folder / name)
    group = records.groups.iloc[rows]
    table = pd.DataFrame(
        {
            "Image Index": names,
            "Patient ID": np.asarray(records.patient)[rows],
            "Patient Age": [None if np.isnan(age) else f"{age:.0f}Y" for age in group["age"]],
            "Patient Gender": [sex[0].upper() for sex in group["sex"]],
            "View Position": group["view"].str.lower().to_numpy(),
        }
    )
    table.to_csv(folder / "list.csv", index=False)
    return folder
