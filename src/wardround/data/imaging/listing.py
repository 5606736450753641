"""What is recorded of images, a row each, before any pixel is decoded: labels, patients, ages, sexes and views."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import pandas as pd

from wardround.core.errors import StudyError
from wardround.core.notices import Notice
from wardround.core.seeds import generator
from wardround.data.imaging.problems import Accepted, Problem
from wardround.data.records import SEX_WORDS, short_hash
from wardround.tasks.multilabel import UNKNOWN

Uncertain = Literal["ignore", "zero", "one"]
POLICIES: dict[Uncertain, int] = {"ignore": UNKNOWN, "zero": 0, "one": 1}


MARK_COLUMNS = ("image", "finding", "left", "top", "right", "bottom")


@dataclass(frozen=True)
class Listing:
    """`attributes` has those of the columns patient, age, sex, view, hospital and split that are recorded, as text."""

    names: np.ndarray = field(repr=False)  # of the images, as text; not shown in a traceback
    target: np.ndarray  # int64 (rows, findings): 1, 0 and -1 for uncertain; or the class number of each row
    classes: tuple[str, ...]
    attributes: pd.DataFrame = field(repr=False)
    problems: tuple[Problem, ...] = ()
    # where findings are, in pixels of the images as they are stored: MARK_COLUMNS
    marks: pd.DataFrame | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.names)

    def take(self, rows: np.ndarray) -> "Listing":
        attributes = self.attributes.iloc[rows].reset_index(drop=True)
        return replace(self, names=self.names[rows], target=self.target[rows], attributes=attributes)


def settled(listing: Listing, policy: Uncertain) -> tuple[Listing, list[Notice]]:
    """With the value that the study has for uncertain labels (-1)."""
    uncertain = listing.target == -1
    if listing.target.ndim == 1 or not uncertain.any():
        return listing, []
    counts = {"labels": int(uncertain.sum()), "images": int(uncertain.any(axis=1).sum())}
    notice = Notice("uncertain-labels", "info", counts=counts, details={"uncertain": policy})
    return replace(listing, target=np.where(uncertain, POLICIES[policy], listing.target)), [notice]


@dataclass(frozen=True)
class ImageOptions:
    """The settings that every form needs."""

    size: int | None  # None: as the images are
    findings: tuple[str, ...]  # of any labels: the names of classes or findings, where the file has none
    uncertain: Uncertain
    clahe: bool
    accept: tuple[Accepted, ...]
    rows: int | None
    seed: int
    colour: Literal["auto", "grey", "rgb"] = "grey"  # auto: as the images are
    any_labels: bool = False  # findings, or one class of each image; else findings


def drawn_rows(listing: Listing, options: ImageOptions, total: int) -> tuple[np.ndarray, list[Notice]]:
    """All row numbers, or as many as the study asks for: those of patients drawn one by one, so that most are there
    with all images. With one seed a smaller choice is always part of a larger one."""
    count = len(listing)
    if options.rows is None:
        return np.arange(count), []
    if options.rows > count:
        raise StudyError("data: rows", f"{options.rows} images wanted, {count} there", f"Write at most {count}.")
    patient = listing.attributes.get("patient")
    unit = np.arange(count) if patient is None else pd.factorize(patient)[0]
    turn = generator(options.seed, "chest-xray rows").permutation(unit.max() + 1)[unit]
    rows = np.sort(np.argsort(turn, kind="stable")[: options.rows])
    counts = {"images": options.rows, "of": total}
    return rows, [Notice("rows-chosen", "info", counts=counts, details={"by": "patients"})]


@dataclass(frozen=True)
class Gathered:
    listing: Listing  # a row per image
    images: np.ndarray  # uint8 (rows, channels, height, width)
    prints: np.ndarray
    notices: tuple[Notice, ...]
    boxes: pd.DataFrame | None = None  # BOX_COLUMNS, where the table of labels has them


HOSPITAL = "chest-xray"  # of images for which no table names one
OLDEST = 120  # years; NIH's first release has ages above 400
_AGE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([YMWD]?)", re.IGNORECASE)  # 58, 058Y; DICOM has months, weeks and days too
_YEARS = {"": 1.0, "Y": 1.0, "M": 1 / 12, "W": 7 / 365.25, "D": 1 / 365.25}


def hospitals(attributes: pd.DataFrame, otherwise: str = HOSPITAL) -> np.ndarray:
    return (
        attributes["hospital"].to_numpy(object)
        if "hospital" in attributes
        else np.full(len(attributes), otherwise, dtype=object)
    )


def patients(attributes: pd.DataFrame) -> tuple[np.ndarray | None, list[Notice]]:
    """Hashed with the hospital's name, so that numbers do not travel and two hospitals' number 7 are two patients."""
    if "patient" not in attributes:
        return None, [Notice("no-patient-column", "info", details={"images": True})]
    keys = hospitals(attributes) + "\x1f" + attributes["patient"].to_numpy(object)
    unknown = np.flatnonzero(attributes["patient"] == "")
    keys[unknown] = [f"row {row}\x1f\x1f" for row in unknown]
    codes, distinct = pd.factorize(keys)
    hashed = np.array([short_hash(key) for key in distinct])
    notice = Notice("unknown-patients", "info", counts={"images": len(unknown)})
    return hashed[codes], [notice] if len(unknown) else []


def groups(attributes: pd.DataFrame) -> tuple[pd.DataFrame, list[Notice]]:
    """`sex` and `view` as text, `age` in years. What is blank or cannot be is missing."""
    known, notices = pd.DataFrame(index=pd.RangeIndex(len(attributes))), []
    if "sex" in attributes:
        known["sex"] = _each(attributes["sex"], lambda text: SEX_WORDS.get(text.lower()))
    if "age" in attributes:
        known["age"] = _each(attributes["age"], years).astype(float)
        if impossible := int((known["age"].isna() & (attributes["age"] != "")).sum()):
            notices.append(Notice("impossible-ages", "info", counts={"ages": impossible, "oldest": OLDEST}))
    if "view" in attributes:
        known["view"] = _each(attributes["view"], lambda text: text.upper() or None)
    return known, notices


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
