"""What an aggregation rule adds to a round, and how much memory it needs beside the mean.

`python -m benchmarks.aggregation [--sites 10] [--rows 300] [--repeats 3]` prints a table. Each site trains a network of
a million parameters for one epoch; the same updates are then combined by every rule. Processor time on one thread, the
least of the repeats. Memory is that of the updates and of what is made of them: the mean adds updates up as they come.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from wardround.aggregation import RULES
from wardround.aggregation.robust import with_rule
from wardround.algorithms.algorithm import Algorithm, Arrival
from wardround.algorithms.fedavg import fedavg
from wardround.core import tree
from wardround.core.tree import State
from wardround.data.site import Rows, Site
from wardround.engines import serial
from wardround.models import Shape
from wardround.models.mlp import mlp
from wardround.study.robustness.preaggregation import Preaggregation
from wardround.study.schema import Training
from wardround.tasks import class_task
from wardround.training.rounds import start
from wardround.training.trial import Trial, assign

INPUTS, HIDDEN, CLASSES = 784, (1050, 160), 10
BAD = 1
MEASURED: dict[str, tuple[str, dict[str, Any], Preaggregation]] = {
    **{
        name: (name, {"bad": BAD} if RULES[name]().bad else {}, Preaggregation())
        for name in RULES
        if not RULES[name]().root
    },
    "norm-bound, a number": ("norm-bound", {"bound": 1.0}, Preaggregation()),
    "median, bucketing": ("median", {"bad": BAD}, Preaggregation("bucketing")),
    "median, nearest neighbours": ("median", {"bad": BAD}, Preaggregation("nearest-neighbours")),
    "median, momentum": ("median", {"bad": BAD}, Preaggregation(momentum=0.9)),
}


def federation(count: int, rows: int) -> Trial:
    rng, nowhere = np.random.default_rng(1), np.array([], dtype=np.int64)
    sites = []
    for number in range(count):
        x = torch.from_numpy(rng.normal(size=(rows, INPUTS))).float()
        train = Rows(x, torch.from_numpy(rng.integers(0, CLASSES, rows)))
        nothing = Rows(x[:0], train.y[:0])
        sites.append(Site(f"site-{number}", train, nothing, nothing, nowhere, nowhere))
    model = mlp(hidden=HIDDEN)(Shape((INPUTS,), class_task(CLASSES)))
    training = Training(rounds=1, local_epochs=1, batch_size=32, lr=0.05)
    return Trial("arm", 1, fedavg(), model, training, tuple(sites), tuple(sites), 1, 1)


def least_seconds(work: Callable[[], object], repeats: int) -> float:
    seconds = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return min(seconds)


def add_up(algorithm: Algorithm, server: State, arrivals: Sequence[Arrival]) -> State:
    """The mean, as a round's intake takes it."""
    total, weight = tree.scale_state(arrivals[0].update, arrivals[0].weight), arrivals[0].weight
    for arrival in arrivals[1:]:
        tree.add_into(total, tree.scale_state(arrival.update, arrival.weight))
        weight += arrival.weight
    return algorithm.aggregate(server, tree.scale_state(total, 1 / weight), 1.0)


def held(name: str, before: Preaggregation, count: int, size: int) -> int:
    """Bytes, at most, beside the model: the sum and one update; or all updates, a matrix of them, and what is kept."""
    if RULES[name]().is_mean:
        return 2 * size
    mixed = 0 if before.before == "none" else count
    kept = count if before.momentum else 0
    return (2 * count + mixed + 2 * kept + (2 if name == "centred-clipping" else 1)) * size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=10)
    parser.add_argument("--rows", type=int, default=300, help="training rows of each site")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    trial = federation(options.sites, options.rows)
    run, assignments = start(trial), assign(trial, 0)
    arrivals: list[Arrival] = []

    def train() -> None:
        arrivals[:] = [
            Arrival(
                assignment.number, float(len(assignment.site.train)), serial.train_site(trial, run, assignment).update
            )
            for assignment in assignments
        ]

    training = least_seconds(train, options.repeats)
    server = run.server
    mean = least_seconds(lambda: add_up(trial.algorithm, server, arrivals), options.repeats)
    size = tree.count_bytes({"params": server["params"]})
    table = Table(title=f"{size // 4:,} parameters, {options.sites} sites, {options.rows} rows each: a round takes "
                        f"{training + mean:.2f} s")  # fmt: skip
    for column in ("rule", "ms", "of a round", "more than the mean", "MB"):
        table.add_column(column, justify="left" if column == "rule" else "right")
    for title, (name, settings, before) in MEASURED.items():
        took = mean
        if not RULES[name]().is_mean:
            took = rule_seconds(name, settings, before, trial, arrivals, options.repeats)
        share, more = took / (training + took), (took - mean) / (training + mean)
        memory = held(name, before, options.sites, size) / 1e6
        table.add_row(title, f"{1000 * took:.0f}", f"{share:.1%}", f"{more:+.1%}", f"{memory:.0f}")
    Console(width=100).print(table)


def rule_seconds(
    name: str, settings: dict[str, Any], before: Preaggregation, trial: Trial, arrivals: list[Arrival], repeats: int
) -> float:
    algorithm = with_rule(trial.algorithm, RULES[name](**settings), before, len(trial.sites), 1)
    server = algorithm.init(start(trial).server["params"], len(trial.sites))
    aggregate = algorithm.aggregate_each
    if aggregate is None:
        raise ValueError("a rule other than the mean looks at each update")
    aggregate(server, arrivals)  # warm
    return least_seconds(lambda: aggregate(server, arrivals), repeats)


if __name__ == "__main__":
    main()
