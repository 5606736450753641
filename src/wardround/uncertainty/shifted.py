"""Test images that are no longer what a model was trained on: inverted, upside down, or in their place noise or a
drawn limb: another part of the body."""

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from wardround import seeds
from wardround.data.pixels import LEAST_SPREAD
from wardround.data.site import Rows, Site, as_numbers
from wardround.uncertainty.limbs import drawn_limbs

Shift = Literal["inverted", "noise", "upside down", "limb"]
SHIFTS: tuple[Shift, ...] = get_args(Shift)
MOST_IMAGES = 500  # of all sites together


def chosen_images(sites: Sequence[Site], seed: int) -> dict[str, np.ndarray]:
    """By site the places of some of its test images, as many as its share of all; empty where rows are no images."""
    sizes = [len(site.test) for site in sites]
    if not sum(sizes) or any(site.test.x.dim() != 4 for site in sites):
        return {}
    wanted = min(MOST_IMAGES, sum(sizes))
    made = {}
    for site, size in zip(sites, sizes, strict=True):
        rng = seeds.generator(seed, "images to change", site=site.name)
        made[site.name] = np.sort(rng.choice(size, wanted * size // sum(sizes), replace=False))
    return made


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
    beside = None if rows.beside is None else rows.beside[places]
    return Rows(changed, rows.y[at], levels=levels, beside=beside)


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
