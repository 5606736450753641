"""Hospitals with ECGs of their own devices: deployed as simulated, to the last bit."""

from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.deployment.in_process_federation import federation, kind_of
from tests.deployment.parity import assert_parity
from wardround.core.errors import DeployError
from wardround.core.threads import torch_threads
from wardround.data.records import Records
from wardround.data.sources import SOURCES, Source

NAMES = ("synthetic-1", "synthetic-2", "synthetic-3")
DATA = {"source": "synthetic-ecg", "rows": 300, "hospitals": 3, "seconds": 4, "rate": 50, "skew": 0.0}
CNN = {"kind": "cnn1d", "widths": [4, 8], "dropout": 0.2}
GRU = {"kind": "gru", "hidden": 6, "window": 10}


@lru_cache(maxsize=1)
def everywhere() -> Records:
    settings = {key: value for key, value in DATA.items() if key != "source"}
    return SOURCES["synthetic-ecg"](**settings).load()


def own(name: str) -> Source:
    return Source(lambda: everywhere().take(np.flatnonzero(everywhere().hospital == name)))


def at_sites() -> dict[str, Callable[[], Source]]:
    return {name: partial(own, name) for name in NAMES}


def study(**changes: Any) -> dict[str, Any]:
    return {
        "name": "rhythms",
        "question": "Does a deployment learn what a simulation does?",
        "data": DATA,
        "model": CNN,
        "training": {"rounds": 2, "batch_size": 16, "lr": 0.05, "optimiser": "adam"},
        "evaluation": {"seeds": {"first": 1, "count": 1}, "test_share": 0.25},
        "deployment": {"smallest_cell": 1},
        "arms": [{"algorithm": "fedavg"}],
        **changes,
    }


@pytest.mark.parametrize("scale", ["per-site", "record"])
def test_a_deployment_of_signals_is_its_simulation(tmp_path: Path, scale: str) -> None:
    """Gaps, short recordings and a hospital without the first lead among them. Bit for bit, on one thread."""
    arms = [{"algorithm": "fedavg"}, {"algorithm": "fedprox", "mu": 0.1}, {"algorithm": "local"}]
    arms += [{"name": "recurrent", "algorithm": "fedavg", "model": GRU}]
    with torch_threads(1):
        both = assert_parity(study(arms=arms, data={**DATA, "scale": scale}), tmp_path, at_sites())
    assert {"hello", "train"} & {kind_of(sealed) for _, sealed, _ in both.deployed.transport.carried}


@pytest.mark.slow
def test_private_and_masked_updates_of_signals_too(tmp_path: Path) -> None:
    privacy: dict[str, Any] = {"secure_sum": {}}
    with torch_threads(1):
        assert_parity(study(privacy=privacy), tmp_path, at_sites())


def test_a_scale_of_all_hospitals_together_is_refused_across_hospitals(tmp_path: Path) -> None:
    with pytest.raises(DeployError, match="the size of all hospitals' signals together is not exchanged"):
        federation(study(data={**DATA, "scale": "federated"}), tmp_path, at_sites()).run()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"leads": ["II", "I"]}, "this hospital's channels are I, II, and the study's II, I"),
        ({"rate": 100, "seconds": 4}, "come at 50 samples a second, and the study's at 100"),
    ],
)
def test_a_hospital_with_other_channels_or_another_rate_is_refused(
    tmp_path: Path, change: dict[str, Any], problem: str
) -> None:
    with pytest.raises(DeployError, match=problem):
        federation(study(data={**DATA, **change}), tmp_path, at_sites()).run()
