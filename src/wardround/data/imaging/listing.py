"""What is said of images, a row each, before anyone looks at their pixels."""

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import pandas as pd

from wardround.core.errors import StudyError
from wardround.data.imaging.problems import Accepted, Problem
from wardround.data.records import UNKNOWN

Uncertain = Literal["ignore", "zero", "one"]
POLICIES: dict[Uncertain, tuple[int, str]] = {
    "ignore": (UNKNOWN, "not counted"),
    "zero": (0, "taken as absent"),
    "one": (1, "taken as present"),
}


@dataclass(frozen=True)
class Listing:
    """`said` has those of the columns patient, age, sex, view, hospital and side that are recorded, as text."""

    names: np.ndarray = field(repr=False)  # of the images, as text; not shown in a traceback
    target: np.ndarray  # int64 (rows, findings): 1, 0 and -1 for uncertain
    classes: tuple[str, ...]
    said: pd.DataFrame = field(repr=False)
    problems: tuple[Problem, ...] = ()

    def __len__(self) -> int:
        return len(self.names)

    def take(self, rows: np.ndarray) -> "Listing":
        return replace(
            self, names=self.names[rows], target=self.target[rows], said=self.said.iloc[rows].reset_index(drop=True)
        )


def settled(listing: Listing, policy: Uncertain) -> tuple[Listing, list[str]]:
    """What -1 counts as: whoever wrote the label was not sure."""
    uncertain = listing.target == -1
    if not uncertain.any():
        return listing, []
    value, words = POLICIES[policy]
    note = f"{uncertain.sum()} uncertain labels (-1) in {uncertain.any(axis=1).sum()} images, {words}"
    return replace(listing, target=np.where(uncertain, value, listing.target)), [note]


def some_rows(patient: np.ndarray | None, found: int, rows: int, draws: np.random.Generator) -> np.ndarray:
    """Numbers of `rows` rows in order: those of patients drawn one by one, so that most are there with all images.

    With one seed a smaller choice is always part of a larger one.
    """
    if rows > found:
        raise StudyError("data: rows", f"{rows} images wanted, {found} there", f"Write at most {found}.")
    unit = np.arange(found) if patient is None else pd.factorize(patient)[0]
    turn = draws.permutation(unit.max() + 1)[unit]
    return np.sort(np.argsort(turn, kind="stable")[:rows])


@dataclass(frozen=True)
class Wanted:
    """The settings that every form needs."""

    size: int
    findings: tuple[str, ...]
    uncertain: Uncertain
    clahe: bool
    accept: tuple[Accepted, ...]
    rows: int | None
    seed: int


@dataclass(frozen=True)
class Gathered:
    listing: Listing  # a row per image
    images: np.ndarray  # uint8 (rows, 1, height, width)
    prints: np.ndarray
    notes: tuple[str, ...]
