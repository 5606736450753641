"""Whether tuning is worth it: on test rows the choice is not below the settings that are written, beyond chance."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import wardround
from wardround.study import tuning_methods
from wardround.study.tuning_methods import Attempt, Task

LEVEL = 0.05


def differences(studies: int, out: Path, method: str = "random", lr: float = 0.1, kind: str = "mlp") -> np.ndarray:
    """Test AUC with tuning less without, one synthetic study each. `lr` is that which is written. Settings matter much
    to the network, and hardly to the logistic regression of sites that differ."""
    found = []
    for number in range(studies):
        iid, model = kind == "mlp", {"kind": "mlp", "hidden": [8]} if kind == "mlp" else {"kind": kind}
        data = {"count": 4, "features": 20, "classes": 5, "largest": 200, "iid": iid, "seed": number}
        study: dict[str, Any] = {
            "name": f"drawn-{number}",
            "data": {"source": "synthetic", **data},
            "model": model,
            "training": {"rounds": 8, "lr": lr},
            "evaluation": {"seeds": {"first": 1, "count": 1}, "validation_share": 0.25, "every": 0},
            "tuning": {
                "method": method,
                "budget": 5,
                "arms": ["tuned"],
                "metric": "auc",
                "space": {"training.lr": {"low": 0.001, "high": 3.0, "log": True}, "training.momentum": [0.0, 0.5]},
            },
            "arms": [{"name": "written", "algorithm": "fedavg"}, {"name": "tuned", "algorithm": "fedavg"}],
        }
        arms = wardround.run_study(study, out, workers=1).results["arms"]
        tuned, written = (arms[name]["metrics"]["auc"]["mean"] for name in ("tuned", "written"))
        found.append(tuned - written)
    return np.array(found)


def is_below(found: np.ndarray) -> bool:
    """Beyond chance, by a paired one-sided t-test."""
    return bool(stats.ttest_1samp(found, 0.0, alternative="less").pvalue < LEVEL)


def worst(task: Task, attempts: list[Attempt]) -> Attempt:
    return min((a for a in attempts if a.score is not None), key=lambda a: a.score or 0.0)


def test_a_poor_setting_is_left_for_a_better_one(tmp_path: Path) -> None:
    found = differences(3, tmp_path, lr=0.0001)  # as good as not trained
    assert found.mean() > 0.05, found


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mlp", "logistic"])
@pytest.mark.parametrize("method", tuning_methods.METHODS)
def test_the_choice_is_not_worse_in_twenty_studies(tmp_path: Path, method: str, kind: str) -> None:
    found = differences(20, tmp_path, method, kind=kind)
    assert not is_below(found), found


@pytest.mark.slow
def test_the_test_would_see_a_bad_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wardround.runs.tuning.tune.chosen", worst)
    assert is_below(differences(20, tmp_path))
