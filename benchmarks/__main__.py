"""`python -m benchmarks [--json FILE] [--works W1,W4] [--contenders stacked,tight] [--repeats 3]`: table and ratios."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.profile import profile_stack
from benchmarks.work import FASHION, WORKS, Work, write_data

ROOT = Path(__file__).parents[1]
# Each peer has an environment of its own, because they ask for other versions of the same packages.
PEERS = {"flower": ".venv-flower", "pfl": ".venv-pfl", "nvflare": ".venv-nvflare"}
CONTENDERS = ("stacked", "serial", "tight", "plain", *PEERS)
# rounds that are measured; the whole of a long work would only repeat them
MOST_ROUNDS = {
    ("W3", "stacked"): 0,
    ("W6", "stacked"): 0,
    ("W5-1024", "plain"): 4,
    ("W5-1024", "tight"): 6,
    ("W5-1024", "serial"): 6,
    ("W2", "serial"): 0,
    ("W2", "tight"): 10,
    ("W2", "plain"): 10,
    ("W4", "flower"): 4,
    ("W4", "nvflare"): 0,
    ("W3", "nvflare"): 3,
    ("W1", "nvflare"): 8,
}


@dataclass(frozen=True)
class Measured:
    work: str
    contender: str
    per_round: float  # seconds, median over rounds after the first and over repeats; for one run of W2
    accuracy: float
    megabytes: float


def python_of(peer: str) -> Path:
    return ROOT / PEERS[peer] / "bin" / "python"


def measure(work: Work, contender: str, data: Path, repeats: int) -> Measured | None:
    most = MOST_ROUNDS.get((work.name, contender), work.rounds)
    peer = contender in PEERS
    if not most or (peer and (not python_of(contender).exists() or work.name.startswith(("W2", "W5")))):
        return None
    runs = [_run(contender, data, most) for _ in range(1 if peer else repeats)]
    per_round = statistics.median(statistics.median(run["seconds"][1:]) / run.get("runs", 1) for run in runs)
    megabytes = max(run["megabytes"] for run in runs)
    return Measured(work.name, contender, per_round, runs[0]["accuracy"], megabytes)


def _run(contender: str, data: Path, most: int) -> Any:
    command = [sys.executable, "-m", "benchmarks.one", contender, str(data), str(most)]
    if contender in PEERS:
        command = [str(python_of(contender)), "-m", f"benchmarks.{contender}", str(most)]
    environment = {**os.environ, "BENCH_DATA": str(data), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1800)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        raise RuntimeError(f"{contender} on {data.stem} gave no result:\n{done.stderr[-2000:]}")
    return json.loads(lines[-1].removeprefix("RESULT "))


def tables(measured: list[Measured]) -> Iterator[Table]:
    for name, work in WORKS.items():
        rows = [measurement for measurement in measured if measurement.work == name]
        if not rows:
            continue
        best = min(measurement.per_round for measurement in rows if measurement.contender in ("stacked", "serial"))
        table = Table(title=f"{name}: {work.title}", title_justify="left")
        for heading in ("contender", "ms per round", "times ours", "accuracy", "peak MB"):
            table.add_column(heading, justify="left" if heading == "contender" else "right")
        for measurement in rows:
            table.add_row(
                measurement.contender,
                f"{1000 * measurement.per_round:.2f}",
                f"{measurement.per_round / best:.1f}",
                f"{measurement.accuracy:.3f}",
                f"{measurement.megabytes:.0f}",
            )
        yield table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--works", default=",".join(WORKS))
    parser.add_argument("--contenders", default=",".join(CONTENDERS))
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    out, measured = Console(width=100), list[Measured]()
    with tempfile.TemporaryDirectory() as folder:
        for work in (WORKS[name] for name in options.works.split(",")):
            if work.network == "cnn" and not FASHION.is_dir():
                out.print(f"{work.name} is left out: Fashion-MNIST is not on this machine")
                continue
            data = Path(folder) / f"{work.name}.npz"
            write_data(work, data)
            for contender in options.contenders.split(","):
                try:
                    measurement = measure(work, contender, data, options.repeats)
                except (RuntimeError, subprocess.TimeoutExpired) as error:
                    if contender not in PEERS:
                        raise
                    out.print(f"{contender} failed on {work.name}: {str(error).splitlines()[0]}")
                    continue
                if measurement is not None:
                    measured.append(measurement)
    for table in tables(measured):
        out.print(table)
    absent = [peer for peer in PEERS if not python_of(peer).exists()]
    if absent:
        out.print(f"Left out, because not installed: {', '.join(absent)} (`make bench-peers` installs them)")
    shares = profile_stack(WORKS["W1"])
    out.print("Where a stacked W1 round goes: " + ", ".join(f"{name} {share:.0%}" for name, share in shares.items()))
    if options.json:
        options.json.write_text(
            json.dumps({"measured": [vars(measurement) for measurement in measured], "profile": shares}, indent=2)
        )


if __name__ == "__main__":
    main()
