"""From a file to a small image of bytes, grey or in colour: decoded, turned upright, brought to one size. Always the
same bytes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from wardround.core.extras import load
from wardround.data.imaging.problems import Kind

WHOLE = 65535 / 255  # one grey level of 8 bits in levels of 16
MOST_PIXELS = 1 << 26  # of one image, 8192 x 8192; Pillow's own readers stop at a third more
SPARE = 4  # a JPEG may be decoded at a fraction of its size that is still so many times what is needed
_ORIENTATION = 0x0112  # EXIF


@dataclass(frozen=True)
class Picture:
    """One decoded file. `remarks` are kinds of problems, and keys of `dicom.REMARKS`."""

    pixels: np.ndarray | None  # uint8, size x size, in colour 3 x size x size; None: nothing that could be used
    width: int = 0  # as stored
    height: int = 0
    remarks: tuple[str, ...] = ()
    reason: str = ""  # why there is nothing
    attributes: Mapping[str, str] = field(default_factory=dict, repr=False)  # patient, age, sex, view in the file


def read_picture(path: Path, size: int, clahe: bool, channels: int = 1) -> Picture:
    """PNG, JPEG, TIFF or BMP, as grey or, with three channels, in colour."""
    try:
        with Image.open(path) as image:
            width, height = image.size
            mode, frames = image.mode, getattr(image, "n_frames", 1)
            if frames != 1 or mode == "F":
                return Picture(None, reason="several pictures in one file" if frames != 1 else "pixels are not bytes")
            if image.format == "JPEG":
                image.draft("L" if channels == 1 else "RGB", (SPARE * size, SPARE * size))
            image.load()
            upright = ImageOps.exif_transpose(image) if image.getexif().get(_ORIENTATION, 1) != 1 else image
            grey, remarks = (
                _grey(upright, mode) if channels == 1 or mode.startswith("I") else (upright.convert("RGB"), ())
            )
    except MemoryError:
        raise
    except Exception as error:  # Pillow's readers raise whatever a damaged file leads to
        return Picture(None, reason=f"damaged ({type(error).__name__})")
    if grey is None:
        return Picture(None, reason="more than 16 bits per pixel")
    return Picture(in_channels(finished(grey, size, clahe), channels), width, height, remarks)


def in_channels(pixels: np.ndarray, channels: int) -> np.ndarray:
    """Grey in each of three channels, where the study's images are in colour."""
    return pixels if pixels.ndim == 3 or channels == 1 else np.repeat(pixels[np.newaxis], channels, axis=0)


def _grey(image: Image.Image, mode: str) -> tuple[Image.Image | None, tuple[Kind, ...]]:
    """8 bits as they are (mode L), or 16 bits as numbers from 0 to 255 (mode F)."""
    if mode.startswith("I"):
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 65535:
            return None, ()
        return Image.fromarray((values / WHOLE).astype(np.float32)), ("16-bit",)
    return image.convert("L"), () if mode in ("L", "1") else ("colour",)


def finished(image: Image.Image, size: int, clahe: bool) -> np.ndarray:
    """Stretched to size x size and rounded to bytes; with CLAHE, contrast is then evened out, of each colour by
    itself."""
    if image.size != (size, size):  # Pillow's filters widen with the reduction, so that nothing aliases
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    if pixels.ndim == 3:
        pixels = np.ascontiguousarray(np.moveaxis(pixels, 2, 0))
        return np.stack([equalised(channel) for channel in pixels]) if clahe else pixels
    if pixels.dtype != np.uint8:
        pixels = np.rint(np.clip(pixels, 0, 255)).astype(np.uint8)
    return equalised(pixels) if clahe else pixels


def equalised(pixels: np.ndarray) -> np.ndarray:
    """Contrast-limited adaptive histogram equalisation (Zuiderveld 1994), as scikit-image does it by default."""
    exposure = need_clahe()
    if pixels.min() == pixels.max():  # it would make an empty image white
        return pixels
    return np.asarray(np.rint(exposure.equalize_adapthist(pixels) * 255), dtype=np.uint8)


def need_clahe() -> Any:
    return load("skimage.exposure", "imaging", "data: clahe", instead="leave `clahe` out")
