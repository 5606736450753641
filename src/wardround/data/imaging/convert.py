"""Files to cached images: decoded in chunks by a few threads, so that memory never holds more than a chunk.

Threads suffice: Pillow and the decoders let go of Python's lock while they work.
"""

import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

from wardround.data.imaging import cache as store
from wardround.data.imaging.decode import Picture, need_clahe, read_picture
from wardround.data.imaging.dicom import TAGS, need_pydicom, read_dicom
from wardround.data.imaging.file_lookup import is_dicom

AT_ONCE = 256  # files in a chunk at most


def converted(folder: Path, files: Sequence[str], size: int, clahe: bool, cache: Path, asked: str) -> Path:
    """The cached conversion of these files, in this order. `asked` tells this set of files from others of one cache.

    `facts.parquet` has a row for every file; `images.npy` only for those with a blank `reason`.
    """
    marks = [_mark(file, os.stat(f"{folder}/{file}")) for file in files]
    name = f"{size}px{'-clahe' if clahe else ''}"
    settings = f"{name}-{store.digest(name, asked)}"
    return store.kept(cache, settings, store.digest(*marks), partial(_make, folder, files, size, clahe))


def _mark(file: str, status: os.stat_result) -> str:
    """Changes when the file does."""
    return f"{file}\x1f{status.st_size}\x1f{status.st_mtime_ns}"


def _make(folder: Path, files: Sequence[str], size: int, clahe: bool, into: Path) -> None:
    if any(map(is_dicom, files)):
        need_pydicom()
    if clahe:
        need_clahe()
    facts: list[dict[str, object]] = []

    def chunks() -> Iterator[np.ndarray]:
        for pictures in _decoded(folder, files, size, clahe):
            facts.extend(map(_facts, pictures))
            usable = [picture.pixels for picture in pictures if picture.pixels is not None]
            if usable:
                yield np.stack(usable)[:, np.newaxis]

    store.write_images(into / "images.npy", size, chunks())
    pd.DataFrame(facts).to_parquet(into / "facts.parquet")


def _decoded(folder: Path, files: Sequence[str], size: int, clahe: bool) -> Iterator[list[Picture]]:
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    step = max(threads, min(AT_ONCE, store.CHUNK // size**2))
    # Odd headers are no news to a user; but a picture of absurd size is an error, not a warning.
    with warnings.catch_warnings(), ThreadPoolExecutor(threads) as pool:
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        for start in range(0, len(files), step):
            yield list(pool.map(lambda file: decode(folder / file, size, clahe), files[start : start + step]))


def decode(path: Path, size: int, clahe: bool) -> Picture:
    return (read_dicom if is_dicom(path.name) else read_picture)(path, size, clahe)


def _facts(picture: Picture) -> dict[str, object]:
    said = {word: picture.said.get(word, "") for word in TAGS}
    if said["patient"]:  # the cache may be elsewhere than the data: it knows patients apart, but not by their numbers
        said["patient"] = sha256(said["patient"].encode()).hexdigest()[:16]
    found = " ".join(picture.found)
    return {"width": picture.width, "height": picture.height, "found": found, "reason": picture.reason, **said}
