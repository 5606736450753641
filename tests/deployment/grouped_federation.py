"""Seven small hospitals that form two groups with a secure sum each, in one process."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tests.deployment.hospital_files import joined, study
from tests.deployment.in_process_federation import Federation, OpenGate, federation
from wardround.core.seeds import generator
from wardround.core.settings import Factory
from wardround.data.records import Column, Records
from wardround.data.sources import Source
from wardround.deployment.flat.flat_topology import Flat

SIZES = {"alder": 41, "birch": 36, "cedar": 52, "dogwood": 47, "elm": 33, "fir": 44, "gum": 38}
SITES = tuple(SIZES)
COLUMNS = (Column("age", limits=(0, 120)), Column("dose", limits=(-9, 9)), Column("lab", limits=(-9, 9)))
GROUPS = 2


def own(hospital: str) -> Records:
    size = SIZES[hospital]
    rng = generator(14, "rows of grouped hospitals", site=hospital)
    numbers = rng.normal(SITES.index(hospital) * 0.2, 1.0, (size, 3))
    target = (numbers.sum(axis=1) + rng.normal(size=size) > 0.5).astype(np.int64)
    table = pd.DataFrame({"age": 50 + 12 * numbers[:, 0], "dose": numbers[:, 1], "lab": numbers[:, 2]})
    return Records(table, target, ("well", "ill"), np.full(size, hospital, dtype=object), COLUMNS)


def _source(name: str) -> Source:
    return Source(lambda: own(name))


def seven() -> Source:
    """All rows at one place."""
    return Source(lambda: joined([own(name) for name in SITES]))


KNOWN: dict[str, Factory] = {"seven": seven}


def sources() -> dict[str, Callable[[], Source]]:
    return {name: partial(_source, name) for name in SITES}


def grouped(arms: list[Any] | None = None, **changes: Any) -> dict[str, Any]:
    aggregation = {"rule": "median", "bad": 0, "groups": GROUPS, **changes.pop("aggregation", {})}
    data = {"source": "seven", "public": True, "scale": "ranges", "missing": "range"}
    blocks = {"aggregation": aggregation, "privacy": {"secure_sum": {}}, "data": data, **changes}
    return study(arms or [{"algorithm": "fedprox", "mu": 0.1}], **blocks)


def begin(folder: Path, content: Mapping[str, Any], gates: Mapping[str, OpenGate] | None = None) -> Federation:
    return federation(content, folder, sources(), gates, known_sources=KNOWN)


def seed_of_groups(network: Federation) -> int:
    """That the hospitals have drawn."""
    topology = network.coordinator.topology
    assert isinstance(topology, Flat)
    seed = topology.agreed.plan.group_seed
    assert seed is not None
    return seed
