"""The images to be predicted, block by block: a folder, one file, an .npz file, a table that lists files, arrays in
memory, or requests with the content of a file in base64, of which nothing is written.

They are read by the functions that read training images, so that the same file gives the same bytes. An image that
cannot be read is counted and named at the end; nothing else that a file says of a patient is.
"""

import base64
import binascii
import stat
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
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
from wardround.bundles.predict.blocks import Block, BlockReader, RowSource
from wardround.core.errors import DataError, as_path, shown, suggest
from wardround.data.imaging.cache import decode
from wardround.data.imaging.decode import MOST_PIXELS, Picture, in_channels, need_clahe, read_picture
from wardround.data.imaging.dicom import TAGS, need_pydicom, read_dicom
from wardround.data.imaging.file_lookup import DICOM, IMAGES, files_below, is_dicom, matched
from wardround.data.imaging.labels import ATTRIBUTES, Table, is_table, read_table, views
from wardround.data.imaging.labels import IMAGE as IMAGE_COLUMNS
from wardround.data.imaging.listing import groups
from wardround.data.imaging.npz import FLAGS, Archive, converted, texts_of

IMAGE = "image"  # the column with a row's name
OF_PATIENT = ("age", "sex", "view")  # what is known of a patient besides the image
AT_ONCE = 64  # images in a block
NPZ = {"patient": "patient_id", "age": "age", "view": "view_ap", "sex": "sex_m"}
KINDS = "Name a folder of images, one image, an .npz file, or a CSV file with a column `image`."
MARK = (128, b"DICM")  # where a DICOM file says that it is one
ONE_AT_A_TIME = Lock()  # warnings are set for all threads


@contextmanager
def open_images(bundle: Bundle, source: str | Path, keep: Sequence[str], without: Sequence[str]) -> Iterator[RowSource]:
    """As `blocks.open_rows` opens a file of columns."""
    images = bundle.inputs.images
    if images is None:
        raise DataError(str(source), "the bundle takes no images", "Use a bundle of images.")
    if images.clahe:
        need_clahe()
    path = as_path(source, "source", DataError)
    if str(path) == "-":
        raise DataError("standard input", "images are not read from it", KINDS)
    with without_warnings():
        if path.is_dir():
            yield _folder(path, images, keep)
        elif path.suffix == ".npz" and path.is_file():
            yield _npz(bundle, path, images, keep, without)
        elif is_table(path):
            yield _table(bundle, path, images, keep, without)
        elif path.is_file() and _is_image(path):
            yield _files(path.parent, [path.name], images, keep, str(path))
        else:
            problem = "is neither a folder of images, an image, a table nor an .npz file"
            raise DataError(str(path), problem if path.exists() else "there is no such file or folder", KINDS)


def _source(name: str, rows: int, keep: Sequence[str], blocks: Iterator[BlockReader]) -> RowSource:
    done = 0

    def counted() -> Iterator[BlockReader]:
        nonlocal done
        for reader in blocks:
            yield reader
            done += AT_ONCE

    types = dict.fromkeys((IMAGE, *keep), pa.string())
    return RowSource(name, types, counted(), lambda: min(done / rows, 1.0) if rows else None)


@contextmanager
def without_warnings() -> Iterator[None]:
    """Odd headers are no news to a user; but a picture of absurd size is an error, not a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def _readers(rows: int, read: Callable[[slice], Block]) -> Iterator[BlockReader]:
    return (partial(read, slice(start, start + AT_ONCE)) for start in range(0, rows, AT_ONCE))


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
            return _is_dicom_content(file.read(MARK[0] + len(MARK[1])))
    except OSError:
        return True  # decoding then reports that it cannot be read


def _is_dicom_content(content: bytes) -> bool:
    return content[MARK[0] : MARK[0] + len(MARK[1])] == MARK[1]


def _folder(folder: Path, images: Images, keep: Sequence[str]) -> RowSource:
    try:
        files = [name for name in files_below(folder) if _is_image(folder / name)]
    except OSError as error:
        raise DataError(str(folder), f"cannot be read ({error.strerror})", "Look at its permissions.") from None
    if not files:
        raise DataError(str(folder), "there is no image in it", KINDS)
    return _files(folder, files, images, keep, str(folder))


def _files(folder: Path, files: list[str], images: Images, keep: Sequence[str], where: str) -> RowSource:
    for name in keep:
        if name not in TAGS:
            problem = f"there is no column {shown(name)}: a folder of images has what DICOM files say, and no others"
            raise DataError(where, problem, suggest(name, TAGS, "Known"))
    if any(map(is_dicom, files)):
        need_pydicom()

    def read(rows: slice) -> Block:
        pictures = [decode(folder / name, images.shape[1], images.clahe, images.shape[0]) for name in files[rows]]
        attributes = pd.DataFrame(
            {key: [picture.attributes.get(key, "") for picture in pictures] for key in TAGS},
            dtype=object,
        )
        columns = {**columns_of(attributes), **{name: _texts_or_gaps(attributes[name].tolist()) for name in keep}}
        return _block(files[rows], columns, _without_attributes(pictures, OF_PATIENT), pictures=pictures, images=images)

    return _source(where, len(files), keep, _readers(len(files), read))


def _table(bundle: Bundle, path: Path, images: Images, keep: Sequence[str], without: Sequence[str]) -> RowSource:
    """Names of images, and what is known of their patients. The table is read whole; images are not."""
    table = read_table(path)
    needed = not bundle.inputs.parts or bundle.inputs.image_at not in without
    names = table.column(IMAGE_COLUMNS)
    files = _listed_files(table, path) if needed else []
    attributes = _attributes(table)
    refuse_partly(bundle, set(attributes.columns), str(path), without, in_files=any(map(is_dicom, files)))
    own = {name: _table_column(table, name) for name in keep}
    lines = [f"line {line}" for line in table.lines]
    labels = lines if names is None else [str(name) for name in names]

    def read(rows: slice) -> Block:
        copied = {name: _texts_or_gaps(cells[rows].tolist()) for name, cells in own.items()}
        known, place = attributes.iloc[rows].reset_index(drop=True), lines[rows].__getitem__
        if not needed:
            return _block(labels[rows], {**columns_of(known), **copied}, place=place)
        pictures = [decode(path.parent / name, images.shape[1], images.clahe, images.shape[0]) for name in files[rows]]
        tagged = {
            key: [picture.attributes.get(key, "") for picture in pictures] for key in OF_PATIENT if key not in known
        }
        known = known.assign(**{key: pd.Series(cells, dtype=object) for key, cells in tagged.items()})
        columns = {**columns_of(known), **copied}
        return _block(labels[rows], columns, _without_attributes(pictures, tagged), place, pictures, images)

    return _source(str(path), len(lines), keep, _readers(len(lines), read))


def _listed_files(table: Table, path: Path) -> list[str]:
    names = table.column(IMAGE_COLUMNS)
    if names is None:
        remedy = "Call the column `image`; it holds each file's name, or its path from the table's folder on."
        raise DataError(str(path), "no column says which image a row is of", remedy)
    matches = matched(names.tolist(), files_below(path.parent), path)
    missing = [str(line) for line, file in zip(table.lines, matches, strict=True) if file is None]
    if missing:
        more = ", ..." if len(missing) > 5 else ""
        problem = f"{len(missing)} of {len(names)} images are not there: line {', '.join(missing[:5])}{more}"
        raise DataError(str(path), problem, "Correct the names, which start at the table's folder.")
    files = [name for name in matches if name is not None]
    if any(map(is_dicom, files)):
        need_pydicom()
    return files


def _attributes(table: Table) -> pd.DataFrame:
    columns = {key: table.column(ATTRIBUTES[key]) for key in OF_PATIENT}
    columns["view"] = views(table)
    present = {key: pd.Series(cells, dtype=object) for key, cells in columns.items() if cells is not None}
    return pd.DataFrame(present, index=pd.RangeIndex(len(table.cells)))


def _table_column(table: Table, name: str) -> np.ndarray:
    """By its name in the first line, or by what it is: patient, age, sex, view."""
    cells = table.cells[:, table.header.index(name)] if name in table.header else table.column(ATTRIBUTES.get(name, ()))
    if cells is None:
        raise DataError(str(table.path), f"there is no column {shown(name)}", suggest(name, table.header, "Columns"))
    return cells


def _npz(bundle: Bundle, path: Path, images: Images, keep: Sequence[str], without: Sequence[str]) -> RowSource:
    archive = Archive(path)
    members = archive.parts()
    counts = {part: member.shape[0] for part, member in members.items()}
    attributes = pd.DataFrame(index=pd.RangeIndex(sum(counts.values())))
    for key, (name, yes, no) in FLAGS.items():
        if (flags := archive.values(name, counts)) is not None:
            attributes[key] = pd.Series(np.where(flags.astype(bool), yes, no), dtype=object)
    if (ages := archive.values("age", counts)) is not None:
        attributes["age"] = pd.Series(texts_of(ages), dtype=object)
    refuse_partly(bundle, set(attributes.columns), str(path), without)
    own: dict[str, np.ndarray] = {}
    for name in keep:
        values = (
            archive.values(NPZ.get(name, name), counts) if name not in attributes else attributes[name].to_numpy(object)
        )
        if values is None:
            known = sorted({member.partition("_")[2] for member in archive.members} - {"images", "labels"})
            raise DataError(str(path), f"has no {shown(name)} for each image", suggest(name, known, "There are"))
        own[name] = texts_of(np.asarray(values)) if values.dtype != object else values

    def read(pixels: np.ndarray, labels: list[str], rows: slice) -> Block:
        copied = {name: _texts_or_gaps(cells[rows].tolist()) for name, cells in own.items()}
        columns = {**columns_of(attributes.iloc[rows].reset_index(drop=True)), **copied}
        return _block(labels, columns, pixels=converted(pixels, images.shape, images.clahe))

    def blocks() -> Iterator[BlockReader]:
        first = 0
        for part, member in members.items():
            place = 0
            for stretch in archive.stretches(member):
                for start in range(0, len(stretch), AT_ONCE):
                    pixels = stretch[start : start + AT_ONCE]
                    labels = [f"{part}-{place + number}" for number in range(len(pixels))]
                    yield partial(read, pixels, labels, slice(first, first + len(pixels)))
                    first, place = first + len(pixels), place + len(pixels)

    return _source(str(path), sum(counts.values()), keep, blocks())


def block_of_arrays(bundle: Bundle, arrays: np.ndarray, table: pd.DataFrame | None, without: Sequence[str]) -> Block:
    images = bundle.inputs.images
    if images is None:
        raise DataError("images", "the bundle takes no images", "Use predict_table.")
    pixels = arrays[:, 0] if arrays.ndim == 4 and arrays.shape[1] == 1 else arrays
    fits = pixels.ndim == 3 or (pixels.ndim == 4 and pixels.shape[3] in (1, 3))
    if not fits or pixels.dtype.name not in ("uint8", "uint16"):
        remedy = "Give an array (images, height, width) of 8 or 16 bits; a last axis of 3 holds colours."
        raise DataError("images", f"an array of {arrays.ndim} axes and type {arrays.dtype.name}", remedy)
    table = pd.DataFrame(index=pd.RangeIndex(len(pixels))) if table is None else table
    if len(table) != len(pixels):
        raise DataError("table", f"{len(table)} rows for {len(pixels)} images", "Give a row for each image.")
    attributes = pd.DataFrame(
        {key: _as_texts(table[key].tolist()) for key in OF_PATIENT if key in table},
        dtype=object,
    )
    refuse_partly(bundle, set(attributes.columns), "table", without)
    labels = [str(number) for number in range(len(pixels))]
    return _block(
        labels, columns_of(attributes), place="image {}".format, pixels=converted(pixels, images.shape, images.clahe)
    )


def block_of_requests(
    bundle: Bundle, rows: Sequence[Mapping[str, Any]], without: Sequence[str], where: Callable[[int], str]
) -> Block:
    """Attributes that a row does not give may be in its DICOM file."""
    images = bundle.inputs.images
    if images is None:
        raise ValueError("a bundle of images is needed")
    labels = [""] * len(rows)
    if bundle.inputs.parts and bundle.inputs.image_at in without:
        attributes, missing = _request_attributes(rows, [{}] * len(rows))
        return _block(labels, columns_of(attributes), missing, where)
    pictures = []
    with ONE_AT_A_TIME, without_warnings():
        for number, row in enumerate(rows):
            content = row.get(IMAGE)
            if not isinstance(content, str):
                problem = "there is no 'image'" if content is None else "'image' is not a text"
                raise DataError(where(number), problem, "Give the content of a PNG, JPEG or DICOM file in base64.")
            pictures.append(picture_from_base64(content, images, where(number)))
    attributes, missing = _request_attributes(rows, [picture.attributes for picture in pictures])
    return _block(labels, columns_of(attributes), missing, where, pictures, images)


def _request_attributes(
    rows: Sequence[Mapping[str, Any]], in_files: Sequence[Mapping[str, str]]
) -> tuple[pd.DataFrame, dict[str, np.ndarray]]:
    """What is known of each row's patient, and by attribute the rows that come without it. As in a folder, a DICOM
    file has the attributes, with or without a value."""
    pairs = list(zip(rows, in_files, strict=True))
    missing = {key: np.array([key not in row and not file for row, file in pairs], dtype=bool) for key in OF_PATIENT}
    present = [key for key in OF_PATIENT if not missing[key].all()]
    cells = {key: _as_texts([row[key] if key in row else file.get(key) for row, file in pairs]) for key in present}
    return pd.DataFrame(cells, dtype=object), missing


def picture_from_base64(text: str, images: Images, where: str) -> Picture:
    """Nothing is written to disk."""
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise DataError(where, "'image' is not base64", "Encode the file's content as base64.") from None
    file = cast(Path, BytesIO(content))  # both readers take an open file as well as a path
    if not _is_dicom_content(content):
        return _too_large_picture(content) or read_picture(file, images.shape[1], images.clahe, images.shape[0])
    return _too_large_dicom(content) or _dicom(file, images)


def _dicom(file: Path, images: Images) -> Picture:
    picture = read_dicom(file, images.shape[1], images.clahe)
    return picture if picture.pixels is None else replace(picture, pixels=in_channels(picture.pixels, images.shape[0]))


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


def _block(
    labels: list[str],
    columns: Mapping[str, pa.Array],
    without_column: Mapping[str, np.ndarray] | None = None,
    place: Callable[[int], str] | None = None,
    pictures: Sequence[Picture] = (),
    images: Images | None = None,
    pixels: np.ndarray | None = None,
) -> Block:
    """Of pictures that were decoded, or of `pixels`, or without images."""
    if images is not None:
        gap = np.zeros(images.shape, dtype=np.uint8)
        decoded = [gap if picture.pixels is None else picture.pixels.reshape(images.shape) for picture in pictures]
        pixels = np.array(decoded, dtype=np.uint8).reshape(len(labels), *images.shape)
    return Block(
        len(labels),
        {IMAGE: pa.array(labels, pa.string()), **columns},
        place or labels.__getitem__,
        images=pixels,
        unreadable={row: picture.reason for row, picture in enumerate(pictures) if picture.pixels is None},
        without_column=without_column or {},
    )


def _without_attributes(pictures: Sequence[Picture], attributes: Iterable[str]) -> dict[str, np.ndarray]:
    """A DICOM file has the columns, with or without a value in them; a file of another kind has none."""
    return dict.fromkeys(attributes, np.array([not picture.attributes for picture in pictures], dtype=bool))


def columns_of(attributes: pd.DataFrame) -> dict[str, pa.Array]:
    """What is known of patients as the training data had it."""
    columns, _ = groups(attributes[[key for key in OF_PATIENT if key in attributes]])
    return {str(name): pa.array(columns[name], from_pandas=True) for name in columns.columns}


def refuse_partly(bundle: Bundle, names: set[str], where: str, without: Sequence[str], in_files: bool = False) -> None:
    """A party with only some of its columns is not a missing party: a column was forgotten. DICOM files may have the
    rest for each patient."""
    for part in bundle.inputs.parts:
        own = [name for name in bundle.inputs.held_by(part.party) if name in OF_PATIENT]
        lacking = [name for name in own if name not in names]
        missing_party = part.present is not None and len(lacking) == len(own)
        if lacking and not missing_party and part.party not in without and not in_files:
            leave_out = f", or leave the party out: --without {part.party}" if part.present is not None else ""
            raise DataError(where, f"there is no column {', '.join(map(repr, lacking))}", f"Add it{leave_out}.")


def _texts_or_gaps(cells: Sequence[Any]) -> pa.Array:
    return pa.array([None if cell == "" else str(cell) for cell in cells], pa.string())


def _as_texts(values: Sequence[Any]) -> list[str]:
    return ["" if value is None or value != value else str(value) for value in values]
