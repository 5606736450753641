"""Label tables of hospitals and of CheXpert, ages, names of files, and boxes."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from tests.data.nih_folders import NAMES, first_pixels, grey, nih_folder, noticed
from tests.real_data import shared_data
from wardround.core.errors import DataError, StudyError
from wardround.core.notices import Notice
from wardround.data.imaging.file_lookup import matched
from wardround.data.imaging.finding_names import FINDINGS
from wardround.data.imaging.labels import read_boxes
from wardround.data.imaging.listing import groups, years
from wardround.data.sources.chest_xray import chest_xray

CHEXPERT = """Path,Sex,Age,Frontal/Lateral,AP/PA,No Finding,Cardiomegaly,Edema,Pleural Effusion
CheXpert-v1.0-small/train/patient00001/study1/view1_frontal.jpg,Female,68,Frontal,AP,1.0,,,
CheXpert-v1.0-small/train/patient00002/study2/view1_frontal.jpg,Female,87,Frontal,PA,,-1.0,-1.0,1.0
CheXpert-v1.0-small/train/patient00002/study2/view2_lateral.jpg,Female,87,Lateral,,,-1.0,0.0,1.0
CheXpert-v1.0-small/train/patient00003/study1/view1_frontal.jpg,Unknown,0,Frontal,AP,,1.0,1.0,0.0
"""
WANTED = ("Cardiomegaly", "Edema", "Pleural Effusion")


@pytest.fixture
def chexpert(tmp_path: Path) -> Path:
    """The archive's own first folder is not there, as when its content was unpacked elsewhere."""
    for place, line in enumerate(CHEXPERT.splitlines()[1:]):
        path = tmp_path / line.split(",")[0].removeprefix("CheXpert-v1.0-small/")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(grey(50 * (place + 1), side=64)).save(path, quality=95)
    (tmp_path / "train.csv").write_text(CHEXPERT)
    return tmp_path


@pytest.mark.parametrize(
    ("policy", "second"),
    [("ignore", [-1, -1, 1]), ("zero", [0, 0, 1]), ("one", [1, 1, 1])],
)
def test_chexpert_with_its_uncertain_and_blank_labels(chexpert: Path, policy: str, second: list[int]) -> None:
    records = chest_xray(chexpert, 8, WANTED, chexpert / "train.csv", uncertain=policy).load()  # type: ignore[arg-type]
    assert records.classes == WANTED
    assert records.target[0].tolist() == [0, 0, 0]  # blank: not mentioned
    assert records.target[1].tolist() == second
    assert records.target[3].tolist() == [1, 1, 0]
    notice = noticed(records, "uncertain-labels")
    assert (notice.counts, notice.details) == ({"labels": 3, "images": 2}, {"uncertain": policy})
    assert first_pixels(records) == pytest.approx([50, 100, 150, 200], abs=1)


def test_chexpert_tells_patients_by_their_folders(chexpert: Path) -> None:
    records = chest_xray(chexpert, 8, WANTED, chexpert / "train.csv").load()
    units = records.units.tolist()
    assert units[1] == units[2]
    assert len(set(units)) == 3
    assert records.groups["view"].tolist() == ["AP", "PA", "LATERAL", "AP"]
    assert records.groups["sex"].tolist() == ["female", "female", "female", None]
    assert records.groups["age"].tolist()[:3] == [68, 87, 87]
    assert np.isnan(records.groups["age"][3])


def test_the_default_findings_are_not_chexperts_and_the_message_helps(chexpert: Path) -> None:
    with pytest.raises(StudyError, match=r"'Atelectasis' is not a finding of train\.csv") as caught:
        chest_xray(chexpert, 8, labels=chexpert / "train.csv").load()
    assert "Pleural Effusion" in caught.value.remedy
    assert "Age" not in caught.value.remedy


def test_a_mark_that_means_nothing_is_refused_without_being_shown(chexpert: Path) -> None:
    (chexpert / "train.csv").write_text(CHEXPERT.replace("87,Lateral,,,-1.0", "87,Lateral,,,perhaps"))
    with pytest.raises(DataError, match="1 cells of 'Cardiomegaly' are neither 1, 0, -1 nor blank") as caught:
        chest_xray(chexpert, 8, WANTED, chexpert / "train.csv").load()
    assert caught.value.where.endswith("train.csv, line 4")
    assert "perhaps" not in str(caught.value)


def test_a_hospitals_own_table(tmp_path: Path) -> None:
    rows = [
        "bild;hospital;Patient;split;Edema",
        "a.png;north;7;train;1",
        "b.png;north;;valid;0",
        "c.png;south;7;test;",
        "d.png;north;;test;1",
    ]
    (tmp_path / "own.csv").write_text("\n".join(rows).replace("bild", "image"), encoding="utf-8-sig")
    for name in "abcd":
        Image.fromarray(grey(9)).save(tmp_path / f"{name}.png")
    records = chest_xray(tmp_path / "own.csv", 8, ("Edema",)).load()
    assert records.hospitals == ("north", "south")
    assert len(set(records.units.tolist())) == 4  # number 7 of two hospitals, and two whose numbers are not known
    assert noticed(records, "unknown-patients").counts == {"images": 2}
    assert records.split is not None
    assert records.split.tolist() == ["train", "validation", "test", "test"]


@pytest.mark.parametrize(
    ("row", "problem"),
    [("c.png;south;7;dev;", "1 rows are in no part of the split"), ("c.png;;7;test;", "1 rows have no hospital")],
)
def test_a_split_and_hospitals_are_complete_or_left_out(tmp_path: Path, row: str, problem: str) -> None:
    (tmp_path / "own.csv").write_text(f"image;hospital;patient;side;Edema\n{row}\n")
    with pytest.raises(DataError, match=problem):
        chest_xray(tmp_path / "own.csv", 8, ("Edema",)).load()


@pytest.mark.parametrize(
    ("text", "age"),
    [
        ("58", 58),
        ("058Y", 58),
        ("58.5", 58.5),
        ("018M", 1.5),
        ("026W", 26 * 7 / 365.25),
        ("010D", 10 / 365.25),
        ("120", 120),
        ("120.5", None),
        ("412", None),
        ("148Y", None),
        ("0", None),
        ("000Y", None),
        ("-3", None),
        ("", None),
        ("old", None),
        ("Y", None),
    ],
)
def test_ages_are_years_or_missing(text: str, age: float | None) -> None:
    assert years(text) == pytest.approx(float("nan") if age is None else age, nan_ok=True)


def test_ages_that_cannot_be_are_counted_and_blanks_are_not() -> None:
    table, notices = groups(pd.DataFrame({"age": ["58", "0", "", "412", "058Y"]}, dtype=object))
    assert table["age"].notna().tolist() == [True, False, False, False, True]
    assert notices == [Notice("impossible-ages", "info", counts={"ages": 2, "oldest": 120})]


FILES = ["images_001/images/a.png", "images_002/b.png", "p1/s1/view.jpg", "p2/s1/view.jpg", "x/1.2.840.7.dcm", "c.png"]


@pytest.mark.parametrize(
    ("names", "files"),
    [
        (["a.png", "b.png", "c.png"], [FILES[0], FILES[1], FILES[5]]),
        (["p1/s1/view.jpg", "p2/s1/view.jpg"], FILES[2:4]),
        (["set/p1/s1/view.jpg", "set/p2/s1/view.jpg"], FILES[2:4]),  # both begin with a folder that is not here
        (["p1/s1/view.jpg", "p3/s1/view.jpg"], [FILES[2], None]),  # never another patient's image
        (["images/a.png", "c.png"], [FILES[0], FILES[5]]),
        (["1.2.840.7", "a"], [FILES[4], FILES[0]]),  # without suffix
        (["p1\\s1\\view.jpg", "./c.png", "/b.png"], [FILES[2], FILES[5], FILES[1]]),
        (["../secret.png", "/etc/passwd", ""], [None, None, None]),
    ],
)
def test_names_find_their_files(names: list[str], files: list[str | None]) -> None:
    assert matched(names, FILES, Path("t.csv")) == files


def test_a_name_that_fits_two_files_is_refused() -> None:
    with pytest.raises(DataError, match="1 names fit several files, the first of them in row 1 below the header"):
        matched(["view.jpg", "c.png"], FILES, Path("t.csv"))


BOX_HEADER = "Image Index,Finding Label,Bbox [x,y,w,h],,,"


def test_boxes_become_parts_of_the_image(tmp_path: Path) -> None:
    rows = [
        f"{NAMES[1]},Infiltrate,256,512,128,64",
        f"{NAMES[3]},Hernia,0,0,1024,1024",
        f"{NAMES[0]},Mass,1,1,1,1",
        "00099999_000.png,Mass,1,1,1,1",
    ]
    folder = nih_folder(tmp_path)
    (folder / "BBox_List_2017.csv").write_text("\n".join((BOX_HEADER, *rows)))
    records = chest_xray(folder, size=8, findings=("Hernia", "Infiltration")).load()
    assert records.boxes is not None
    assert records.boxes.columns.tolist() == ["row", "finding", "x", "y", "width", "height"]
    assert records.boxes.to_numpy().tolist() == [[1, 1, 0.25, 0.5, 0.125, 0.0625], [3, 0, 0, 0, 1, 1]]
    counts = {"boxes": 2, "of": 4, "elsewhere": 1, "left_out": 1, "unknown": 0}
    assert noticed(records, "boxes-used").counts == counts
    chosen_boxes = records.take([3, 2]).boxes
    assert chosen_boxes is not None
    assert chosen_boxes["row"].tolist() == [0]
    assert chest_xray(folder, size=8, rows=1, seed=0).load().boxes is not None


def test_boxes_follow_their_image_when_another_is_left_out(tmp_path: Path) -> None:
    folder = nih_folder(tmp_path)
    (folder / "images_001" / "images" / NAMES[0]).unlink()
    (tmp_path / "mine.csv").write_text(f"{BOX_HEADER}\n{NAMES[1]},Emphysema,0,0,512,512\n")
    records = chest_xray(folder, size=8, boxes=tmp_path / "mine.csv", accept=("missing",)).load()
    assert records.boxes is not None
    assert records.boxes["row"].tolist() == [0]
    assert records.target[0, records.boxes["finding"][0]] == 1


@pytest.mark.parametrize("numbers", ["a,0,5,5", "0,0,0,5", "-1,0,5,5", "1000,0,50,5", "0,0,5"])
def test_a_box_outside_its_image_is_refused(tmp_path: Path, numbers: str) -> None:
    (tmp_path / "b.csv").write_text(f"{BOX_HEADER}\nx.png,Mass,0,0,5,5\nx.png,Mass,{numbers}\n")
    with pytest.raises(DataError, match="1 boxes are not inside an image of 1024 x 1024") as caught:
        read_boxes(tmp_path / "b.csv", np.array(["x.png"], dtype=object), FINDINGS)
    assert caught.value.where.endswith("line 3")


def test_a_box_of_a_finding_that_nobody_knows_is_counted(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text(f"{BOX_HEADER}\nx.png,Mass,0,0,5,5\nx.png,Mas,0,0,5,5\n")
    boxes, notices = read_boxes(tmp_path / "b.csv", np.array(["x.png"], dtype=object), FINDINGS)
    assert len(boxes) == 1
    assert notices[0].counts["unknown"] == 1
    (tmp_path / "c.csv").write_text("a,b\nx.png,Mass\n")
    with pytest.raises(DataError, match="2 columns instead of 6"):
        read_boxes(tmp_path / "c.csv", np.array(["x.png"], dtype=object), FINDINGS)


def test_the_real_boxes_are_all_read() -> None:
    path = shared_data("nih-cxr14/NIH_BBox_List_2017.csv.gz")
    names = np.array(["00013118_008.png", "00014716_007.png"], dtype=object)
    boxes, notices = read_boxes(path, names, FINDINGS)
    counts = notices[0].counts
    assert (counts["boxes"], counts["of"], counts["elsewhere"]) == (2, 984, 982)
    # 00013118_008.png, Atelectasis: x 225.08, y 547.02, width 86.78, height 79.19 pixels of 1024
    assert boxes.iloc[0].tolist() == pytest.approx([0, 0, 0.219809, 0.534198, 0.084746, 0.077331], abs=1e-6)
