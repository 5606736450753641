"""The scale that signals are brought to before training, channel by channel, over what was measured.

`scale` in [data]: "per-site" (the site's own training recordings to mean 0 and SD 1), "federated" (those of all sites
that train, by summed statistics), "record" (each recording by itself, which takes away what a device does to its size),
"ranges" and "none" (as they are).
"""

from collections.abc import Mapping, Sequence

import numpy as np

from wardround.core.errors import StudyError
from wardround.study.schema import Preparation

CHUNK = 256  # recordings at a time
FLAT = 1e-9  # a channel that varies less is moved, and left as large as it is


def statistics(signals: np.ndarray) -> np.ndarray:
    """(recordings, channels, 3): how many samples were measured, their sum and the sum of their squares."""
    sums = np.empty((*signals.shape[:2], 3))
    for begin in range(0, len(signals), CHUNK):
        chunk = np.asarray(signals[begin : begin + CHUNK], dtype=np.float64)
        known = ~np.isnan(chunk)
        numbers = np.where(known, chunk, 0.0)
        of_chunk = (known.sum(-1), numbers.sum(-1), np.square(numbers).sum(-1))
        sums[begin : begin + CHUNK] = np.stack(of_chunk, axis=-1)
    return sums


def signal_levels(
    sums: np.ndarray, train: Mapping[str, np.ndarray], members: Sequence[str], preparation: Preparation
) -> dict[str, np.ndarray] | None:
    """By site, centre and spread of each row's channels: (rows, channels, 2). None where nothing is scaled.

    `sums` are the statistics of all rows, `train` each site's training rows. A site outside `members` is scaled as a
    newcomer: by its own rows, or by what the members have in common.
    """
    if preparation.scale == "image":
        remedy = 'Write `scale = "record"`: each recording by itself.'
        raise StudyError("data: scale", '"image" is for images, and these data are signals', remedy)
    if preparation.scale in ("ranges", "none"):
        return None
    if preparation.scale == "record":
        return dict.fromkeys(train, centre_and_spread(sums))
    own = {site: sums[rows].sum(axis=0) for site, rows in train.items()}
    if preparation.scale == "federated":
        own = dict.fromkeys(train, np.sum([own[site] for site in members], axis=0))
    whole = (len(sums), sums.shape[1], 2)
    return {site: np.broadcast_to(centre_and_spread(of_site), whole) for site, of_site in own.items()}


def centre_and_spread(sums: np.ndarray) -> np.ndarray:
    """Of each channel. One that was never measured is left as it is."""
    count, total, squares = np.moveaxis(sums, -1, 0)
    mean = total / np.maximum(count, 1)
    spread = np.sqrt(np.maximum(squares / np.maximum(count, 1) - mean**2, 0))
    return np.stack([mean, np.where(spread > FLAT, spread, 1.0)], axis=-1)
