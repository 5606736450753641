"""Four small hospitals that differ in everything that sites have to agree on, and the same rows at one place.

alder has every column and few levels; birch never recorded `lab`; cedar alone has the ward `burns`; dogwood never
recorded `stage`, and has half of `dose` missing.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from wardround.core.seeds import generator
from wardround.data.records import Column, Records
from wardround.data.sources import Source

SIZES = {"alder": 41, "birch": 36, "cedar": 52, "dogwood": 47}
NAMES = tuple(SIZES)
COLUMNS = (
    Column("age", limits=(0, 120)),
    Column("dose", limits=(-9, 9)),
    Column("lab", limits=(-9, 9)),
    Column("ward", "categorical"),
    Column("stage", "categorical", coded=True),
)
WARDS = {"alder": ("medical", "surgical"), "cedar": ("burns", "medical", "surgical")}
CLASSES = ("well", "ill", "worse")


def own(hospital: str, classes: int = 2) -> Records:
    """One hospital's rows, without the columns that it does not have."""
    records = complete(hospital, classes)
    table = records.features
    assert isinstance(table, pd.DataFrame)
    columns = tuple(column for column in COLUMNS if table[column.name].notna().any())
    features = table[[column.name for column in columns]]
    return Records(features, records.target, records.classes, records.hospital, columns)


def complete(hospital: str, classes: int = 2) -> Records:
    size = SIZES[hospital]
    rng = generator(11, "rows of a test", site=hospital)
    numbers = rng.normal(NAMES.index(hospital) * 0.3, 1.0, (size, 3))
    ward = rng.choice(np.array(WARDS.get(hospital, ("medical", "psychiatric")), dtype=object), size)
    stage = rng.choice(np.array(["1", "2", "3"], dtype=object), size)
    scores = numbers @ rng.normal(1.0, 0.5, (3, classes)) * 0.7 + rng.normal(size=(size, classes))
    scores[:, 1:] += (ward == "medical")[:, None] * 0.8
    target = scores.argmax(axis=1).astype(np.int64)
    table = pd.DataFrame({"age": 50 + 12 * numbers[:, 0], "dose": numbers[:, 1], "lab": numbers[:, 2]})
    table.loc[rng.random(size) < (0.5 if hospital == "dogwood" else 0.1), "dose"] = np.nan
    if hospital == "birch":
        table["lab"] = np.nan
    table["ward"] = pd.Series(ward, dtype=object)
    table["stage"] = pd.Series([None] * size if hospital == "dogwood" else stage, dtype=object)
    return Records(table, target, CLASSES[:classes], np.full(size, hospital, dtype=object), COLUMNS)


def wards(hospitals: tuple[str, ...] = NAMES, classes: int = 2) -> Source:
    """All rows at one place, as only a simulation can have them."""
    return Source(lambda: joined([complete(name, classes) for name in hospitals]))


def joined(parts: Sequence[Records]) -> Records:
    first = parts[0]
    tables = [part.features for part in parts]
    frames = [table for table in tables if isinstance(table, pd.DataFrame)]
    features = pd.concat(frames, ignore_index=True) if frames else np.concatenate(tables)
    return Records(
        features,
        np.concatenate([part.target for part in parts]),
        first.classes,
        np.concatenate([part.hospital for part in parts]),
        first.columns,
    )


def at_sites(hospitals: Sequence[str] = NAMES, classes: int = 2) -> dict[str, Callable[[], Source]]:
    return {name: partial(_own_source, name, classes) for name in hospitals}


def _own_source(name: str, classes: int) -> Source:
    return Source(lambda: own(name, classes))


def dots(hospital: str) -> Records:
    """Images of 1 x 4 x 4 points; the class is the brightest of the first three."""
    size = SIZES[hospital]
    images = generator(5, "images of a test", site=hospital).integers(0, 255, (size, 1, 4, 4), dtype=np.uint8)
    label = images.reshape(size, -1)[:, :3].argmax(axis=1).astype(np.int64)
    return Records(images, label, ("a", "b", "c"), np.full(size, hospital, dtype=object))


def all_dots() -> Source:
    return Source(lambda: joined([dots(name) for name in NAMES]))


def _own_dots(name: str) -> Source:
    return Source(lambda: dots(name))


def dots_at_sites() -> dict[str, Callable[[], Source]]:
    return {name: partial(_own_dots, name) for name in NAMES}


def study(arms: Sequence[Any], **changes: Any) -> dict[str, Any]:
    """A short study of these hospitals. A table in `changes` is joined to the one that is there."""
    document: dict[str, Any] = {
        "name": "wards",
        "data": {"source": "wards"},
        "model": {"kind": "logistic", "l2": 0.01},
        "training": {"rounds": 3, "local_epochs": 2, "batch_size": 16, "lr": 0.1},
        "evaluation": {"seeds": {"first": 3, "count": 1}, "test_share": 0.3},
        "deployment": {"smallest_cell": 1},
        "arms": [{"algorithm": arm} if isinstance(arm, str) else arm for arm in arms],
    }
    for name, value in changes.items():
        merged = isinstance(value, dict) and name in document and name != "model"
        document[name] = {**document[name], **value} if merged else value
    return document
