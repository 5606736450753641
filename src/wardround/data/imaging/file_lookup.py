"""Which file a table means by a name."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from wardround.core.errors import DataError

PICTURES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif", ".jp2", ".webp", ".pgm", ".pnm")
DICOM = (".dcm", ".dicom")
IMAGES = (*PICTURES, *DICOM)


def is_dicom(name: str) -> bool:
    """DICOM files often have no suffix, and dots in their names."""
    return not name.lower().endswith(PICTURES)


def files_below(folder: Path) -> list[str]:
    """Paths of all files, from `folder` on, in order. Hidden ones, such as our cache, are left out."""
    files: list[str] = []
    seen: set[tuple[int, int]] = set()
    for here, folders, names in os.walk(folder, followlinks=True):
        status = os.stat(here)
        if (status.st_dev, status.st_ino) in seen:  # a link that leads back
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        start = os.path.relpath(here, folder)
        prefix = "" if start == "." else f"{Path(start).as_posix()}/"
        files.extend(f"{prefix}{name}" for name in sorted(names) if not name.startswith("."))
    return files


def matched(names: Sequence[str], files: Iterable[str], table: Path) -> list[str | None]:
    """For each name in the table its file, or None.

    A name is a path from the folder on, or the end of one where only one file ends so. It may begin with folders that
    are not here, such as the archive's own, if all names do; so that an absent `patient2/view.png` is never taken from
    another patient's folder. Image suffixes may be left out.
    """
    files = list(files)
    whole = set(files)
    ends: dict[str, list[str]] = {}
    for file in files:
        parts = file.split("/")
        for start in range(len(parts)):
            ends.setdefault("/".join(parts[start:]), []).append(file)
    cleaned = [name.replace("\\", "/").removeprefix("./").lstrip("/") for name in names]
    shared = _shared_folders(cleaned)
    unclear: list[str] = []

    def find(name: str) -> str | None:
        spellings = [name] if name.lower().endswith(IMAGES) else [name, *(name + suffix for suffix in IMAGES)]
        for spelling in spellings:
            parts = spelling.split("/")
            for start in range(shared + 1):
                end = "/".join(parts[start:])
                if end in whole:
                    return end
                if len(fitting := ends.get(end, [])) > 1:
                    unclear.append(name)
                if fitting:
                    return fitting[0]
        return None

    matches = [find(name) if name else None for name in cleaned]
    if unclear:
        first = cleaned.index(unclear[0]) + 1
        problem = f"{len(unclear)} names fit several files, the first of them in row {first} below the header"
        raise DataError(str(table), problem, "Remove the copies, or write paths that start at the folder of images.")
    _refuse_repeated(matches, table)
    return matches


def _shared_folders(names: Sequence[str]) -> int:
    """How many folders at their beginning all names share."""
    folders = [name.split("/")[:-1] for name in names if name]
    if not folders:
        return 0
    first, last = min(folders), max(folders)  # what these two share, all share
    return next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))


def _refuse_repeated(matches: Sequence[str | None], table: Path) -> None:
    files = pd.Series(np.array(matches, dtype=object))
    repeated = np.flatnonzero(files.notna() & files.duplicated())
    if len(repeated):
        problem = f"{len(repeated)} rows name an image that another row names, the first of them row {repeated[0] + 1}"
        raise DataError(str(table), problem, "Keep one row for each image.")
