"""Hospitals as DataFrames, with columns of the types that people have; and small studies of them."""

from typing import Any

import numpy as np
import pandas as pd

SMALL = {"training.rounds": 2, "training.local_epochs": 1, "evaluation.seeds.count": 2}


def hospital(rows: int, seed: int, classes: tuple[Any, Any] = (0, 1)) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.normal(60, 12, rows).round(1)
    ill = rng.random(rows) < 1 / (1 + np.exp(-(age - 60) / 8))
    return pd.DataFrame(
        {
            "patient": np.arange(rows) // 2,
            "age": age,
            "sex": pd.Categorical(rng.choice(["f", "m"], rows)),
            "visits": pd.Series(rng.integers(0, 9, rows), dtype="Int64").mask(rng.random(rows) < 0.2),
            "smokes": rng.random(rows) < 0.4,
            "died": np.where(ill, classes[1], classes[0]),
        }
    )


def hospitals(classes: tuple[Any, Any] = (0, 1)) -> dict[str, pd.DataFrame]:
    return {"north": hospital(160, 1, classes), "south": hospital(120, 2, classes)}


def study_of(files: dict[str, Any], **data: Any) -> dict[str, Any]:
    return {
        "name": "frames",
        "data": {"source": "csv", "files": files, "target": "died", "patient": "patient", **data},
        "training": {"rounds": 2},
        "evaluation": {"seeds": {"count": 2}, "validation_share": 0.2},
        "arms": [{"algorithm": "local"}, {"algorithm": "fedavg"}],
    }
