"""MedMNIST-style archives: made by hand and broken in every way that happens, and the real subset of NIH's images."""

import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.nih_folders import first_pixels, images, noticed
from tests.real_data import shared_data
from wardround.core.errors import DataError, MachineError, StudyError
from wardround.core.notices import Notice
from wardround.data.imaging import npz
from wardround.data.imaging.finding_names import FINDINGS
from wardround.data.records import Records
from wardround.data.sources.chest_xray import chest_xray
from wardround.data.split import fingerprints


def arrays(sides: tuple[str, ...] = ("train", "val", "test"), count: int = 4, side: int = 28) -> dict[str, np.ndarray]:
    """Image i of all is all `i`; it has finding i, counted round."""
    contents = {}
    for place, name in enumerate(sides):
        numbers = np.arange(place * count, (place + 1) * count)
        contents[f"{name}_images"] = np.broadcast_to(numbers[:, None, None], (count, side, side)).astype(np.uint8)
        contents[f"{name}_labels"] = np.eye(14, dtype=np.uint8)[numbers % 14]
    return contents


def written(path: Path, **content: np.ndarray) -> Path:
    np.savez_compressed(path, **content)  # type: ignore[arg-type]
    return path


def test_chestmnist_has_pixels_labels_and_sides_but_no_people(tmp_path: Path) -> None:
    records = chest_xray(written(tmp_path / "chestmnist.npz", **arrays()), size=28).load()
    assert images(records).shape == (12, 1, 28, 28)
    assert first_pixels(records) == list(range(12))
    assert records.classes == FINDINGS
    assert records.target.tolist() == np.eye(14, dtype=int)[:12].tolist()
    assert records.target.dtype == np.int64
    assert records.split is not None
    assert records.split.tolist() == ["train"] * 4 + ["validation"] * 4 + ["test"] * 4
    assert records.patient is None
    assert len(records.groups) == 12
    assert list(records.groups.columns) == []
    assert noticed(records, "no-patient-column").details == {"images": True}
    assert not (tmp_path / ".wardround-cache").exists()


def test_an_archive_may_lack_sides(tmp_path: Path) -> None:
    records = chest_xray(written(tmp_path / "a.npz", **arrays(("test",))), size=28).load()
    assert records.split is not None
    assert records.split.tolist() == ["test"] * 4


def test_images_are_resized_in_memory_and_it_is_said(tmp_path: Path) -> None:
    path = written(tmp_path / "a.npz", **arrays())
    records = chest_xray(path, size=12).load()
    assert images(records).shape == (12, 1, 12, 12)
    assert first_pixels(records) == list(range(12))
    counts = {"width": 28, "height": 28, "size": 12}
    assert Notice("images-rescaled", "info", counts=counts, files=("train_images",)) in records.notices


def test_findings_and_uncertain_labels_hold_here_too(tmp_path: Path) -> None:
    content = arrays(("train",))
    content["train_labels"] = np.array([[1, -1], [0, 1], [-1, -1], [0, 0]], dtype=np.int8)
    content["label_names"] = np.array(["Edema", "pleural"])
    path = written(tmp_path / "a.npz", **content)
    records = chest_xray(path, size=28, findings=("Pleural_Thickening",)).load()
    assert records.classes == ("pleural",)
    assert records.target[:, 0].tolist() == [-1, 1, -1, 0]
    assert noticed(records, "uncertain-labels").counts == {"labels": 2, "images": 2}
    both = ("Edema", "pleural")
    assert chest_xray(path, size=28, findings=both, uncertain="one").load().target.tolist() == [
        [1, 1],
        [0, 1],
        [1, 1],
        [0, 0],
    ]
    zero_records = chest_xray(path, size=28, findings=both, uncertain="zero").load()
    assert zero_records.target.tolist() == [[1, 0], [0, 1], [0, 0], [0, 0]]
    assert noticed(zero_records, "uncertain-labels").counts == {"labels": 3, "images": 2}
    with pytest.raises(StudyError, match=r"'Hernia' is not a finding of a\.npz"):
        chest_xray(path, size=28, findings=("Hernia",)).load()


def test_colour_and_sixteen_bits_are_converted_and_said_or_refused(tmp_path: Path) -> None:
    content = arrays(("train", "test"))
    red = np.zeros((4, 28, 28, 3), dtype=np.uint8)
    red[..., 0] = 255
    content["train_images"] = red
    content["test_images"] = np.full((4, 28, 28), 25_700, dtype=np.uint16)  # 100 of 255
    path = written(tmp_path / "a.npz", **content)
    records = chest_xray(path, size=28).load()
    assert first_pixels(records) == [76] * 4 + [100] * 4
    assert noticed(records, "image-colour").files == ("train_images",)
    assert noticed(records, "image-16-bit").files == ("test_images",)
    with pytest.raises(DataError, match=r"test_images.*\(16-bit\).*train_images.*\(colour\)"):
        chest_xray(path, size=28, accept=()).load()


def test_a_channel_axis_of_one_is_no_colour(tmp_path: Path) -> None:
    content = arrays(("train",))
    content["train_images"] = content["train_images"][..., np.newaxis]
    assert first_pixels(chest_xray(written(tmp_path / "a.npz", **content), size=28, accept=()).load()) == [0, 1, 2, 3]


def test_rows_keep_whole_patients(tmp_path: Path) -> None:
    content = arrays(("train", "test"), count=30)
    content["train_patient_id"] = np.repeat(np.arange(10), 3)
    content["test_patient_id"] = np.repeat(np.arange(10, 20), 3)
    path = written(tmp_path / "a.npz", **content)
    records = chest_xray(path, size=28, rows=12, seed=1).load()
    assert np.bincount(records.units).tolist() == [3] * 4
    assert records.target.argmax(axis=1).tolist() == [value % 14 for value in first_pixels(records)]
    everything = chest_xray(path, size=28).load()
    assert everything.patient is not None
    assert records.patient is not None
    assert records.patient.tolist() == everything.patient[first_pixels(records)].tolist()


def test_a_large_result_is_mapped_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "a.npz", **arrays())
    small = chest_xray(path, size=28).load()
    monkeypatch.setattr(npz, "IN_MEMORY", 12 * 28 * 28)
    large = chest_xray(path, size=28).load()
    assert isinstance(large.features, np.memmap)
    assert images(small).tobytes() == images(large).tobytes()
    assert small.prints is not None
    assert large.prints is not None
    assert small.prints.tolist() == large.prints.tolist() == fingerprints(small).tolist()

    def refuse(*arguments: object) -> Any:
        raise AssertionError("read again")

    monkeypatch.setattr(npz, "_converted", refuse)
    assert images(chest_xray(path, size=28).load()).tobytes() == images(large).tobytes()


def test_clahe_goes_through_the_cache_which_may_be_elsewhere(tmp_path: Path) -> None:
    content = arrays(("train",))
    content["train_images"] = np.tile(np.arange(100, 128, dtype=np.uint8), (4, 28, 1))
    path = written(tmp_path / "a.npz", **content)
    records = chest_xray(path, size=28, clahe=True, cache=tmp_path / "cache").load()
    assert int(np.ptp(images(records)[0])) > 200
    assert list((tmp_path / "cache").glob("28px-clahe-*/images.npy"))
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match="cannot be kept here"):
        chest_xray(path, size=28, clahe=True, cache=tmp_path / "file").load()


def test_reading_holds_the_result_and_little_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "a.npz", **arrays(("train", "test"), count=100, side=256))
    monkeypatch.setattr("wardround.data.imaging.cache.CHUNK", 2**20)
    tracemalloc.start()
    try:
        records = chest_xray(path, size=256).load()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    result = images(records).nbytes
    assert result == 200 * 256 * 256  # 13 MB
    assert peak < result + 5 * 2**20


def _objects(path: Path) -> None:
    written(path, **arrays(("train",)) | {"train_labels": np.array([{"a": 1}] * 4, dtype=object)})


def _truncated(path: Path) -> None:
    path.write_bytes(written(path, **arrays()).read_bytes()[:-200])


def _flipped(path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 64, 64), dtype=np.uint8)
    content = bytearray(written(path, **arrays(("train",), count=40) | {"train_images": noise}).read_bytes())
    content[100_000] ^= 255  # in the midst of the first member, which is the images
    path.write_bytes(bytes(content))


def _stored_and_flipped(path: Path) -> None:
    np.savez(path, **arrays(("train",), count=40))  # type: ignore[arg-type]
    content = bytearray(path.read_bytes())
    content[20_000] ^= 255  # without compression only the checksum can tell
    path.write_bytes(bytes(content))


def _too_short(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("train_images.npy", npy_header((400_000, 28, 28)) + bytes(784))


def npy_header(shape: tuple[int, ...]) -> bytes:
    from io import BytesIO

    file = BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return file.getvalue()


def _changed(**content: np.ndarray) -> Any:
    return lambda path: written(path, **arrays(("train",)) | content)


BROKEN = {
    "not an archive": (lambda path: path.write_bytes(b"nothing"), "cannot be opened"),
    "cut off": (_truncated, "cannot be opened"),
    "damaged": (_flipped, "train_images cannot be read to its end"),
    "another pixel": (_stored_and_flipped, "train_images cannot be read to its end"),
    "objects": (_objects, "train_labels.npy is not an array that can be read"),
    "shorter than it says": (_too_short, "train_images.npy is not as long as its header says"),
    "no images": (lambda path: written(path, x=np.zeros(3)), "has no train_images"),
    "no labels": (lambda path: written(path, train_images=np.zeros((2, 8, 8), np.uint8)), "has no train_labels"),
    "too few labels": (_changed(train_labels=np.zeros((3, 14), np.uint8)), "train_labels has 3 rows for 4 images"),
    "13 findings": (_changed(train_labels=np.zeros((4, 13), np.uint8)), "its labels are not 14 for each image"),
    "classes": (_changed(train_labels=np.full((4, 14), 2, np.uint8)), "neither 1, 0 nor -1"),
    "float labels": (_changed(train_labels=np.zeros((4, 14))), "neither 1, 0 nor -1"),
    "float images": (_changed(train_images=np.zeros((4, 28, 28))), "does not hold images"),
    "volumes": (_changed(train_images=np.zeros((4, 28, 28, 28), np.uint8)), "does not hold images"),
    "columns first": (_changed(train_images=np.asfortranarray(np.zeros((4, 8, 8), np.uint8))), "not an array that can"),
    "too few patients": (_changed(train_patient_id=np.arange(5)), "train_patient_id has 5 rows for 4 images"),
    "empty": (
        _changed(train_images=np.zeros((0, 8, 8), np.uint8), train_labels=np.zeros((0, 14), np.uint8)),
        "no imag",
    ),
}


@pytest.mark.parametrize(("spoil", "problem"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_archive_is_named_with_its_problem(tmp_path: Path, spoil: Any, problem: str) -> None:
    path = tmp_path / "a.npz"
    spoil(path)
    with pytest.raises(DataError, match=problem) as caught:
        chest_xray(path, size=28).load()
    assert caught.value.where == str(path)


def test_an_archive_has_its_own_labels(tmp_path: Path) -> None:
    path = written(tmp_path / "a.npz", **arrays())
    with pytest.raises(StudyError, match="has its own labels"):
        chest_xray(path, labels=tmp_path / "t.csv").load()


@pytest.fixture(scope="module")
def real() -> Records:
    return chest_xray(
        shared_data("nih-cxr14/nih_cxr14_subset_64.npz"), boxes=shared_data("nih-cxr14/NIH_BBox_List_2017.csv.gz")
    ).load()


def test_the_real_subset_has_its_known_sizes_and_no_patient_on_two_sides(real: Records) -> None:
    assert images(real).shape == (17_060, 1, 64, 64)
    assert real.split is not None
    assert [int((real.split == side).sum()) for side in ("train", "validation", "test")] == [11_876, 1_586, 3_598]
    assert real.patient is not None
    patients = {side: set(real.patient[real.split == side]) for side in set(real.split)}
    assert sum(map(len, patients.values())) == len(set().union(*patients.values())) == 4_458


def test_the_real_labels_and_people_are_right(real: Records) -> None:
    assert real.classes == FINDINGS
    first = [[FINDINGS[place] for place in np.flatnonzero(row)] for row in real.target[:4]]
    assert first == [["Cardiomegaly"], ["Cardiomegaly", "Emphysema"], ["Cardiomegaly", "Effusion"], []]
    counts = dict(zip(FINDINGS, real.target.sum(axis=0).tolist(), strict=True))
    assert (counts["Infiltration"], counts["Atelectasis"], counts["Hernia"]) == (2_724, 1_577, 46)
    assert real.groups["age"].tolist()[:4] == [57, 58, 58, 80]
    assert real.groups["view"].value_counts().to_dict() == {"PA": 11_125, "AP": 5_935}
    assert real.groups["sex"].value_counts().to_dict() == {"male": 8_828, "female": 8_232}


def test_the_real_boxes_lie_on_images_with_their_finding(real: Records) -> None:
    assert real.boxes is not None
    assert len(real.boxes) == 109
    assert real.boxes["row"].nunique() == 101
    counts = noticed(real, "boxes-used").counts
    assert (counts["boxes"], counts["of"], counts["elsewhere"]) == (109, 984, 875)
    ends = real.boxes[["x", "y"]].to_numpy() + real.boxes[["width", "height"]].to_numpy()
    assert (real.boxes[["x", "y", "width", "height"]] > 0).all(axis=None)
    assert ends.max() <= 1
    # radiologists drew boxes where the label said that there is something to find
    assert real.target[real.boxes["row"], real.boxes["finding"]].all()


def test_the_small_archive_is_the_same_images(real: Records) -> None:
    small = chest_xray(shared_data("nih-cxr14/nih_cxr14_subset_28.npz"), size=28).load()
    assert np.array_equal(small.target, real.target)
    assert np.array_equal(small.patient, real.patient)  # type: ignore[arg-type]
    means = [images(each)[:500].mean(axis=(1, 2, 3)) for each in (small, real)]
    assert np.corrcoef(*means)[0, 1] > 0.999
