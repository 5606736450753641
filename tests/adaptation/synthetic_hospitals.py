"""Synthetic hospitals: a small table, with patients of several rows and any number of classes."""

import numpy as np
import pandas as pd

from wardround.core import seeds
from wardround.data.records import Column, Records
from wardround.data.sources import Source

COLUMNS = (Column("a"), Column("b"), Column("c", "categorical"))


def records(hospitals: tuple[str, ...], rows: int = 60, classes: int = 3, each: int = 1) -> Records:
    """`each` rows of every patient. The class is in column `a`, up to noise."""
    rng = seeds.generator(0, "made up")
    total = rows * len(hospitals)
    patient = np.arange(total) // each
    target = (patient % classes).astype(np.int64)
    numbers = {"a": target + rng.normal(0, 0.5, total), "b": rng.normal(0, 1, total)}
    table = pd.DataFrame({**numbers, "c": rng.choice(["x", "y", "z"], total).astype(object)})
    table.loc[::7, "b"] = np.nan
    names = tuple(f"kind {number}" for number in range(classes))
    return Records(table, target, names, np.repeat(np.array(hospitals, dtype=object), rows), COLUMNS, patient)


def synthetic_source(
    hospitals: tuple[str, ...] = ("north",), rows: int = 60, classes: int = 3, each: int = 1
) -> Source:
    return Source(lambda: records(hospitals, rows, classes, each))
