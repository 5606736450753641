"""How bright images are, and the scale that each site's images are brought to before training.

`scale` in [data]: "per-site" (the site's own training pixels to mean 0 and SD 1), "federated" (those of all sites that
train, by summed statistics), "image" (each image by itself, which takes away what a scanner does to its brightness),
"ranges" and "none" (pixels from 0 to 1 as they are).
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from wardround.study.schema import Preparation

CHUNK = 1024  # images at a time: they may be a memory map larger than the machine's memory
LEAST_SPREAD = 1 / 255  # one grey value: images of one colour have no spread


def brightness(images: np.ndarray) -> np.ndarray:
    """Mean and mean square of each image's pixels: (images, 2). Bytes count from 0 to 1, anything else as it is."""
    whole = np.float32(255 if images.dtype == np.uint8 else 1)
    statistics = np.empty((len(images), 2))
    for begin in range(0, len(images), CHUNK):
        chunk, rows = np.asarray(images[begin : begin + CHUNK]), slice(begin, begin + CHUNK)
        numbers = chunk.reshape(len(chunk), -1).astype(np.float32) / whole
        statistics[rows, 0] = numbers.mean(axis=1, dtype=np.float64)
        statistics[rows, 1] = np.square(numbers, out=numbers).mean(axis=1, dtype=np.float64)
    return statistics


def levels(
    bright: np.ndarray, train: Mapping[str, np.ndarray], members: Sequence[str], preparation: Preparation
) -> dict[str, np.ndarray] | None:
    """Centre and spread for the rows of each site: one pair, or one for each image; None where nothing is scaled.

    `train` are each site's training rows. A site outside `members` is scaled as a newcomer: by its own rows, or by what
    the members have in common.
    """
    if preparation.scale in ("ranges", "none"):
        return None
    if preparation.scale == "image":
        return dict.fromkeys(train, _centre_and_spread(bright[:, 0], bright[:, 1]))
    own = {site: bright[rows].mean(axis=0) for site, rows in train.items()}
    if preparation.scale == "federated":
        sizes = np.array([len(train[site]) for site in members], dtype=np.float64)
        common = np.average(np.stack([own[site] for site in members]), axis=0, weights=sizes)
        own = dict.fromkeys(train, common)
    return {site: _centre_and_spread(*statistics) for site, statistics in own.items()}


def _centre_and_spread(mean: np.ndarray, square: np.ndarray) -> np.ndarray:
    spread = np.sqrt(np.maximum(square - mean**2, 0))
    return np.stack([mean, np.maximum(spread, LEAST_SPREAD)], axis=-1)


def levels_of(scale: np.ndarray, rows: np.ndarray) -> torch.Tensor:
    """For these rows: one pair serves all, or each has its own; of signals, each channel of each."""
    chosen = scale[rows] if scale.ndim >= 2 else np.broadcast_to(scale, (len(rows), 2))
    return torch.from_numpy(np.ascontiguousarray(chosen, dtype=np.float32))
