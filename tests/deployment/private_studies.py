"""Studies with [privacy] across four small hospitals whose columns have public ranges and no gaps."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tests.deployment.hospital_files import NAMES, SIZES, joined, study
from tests.deployment.in_process_federation import Federation, OpenGate, federation
from wardround.core.seeds import generator
from wardround.core.settings import Factory
from wardround.data.records import Column, Records
from wardround.data.sources import Source
from wardround.runs.catalog import load_study
from wardround.runs.ledger import Entry, Ledger

COLUMNS = (Column("age", limits=(0, 120)), Column("dose", limits=(-9, 9)), Column("lab", limits=(-9, 9)))
EXAMPLE = {"epsilon": 2.0, "delta": 1e-5, "clip": 1.0}
PUBLIC = {"public": True, "scale": "ranges", "missing": "range"}


def own(hospital: str) -> Records:
    size = SIZES[hospital]
    rng = generator(12, "protected rows of a test", site=hospital)
    numbers = rng.normal(NAMES.index(hospital) * 0.3, 1.0, (size, 3))
    target = (numbers.sum(axis=1) + rng.normal(size=size) > 0.5).astype(np.int64)
    table = pd.DataFrame({"age": 50 + 12 * numbers[:, 0], "dose": numbers[:, 1], "lab": numbers[:, 2]})
    return Records(table, target, ("well", "ill"), np.full(size, hospital, dtype=object), COLUMNS)


def _source(name: str) -> Source:
    return Source(lambda: own(name))


def numbers(hospitals: tuple[str, ...] = NAMES) -> Source:
    """All rows at one place."""
    return Source(lambda: joined([own(name) for name in hospitals]))


KNOWN: dict[str, Factory] = {"numbers": numbers}


def sources(hospitals: tuple[str, ...] = NAMES) -> dict[str, Callable[[], Source]]:
    return {name: partial(_source, name) for name in hospitals}


def private(arms: list[Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Example-level privacy, unless `privacy` says otherwise."""
    rest = {"privacy": {"example": EXAMPLE}, **changes}
    data = {"source": "numbers", **PUBLIC, **rest.pop("data", {})}
    return study(arms or [{"algorithm": "fedprox", "mu": 0.1}], data=data, **rest)


def begin(
    folder: Path,
    content: Mapping[str, Any],
    gates: Mapping[str, OpenGate] | None = None,
    hospitals: tuple[str, ...] = NAMES,
) -> Federation:
    return federation(content, folder, sources(hospitals), gates, known_sources=KNOWN)


def gate(content: Mapping[str, Any], most_total_epsilon: float | None = None) -> OpenGate:
    return OpenGate(load_study(content, sources=KNOWN)[0], most_total_epsilon=most_total_epsilon)


def ledger(folder: Path, site: str) -> list[Entry]:
    return Ledger(folder / "sites" / site / "ledger.jsonl").entries()
