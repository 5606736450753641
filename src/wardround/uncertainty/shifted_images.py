"""Test images unlike the training images: inverted, upside down, noise, or a drawn limb instead of a chest.

The limb has one or two long bones; no patient is behind it.
Brightness is what a ray meets on its way: flesh is a long cylinder, a bone a tube with a dense wall. A model of chests
has seen rays through flesh and bone, but not in this arrangement.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from wardround.core import seeds
from wardround.data.brightness import LEAST_SPREAD
from wardround.data.site import Rows, Site, as_numbers

WALL = 0.55  # of a bone's radius is hollow, or nearly so


def drawn_limbs(count: int, height: int, width: int, rng: np.random.Generator) -> np.ndarray:
    """(count, height, width), each pixel from 0 to 1. Limbs lie at any angle, as images of them do."""
    angle = rng.uniform(0, np.pi, count)[:, None, None]
    y, x = np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij")
    shift = rng.uniform(-0.15, 0.15, count)[:, None, None]
    lateral = np.cos(angle) * x + np.sin(angle) * y - shift
    along = np.cos(angle) * y - np.sin(angle) * x
    flesh = rng.uniform(0.4, 0.65, count)[:, None, None] * (1 + 0.15 * along)  # thicker towards the body
    brightness = 0.45 * _through(lateral, flesh)
    two = rng.random(count)[:, None, None] < 0.5
    bone = rng.uniform(0.12, 0.2, count)[:, None, None]
    bone = bone * (1 + 0.5 * along**4)  # wider towards the joints
    for sign in (-1, 1):
        place = np.where(two, sign * 0.45 * flesh, 0.0)
        strength = np.where(two, 1.0, 0.5)  # a single one is drawn by both
        brightness += strength * (
            0.55 * _through(lateral - place, bone) - 0.25 * _through(lateral - place, WALL * bone)
        )
    brightness += rng.normal(0, 0.02, brightness.shape)
    return np.asarray(np.clip(brightness, 0, 1), dtype=np.float32)


def _through(distance: np.ndarray, radius: np.ndarray) -> np.ndarray:
    """The way of a ray through a cylinder, as a share of the longest one."""
    return np.asarray(np.sqrt(np.clip(1 - (distance / radius) ** 2, 0, None)))


Shift = Literal["inverted", "noise", "upside down", "limb"]
SHIFTS: tuple[Shift, ...] = get_args(Shift)
MOST_IMAGES = 500  # of all sites together


def chosen_images(sites: Sequence[Site], seed: int) -> dict[str, np.ndarray]:
    """By site the places of some of its test images, as many as its share of all; empty where rows are no images."""
    sizes = [len(site.test) for site in sites]
    if not sum(sizes) or any(site.test.x.dim() != 4 for site in sites):
        return {}
    count = min(MOST_IMAGES, sum(sizes))
    chosen = {}
    for site, size in zip(sites, sizes, strict=True):
        rng = seeds.generator(seed, "images to change", site=site.name)
        chosen[site.name] = np.sort(rng.choice(size, count * size // sum(sizes), replace=False))
    return chosen


def shifted_rows(
    site: Site, chosen: np.ndarray, shift: Shift, seed: int, each_image: bool, dtype: torch.dtype = torch.float32
) -> Rows:
    """The chosen test rows with other pixels; labels, and columns beside the image, stay.

    Where images are scaled one by one (`each_image`), changed ones are scaled by what they have become.
    """
    rows, places = site.test, torch.from_numpy(chosen)
    at = places if rows.index is None else rows.index[places.to(rows.index.device)]
    pixels = as_numbers(rows.x[at], dtype)
    changed = _changed(pixels, shift, seeds.generator(seed, "noise for images", site=site.name))
    levels = None if rows.levels is None else rows.levels[places]
    if levels is not None and each_image:
        flat = changed.flatten(1)
        levels = torch.stack([flat.mean(1), flat.std(1, unbiased=False).clamp(min=LEAST_SPREAD)], dim=1)
    tabular = None if rows.tabular is None else rows.tabular[places]
    return Rows(changed, rows.y[at], levels=levels, tabular=tabular)


def _changed(pixels: Tensor, shift: Shift, rng: np.random.Generator) -> Tensor:
    if shift == "inverted":
        return 1 - pixels
    if shift == "upside down":
        return pixels.flip(2)
    if shift == "limb":
        count, channels, height, width = pixels.shape
        limbs = torch.from_numpy(drawn_limbs(count, height, width, rng)).to(pixels)
        return limbs.unsqueeze(1).expand(-1, channels, -1, -1)
    return torch.from_numpy(rng.random(tuple(pixels.shape), dtype=np.float32)).to(pixels)
