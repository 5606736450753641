"""What a task costs: time per round of the linear model with each task, over that of two classes, in one run.

`python -m benchmarks.tasks [ROUNDS]`. Ten sites of 200 rows with 20 columns and 10 seeds, in the fast engine; tasks
take turns, so that a busy machine slows them alike. A dispersion that is fitted has no closed gradient.
"""

import sys
import tempfile
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

import wardround
from wardround.data.records import Column, Records, Source
from wardround.study.facts import SourceFacts, declares
from wardround.tasks import Count, Regression, Task, class_task, outcomes_of

SITES, ROWS, COLUMNS, TURNS = 10, 200, 20, 3
TASKS: dict[str, Task] = {
    "binary": class_task(["no", "yes"]),
    "multiclass": class_task(["a", "b", "c"]),
    "regression": Regression(("y",)),
    "regression, Huber": Regression(("y",), loss="huber"),
    "count": Count(("y",)),
    "count, dispersion 0.5": Count(("y",), dispersion=0.5),
    "count, fitted": Count(("y",), dispersion="fitted"),
    "two outcomes": outcomes_of({"died": class_task(["no", "yes"]), "y": Regression(("y",))}, {}),
}


def target_of(task: Task, rng: np.random.Generator, rows: int) -> np.ndarray:
    if task.outcomes:
        parts = [target_of(part, rng, rows).reshape(rows, -1).astype(float) for part in task.outcomes.values()]
        return np.concatenate(parts, axis=1)
    if task.reads == "classes":
        return rng.integers(0, len(task.names), rows)
    values = np.column_stack([rng.poisson(3.0, rows).astype(float), *([np.ones(rows)] * len(task.columns))])
    return task.of_numbers(values)


def source_of(task: Task) -> Callable[[], Source]:
    def load() -> Records:
        rng, rows = np.random.default_rng(0), SITES * ROWS
        names = [f"x{number}" for number in range(COLUMNS)]
        features = pd.DataFrame(rng.normal(size=(rows, COLUMNS)), columns=names)
        hospital = np.repeat(np.array([f"h{site}" for site in range(SITES)], dtype=object), ROWS)
        return Records(
            features, target_of(task, rng, rows), task.classes, hospital, tuple(map(Column, names)), given_task=task
        )

    kinds = {name: part.kind for name, part in task.outcomes.items()} or {"": task.kind}

    @declares(SourceFacts(tasks=kinds))
    def made() -> Source:
        return Source(load)

    return made


def seconds_of_a_round(task: Task, rounds: int) -> float:
    study: dict[str, Any] = {
        "name": "tasks",
        "data": {"source": "made"},
        "model": {"kind": "linear"},
        "training": {"rounds": rounds, "batch_size": 32},
        "evaluation": {"seeds": {"count": 10}, "every": 0},
        "arms": [{"name": "fedavg", "algorithm": "fedavg"}],
    }
    with tempfile.TemporaryDirectory() as out:
        run = wardround.run_study(study, out, engine="stacked", workers=1, sources={"made": source_of(task)})
        records = run.records()
    per_round = records.groupby("round")["seconds"].sum()
    return float(median(per_round.iloc[1:-1]))


def main(rounds: int = 20) -> None:
    turns = [{name: seconds_of_a_round(task, rounds) for name, task in TASKS.items()} for _ in range(TURNS)]
    print(f"{SITES} sites of {ROWS} rows, {COLUMNS} columns, 10 seeds together, {rounds} rounds, {TURNS} turns")
    for name in TASKS:
        ratio = median(turn[name] / turn["binary"] for turn in turns)
        print(f"  {name:24} {1000 * median(turn[name] for turn in turns):8.1f} ms a round   {ratio:5.2f} x binary")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
