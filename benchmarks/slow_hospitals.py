"""What a slow hospital costs: those that wait for it, and the hospital itself where nobody waits.

`python -m benchmarks.slow_hospitals [--seeds 10] [--parts equal,cost,many]` prints tables.

* equal: ten hospitals, one of them ten times slower. Virtual time until the test AUC of synchronous FedAvg at its end
  (mean of its last five of twenty rounds) is reached and kept to within 0.005. Asynchronous arms are followed for half
  of the time of the synchronous one.
* cost: the slow hospital differs from the others. Its test AUC when all arms have had the same virtual time.
* many: 1,000 hospitals with a buffer of 10. Peak memory and time of the whole run, in a process of its own.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from rich.console import Console
from rich.table import Table
from scipy import stats
from sklearn.metrics import roc_auc_score

import wardround
from wardround.data.site import Site
from wardround.engines import serial
from wardround.runs.plan import Plan
from wardround.training.rounds import rounds, site_model, start
from wardround.training.trial import Run, Trial

KEPT = 0.005  # AUC
LOOKS = 100  # times at which the AUC is measured, at most
ASYNCHRONOUS: dict[str, dict[str, Any]] = {
    "FedBuff": {"buffer": 3, "most_stale": 200},
    "FedAsync": {"buffer": 1, "most_stale": 200},
    "FedBuff, most_stale 20": {"buffer": 3},
}
MANY = """
import json, resource, sys, time
import wardround
study, folder = json.loads(sys.argv[1]), sys.argv[2]
began = time.perf_counter()
run = wardround.run_study(study, folder, workers=1)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
arm = run.results["arms"]["fedbuff"]
print(json.dumps({"peak": peak, "seconds": time.perf_counter() - began, "training": arm["cost"]["seconds"],
                  "staleness": arm["time"]["staleness"]["largest"]}))
"""


def study(rounds: int, slow: str, asynchronous: Mapping[str, Any] | None, seeds: int, **tables: Any) -> dict[str, Any]:
    """`slow` is the hospital that is ten times slower; empty: one that is drawn."""
    speed = {"sites": {slow: 0.1}} if slow else {"slow": {"share": 0.1, "times": 10}}
    training = {"rounds": rounds, "local_epochs": 2, "batch_size": 16, "lr": 0.05}
    return {
        "name": "slow",
        "data": tables.get("data", {"source": "heart", "scale": "federated"}),
        "sites": {**tables.get("sites", {}), "speed": speed},
        "training": {**training, **({} if asynchronous is None else {"asynchronous": dict(asynchronous)})},
        "evaluation": {
            "seeds": {"first": 0, "count": seeds},
            "test_share": 0.3,
        },
        "arms": [{"name": "fedavg", "algorithm": "fedavg"}],
    }


def plan_of(content: Mapping[str, Any]) -> Plan:
    return wardround.load_plan(*wardround.load_study(content))


def states(trial: Trial) -> Iterator[tuple[Run, float]]:
    for run, record in rounds(start(trial), trial, serial.train_sites):
        yield run, float(record.time or 0.0)


def auc(trial: Trial, run: Run, sites: Sequence[Site]) -> float:
    """Of the test rows of some hospitals, which all have the shared model."""
    params, buffers = site_model(trial, run, 0)
    rows = [site.test.take(torch.arange(len(site.test)), trial.dtype) for site in sites]
    x, y = (torch.cat(parts) for parts in zip(*rows, strict=True))
    return float(roc_auc_score(y.numpy(), trial.model.logits(params, buffers, x, None)[0].numpy()))


def curve(trial: Trial, until: float | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Times and AUC, up to a moment."""
    points: list[tuple[float, float]] = []
    for run, time in states(trial):
        if until is not None and time > until:
            break
        if until is None or not points or time > points[-1][0] + until / LOOKS:
            points.append((time, auc(trial, run, trial.scored)))
    times, values = zip(*points, strict=True)
    return np.array(times), np.array(values)


def reached(times: np.ndarray, values: np.ndarray, goal: float) -> float:
    """From when on the AUC is not below the goal by more than is allowed; infinite: it is so at the end."""
    below = np.flatnonzero(values < goal - KEPT)
    if not len(below):
        return float(times[0])
    return float(times[below[-1] + 1]) if below[-1] + 1 < len(times) else np.inf


def summary(values: Sequence[float]) -> str:
    """Mean with its 95 % interval over seeds."""
    x = np.asarray(values)
    half = stats.t.ppf(0.975, len(x) - 1) * x.std(ddof=1) / np.sqrt(len(x))
    return f"{x.mean():.3f} ({x.mean() - half:.3f} to {x.mean() + half:.3f})"


def sooner(ratios: Sequence[float]) -> str:
    """Geometric mean with its 95 % interval over seeds."""
    logs = np.log(ratios)
    half = stats.t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / np.sqrt(len(logs))
    low, middle, high = np.exp([logs.mean() - half, logs.mean(), logs.mean() + half])
    return f"{middle:.1f} ({low:.1f} to {high:.1f})"


def equal(seeds: int) -> Table:
    table = Table(title=f"One of ten hospitals ten times slower: times sooner at equal AUC, {seeds} seeds")
    for column in ("hospitals", "asynchronous", "times sooner (95 % CI)", "least", "seeds that reached it"):
        table.add_column(column)
    for named, sites in {
        "alike": {"partition": "iid", "count": 10},
        "uneven classes": {"partition": "dirichlet", "count": 10, "alpha": 1.0, "smallest": 30},
    }.items():
        waiting = plan_of(study(20, "", None, seeds, sites=sites))
        for name in ("FedBuff", "FedAsync"):
            plan = plan_of(study(2000, "", ASYNCHRONOUS[name], seeds, sites=sites))
            ratios = []
            for seed in range(seeds):
                synchronous = waiting.trial(waiting.study.arm("fedavg"), seed)
                times, values = curve(synchronous)
                goal = float(values[-5:].mean())
                own = curve(plan.trial(plan.study.arm("fedavg"), seed), times[-1] / 2)
                ratios.append(reached(times, values, goal) / reached(*own, goal))
            known = [ratio for ratio in ratios if 0 < ratio < np.inf]
            table.add_row(named, name, sooner(known), f"{min(ratios):.1f}", f"{len(known)} of {seeds}")
    return table


def different(seed: int) -> dict[str, pd.DataFrame]:
    """Ten hospitals of 200 patients. In the slow one, two of five columns go the other way."""
    rng = np.random.default_rng(seed)
    rule, names = np.array([1.5, -1.0, 1.0, 0.8, 0.5]), [f"x{number}" for number in range(1, 6)]
    tables = {}
    for number in range(1, 11):
        own = rule * np.array([1, 1, -1, -1, 1]) if number == 10 else rule
        x = rng.normal(size=(200, 5))
        ill = rng.random(200) < 1 / (1 + np.exp(-(x @ own)))
        tables[f"h{number}"] = pd.DataFrame(x, columns=names).assign(ill=np.where(ill, "yes", "no"))
    return tables


def cost(seeds: int) -> Table:
    table = Table(title=f"Test AUC at the slow hospital after equal virtual time, {seeds} seeds: mean and 95 % CI")
    arms = ("synchronous", *ASYNCHRONOUS)
    for column in ("slow hospital", "its AUC, synchronous", *(f"change by {name}" for name in ASYNCHRONOUS), "others"):
        table.add_column(column)
    frames = different(0)
    drawn = {"source": "csv", "files": frames, "target": "ill", "scale": "none"}
    cases = [("the different one of ten", "h10", {"data": drawn})]
    cases += [(f"{name} of four", name, {}) for name in ("cleveland", "switzerland")]
    for title, slow, tables in cases:
        own: dict[str, list[float]] = {name: [] for name in arms}
        rest: dict[str, list[float]] = {name: [] for name in arms}
        plans = {name: plan_of(study(2000, slow, ASYNCHRONOUS[name], seeds, **tables)) for name in ASYNCHRONOUS}
        plans["synchronous"] = plan_of(study(6, slow, None, seeds, **tables))
        for seed in range(seeds):
            until = 0.0
            for name in arms:
                trial = plans[name].trial(plans[name].study.arm("fedavg"), seed)
                last = start(trial)
                for run, time in states(trial):
                    if name != "synchronous" and time > until:
                        break
                    last, until = run, max(until, time) if name == "synchronous" else until
                own[name].append(auc(trial, last, [site for site in trial.scored if site.name == slow]))
                others = [site for site in trial.scored if site.name != slow]
                rest[name].append(float(np.mean([auc(trial, last, [site]) for site in others])))
        changes = [summary(np.subtract(own[name], own["synchronous"]).tolist()) for name in ASYNCHRONOUS]
        other = summary(np.subtract(rest["FedBuff"], rest["synchronous"]).tolist())
        table.add_row(title, summary(own["synchronous"]), *changes, other)
    return table


def many() -> Table:
    content = {
        "name": "many",
        "data": {"source": "synthetic", "count": 1000, "features": 20, "classes": 2, "largest": 200, "scale": "none"},
        "sites": {"speed": {"kind": "lognormal"}, "away": {"share": 0.1, "length": 200}},
        "training": {"rounds": 500, "lr": 0.05, "asynchronous": {"buffer": 10, "most_stale": 200}},
        "evaluation": {"seeds": {"first": 0, "count": 1}, "every": 50},
        "arms": [{"name": "fedbuff", "algorithm": "fedavg"}],
    }
    table = Table(title="1,000 hospitals, 500 updates of a buffer of 10, logistic regression of 20 columns")
    for column in ("peak memory, MB", "whole run, s", "training, s", "largest staleness"):
        table.add_column(column)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", MANY, json.dumps(content), folder]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    table.add_row(
        f"{found['peak']:.0f}", f"{found['seconds']:.0f}", f"{found['training']:.0f}", str(found["staleness"])
    )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--parts", default="equal,cost,many")
    options = parser.parse_args()
    makers = {"equal": lambda: equal(options.seeds), "cost": lambda: cost(options.seeds), "many": many}
    for part in options.parts.split(","):
        Console(width=200).print(makers[part]())


if __name__ == "__main__":
    main()
