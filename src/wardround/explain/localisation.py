"""Whether a heat map shows where a finding is, against boxes that were drawn around it.

For each image and finding with a box: whether the map's highest point lies in it (the pointing game, Zhang et al., IJCV
126, 2018), how much of what the map shows as half as high or more coincides with it (intersection over union), and how
much of what the map shows lies in it (energy, Wang et al., CVPR Workshops 2020). Only what raises the score counts.

A map is compared with what needs no look at the image: the middle of it (`centre_prior`), and where other patients have
this finding (`others_prior`). A network that learnt to see a finding must be better than both, and than one that
learnt nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor

from wardround.evaluation.intervals import Resampling, mean_interval
from wardround.evaluation.uncertainty.number_results import share_interval
from wardround.explain.method import Method, Scorer

MEASURES = ("pointing", "iou", "energy")
HALF = 0.5  # of the highest value: what counts as shown
SMOOTH = 1 / 16  # of the image's side: standard deviation of the Gaussian by which maps are smoothed
CENTRE = 1 / 4  # of the image's side: standard deviation of the prior around the middle


@dataclass(frozen=True, eq=False)
class Marked:
    """Each image and finding with a box: a place in all of these arrays."""

    row: np.ndarray  # of the image
    finding: np.ndarray  # its place among the findings
    patient: np.ndarray
    inside: np.ndarray  # (places, height, width): whether a pixel lies in one of its boxes

    def __len__(self) -> int:
        return len(self.row)

    def of(self, chosen: np.ndarray) -> "Marked":
        return Marked(self.row[chosen], self.finding[chosen], self.patient[chosen], self.inside[chosen])


def marked(boxes: pd.DataFrame, patient: np.ndarray, shape: tuple[int, int]) -> Marked:
    """From a source's `boxes` (BOX_COLUMNS) and the patient of each of its rows, for maps of `shape`."""
    pairs = boxes.groupby(["row", "finding"], sort=True)
    inside = [np.any([covered(box, shape) for box in sides_of(group)], axis=0) for _, group in pairs]
    keys = np.array(list(pairs.groups), dtype=np.int64).reshape(-1, 2)
    return Marked(keys[:, 0], keys[:, 1], patient[keys[:, 0]], np.array(inside, dtype=bool).reshape(-1, *shape))


def sides_of(boxes: pd.DataFrame) -> np.ndarray:
    return boxes[["x", "y", "width", "height"]].to_numpy(dtype=np.float64)


def covered(box: Sequence[float] | np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Pixels whose middle is in the box (x, y, width and height in parts of the image); of a tiny one the pixel it is
    in."""
    x, y, width, height = box
    inside = np.zeros(shape, dtype=bool)
    ends = [
        (min(round(start * size), size - 1), round((start + length) * size))
        for start, length, size in ((y, height, shape[0]), (x, width, shape[1]))
    ]
    (top, bottom), (left, right) = ((first, max(last, first + 1)) for first, last in ends)
    inside[top:bottom, left:right] = True
    return inside


def heat_maps(
    method: Method, scorer: Scorer, images: Tensor, background: Tensor, places: Marked, rng: np.random.Generator
) -> np.ndarray:
    """(places, height, width): of each place its finding's map, smoothed, without what lowers the score."""
    maps = np.zeros(places.inside.shape)
    for finding in np.unique(places.finding):
        own = np.flatnonzero(places.finding == finding)
        rows = images[torch.from_numpy(places.row[own])]
        maps[own] = shown(method.attribute(scorer.of(int(finding)), rows, background, rng).values)
    return maps


def shown(values: np.ndarray) -> np.ndarray:
    """What raises the score, smoothed as pictures and figures have it: first smoothed, so that noise of either sign
    cancels out."""
    side = min(values.shape[1:])
    return np.maximum(gaussian_filter(values, SMOOTH * side, axes=(1, 2)), 0)


def centre_prior(places: Marked) -> np.ndarray:
    """Made of nothing but the middle of the image."""
    height, width = places.inside.shape[1:]
    lines, columns = ((np.arange(size) + 0.5 - size / 2) / (CENTRE * min(height, width)) for size in (height, width))
    prior = np.exp(-(lines[:, None] ** 2 + columns**2) / 2)
    return np.broadcast_to(prior, places.inside.shape)


def others_prior(places: Marked) -> np.ndarray:
    """How often a pixel lies in the boxes that other patients have for this finding; of a finding that no other patient
    has, the middle."""
    prior = np.array(centre_prior(places))
    for place in range(len(places)):
        others = (places.finding == places.finding[place]) & (places.patient != places.patient[place])
        if others.any():
            prior[place] = places.inside[others].mean(axis=0)
    return prior


def measures(maps: np.ndarray, inside: np.ndarray) -> dict[str, np.ndarray]:
    """Of each place, from 0 to 1. Where several pixels are the highest, the share of them that lies inside: a map that
    is the same everywhere does no better than chance."""
    flat, box = maps.reshape(len(maps), -1), inside.reshape(len(maps), -1)
    highest = flat.max(axis=1, keepdims=True)
    tops, half = flat == highest, flat >= HALF * highest
    total = flat.sum(axis=1)
    within = (flat * box).sum(axis=1)
    return {
        "pointing": (tops & box).sum(axis=1) / tops.sum(axis=1),
        "iou": (half & box).sum(axis=1) / (half | box).sum(axis=1),
        "energy": np.where(total > 0, within / np.where(total > 0, total, 1), box.mean(axis=1)),
    }


@dataclass(frozen=True)
class Figure:
    """A mean over images, with its 95 % interval over patients; (NaN, NaN) where there is none."""

    mean: float
    low: float
    high: float

    @classmethod
    def of_share(cls, values: np.ndarray, patient: np.ndarray) -> "Figure":
        """Of values from 0 to 1."""
        return cls(float(values.mean()), *share_interval(values, patient))

    @classmethod
    def of_difference(cls, values: np.ndarray, others: np.ndarray, patient: np.ndarray) -> "Figure":
        """Paired: each image with itself. Patients count by their images, as in the mean."""
        apart = values - others
        number = np.unique(patient, return_inverse=True)[1]
        images = np.bincount(number)
        mean = float(apart.mean())
        # of a ratio: what each patient's images add to the mean, as if patients were the rows
        pull = np.bincount(number, weights=apart - mean) / images.mean()
        interval = mean_interval(mean + pull, Resampling(0.0))
        return cls(mean, *(interval or (float("nan"), float("nan"))))


@dataclass(frozen=True)
class Localised:
    """One measure of a finding (or of all of them, ``) in as many images of as many patients."""

    finding: str
    measure: str
    images: int
    patients: int
    area: float  # mean share of the image that its boxes cover: what a point set at random would hit
    figure: Figure
    against: Mapping[str, tuple[Figure, Figure]]  # by what it is compared with: its figure, and the difference


def localised(
    maps: np.ndarray, places: Marked, against: Mapping[str, np.ndarray], findings: Sequence[str]
) -> list[Localised]:
    """By finding, then of all. `against` are other maps of the same places by name."""
    own = measures(maps, places.inside)
    others = {name: measures(other, places.inside) for name, other in against.items()}
    groups = [(name, places.finding == number) for number, name in enumerate(findings)]
    groups = [(name, chosen) for name, chosen in groups if chosen.any()]
    if len(groups) != 1:
        groups.append(("", np.ones(len(places), dtype=bool)))
    result = []
    for name, chosen in groups:
        if not chosen.any():
            continue
        patient = places.patient[chosen]
        for measure in MEASURES:
            values = own[measure][chosen]
            compared = {
                other: (
                    Figure.of_share(figures[measure][chosen], patient),
                    Figure.of_difference(values, figures[measure][chosen], patient),
                )
                for other, figures in others.items()
            }
            counts = int(chosen.sum()), len(np.unique(patient)), float(places.inside[chosen].mean())
            result.append(Localised(name, measure, *counts, Figure.of_share(values, patient), compared))
    return result
