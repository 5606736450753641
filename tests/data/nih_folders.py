"""Small folders of made-up radiographs in the form of NIH's release, so that every trap can be set by hand."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from wardround.core.notices import Notice
from wardround.data.records import Records

HEADER = "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position"
HEADER += ",OriginalImage[Width,Height],OriginalImagePixelSpacing[x,y],"
ROWS = (
    "00000001_000.png,Cardiomegaly,0,1,058Y,M,PA,2682,2749,0.143,0.143,",
    "00000001_001.png,Cardiomegaly|Emphysema,1,1,058Y,M,PA,2894,2729,0.143,0.143,",
    "00000002_000.png,No Finding,0,2,081Y,F,AP,2500,2048,0.171,0.171,",
    "00000003_000.png,Hernia,0,3,412Y,F,PA,2582,2991,0.143,0.143,",
)
NAMES = tuple(row.split(",")[0] for row in ROWS)


def grey(value: int, side: int = 32) -> np.ndarray:
    return np.full((side, side), value, dtype=np.uint8)


def nih_folder(
    folder: Path, pictures: Mapping[str, np.ndarray] | None = None, rows: Sequence[str] = ROWS, header: str = HEADER
) -> Path:
    """Image i is all 10 (i + 1), unless `pictures` says otherwise, and lies where NIH's archives put it."""
    below = folder / "images_001" / "images"
    below.mkdir(parents=True)
    (folder / "Data_Entry_2017.csv").write_text("\n".join((header, *rows)) + "\n")
    if pictures is None:
        pictures = {name: grey(10 * (place + 1)) for place, name in enumerate(NAMES)}
    for name, pixels in pictures.items():
        Image.fromarray(pixels).save(below / name)
    return folder


def images(records: Records) -> np.ndarray:
    assert isinstance(records.features, np.ndarray)
    return records.features


def first_pixels(records: Records) -> list[int]:
    return [int(value) for value in images(records)[:, 0, 0, 0]]


def noticed(records: Records, code: str) -> Notice:
    """The one notice with this code."""
    (notice,) = [notice for notice in records.notices if notice.code == code]
    return notice
