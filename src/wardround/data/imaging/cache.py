"""The cache: images that were decoded once, as one file of bytes that is mapped and never read into memory whole.

Files are decoded in chunks by a few threads, so that memory never holds more than a chunk. Threads suffice: Pillow and
the decoders let go of Python's lock while they work.

    .wardround-cache/                    beside the data, for its owner only
      64px-SETTINGS-CONTENT/             one conversion; it counts from the moment when it has this name
        images.npy                       (rows, channels, height, width), bytes
        facts.parquet                    sizes, remarks and attributes of each file
        prints-TARGET.npy                a number per row for one set of labels
      64px-SETTINGS.lock                 who holds it, converts
      problems.csv                       of the latest load

SETTINGS are the digest of the settings, CONTENT of the files' names, sizes and times of change. When files change, a
new conversion is made; of one set of settings the two latest are kept. The folder may be deleted at any time.
"""

import fcntl
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from shutil import rmtree
from typing import BinaryIO, TypeVar

import numpy as np
import pandas as pd
from PIL import Image

from wardround.core.atomic_files import replacing, write_atomically
from wardround.core.errors import DataError, MachineError
from wardround.data.imaging.decode import Picture, in_channels, need_clahe, read_picture
from wardround.data.imaging.dicom import TAGS, need_pydicom, read_dicom
from wardround.data.imaging.file_lookup import is_dicom
from wardround.data.imaging.listing import ImageOptions
from wardround.data.records import short_hash
from wardround.data.split import prints_of

FOLDER = ".wardround-cache"
FORMAT = "2"  # of what is stored and how it is computed: a new one makes all older conversions void
LATEST = 2  # conversions of one set of settings that stay
PRIVATE = 0o700
Content = TypeVar("Content")
CHUNK = 16 * 2**20  # bytes of images that are looked at together
AT_ONCE = 256  # files in a chunk at most
CHANNELS = {"grey": 1, "rgb": 3}
NO_FORM = (1, (0, 0))  # of DICOM files: grey, and their size is not looked at
LARGEST_AS_IT_IS, USUAL_SIZE = 256, 64  # pixels: images that are all alike and square keep their size up to here


def digest(*parts: str) -> str:
    return blake2b("\x1f".join((FORMAT, *parts)).encode(), digest_size=8).hexdigest()


def conversion(cache: Path, settings: str, content: str, make: Callable[[Path], None]) -> Path:
    """The folder of this conversion. If it is not there, `make` fills it; a second process waits for the first."""
    folder = cache / f"{settings}-{content}"
    if folder.is_dir():
        return folder
    with writing(cache), _locked(cache / f"{settings}.lock"):
        if folder.is_dir():
            return folder
        unfinished = cache / f"{settings}.partial"  # left by a process that was killed, or ours
        rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=PRIVATE)
        try:
            make(unfinished)
            earlier = sorted(cache.glob(f"{settings}-*"), key=lambda path: path.stat().st_mtime)
            unfinished.rename(folder)
        except BaseException:
            rmtree(unfinished, ignore_errors=True)
            raise
        for stale in earlier[: len(earlier) + 1 - LATEST]:
            rmtree(stale, ignore_errors=True)
    return folder


@contextmanager
def writing(cache: Path) -> Iterator[None]:
    """Around what writes into the cache, which is made here if need be."""
    try:
        cache.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        yield
    except OSError as error:
        problem = f"converted images cannot be kept here ({error.strerror or type(error).__name__})"
        remedy = "Set `cache` in [data] (data.cache) to a folder with enough room in which you may write."
        raise MachineError(str(cache), problem, remedy) from None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """The lock dies with its process, so that a crash leaves nothing to clean up."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write_images(path: Path, shape: tuple[int, int, int], chunks: Iterable[np.ndarray]) -> int:
    """One after another, so that memory holds one chunk; how many rows they had is known at the end. `shape` is that of
    an image: channels, height, width."""
    rows = 0
    with path.open("wb") as file:
        _write_header(file, 0, shape)
        for chunk in chunks:
            file.write(np.ascontiguousarray(chunk, dtype=np.uint8).data)
            rows += len(chunk)
        file.seek(0)
        _write_header(file, rows, shape)  # as long as before: numpy leaves room for a growing first axis
        file.flush()
        os.fsync(file.fileno())
    return rows


def _write_header(file: BinaryIO, rows: int, shape: tuple[int, int, int]) -> None:
    header = {"descr": "|u1", "fortran_order": False, "shape": (rows, *shape)}
    np.lib.format.write_array_header_1_0(file, header)


def open_images(folder: Path) -> np.ndarray:
    """Mapped so that a write would go to memory and never to the file, as torch demands of what it wraps."""
    return _open(folder, lambda: np.load(folder / "images.npy", mmap_mode="c", allow_pickle=False))


def read_facts(folder: Path) -> pd.DataFrame:
    return _open(folder, lambda: pd.read_parquet(folder / "facts.parquet"))


def _open(folder: Path, read: Callable[[], Content]) -> Content:
    try:
        return read()
    except (OSError, ValueError) as error:
        problem = f"this conversion is damaged ({type(error).__name__})"
        raise DataError(str(folder), problem, "Delete the folder; it is made anew from the images.") from None


def cached_prints(folder: Path, images: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Computed once for each set of labels, because that reads every image."""
    name = blake2b(np.ascontiguousarray(target).tobytes(), digest_size=8).hexdigest()
    path = folder / f"prints-{name}.npy"
    if path.is_file():
        return _open(folder, lambda: np.load(path, allow_pickle=False))
    prints = prints_of(images, target)
    with writing(folder), replacing(path) as file:
        np.save(file, prints, allow_pickle=False)
    return prints


def write_listing(path: Path, content: bytes) -> None:
    """Only where it changed, so that a cache that may only be read does for a second load."""
    if not path.is_file() or path.read_bytes() != content:
        with writing(path.parent):
            write_atomically(path, content)


def settings_name(options: ImageOptions, *parts: str) -> str:
    size, colour = options.size or "own", "" if options.colour == "grey" else f"-{options.colour}"
    name = f"{size}px{colour}{'-clahe' if options.clahe else ''}"
    return f"{name}-{digest(name, *parts)}"


def converted(folder: Path, files: Sequence[str], options: ImageOptions, cache: Path, selection: str) -> Path:
    """The cached conversion of these files, in this order. `selection` tells this set of files from others.

    `facts.parquet` has a row for every file; `images.npy` only for those with a blank `reason`.
    """
    status = {file: os.stat(f"{folder}/{file}") for file in files}
    content = digest(*(f"{file}\x1f{at.st_size}\x1f{at.st_mtime_ns}" for file, at in status.items()))
    settings = settings_name(options, selection)
    return conversion(cache, settings, content, partial(_convert, folder, files, options))


def _convert(folder: Path, files: Sequence[str], options: ImageOptions, into: Path) -> None:
    if any(map(is_dicom, files)):
        need_pydicom()
    if options.clahe:
        need_clahe()
    channels, size = form_of(folder, files, options)
    facts: list[dict[str, object]] = []

    def chunks() -> Iterator[np.ndarray]:
        for pictures in _decoded(folder, files, size, options.clahe, channels):
            facts.extend(map(_facts, pictures))
            if usable := [picture.pixels for picture in pictures if picture.pixels is not None]:
                yield np.stack(usable).reshape(-1, channels, size, size)

    write_images(into / "images.npy", (channels, size, size), chunks())
    pd.DataFrame(facts).to_parquet(into / "facts.parquet")


def _decoded(folder: Path, files: Sequence[str], size: int, clahe: bool, channels: int) -> Iterator[list[Picture]]:
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    step = max(threads, min(AT_ONCE, CHUNK // size**2))
    # Odd headers are no news to a user; but a picture of absurd size is an error, not a warning.
    with warnings.catch_warnings(), ThreadPoolExecutor(threads) as pool:
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        for start in range(0, len(files), step):
            some = files[start : start + step]
            yield list(pool.map(lambda file: decode(folder / file, size, clahe, channels), some))


def decode(path: Path, size: int, clahe: bool, channels: int = 1) -> Picture:
    if not is_dicom(path.name):
        return read_picture(path, size, clahe, channels)
    picture = read_dicom(path, size, clahe)
    return picture if picture.pixels is None else replace(picture, pixels=in_channels(picture.pixels, channels))


def form_of(folder: Path, files: Sequence[str], options: ImageOptions) -> tuple[int, int]:
    """Channels and size of the images: as the study says, or as the files are. Only their headers are read."""
    if options.size is not None and options.colour != "auto":
        return CHANNELS[options.colour], options.size  # nothing need be opened
    forms = [NO_FORM if is_dicom(file) else header_form(folder / file) for file in files]
    return form_among([form for form in forms if form is not None], options, str(folder))


def form_among(forms: Sequence[tuple[int, tuple[int, int]]], options: ImageOptions, where: str) -> tuple[int, int]:
    """The same, of the channels, widths and heights of images."""
    colour = sum(channels == CHANNELS["rgb"] for channels, _ in forms)
    if options.colour == "auto" and 0 < colour < len(forms):
        problem = f"{len(forms) - colour} images are grey and {colour} in colour"
        raise DataError(where, problem, 'Write `colour = "rgb"` or `colour = "grey"` in [data].')
    channels = CHANNELS["rgb" if colour else "grey"] if options.colour == "auto" else CHANNELS[options.colour]
    sizes = {size for _, size in forms}
    own = next(iter(sizes)) if len(sizes) == 1 else (0, 0)
    return channels, options.size or (own[0] if own[0] == own[1] and 0 < own[0] <= LARGEST_AS_IT_IS else USUAL_SIZE)


def header_form(path: Path | BinaryIO) -> tuple[int, tuple[int, int]] | None:
    """Of a picture that can be opened; what cannot is reported where it is decoded."""
    try:
        with Image.open(path) as image:
            grey = image.mode in ("1", "L", "LA", "La", "F") or image.mode.startswith("I")
            return CHANNELS["grey" if grey else "rgb"], image.size
    except MemoryError:
        raise
    except Exception:  # Pillow's readers raise whatever a damaged file leads to
        return None


def _facts(picture: Picture) -> dict[str, object]:
    attributes = {name: picture.attributes.get(name, "") for name in TAGS}
    if attributes["patient"]:  # the cache may be elsewhere than the data: it tells patients apart without their numbers
        attributes["patient"] = short_hash(attributes["patient"])
    return {
        "width": picture.width,
        "height": picture.height,
        "remarks": " ".join(picture.remarks),
        "reason": picture.reason,
        **attributes,
    }
