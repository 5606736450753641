"""Synthetic ECGs of several hospitals: six rhythms with known truth, and a device of its own at each hospital.

Everything is drawn from formulas; no patient is behind any of it. Made for comparing ways of training, and for trying a
study before there are data.
"""

from collections.abc import Iterator
from typing import Annotated

import numpy as np
import pandas as pd

from wardround.core.errors import StudyError, suggest
from wardround.core.notices import Notice
from wardround.core.seeds import generator
from wardround.core.settings import Count, NonNegative, Range, WholeNumber
from wardround.data.records import Records, Source
from wardround.data.signals.recording import fitted, resampled
from wardround.data.signals.summaries import summary_table
from wardround.data.sources.ecg.devices import device_of, places_of, recorded
from wardround.data.sources.ecg.rhythms import (
    BEATS_A_MINUTE,
    LEADS,
    RHYTHMS,
    SHARES,
    ST,
    Heart,
    draw_beats,
    draw_heart_beats,
    fibrillation,
)
from wardround.study.facts import SourceFacts, declares

CITATION = (
    "McSharry, Clifford, Tarassenko, Smith. A dynamical model for generating synthetic electrocardiogram signals. "
    "IEEE Trans Biomed Eng 2003;50:289-294 (the shape of a beat)"
)
MOST_RECORDINGS = 5  # of a patient
SAME = 0.8  # of a patient's later recordings show the rhythm of the first
TOGETHER = 128  # recordings that are drawn at once


@declares(SourceFacts(citation=CITATION, tasks={"": "multiclass"}, same_rows=("summary",)))
def synthetic_ecg(
    rows: Count = 2000,
    hospitals: Count = 4,
    rate: Annotated[float, Range(low=50, high=500)] = 100.0,
    seconds: Annotated[float, Range(low=4, high=60)] = 10.0,
    leads: tuple[str, ...] = ("I", "II"),
    recordings_per_patient: Annotated[float, Range(low=1, high=4)] = 1.3,
    skew: Annotated[float, Range(low=0, high=3)] = 0.6,
    devices: Annotated[float, Range(low=0, high=2)] = 1.0,
    noise: NonNegative = 1.0,
    summary: bool = False,
    seed: WholeNumber = 0,
) -> Source:
    """Synthetic electrocardiograms in millivolts with one of six rhythms, `rows` in all, at `rate` samples a second.

    `skew` is how much hospitals differ in what they see, `devices` how much their devices do (sampling rate, gain,
    mains, baseline, one without the first lead), `noise` how strong what disturbs a recording is. Some recordings end
    early, in some an electrode is off for a while. With `summary` the rows are a table of summary features instead.
    """
    for lead in leads:
        if lead not in LEADS:
            raise StudyError("data: leads", f"{lead!r} is not a lead", suggest(lead, LEADS, "Leads"))
    if not leads or len(set(leads)) < len(leads):
        raise StudyError("data: leads", "the list is empty or names one twice", "Name each lead once.")

    def load() -> Records:
        parts = list(_hospitals(rows, hospitals, seed, skew, recordings_per_patient))
        signals = np.concatenate(
            [_signals(part, rate, seconds, leads, devices, noise, seed) for part in parts], dtype=np.float32
        )
        people = pd.concat([part.people for part in parts], ignore_index=True)
        features, columns = summary_table(signals, rate, leads) if summary else (signals, ())
        details = {"what": "recordings", "recipe": "ECGs drawn from formulas"}
        return Records(
            features=features,
            target=np.concatenate([part.rhythm for part in parts]),
            classes=RHYTHMS,
            hospital=np.repeat([part.name for part in parts], [len(part.rhythm) for part in parts]).astype(object),
            columns=columns,
            patient=people["patient"].to_numpy(object),
            groups=people[["sex", "age"]],
            notes=(Notice("synthetic-rows", "info", counts={"rows": rows, "seed": seed}, details=details),),
            synthetic=True,
            channels=() if summary else leads,
            rate=None if summary else rate,
        )

    return Source(load)


class _Hospital:
    """Its patients and their rhythms, before anything is drawn of their hearts."""

    def __init__(self, number: int, rows: int, seed: int, skew: float, per_patient: float) -> None:
        self.number, self.name = number, f"synthetic-{number + 1}"
        draws = generator(seed, "ecg patients", site=str(number))
        more = np.minimum(draws.poisson(per_patient - 1, rows), MOST_RECORDINGS - 1)
        patient = np.repeat(np.arange(rows), 1 + more)[:rows]
        count = int(patient[-1]) + 1
        tilted = np.array(SHARES) * np.exp(skew * draws.standard_normal(len(SHARES)))
        own = draws.choice(len(RHYTHMS), size=count, p=tilted / tilted.sum())
        other = draws.choice(len(RHYTHMS), size=rows, p=tilted / tilted.sum())
        self.rhythm = np.where(draws.random(rows) < SAME, own[patient], other).astype(np.int64)
        age = np.clip(np.round(58 + 16 * draws.standard_normal(count)), 18, 95)
        sex = np.where(draws.random(count) < 0.45, "female", "male")
        self.traits = draws.standard_normal((count, len(LEADS) + 1))[patient]
        names = np.array([f"{self.name}-{place}" for place in range(count)], dtype=object)
        self.people = pd.DataFrame({"patient": names[patient], "sex": sex[patient], "age": age[patient]})


def _hospitals(rows: int, hospitals: int, seed: int, skew: float, per_patient: float) -> Iterator[_Hospital]:
    for number, part in enumerate(np.array_split(np.arange(rows), hospitals)):
        if len(part):
            yield _Hospital(number, len(part), seed, skew, per_patient)


def _heart(hospital: _Hospital, some: slice, draws: np.random.Generator) -> Heart:
    rhythm, traits = hospital.rhythm[some], hospital.traits[some]
    low, high = np.array(BEATS_A_MINUTE, dtype=float).T / 60
    moment = 0.06 * draws.standard_normal((len(rhythm), len(LEADS)))
    raised = draws.uniform(0.35, 1.1, len(rhythm))
    return Heart(
        rhythm=rhythm,
        rate=draws.uniform(low[rhythm], high[rhythm]),
        size=np.exp(0.25 * traits[:, :1] + 0.15 * traits[:, : len(LEADS)] + moment),
        width=np.exp(0.08 * traits[:, -1]),
        elevation=np.where(rhythm == ST, raised, 0.08 * draws.standard_normal(len(rhythm))),
    )


def _signals(
    hospital: _Hospital, rate: float, seconds: float, leads: tuple[str, ...], devices: float, noise: float, seed: int
) -> np.ndarray:
    """At the study's rate: what the hospital's device has recorded, as any recording is read."""
    device, places = device_of(hospital.number, devices, noise, seed), places_of(leads)
    count, samples = int(seconds * device.rate), int(seconds * rate)
    parts = []
    for block, begin in enumerate(range(0, len(hospital.rhythm), TOGETHER)):
        some = slice(begin, begin + TOGETHER)
        draws = generator(seed, "ecg recordings", block, str(hospital.number))
        heart = _heart(hospital, some, draws)
        signal = draw_heart_beats(heart, draw_beats(heart, seconds, draws), places, device.rate, count)
        signal += fibrillation(heart, places, device.rate, count, draws)
        parts.append(fitted(resampled(recorded(signal, device, draws), device.rate, rate), samples))
    return np.concatenate(parts)
