"""IDX files made by hand, broken in every way that happens, and the real ones where Debian's package is installed."""

import gzip
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from wardround.core.errors import DataError, MachineError, StudyError
from wardround.core.notices import Notice
from wardround.core.seeds import generator
from wardround.core.settings import parse_settings, settings_of
from wardround.data.records import Records
from wardround.data.sources.fashion_mnist import CLASSES, balanced, fashion_mnist

TRAIN_IMAGES, TRAIN_LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"
TEST_IMAGES, TEST_LABELS = "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"
TRAIN_TARGET, TEST_TARGET = list(range(10)) * 3, [9, 8, 7]

DEBIAN = Path("/usr/share/datasets/fashion-mnist")
needs_debian = pytest.mark.skipif(
    not (DEBIAN / TRAIN_IMAGES).is_file(),
    reason="Debian's package dataset-fashion-mnist is not installed (scripts/install-test-packages.sh installs it)",
)


def idx(magic: int, lengths: list[int], data: bytes) -> bytes:
    return b"".join(number.to_bytes(4, "big") for number in (magic, *lengths)) + data


def image_file(count: int, first: int) -> bytes:
    """Image i is all `first + i`, but for a mark in row 2, column 5."""
    pixels = bytearray()
    for value in range(first, first + count):
        image = bytearray([value] * 784)
        image[2 * 28 + 5] = 255
        pixels += image
    return idx(0x0803, [count, 28, 28], bytes(pixels))


def label_file(labels: list[int]) -> bytes:
    return idx(0x0801, [len(labels)], bytes(labels))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    contents = {
        TRAIN_IMAGES: image_file(30, first=0),
        TRAIN_LABELS: label_file(TRAIN_TARGET),
        TEST_IMAGES: image_file(3, first=100),
        TEST_LABELS: label_file(TEST_TARGET),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(gzip.compress(content))
    return tmp_path


def images(records: Records) -> np.ndarray:
    assert isinstance(records.features, np.ndarray)
    return records.features


def test_both_parts_are_joined_in_order(folder: Path) -> None:
    records = fashion_mnist(folder).load()
    assert images(records).shape == (33, 1, 28, 28)
    assert images(records).dtype == np.uint8
    assert images(records)[:, 0, 0, 0].tolist() == [*range(30), 100, 101, 102]
    assert images(records)[:, 0, 2, 5].tolist() == [255] * 33  # row, then column
    assert records.target.tolist() == TRAIN_TARGET + TEST_TARGET
    assert records.target.dtype == np.int64
    assert records.classes[0] == "T-shirt/top"
    assert records.classes[9] == "Ankle boot"
    assert records.hospitals == ("fashion-mnist",)
    assert not records.synthetic
    assert not records.is_table
    assert records.notices == (Notice("parts-joined", "info", counts={"training": 30, "test": 3}),)


def test_rows_can_be_taken(folder: Path) -> None:
    subset = fashion_mnist(folder).load().take([32, 0])
    assert subset.target.tolist() == [7, 0]
    assert images(subset)[:, 0, 0, 0].tolist() == [102, 0]


def test_files_may_be_uncompressed(folder: Path) -> None:
    expected = fashion_mnist(folder).load()
    for name in (TRAIN_IMAGES, TEST_LABELS):
        compressed = folder / name
        compressed.with_suffix("").write_bytes(gzip.decompress(compressed.read_bytes()))
        compressed.unlink()
    records = fashion_mnist(folder).load()
    assert np.array_equal(images(records), images(expected))
    assert np.array_equal(records.target, expected.target)


def test_rows_keeps_equally_many_of_each_class_and_says_so(folder: Path) -> None:
    records = fashion_mnist(folder, rows=20).load()
    assert np.bincount(records.target).tolist() == [2] * 10
    assert images(records).shape == (20, 1, 28, 28)
    assert len(records.hospital) == len(records.groups) == 20
    assert records.notices[1].counts == {"images": 20, "of": 33}


def test_a_kept_image_keeps_its_own_label(folder: Path) -> None:
    records = fashion_mnist(folder, rows=17, seed=5).load()
    labels = dict(zip([*range(30), 100, 101, 102], TRAIN_TARGET + TEST_TARGET, strict=True))
    assert records.target.tolist() == [labels[int(value)] for value in images(records)[:, 0, 0, 0]]


def test_the_seed_decides_which_rows_are_kept(folder: Path) -> None:
    first, again, other = (images(fashion_mnist(folder, rows=15, seed=seed).load()) for seed in (1, 1, 2))
    assert first.tobytes() == again.tobytes()
    assert first.tobytes() != other.tobytes()


def test_a_choice_is_as_equal_as_its_classes_allow() -> None:
    target = np.array([0] * 2 + [1] * 50 + [2] * 50)
    chosen = balanced(target, 31, generator(0, "test"))
    assert np.bincount(target[chosen]).tolist() == [2, 15, 14]
    assert len(set(chosen.tolist())) == 31
    assert chosen.tolist() == sorted(chosen.tolist())
    assert balanced(target, 102, generator(0, "test")).tolist() == list(range(102))


def test_a_smaller_choice_is_part_of_a_larger_one() -> None:
    target = np.arange(200) % 7
    small, large = (set(balanced(target, count, generator(0, "test")).tolist()) for count in (23, 90))
    assert small < large


def test_more_rows_than_there_are_is_the_studys_mistake(folder: Path) -> None:
    assert len(fashion_mnist(folder, rows=33).load()) == 33
    with pytest.raises(StudyError, match="34 images wanted, 33 there"):
        fashion_mnist(folder, rows=34).load()


def test_nothing_is_read_before_load_and_missing_files_name_the_remedy(tmp_path: Path) -> None:
    source = fashion_mnist(tmp_path / "nowhere")
    with pytest.raises(MachineError) as caught:
        source.load()
    assert "nowhere" in caught.value.where
    assert all(name in caught.value.problem for name in (TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS))
    assert "apt-get install dataset-fashion-mnist" in caught.value.remedy
    assert "data.path" in caught.value.remedy


def test_only_the_files_that_are_missing_are_named(folder: Path) -> None:
    (folder / TEST_LABELS).unlink()
    with pytest.raises(MachineError) as caught:
        fashion_mnist(folder).load()
    assert caught.value.problem == f"not there: {TEST_LABELS}"


BROKEN = {
    "gzip cut off": (TRAIN_IMAGES, gzip.compress(image_file(30, first=0))[:-20], "is cut off"),
    "not gzip": (TRAIN_IMAGES, image_file(30, first=0), "cannot be decompressed"),
    "gzip damaged": (TRAIN_LABELS, gzip.compress(b"")[:10] + b"\xff" * 30, "cannot be decompressed"),
    "gzip checksum wrong": (TRAIN_LABELS, gzip.compress(label_file([1]))[:-8] + bytes(8), "cannot be decompressed"),
    "empty": (TRAIN_IMAGES, gzip.compress(b""), "0 bytes, too few for an IDX header"),
    "header cut off": (TEST_IMAGES, gzip.compress(image_file(3, first=0)[:12]), "12 bytes, too few for an IDX header"),
    "labels for images": (
        TRAIN_IMAGES,
        gzip.compress(label_file(TRAIN_TARGET)),
        "starts with 00000801, not with 00000803",
    ),
    "images for labels": (
        TEST_LABELS,
        gzip.compress(image_file(3, first=0)),
        "starts with 00000803, not with 00000801",
    ),
    "floats": (TRAIN_IMAGES, gzip.compress(idx(0x0D03, [1, 28, 28], bytes(3136))), "starts with 00000d03"),
    "other image size": (
        TRAIN_IMAGES,
        gzip.compress(idx(0x0803, [1, 32, 30], bytes(960))),
        "32 x 30 instead of 28 x 28",
    ),
    "pixels cut off": (
        TEST_IMAGES,
        gzip.compress(image_file(3, first=0)[:-1]),
        "announces 3 items, 2352 bytes, but holds 2351",
    ),
    "bytes too many": (
        TEST_LABELS,
        gzip.compress(label_file(TEST_TARGET) + b"\0"),
        "announces 3 items, 3 bytes, but holds 4",
    ),
    "absurd count": (TEST_IMAGES, gzip.compress(idx(0x0803, [2**32 - 1, 28, 28], b"")), "announces 4294967295 items"),
    "counts differ": (
        TEST_LABELS,
        gzip.compress(label_file([9, 8])),
        f"has 2 labels for the 3 images of {TEST_IMAGES}",
    ),
    "unknown class": (TEST_LABELS, gzip.compress(label_file([9, 10, 255])), "2 labels are above 9"),
}


@pytest.mark.parametrize(("name", "content", "problem"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_file_is_named_with_its_problem(folder: Path, name: str, content: bytes, problem: str) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(DataError, match=problem) as caught:
        fashion_mnist(folder).load()
    assert caught.value.where == str(folder / name)


def test_an_unreadable_file_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(DataError, match=r"cannot be read \(Permission denied\)") as caught:
        fashion_mnist(folder).load()
    assert caught.value.where == str(folder / TRAIN_IMAGES)


def test_a_study_names_a_folder_relative_to_itself(folder: Path) -> None:
    raw = {"path": folder.name, "rows": 10}
    settings = parse_settings(settings_of(fashion_mnist), raw, "data", folder.parent)
    assert len(fashion_mnist(**settings).load()) == 10


@pytest.fixture(scope="module")
def real() -> Records:
    return fashion_mnist().load()


@needs_debian
def test_the_real_files_hold_seventy_thousand_images(real: Records) -> None:
    assert images(real).shape == (70_000, 1, 28, 28)
    assert np.bincount(real.target).tolist() == [7_000] * 10
    assert np.bincount(real.target[:60_000]).tolist() == [6_000] * 10
    assert real.target[:5].tolist() == [9, 0, 0, 3, 0]
    assert CLASSES[real.target[0]] == "Ankle boot"


@pytest.mark.slow
@needs_debian
def test_the_real_pixels_have_their_well_known_mean_and_spread(real: Records) -> None:
    training = images(real)[:60_000]
    # The constants with which Fashion-MNIST is commonly normalised.
    assert training.mean() / 255 == pytest.approx(0.2860, abs=5e-5)
    assert training.std() / 255 == pytest.approx(0.3530, abs=5e-5)


@needs_debian
def test_the_real_pixels_are_the_ones_we_know(real: Records) -> None:
    known = "0fbbfcb392782b3b702472ead3688778e1509e8cf40f5c24d9d3303618b193ab"  # of Debian's 0.0~git20200523.55506a9-1
    assert sha256(images(real).tobytes()).hexdigest() == known


@needs_debian
def test_a_real_subset_is_balanced() -> None:
    records = fashion_mnist(rows=1_005).load()
    assert np.bincount(records.target).tolist() == [101] * 5 + [100] * 5
