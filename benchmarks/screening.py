"""What [screening] finds: its level on fresh clean federations, its power, other heterogeneity, and what it costs.

`python -m benchmarks.screening [--federations 200] [--only level,power,beyond,cost]`. Federations are drawn by
`wardround.screening.clean_hospitals` with seeds that had no part in choosing the limits. Intervals are Clopper and
Pearson's.
"""

import argparse
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy.stats import beta

from wardround.algorithms import ALGORITHMS
from wardround.data.site import Rows, Site
from wardround.engines import serial
from wardround.models import MODELS, Shape
from wardround.screening import Evidence
from wardround.screening.clean_hospitals import COLUMNS, DEFAULT, CleanHospitals, clean_hospitals
from wardround.study.schema import Screening, Training
from wardround.tasks import class_task
from wardround.training.rounds import rounds, start
from wardround.training.screen import screened, seen_of
from wardround.training.trial import Trial

FRESH = 3_000_000  # no such seed had a part in choosing limits
NOWHERE = np.array([], dtype=np.int64)
CLEAN: dict[str, dict[str, Any]] = {
    "10 hospitals": {},
    "10 hospitals, 5 local epochs": {"local_epochs": 5},
    "8 hospitals, 5 local epochs": {"hospitals": 8, "local_epochs": 5},
    "20 hospitals": {"hospitals": 20},
    "10 hospitals, 60 rounds": {"rounds": 60},
    "10 hospitals, a network": {"model": "mlp"},
    "10 hospitals, scaffold": {"algorithm": "scaffold"},
}
BEYOND: dict[str, dict[str, Any]] = {
    "prevalence: SD 1.5 of the intercept": {"how": replace(DEFAULT, prevalence=1.5)},
    "prevalence: SD 3": {"how": replace(DEFAULT, prevalence=3.0)},
    "rules that differ three times as much": {"how": replace(DEFAULT, rule=0.75)},
}


def federation(
    seed: int,
    hospitals: int = 10,
    inverted: int = 0,
    how: CleanHospitals = DEFAULT,
    model: str = "logistic",
    algorithm: str = "fedavg",
    **training: Any,
) -> Trial:
    sites = []
    for number, (x, y) in enumerate(clean_hospitals(seed, hospitals, inverted, how)):
        rows = Rows(torch.tensor(x, dtype=torch.float32), torch.tensor(y))
        nothing = Rows(rows.x[:0], rows.y[:0])
        sites.append(Site(f"site-{number + 1:02}", rows, nothing, nothing, NOWHERE, NOWHERE))
    built = MODELS[model]()(Shape((COLUMNS,), class_task(2)))
    settings: dict[str, Any] = {"rounds": 20, "batch_size": 32, "lr": 0.1, **training}
    return Trial(
        "arm",
        seed,
        ALGORITHMS[algorithm](),
        built,
        Training(**settings),
        tuple(sites),
        tuple(sites),
        seed,
        seed,
        screening=Screening(),
    )


def named_in(trial: Trial) -> dict[str, str]:
    """The rule, by site."""
    return {
        site: Evidence.of_numbers(numbers).rule
        for _, record in rounds(start(trial), trial, serial.train_sites)
        for site, numbers in record.named.items()
    }


def share(hits: int, total: int) -> str:
    low = 0.0 if not hits else float(beta.ppf(0.025, hits, total - hits + 1))
    high = 1.0 if hits == total else float(beta.ppf(0.975, hits + 1, total - hits))
    return f"{100 * hits / total:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def level(table: Table, kinds: Mapping[str, Mapping[str, Any]], count: int) -> None:
    for title, options in kinds.items():
        found = [named_in(federation(FRESH + seed, **options)) for seed in range(count)]
        by_rule = Counter(rule for named in found for rule in named.values())
        table.add_row(f"clean: {title}", share(sum(map(bool, found)), count), str(dict(by_rule)))


def power(table: Table, count: int) -> None:
    kinds: dict[str, dict[str, Any]] = {
        "": {},
        ", 5 local epochs": {"local_epochs": 5},
        ", a network": {"model": "mlp"},
    }
    for title, options in kinds.items():
        found = [
            named_in(federation(2 * FRESH + seed, inverted=1, **{"rounds": 3, **options})) for seed in range(count)
        ]
        hits, others = (
            sum("site-01" in named for named in found),
            sum(bool(set(named) - {"site-01"}) for named in found),
        )
        table.add_row(f"1 of 10 inverted{title}", share(hits, count), f"another named as well: {share(others, count)}")


def cost(table: Table, rows_each: int) -> None:
    """Processor time of a round with and without screening: a network of a million parameters, one local epoch."""
    torch.set_num_threads(1)
    x, y = torch.randn(rows_each, 784), torch.randint(0, 2, (rows_each,))
    rows, nothing = Rows(x, y), Rows(x[:0], y[:0])
    sites = tuple(Site(f"site-{n}", rows, nothing, nothing, NOWHERE, NOWHERE) for n in range(10))
    model = MODELS["mlp"](hidden=[1000, 200])(Shape((784,), class_task(2)))
    settings = Training(rounds=4, batch_size=32)
    trial = Trial("arm", 1, ALGORITHMS["fedavg"](), model, settings, sites, sites, 1, 1, screening=Screening())
    plain = replace(trial, screening=None)
    whole, own = float("inf"), float("inf")
    for _ in range(3):
        before, last = time.process_time(), start(plain)
        for run, record in rounds(last, plain, serial.train_sites):
            whole = min(whole, time.process_time() - before) if record.round > 1 else whole
            before = time.process_time()
            seen = {number: seen_of(trial, {"params": run.server["params"]}) for number in range(10)}
            known, _ = screened(trial, last, run, record, seen)
            own = min(own, time.process_time() - before) if record.round > 1 else own
            before, last = time.process_time(), known
    size = f"{model.size / 1e6:.2f} M parameters, 10 sites of {rows_each} rows"
    table.add_row(f"a round: {size}", f"{100 * own / whole:.1f} % more processor time", f"{1e3 * whole:.0f} ms without")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--federations", type=int, default=200)
    parser.add_argument("--only", default="level,power,beyond,cost")
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = Table("what", "share of federations in which a site is named (95 % interval)", "")
    parts = options.only.split(",")
    if "level" in parts:
        level(table, CLEAN, options.federations)
    if "power" in parts:
        power(table, options.federations)
    if "beyond" in parts:
        level(table, BEYOND, options.federations)
    if "cost" in parts:
        cost(table, 100)
        cost(table, 500)
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
