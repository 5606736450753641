"""A MedMNIST-style .npz: {train,val,test}_{images,labels}, and where it has them patients, views, sexes, ages, names.

Labels are one class of each image, numbered from 0, or findings with a column each. `label_names` names them.

Members are read from the archive in stretches into their final place, so that memory holds the result and little
more. Nothing in them is ever unpickled.
"""

import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np
import pandas as pd
from PIL import Image

from wardround.core.errors import DataError, StudyError
from wardround.core.notices import Notice
from wardround.data.imaging import cache as store
from wardround.data.imaging.decode import MOST_PIXELS, WHOLE, finished, in_channels, need_clahe
from wardround.data.imaging.finding_names import FINDINGS, chosen
from wardround.data.imaging.listing import Gathered, ImageOptions, Listing, drawn_rows, settled
from wardround.data.imaging.problems import Kind, Problem, problem_notices, refuse
from wardround.data.split import prints_of

PARTS = {"train": "train", "val": "validation", "test": "test"}
MOST_IMAGES = 1 << 22  # of one part of the split
MOST_WHOLE = 128 * 2**20  # bytes of a member that is read whole: labels, ages, names
MOST_CLASSES = 9_999  # the highest number of one
IN_MEMORY = 512 * 2**20  # bytes; a larger result is mapped from the cache
FLAGS = {"view": ("view_ap", "AP", "PA"), "sex": ("sex_m", "male", "female")}


@dataclass(frozen=True)
class Member:
    """An array in the archive, of which only the header was read."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype


def gather_npz(path: Path, cache: Path, options: ImageOptions) -> Gathered:
    if options.clahe:
        need_clahe()
    archive = Archive(path)
    pictures = archive.parts()
    channels, size = _form(archive, list(pictures.values()), options)
    options = replace(options, size=size, colour="rgb" if channels > 1 else "grey")
    listing = _listing(archive, {part: member.shape[0] for part, member in pictures.items()}, options)
    problems = [Problem(kind, member.name) for member in pictures.values() for kind in _kinds(member, channels)]
    refuse(problems, options.accept, path, None)
    part_sizes = [
        Notice("images-of-part", "info", counts={"images": len(rows)}, details={"part": str(name)})
        for name, rows in listing.attributes.groupby("split", sort=False)
    ]
    rows, chosen_rows = drawn_rows(listing, options, len(listing))
    resized = [
        Notice(
            "images-rescaled",
            "info",
            counts={"width": member.shape[2], "height": member.shape[1], "size": size},
            files=(member.name,),
        )
        for member in pictures.values()
        if member.shape[1:3] != (size, size)
    ]
    listing, uncertain = settled(listing.take(rows), options.uncertain)
    chunks = partial(_converted, archive, list(pictures.values()), rows, (channels, size, size), options.clahe)
    if len(rows) * channels * size**2 < IN_MEMORY and not options.clahe:
        images = _filled(chunks(), (len(rows), channels, size, size))
        prints = prints_of(images, listing.target)
    else:
        conversion = _cached(path, cache, options, (channels, size, size), chunks)
        images = store.open_images(conversion)
        prints = store.cached_prints(conversion, images, listing.target)
    notices = (*part_sizes, *chosen_rows, *resized, *problem_notices(problems, 0), *uncertain)
    return Gathered(listing, images, prints, notices)


def _form(archive: "Archive", pictures: list["Member"], options: ImageOptions) -> tuple[int, int]:
    """Channels and size that the images are brought to: as the study says, or as they are."""
    found = {3 if member.shape[3:] == (3,) else 1 for member in pictures}
    if options.colour == "auto" and len(found) > 1:
        described = ", ".join(f"{m.name} {'in colour' if m.shape[3:] == (3,) else 'grey'}" for m in pictures)
        remedy = 'Write `colour = "rgb"` or `colour = "grey"` in [data], or correct the file.'
        raise DataError(str(archive.path), f"its parts have different channels: {described}", remedy)
    channels = max(found) if options.colour == "auto" else store.CHANNELS[options.colour]
    sizes = {size for member in pictures for size in member.shape[1:3]}
    if options.size is None and len(sizes) > 1:
        described = ", ".join(f"{member.name} {member.shape[2]} x {member.shape[1]}" for member in pictures)
        remedy = "Write the size to which they are brought: `size = 64` in [data]."
        raise DataError(str(archive.path), f"its images are not squares of one size: {described}", remedy)
    return channels, options.size or next(iter(sizes))


def _filled(chunks: Iterator[np.ndarray], shape: tuple[int, int, int, int]) -> np.ndarray:
    """Chunk by chunk into one array, so that memory never holds them twice."""
    images = np.empty(shape, dtype=np.uint8)
    start = 0
    for chunk in chunks:
        images[start : start + len(chunk)] = chunk
        start += len(chunk)
    return images


class Archive:
    def __init__(self, path: Path) -> None:
        self.path = path
        with self._open() as archive:
            names = [name for name in archive.namelist() if name.endswith(".npy")]
            self.members = {name.removesuffix(".npy"): self._member(archive, name) for name in names}

    def _open(self) -> zipfile.ZipFile:
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
            with self._open() as archive, archive.open(f"{member.name}.npy") as file:
                _header(file)
                for start in range(0, member.shape[0], step):
                    count = min(step, member.shape[0] - start)
                    yield np.frombuffer(file.read(count * row), member.dtype).reshape(count, *member.shape[1:])
        except (ValueError, *READING) as error:
            raise self.damaged(f"{member.name} cannot be read to its end ({type(error).__name__})") from None

    def whole(self, name: str, rows: int | None = None) -> np.ndarray:
        member = self.members.get(name)
        if member is None:
            raise self.damaged(f"has no {name}")
        if not member.shape or (rows is not None and member.shape[0] != rows):
            raise self.damaged(f"{name} has {member.shape[0] if member.shape else 0} rows for {rows} images")
        if member.dtype.itemsize * int(np.prod(member.shape, dtype=object)) > MOST_WHOLE:
            raise self.damaged(f"{name} is larger than {MOST_WHOLE >> 20} MB")
        if rows == 0:
            return np.empty(member.shape, member.dtype)
        values = np.concatenate(list(self.stretches(member)))
        if values.dtype.kind == "U" and not _are_letters(values):
            raise self.damaged(f"{name} has texts that are not Unicode")
        return values

    def rows(self, name: str) -> np.ndarray:
        """All rows of a member, however large."""
        member = self.members[name]
        return np.concatenate([np.empty((0, *member.shape[1:]), member.dtype), *self.stretches(member)])

    def column(self, name: str, counts: Mapping[str, int]) -> np.ndarray | None:
        """The values for the images of all parts; None where a part has none. `counts` are the images of each part."""
        members = [self.members[f"{part}_{name}"] for part in counts if f"{part}_{name}" in self.members]
        if len(members) < len(counts):
            return None
        kinds = {member.dtype.kind if member.dtype.kind in "SU" else "number" for member in members}
        shapes = {member.shape[1:] for member in members}
        if not all(member.dtype.kind in "iufbSU" for member in members) or len(kinds) + len(shapes) > 2:
            raise self.damaged(f"{name} does not hold numbers or texts of one kind and shape")
        return np.concatenate([self.whole(f"{part}_{name}", count) for part, count in counts.items()])

    def values(self, name: str, counts: Mapping[str, int]) -> np.ndarray | None:
        """As `column`, with one value for each image."""
        values = self.column(name, counts)
        if values is not None and values.ndim != 1:
            raise self.damaged(f"{name} does not hold one value for each image")
        return values

    def parts(self) -> dict[str, Member]:
        """The images of each part of the split that is there."""
        parts = [part for part in PARTS if f"{part}_images" in self.members]
        if not parts:
            remedy = "Give a file in the form of MedMNIST, with train_images, train_labels and so on."
            raise DataError(str(self.path), "has no train_images, val_images or test_images", remedy)
        return {part: self.pictures(part) for part in parts}

    def pictures(self, part: str) -> Member:
        member = self.members[f"{part}_images"]
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


def _kinds(member: Member, channels: int) -> list[Kind]:
    kinds: list[Kind] = ["16-bit"] if member.dtype.itemsize > 1 else []
    return [*kinds, "colour"] if member.shape[3:] == (3,) and channels == 1 else kinds


def _listing(archive: Archive, counts: Mapping[str, int], options: ImageOptions) -> Listing:
    if not sum(counts.values()):
        raise archive.damaged("holds no image")
    named = tuple(map(str, texts_of(archive.whole("label_names")))) if "label_names" in archive.members else ()
    if options.any_labels:
        target, classes = _any_labels(archive, counts, named, options.findings)
    else:
        known = named or FINDINGS
        labels = _labels(archive, counts, len(known))
        classes = chosen(options.findings, known, archive.path.name)
        target = labels.astype(np.int64)[:, [known.index(name) for name in classes]]
    names = archive.values("image_name", counts)
    if names is None:
        names = np.array([f"{part}-{row}" for part, count in counts.items() for row in range(count)])
    return Listing(texts_of(names), target, classes, _attributes(archive, counts))


def _any_labels(
    archive: Archive, counts: Mapping[str, int], named: tuple[str, ...], given: tuple[str, ...]
) -> tuple[np.ndarray, tuple[str, ...]]:
    """One number for each image is its class; several are findings. Names are the file's, the study's, or numbers."""
    labels = _all_labels(archive, counts)
    if labels.ndim > 2 or 0 in labels.shape[1:]:
        raise archive.damaged(f"its labels have the shape {labels.shape}, neither one nor several for each image")
    if labels.ndim == 2 and labels.shape[1] > 1:
        columns = labels.shape[1]
        return _marks(archive, labels), _names(archive, named, given, columns, columns)
    numbers = labels.reshape(-1)
    if numbers.dtype.kind not in "iub" or numbers.min() < 0:
        raise archive.damaged("some labels are not whole numbers from 0 on")
    if (highest := int(numbers.max())) > MOST_CLASSES:
        raise archive.damaged(f"a label is {highest}, and classes are numbered from 0 to {MOST_CLASSES} at most")
    classes = _names(archive, named, given, max(2, highest + 1), None)
    return numbers.astype(np.int64), classes


def _names(
    archive: Archive, named: tuple[str, ...], given: tuple[str, ...], least: int, most: int | None
) -> tuple[str, ...]:
    """`least` labels occur; of findings there are as many as columns."""
    names = named or given or tuple(map(str, range(least)))
    if named and given and named != given:
        problem = f"{archive.path.name} names its labels itself: {', '.join(named)}"
        raise StudyError("data: classes", problem, "Leave `classes` out, or write them as the file has them.")
    if len(names) < least or (most is not None and len(names) != most) or len(set(names)) < len(names):
        problem = f"{len(names)} names, of which {len(set(names))} differ, for {least} labels in {archive.path.name}"
        if named:
            raise archive.damaged(f"label_names: {problem}")
        raise StudyError("data: classes", problem, "Write a name for each label, in the order of their numbers.")
    return names


def _all_labels(archive: Archive, counts: Mapping[str, int]) -> np.ndarray:
    labels = archive.column("labels", counts)
    if labels is None:
        lacking = next(part for part in counts if f"{part}_labels" not in archive.members)
        raise archive.damaged(f"has no {lacking}_labels")
    return labels


def _labels(archive: Archive, counts: Mapping[str, int], findings: int) -> np.ndarray:
    labels = _all_labels(archive, counts)
    if labels.ndim != 2 or labels.shape[1] != findings:
        if labels.ndim == 1 or labels.shape[1:] == (1,):
            problem = f"has one label for each image, and this source expects {findings} findings"
            raise DataError(str(archive.path), problem, 'Write source = "images" in [data], which takes any labels.')
        raise archive.damaged(f"its labels are not {findings} for each image")
    return _marks(archive, labels)


def _marks(archive: Archive, labels: np.ndarray) -> np.ndarray:
    if labels.dtype.kind not in "iub" or not np.isin(labels, (-1, 0, 1)).all():
        raise archive.damaged("some labels are neither 1, 0 nor -1")
    return labels.astype(np.int64)


def _attributes(archive: Archive, counts: Mapping[str, int]) -> pd.DataFrame:
    split = np.repeat([PARTS[part] for part in counts], list(counts.values()))
    attributes = pd.DataFrame({"split": split.astype(object)})
    for attribute, (name, yes, no) in FLAGS.items():
        if (flags := archive.values(name, counts)) is not None:
            attributes[attribute] = pd.Series(np.where(flags.astype(bool), yes, no), dtype=object)
    for attribute, name in (("patient", "patient_id"), ("age", "age")):
        if (values := archive.values(name, counts)) is not None:
            attributes[attribute] = pd.Series(texts_of(values), dtype=object)
    return attributes


def texts_of(values: np.ndarray) -> np.ndarray:
    texts = np.char.decode(values, "utf-8", "replace") if values.dtype.kind == "S" else values.astype(str)
    return texts.astype(object)


def _converted(
    archive: Archive, pictures: list[Member], rows: np.ndarray, shape: tuple[int, int, int], clahe: bool
) -> Iterator[np.ndarray]:
    """The chosen rows of all parts one after another, at the size of the study."""
    start = 0
    for member in pictures:
        for stretch in archive.stretches(member):
            own = rows[(rows >= start) & (rows < start + len(stretch))] - start
            start += len(stretch)
            if len(own):
                yield converted(stretch[own], shape, clahe)


def converted(pixels: np.ndarray, shape: tuple[int, int, int], clahe: bool) -> np.ndarray:
    """Arrays (images, height, width), in colour with a last axis of 3, as bytes of this shape."""
    channels, size, _ = shape
    if pixels.shape[1:] == (size, size) and channels == 1 and pixels.dtype == np.uint8 and not clahe:
        return pixels[:, np.newaxis]
    if not len(pixels):
        return np.zeros((0, *shape), dtype=np.uint8)
    return np.stack([image_of(image, size, clahe, channels) for image in pixels]).reshape(-1, *shape)


def image_of(pixels: np.ndarray, size: int, clahe: bool, channels: int = 1) -> np.ndarray:
    pixels = pixels[..., 0] if pixels.shape[2:] == (1,) else pixels
    if pixels.dtype != np.uint8:
        pixels = (pixels / WHOLE).astype(np.float32 if pixels.ndim == 2 else np.uint8)
    image = Image.fromarray(pixels)
    image = image.convert("L") if image.mode == "RGB" and channels == 1 else image
    return in_channels(finished(image, size, clahe), channels)


def _cached(
    path: Path,
    cache: Path,
    options: ImageOptions,
    shape: tuple[int, int, int],
    chunks: "partial[Iterator[np.ndarray]]",
) -> Path:
    status = path.stat()
    selection = str(path.resolve()), f"{options.rows} {options.seed}"
    settings = store.settings_name(options, *selection)
    content = store.digest(path.name, str(status.st_size), str(status.st_mtime_ns))

    def convert(into: Path) -> None:
        store.write_images(into / "images.npy", shape, chunks())

    return store.conversion(cache, settings, content, convert)
