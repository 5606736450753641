"""NIH's release as a folder: what of the table and the pixels arrives, in all its header variants."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.nih_folders import HEADER, NAMES, ROWS, first_pixels, grey, images, nih_folder, noticed
from tests.real_data import shared_data
from wardround.core.errors import DataError, MachineError, StudyError
from wardround.core.settings import parse_settings, settings_of
from wardround.data.imaging.finding_names import FINDINGS
from wardround.data.imaging.labels import read_listing
from wardround.data.sources.chest_xray import chest_xray
from wardround.data.split import fingerprints

LATER_HEADER = HEADER.replace("Gender", "Sex").rstrip(",")
LATER_ROWS = [row.replace("058Y", "58").replace("081Y", "81").replace("412Y", "3").rstrip(",") for row in ROWS]


def test_images_labels_and_people_arrive_in_the_order_of_the_table(tmp_path: Path) -> None:
    records = chest_xray(nih_folder(tmp_path), size=16).load()
    assert images(records).shape == (4, 1, 16, 16)
    assert images(records).dtype == np.uint8
    assert first_pixels(records) == [10, 20, 30, 40]
    assert records.classes == FINDINGS
    assert records.has_findings
    assert records.target.dtype == np.int64
    there = [[FINDINGS[place] for place in np.flatnonzero(row)] for row in records.target]
    assert there == [["Cardiomegaly"], ["Cardiomegaly", "Emphysema"], [], ["Hernia"]]
    assert records.units.tolist()[0] == records.units.tolist()[1]
    assert len(set(records.units.tolist())) == 3
    assert records.groups["sex"].tolist() == ["male", "male", "female", "female"]
    assert records.groups["view"].tolist() == ["PA", "PA", "AP", "PA"]
    assert records.groups["age"].tolist()[:3] == [58, 58, 81]
    assert np.isnan(records.groups["age"][3])  # 412 years
    assert noticed(records, "impossible-ages").counts == {"ages": 1, "oldest": 120}
    assert records.hospitals == ("chest-xray",)
    assert records.split is None
    assert records.boxes is None
    assert not records.synthetic


def test_the_later_release_has_other_columns_and_says_the_same(tmp_path: Path) -> None:
    early = chest_xray(nih_folder(tmp_path / "early"), size=8).load()
    later = chest_xray(nih_folder(tmp_path / "later", rows=LATER_ROWS, header=LATER_HEADER), size=8).load()
    assert np.array_equal(early.target, later.target)
    assert early.groups["sex"].tolist() == later.groups["sex"].tolist()
    assert early.units.tolist() == later.units.tolist()
    assert later.groups["age"].tolist() == [58, 58, 81, 3]


def test_images_may_lie_anywhere_below_or_beside_the_table(tmp_path: Path) -> None:
    folder = nih_folder(tmp_path)
    (folder / "images").mkdir()
    (folder / "images_001" / "images" / NAMES[1]).rename(folder / "images" / NAMES[1])
    (folder / "images_001" / "images" / NAMES[2]).rename(folder / NAMES[2])
    assert first_pixels(chest_xray(folder, size=8).load()) == [10, 20, 30, 40]


def test_a_linked_folder_of_images_is_followed_and_a_circle_ends(tmp_path: Path) -> None:
    folder = nih_folder(tmp_path / "here")
    (folder / "images_001").rename(tmp_path / "elsewhere")
    (folder / "images_001").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(folder)
    assert first_pixels(chest_xray(folder, size=8).load()) == [10, 20, 30, 40]


def test_the_official_lists_give_the_sides(tmp_path: Path) -> None:
    folder = nih_folder(tmp_path)
    (folder / "train_val_list.txt").write_text("\n".join(NAMES[:2]))
    (folder / "test_list.txt").write_text("\n".join(NAMES[2:]) + "\n")
    side = chest_xray(folder, size=8).load().split
    assert side is not None
    assert side.tolist() == ["train", "train", "test", "test"]


def test_lists_that_leave_an_image_out_are_refused_and_one_list_alone_is_not_used(tmp_path: Path) -> None:
    folder = nih_folder(tmp_path)
    (folder / "test_list.txt").write_text("\n".join(NAMES[2:]))
    records = chest_xray(folder, size=8).load()
    assert records.split is None
    assert noticed(records, "split-list-alone").files == ("test_list.txt",)
    (folder / "train_val_list.txt").write_text(NAMES[0])
    with pytest.raises(DataError, match=r"1 images are in both of .* or in neither"):
        chest_xray(folder, size=8).load()


def test_reducing_averages_instead_of_picking(tmp_path: Path) -> None:
    # A chessboard of single pixels is 127.5 on average; picking pixels would give 0 or 255.
    board = (np.indices((64, 64)).sum(axis=0) % 2 * 255).astype(np.uint8)
    records = chest_xray(nih_folder(tmp_path, dict.fromkeys(NAMES, board)), size=8).load()
    assert set(np.unique(images(records)).tolist()) <= {126, 127, 128, 129}


def test_an_image_keeps_its_sides(tmp_path: Path) -> None:
    corner = grey(0)
    corner[:8, 24:] = 200  # top right
    small = images(chest_xray(nih_folder(tmp_path, dict.fromkeys(NAMES, corner)), size=4).load())[0, 0]
    assert np.argwhere(small == small.max()).tolist() == [[0, 3]]


def test_an_image_of_the_wanted_size_is_not_touched(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (16, 16), dtype=np.uint8)
    records = chest_xray(nih_folder(tmp_path, dict.fromkeys(NAMES, noise)), size=16).load()
    assert np.array_equal(images(records)[2, 0], noise)


def test_findings_may_be_a_subset_in_another_order_and_spelling(tmp_path: Path) -> None:
    wanted = ("hernia", "PLEURAL thickening", "cardiomegaly")
    records = chest_xray(nih_folder(tmp_path), size=8, findings=wanted).load()
    assert records.classes == ("Hernia", "Pleural_Thickening", "Cardiomegaly")
    assert records.target.tolist() == [[0, 0, 1], [0, 0, 1], [0, 0, 0], [1, 0, 0]]


def test_a_finding_that_is_not_there_is_the_studys_mistake(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="'Hernai' is not a finding of Data_Entry_2017") as caught:
        chest_xray(nih_folder(tmp_path), findings=("Hernai",)).load()
    assert "Did you mean 'Hernia'?" in caught.value.remedy
    with pytest.raises(StudyError, match="'Hernia' and 'hernia' are the same finding"):
        chest_xray(tmp_path, findings=("Hernia", "hernia"))
    with pytest.raises(StudyError, match="the list is empty"):
        chest_xray(tmp_path, findings=())


def test_prints_are_those_of_image_and_target(tmp_path: Path) -> None:
    pictures = {name: grey(7) for name in NAMES}
    records = chest_xray(nih_folder(tmp_path, pictures), size=8, findings=("Cardiomegaly",)).load()
    assert records.prints is not None
    assert records.prints.dtype == np.uint64
    assert records.prints.tolist() == fingerprints(records).tolist()
    # equal images; the first two have the finding, the last two have not
    assert records.prints[0] == records.prints[1] != records.prints[2] == records.prints[3]


def test_rows_are_kept_by_patient_and_a_smaller_choice_is_part_of_a_larger(tmp_path: Path) -> None:
    rows = [f"{patient:08}_{image:03}.png,No Finding,0,{patient}" for patient in range(12) for image in range(3)]
    header = ",".join(HEADER.split(",")[:4])
    pictures = {row.split(",")[0]: grey(place) for place, row in enumerate(rows)}
    folder = nih_folder(tmp_path, pictures, rows, header)
    small, large = (chest_xray(folder, size=8, rows=count, seed=3).load() for count in (6, 15))
    assert len(small) == 6
    assert np.bincount(small.units).tolist() == [3, 3]
    assert set(first_pixels(small)) < set(first_pixels(large))
    assert first_pixels(large) == sorted(first_pixels(large))
    assert noticed(large, "rows-chosen").counts == {"images": 15, "of": 36}
    assert first_pixels(small) != first_pixels(chest_xray(folder, size=8, rows=6, seed=4).load())
    with pytest.raises(StudyError, match="37 images wanted, 36 there"):
        chest_xray(folder, size=8, rows=37).load()


def test_clahe_evens_contrast_out_and_always_gives_the_same_bytes(tmp_path: Path) -> None:
    dull = np.tile(np.arange(100, 132, dtype=np.uint8), (32, 1))
    folder = nih_folder(tmp_path, {**dict.fromkeys(NAMES[1:], dull), NAMES[0]: grey(9)})
    plain, evened = (chest_xray(folder, size=32, clahe=clahe).load() for clahe in (False, True))
    again = chest_xray(folder, size=32, clahe=True, cache=tmp_path / "other").load()
    assert int(np.ptp(images(plain)[1])) == 31
    assert int(np.ptp(images(evened)[1])) > 200
    assert images(evened).tobytes() == images(again).tobytes()
    assert set(np.unique(images(evened)[0]).tolist()) == {9}  # an empty image stays as it is


def test_clahe_without_its_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "skimage.exposure", None)
    with pytest.raises(MachineError, match="skimage is not installed") as caught:
        chest_xray(nih_folder(tmp_path), clahe=True).load()
    assert "wardround[imaging]" in caught.value.remedy


def test_two_tables_of_labels_are_not_guessed_between(tmp_path: Path) -> None:
    folder = nih_folder(tmp_path)
    (folder / "Data_Entry_2017_v2020.csv").write_text("\n".join((LATER_HEADER, *LATER_ROWS)))
    with pytest.raises(DataError, match="2 such files") as caught:
        chest_xray(folder, size=8).load()
    assert "`labels =`" in caught.value.remedy
    records = chest_xray(folder, size=8, labels=folder / "Data_Entry_2017_v2020.csv").load()
    assert records.groups["age"][3] == 3


def test_a_path_that_is_nothing_of_ours_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not there"):
        chest_xray(tmp_path / "nowhere").load()
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(DataError, match="neither a folder of images"):
        chest_xray(tmp_path / "notes.txt").load()
    with pytest.raises(DataError, match="needs a table") as caught:
        chest_xray(tmp_path).load()
    assert 'labels = "table.csv"' in caught.value.remedy


def test_a_study_gives_its_settings_as_plain_data(tmp_path: Path) -> None:
    nih_folder(tmp_path / "release")
    raw = {"path": "release", "size": 8, "findings": ["Hernia"], "accept": ["missing"], "uncertain": "one"}
    settings = parse_settings(settings_of(chest_xray), raw, "data", tmp_path)
    assert len(chest_xray(**settings).load()) == 4
    with pytest.raises(StudyError, match="'mising' is not a possible value") as caught:
        parse_settings(settings_of(chest_xray), {**raw, "accept": ["mising"]}, "data", tmp_path)
    assert "Did you mean 'missing'?" in caught.value.remedy


def test_the_real_table_says_what_is_known_of_it() -> None:
    listing = read_listing(shared_data("nih-cxr14/NIH_Data_Entry_2017_v2020.csv.gz"), FINDINGS)
    assert len(listing) == 112_120
    assert not listing.problems
    assert listing.attributes["patient"].nunique() == 30_805
    counts = dict(zip(FINDINGS, listing.target.sum(axis=0).tolist(), strict=True))
    assert counts["Infiltration"] == 19_894
    assert counts["Hernia"] == 227
    assert int((listing.target.sum(axis=1) == 0).sum()) == 60_361  # "No Finding"


@pytest.mark.slow
def test_real_images_written_as_files_come_back_with_their_labels(tmp_path: Path) -> None:
    archive = np.load(shared_data("nih-cxr14/nih_cxr14_subset_64.npz"), allow_pickle=False)
    table = shared_data("nih-cxr14/NIH_Data_Entry_2017_v2020.csv.gz")
    (tmp_path / table.name).write_bytes(table.read_bytes())
    names = [name.decode() for name in archive["test_image_name"][:20]]
    for name, pixels in zip(names, archive["test_images"], strict=False):
        Image.fromarray(pixels).save(tmp_path / name)
    records = chest_xray(tmp_path, accept=("missing",)).load()
    rank = {name: place for place, name in enumerate(read_listing(table, FINDINGS).names.tolist())}
    order = sorted(range(20), key=lambda place: rank[names[place]])  # NIH's table is not sorted by name
    assert order != list(range(20))
    assert np.array_equal(images(records)[:, 0], archive["test_images"][order])
    assert np.array_equal(records.target, archive["test_labels"][order])
    assert records.groups["age"].tolist() == archive["test_age"][order].tolist()
    assert noticed(records, "image-missing").counts == {"images": 112100, "of": 112120}
