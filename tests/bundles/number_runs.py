"""Runs that predict a number: length of stay in days, and a count of admissions with the months at risk."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from wardround.bundles import FinishedRun, open_finished_run
from wardround.runs.execute import run_study

SITES = {"north": 150, "south": 130}
STAY: dict[str, Any] = {"kind": "regression", "unit": "days"}
ADMISSIONS: dict[str, Any] = {"kind": "count", "exposure": "months"}


def patients(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age, crp = rng.integers(20, 95, rows), rng.gamma(2, 20, rows).round(1)
    ward = rng.choice(["surgery", "medicine"], rows)
    months = rng.integers(1, 25, rows)
    table = pd.DataFrame(
        {
            "patient": np.arange(rows),
            "age": np.where(rng.random(rows) < 0.05, np.nan, age),
            "crp": crp,
            "ward": ward,
            "stay": (2 + 0.06 * age + 0.03 * crp + 2 * (ward == "surgery") + rng.gamma(2, 1.0, rows)).round(2),
            "admissions": rng.poisson(np.exp(-4 + 0.02 * age + 0.01 * crp) * months),
            "months": months,
        }
    )
    table.loc[table.index[:2], "ward"] = None
    return table


def write_files(folder: Path, sites: dict[str, int] | None = None) -> dict[str, str]:
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for seed, (site, rows) in enumerate((sites or SITES).items()):
        patients(rows, seed).to_csv(folder / f"{site}.csv", index=False)
        files[site] = str(folder / f"{site}.csv")
    return files


def number_study(folder: Path, task: dict[str, Any], **changes: Any) -> dict[str, Any]:
    stay = task["kind"] == "regression"
    ignored = ("admissions", "months") if stay else ("stay",)
    study: dict[str, Any] = {
        "name": "stays" if stay else "admissions",
        "question": "How long, how often?",
        "data": {
            "source": "csv",
            "files": write_files(folder / "files"),
            "target": "stay" if stay else "admissions",
            "patient": "patient",
            "task": task,
            "types": dict.fromkeys(ignored, "ignore"),
        },
        "sites": {"partition": "by-hospital"},
        "training": {"rounds": 8, "local_epochs": 2, "batch_size": 32, "lr": 0.1},
        "evaluation": {"seeds": {"first": 1, "count": 2}, "validation_share": 0.25, "every": 0},
        "arms": [{"name": "fedavg", "algorithm": "fedavg"}, {"name": "local", "algorithm": "local"}],
    }
    return {**study, **changes}


def number_run(folder: Path, task: dict[str, Any], **changes: Any) -> FinishedRun:
    return open_finished_run(run_study(number_study(folder, task, **changes), folder / "runs", workers=1).folder)


def outcome_study(folder: Path, **changes: Any) -> dict[str, Any]:
    """One model for a stay, a class of two, another class of two, and a count."""
    study = number_study(folder, STAY)
    files = study["data"]["files"]
    for path in files.values():
        table = pd.read_csv(path)
        table["long"] = np.where(table["stay"] > 9, "yes", "no")
        frail = table["age"].fillna(50) + np.random.default_rng(len(table)).normal(0, 20, len(table))
        table["frail"] = np.where(frail > 60, "yes", "no")
        table.to_csv(path, index=False)
    data = {key: value for key, value in study["data"].items() if key not in ("target", "task", "types")}
    data |= {
        "outcomes": ["stay", "long", "frail", "admissions"],
        "task": {"stay": STAY, "admissions": ADMISSIONS},
    }
    return {**study, "name": "together", "data": data, "model": {"kind": "mlp", "hidden": [8]}, **changes}
