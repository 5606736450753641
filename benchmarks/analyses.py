"""How long analyses over hospitals take, and whether intervals cover: `python -m benchmarks.analyses`.

speed       a regression of 20 columns, 10 hospitals of 100,000 rows each, simulated, without and with a secure sum
deployed    the same across 11 processes on this machine, from the first question to the result
table       Table 1 of 10 hospitals of as many rows: six columns, by an outcome
coverage    2,000 simulated studies of each family: how often the 95 % interval of a coefficient has the true one
"""

import argparse
import json
import os
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

from wardround.analyses.agreement import schema_of
from wardround.analyses.analysis import Analysis
from wardround.analyses.conduct import Terms, conduct
from wardround.analyses.glm.glm import Glm
from wardround.analyses.site_rows import SiteRows
from wardround.analyses.table_one.table_one import TableOne
from wardround.core.seeds import generator
from wardround.data.records import Column
from wardround.study.schema import SecureSum

FAMILIES = ("gaussian", "logistic", "poisson", "negative-binomial")
DISPERSION = 0.5
TRUE = (0.3, 0.4, -0.3)  # intercept, x01, x02


def result_of(analysis: Analysis, terms: Terms, columns: list[Column], sites: Mapping[str, SiteRows]) -> dict[str, Any]:
    steps = conduct(analysis, terms, schema_of(columns), sites)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return dict(end.value)


def outcome_of(family: str, eta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if family == "gaussian":
        return np.asarray(eta + rng.normal(size=len(eta)))
    if family == "logistic":
        return np.asarray(rng.random(len(eta)) < 1 / (1 + np.exp(-eta)), dtype=float)
    mean = np.exp(eta)
    if family == "poisson":
        return np.asarray(rng.poisson(mean), dtype=float)
    return np.asarray(rng.negative_binomial(1 / DISPERSION, 1 / (1 + DISPERSION * mean)), dtype=float)


def wide_hospitals(rows: int, hospitals: int, width: int) -> dict[str, pd.DataFrame]:
    sites = {}
    for number in range(hospitals):
        rng = generator(1, "rows of a benchmark", site=str(number))
        frame = pd.DataFrame(rng.normal(size=(rows, width)), columns=[f"x{column:02}" for column in range(width)])
        eta = 0.1 * frame.to_numpy().sum(axis=1) - 0.5
        sites[f"h{number:02}"] = frame.assign(y=outcome_of("logistic", eta, rng))
    return sites


def formula_of(width: int) -> str:
    return f"y ~ {' + '.join(f'x{column:02}' for column in range(width))}"


def speed(sites: Mapping[str, pd.DataFrame], width: int) -> dict[str, float]:
    columns = [Column(str(name)) for name in next(iter(sites.values()))]
    glm = Glm(formula=formula_of(width), family="logistic")
    taken = {}
    for title, secure in (("open", None), ("secure sum", SecureSum())):
        own = {site: SiteRows(site, frame, np.arange(len(frame))) for site, frame in sites.items()}
        began, used = time.perf_counter(), time.process_time()
        result_of(glm, Terms("speed", secure=secure), columns, own)
        taken[title] = time.perf_counter() - began
        taken[f"{title}, of the processor"] = time.process_time() - used  # where others use the machine too
    return taken


def deployed(sites: Mapping[str, pd.DataFrame], width: int, secure: bool) -> dict[str, float]:
    """Each hospital is a process with its own CSV file. Starting eleven processes, which import, read their files and
    connect, is not the analysis: the time is from the moment that all have joined to the result."""
    import tomli_w

    from wardround.deployment import SiteFile, approve, deployed_folder, provision
    from wardround.deployment.demo import prepare_site, started
    from wardround.deployment.flower.superlink import free_port
    from wardround.runs.catalog import load_study

    document = {
        "name": "bench",
        "question": "How long does a regression take?",
        "data": {"source": "csv", "files": {name: f"{name}.csv" for name in sites}},
        "analyses": [{"name": "effect", "kind": "glm", "family": "logistic", "formula": formula_of(width)}],
        **({"privacy": {"secure_sum": {}}} if secure else {}),
    }
    with TemporaryDirectory(prefix="wardround-bench-") as temporary:
        folder = Path(temporary)
        path = folder / "study.toml"
        path.write_text(tomli_w.dumps(document), encoding="utf-8")
        study, _ = load_study(path)
        provision(study, list(sites), folder / "kits", port=free_port())
        for name, frame in sites.items():
            frame.to_csv(folder / f"{name}.csv", index=False, float_format="%.6g")
            prepare_site(folder / "kits" / "sites" / name, f'source = "csv"\nfile = "{folder / name}.csv"\n')
            approve(SiteFile.load(folder / "kits" / "sites" / name), study, "benchmark")
        log = deployed_folder(study, folder / "runs").path / "audit.jsonl"
        kit, out = str(folder / "kits" / "coordinator"), str(folder / "runs")
        commands = [["coordinate", str(path), "--kit", kit, "--out", out, "--no-report"]]
        commands += [["join", str(folder / "kits" / "sites" / name / "site.toml")] for name in sites]
        used: list[float] = []
        with started(commands, folder) as processes:
            while processes[0].poll() is None:
                time.sleep(0.05)
                if log.is_file() and log.read_text(encoding="utf-8").count('"site joined"') == len(sites):
                    used.append(sum(processor_seconds(process.pid) for process in processes))
            if processes[0].returncode:
                raise SystemExit((folder / "coordinate.log").read_text(encoding="utf-8"))
        entries = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    times = {entry["event"]: datetime.fromisoformat(entry["time"]) for entry in entries}  # the last of each
    title = "secure sum" if secure else "open"
    return {
        f"{title}, deployed": (times["run finished"] - times["site joined"]).total_seconds(),
        f"{title}, deployed, of all processors": max(used) - used[0],
    }


def processor_seconds(pid: int) -> float:
    """Of a process and of those that it started."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    except OSError:
        return 0.0
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(processor_seconds(int(child)) for child in children)


def table(rows: int, hospitals: int) -> dict[str, float]:
    numbers, levels = ("age", "stay", "score"), ("f", "m")
    columns = [*(Column(name, limits=(-1000, 1000)) for name in numbers), Column("died", limits=(0, 1))]
    columns += [Column("sex", "categorical", levels=levels), Column("ward", "categorical")]
    sites = {}
    for number in range(hospitals):
        rng = generator(2, "rows of a benchmark", site=str(number))
        frame = pd.DataFrame(rng.normal(50, 15, size=(rows, len(numbers))), columns=list(numbers))
        frame = frame.where(rng.random(frame.shape) > 0.02)
        frame["died"] = (rng.random(rows) < 0.1).astype(float)
        frame["sex"] = rng.choice(levels, rows)
        frame["ward"] = rng.choice(["medical", "surgical", "intensive", "other"], rows)
        sites[f"h{number:02}"] = SiteRows(f"h{number:02}", frame, np.arange(rows))
    began, used = time.perf_counter(), time.process_time()
    result_of(TableOne(by="died"), Terms("table"), columns, sites)
    return {"open": time.perf_counter() - began, "open, of the processor": time.process_time() - used}


def coverage(family: str, studies: int, rows: int = 200, hospitals: int = 3) -> dict[str, float]:
    columns, names = [Column("x01"), Column("x02"), Column("y")], ("Intercept", "x01", "x02")
    glm = Glm(formula="y ~ x01 + x02", family=family, dispersion=DISPERSION if family == "negative-binomial" else None)  # type: ignore[arg-type]
    covered = np.zeros(len(TRUE))
    for study in range(studies):
        rng = generator(study, f"coverage {family}")
        sites = {}
        for number in range(hospitals):
            x = rng.normal(size=(rows, 2))
            y = outcome_of(family, TRUE[0] + x @ np.array(TRUE[1:]), rng)
            frame = pd.DataFrame({"x01": x[:, 0], "x02": x[:, 1], "y": y})
            sites[f"h{number}"] = SiteRows(f"h{number}", frame, np.arange(rows))
        terms = result_of(glm, Terms("coverage"), columns, sites)["terms"]
        ends = [terms[name]["ci"] for name in names]
        covered += [low <= true <= high for (low, high), true in zip(ends, TRUE, strict=True)]
    return {name: float(share) for name, share in zip(names, covered / studies, strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=2000, help="of each family; 0: none")
    parser.add_argument("--rows", type=int, default=100_000, help="of each hospital; 0: none")
    given = parser.parse_args()
    measured: dict[str, Any] = {}
    if given.rows:
        hospitals = wide_hospitals(given.rows, 10, 20)
        measured["regression, seconds"] = speed(hospitals, 20)
        for secure in (False, True):
            measured["regression, seconds"] |= deployed(hospitals, 20, secure)
        measured["Table 1, seconds"] = table(given.rows, 10)
    if given.studies:
        measured["coverage"] = {family: coverage(family, given.studies) for family in FAMILIES}
    print(json.dumps(measured, indent=2))


if __name__ == "__main__":
    main()
