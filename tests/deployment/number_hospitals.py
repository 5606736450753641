"""The hospitals of `hospital_files.py` with a number of each patient in place of a class: days in hospital, or how
often a patient was admitted, over months of their own. The same rows at one place."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from tests.deployment import hospital_files as hospitals
from tests.deployment.hospital_files import NAMES
from wardround.core.seeds import generator
from wardround.data.records import Records
from wardround.data.sources import Source
from wardround.study.facts import SourceFacts, declares
from wardround.tasks import Count, Regression, Task

RANGE = (0.0, 60.0)
TASKS: dict[str, Task] = {
    "regression": Regression(("stay",), unit="days"),
    "huber": Regression(("stay",), loss="huber", delta=0.7),
    "range": Regression(("stay",), range=RANGE),
    "count": Count(("admissions",), exposure="months"),
    "negative binomial": Count(("admissions",), dispersion=0.4),
    "fitted": Count(("admissions",), dispersion="fitted", exposure="months"),
    "counts in a range": Count(("admissions",), range=(0.0, 20.0)),
}


def with_number(records: Records, task: Task) -> Records:
    """The number depends on the columns that all hospitals have."""
    table = records.features
    assert isinstance(table, pd.DataFrame)
    rng = generator(21, "numbers of a test", site=str(records.hospital[0]))
    signal = 0.4 * (table["age"].to_numpy() - 50) / 12 + 0.5 * (table["ward"] == "medical").to_numpy()
    stay = np.clip(9 + 4 * signal + rng.normal(0, 2.5, len(table)), *RANGE).round(3)
    months = rng.integers(2, 30, len(table)).astype(float)
    exposure = months if task.columns else np.ones(len(table))
    admissions = rng.poisson(np.exp(0.2 + 0.6 * signal) * exposure / exposure.mean())
    values = stay if task.kind == "regression" else admissions.astype(float)
    target = task.of_numbers(np.column_stack([values, exposure]))
    return replace(records, target=target, classes=(), given_task=task)


def own(hospital: str, kind: str) -> Records:
    """Numbers are those of the same patients, whatever columns a hospital has."""
    whole, part = with_number(hospitals.complete(hospital), TASKS[kind]), hospitals.own(hospital)
    return replace(part, target=whole.target, classes=(), given_task=TASKS[kind])


@declares(lambda options: SourceFacts(tasks={"": TASKS[options.get("task", "regression")].kind}))
def numbers(task: str = "regression") -> Source:
    """All rows at one place, as only a simulation can have them."""

    def load() -> Records:
        parts = [with_number(hospitals.complete(name), TASKS[task]) for name in NAMES]
        whole = hospitals.joined(parts)
        return replace(whole, given_task=TASKS[task])

    return Source(load)


def at_sites(kind: str, names: Sequence[str] = NAMES) -> dict[str, Callable[[], Source]]:
    return {name: partial(_own_source, name, kind) for name in names}


def _own_source(name: str, kind: str) -> Source:
    return Source(lambda: own(name, kind))


def study(kind: str, arms: Sequence[Any] = ("fedavg", "scaffold", "local"), **changes: Any) -> dict[str, Any]:
    """A short study of one of `TASKS`."""
    data = {"source": "numbers", "task": kind, **changes.pop("data", {})}
    model = changes.pop("model", {"kind": "linear", "l2": 0.01})
    training = {"lr": 0.05, **changes.pop("training", {})}
    return hospitals.study(arms, data=data, model=model, training=training, **changes)
