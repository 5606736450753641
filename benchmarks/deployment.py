"""A round across four hospitals on this machine, beside stock Flower: seconds, and memory over rounds.

`python -m benchmarks.deployment [small|large|memory ...]` (`make bench-deployment`): 14 parameters, 25 million, and the
coordinator's memory over 100 rounds. Both are run one after the other in one go; believe the ratio. Stock Flower is
`flower-superlink`, four `flower-supernode` and `flwr run`, without TLS and keys, with an app that trains nothing; ours
has TLS, keys, signatures, audit logs and checkpoints, and takes one step of SGD.
"""

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from wardround.deployment import SiteFile, approve, deployed_folder, provision
from wardround.deployment.demo import prepare_site, started
from wardround.deployment.flower.superlink import free_port
from wardround.runs.catalog import load_study

HOSPITALS = ["cleveland", "hungarian", "switzerland", "va"]
BIN = Path(sys.executable).parent
MODELS: dict[str, dict[str, Any]] = {
    "14 parameters": {"kind": "logistic"},
    "25 M parameters": {"kind": "mlp", "hidden": [5000, 4985]},
}
SIZES = {"14 parameters": 14, "25 M parameters": 25_000_000}


def study(model: dict[str, Any], rounds: int) -> dict[str, Any]:
    return {
        "name": "bench",
        "data": {"source": "heart", "hospitals": HOSPITALS, "categories": "codes", "indicator": False},
        "model": model,
        "training": {"rounds": rounds, "batch_size": 1024, "lr": 0.01},
        # few rows: it is not training that is measured; one model, as stock Flower has
        "evaluation": {"every": 0, "test_share": 0.7, "seeds": {"first": 42, "count": 1}},
        "arms": [{"name": "fedprox", "algorithm": "fedprox", "mu": 0.1}],
    }


def ours(model: dict[str, Any], rounds: int, folder: Path) -> dict[str, Any]:
    """Seconds of each round, and memory of coordinator and SuperLink after each."""
    import tomli_w

    document = study(model, rounds)
    folder.mkdir()
    path = folder / "study.toml"
    path.write_text(tomli_w.dumps(document), encoding="utf-8")
    parsed, _ = load_study(path)
    provision(parsed, HOSPITALS, folder / "kits", port=free_port())
    for name in HOSPITALS:
        prepare_site(folder / "kits" / "sites" / name, f'source = "heart"\nhospitals = ["{name}"]\n')
        approve(SiteFile.load(folder / "kits" / "sites" / name), parsed, "benchmark")
    run = deployed_folder(parsed, folder / "runs")
    kit, runs = str(folder / "kits" / "coordinator"), str(folder / "runs")
    commands = [["coordinate", str(path), "--kit", kit, "--out", runs, "--no-report"]]
    commands += [["join", str(folder / "kits" / "sites" / name / "site.toml")] for name in HOSPITALS]
    memory: dict[str, list[float]] = {"coordinator": [], "superlink": []}
    with started(commands, folder) as processes:
        closed = 0
        while processes[0].poll() is None:
            time.sleep(0.05)
            seen = _rounds_closed(run.path / "audit.jsonl")
            if seen > closed:
                closed = seen
                memory["coordinator"].append(megabytes(processes[0].pid))
                memory["superlink"].append(sum(map(megabytes, children(processes[0].pid))))
        if processes[0].returncode:
            raise SystemExit((folder / "coordinate.log").read_text(encoding="utf-8"))
    entries = [json.loads(line) for line in (run.path / "audit.jsonl").read_text(encoding="utf-8").splitlines()]
    times = [entry["time"] for entry in entries if entry["event"] == "round closed"]
    return {"seconds": gaps(times), "memory": memory}


def _rounds_closed(log: Path) -> int:
    return log.read_text(encoding="utf-8").count('"round closed"') if log.is_file() else 0


def gaps(times: Sequence[str]) -> list[float]:
    return [(datetime.fromisoformat(b) - datetime.fromisoformat(a)).total_seconds() for a, b in pairwise(times)]


def megabytes(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0.0
    memory_match = re.search(r"VmRSS:\s+(\d+)", status)
    return int(memory_match[1]) / 1024 if memory_match else 0.0


def children(pid: int) -> list[int]:
    try:
        return [
            int(child_pid) for child_pid in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
        ]
    except OSError:
        return []


APP = """
import time
import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

client = ClientApp()
server = ServerApp()

@client.train()
def train(message, context):
    arrays = message.content["arrays"]
    changed = ArrayRecord({name: Array(array.numpy() + 1) for name, array in arrays.items()})
    return Message(RecordDict({"arrays": changed, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

class Timed(FedAvg):
    def configure_train(self, server_round, arrays, config, grid):
        print(f"ROUND {time.time()}", flush=True)
        return super().configure_train(server_round, arrays, config, grid)

@server.main()
def main(grid: Grid, context: Context):
    arrays = ArrayRecord({"w": Array(np.zeros(SIZE, dtype=np.float32))})
    strategy = Timed(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=4, min_available_nodes=4)
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=ROUNDS)
    print(f"ROUND {time.time()}", flush=True)
"""
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "stock"
version = "1.0.0"
description = ""
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "bench"
[tool.flwr.app.components]
serverapp = "stock.app:server"
clientapp = "stock.app:client"
[tool.flwr.app.config]
"""


def stock(size: int, rounds: int, folder: Path) -> list[float]:
    """Seconds of each round of Flower as it comes."""
    project = folder / "stock"
    (project / "stock").mkdir(parents=True)
    (project / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    (project / "stock" / "__init__.py").touch()
    text = APP.replace("SIZE", str(size)).replace("ROUNDS", str(rounds))
    (project / "stock" / "app.py").write_text(text, encoding="utf-8")
    home = folder / "home"
    home.mkdir()
    port = free_port()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "local"\n[superlink.local]\naddress = "127.0.0.1:{port}"\ninsecure = true\n',
        encoding="utf-8",
    )
    environment = {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    }
    with stock_processes(port, folder, environment):
        done = subprocess.run(
            [str(BIN / "flwr"), "run", str(project), "local", "--stream"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
    everything = done.stdout + done.stderr + "".join(p.read_text(errors="replace") for p in folder.glob("*.log"))
    marks = sorted({float(mark) for mark in re.findall(r"ROUND (\d+\.\d+)", everything)})
    if len(marks) != rounds + 1:
        raise SystemExit(f"stock Flower did not finish:\n{everything[-3000:]}")
    return [b - a for a, b in pairwise(marks)]


@contextmanager
def stock_processes(port: int, folder: Path, environment: dict[str, str]) -> Iterator[None]:
    commands = [["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port)]]
    for _ in range(4):
        commands.append(
            ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}", "--port", str(free_port())]
        )
    running = []
    try:
        for number, command in enumerate(commands):
            with (folder / f"stock-{number}.log").open("wb") as log:
                running.append(
                    subprocess.Popen(
                        [str(BIN / command[0]), *command[1:]],
                        env=environment,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                )
            time.sleep(3 if number == 0 else 0.2)
        time.sleep(2)
        yield
    finally:
        for process in running:
            os.killpg(process.pid, signal.SIGTERM)
        for process in running:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def compare(name: str, rounds: int) -> None:
    with TemporaryDirectory(prefix="wardround-bench-") as temporary:
        folder = Path(temporary)
        mine = ours(MODELS[name], rounds + 1, folder / "ours")
        theirs = stock(SIZES[name], rounds, folder)[1:]
    fast, slow = statistics.median(mine["seconds"]), statistics.median(theirs)
    print(f"{name}, 4 sites, median of {rounds} rounds after the first")
    print(f"  ours          {fast:6.2f} s   (slowest {max(mine['seconds']):.2f})")
    print(f"  stock Flower  {slow:6.2f} s   (slowest {max(theirs):.2f})   {slow / fast:.1f} x")
    for what, line in mine["memory"].items():
        print(f"  memory of our {what}: {max(line):,.0f} MB at most, {line[-1]:,.0f} MB in the end")


def memory(rounds: int = 100) -> None:
    with TemporaryDirectory(prefix="wardround-bench-") as temporary:
        usage = ours(MODELS["14 parameters"], rounds, Path(temporary) / "ours")["memory"]
    for what, line in usage.items():
        early, late = statistics.median(line[5:15]), statistics.median(line[-10:])
        print(f"{what}, {rounds} rounds: {early:,.1f} MB after 10, {late:,.1f} MB in the end ({late - early:+.1f} MB)")


def main() -> None:
    chosen = sys.argv[1:] or ["small", "large", "memory"]
    if "small" in chosen:
        compare("14 parameters", 10)
    if "large" in chosen:
        compare("25 M parameters", 5)
    if "memory" in chosen:
        memory()


if __name__ == "__main__":
    main()
