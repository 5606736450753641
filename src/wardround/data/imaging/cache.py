"""The cache: images that were decoded once, as one file of bytes that is mapped and never read into memory whole.

    .wardround-cache/                    beside the data, for its owner only
      64px-SETTINGS-CONTENT/             one conversion; it counts from the moment when it has this name
        images.npy                       (rows, 1, height, width), bytes
        facts.parquet                    what was found in each file
        prints-TARGET.npy                a number per row for one set of labels
      64px-SETTINGS.lock                 who holds it, converts
      problems.csv                       what the latest load found

SETTINGS are the digest of what was asked, CONTENT of the files' names, sizes and times of change. When files change, a
new conversion is made; of one set of settings the two latest are kept. The folder may be deleted at any time.
"""

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from shutil import rmtree
from tempfile import NamedTemporaryFile
from typing import BinaryIO, TypeVar

import numpy as np
import pandas as pd

from wardround.core.errors import DataError, MachineError

FOLDER = ".wardround-cache"
FORMAT = "1"  # of what is stored and how it is computed: a new one makes all older conversions void
KEPT = 2
PRIVATE = 0o700
Content = TypeVar("Content")
CHUNK = 16 * 2**20  # bytes of images that are looked at together


def digest(*parts: str) -> str:
    return blake2b("\x1f".join((FORMAT, *parts)).encode(), digest_size=8).hexdigest()


def kept(cache: Path, settings: str, content: str, make: Callable[[Path], None]) -> Path:
    """The folder of this conversion. If it is not there, `make` fills it; a second process waits for the first."""
    folder = cache / f"{settings}-{content}"
    if folder.is_dir():
        return folder
    with writing(cache), _locked(cache / f"{settings}.lock"):
        if folder.is_dir():
            return folder
        partial = cache / f"{settings}.partial"  # left by a process that was killed, or ours
        rmtree(partial, ignore_errors=True)
        partial.mkdir(mode=PRIVATE)
        try:
            make(partial)
            earlier = sorted(cache.glob(f"{settings}-*"), key=lambda path: path.stat().st_mtime)
            partial.rename(folder)
        except BaseException:
            rmtree(partial, ignore_errors=True)
            raise
        for stale in earlier[: len(earlier) + 1 - KEPT]:
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


def write_images(path: Path, size: int, chunks: Iterable[np.ndarray]) -> int:
    """One after another, so that memory holds one chunk; how many rows they had is known at the end."""
    rows = 0
    with path.open("wb") as file:
        _write_header(file, 0, size)
        for chunk in chunks:
            file.write(np.ascontiguousarray(chunk, dtype=np.uint8).data)
            rows += len(chunk)
        file.seek(0)
        _write_header(file, rows, size)  # as long as before: numpy leaves room for a growing first axis
        file.flush()
        os.fsync(file.fileno())
    return rows


def _write_header(file: BinaryIO, rows: int, size: int) -> None:
    header = {"descr": "|u1", "fortran_order": False, "shape": (rows, 1, size, size)}
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


def prints_of(images: np.ndarray, target: np.ndarray) -> np.ndarray:
    """A number per row that is equal where image and target are equal. Read in stretches."""
    step = max(1, CHUNK // max(1, images[0].nbytes))
    digests = bytearray()
    for start in range(0, len(images), step):
        rows = zip(images[start : start + step], target[start : start + step], strict=True)
        digests += b"".join(blake2b(row.tobytes() + label.tobytes(), digest_size=8).digest() for row, label in rows)
    return np.frombuffer(bytes(digests), dtype=np.uint64)


def kept_prints(folder: Path, images: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Computed once for each set of labels, because that reads every image."""
    name = blake2b(np.ascontiguousarray(target).tobytes(), digest_size=8).hexdigest()
    path = folder / f"prints-{name}.npy"
    if path.is_file():
        return _open(folder, lambda: np.load(path, allow_pickle=False))
    prints = prints_of(images, target)
    with writing(folder), NamedTemporaryFile(dir=folder, delete=False) as file:
        np.save(file, prints, allow_pickle=False)
        file.close()
        os.replace(file.name, path)
    return prints


def write_listing(path: Path, content: bytes) -> None:
    """Only where it changed, so that a cache that may only be read does for a second load."""
    if path.is_file() and path.read_bytes() == content:
        return
    with writing(path.parent), NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
        file.close()
        os.replace(file.name, path)
