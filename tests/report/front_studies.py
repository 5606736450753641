"""Studies whose answer is known, for the pages that boards and hospitals read: rows in files."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

COLUMNS = 12
RUNS = {
    "gain": {},  # one truth everywhere, and few rows to learn it from alone
    "loss": {"turned": True, "patients": 240},  # in every second hospital the columns go the other way
    "fifty": {"hospitals": 50, "patients": 70},
    "one seed": {"seeds": 1, "patients": 90},
    "numbers": {"number": True},
    "nobody alone": {"alone": False},
}


def front_study(folder: Path, name: str) -> dict[str, Any]:
    return study_of(folder, name.replace(" ", "-"), **RUNS[name])  # type: ignore[arg-type]


def study_of(
    folder: Path,
    name: str,
    hospitals: int = 5,
    patients: int = 100,
    seeds: int = 8,
    turned: bool = False,
    number: bool = False,
    alone: bool = True,
) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    weights = rng.normal(size=COLUMNS) * 0.55
    files = {}
    for place in range(hospitals):
        x = rng.normal(size=(patients, COLUMNS))
        signal = x @ weights * (-1 if turned and place % 2 else 1)
        table = pd.DataFrame(x.round(4), columns=[f"lab_{number}" for number in range(COLUMNS)])
        table["sex"] = rng.choice(["female", "male"], size=patients)
        table["age"] = rng.integers(25, 90, size=patients)
        if number:
            table["stay"] = (8 + 2 * signal + rng.normal(size=patients)).round(3)
        else:
            table["died"] = (rng.random(patients) < 1 / (1 + np.exp(-1.6 * signal + 0.4))).astype(int)
        files[f"hospital-{place + 1:02}"] = str(folder / f"hospital-{place + 1:02}.csv")
        table.to_csv(folder / f"hospital-{place + 1:02}.csv", index=False)
    outcome: dict[str, Any] = {"target": "died"}
    if number:
        outcome = {"target": "stay", "task": {"kind": "regression", "unit": "days"}}
    accepted = {"accept": ["label-direction"]} if turned else {}
    arms = [{"algorithm": "fedavg"}, {"algorithm": "fedprox", "mu": 0.1}]
    return {
        "name": name,
        "question": "Is it worth our while to train together?",
        "data": {"source": "csv", "files": files, **outcome, "scale": "federated"},
        "training": {"rounds": 20, "local_epochs": 2, "lr": 0.1},
        "evaluation": {"seeds": {"first": 0, "count": seeds}, "vary": ["split", "batches"], **accepted},
        "arms": [*([{"algorithm": "local"}] if alone else []), *arms],
    }
