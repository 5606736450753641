"""The hospital's part of a synthetic ECG: its device, and what comes between a heart and a file."""

from dataclasses import dataclass

import numpy as np

from wardround.core.seeds import generator
from wardround.data.sources.ecg.rhythms import LEADS

RATES = (500, 250, 360, 300)  # samples in a second, of the first devices; later hospitals buy them again
GAINS = (1.0, 0.75, 1.3, 0.9)  # a millivolt in the file over a millivolt at the skin: one that is well calibrated has 1
MAINS = (50, 60, 50, 60)  # Hz
LOST = 0.15  # of the recordings: an electrode is off for a while
SHORT = 0.2  # of the recordings: they end early
LEAST_SECONDS = 0.5  # of the length, that a short one has


@dataclass(frozen=True)
class Device:
    rate: int
    gain: float
    mains: int
    hum: float  # mV of mains noise
    wander: float  # mV of the baseline's slow waves
    grain: float  # mV, SD
    lacks_first: bool  # a device with an electrode less records the study's first lead not at all


def device_of(number: int, strength: float, noise: float, seed: int) -> Device:
    """`strength` is how much devices differ: with 0 all are one."""
    draws = generator(seed, "ecg devices", site=str(number))
    own = draws.uniform(0.4, 1.6, 3)
    hum, wander, grain = noise * np.array([0.08, 0.2, 0.06]) * (1 + min(strength, 1.0) * (own - 1))
    place = number % len(RATES) if strength else 0
    return Device(
        rate=RATES[place],
        gain=float(GAINS[place] ** strength),
        mains=MAINS[place],
        hum=float(hum),
        wander=float(wander),
        grain=float(grain),
        lacks_first=strength > 0 and place == 3,
    )


def recorded(heart: np.ndarray, device: Device, draws: np.random.Generator) -> np.ndarray:
    """What the device makes of it, in 32 bits, NaN where it records nothing. (rows, leads, samples)."""
    rows, leads, samples = heart.shape
    time = np.arange(samples) / device.rate
    phase = draws.uniform(0, 2 * np.pi, (rows, leads, 3, 1))
    slow = draws.uniform(0.08, 0.4, (rows, 1, 2, 1))
    sizes = draws.uniform(0.2, 1, (rows, leads, 3, 1))
    hum = sizes[:, :, 2] * np.sin(2 * np.pi * device.mains * time + phase[:, :, 2])
    wander = (sizes[:, :, :2] * np.sin(2 * np.pi * slow * time + phase[:, :, :2])).sum(2)
    grain = device.grain * draws.standard_normal(heart.shape)
    signal = (device.gain * (heart + device.hum * hum + device.wander * wander + grain)).astype(np.float32)
    seconds = samples / device.rate
    off = draws.random((rows, leads)) < LOST / leads
    begin, length = draws.uniform(0, 0.8, (rows, leads)) * seconds, draws.uniform(0.5, 2.0, (rows, leads))
    gone = off[:, :, None] & (time >= begin[:, :, None]) & (time < (begin + length)[:, :, None])
    ends = np.where(draws.random(rows) < SHORT, draws.uniform(LEAST_SECONDS, 1, rows), 1.0) * seconds
    signal[gone | (time >= ends[:, None, None])] = np.nan
    if device.lacks_first and leads > 1:
        signal[:, 0] = np.nan
    return np.asarray(signal)


def places_of(leads: tuple[str, ...]) -> np.ndarray:
    return np.array([LEADS.index(lead) for lead in leads])
