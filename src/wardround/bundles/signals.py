"""Signals as a bundle's model takes them: channels, length, sampling rate and scale."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch

from wardround.bundles.sealed_files import refuse_if
from wardround.data.signals.looks import LOOKS, looks_of_signals
from wardround.data.signals.recording import is_rate
from wardround.data.signals.scale import centre_and_spread, statistics
from wardround.data.site import scaled

MOST_NUMBERS = 1 << 24  # of a row
SCALES = {
    "none": "numbers count as they are",
    "site": "each channel is brought to the scale of this site's training recordings",
    "record": "each channel of each recording is brought to mean 0 and SD 1 by itself",
}


@dataclass(frozen=True)
class Signals:
    """`levels` are each channel's centre and spread, used where `scale` is "site"."""

    channels: tuple[str, ...]
    samples: int
    rate: float | None  # None: visits, at any distance
    scale: Literal["none", "site", "record"]
    levels: tuple[tuple[float, float], ...] = ()

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.channels), self.samples

    @property
    def looks(self) -> int:
        """How many numbers show whether a row is out of distribution."""
        return len(self.channels) * len(LOOKS)

    @property
    def looked_at(self) -> str:
        return "each channel's mean, SD, lowest and highest value, change from sample to sample and measured share"

    def looks_of(self, signals: np.ndarray) -> np.ndarray:
        return looks_of_signals(signals)

    def numbers(self, signals: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
        """Scaled as in training."""
        whole = torch.from_numpy(np.ascontiguousarray(signals)).to(dtype)
        if self.scale == "none":
            return whole
        levels = centre_and_spread(statistics(signals)) if self.scale == "record" else np.array(self.levels)
        each = np.broadcast_to(levels, (len(signals), len(self.channels), 2))
        return scaled(whole, torch.from_numpy(np.ascontiguousarray(each, dtype=np.float32)))

    def on_card(self) -> dict[str, Any]:
        length = self.samples / (self.rate or 1)
        return {"channels": list(self.channels), "rate": self.rate, "length": length, "scale": SCALES[self.scale]}

    def written(self) -> dict[str, Any]:
        return asdict(self)


def read_signals(content: Mapping[str, Any]) -> Signals:
    rate = content["rate"]
    signals = Signals(
        tuple(map(str, content["channels"])),
        int(content["samples"]),
        None if rate is None else float(rate),
        content["scale"],
        tuple((float(centre), float(spread)) for centre, spread in content["levels"]),
    )
    count = len(signals.channels)
    refuse_if(
        signals.scale not in ("none", "site", "record") or not 0 < count * signals.samples <= MOST_NUMBERS,
        "signals of this kind are not supported",
    )
    levels = np.array(signals.levels, dtype=float).reshape(-1, 2)
    refuse_if(
        len(levels) != (count if signals.scale == "site" else 0)
        or not np.isfinite(levels).all()
        or bool((levels[:, 1] <= 0).any())
        or not (signals.rate is None or is_rate(signals.rate)),
        "signals are scaled by something that is not a number, or by 0",
    )
    return signals
