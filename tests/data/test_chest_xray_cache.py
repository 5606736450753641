"""The cache: decoded once, whoever asks and whatever dies; never a half, never a stale one, never all in memory."""

import os
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.nih_folders import NAMES, first_pixels, grey, images, nih_folder
from wardround.core.errors import DataError, MachineError
from wardround.data.imaging import cache as store
from wardround.data.imaging.decode import Picture
from wardround.data.sources.chest_xray import chest_xray


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were decoded, in order of their end."""
    names: list[str] = []
    real = store.decode

    def decode(path: Path, size: int, clahe: bool, channels: int) -> Picture:
        names.append(path.name)
        return real(path, size, clahe, channels)

    monkeypatch.setattr(store, "decode", decode)
    return names


def conversions(cache: Path) -> list[Path]:
    return sorted(path for path in cache.iterdir() if path.is_dir())


def test_a_second_load_decodes_nothing_and_gives_the_same(tmp_path: Path, decoded: list[str]) -> None:
    folder = nih_folder(tmp_path)
    first = chest_xray(folder, size=8).load()
    assert sorted(decoded) == sorted(NAMES)
    decoded.clear()
    second = chest_xray(folder, size=8).load()
    assert decoded == []
    assert images(first).tobytes() == images(second).tobytes()
    assert first.prints is not None
    assert second.prints is not None
    assert first.prints.tolist() == second.prints.tolist()
    assert first.notes == second.notes
    assert first.groups.equals(second.groups)


def test_problems_are_told_from_the_cache_as_well(tmp_path: Path, decoded: list[str]) -> None:
    folder = nih_folder(tmp_path)
    (folder / "images_001" / "images" / NAMES[1]).write_bytes(b"")
    with pytest.raises(DataError) as first:
        chest_xray(folder, size=8).load()
    decoded.clear()
    with pytest.raises(DataError) as second:
        chest_xray(folder, size=8).load()
    assert str(first.value) == str(second.value)
    assert len(chest_xray(folder, size=8, accept=("unreadable",)).load()) == 3
    assert decoded == []


def test_what_stops_a_study_stops_it_before_anything_is_decoded(tmp_path: Path, decoded: list[str]) -> None:
    folder = nih_folder(tmp_path)
    (folder / "images_001" / "images" / NAMES[1]).unlink()
    with pytest.raises(DataError, match="missing"):
        chest_xray(folder, size=8).load()
    assert decoded == []


def test_a_second_load_writes_nothing_so_that_a_cache_to_be_read_only_does(tmp_path: Path) -> None:
    folder = nih_folder(tmp_path)
    (folder / "images_001" / "images" / NAMES[1]).unlink()
    Image.fromarray(grey(1, side=9)).save(folder / "images_001" / "images" / NAMES[2])
    source = chest_xray(folder, size=8, accept=("missing", "other-size"))
    source.load()
    before = {each: (each.stat().st_ino, each.stat().st_mtime_ns) for each in (folder / store.FOLDER).rglob("*")}
    source.load()
    assert {each: (each.stat().st_ino, each.stat().st_mtime_ns) for each in before} == before
    assert set((folder / store.FOLDER).rglob("*")) == set(before)


def test_other_findings_or_labels_need_no_decoding(tmp_path: Path, decoded: list[str]) -> None:
    folder = nih_folder(tmp_path)
    chest_xray(folder, size=8).load()
    decoded.clear()
    records = chest_xray(folder, size=8, findings=("Hernia",), uncertain="one").load()
    assert decoded == []
    assert records.target.tolist() == [[0], [0], [0], [1]]
    (folder / "Data_Entry_2017.csv").write_text(
        (folder / "Data_Entry_2017.csv").read_text().replace("No Finding", "Hernia")
    )
    changed = chest_xray(folder, size=8, findings=("Hernia",)).load()
    assert decoded == []
    assert changed.target.tolist() == [[0], [0], [1], [1]]
    assert changed.prints is not None
    assert records.prints is not None
    assert (changed.prints != records.prints).tolist() == [False, False, True, False]


def test_prints_come_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = nih_folder(tmp_path)
    first = chest_xray(folder, size=8).load()

    def refuse(pixels: np.ndarray, target: np.ndarray) -> np.ndarray:
        raise AssertionError("computed again")

    monkeypatch.setattr(store, "prints_of", refuse)
    again = chest_xray(folder, size=8).load()
    assert first.prints is not None
    assert again.prints is not None
    assert first.prints.tolist() == again.prints.tolist()


def test_an_image_that_changed_on_disk_is_decoded_anew(tmp_path: Path, decoded: list[str]) -> None:
    folder = nih_folder(tmp_path)
    chest_xray(folder, size=8).load()
    path = folder / "images_001" / "images" / NAMES[2]
    before = path.stat()
    Image.fromarray(grey(99)).save(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    decoded.clear()
    assert first_pixels(chest_xray(folder, size=8).load()) == [10, 20, 99, 40]
    assert len(decoded) == 4


def test_sizes_do_not_disturb_each_other_and_old_contents_do_not_pile_up(tmp_path: Path, decoded: list[str]) -> None:
    folder = nih_folder(tmp_path)
    chest_xray(folder, size=16).load()
    path = folder / "images_001" / "images" / NAMES[0]
    for value in range(5):
        Image.fromarray(grey(value)).save(path)
        os.utime(path, (value, value))
        assert first_pixels(chest_xray(folder, size=8).load())[0] == value
    sizes = [each.name.split("px")[0] for each in conversions(folder / store.FOLDER)]
    assert sizes == ["16", "8", "8"]  # the two latest of 8 pixels; that of 16 is not theirs
    decoded.clear()
    assert first_pixels(chest_xray(folder, size=8).load())[0] == 4
    assert decoded == []


def test_the_cache_is_for_its_owner_only_and_beside_the_data(tmp_path: Path) -> None:
    folder = nih_folder(tmp_path / "data")
    chest_xray(folder, size=8).load()
    cache = folder / ".wardround-cache"
    assert cache.stat().st_mode & 0o777 == 0o700
    assert [each.stat().st_mode & 0o777 for each in conversions(cache)] == [0o700]
    assert {each.name.split("-")[0] for each in conversions(cache)[0].iterdir()} == {
        "images.npy",
        "facts.parquet",
        "prints",
    }
    before = sorted(tmp_path.rglob("*"))
    chest_xray(folder, size=8, cache=tmp_path / "scratch" / "here").load()
    assert {each.parts[len(tmp_path.parts)] for each in set(tmp_path.rglob("*")) - set(before)} == {"scratch"}


def test_a_place_that_cannot_be_written_names_the_setting(tmp_path: Path) -> None:
    folder = nih_folder(tmp_path)
    (tmp_path / "a-file").write_text("")
    with pytest.raises(MachineError, match="cannot be kept here") as caught:
        chest_xray(folder, size=8, cache=tmp_path / "a-file" / "cache").load()
    assert "data.cache" in caught.value.remedy


def test_a_full_disk_names_the_setting_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = nih_folder(tmp_path)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(MachineError, match="No space left on device"):
        chest_xray(folder, size=8).load()
    assert conversions(folder / store.FOLDER) == []
    monkeypatch.undo()
    assert len(chest_xray(folder, size=8).load()) == 4


def test_a_damaged_conversion_says_what_to_delete(tmp_path: Path) -> None:
    folder = nih_folder(tmp_path)
    chest_xray(folder, size=8).load()
    (conversion,) = conversions(folder / store.FOLDER)
    content = (conversion / "images.npy").read_bytes()
    (conversion / "images.npy").write_bytes(content[:-1])
    with pytest.raises(DataError, match="damaged") as caught:
        chest_xray(folder, size=8).load()
    assert caught.value.where == str(conversion)
    shutil.rmtree(conversion)
    assert first_pixels(chest_xray(folder, size=8).load()) == [10, 20, 30, 40]


def test_two_at_once_share_one_conversion(tmp_path: Path, decoded: list[str]) -> None:
    folder = nih_folder(tmp_path)
    with ThreadPoolExecutor(4) as pool:
        loads = [pool.submit(chest_xray(folder, size=8).load) for _ in range(4)]
        pixels = [images(load.result(timeout=60)).tobytes() for load in loads]
    assert len(set(pixels)) == 1
    assert len(decoded) == 4  # each image once, though four asked
    assert len(conversions(folder / store.FOLDER)) == 1


def test_a_killed_first_run_leaves_nothing_that_counts(tmp_path: Path) -> None:
    folder = nih_folder(tmp_path)
    code = (
        "import sys, time; from pathlib import Path\n"
        "from wardround.data.imaging import cache\n"
        "from wardround.data.sources.chest_xray import chest_xray\n"
        "cache.decode = lambda *arguments: time.sleep(600)\n"
        "chest_xray(Path(sys.argv[1]), size=8).load()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(folder)])
    try:
        deadline = time.monotonic() + 60
        while not list(folder.glob(".wardround-cache/*.partial/images.npy")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
    assert [each.suffix for each in conversions(folder / store.FOLDER)] == [".partial"]
    assert first_pixels(chest_xray(folder, size=8).load()) == [10, 20, 30, 40]
    assert [each.suffix for each in conversions(folder / store.FOLDER)] == [""]  # what was left is gone


def test_a_failure_in_the_middle_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = nih_folder(tmp_path)

    def fail(path: Path, size: int, clahe: bool, channels: int) -> Picture:
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "decode", fail)
    with pytest.raises(KeyboardInterrupt):
        chest_xray(folder, size=8).load()
    assert conversions(folder / store.FOLDER) == []


def test_images_are_mapped_and_torch_takes_them_without_a_warning(tmp_path: Path) -> None:
    folder = nih_folder(tmp_path)
    pixels = images(chest_xray(folder, size=8).load())
    assert isinstance(pixels, np.memmap)
    tensor = torch.from_numpy(np.ascontiguousarray(pixels))
    assert tensor.data_ptr() == pixels.ctypes.data  # no copy
    tensor[0] = 255  # goes to memory, never to the file
    assert first_pixels(chest_xray(folder, size=8).load()) == [10, 20, 30, 40]


def test_converting_holds_a_chunk_of_images_and_never_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count, size = 200, 256
    rows = [f"{number:08}_000.png,No Finding,0,{number}" for number in range(count)]
    pictures = {row.split(",")[0]: grey(number, side=size) for number, row in enumerate(rows)}
    folder = nih_folder(tmp_path, pictures, rows, "Image Index,Finding Labels,Follow-up #,Patient ID")
    monkeypatch.setattr(store, "CHUNK", 2**20)  # 16 images at a time
    tracemalloc.start()
    try:
        records = chest_xray(folder, size=size).load()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert images(records).nbytes == count * size**2  # 13 MB
    assert peak < 5 * 2**20
    assert first_pixels(records) == [number % 256 for number in range(count)]
