"""Mutated files of signals: each is read, or refused with one clear error."""

from pathlib import Path

import numpy as np
import pytest

from tests.data.hostile_files.file_mutations import Tried, mutated_bytes
from tests.data.signal_files import wave, write_record
from wardround.core.errors import DataError
from wardround.core.seeds import generator
from wardround.data.sources import SOURCES

VISITS = "patient,time,pulse,died\n" + "\n".join(
    f"{row % 5},{row},{60 + row},{('no', 'yes')[row % 5 > 2]}" for row in range(30)
)
PARTS = [
    pytest.param(range(40), id="sample"),
    *(pytest.param(range(begin, begin + 100), id=f"from-{begin}", marks=pytest.mark.slow) for begin in (40, 140)),
]


@pytest.mark.parametrize("chosen", PARTS)
def test_mutated_records(chosen: range, tmp_path: Path) -> None:
    """Header or samples of one of two records."""
    tried = Tried()
    for name, label in (("first", "no"), ("second", "yes")):
        write_record(tmp_path / "r", name, np.stack([wave(100, 2, 3)] * 2), ("I", "II"), "100", [f"Dx: {label}"])
    for number in chosen:
        rng = generator(7, "mutated records", number)
        file = tmp_path / "r" / f"second.{'hea' if rng.random() < 0.7 else 'dat'}"
        whole = file.read_bytes()
        file.write_bytes(mutated_bytes(whole, rng))
        source = SOURCES["wfdb"](path=tmp_path / "r", target="Dx", seconds=2)
        tried.call(f"record {number}", source.load)
        file.write_bytes(whole)
    tried.check()


@pytest.mark.parametrize("chosen", PARTS)
def test_mutated_arrays_and_visits(chosen: range, tmp_path: Path) -> None:
    tried = Tried()
    rng = np.random.default_rng(1)
    signals = rng.normal(size=(8, 2, 40)).astype(np.float32)
    label = np.array(["no", "yes"])[np.arange(8) % 2]
    np.savez(tmp_path / "a.npz", signals=signals, rate=100.0, label=label, patient=np.arange(8))
    np.save(tmp_path / "a.npy", signals)
    (tmp_path / "labels.csv").write_text("label\n" + "\n".join(label))
    (tmp_path / "v.csv").write_text(VISITS)
    sources = {
        "a.npz": lambda: SOURCES["signal-arrays"](path=tmp_path / "a.npz", seconds=0.4).load(),
        "a.npy": lambda: SOURCES["signal-arrays"](path=tmp_path / "a.npy", recorded_rate=100, seconds=0.4).load(),
        "v.csv": lambda: SOURCES["visit-sequences"](path=tmp_path / "v.csv", target="died", visits=4).load(),
    }
    for number in chosen:
        name = list(sources)[number % 3]
        file = tmp_path / name
        whole = file.read_bytes()
        file.write_bytes(mutated_bytes(whole, generator(7, "mutated signals", number)))
        tried.call(f"{name} {number}", sources[name])
        file.write_bytes(whole)
    tried.check()


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        ("x 1 100 200\n../secret.dat 16 1000 16 0 0 0 0 I\n", "a file of samples that is not beside it"),
        ("x 1 100 200\n/etc/passwd 16 1000 16 0 0 0 0 I\n", "a file of samples that is not beside it"),
        ("x 1 100 999999999999\nx.dat 16 1000 16 0 0 0 0 I\n", "more than fit into memory"),
        ("x 1 0 200\nx.dat 16 1000 16 0 0 0 0 I\n", "no sampling rate that can be|cannot be read"),
        ("x 1 nan 200\nx.dat 16 1000 16 0 0 0 0 I\n", "no sampling rate that can be|cannot be read"),
        ("x/3 1 100 200\n", "several segments"),
        ("", "no record line"),
    ],
)
def test_a_header_reaches_for_nothing_beyond_its_folder(tmp_path: Path, header: str, problem: str) -> None:
    (tmp_path / "secret.dat").write_bytes(b"\0" * 400)
    write_record(tmp_path / "r", "x", wave(100, 2, 1)[None], ("I",), "100", ["Dx: yes"])
    write_record(tmp_path / "r", "y", wave(100, 2, 1)[None], ("I",), "100", ["Dx: no"])
    (tmp_path / "r" / "x.hea").write_text(f"{header}# Dx: yes\n")
    with pytest.raises(DataError, match=problem):
        SOURCES["wfdb"](path=tmp_path / "r", target="Dx").load()
