"""What is recorded of images, a row each, before any pixel is decoded: labels, patients, ages, sexes and views."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Literal

import numpy as np
import pandas as pd

from wardround.core.errors import StudyError
from wardround.core.notices import Notice
from wardround.data.imaging.problems import Accepted, Problem
from wardround.data.records import UNKNOWN

Uncertain = Literal["ignore", "zero", "one"]
POLICIES: dict[Uncertain, int] = {"ignore": UNKNOWN, "zero": 0, "one": 1}


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


def settled(listing: Listing, policy: Uncertain) -> tuple[Listing, list[Notice]]:
    """What -1 counts as: whoever wrote the label was not sure."""
    uncertain = listing.target == -1
    if not uncertain.any():
        return listing, []
    counts = {"labels": int(uncertain.sum()), "images": int(uncertain.any(axis=1).sum())}
    notice = Notice("uncertain-labels", "info", counts=counts, details={"uncertain": policy})
    return replace(listing, target=np.where(uncertain, POLICIES[policy], listing.target)), [notice]


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


def chosen_rows(rows: int, total: int) -> Notice:
    return Notice("rows-chosen", "info", counts={"images": rows, "of": total}, details={"by": "patients"})


@dataclass(frozen=True)
class Gathered:
    listing: Listing  # a row per image
    images: np.ndarray  # uint8 (rows, 1, height, width)
    prints: np.ndarray
    notices: tuple[Notice, ...]


HOSPITAL = "chest-xray"  # of images for which no table names one
OLDEST = 120  # years; NIH's first release has ages above 400
SEXES = {"m": "male", "male": "male", "f": "female", "female": "female", "w": "female"}
_AGE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([YMWD]?)", re.IGNORECASE)  # 58, 058Y; DICOM has months, weeks and days too
_YEARS = {"": 1.0, "Y": 1.0, "M": 1 / 12, "W": 7 / 365.25, "D": 1 / 365.25}


def hospitals(said: pd.DataFrame) -> np.ndarray:
    return said["hospital"].to_numpy(object) if "hospital" in said else np.full(len(said), HOSPITAL, dtype=object)


def patients(said: pd.DataFrame) -> tuple[np.ndarray | None, list[Notice]]:
    """Hashed with the hospital's name, so that numbers do not travel and two hospitals' number 7 are two patients."""
    if "patient" not in said:
        return None, [Notice("no-patient-column", "info", details={"images": True})]
    keys = hospitals(said) + "\x1f" + said["patient"].to_numpy(object)
    unknown = np.flatnonzero(said["patient"] == "")
    keys[unknown] = [f"row {row}\x1f\x1f" for row in unknown]
    codes, distinct = pd.factorize(keys)
    hashed = np.array([sha256(key.encode()).hexdigest()[:16] for key in distinct])
    notice = Notice("unknown-patients", "info", counts={"images": len(unknown)})
    return hashed[codes], [notice] if len(unknown) else []


def groups(said: pd.DataFrame) -> tuple[pd.DataFrame, list[Notice]]:
    """`sex` and `view` as text, `age` in years. What is blank or cannot be is missing."""
    found, notices = pd.DataFrame(index=pd.RangeIndex(len(said))), []
    if "sex" in said:
        found["sex"] = _each(said["sex"], lambda text: SEXES.get(text.lower()))
    if "age" in said:
        found["age"] = _each(said["age"], years).astype(float)
        impossible = int((found["age"].isna() & (said["age"] != "")).sum())
        if impossible:
            notices.append(Notice("impossible-ages", "info", counts={"ages": impossible, "oldest": OLDEST}))
    if "view" in said:
        found["view"] = _each(said["view"], lambda text: text.upper() or None)
    return found, notices


def years(text: str) -> float:
    """NaN where it is not an age above 0 and up to OLDEST: NIH and DICOM write 0 for "unknown" as well."""
    match = _AGE.fullmatch(text.strip())
    if match is None:
        return float("nan")
    age = float(match[1]) * _YEARS[match[2].upper()]
    return age if 0 < age <= OLDEST else float("nan")


def _each(column: pd.Series, change: Callable[[str], object]) -> pd.Series:
    codes, distinct = pd.factorize(column)
    changed = np.array([change(text) for text in distinct], dtype=object)
    return pd.Series(changed[codes], dtype=object)
