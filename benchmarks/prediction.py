"""How fast a bundle predicts a file, whether memory stays flat, and how long one row takes over HTTP.

`python -m benchmarks.prediction` trains a small heart study, makes a bundle, and writes 100,000 and 1,000,000 rows of
13 columns as CSV and as Parquet. Each file is predicted in a process of its own, which also tells its peak memory.
Beside it: pandas reads the whole file, and the Python call predicts it in memory. Seconds of both processors are told
too, because the machine may be shared.

`python -m benchmarks.prediction clients` asks `wardround serve` for one row at a time from 20 clients at once, for ten
seconds, and prints the percentiles of the answers' times. Clients and server share the machine.

`python -m benchmarks.prediction int8 FILE.npz` trains a network on the NIH's images at four sites and prints what eight
bits do to its bundle: size, time and what the primary metric loses.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.work import peak_megabytes

ROWS = (100_000, 1_000_000)
REQUESTS = 200
CLIENTS = 20
SECONDS = 10.0


def make_heart_bundle(folder: Path) -> Path:
    import wardround

    study = {
        "name": "speed",
        "data": {"source": "heart"},
        "sites": {"partition": "by-hospital"},
        "model": {"kind": "logistic"},
        "training": {"rounds": 10, "lr": 0.1, "batch_size": 32},
        "evaluation": {"validation_share": 0.2, "every": 0},
        "arms": [{"algorithm": "fedavg"}],
    }
    run = wardround.run_study(study, folder / "runs")
    return wardround.make_bundle(run.folder, arm="fedavg", site="cleveland", out=folder / "bundle")


def write_rows(folder: Path, rows: int) -> None:
    """Cleveland's patients again and again, with measurements moved a little so that they are not all the same."""
    from wardround.data.sources.heart import COLUMNS, read_hospital

    table = read_hospital("cleveland").drop(columns="num")
    rng = np.random.default_rng(0)
    many = table.iloc[rng.integers(0, len(table), rows)].reset_index(drop=True)
    for name, digits in (("age", 0), ("trestbps", 0), ("chol", 0), ("thalach", 0), ("oldpeak", 1)):
        many[name] = (many[name] + rng.normal(0, 2, rows)).round(digits)
    for column in COLUMNS:
        if column.kind == "categorical":
            many[column.name] = many[column.name].map(lambda code: str(int(code)), na_action="ignore").astype(object)
    many.to_csv(folder / f"{rows}.csv", index=False)
    many.to_parquet(folder / f"{rows}.parquet", index=False)


def predict(bundle: Path, data: Path) -> dict[str, float]:
    from wardround.bundles import load_bundle, predict_file

    loaded, before, used = load_bundle(bundle), peak_megabytes(), time.process_time()
    prediction = predict_file(loaded, data, data.with_name("out.csv"))
    used = time.process_time() - used
    return {
        "rows": prediction.rows,
        "seconds": prediction.seconds,
        "used": used,
        "megabytes": peak_megabytes(),
        "before": before,
    }


def in_memory(bundle: Path, data: Path) -> dict[str, float]:
    from wardround.bundles import load_bundle, predict_table

    loaded, before, used, began = load_bundle(bundle), peak_megabytes(), time.process_time(), time.perf_counter()
    table = pd.read_csv(data) if data.suffix == ".csv" else pd.read_parquet(data)
    predict_table(loaded, table).to_csv(data.with_name("out.csv"), index=False)
    seconds, used = time.perf_counter() - began, time.process_time() - used
    return {"rows": len(table), "seconds": seconds, "used": used, "megabytes": peak_megabytes(), "before": before}


@contextmanager
def served(bundle: Path) -> Iterator[tuple[str, Callable[[], float]]]:
    """The address at which a server in a process of its own answers, and its seconds of a processor so far."""
    command = [sys.executable, "-m", "wardround.cli.main", "serve", str(bundle), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            address = server.stderr.readline().rpartition(" answers at ")[2].strip()
            threading.Thread(target=server.stderr.read, daemon=True).start()  # a line for each answer: the pipe fills
            stat = Path(f"/proc/{server.pid}/stat")
            ticks = os.sysconf("SC_CLK_TCK")
            yield address, lambda: sum(map(int, stat.read_text().rpartition(")")[2].split()[11:13])) / ticks
        finally:
            server.kill()


def a_row(bundle: Path) -> dict[str, Any]:
    from wardround.bundles import load_bundle

    columns = load_bundle(bundle).recipe.columns
    return {column.own_name: None for column in columns} | {"age": 63, "cp": "1", "chol": 233}


def one_row(bundle: Path) -> list[float]:
    """Seconds of each of many requests with one row, from outside the process."""
    import httpx

    row, durations = a_row(bundle), []
    with served(bundle) as (address, _), httpx.Client(base_url=address, trust_env=False, timeout=60) as client:
        for _ in range(REQUESTS):
            began = time.perf_counter()
            client.post("/predict", json={"rows": [row]}).raise_for_status()
            durations.append(time.perf_counter() - began)
    return durations


def clients(bundle: Path) -> tuple[list[float], float]:
    """Seconds of each answer, and the server's seconds of a processor for all, while `CLIENTS` clients ask for one row
    after another. Each keeps its connection, and the clients are in one process of their own."""
    row = json.dumps({"rows": [a_row(bundle)]})
    with served(bundle) as (address, used):
        before = used()
        command = [sys.executable, "-m", "benchmarks.prediction", "asking", address, row]
        done = subprocess.run(command, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True, check=True)
        worked = used() - before
    return [float(value) for value in json.loads(done.stdout)], worked


async def asking(address: str, row: str) -> list[float]:
    import asyncio

    import httpx

    durations: list[float] = []
    until = time.perf_counter() + SECONDS

    async def client() -> None:
        async with httpx.AsyncClient(base_url=address, trust_env=False, timeout=60) as own:
            headers = {"content-type": "application/json"}
            while time.perf_counter() < until:
                began = time.perf_counter()
                (await own.post("/predict", content=row, headers=headers)).raise_for_status()
                durations.append(time.perf_counter() - began)

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return durations


def tell_clients() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        answers, worked = clients(make_heart_bundle(Path(temporary)))
    durations = 1000 * np.sort(answers)
    middle, high, highest = np.percentile(durations, [50, 95, 99])
    print(
        f"{CLIENTS} clients, one row each time: {len(durations) / SECONDS:,.0f} answers per second, median "
        f"{middle:.1f} ms, p95 {high:.1f} ms, p99 {highest:.1f} ms, slowest {durations[-1]:.1f} ms; "
        f"{1000 * worked / len(durations):.2f} ms of a processor for each"
    )


def tell_int8(path: Path, rounds: int = 2) -> None:
    import wardround
    from wardround.bundles import Int8, load_bundle
    from wardround.bundles.build.int8 import latencies

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        study = {
            "name": "edge",
            "data": {"source": "chest-xray", "path": str(path.resolve()), "size": 28, "cache": str(folder / "cache")},
            "sites": {"partition": "specialty", "count": 4, "richness": 0.7},
            "model": {"kind": "cnn", "channels": [32, 64], "hidden": 256, "kernel": 3, "norm": "group"},
            "training": {"rounds": rounds, "batch_size": 32, "lr": 0.05, "momentum": 0.9},
            "evaluation": {"split": "given", "validation_share": 0.1, "every": 0, "seeds": {"first": 42, "count": 1}},
            "arms": [{"algorithm": "fedavg"}],
        }
        run = wardround.run_study(study, folder / "runs")
        site = sorted(run.results["arms"]["fedavg"]["sites"])[0]
        for kind in ("dynamic", "static"):
            out = folder / kind
            asked = Int8(kind, 1.0)  # whatever it loses, to see how much
            wardround.make_bundle(run.folder, arm="fedavg", site=site, out=out, int8=asked)
            report, content = json.loads((out / "int8.json").read_bytes()), (out / "model-int8.onnx").read_bytes()
            took, size = latencies(load_bundle(out), content), report["bytes"]
            print(f"{kind}: {size['int8']:,} bytes in place of {size['float32']:,}; one image {took['int8']:.3f} ms "
                  f"in place of {took['float32']:.3f}")  # fmt: skip
            for subset in ("validation", "test"):
                told = report[subset]
                low, high = told["interval"]
                print(f"  {subset}: {report['metric']} loses {told['loss']:.5f} (95 % CI {low:.5f} to {high:.5f}) "
                      f"on {told['rows']} rows of {told['patients']} patients")  # fmt: skip


def child(way: str, bundle: Path, data: Path) -> Any:
    command = [sys.executable, "-m", "benchmarks.prediction", way, str(bundle), str(data)]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.partition("RESULT ")[2])


def main() -> None:
    if sys.argv[1:2] == ["clients"]:
        tell_clients()
        return
    if sys.argv[1:2] == ["int8"]:
        tell_int8(Path(sys.argv[2]))
        return
    if sys.argv[1:2] == ["asking"]:
        import asyncio

        print(json.dumps(asyncio.run(asking(sys.argv[2], sys.argv[3]))))
        return
    if len(sys.argv) > 1:
        way, bundle, data = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
        print("RESULT " + json.dumps((predict if way == "file" else in_memory)(bundle, data)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        bundle = make_heart_bundle(folder)
        for rows in ROWS:
            write_rows(folder, rows)
        for suffix in ("csv", "parquet"):
            measurements = [child("file", bundle, folder / f"{rows}.{suffix}") for rows in ROWS]
            for measurement in measurements:
                rate = measurement["rows"] / measurement["seconds"]
                speed = f"{rate:>9,.0f} rows/s, {measurement['used']:.2f} s of processors"
                memory = f"peak {measurement['megabytes']:.0f} MB, {measurement['before']:.0f} MB of it before data"
                print(f"{suffix:<8}{measurement['rows']:>10,} rows: {speed}, {memory}")
            beside = child("memory", bundle, folder / f"{ROWS[1]}.{suffix}")
            times = measurements[1]["rows"] / measurements[1]["seconds"] / (beside["rows"] / beside["seconds"])
            print(
                f"        pandas and the Python call: {beside['rows'] / beside['seconds']:,.0f} rows/s, "
                f"peak {beside['megabytes']:.0f} MB"
            )
            ratio, less = (measurements[1]["megabytes"] / other["megabytes"] for other in (measurements[0], beside))
            print(
                f"        memory ratio {ratio:.2f} for {ROWS[1] // ROWS[0]} times the rows; "
                f"{times:.1f} times the speed of pandas in {less:.2f} of its memory"
            )
        durations = sorted(one_row(bundle))
        print(
            f"one row over HTTP: median {1000 * statistics.median(durations):.1f} ms, "
            f"slowest of {len(durations)} {1000 * durations[-1]:.1f} ms"
        )


if __name__ == "__main__":
    main()
