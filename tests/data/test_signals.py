"""Sources of signals: WFDB records, arrays and visits, at one rate and length, with their gaps."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.data.signal_files import TWELVE, wave, write_record
from wardround.core.errors import DataError, StudyError
from wardround.data.cohort import load_cohort, prepare_sites, split_sites
from wardround.data.describe import describe_data
from wardround.data.partition import PARTITIONERS
from wardround.data.records import Records
from wardround.data.signals.recording import fitted, resampled
from wardround.data.signals.summaries import FEATURES, summary
from wardround.data.sources import SOURCES
from wardround.study.schema import Evaluation, Preparation

NAN = np.nan


def load(source: str, **settings: Any) -> Records:
    return SOURCES[source](**settings).load()


# Resampling


@pytest.mark.parametrize(("rate", "to"), [(500, 100), (360, 100), (250, 100), (100, 250), (257, 100), (128, 128)])
def test_a_slow_wave_is_the_same_wave_at_another_rate(rate: float, to: float) -> None:
    """A sine is known at every rate. Within a hundredth, away from the ends where the filter has one side only."""
    new = resampled(wave(rate, 6, 3)[None], rate, to)[0]
    expected = wave(to, 6, 3)
    assert abs(len(new) - len(expected)) <= 1
    middle = slice(len(expected) // 10, -len(expected) // 10)
    np.testing.assert_allclose(new[: len(expected)][middle], expected[middle], atol=0.01)


def test_what_a_lower_rate_cannot_show_does_not_come_back_as_something_else() -> None:
    """60 Hz at 500 samples a second would be 40 Hz at 100: the filter takes it away."""
    hum = resampled(wave(500, 4, 60)[None], 500, 100)[0]
    assert np.abs(hum[40:-40]).max() < 0.02


def test_gaps_stay_where_they_were() -> None:
    values = wave(500, 4, 2)[None].repeat(2, axis=0)
    values[0, 1000:1500] = NAN
    new = resampled(values, 500, 100)
    assert np.flatnonzero(np.isnan(new[0])).tolist() == list(range(200, 300))
    assert not np.isnan(new[1]).any()
    np.testing.assert_allclose(new[0, 20:190], wave(100, 4, 2)[20:190], atol=0.02)
    assert np.isnan(resampled(np.full((1, 50), NAN), 500, 100)).all()


def test_a_row_is_cut_or_followed_by_gaps() -> None:
    values = np.arange(6.0)[None]
    assert fitted(values, 4).tolist() == [[0, 1, 2, 3]]
    longer = fitted(values, 8)[0]
    assert longer[:6].tolist() == list(range(6))
    assert np.isnan(longer[6:]).all()


# WFDB


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A 12-lead record of 500 Hz, a longer one of two leads and 250 Hz, a short one of 360 Hz with a gap."""
    rows = np.stack([wave(500, 4, 2, size) for size in np.linspace(0.5, 1.6, 12)])
    write_record(tmp_path, "long", rows, TWELVE, "500", ["Age: 63", "Sex: Female", "Dx: sinus"])
    two = np.stack([wave(250, 9, 2, 1.0), wave(250, 9, 2, 0.3)])
    write_record(tmp_path, "two", two, ("II", "V5"), "250", ["Age: 71", "Dx: fibrillation"])
    short = wave(360, 2, 2)[None].repeat(2, axis=0)
    short[1, 180:360] = NAN
    write_record(tmp_path / "deeper", "short", short, ("i", "ii"), "360", ["Dx: sinus"])
    return tmp_path


def test_records_of_any_rate_and_leads_are_read_alike(folder: Path) -> None:
    records = load("wfdb", path=folder, target="Dx", positive="fibrillation", seconds=4, channels=("I", "II"))
    assert records.is_signals
    assert records.features.shape == (3, 2, 400)
    assert (records.channels, records.rate, records.classes) == (("I", "II"), 100.0, ("sinus", "fibrillation"))
    rows = {name: np.asarray(records.features)[row] for row, name in enumerate(("short", "long", "two"))}
    np.testing.assert_allclose(rows["long"][1][20:-20], wave(100, 4, 2, 0.6)[20:-20], atol=0.01)
    assert np.isnan(rows["two"][0]).all()  # it has no lead I
    np.testing.assert_allclose(rows["two"][1][20:380], wave(100, 4, 2)[20:380], atol=0.01)
    assert np.flatnonzero(~np.isnan(rows["short"][0])).tolist() == list(range(200))
    assert np.flatnonzero(np.isnan(rows["short"][1][:200])).tolist() == list(range(50, 100))
    assert records.groups["age"].tolist()[1:] == [63, 71]
    assert [notice.counts for notice in records.notices if notice.code == "signal-lengths"] == [
        {"recordings": 3, "cut": 1, "short": 1, "gaps": 2}
    ]


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # of pandas, about how the package writes
def test_the_package_writes_what_is_read(tmp_path: Path) -> None:
    wfdb = pytest.importorskip("wfdb")
    values = np.stack([wave(128, 3, 1), wave(128, 3, 1.5)])
    wfdb.wrsamp("ours", 128, ["mV", "mV"], ["MLII", "V1"], values.T, fmt=["212", "212"], write_dir=str(tmp_path))
    (tmp_path / "labels.csv").write_text("record,rhythm\nours,yes\n")
    records = load("wfdb", path=tmp_path, target="rhythm", rate=128, seconds=3, classes=("no", "yes"))
    np.testing.assert_allclose(np.asarray(records.features)[0], values, atol=0.002)


def test_a_table_names_records_patients_and_hospitals(folder: Path) -> None:
    table = "record,rhythm,patient,hospital\nlong,sinus,7,north\ndeeper/short.hea,flutter,7,south\ntwo,,8,north\n"
    (folder / "labels.csv").write_text(table)
    records = load("wfdb", path=folder, target="rhythm", positive="flutter", seconds=4, channels=("I", "II"))
    assert records.hospital.tolist() == ["north", "south"]
    assert records.classes == ("sinus", "flutter")
    assert records.patient is not None
    assert len(set(records.patient.tolist())) == 2  # number 7 of two hospitals
    assert [notice.counts for notice in records.notices if notice.code == "rows-without-target"] == [
        {"rows": 1, "of": 3}
    ]


def test_a_signal_without_a_sampling_rate_is_one_clear_error(tmp_path: Path) -> None:
    """WFDB's reader would take 250; nothing of the kind happens here."""
    write_record(tmp_path / "records", "none", wave(100, 2, 1)[None], ("I",), "", ["Dx: yes"])
    write_record(tmp_path / "records", "rated", wave(100, 2, 1)[None], ("I",), "100", ["Dx: no"])
    np.savez(tmp_path / "a.npz", signals=np.zeros((3, 1, 50)), label=np.array([0, 1, 0]))
    np.save(tmp_path / "a.npy", np.zeros((3, 1, 50)))
    (tmp_path / "labels.csv").write_text("label\nno\nyes\nno\n")
    for source, settings in (
        ("wfdb", {"path": tmp_path / "records", "target": "Dx"}),
        ("signal-arrays", {"path": tmp_path / "a.npz"}),
        ("signal-arrays", {"path": tmp_path / "a.npy"}),
    ):
        with pytest.raises(DataError, match="names no sampling rate") as refused:
            load(source, **settings)
        assert "samples it has in a second" in refused.value.remedy


# Arrays


def arrays(**changes: Any) -> dict[str, Any]:
    signals = np.stack([np.stack([wave(200, 3, 2), wave(200, 3, 1)])] * 6).astype(np.float32)
    signals[1, :, 300:] = NAN
    return {
        "signals": signals,
        "rate": np.float64(200),
        "channels": np.array(["I", "II"]),
        "label": np.array([0, 1, 1, 0, 1, 0]),
        "class_names": np.array(["no", "yes"]),
        "patient": np.array(["a", "a", "b", "c", "d", "e"]),
        "age": np.array([50, 50, 61, 62, 63, 64]),
        **changes,
    }


def test_arrays_bring_all_that_is_known_of_them(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **arrays())
    records = load("signal-arrays", path=tmp_path / "a.npz", seconds=3)
    assert records.features.shape == (6, 2, 300)
    assert records.classes == ("no", "yes")
    assert records.target.tolist() == [0, 1, 1, 0, 1, 0]
    assert records.patient is not None
    assert len(set(records.patient.tolist())) == 5
    assert records.groups["age"].tolist() == [50, 50, 61, 62, 63, 64]
    assert np.isnan(np.asarray(records.features)[1, :, 150:]).all()
    np.save(tmp_path / "a.npy", arrays()["signals"])
    (tmp_path / "labels.csv").write_text("label,patient\n0,a\n1,a\n1,b\n0,c\n1,d\n0,e\n")
    plain = load("signal-arrays", path=tmp_path / "a.npy", recorded_rate=200, seconds=3)
    np.testing.assert_array_equal(np.asarray(plain.features), np.asarray(records.features))


def test_any_number_of_labels_and_numbers_are_predicted_too(tmp_path: Path) -> None:
    labels = np.array([[1, 0], [0, 0], [1, 1], [0, -1], [1, 0], [0, 1]])
    np.savez(tmp_path / "f.npz", **arrays(label=labels, class_names=np.array(["AF", "block"])))
    findings = load("signal-arrays", path=tmp_path / "f.npz", seconds=3)
    assert findings.has_findings
    assert findings.classes == ("AF", "block")
    np.testing.assert_array_equal(findings.target, labels)
    np.savez(tmp_path / "r.npz", **arrays(label=np.array([1.5, 2, 3, 4, 5, 6])))
    number = load("signal-arrays", path=tmp_path / "r.npz", seconds=3, task="regression")
    assert number.task.answers == "number"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"signals": np.zeros((6, 2))}, "its signals are 6 x 2 of float64"),
        ({"signals": np.zeros((6, 2, 3), dtype=complex)}, "complex128"),
        ({"signals": np.full((6, 2, 600), NAN)}, "nothing was measured in 6 of 6"),
        ({"rate": np.array([100.0, 200.0])}, "does not hold one sampling rate"),
        ({"rate": np.float64("nan")}, "does not hold one sampling rate"),
        ({"rate": np.array(["fast"])}, "does not hold one sampling rate"),
        ({"channels": np.array(["I", "II", "III"])}, "has 2 channels, and 3 are named"),
        ({"label": np.array([0, 1])}, "label has 2 rows"),
        ({"label": np.zeros((6, 3), dtype=int)}, "has 3 columns of labels for 2 names"),
        ({"label": np.full((6, 2), 4)}, "has 2 columns of labels"),
    ],
)
def test_arrays_of_another_form_are_refused(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays(**changes))
    with pytest.raises(DataError, match=problem):
        load("signal-arrays", path=tmp_path / "a.npz", seconds=3)


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="not an array that can be read"):
        load("signal-arrays", path=tmp_path / "a.npy", recorded_rate=1)
    np.savez(tmp_path / "a.npz", signals=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError, match="not an array that can be read"):
        load("signal-arrays", path=tmp_path / "a.npz", recorded_rate=1)


# Visits

VISITS = """patient,time,pulse,pressure,died,sex
b,10,80,,no,f
a,3,71,120,yes,m
b,4,82,130,no,f
a,1,70,118,yes,m
c,7,,140,no,f
a,9,75,,yes,m
"""


def test_visits_become_sequences_in_order_of_time(tmp_path: Path) -> None:
    (tmp_path / "v.csv").write_text(VISITS)
    records = load("visit-sequences", path=tmp_path / "v.csv", target="died", visits=2)
    assert records.channels == ("pulse", "pressure", "time since the last visit")
    assert records.rate is None
    assert records.target.tolist() == [0, 1, 0]  # b, a, c, in the order of the file
    expected = [
        [[82, 80], [130, NAN], [0, 6]],
        [[71, 75], [120, NAN], [2, 6]],  # the last two of three visits, each with the time since the one before
        [[NAN, NAN], [140, NAN], [0, NAN]],
    ]
    np.testing.assert_array_equal(np.asarray(records.features), expected)
    assert records.groups["sex"].tolist() == ["female", "male", "female"]


def test_labels_of_patients_may_be_a_table_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "v.csv").write_text(VISITS.replace("died", "note"))
    (tmp_path / "l.csv").write_text("patient,days\na,3\nb,5\nc,\n")
    records = load(
        "visit-sequences", path=tmp_path / "v.csv", labels=tmp_path / "l.csv", target="days", task="regression"
    )
    assert len(records) == 2
    (tmp_path / "l.csv").write_text("patient,days\na,3\nb,5\n")
    with pytest.raises(DataError, match="1 of 3 patients with visits are not in it"):
        load("visit-sequences", path=tmp_path / "v.csv", labels=tmp_path / "l.csv", target="days", task="regression")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("a,1,70,118,yes", "a,1,70,118,no", "changes from visit to visit of 1 of 3 patients"),
        ("a,1,", "a,soon,", "1 values of 'time' are neither numbers nor dates"),
        ("a,1,", ",1,", "1 visits have no 'patient'"),
        ("patient,time", "patient,when", "no column 'time'"),
    ],
)
def test_visits_that_cannot_be_ordered_are_refused(tmp_path: Path, old: str, new: str, problem: str) -> None:
    (tmp_path / "v.csv").write_text(VISITS.replace(old, new))
    with pytest.raises(DataError, match=problem) as refused:
        load("visit-sequences", path=tmp_path / "v.csv", target="died", values=("pulse", "pressure"))
    assert "soon" not in str(refused.value)


# Sites


def test_channels_are_scaled_over_what_was_measured_and_patients_stay_together(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    signals = rng.normal(5.0, 3.0, (60, 2, 100))
    signals[:, 1] = 100 + 10 * rng.normal(size=(60, 100))
    signals[::3, :, 60:] = NAN
    people = np.repeat(np.arange(20), 3)
    labels = np.array(["no", "yes"])[rng.integers(0, 2, 60)]
    np.savez(tmp_path / "a.npz", signals=signals, rate=100.0, label=labels, patient=people.astype(str))
    source = SOURCES["signal-arrays"](path=tmp_path / "a.npz", seconds=1)
    cohort = load_cohort(source, Preparation())
    splits = split_sites(cohort, PARTITIONERS["by-hospital"](), Evaluation(test_share=0.3), 1)
    assert not set(cohort.patient[splits[0].train]) & set(cohort.patient[splits[0].test])
    scales = Preparation(), Preparation(scale="federated"), Preparation(scale="record")
    for preparation, rows in zip(scales, ("train", "train", "test"), strict=True):
        (site,) = prepare_sites(cohort, splits, preparation, torch.float64)
        x = getattr(site, rows).take(torch.arange(len(getattr(site, rows))), torch.float64)[0].numpy()
        for channel in (0, 1):
            numbers = x[:, channel][~np.isnan(x[:, channel])]
            assert numbers.mean() == pytest.approx(0, abs=1e-5)
            assert numbers.std() == pytest.approx(1, abs=1e-4)
    with pytest.raises(StudyError, match="is for images"):
        prepare_sites(cohort, splits, Preparation(scale="image"), torch.float64)


def test_a_summary_counts_beats() -> None:
    beats = np.zeros(1000)
    beats[50::80] = 1.0  # every 0.8 seconds at 100 samples a second
    told = dict(zip(FEATURES, summary(beats, 100), strict=True))
    assert told["peaks a second"] == pytest.approx(12 / 10)
    assert told["mean interval"] == pytest.approx(0.8)
    assert told["SD of intervals"] == pytest.approx(0, abs=1e-12)
    assert np.isnan(summary(np.full(10, NAN), 100)[0])


def test_signals_are_described_without_a_value(folder: Path, tmp_path: Path) -> None:
    write_record(folder, "none", wave(100, 2, 1)[None], ("I",), "")
    described = describe_data(str(folder))
    assert described["rows"] == 4
    assert any("250 (1)" in line and "500 (1)" in line for line in described["summary"])
    assert any("not usable: 1 records: names no sampling rate" in line for line in described["summary"])
    np.savez(tmp_path / "a.npz", **arrays())
    assert "1 with gaps" in describe_data(str(tmp_path / "a.npz"))["summary"]
