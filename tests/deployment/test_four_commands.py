"""Split, simulate, coordinate and join as processes, each with one command: the deployed model is the simulated one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.cli.test_commands import as_json
from tests.medmnist_files import layout, saved
from wardround.deployment.flower.superlink import free_port

WAIT = 300


def started(folder: Path, name: str, *arguments: object) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "wardround.cli.main", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)


@pytest.mark.slow
def test_deployed_is_simulated_from_the_four_commands_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "cells.npz", layout("eight", times=10))
    as_json("data", "split", "--data", "cells.npz", "--sites", "2", "--out", "split")
    small = ("--set", "model.channels=[3, 4]", "--set", "model.hidden=8", "--set", "deployment.smallest_cell=5")
    run = as_json(
        "simulate", "--data", "split", "--mu", "0.1", "--rounds", "2", *small, "--output", "r.json", "--no-report"
    )
    out = ("--port", free_port(), "--out", "runs", "--no-report")
    processes = [started(tmp_path, "coordinate", "coordinate", "r.toml", *out)]
    try:
        kits = tmp_path / "split" / "kits" / "sites"
        while not (kits / "site-02" / "site.toml").is_file() and processes[0].poll() is None:
            time.sleep(0.2)
        sites = ("site-01", "site-02")
        processes += [started(tmp_path, name, "join", kits / name, "--approve", "Jo Meyer") for name in sites]
        assert processes[0].wait(WAIT) == 0, (tmp_path / "coordinate.log").read_text()
    finally:
        for process in processes:
            process.send_signal(signal.SIGINT)
        for process in processes:
            process.wait(30)
    simulated = Path(run["folder"])
    deployed = simulated.with_name(f"{simulated.name}-deployed")
    ours, theirs = (
        load_file(folder / "models" / "fedprox" / "seed-42.safetensors") for folder in (simulated, deployed)
    )
    assert ours.keys() == theirs.keys()
    for name, leaf in ours.items():
        np.testing.assert_array_equal(leaf, theirs[name], err_msg=name)
    assert "Jo Meyer" in (kits / "site-01" / "approved" / "approvals.jsonl").read_text()
