"""A study that starts from another run's weights: they are used, and they are part of the run's identity."""

from pathlib import Path
from typing import Any

import pytest
import torch

import wardround
from wardround.core.errors import RunError
from wardround.runs.catalog import load_study
from wardround.runs.folder import RunFolder
from wardround.runs.plan import load_plan
from wardround.training.rounds import first_weights


def study(**model: Any) -> dict[str, Any]:
    return {
        "name": "weights",
        "data": {"source": "phantom", "rows": 120, "size": 32, "scale": "image"},
        "sites": {"partition": "iid", "count": 2},
        "model": {"kind": "residual", "widths": [4, 8], **model},
        "training": {"rounds": 1, "lr": 0.01},
        "evaluation": {"seeds": {"first": 1, "count": 2}, "vary": ["init"]},
        "arms": [{"algorithm": "fedavg"}],
    }


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The weights of two seeds."""
    run = wardround.run_study(study(), tmp_path_factory.mktemp("first"))
    folder = run.folder / "models" / "fedavg"
    return folder / "seed-1.safetensors", folder / "seed-2.safetensors"


def test_a_saved_run_is_where_the_next_one_starts_but_for_its_head(saved: tuple[Path, Path]) -> None:
    parsed, families = load_study(study(weights=str(saved[0])))
    start, _ = first_weights(load_plan(parsed, families).trial(parsed.arms[0], 1))
    before = {
        name.removeprefix("server/params/"): leaf
        for name, leaf in RunFolder(saved[0].parents[2]).load_model("fedavg", 1).items()
    }
    shared_names = [name for name in start if torch.equal(start[name], before[name])]
    assert set(start) - set(shared_names) == {"head.weight", "head.bias"}


@pytest.mark.slow
def test_a_complete_run_with_other_weights_is_not_taken_for_this_one(saved: tuple[Path, Path], tmp_path: Path) -> None:
    first = wardround.run_study(study(weights=str(saved[0])), tmp_path)
    assert first.fresh
    assert not wardround.run_study(study(weights=str(saved[0])), tmp_path).fresh
    with pytest.raises(RunError, match="on other data"):  # the same study by its hash, which leaves paths out
        wardround.run_study(study(weights=str(saved[1])), tmp_path)
