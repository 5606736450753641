"""DICOM: a real chest radiograph in four encodings, and small made-up files for every turn and window."""

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.nih_folders import images, noticed
from wardround.core.errors import DataError, MachineError
from wardround.data.imaging.cache import read_facts
from wardround.data.imaging.dicom import RANGE, grey_levels, read_dicom, turn
from wardround.data.sources.chest_xray import chest_xray

pydicom = pytest.importorskip("pydicom", reason="the extra `imaging` is not installed")

REAL = ("RG1_UNCR.dcm", "RG1_J2KR.dcm", "RG1_UNCI.dcm", "RG1_J2KI.dcm")


def real(name: str) -> Path:
    """Of the package pydicom-data; nothing is downloaded."""
    path = pydicom.data.get_testdata_file(name, download=False)
    if path is None:
        pytest.skip(f"{name} is not on this machine (it comes with the package pydicom-data)")
    return Path(path)


def made(pixels: np.ndarray, **tags: Any) -> Any:
    data = pydicom.Dataset()
    data.file_meta = pydicom.dataset.FileMetaDataset()
    data.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID = pydicom.uid.ComputedRadiographyImageStorage
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID = "1.2.3.4"
    data.Rows, data.Columns = pixels.shape[:2]
    data.SamplesPerPixel = 1 if pixels.ndim == 2 else 3
    data.BitsAllocated = 8 * pixels.itemsize
    data.BitsStored, data.HighBit = data.BitsAllocated, data.BitsAllocated - 1
    data.PixelRepresentation = int(np.issubdtype(pixels.dtype, np.signedinteger))
    data.PhotometricInterpretation = "MONOCHROME2" if pixels.ndim == 2 else "RGB"
    data.PatientOrientation = ["L", "F"]
    if pixels.ndim == 3:
        data.PlanarConfiguration = 0
    for tag, value in tags.items():
        setattr(data, tag, value)
    data.PixelData = pixels.tobytes()
    return data


def written(path: Path, pixels: np.ndarray, **tags: Any) -> Path:
    made(pixels, **tags).save_as(path, enforce_file_format=True)
    return path


def radiograph(side: int = 512) -> np.ndarray:
    pixels = read_dicom(real("RG1_UNCR.dcm"), side, clahe=False).pixels
    assert pixels is not None
    return pixels.astype(float)


def test_air_is_dark_bone_is_bright_and_the_heart_is_on_the_right_of_the_picture() -> None:
    picture = radiograph()
    corners = picture[15:40, 3:40].mean(), picture[15:40, 480:508].mean()  # above the shoulders
    lungs = picture[80:150, 120:190].mean(), picture[80:150, 320:390].mean()
    spine = picture[80:200, 235:270].mean()
    assert max(corners) < 80
    assert all(130 < lung < 155 for lung in lungs)
    assert spine > 210
    heart, opposite = picture[320:370, 300:350].mean(), picture[320:370, 162:212].mean()
    assert heart > opposite + 15  # it lies to the left of the patient, who faces us
    assert picture[400:450].mean() > picture[80:150].mean() + 40  # the abdomen is below


def test_the_stored_pixels_are_followed_through_window_and_inversion() -> None:
    data = pydicom.dcmread(real("RG1_UNCR.dcm"))
    levels, remarks = grey_levels(data)
    assert levels.shape == (1955, 1841)  # rows, then columns
    assert remarks == ["inverted"]
    # LINEAR window of centre 15000 and width 30000: (x - 14999.5) / 29999 + 0.5, then 1 - that for MONOCHROME1
    for row, column in ((0, 0), (700, 900), (1500, 400)):
        shown = (int(data.pixel_array[row, column]) - 14999.5) / 29999 + 0.5
        assert levels[row, column] == round((1 - min(max(shown, 0), 1)) * 255)


def test_jpeg_2000_gives_the_pixels_of_the_uncompressed_file() -> None:
    plain, lossless, other, lossy = (np.asarray(read_dicom(real(name), 64, clahe=False).pixels) for name in REAL)
    assert plain.shape == (64, 64)
    assert np.array_equal(plain, lossless)
    assert np.array_equal(other, lossy)  # UNCI is what J2KI was decoded to
    assert np.abs(plain.astype(int) - other).max() <= 1


def test_a_real_mirrored_image_is_turned() -> None:
    """RG3, a shin, says R\\F: its rows lead to the patient's right."""
    data = pydicom.dcmread(real("RG3_UNCR.dcm"))
    assert list(data.PatientOrientation) == ["R", "F"]
    picture = read_dicom(real("RG3_UNCR.dcm"), 1760, clahe=False)
    assert "turned" in picture.remarks
    assert picture.pixels is not None
    assert np.array_equal(picture.pixels, grey_levels(data)[0][:, ::-1])


@pytest.mark.parametrize(
    ("orientation", "stored"),
    [
        (["L", "F"], [[1, 2, 3], [4, 5, 6]]),
        (["R", "F"], [[3, 2, 1], [6, 5, 4]]),  # mirrored
        (["L", "H"], [[4, 5, 6], [1, 2, 3]]),  # upside down
        (["R", "H"], [[6, 5, 4], [3, 2, 1]]),  # turned by 180 degrees
        (["F", "L"], [[1, 4], [2, 5], [3, 6]]),  # transposed
        (["H", "L"], [[4, 1], [5, 2], [6, 3]]),
        (["F", "R"], [[3, 6], [2, 5], [1, 4]]),
        (["H", "R"], [[6, 3], [5, 2], [4, 1]]),
        (["A", "F"], [[1, 2, 3], [4, 5, 6]]),  # lateral: left as it is
        (["P", "H"], [[4, 5, 6], [1, 2, 3]]),
        (["LP", "FA"], [[1, 2, 3], [4, 5, 6]]),  # slightly oblique
    ],
)
def test_every_orientation_ends_upright(orientation: list[str], stored: list[list[int]]) -> None:
    upright, remarks = turn(np.array(stored), orientation)
    assert upright.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert remarks == ([] if stored == [[1, 2, 3], [4, 5, 6]] else ["turned"])


@pytest.mark.parametrize("orientation", [None, "", "LF", ["L"], ["L", "R"], ["F", "H"], ["L", ""], ["X", "F"]])
def test_an_orientation_that_says_nothing_changes_nothing_and_is_said(orientation: Any) -> None:
    upright, remarks = turn(np.array([[1, 2], [3, 4]]), orientation)
    assert upright.tolist() == [[1, 2], [3, 4]]
    assert remarks == ["unoriented"]


@pytest.mark.parametrize("function", ["LINEAR", "LINEAR_EXACT", "SIGMOID"])
@pytest.mark.parametrize("rescale", [(1.0, 0.0), (2.0, -1000.0), (-1.0, 4095.0)])
def test_windows_are_those_of_pydicom(function: str, rescale: tuple[float, float]) -> None:
    pixels = np.arange(4096, dtype=np.uint16).reshape(64, 64)
    slope, intercept = rescale
    data = made(
        pixels,
        BitsStored=12,
        HighBit=11,
        WindowCenter=1800,
        WindowWidth=1500,
        VOILUTFunction=function,
        RescaleSlope=slope,
        RescaleIntercept=intercept,
    )
    levels, remarks = grey_levels(data)
    assert remarks == []
    values = pydicom.pixels.processing.apply_modality_lut(pixels, data)
    shown = pydicom.pixels.processing.apply_voi_lut(values, data)
    ends = sorted((intercept, 4095 * slope + intercept))
    expected = (shown - ends[0]) / (ends[1] - ends[0]) * 255
    # A negative slope turns pydicom's output range round, and with it the picture; the standard does not.
    expected = 255 - expected if slope < 0 else expected
    assert np.abs(levels - expected).max() <= 0.5 + 1e-6


def test_of_several_windows_the_first_counts() -> None:
    pixels = np.array([[0, 50, 100, 200]], dtype=np.uint16)
    several = grey_levels(made(pixels, WindowCenter=[50.5, 150], WindowWidth=[101, 3]))[0]
    assert several.tolist() == [[0, 128, 255, 255]]  # 50 of 0..100 is 127.5, which rounds to the even 128


def test_a_lookup_table_goes_before_a_window() -> None:
    item = pydicom.Dataset()
    item.LUTDescriptor = [4, 10, 8]  # four entries from value 10 on, of 8 bits
    item.add_new("LUTData", "US", [255, 100, 50, 0])
    pixels = np.array([[9, 10, 11, 12, 13, 14]], dtype=np.uint16)
    levels = grey_levels(made(pixels, VOILUTSequence=[item], WindowCenter=12, WindowWidth=4))[0]
    assert levels.tolist() == [[255, 255, 100, 50, 0, 0]]


def test_signed_values_keep_their_order() -> None:
    pixels = np.array([[-1000, 0, 1000]], dtype=np.int16)
    assert grey_levels(made(pixels, WindowCenter=0.5, WindowWidth=2001))[0].tolist() == [[0, 128, 255]]


@pytest.mark.parametrize("tags", [{}, {"WindowCenter": 5, "WindowWidth": 0}, {"WindowCenter": 5}])
def test_without_a_window_percentiles_become_black_and_white(tags: dict[str, Any]) -> None:
    pixels = np.linspace(1000, 3000, 10_000).astype(np.uint16).reshape(100, 100)
    pixels[0, 0], pixels[99, 99] = 0, 65535  # dead pixels, which must not squeeze the rest
    levels, remarks = grey_levels(made(pixels, **tags))
    assert remarks == ["unwindowed"]
    assert RANGE == (0.1, 99.9)
    assert levels[0, 0] == levels[0, 1] == 0
    assert levels[99, 99] == levels[99, 98] == 255
    assert levels[50, 0] == pytest.approx(127.5, abs=1.5)


def test_an_empty_image_without_a_window_is_black() -> None:
    assert grey_levels(made(np.full((4, 4), 700, dtype=np.uint16)))[0].tolist() == [[0] * 4] * 4


@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
def test_declared_padding_is_black_and_has_no_say_in_the_range(photometric: str) -> None:
    pixels = np.tile(np.array([0, 100, 200, 300], dtype=np.uint16), (4, 1))
    levels, _ = grey_levels(made(pixels, PixelPaddingValue=0, PhotometricInterpretation=photometric))
    rising = [0, 0, 128, 255] if photometric == "MONOCHROME2" else [0, 255, 128, 0]
    assert levels[0].tolist() == rising


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files and their table: CheXpert's kind of columns."""
    below = tmp_path / "study"
    below.mkdir()
    lit = np.zeros((16, 24), dtype=np.uint16)
    lit[:, 20:] = 4000
    window = {"WindowCenter": 2000.5, "WindowWidth": 4001}
    person = {"PatientID": "P-17", "PatientAge": "045Y", "PatientSex": "F", "ViewPosition": "PA"}
    written(below / "a.dcm", lit, **window, **person)
    written(below / "b.dcm", lit[:, ::-1], **window, **person | {"PatientOrientation": ["R", "F"]})
    infant = {"PatientID": "P-18", "PatientAge": "018M", "PatientSex": "M", "ViewPosition": "AP"}
    written(below / "1.2.840.99", 4000 - lit, **window, **infant, PhotometricInterpretation="MONOCHROME1")
    table = "file,Edema,Hernia\nstudy/a.dcm,1,\nstudy/b.dcm,0,-1\n1.2.840.99,,1.0\n"
    (tmp_path / "table.csv").write_text(table)
    return tmp_path


def test_a_folder_of_dicom_files_with_its_table(folder: Path) -> None:
    records = chest_xray(folder, size=8, labels=folder / "table.csv", findings=("Edema", "Hernia")).load()
    pixels = images(records)[:, 0]
    assert pixels.shape == (3, 8, 8)
    assert np.array_equal(pixels[0], pixels[1])  # the mirrored one was turned
    assert np.array_equal(pixels[0], pixels[2])  # the inverted one was inverted
    assert pixels[0, :, 0].tolist() == [0] * 8
    assert pixels[0, :, 7].min() > 200
    assert records.target.tolist() == [[1, 0], [0, -1], [0, 1]]
    assert records.groups["age"].tolist() == [45, 45, 1.5]
    assert records.groups["sex"].tolist() == ["female", "female", "male"]
    assert records.groups["view"].tolist() == ["PA", "PA", "AP"]
    assert records.units.tolist()[0] == records.units.tolist()[1] != records.units.tolist()[2]
    assert records.patient is not None
    assert "P-17" not in records.patient
    (conversion,) = (folder / ".wardround-cache").glob("8px-*/")
    assert read_facts(conversion)["patient"].nunique() == 2
    assert "P-17" not in read_facts(conversion)["patient"].tolist()
    assert noticed(records, "dicom-inverted").counts == {"images": 1}
    assert noticed(records, "dicom-turned").counts == {"images": 1}
    assert noticed(records, "images-rescaled").counts["images"] == 3
    assert noticed(records, "uncertain-labels").counts == {"labels": 1, "images": 1}


def test_what_the_table_says_of_people_goes_before_the_tags(folder: Path) -> None:
    table = "image,Edema,Patient ID,Age\na.dcm,1,7,50\nb.dcm,0,8,51\n1.2.840.99,0,8,\n"
    (folder / "other.csv").write_text(table)
    records = chest_xray(folder, size=8, labels=folder / "other.csv", findings=("edema",)).load()
    assert records.units.tolist()[1] == records.units.tolist()[2] != records.units.tolist()[0]
    assert records.groups["age"].tolist()[:2] == [50, 51]
    assert np.isnan(records.groups["age"][2])
    assert records.groups["sex"].tolist() == ["female", "female", "male"]  # the table has no such column


def test_the_path_may_be_the_table_itself(folder: Path) -> None:
    records = chest_xray(folder / "table.csv", size=8, findings=("Edema",)).load()
    assert records.target.tolist() == [[1], [0], [0]]


REFUSED = {
    "several frames": ({"NumberOfFrames": 3}, np.zeros((8, 8), dtype=np.uint16), "several frames in one file"),
    "colour": ({}, np.zeros((8, 8, 3), dtype=np.uint8), "in colour, as screen shots and reports are"),
    "32 bits": ({}, np.zeros((8, 8), dtype=np.uint32), "more than 16 bits per pixel"),
}


@pytest.mark.parametrize(("tags", "pixels", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_one_grey_frame_is_refused(
    folder: Path, tags: dict[str, Any], pixels: np.ndarray, reason: str
) -> None:
    written(folder / "study" / "b.dcm", pixels, **tags)
    assert read_dicom(folder / "study" / "b.dcm", 8, clahe=False).reason == reason
    settings: dict[str, Any] = {"size": 8, "labels": folder / "table.csv", "findings": ("Edema",)}
    with pytest.raises(DataError, match=r": 1 \(unreadable\)"):
        chest_xray(folder, **settings).load()
    records = chest_xray(folder, **settings, accept=("unreadable", "other-size")).load()
    assert records.target.tolist() == [[1], [0]]
    assert reason in (folder / ".wardround-cache" / "problems.csv").read_text()


@pytest.mark.parametrize("spoil", [b"", b"no DICOM at all", None])
def test_a_damaged_file_is_unreadable(tmp_path: Path, spoil: bytes | None) -> None:
    path = written(tmp_path / "a.dcm", np.ones((64, 64), dtype=np.uint16))
    path.write_bytes(path.read_bytes()[:-3000] if spoil is None else spoil)
    picture = read_dicom(path, 8, clahe=False)
    assert picture.pixels is None
    assert picture.reason.startswith("damaged")


def test_a_report_without_pixels_is_unreadable(tmp_path: Path) -> None:
    data = made(np.ones((8, 8), dtype=np.uint16))
    for tag in ("PixelData", "SamplesPerPixel", "Rows", "Columns", "BitsAllocated"):
        delattr(data, tag)
    data.save_as(tmp_path / "report.dcm", enforce_file_format=True)
    assert read_dicom(tmp_path / "report.dcm", 8, clahe=False).pixels is None


def test_a_real_file_goes_all_the_way(tmp_path: Path) -> None:
    for name in REAL[:2]:
        shutil.copy(real(name), tmp_path / name)
    (tmp_path / "labels.csv").write_text(f"Path,Finding Labels\n{REAL[0]},Nodule|Mass\n{REAL[1]},No Finding\n")
    records = chest_xray(tmp_path, labels=tmp_path / "labels.csv").load()
    assert np.array_equal(images(records)[0], images(records)[1])
    assert records.units.tolist() == [0, 0]
    assert records.groups["sex"].tolist() == ["female"] * 2
    assert records.groups["view"].tolist() == ["PA"] * 2
    assert "age" not in records.groups  # the tag is not in the file
    assert noticed(records, "images-rescaled").counts["images"] == 2


def test_without_pydicom_the_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(MachineError, match="pydicom") as caught:
        chest_xray(folder / "table.csv", size=8, findings=("Edema",)).load()
    assert "wardround[imaging]" in caught.value.remedy
