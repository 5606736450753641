"""Runs to make bundles from, made once for all tests of this folder."""

from pathlib import Path
from typing import Any

import pytest

from wardround.bundles import Bundle, FinishedRun, load_bundle, make_bundle, open_finished_run
from wardround.runs.execute import run_study

SITES = ("cleveland", "hungarian", "switzerland", "va")
ARMS: dict[str, dict[str, Any]] = {
    "fedavg": {"algorithm": "fedavg"},
    "local": {"algorithm": "local"},
    "pooled": {"algorithm": "pooled"},
    "clustered": {"algorithm": "clustered"},
    "intercepts": {"algorithm": "fedavg", "model.intercept": "private"},
    "newcomer": {"algorithm": "fedavg", "train_at": ["cleveland", "hungarian", "va"]},
    "exact": {"algorithm": "fedprox", "training.precision": "float64"},
    "network": {"algorithm": "scaffold", "model": {"kind": "mlp", "hidden": [8], "dropout": 0.2}},
}


def hearts(**changes: Any) -> dict[str, Any]:
    study: dict[str, Any] = {
        "name": "hearts",
        "question": "Who has heart disease?",
        "data": {"source": "heart"},
        "sites": {"partition": "by-hospital"},
        "model": {"kind": "logistic", "l2": 0.01},
        "training": {"rounds": 4, "local_epochs": 1, "batch_size": 32, "lr": 0.3},
        "evaluation": {"seeds": {"first": 1, "count": 2}, "validation_share": 0.2, "every": 0},
        "arms": [{"name": name, **arm} for name, arm in ARMS.items()],
    }
    return {**study, **changes}


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four real hospitals, two seeds, an arm of every kind."""
    return run_study(hearts(), tmp_path_factory.mktemp("runs")).folder


@pytest.fixture(scope="session")
def finished(run: Path) -> FinishedRun:
    """The same run with its rows, for many bundles."""
    return open_finished_run(run)


@pytest.fixture(scope="session")
def heart_bundle(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nobody may change it."""
    return make_bundle(run, arm="fedavg", site="cleveland", out=tmp_path_factory.mktemp("bundles") / "cleveland")


@pytest.fixture(scope="session")
def bundle(heart_bundle: Path) -> Bundle:
    return load_bundle(heart_bundle)
