"""Every kind of problem: it stops the study with counts and the remedy, or goes on and is said. Never silent."""

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.nih_folders import HEADER, NAMES, ROWS, first_pixels, grey, images, nih_folder, noticed
from wardround.core.errors import DataError
from wardround.data.imaging.decode import read_picture
from wardround.data.sources.chest_xray import chest_xray

DEFAULT = '"16-bit", "colour", "other-size"'


def picture(folder: Path, place: int) -> Path:
    return folder / "images_001" / "images" / NAMES[place]


def listed(folder: Path) -> list[tuple[str, ...]]:
    with (folder / ".wardround-cache" / "problems.csv").open(newline="") as file:
        return [tuple(row) for row in csv.reader(file)][1:]


def cut_off(path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (64, 64), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[:1000])


def damage(path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (64, 64), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(bytes(content))


def test_an_absent_image_stops_the_study_and_the_message_says_what_to_write(tmp_path: Path) -> None:
    folder = nih_folder(tmp_path)
    picture(folder, 1).unlink()
    with pytest.raises(DataError) as caught:
        chest_xray(folder, size=8).load()
    assert caught.value.where == str(folder)
    assert "no file: 1 (missing)" in caught.value.problem
    assert NAMES[1] not in str(caught.value)  # a name may be a patient's; the listing has it
    assert f'`accept = [{DEFAULT}, "missing"]`' in caught.value.remedy
    assert str(folder / ".wardround-cache" / "problems.csv") in caught.value.remedy
    assert listed(folder) == [("missing", NAMES[1], "")]


def test_an_accepted_absent_image_is_left_out_and_counted(tmp_path: Path) -> None:
    folder = nih_folder(tmp_path)
    picture(folder, 1).unlink()
    records = chest_xray(folder, size=8, accept=("missing",)).load()
    assert first_pixels(records) == [10, 30, 40]
    assert records.groups["view"].tolist() == ["PA", "AP", "PA"]
    assert records.target[:, [1, 10, 13]].tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 1]]
    assert noticed(records, "image-missing").files == (NAMES[1],)


def test_no_image_at_all_is_an_error_whatever_is_accepted(tmp_path: Path) -> None:
    folder = nih_folder(tmp_path, {})
    with pytest.raises(DataError, match=r"none of the 4 images that Data_Entry_2017\.csv names is there"):
        chest_xray(folder, accept=("missing",)).load()


@pytest.mark.parametrize("spoil", [cut_off, damage, lambda path: path.write_bytes(b""), Path.touch])
def test_a_damaged_image_stops_the_study_or_is_left_out(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    folder = nih_folder(tmp_path)
    if spoil is Path.touch:
        picture(folder, 2).write_text("this is no picture")
    spoil(picture(folder, 2))
    with pytest.raises(DataError, match=r"cannot be read.*1 \(unreadable\)") as caught:
        chest_xray(folder, size=8).load()
    assert f'`accept = [{DEFAULT}, "unreadable"]`' in caught.value.remedy
    records = chest_xray(folder, size=8, accept=("unreadable",)).load()
    assert first_pixels(records) == [10, 20, 40]
    assert records.groups["sex"].tolist() == ["male", "male", "female"]
    assert len(records.prints if records.prints is not None else []) == 3
    assert noticed(records, "image-unreadable").counts == {"images": 1, "of": 4}
    ((kind, name, detail),) = listed(folder)
    assert (kind, Path(name).name) == ("unreadable", NAMES[2])
    assert detail.startswith("damaged")


def test_nothing_readable_is_an_error_whatever_is_accepted(tmp_path: Path) -> None:
    folder = nih_folder(tmp_path)
    for place in range(4):
        picture(folder, place).write_bytes(b"")
    with pytest.raises(DataError, match="none of its 4 images can be read"):
        chest_xray(folder, accept=("unreadable",)).load()


def test_sixteen_bits_are_brought_to_eight_by_the_full_range(tmp_path: Path) -> None:
    folder = nih_folder(tmp_path)
    values = np.array([[0, 257], [60_000, 65535]], dtype=np.uint16)
    Image.fromarray(np.kron(values, np.ones((16, 16), dtype=np.uint16))).save(picture(folder, 0))
    records = chest_xray(folder, size=32).load()
    # v / 257: 0, 1, 233.46, 255 (v / 256 would make 234 of the third); corners are far from where the four fields meet
    assert images(records)[0, 0][[0, 0, 31, 31], [0, 31, 0, 31]].tolist() == [0, 1, 233, 255]
    assert noticed(records, "image-16-bit").counts == {"images": 1, "of": 4}
    with pytest.raises(DataError, match=r"\(16-bit\)") as caught:
        chest_xray(folder, size=32, accept=("colour",)).load()
    assert '`accept = ["colour", "16-bit"]`' in caught.value.remedy


@pytest.mark.parametrize(
    ("pixels", "luminance"),
    [
        # ITU-R 601: 0.299 R + 0.587 G + 0.114 B
        (np.full((32, 32, 3), (255, 0, 0), dtype=np.uint8), 76),
        (np.full((32, 32, 4), (0, 200, 0, 255), dtype=np.uint8), 117),
        (np.full((32, 32, 4), (90, 90, 90, 10), dtype=np.uint8), 90),  # NIH has grey images with transparency
    ],
)
def test_colour_becomes_luminance(tmp_path: Path, pixels: np.ndarray, luminance: int) -> None:
    folder = nih_folder(tmp_path)
    Image.fromarray(pixels).save(picture(folder, 3))
    records = chest_xray(folder, size=8).load()
    assert first_pixels(records) == [10, 20, 30, luminance]
    assert noticed(records, "image-colour").counts == {"images": 1, "of": 4}
    with pytest.raises(DataError, match=r"\(colour\)"):
        chest_xray(folder, size=8, accept=()).load()


def test_a_palette_counts_as_colour_and_keeps_its_brightness(tmp_path: Path) -> None:
    folder = nih_folder(tmp_path)
    Image.fromarray(grey(77)).convert("P").save(picture(folder, 0))
    records = chest_xray(folder, size=8).load()
    assert first_pixels(records)[0] == 77
    assert noticed(records, "image-colour").counts == {"images": 1, "of": 4}


def test_other_sizes_are_counted_against_the_most_common_one(tmp_path: Path) -> None:
    folder = nih_folder(tmp_path)
    Image.fromarray(grey(5, side=48)).save(picture(folder, 0))
    Image.fromarray(np.full((20, 32), 6, dtype=np.uint8)).save(picture(folder, 1))
    records = chest_xray(folder, size=8).load()
    assert first_pixels(records) == [5, 6, 30, 40]
    assert noticed(records, "image-other-size").counts == {"images": 2, "of": 4}
    assert noticed(records, "images-rescaled").counts == {"images": 1, "size": 8}
    assert [row[2] for row in listed(folder)] == ["48 x 48", "32 x 20"]
    with pytest.raises(DataError, match=r"\(other-size\)"):
        chest_xray(folder, size=8, accept=()).load()


def test_an_unknown_finding_stops_the_study_or_is_ignored_in_its_row(tmp_path: Path) -> None:
    rows = [ROWS[0].replace("Cardiomegaly", "Cardiomegaly|Scoliosis"), ROWS[1], ROWS[2].replace("No Finding", "")]
    folder = nih_folder(tmp_path, rows=rows)
    with pytest.raises(DataError, match=r"2 \(unknown-finding\)") as caught:
        chest_xray(folder, size=8).load()
    assert "Scoliosis" not in str(caught.value)  # what a patient has stays with the data
    assert [row for row in listed(folder) if row[0] == "unknown-finding"] == [
        ("unknown-finding", NAMES[0], "Scoliosis"),
        ("unknown-finding", NAMES[2], "(blank)"),
    ]
    records = chest_xray(folder, size=8, accept=("unknown-finding",)).load()
    assert records.target.sum(axis=1).tolist() == [1, 2, 0]
    assert noticed(records, "image-unknown-finding").counts == {"images": 2, "of": 3}


def test_a_study_may_want_a_finding_that_is_not_one_of_nihs(tmp_path: Path) -> None:
    folder = nih_folder(tmp_path, rows=[ROWS[0].replace("Cardiomegaly", "Cardiomegaly|Scoliosis"), *ROWS[1:]])
    records = chest_xray(folder, size=8, findings=("scoliosis", "Hernia")).load()
    assert records.classes == ("Scoliosis", "Hernia")
    assert records.target.tolist() == [[1, 0], [0, 0], [0, 0], [0, 1]]


def test_files_that_no_table_names_are_only_noted(tmp_path: Path) -> None:
    folder = nih_folder(tmp_path)
    for number in range(7):
        Image.fromarray(grey(0)).save(folder / f"stray-{number}.png")
    (folder / "README.txt").write_text("no image")
    records = chest_xray(folder, size=8, accept=()).load()
    assert len(records) == 4
    notice = noticed(records, "image-extra")
    assert notice.counts == {"images": 7}
    assert notice.files == tuple(f"stray-{number}.png" for number in range(5))
    assert len(listed(folder)) == 7


def test_several_kinds_are_told_at_once(tmp_path: Path) -> None:
    rows = [*ROWS, *(f"absent-{number}.png,No Finding,0,9" for number in range(6)), "spare.png,Scolioses,0,9"]
    folder = nih_folder(tmp_path, rows=rows)
    Image.fromarray(grey(0)).save(folder / "spare.png")
    with pytest.raises(DataError) as caught:
        chest_xray(folder, size=8).load()
    assert "no file: 6 (missing)" in caught.value.problem
    assert "1 (unknown-finding)" in caught.value.problem
    assert f'[{DEFAULT}, "missing", "unknown-finding"]' in caught.value.remedy
    assert len(listed(folder)) == 7


def test_a_clean_folder_has_no_notices_of_problems_and_clears_the_old_listing(tmp_path: Path) -> None:
    folder = nih_folder(tmp_path)
    assert not [n for n in chest_xray(folder, size=8).load().notices if n.code.startswith("image-")]
    assert not (folder / ".wardround-cache" / "problems.csv").exists()
    Image.fromarray(grey(0)).save(folder / "stray.png")
    chest_xray(folder, size=8).load()
    (folder / "stray.png").unlink()
    chest_xray(folder, size=8).load()
    assert listed(folder) == []


def test_one_image_in_two_rows_and_one_name_for_two_files_are_refused(tmp_path: Path) -> None:
    twice = nih_folder(tmp_path / "twice", rows=[*ROWS, ROWS[0]])
    with pytest.raises(DataError, match="1 rows name an image that another row names"):
        chest_xray(twice, size=8).load()
    copied = nih_folder(tmp_path / "copied")
    (copied / "images_002").mkdir()
    (copied / "images_002" / NAMES[0]).write_bytes(picture(copied, 0).read_bytes())
    with pytest.raises(DataError, match="1 names fit several files") as caught:
        chest_xray(copied, size=8).load()
    assert "Remove the copies" in caught.value.remedy


def test_floats_several_pages_and_more_than_sixteen_bits_are_no_radiographs(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((8, 8), dtype=np.float32)).save(tmp_path / "float.tif")
    pages = [Image.fromarray(grey(0)), Image.fromarray(grey(1))]
    pages[0].save(tmp_path / "pages.tif", save_all=True, append_images=pages[1:])
    Image.fromarray(np.full((8, 8), 70_000, dtype=np.int32)).save(tmp_path / "deep.tif")
    reasons = [read_picture(tmp_path / f"{name}.tif", 8, clahe=False) for name in ("float", "pages", "deep")]
    assert [reading.pixels for reading in reasons] == [None] * 3
    assert [reading.reason for reading in reasons] == [
        "pixels are not bytes",
        "several pictures in one file",
        "more than 16 bits per pixel",
    ]


def test_a_jpeg_that_says_it_lies_on_its_side_is_turned(tmp_path: Path) -> None:
    upright = grey(0, side=64)
    upright[:16] = 200  # bright on top
    exif = Image.Exif()
    exif[0x0112] = 6  # to be shown turned by 90 degrees clockwise
    Image.fromarray(np.rot90(upright)).save(tmp_path / "lying.jpg", exif=exif, quality=95)
    pixels = read_picture(tmp_path / "lying.jpg", 8, clahe=False).pixels
    assert pixels is not None
    assert pixels[0].min() > 150
    assert pixels[4:].max() < 20


def test_an_absurdly_large_picture_is_unreadable_not_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = nih_folder(tmp_path)
    Image.fromarray(grey(1, side=200)).save(picture(folder, 1))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 30_000)  # 40,000 pixels: a warning of Pillow's, not yet an error
    records = chest_xray(folder, size=8, accept=("unreadable",)).load()
    assert first_pixels(records) == [10, 30, 40]


BROKEN_TABLES = {
    "no image column": (f"{HEADER.replace('Image Index', 'Which')}\n{ROWS[0]}\n", "no column says which image"),
    "header only": (f"{HEADER}\n", "no row below a header"),
    "empty": ("", "no row below a header"),
    "too long": (f"{HEADER}\n{ROWS[0]}\n{ROWS[1]}more,more\n", "13 fields, but the header names 12"),
    "quotation mark": (f'{HEADER}\n{ROWS[0]}\n"{ROWS[1]}\n', "quotation marks do not match"),
    "two columns of one name": (f"Image,Finding Labels,Age,Age\n{NAMES[0]},Hernia,1,2\n", "2 columns are called 'Age'"),
}


@pytest.mark.parametrize(("content", "problem"), BROKEN_TABLES.values(), ids=BROKEN_TABLES.keys())
def test_a_broken_table_is_named_with_its_problem(tmp_path: Path, content: str, problem: str) -> None:
    folder = nih_folder(tmp_path)
    (folder / "Data_Entry_2017.csv").write_text(content)
    with pytest.raises(DataError, match=problem) as caught:
        chest_xray(folder, size=8).load()
    assert "Data_Entry_2017.csv" in caught.value.where


def test_a_table_that_is_not_text_is_named(tmp_path: Path) -> None:
    folder = nih_folder(tmp_path)
    (folder / "Data_Entry_2017.csv").write_bytes(b"Image,\xff\xfe\n")
    with pytest.raises(DataError, match="not UTF-8"):
        chest_xray(folder).load()
    (folder / "Data_Entry_2017.csv").rename(folder / "Data_Entry_2017.csv.gz")
    with pytest.raises(DataError, match="cannot be decompressed"):
        chest_xray(folder).load()
