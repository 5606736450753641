"""Radiology departments whose images have any number of findings, and the same rows at one place."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from tests.deployment import hospital_files as hospitals
from tests.radiographs import NAMES as FINDINGS
from tests.radiographs import a_study, some_radiographs
from wardround.data.records import Records
from wardround.data.sources import Source

NAMES = hospitals.NAMES[:3]
UNKNOWN = 0.1  # share of labels that nobody knows


@lru_cache(maxsize=4)
def everywhere(unknown: float = UNKNOWN, patients: int = 120) -> Records:
    images = some_radiographs(patients, unknown=unknown, seed=3)
    names = dict(zip(("hospital-0", "hospital-1", "hospital-2"), NAMES, strict=True))
    hospital = np.array([names[name] for name in images.hospital.tolist()], dtype=object)
    return replace(images, hospital=hospital).take(np.argsort(hospital, kind="stable"))  # in the order of the sites


def own(name: str, unknown: float = UNKNOWN, patients: int = 120) -> Records:
    records = everywhere(unknown, patients)
    return records.take(np.flatnonzero(records.hospital == name))


def at_sites(unknown: float = UNKNOWN, patients: int = 120) -> dict[str, Callable[[], Source]]:
    return {name: partial(_source, name, unknown, patients) for name in NAMES}


def _source(name: str, unknown: float, patients: int) -> Source:
    return Source(lambda: own(name, unknown, patients))


def all_of_them(unknown: float = UNKNOWN, patients: int = 120) -> Source:
    """As a simulation has them."""
    return Source(lambda: everywhere(unknown, patients))


def study(**changes: Any) -> dict[str, Any]:
    """Nothing is withheld, unless `deployment` says otherwise."""
    data = {"source": "radiographs", **changes.pop("data", {})}
    return a_study(**{"data": data, "deployment": {"smallest_cell": 1}, **changes})


__all__ = ["FINDINGS", "NAMES", "all_of_them", "at_sites", "everywhere", "own", "study"]
