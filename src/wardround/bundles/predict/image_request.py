"""Images that do not come from a file: arrays in memory, and what a request holds. Nothing of them is written."""

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa
from PIL import Image

from wardround.bundles.bundle import Bundle
from wardround.bundles.inputs import Images
from wardround.bundles.predict.blocks import Block
from wardround.bundles.predict.images import (
    IMAGE,
    WORDS,
    block_of_pictures,
    block_without_images,
    columns_of,
    converted,
    is_dicom_content,
    refuse_partly,
    without_warnings,
)
from wardround.core.errors import DataError
from wardround.data.imaging.decode import MOST_PIXELS, Picture, read_picture
from wardround.data.imaging.dicom import need_pydicom, read_dicom

ONE_AT_A_TIME = Lock()  # what is done with warnings is done for all threads


def block_of_arrays(bundle: Bundle, given: np.ndarray, table: pd.DataFrame | None, without: Sequence[str]) -> Block:
    images = bundle.inputs.images
    if images is None:
        raise DataError("images", "the bundle takes no images", "Use predict_table.")
    pixels = given[:, 0] if given.ndim == 4 and given.shape[1] == 1 else given
    fits = pixels.ndim == 3 or (pixels.ndim == 4 and pixels.shape[3] in (1, 3))
    if not fits or pixels.dtype.name not in ("uint8", "uint16"):
        remedy = "Give an array (images, height, width) of 8 or 16 bits; a last axis of 3 holds colours."
        raise DataError("images", f"an array of {given.ndim} axes and type {given.dtype.name}", remedy)
    said = pd.DataFrame(index=pd.RangeIndex(len(pixels)))
    if table is not None:
        if len(table) != len(pixels):
            raise DataError("table", f"{len(table)} rows for {len(pixels)} images", "Give a row for each image.")
        said = pd.DataFrame({w: _as_texts(table[w].tolist()) for w in WORDS if w in table}, dtype=object)
    refuse_partly(bundle, set(said.columns), "table", without)
    labels = [str(number) for number in range(len(pixels))]
    columns = {IMAGE: pa.array(labels, pa.string()), **columns_of(said)}
    return Block(len(pixels), columns, "image {}".format, images=converted(pixels, images))


def block_of_rows(
    bundle: Bundle, rows: Sequence[Mapping[str, Any]], without: Sequence[str], where: Callable[[int], str]
) -> Block:
    """Of a request: an image is the content of its file in base64. What a row does not say, a DICOM file may."""
    images = bundle.inputs.images
    if images is None:
        raise ValueError("a bundle of images is needed")
    labels = [""] * len(rows)
    if bundle.inputs.parts and bundle.inputs.image_at in without:
        said, ungiven = _said(rows, [{}] * len(rows))
        return block_without_images(labels, columns_of(said), {}, where, ungiven)
    pictures = []
    with ONE_AT_A_TIME, without_warnings():
        for number, row in enumerate(rows):
            content = row.get(IMAGE)
            if not isinstance(content, str):
                problem = "there is no 'image'" if content is None else "'image' is not a text"
                raise DataError(where(number), problem, "Give the content of a PNG, JPEG or DICOM file in base64.")
            pictures.append(sent_picture(content, images, where(number)))
    said, ungiven = _said(rows, [picture.attributes for picture in pictures])
    return block_of_pictures(labels, pictures, images, columns_of(said), {}, where, ungiven)


def _said(
    rows: Sequence[Mapping[str, Any]], in_files: Sequence[Mapping[str, str]]
) -> tuple[pd.DataFrame, dict[str, np.ndarray]]:
    """What is known of each row's patient, and by word the rows that come without it. As in a folder, a DICOM file has
    the words, with or without a value."""
    pairs = list(zip(rows, in_files, strict=True))
    ungiven = {w: np.array([w not in row and not file for row, file in pairs], dtype=bool) for w in WORDS}
    given = [word for word in WORDS if not ungiven[word].all()]
    cells = {w: _as_texts([row[w] if w in row else file.get(w) for row, file in pairs]) for w in given}
    return pd.DataFrame(cells, dtype=object), ungiven


def sent_picture(text: str, images: Images, where: str) -> Picture:
    """From base64. Never written anywhere."""
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise DataError(where, "'image' is not base64", "Encode the file's content as base64.") from None
    file = cast(Path, BytesIO(content))  # both readers take what is open as well as a path
    if not is_dicom_content(content):
        return _too_large_picture(content) or read_picture(file, images.shape[1], images.clahe)
    return _too_large_dicom(content) or read_dicom(file, images.shape[1], images.clahe)


def _too_large_picture(content: bytes) -> Picture | None:
    try:
        with Image.open(BytesIO(content)) as image:
            width, height = image.size
    except Exception as error:  # Pillow's readers raise whatever a damaged file leads to
        return Picture(None, reason=f"damaged ({type(error).__name__})")
    return None if width * height <= MOST_PIXELS else Picture(None, reason=f"more than {MOST_PIXELS:,} pixels")


def _too_large_dicom(content: bytes) -> Picture | None:
    pydicom = need_pydicom()
    try:
        data = pydicom.dcmread(BytesIO(content), stop_before_pixels=True)
        pixels = int(data.Rows) * int(data.Columns)
    except Exception as error:  # as in `read_dicom`
        return Picture(None, reason=f"damaged, or of a kind that cannot be read here ({type(error).__name__})")
    return None if pixels <= MOST_PIXELS else Picture(None, reason=f"more than {MOST_PIXELS:,} pixels")


def _as_texts(values: Sequence[Any]) -> list[str]:
    return ["" if value is None or value != value else str(value) for value in values]
