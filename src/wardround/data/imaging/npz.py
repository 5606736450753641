"""A MedMNIST-style .npz: {train,val,test}_{images,labels}, and where it has them patients, views, sexes, ages, names.

Members are read from the archive in stretches into their final place, so that memory holds the result and little
more. Nothing in them is ever unpickled.
"""

import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np
import pandas as pd
from PIL import Image

from wardround.core.errors import DataError
from wardround.core.notices import Notice
from wardround.core.seeds import generator
from wardround.data.imaging import cache as store
from wardround.data.imaging.decode import MOST_PIXELS, WHOLE, finished, need_clahe
from wardround.data.imaging.finding_names import FINDINGS, chosen
from wardround.data.imaging.listing import Gathered, Listing, Wanted, chosen_rows, settled, some_rows
from wardround.data.imaging.problems import Kind, Problem, problem_notices, refuse

SIDES = {"train": "train", "val": "validation", "test": "test"}
MOST_IMAGES = 1 << 22  # of one side
MOST_WHOLE = 128 * 2**20  # bytes of a member that is read whole: labels, ages, names
IN_MEMORY = 512 * 2**20  # bytes; a larger result is mapped from the cache
FLAGS = {"view": ("view_ap", "AP", "PA"), "sex": ("sex_m", "male", "female")}


@dataclass(frozen=True)
class Member:
    """An array in the archive, of which only the header was read."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype


def gather_npz(path: Path, cache: Path, wanted: Wanted) -> Gathered:
    if wanted.clahe:
        need_clahe()
    archive = Archive(path)
    sides = [side for side in SIDES if f"{side}_images" in archive.members]
    if not sides:
        remedy = "Give a file in the form of MedMNIST, with train_images, train_labels and so on."
        raise DataError(str(path), "has no train_images, val_images or test_images", remedy)
    pictures = [archive.pictures(side) for side in sides]
    listing = _listing(archive, sides, wanted)
    problems = [Problem(kind, member.name) for member in pictures for kind in _kinds(member)]
    refuse(problems, wanted.accept, path, None)
    notices = [
        Notice("images-of-side", "info", counts={"images": len(rows)}, details={"part": str(name)})
        for name, rows in listing.said.groupby("side", sort=False)
    ]
    rows = np.arange(len(listing))
    if wanted.rows is not None:
        patient = listing.said["patient"].to_numpy(object) if "patient" in listing.said else None
        rows = some_rows(patient, len(listing), wanted.rows, generator(wanted.seed, "chest-xray rows"))
        notices.append(chosen_rows(wanted.rows, len(listing)))
        listing = listing.take(rows)
    notices += [
        Notice(
            "images-rescaled",
            "info",
            counts={"width": member.shape[2], "height": member.shape[1], "size": wanted.size},
            files=(member.name,),
        )
        for member in pictures
        if member.shape[1:3] != (wanted.size, wanted.size)
    ]
    listing, label_notices = settled(listing, wanted.uncertain)
    chunks = partial(_converted, archive, pictures, rows, wanted)
    if len(rows) * wanted.size**2 < IN_MEMORY and not wanted.clahe:
        images = np.empty((len(rows), 1, wanted.size, wanted.size), dtype=np.uint8)
        filled = 0
        for chunk in chunks():
            images[filled : filled + len(chunk)] = chunk
            filled += len(chunk)
        prints = store.prints_of(images, listing.target)
    else:
        conversion = _cached(path, cache, wanted, chunks)
        images = store.open_images(conversion)
        prints = store.kept_prints(conversion, images, listing.target)
    return Gathered(listing, images, prints, (*notices, *problem_notices(problems, 0), *label_notices))


class Archive:
    def __init__(self, path: Path) -> None:
        self.path = path
        with self.opened() as archive:
            names = [name for name in archive.namelist() if name.endswith(".npy")]
            self.members = {name.removesuffix(".npy"): self._member(archive, name) for name in names}

    def opened(self) -> zipfile.ZipFile:
        try:
            return zipfile.ZipFile(self.path)
        except (ValueError, *READING) as error:
            raise self.damaged(f"cannot be opened ({type(error).__name__})") from None

    def _member(self, archive: zipfile.ZipFile, name: str) -> Member:
        try:
            with archive.open(name) as file:
                shape, dtype, start = _header(file)
        except (ValueError, *READING) as error:
            raise self.damaged(f"{name} is not an array that can be read ({type(error).__name__})") from None
        if archive.getinfo(name).file_size != start + dtype.itemsize * int(np.prod(shape, dtype=object)):
            raise self.damaged(f"{name} is not as long as its header says")
        return Member(name.removesuffix(".npy"), shape, dtype)

    def stretches(self, member: Member) -> Iterator[np.ndarray]:
        """The member's rows, a few at a time. With the last of them the archive's checksum is compared."""
        row = member.dtype.itemsize * int(np.prod(member.shape[1:]))
        step = max(1, store.CHUNK // max(1, row))
        try:
            with self.opened() as archive, archive.open(f"{member.name}.npy") as file:
                _header(file)
                for start in range(0, member.shape[0], step):
                    count = min(step, member.shape[0] - start)
                    data = file.read(count * row)
                    yield np.frombuffer(data, member.dtype).reshape(count, *member.shape[1:])
        except (ValueError, *READING) as error:
            raise self.damaged(f"{member.name} cannot be read to its end ({type(error).__name__})") from None

    def whole(self, name: str, rows: int | None = None) -> np.ndarray:
        """A small member."""
        member = self.members.get(name)
        if member is None:
            raise self.damaged(f"has no {name}")
        if not member.shape or (rows is not None and member.shape[0] != rows):
            raise self.damaged(f"{name} has {member.shape[0] if member.shape else 0} rows for {rows} images")
        if member.dtype.itemsize * int(np.prod(member.shape, dtype=object)) > MOST_WHOLE:
            raise self.damaged(f"{name} is larger than {MOST_WHOLE >> 20} MB")
        if rows == 0:
            return np.empty(member.shape, member.dtype)
        found = np.concatenate(list(self.stretches(member)))
        if found.dtype.kind == "U" and not _are_letters(found):
            raise self.damaged(f"{name} has texts that are not Unicode")
        return found

    def column(self, name: str, counts: Mapping[str, int]) -> np.ndarray | None:
        """A value for each image of all sides; None where a side has none."""
        members = [self.members.get(f"{side}_{name}") for side in counts]
        if not all(members):
            return None
        kinds = {member.dtype.kind if member.dtype.kind in "SU" else "number" for member in members if member}
        shapes = {member.shape[1:] for member in members if member}
        if not all(member.dtype.kind in "iufbSU" for member in members if member) or len(kinds) + len(shapes) > 2:
            raise self.damaged(f"{name} does not hold numbers or texts of one kind and shape")
        return np.concatenate([self.whole(f"{side}_{name}", count) for side, count in counts.items()])

    def pictures(self, side: str) -> Member:
        member = self.members[f"{side}_images"]
        fits = len(member.shape) == 3 or (len(member.shape) == 4 and member.shape[3] in (1, 3))
        if not fits or member.dtype.name not in ("uint8", "uint16") or 0 in member.shape[1:]:
            raise self.damaged(f"{member.name} does not hold images of 8 or 16 bits, grey or in colour")
        if member.shape[0] > MOST_IMAGES or member.shape[1] * member.shape[2] > MOST_PIXELS:
            most = f"{MOST_IMAGES:,} images, or images of more than {MOST_PIXELS:,} pixels"
            raise self.damaged(f"{member.name} holds more than {most}")
        return member

    def damaged(self, problem: str) -> DataError:
        return DataError(str(self.path), problem, "Fetch the file anew: it is damaged, or not of this form.")


READING = (
    OSError,
    EOFError,
    RuntimeError,
    NotImplementedError,
    MemoryError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype, int]:
    """Shape, type and length of the header; objects, which would have to be unpickled, are refused."""
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError("an array of an unknown version")
    try:
        shape, by_columns, dtype = readers[version](file)
    except Exception as error:  # numpy reads the header as Python's text, and raises whatever that leads to
        raise ValueError(f"a header that cannot be read ({type(error).__name__})") from None
    if dtype.hasobject or dtype.itemsize == 0 or (by_columns and len(shape) > 1):
        raise ValueError("objects, nothing, or columns first")
    return shape, dtype, file.tell()


def _are_letters(texts: np.ndarray) -> bool:
    """Python itself may fail with a number that is no letter, and numpy does not look."""
    numbers = np.ascontiguousarray(texts).view(np.dtype("u4").newbyteorder(texts.dtype.byteorder))
    return bool(((numbers < 0xD800) | ((numbers > 0xDFFF) & (numbers <= 0x10FFFF))).all())


def _kinds(member: Member) -> list[Kind]:
    found: list[Kind] = ["16-bit"] if member.dtype.itemsize > 1 else []
    return [*found, "colour"] if member.shape[3:] == (3,) else found


def _listing(archive: Archive, sides: list[str], wanted: Wanted) -> Listing:
    counts = {side: archive.members[f"{side}_images"].shape[0] for side in sides}
    if not sum(counts.values()):
        raise archive.damaged("holds no image")
    known = tuple(map(str, texts_of(archive.whole("label_names")))) if "label_names" in archive.members else FINDINGS
    labels = archive.column("labels", counts)
    if labels is None:
        lacking = next(side for side in sides if f"{side}_labels" not in archive.members)
        raise archive.damaged(f"has no {lacking}_labels")
    if labels.ndim != 2 or labels.shape[1] != len(known):
        raise archive.damaged(f"its labels are not {len(known)} for each image")
    if labels.dtype.kind not in "iub" or not np.isin(labels, (-1, 0, 1)).all():
        raise archive.damaged("some labels are neither 1, 0 nor -1")
    classes = chosen(wanted.findings, known, archive.path.name)
    target = labels.astype(np.int64)[:, [known.index(name) for name in classes]]

    def column(name: str) -> np.ndarray | None:
        found = archive.column(name, counts)
        if found is not None and found.ndim != 1:
            raise archive.damaged(f"{name} does not hold one value for each image")
        return found

    said = pd.DataFrame({"side": np.repeat([SIDES[side] for side in sides], list(counts.values())).astype(object)})
    for word, (name, yes, no) in FLAGS.items():
        if (flags := column(name)) is not None:
            said[word] = pd.Series(np.where(flags.astype(bool), yes, no), dtype=object)
    for word, name in (("patient", "patient_id"), ("age", "age")):
        if (values := column(name)) is not None:
            said[word] = pd.Series(texts_of(values), dtype=object)
    names = column("image_name")
    numbered = [f"{side}-{row}" for side, count in counts.items() for row in range(count)]
    return Listing(texts_of(np.array(numbered) if names is None else names), target, classes, said)


def texts_of(values: np.ndarray) -> np.ndarray:
    return (np.char.decode(values, "utf-8", "replace") if values.dtype.kind == "S" else values.astype(str)).astype(
        object
    )


def _converted(archive: Archive, pictures: list[Member], rows: np.ndarray, wanted: Wanted) -> Iterator[np.ndarray]:
    """The chosen rows of all sides one after another, at the wanted size."""
    start = 0
    for member in pictures:
        for stretch in archive.stretches(member):
            own = rows[(rows >= start) & (rows < start + len(stretch))] - start
            start += len(stretch)
            if member.shape[1:] == (wanted.size, wanted.size) and member.dtype == np.uint8 and not wanted.clahe:
                yield stretch[own][:, np.newaxis]
            elif len(own):
                yield np.stack([image_of(stretch[row], wanted) for row in own])[:, np.newaxis]


def image_of(pixels: np.ndarray, wanted: Wanted) -> np.ndarray:
    pixels = pixels[..., 0] if pixels.shape[2:] == (1,) else pixels
    if pixels.dtype != np.uint8:
        pixels = (pixels / WHOLE).astype(np.float32 if pixels.ndim == 2 else np.uint8)
    grey = Image.fromarray(pixels)
    return finished(grey.convert("L") if grey.mode == "RGB" else grey, wanted.size, wanted.clahe)


def _cached(path: Path, cache: Path, wanted: Wanted, chunks: "partial[Iterator[np.ndarray]]") -> Path:
    status = path.stat()
    name = f"{wanted.size}px{'-clahe' if wanted.clahe else ''}"
    settings = f"{name}-{store.digest(name, str(path.resolve()), f'{wanted.rows} {wanted.seed}')}"
    content = store.digest(path.name, str(status.st_size), str(status.st_mtime_ns))

    def make(into: Path) -> None:
        store.write_images(into / "images.npy", wanted.size, chunks())

    return store.kept(cache, settings, content, make)
