"""What every form of the data comes down to."""

from dataclasses import dataclass

import numpy as np

from wardround.data.images.listing import Listing, Uncertain
from wardround.data.images.problems import Accepted


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
