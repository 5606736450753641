"""The heart's part of a synthetic ECG: when it beats, and the waves of each beat in each lead.

A beat is a sum of bell-shaped waves, as in McSharry et al., IEEE Trans Biomed Eng 2003;50:289-294. Rates, intervals and
sizes of waves are what textbooks call usual; they are made for comparing ways of training, not of hearts.
"""

from dataclasses import dataclass

import numpy as np

RHYTHMS = (
    "sinus rhythm",
    "bradycardia",
    "tachycardia",
    "atrial fibrillation",
    "premature beats",
    "ST elevation",
)
BEATS_A_MINUTE = ((62, 98), (40, 56), (104, 145), (62, 135), (62, 98), (62, 104))  # of each rhythm, lowest and highest
SHARES = (0.34, 0.12, 0.12, 0.16, 0.14, 0.12)
AF, PREMATURE, ST = (RHYTHMS.index(name) for name in ("atrial fibrillation", "premature beats", "ST elevation"))

LEADS = ("I", "II", "III", "aVR", "aVL", "aVF", "V1", "V2", "V3", "V4", "V5", "V6")
# each wave's place in seconds from the R wave, its width as an SD in seconds, and its size in millivolts in every lead
WAVES = {
    "P": (-0.17, 0.022, (0.07, 0.13, 0.06, -0.10, 0.02, 0.09, 0.05, 0.07, 0.07, 0.07, 0.06, 0.06)),
    "Q": (-0.026, 0.008, (-0.06, -0.08, -0.05, 0.07, -0.03, -0.06, 0.0, 0.0, -0.02, -0.05, -0.08, -0.08)),
    "R": (0.0, 0.011, (0.65, 1.05, 0.45, -0.85, 0.25, 0.75, 0.18, 0.40, 0.75, 1.25, 1.20, 0.95)),
    "S": (0.028, 0.010, (-0.12, -0.16, -0.10, 0.12, -0.08, -0.12, -0.75, -1.05, -0.80, -0.40, -0.18, -0.08)),
    "T": (0.30, 0.050, (0.17, 0.26, 0.09, -0.21, 0.05, 0.17, 0.02, 0.28, 0.32, 0.32, 0.26, 0.20)),
    "ST": (0.13, 0.055, (0.10, 0.22, 0.14, -0.15, -0.05, 0.18, 0.12, 0.20, 0.22, 0.20, 0.14, 0.10)),
}
# of a beat that begins in a ventricle: wide, without a P wave before it, and with a T wave to the other side
ECTOPIC = {
    "R": (0.0, 0.032, 1.0),
    "S": (0.085, 0.03, -0.4),
    "T": (0.32, 0.06, -0.45),
}
BEFORE, AFTER = 0.32, 0.62  # seconds around an R wave in which its waves are
AT_ONCE = 2048  # beats


@dataclass(frozen=True)
class Beats:
    """Of all recordings, one beat after another."""

    row: np.ndarray
    at: np.ndarray  # seconds
    interval: np.ndarray  # to the beat before
    ectopic: np.ndarray


@dataclass(frozen=True)
class Heart:
    """What is a recording's own: of its patient, and of the day."""

    rhythm: np.ndarray
    rate: np.ndarray  # beats in a second
    size: np.ndarray  # (rows, leads), around 1
    width: np.ndarray  # around 1
    elevation: np.ndarray  # of the ST segment, around 1 where there is one; a little in others


def draw_beats(heart: Heart, seconds: float, draws: np.random.Generator) -> Beats:
    """From a beat before the recording's beginning to one after its end."""
    rows = len(heart.rhythm)
    most = int(np.ceil((seconds + 4) * heart.rate.max(initial=1) * 1.6)) + 4
    even = 1 + 0.025 * draws.standard_normal((rows, most))
    breath = 1 + 0.03 * np.sin(2 * np.pi * (0.25 * np.arange(most) / heart.rate[:, None] + draws.random((rows, 1))))
    uneven = np.clip(draws.gamma(20.0, 1 / 20.0, (rows, most)), 0.45, 2.0)  # every beat comes when it likes
    fibrillates = (heart.rhythm == AF)[:, None]
    interval = np.where(fibrillates, uneven, even * breath) / heart.rate[:, None]
    early = (draws.random((rows, most)) < 0.12) & (heart.rhythm == PREMATURE)[:, None]
    early[:, 1:] &= ~early[:, :-1]  # not two in a row
    early[heart.rhythm == PREMATURE, 3] |= ~early[heart.rhythm == PREMATURE, 2:5].any(axis=1)  # at least one is seen
    before = np.roll(early, 1, axis=1)
    before[:, 0] = False
    interval = interval * np.where(early, 0.62, np.where(before & ~fibrillates, 1.38, 1.0))  # and a pause after it
    at = np.cumsum(interval, axis=1) - interval[:, :1] * (1 + draws.random((rows, 1)))
    there = (at > -AFTER) & (at < seconds + BEFORE)
    row, _ = np.nonzero(there)
    return Beats(row, at[there], interval[there], early[there])


def draw_heart_beats(heart: Heart, beats: Beats, leads: np.ndarray, rate: float, samples: int) -> np.ndarray:
    """(rows, leads, samples) in millivolts at the device's rate. `leads` are places in `LEADS`."""
    rows = len(heart.rhythm)
    signal = np.zeros((rows, len(leads), samples))
    window = np.arange(-int(BEFORE * rate), int(AFTER * rate) + 1)
    for begin in range(0, len(beats.row), AT_ONCE):
        some = slice(begin, begin + AT_ONCE)
        row, first = beats.row[some], np.rint(beats.at[some] * rate).astype(np.int64)
        time = (first[:, None] + window) / rate - beats.at[some, None]
        waves = _waves(heart, beats, some, leads, time)
        place = first[:, None] + window
        inside = (place >= 0) & (place < samples)
        flat = (row[:, None] * samples + place)[inside]
        for lead in range(len(leads)):
            added = np.bincount(flat, waves[:, lead][inside], minlength=rows * samples)
            signal[:, lead] += added.reshape(rows, samples)
    return signal


def _waves(heart: Heart, beats: Beats, some: slice, leads: np.ndarray, time: np.ndarray) -> np.ndarray:
    """(beats, leads, places of the window)."""
    row, ectopic = beats.row[some], beats.ectopic[some]
    stretch = np.sqrt(np.clip(beats.interval[some], 0.35, 1.5) / 0.85)  # what follows comes later at a slow rate
    total = np.zeros((len(row), len(leads), time.shape[1]))

    def add(place: np.ndarray, width: np.ndarray, size: np.ndarray) -> None:
        bell = np.exp(-0.5 * np.square((time - place[:, None]) / width[:, None]))
        np.add(total, size[:, :, None] * bell[:, None, :], out=total)

    own = heart.size[row][:, leads]
    narrow = heart.width[row]
    for name, (place, width, sizes) in WAVES.items():
        size = own * np.array(sizes)[leads] * _presence(name, heart, row, ectopic)[:, None]
        late = stretch if place > 0.05 else np.ones(len(row))
        add(place * late, width * (narrow if name in "QRS" else late), size)
    if ectopic.any():
        main = own * np.array(WAVES["R"][2])[leads] * ectopic[:, None]
        for place, width, part in ECTOPIC.values():
            add(np.full(len(row), place), width * narrow, part * main)
    return total


def _presence(name: str, heart: Heart, row: np.ndarray, ectopic: np.ndarray) -> np.ndarray:
    """How much of a wave a beat has."""
    if name == "ST":
        return np.asarray(heart.elevation[row] * ~ectopic)
    if name == "P":
        return np.asarray((heart.rhythm[row] != AF) & ~ectopic, dtype=np.float64)
    return np.asarray(~ectopic, dtype=np.float64)


def fibrillation(heart: Heart, leads: np.ndarray, rate: float, samples: int, draws: np.random.Generator) -> np.ndarray:
    """The small quick waves of atria that fibrillate, 5 to 9 in a second; nothing in other rhythms."""
    rows, time = len(heart.rhythm), np.arange(samples) / rate
    tones = draws.uniform(5, 9, (rows, 3)), draws.uniform(0, 2 * np.pi, (rows, 3)), draws.uniform(0.3, 1, (rows, 3))
    of_lead = 0.03 * (0.5 + draws.random((rows, len(LEADS))))[:, leads]
    waves = np.zeros((rows, len(leads), samples))
    who = np.flatnonzero(heart.rhythm == AF)
    often, phase, size = (part[who] for part in tones)
    tones_together = np.zeros((len(who), samples))
    for k in range(3):
        tones_together += size[:, k, None] * np.sin(2 * np.pi * often[:, k, None] * time + phase[:, k, None])
    waves[who] = of_lead[who][:, :, None] * tones_together[:, None]
    return waves
