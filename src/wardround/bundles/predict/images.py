"""The images to be predicted, block by block: a folder, one file, an .npz file, or a table that lists files.

They are read by the functions that read training images, so that the same file gives the same bytes. An image that
cannot be read is counted and named at the end; nothing of what else a file says of a patient is.
"""

import stat
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from PIL import Image

from wardround.bundles.bundle import Bundle
from wardround.bundles.inputs import Images
from wardround.bundles.predict.blocks import Block, Opened, Unread
from wardround.core.errors import DataError, as_path, shown, suggest
from wardround.data.imaging.cache import decode
from wardround.data.imaging.decode import Picture, need_clahe
from wardround.data.imaging.dicom import TAGS, need_pydicom
from wardround.data.imaging.file_lookup import DICOM, IMAGES, files_below, is_dicom, matched
from wardround.data.imaging.labels import ATTRIBUTES, Table, is_table, read_table, views
from wardround.data.imaging.labels import IMAGE as IMAGE_COLUMNS
from wardround.data.imaging.listing import groups
from wardround.data.imaging.npz import FLAGS, Archive, image_of, texts_of

IMAGE = "image"  # the column with a row's name
WORDS = ("age", "sex", "view")  # what is known of a patient beside the image
AT_ONCE = 64  # images in a block
NPZ = {"patient": "patient_id", "age": "age", "view": "view_ap", "sex": "sex_m"}
KINDS = "Name a folder of images, one image, an .npz file, or a CSV file with a column `image`."
MARK = (128, b"DICM")  # where a DICOM file says that it is one


@dataclass(frozen=True)
class _Pieces:
    """What is known of a source before any image is read."""

    name: str
    rows: int
    read: Callable[[int, int], Block] | None
    blocks: Callable[[], Iterator[Unread]] | None = None  # where rows cannot be had in any order


@contextmanager
def opened_pictures(
    bundle: Bundle, source: str | Path, keep: Sequence[str], without: Sequence[str]
) -> Iterator[Opened]:
    """As `blocks.opened` opens a file of columns."""
    images = bundle.inputs.images
    if images is None:
        raise DataError(str(source), "the bundle takes no images", "Use a bundle of images.")
    if images.clahe:
        need_clahe()
    path = as_path(source, "source", DataError)
    if str(path) == "-":
        raise DataError("standard input", "images are not read from it", KINDS)
    needed = bundle.inputs.image_at not in without if bundle.inputs.parts else True
    with without_warnings():
        if path.is_dir():
            pieces = _folder(path, images, keep)
        elif path.suffix == ".npz" and path.is_file():
            pieces = _npz(bundle, path, images, keep, without)
        elif is_table(path):
            pieces = _table(bundle, path, images, keep, without, needed)
        elif path.is_file() and _is_image(path):
            pieces = _files(path.parent, [path.name], images, keep, str(path))
        else:
            problem = "is neither a folder of images, an image, a table nor an .npz file"
            raise DataError(str(path), problem if path.exists() else "there is no such file or folder", KINDS)
        done = 0

        def blocks() -> Iterator[Unread]:
            nonlocal done
            if pieces.blocks is not None:
                for one in pieces.blocks():
                    yield one
                    done += AT_ONCE
                return
            for start in range(0, pieces.rows, AT_ONCE):
                stop = min(start + AT_ONCE, pieces.rows)
                yield _unread(pieces, start, stop)
                done = stop

        kept = dict.fromkeys((IMAGE, *keep), pa.string())
        yield Opened(pieces.name, kept, blocks(), lambda: min(done / pieces.rows, 1.0) if pieces.rows else None)


@contextmanager
def without_warnings() -> Iterator[None]:
    """Odd headers are no news to a user; but a picture of absurd size is an error, not a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def _unread(pieces: _Pieces, start: int, stop: int) -> Unread:
    read = pieces.read
    if read is None:
        raise ValueError("this source is read from its beginning to its end")
    return lambda: read(start, stop)


def _is_image(path: Path) -> bool:
    """By its name; a file whose name says nothing may be DICOM."""
    if path.name.lower().endswith(IMAGES):
        return True
    try:
        if path.suffix and path.suffix.lower() not in DICOM and not path.suffix[1:].isdigit():
            return False
        if not stat.S_ISREG(path.stat().st_mode):
            return False
        with path.open("rb") as file:
            return is_dicom_content(file.read(MARK[0] + len(MARK[1])))
    except OSError:
        return True  # it is told then that it cannot be read


def is_dicom_content(content: bytes) -> bool:
    return content[MARK[0] : MARK[0] + len(MARK[1])] == MARK[1]


def _folder(folder: Path, images: Images, keep: Sequence[str]) -> _Pieces:
    try:
        files = [name for name in files_below(folder) if _is_image(folder / name)]
    except OSError as error:
        raise DataError(str(folder), f"cannot be read ({error.strerror})", "Look at its permissions.") from None
    if not files:
        raise DataError(str(folder), "there is no image in it", KINDS)
    return _files(folder, files, images, keep, str(folder))


def _files(folder: Path, files: Sequence[str], images: Images, keep: Sequence[str], where: str) -> _Pieces:
    for name in keep:
        if name not in TAGS:
            problem = f"there is no column {shown(name)}: a folder of images has what DICOM files say, and no others"
            raise DataError(where, problem, suggest(name, TAGS, "Known"))
    if any(map(is_dicom, files)):
        need_pydicom()

    def read(start: int, stop: int) -> Block:
        pictures = [_decoded(folder / name, images) for name in files[start:stop]]
        said = pd.DataFrame({word: [one.attributes.get(word, "") for one in pictures] for word in TAGS}, dtype=object)
        kept = {name: _texts_or_gaps(said[name].tolist()) for name in keep}
        ungiven = _unsaid(pictures, WORDS)
        return block_of_pictures(list(files[start:stop]), pictures, images, columns_of(said), kept, ungiven=ungiven)

    return _Pieces(where, len(files), read)


def _decoded(path: Path, images: Images) -> Picture:
    return decode(path, images.shape[1], images.clahe)


def _table(
    bundle: Bundle, path: Path, images: Images, keep: Sequence[str], without: Sequence[str], needed: bool
) -> _Pieces:
    """Names of images, and what is known of their patients. The table is read whole; images are not."""
    table = read_table(path)
    names = table.column(IMAGE_COLUMNS)
    files: list[str] = []
    if needed:
        if names is None:
            remedy = "Call the column `image`; it holds each file's name, or its path from the table's folder on."
            raise DataError(str(path), "no column says which image a row is of", remedy)
        found = matched(names.tolist(), files_below(path.parent), path)
        files = [name for name in found if name is not None]
        lacking = [str(line) for line, file in zip(table.lines, found, strict=True) if file is None]
        if lacking:
            more = ", ..." if len(lacking) > 5 else ""
            problem = f"{len(lacking)} of {len(names)} images are not there: line {', '.join(lacking[:5])}{more}"
            raise DataError(str(path), problem, "Correct the names, which start at the table's folder.")
        if any(map(is_dicom, files)):
            need_pydicom()
    said = _said(table)
    refuse_partly(bundle, set(said.columns), str(path), without, in_files=any(map(is_dicom, files)))
    kept = {name: _kept(table, name) for name in keep}
    lines = [f"line {line}" for line in table.lines]
    labels = lines if names is None else [str(name) for name in names]

    def read(start: int, stop: int) -> Block:
        own = {name: _texts_or_gaps(cells[start:stop].tolist()) for name, cells in kept.items()}
        told, where = said.iloc[start:stop].reset_index(drop=True), lines[start:stop].__getitem__
        if not needed:
            return block_without_images(labels[start:stop], columns_of(told), own, where)
        pictures = [_decoded(path.parent / name, images) for name in files[start:stop]]
        tagged = {w: [one.attributes.get(w, "") for one in pictures] for w in WORDS if w not in told}
        told = told.assign(**{word: pd.Series(cells, dtype=object) for word, cells in tagged.items()})
        ungiven = _unsaid(pictures, tagged)
        return block_of_pictures(labels[start:stop], pictures, images, columns_of(told), own, where, ungiven)

    return _Pieces(str(path), len(table.cells), read)


def _said(table: Table) -> pd.DataFrame:
    columns = {word: table.column(ATTRIBUTES[word]) for word in WORDS}
    columns["view"] = views(table)
    present = {word: pd.Series(cells, dtype=object) for word, cells in columns.items() if cells is not None}
    return pd.DataFrame(present, index=pd.RangeIndex(len(table.cells)))


def _kept(table: Table, name: str) -> np.ndarray:
    """By its name in the first line, or by what it is: patient, age, sex, view."""
    found = table.cells[:, table.header.index(name)] if name in table.header else table.column(ATTRIBUTES.get(name, ()))
    if found is None:
        raise DataError(str(table.path), f"there is no column {shown(name)}", suggest(name, table.header, "Columns"))
    return found


def _npz(bundle: Bundle, path: Path, images: Images, keep: Sequence[str], without: Sequence[str]) -> _Pieces:
    archive = Archive(path)
    pictures = archive.parts()
    counts = {part: member.shape[0] for part, member in pictures.items()}

    def member(name: str) -> np.ndarray | None:
        return archive.values(name, counts)

    said = pd.DataFrame(index=pd.RangeIndex(sum(counts.values())))
    for word, (name, yes, no) in FLAGS.items():
        if (flags := member(name)) is not None:
            said[word] = pd.Series(np.where(flags.astype(bool), yes, no), dtype=object)
    if (ages := member("age")) is not None:
        said["age"] = pd.Series(texts_of(ages), dtype=object)
    refuse_partly(bundle, set(said.columns), str(path), without)
    kept: dict[str, np.ndarray] = {}
    for name in keep:
        found = member(NPZ.get(name, name)) if name not in said else said[name].to_numpy(object)
        if found is None:
            known = sorted({one.partition("_")[2] for one in archive.members} - {"images", "labels"})
            raise DataError(str(path), f"has no {shown(name)} for each image", suggest(name, known, "There are"))
        kept[name] = texts_of(np.asarray(found)) if found.dtype != object else found

    def blocks() -> Iterator[Unread]:
        first = 0
        for side, one in pictures.items():
            place = 0
            for stretch in archive.stretches(one):
                for start in range(0, len(stretch), AT_ONCE):
                    part = stretch[start : start + AT_ONCE]
                    labels = [f"{side}-{place + number}" for number in range(len(part))]
                    rows = slice(first, first + len(part))
                    own = {name: _texts_or_gaps(cells[rows].tolist()) for name, cells in kept.items()}
                    yield _unread_array(part, labels, images, said.iloc[rows].reset_index(drop=True), own)
                    first, place = first + len(part), place + len(part)

    return _Pieces(str(path), sum(counts.values()), None, blocks)


def _unread_array(
    part: np.ndarray, labels: list[str], images: Images, said: pd.DataFrame, kept: Mapping[str, pa.Array]
) -> Unread:
    def read() -> Block:
        columns = {IMAGE: pa.array(labels, pa.string()), **columns_of(said), **kept}
        return Block(len(part), columns, lambda row: labels[row], images=converted(part, images))

    return read


def converted(pixels: np.ndarray, images: Images) -> np.ndarray:
    """Arrays of images at the bundle's size, as those of an .npz file are read."""
    size = images.shape[1]
    if pixels.shape[1:] == (size, size) and pixels.dtype == np.uint8 and not images.clahe:
        return pixels[:, np.newaxis]
    if not len(pixels):
        return np.zeros((0, 1, size, size), dtype=np.uint8)
    return np.stack([image_of(one, size, images.clahe) for one in pixels])[:, np.newaxis]


def block_of_pictures(
    labels: list[str],
    pictures: Sequence[Picture],
    images: Images,
    columns: Mapping[str, pa.Array],
    kept: Mapping[str, pa.Array],
    where: Callable[[int], str] | None = None,
    ungiven: Mapping[str, np.ndarray] | None = None,
) -> Block:
    size = images.shape[1]
    pixels = np.zeros((len(pictures), 1, size, size), dtype=np.uint8)
    unreadable = {}
    for row, picture in enumerate(pictures):
        if picture.pixels is None:
            unreadable[row] = picture.reason
        else:
            pixels[row, 0] = picture.pixels
    named = {IMAGE: pa.array(labels, pa.string()), **columns, **kept}
    place = where or (lambda row: labels[row])
    return Block(len(labels), named, place, images=pixels, unreadable=unreadable, ungiven=ungiven or {})


def block_without_images(
    labels: list[str],
    columns: Mapping[str, pa.Array],
    kept: Mapping[str, pa.Array],
    where: Callable[[int], str] | None = None,
    ungiven: Mapping[str, np.ndarray] | None = None,
) -> Block:
    named = {IMAGE: pa.array(labels, pa.string()), **columns, **kept}
    return Block(len(labels), named, where or (lambda row: labels[row]), ungiven=ungiven or {})


def _unsaid(pictures: Sequence[Picture], words: Iterable[str]) -> dict[str, np.ndarray]:
    """A DICOM file has the columns, with or without a value in them; a file of another kind has none."""
    silent = np.array([not one.attributes for one in pictures], dtype=bool)
    return dict.fromkeys(words, silent)


def columns_of(said: pd.DataFrame) -> dict[str, pa.Array]:
    """What is known of patients as the training data had it."""
    found, _ = groups(said[[word for word in WORDS if word in said]])
    return {str(name): pa.array(found[name], from_pandas=True) for name in found.columns}


def refuse_partly(bundle: Bundle, there: set[str], where: str, without: Sequence[str], in_files: bool = False) -> None:
    """A party whose columns are only partly there is no absent party: a column was forgotten. DICOM files may say the
    rest of each patient themselves."""
    for part in bundle.inputs.parts:
        own = [name for name in (bundle.inputs.columns or {}).get(part.party, ()) if name in WORDS]
        missing = [name for name in own if name not in there]
        absent = part.present is not None and len(missing) == len(own)
        if own and missing and not absent and part.party not in without and not in_files:
            lacking = ", ".join(map(repr, missing))
            remedy = (
                f"Add it, or leave the party out: --without {part.party}." if part.present is not None else "Add it."
            )
            raise DataError(where, f"there is no column {lacking}", remedy)


def _texts_or_gaps(cells: Sequence[Any]) -> pa.Array:
    return pa.array([None if cell == "" else str(cell) for cell in cells], pa.string())
