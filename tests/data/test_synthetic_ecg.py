"""Synthetic ECGs show the rhythm that they are said to show, and are called synthetic."""

import numpy as np
import pytest
from scipy.signal import find_peaks

from wardround.core.errors import StudyError
from wardround.data.records import Records
from wardround.data.sources import SOURCES
from wardround.data.sources.ecg.devices import device_of
from wardround.data.sources.ecg.rhythms import BEATS_A_MINUTE, RHYTHMS

QUIET = {"hospitals": 1, "devices": 0, "noise": 0.0, "leads": ("II",), "recordings_per_patient": 1, "skew": 0.0}


@pytest.fixture(scope="module")
def quiet() -> Records:
    """One hospital without disturbances, 30 seconds each."""
    return SOURCES["synthetic-ecg"](rows=180, seconds=30, rate=100, **QUIET).load()


def intervals(samples: np.ndarray) -> np.ndarray:
    """Between R waves, in seconds, up to the first gap."""
    known = samples[: int(np.argmax(np.isnan(samples)))] if np.isnan(samples).any() else samples
    peaks, _ = find_peaks(known, height=0.5 * known.max(), distance=25)
    return np.asarray(np.diff(peaks) / 100)


def of_rhythm(records: Records, name: str) -> list[np.ndarray]:
    rows = np.flatnonzero(records.target == RHYTHMS.index(name))
    found = [intervals(np.asarray(records.features)[row, 0]) for row in rows]
    return [own for own in found if len(own) >= 6]


@pytest.mark.parametrize("name", ["sinus rhythm", "bradycardia", "tachycardia", "atrial fibrillation", "ST elevation"])
def test_hearts_beat_as_often_as_their_rhythm_says(quiet: Records, name: str) -> None:
    low, high = BEATS_A_MINUTE[RHYTHMS.index(name)]
    rates = [60 / own.mean() for own in of_rhythm(quiet, name)]
    assert len(rates) >= 5
    assert low * 0.93 < min(rates)
    assert max(rates) < high * 1.07


def test_beats_come_unevenly_in_fibrillation_and_early_in_premature_beats(quiet: Records) -> None:
    unevenness = {
        name: np.median([own.std() / own.mean() for own in of_rhythm(quiet, name)])
        for name in ("sinus rhythm", "tachycardia", "atrial fibrillation")
    }
    assert unevenness["atrial fibrillation"] > 2.5 * max(unevenness["sinus rhythm"], unevenness["tachycardia"])
    shortest = [own.min() / np.median(own) for own in of_rhythm(quiet, "premature beats")]
    assert np.mean(np.array(shortest) < 0.8) > 0.9
    assert np.mean([own.min() / np.median(own) < 0.8 for own in of_rhythm(quiet, "sinus rhythm")]) < 0.1


def test_the_same_seed_draws_the_same_and_another_draws_others() -> None:
    first, again, other = (SOURCES["synthetic-ecg"](rows=40, seconds=4, seed=s).load() for s in (3, 3, 4))
    np.testing.assert_array_equal(first.features, again.features)
    assert not np.array_equal(first.features, other.features, equal_nan=True)
    assert first.synthetic
    assert all("synthetic" in name for name in first.hospitals)
    assert [notice.code for notice in first.notices] == ["synthetic-rows"]


def test_hospitals_have_devices_of_their_own() -> None:
    devices = [device_of(number, 1.0, 1.0, 0) for number in range(4)]
    assert len({(device.rate, device.gain, device.mains) for device in devices}) == 4
    assert len({device_of(number, 0.0, 1.0, 0) for number in range(4)}) == 1
    records = SOURCES["synthetic-ecg"](rows=80, seconds=4).load()
    signals, home = np.asarray(records.features), records.hospital
    assert np.isnan(signals[home == "synthetic-4", 0]).all()  # its device lacks the first lead
    assert not np.isnan(signals[home != "synthetic-4", 0]).all(axis=1).any()
    size = {name: np.nanstd(signals[home == name, 1]) for name in records.hospitals}
    assert size["synthetic-3"] > 1.3 * size["synthetic-2"]


def test_patients_have_several_recordings_of_one_hospital() -> None:
    records = SOURCES["synthetic-ecg"](rows=200, seconds=4, recordings_per_patient=2).load()
    assert records.patient is not None
    assert len(set(records.patient.tolist())) < 150
    homes: dict[str, set[str]] = {}
    for patient, hospital in zip(records.patient.tolist(), records.hospital.tolist(), strict=True):
        homes.setdefault(patient, set()).add(hospital)
    assert all(len(names) == 1 for names in homes.values())


def test_summaries_are_the_same_rows_as_a_table() -> None:
    signals, table = (SOURCES["synthetic-ecg"](rows=40, seconds=4, summary=s).load() for s in (False, True))
    assert table.is_table
    assert not table.is_signals
    np.testing.assert_array_equal(signals.target, table.target)
    np.testing.assert_array_equal(signals.patient, table.patient)


def test_leads_are_those_of_an_ecg() -> None:
    with pytest.raises(StudyError, match="'V9' is not a lead"):
        SOURCES["synthetic-ecg"](leads=("II", "V9"))
    assert SOURCES["synthetic-ecg"](rows=4, seconds=4, leads=("V1", "V6", "aVR")).load().features.shape == (4, 3, 400)
