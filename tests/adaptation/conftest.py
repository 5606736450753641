"""A shared part of three real hospitals, made once for all tests of this folder, and the fourth as a newcomer."""

from pathlib import Path
from typing import Any

import pytest

from wardround.bundles import SharedPart, load_shared, make_shared
from wardround.runs.execute import run_study

OTHERS = ("cleveland", "hungarian", "switzerland")
NEW = "va"
MODEL = {"kind": "adapter", "latent": 5, "hidden": [7]}
SHARED = {"encoder.0.weight", "encoder.0.bias", "encoder.1.weight", "encoder.1.bias", "head.weight", "head.bias"}
PRIVATE = {"adapter.first.weight", "adapter.first.bias"}


def hearts(hospitals: tuple[str, ...] = OTHERS, **changes: Any) -> dict[str, Any]:
    study: dict[str, Any] = {
        "name": "hearts",
        "question": "Who has heart disease?",
        "data": {"source": "heart", "hospitals": list(hospitals), "schema": "own"},
        "model": MODEL,
        "training": {"rounds": 3, "local_epochs": 2, "batch_size": 32, "lr": 0.1},
        "evaluation": {"seeds": {"first": 5, "count": 2}, "validation_share": 0.2, "every": 0},
        "arms": [
            {"name": "fedavg", "algorithm": "fedavg"},
            {"name": "head", "algorithm": "fedavg", "model.head": "private"},
            {
                "name": "aligned",
                "algorithm": "fedprox",
                "model.align": "coral",
                "training.momentum": 0.9,
                "training.weight_decay": 0.1,
            },
            {"name": "local", "algorithm": "local"},
            {"name": "plain", "algorithm": "fedavg", "model": {"kind": "logistic"}, "data.schema": "common"},
        ],
    }
    return {**study, **changes}


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_study(hearts(), tmp_path_factory.mktemp("runs")).folder


@pytest.fixture(scope="session")
def shared(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nobody may change it."""
    return make_shared(run, arm="fedavg", out=tmp_path_factory.mktemp("shared") / "part")


@pytest.fixture(scope="session")
def part(shared: Path) -> SharedPart:
    return load_shared(shared)


@pytest.fixture(scope="session")
def hospital(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hospital_file(tmp_path_factory.mktemp("hospital") / "va.toml")


def hospital_file(path: Path, name: str = NEW, data: str = 'source = "heart"\nhospitals = ["va"]') -> Path:
    path.write_text(f'name = "{name}"\n\n[data]\n{data}\n', encoding="utf-8")
    return path
