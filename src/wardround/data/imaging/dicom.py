"""DICOM radiographs: modality values, window, bone bright, patient upright with the left side on the right.

MONAI's reader transposes and does not invert MONOCHROME1, and pydicom gives raw values; the standard's chain (PS3.3
C.11.1 and C.11.2) is followed here. It is worked out once per stored value, of which there are at most 65,536, and
not once per pixel.
"""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from wardround.core.extras import load, needs
from wardround.data.imaging.decode import MOST_PIXELS, Picture, finished

TAGS = {"patient": "PatientID", "age": "PatientAge", "sex": "PatientSex", "view": "ViewPosition"}
DEFLATED, FILE_META = b"1.2.840.10008.1.2.1.99", 1 << 20  # a transfer syntax, and the bytes in which it is looked for
GREY = ("MONOCHROME1", "MONOCHROME2")
UPRIGHT, DIRECTIONS = {"F", "H"}, {"F", "H", "L", "R", "A", "P"}  # foot, head, left, right, anterior, posterior
RANGE = (0.1, 99.9)  # percentiles that become black and white where a file has no window
REMARKS: dict[str, dict[str, float]] = {  # each with a notice `dicom-...`, and what it counts besides images
    "inverted": {},
    "unwindowed": {"black": RANGE[0], "white": RANGE[1]},
    "turned": {},
    "unoriented": {},
}


def need_pydicom() -> Any:
    return load("pydicom", "imaging", "reading DICOM files")


def read_dicom(path: Path, size: int, clahe: bool) -> Picture:
    pydicom = need_pydicom()
    try:
        if _is_deflated(path):
            return Picture(None, reason="compressed as a whole, and not only its pixels")
        data = pydicom.dcmread(path)
        if refused := _refused(data):
            return Picture(None, reason=refused)
        levels, remarks = grey_levels(data)
        upright, turned = turn(levels, data.get("PatientOrientation"))
        attributes = {name: str(data.get(tag) or "").strip() for name, tag in TAGS.items()}
    except MemoryError:
        raise
    except Exception as error:  # pydicom and its decoders raise whatever a damaged file leads to
        return Picture(None, reason=f"damaged, or of a kind that cannot be read here ({type(error).__name__})")
    height, width = levels.shape
    pixels = finished(Image.fromarray(upright), size, clahe)
    return Picture(pixels, width, height, (*remarks, *turned), attributes=attributes)


def _is_deflated(path: Path) -> bool:
    """Checked first: pydicom would decompress all of it, and a megabyte may hold a gigabyte. Radiographs are not so."""
    if not isinstance(path, Path):  # what is open already
        head = path.read(FILE_META)
        path.seek(0)
    else:
        with path.open("rb") as file:
            head = file.read(FILE_META)
    return DEFLATED in head


def _refused(data: Any) -> str:
    if int(data.Rows) * int(data.Columns) > MOST_PIXELS:
        return f"more than {MOST_PIXELS:,} pixels"
    if int(data.get("NumberOfFrames") or 1) > 1:
        return "several frames in one file"
    if data.SamplesPerPixel != 1 or data.PhotometricInterpretation not in GREY:
        return "in colour, as screen shots and reports are"
    return "more than 16 bits per pixel" if data.BitsAllocated > 16 else ""


def grey_levels(data: Any) -> tuple[np.ndarray, list[str]]:
    """Bytes in which bone is bright, as large as stored. Padding, where the file declares it, is black."""
    with needs("imaging", "reading DICOM files"):
        from pydicom.pixels.processing import apply_modality_lut, apply_voi

    stored = data.pixel_array
    padding = _padding(stored, data)
    lowest = int(stored.min())
    values = apply_modality_lut(np.arange(lowest, int(stored.max()) + 1).astype(stored.dtype), data)
    shown: np.ndarray | None
    if data.get("VOILUTSequence"):  # the first table, which goes before a window
        depth = int(data.VOILUTSequence[0].LUTDescriptor[2])
        shown = np.asarray(apply_voi(np.rint(values).astype(np.int64), data) / (2.0**depth - 1))
    else:
        shown = _through_window(values, data)
    remarks = []
    if shown is None:
        real = stored if padding is None or padding.all() else stored[~padding]
        ends = np.percentile(real, RANGE, method="nearest").astype(np.int64) - lowest
        black, white = sorted(float(values[end]) for end in ends)
        shown = np.clip((values - black) / max(white - black, np.finfo(float).tiny), 0, 1)
        remarks.append("unwindowed")
    if data.PhotometricInterpretation == "MONOCHROME1":
        shown = 1 - shown
        remarks.append("inverted")
    levels = np.rint(shown * 255).astype(np.uint8)[stored.astype(np.int64) - lowest]
    if padding is not None:
        levels[padding] = 0
    return levels, remarks


def _padding(stored: np.ndarray, data: Any) -> np.ndarray | None:
    """Pixels that fill up the rectangle around the picture and stand for nothing (PS3.3 C.7.5.1.1.2)."""
    first = data.get("PixelPaddingValue")
    if first is None:
        return None
    last = data.get("PixelPaddingRangeLimit")
    low, high = sorted((int(first), int(first if last is None else last)))
    return (stored >= low) & (stored <= high)


def _through_window(values: np.ndarray, data: Any) -> np.ndarray | None:
    """By the first window, from 0 to 1 (PS3.3 C.11.2.1.2 and C.11.2.1.3); None where there is none or it is void."""
    centre, width = _first(data.get("WindowCenter")), _first(data.get("WindowWidth"))
    function = str(data.get("VOILUTFunction") or "LINEAR").upper()
    if centre is None or width is None or width <= 0 or (function == "LINEAR" and width < 1):
        return None
    if function == "SIGMOID":
        return np.asarray(1 / (1 + np.exp(np.clip(-4 * (values - centre) / width, -700, 700))))
    if function == "LINEAR":
        centre, width = centre - 0.5, width - 1
    if width == 0:
        return (values > centre).astype(float)
    return np.clip((values - centre) / width + 0.5, 0, 1)


def _first(value: Any) -> float | None:
    """Of several alternative windows."""
    if value is None or value == "":
        return None
    return float(value) if isinstance(value, int | float | str) else float(value[0])


def turn(levels: np.ndarray, orientation: Any) -> tuple[np.ndarray, list[str]]:
    """To L\\F: along a row towards the patient's left, down a column towards the feet.

    The tag names where rows lead, then where columns lead (PS3.3 C.7.6.1.1.1); of compound words the first letter
    counts. In lateral images (A or P in place of L or R) only up and down are settled.
    """
    named = [] if not orientation or isinstance(orientation, str) else [str(name).strip()[:1] for name in orientation]
    if len(named) != 2 or sorted(name in UPRIGHT for name in named) != [False, True] or not {*named} <= DIRECTIONS:
        return levels, ["unoriented"]
    upright = levels
    if named[0] in UPRIGHT:
        upright, named = upright.T, named[::-1]
    if named[1] == "H":
        upright = upright[::-1]
    if named[0] == "R":
        upright = upright[:, ::-1]
    return (levels, []) if upright is levels else (np.ascontiguousarray(upright), ["turned"])
