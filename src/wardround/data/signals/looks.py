"""A few numbers that tell what a recording looks like: what bundles go by to notice one unlike the training recordings,
and what sites are compared by. Samples themselves are at no same time in two recordings."""

from collections.abc import Sequence

import numpy as np

LOOKS = ("mean", "SD", "lowest", "highest", "change", "measured")
CHUNK = 256  # recordings at a time


def look_names(channels: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{channel} {look}" for channel in channels for look in LOOKS)


def looks_of_signals(signals: np.ndarray) -> np.ndarray:
    """(recordings, channels x LOOKS), over what was measured; zeros where nothing was."""
    looks = np.zeros((len(signals), signals.shape[1], len(LOOKS)))
    for begin in range(0, len(signals), CHUNK):
        part = np.asarray(signals[begin : begin + CHUNK], dtype=np.float64)
        known = ~np.isnan(part)
        count, some = np.maximum(known.sum(-1), 1), known.any(-1)
        numbers = np.where(known, part, 0.0)
        mean = numbers.sum(-1) / count
        variance = np.where(known, np.square(part - mean[..., None]), 0.0).sum(-1) / count
        steps = np.abs(np.diff(part))
        both = ~np.isnan(steps)
        own = (
            mean,
            np.sqrt(variance),
            np.where(some, np.where(known, part, np.inf).min(-1), 0.0),
            np.where(some, np.where(known, part, -np.inf).max(-1), 0.0),
            np.where(both, steps, 0.0).sum(-1) / np.maximum(both.sum(-1), 1),
            known.mean(-1),
        )
        looks[begin : begin + CHUNK] = np.stack(own, axis=-1)
    return looks.reshape(len(signals), -1)
