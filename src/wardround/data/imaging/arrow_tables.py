"""Data sets of Hugging Face on this machine: a folder that `save_to_disk` wrote, or one in the cache of its libraries.

They are Arrow or Parquet files whose schema says which column holds images and which labels. They are read as such: no
package of Hugging Face is needed, nothing is fetched, and no code of a data set is run.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from wardround.core.errors import DataError, StudyError, suggest
from wardround.data.imaging.cache import form_among, header_form
from wardround.data.imaging.decode import read_picture
from wardround.data.imaging.file_lookup import files_below
from wardround.data.imaging.labels import SPLITS
from wardround.data.imaging.listing import Gathered, ImageOptions, Listing, drawn_rows
from wardround.data.records import SPLIT_PARTS
from wardround.data.split import prints_of

SUFFIXES = (".arrow", ".parquet")
ROWS = 256  # decoded at a time
PART = re.compile(rf"(?:^|[-_/])({'|'.join(SPLITS)})(?=[-_./]|$)")
FETCH = "Give a folder that `save_to_disk` wrote, or the folder of one data set in the cache."


@dataclass(frozen=True)
class Columns:
    image: str
    label: str
    names: tuple[str, ...]  # of classes or findings; empty: numbers, or words
    several: bool  # labels of an image


def is_data_set(folder: Path) -> bool:
    return folder.is_dir() and any(file.endswith(SUFFIXES) for file in files_below(folder))


def gather_data_set(folder: Path, image: str, label: str, options: ImageOptions) -> Gathered:
    files = _files(folder)
    columns = _columns(folder / files[0], image, label)
    contents: list[bytes] = []
    labels: list[Any] = []
    split: list[str | None] = []
    for file in files:
        for pictures, values in _batches(folder / file, columns):
            contents += pictures
            labels += values
            split += [_part(file)] * len(pictures)
    if not contents:
        raise DataError(str(folder), "holds no image", FETCH)
    target, classes = _target(folder, labels, columns, options.findings)
    attributes = pd.DataFrame(index=range(len(contents)))
    if split[0] is not None:
        attributes["split"] = pd.Series(split, dtype=object)
    names = np.array([f"image {number}" for number in range(len(contents))], dtype=object)
    listing = Listing(names, target, classes, attributes)
    rows, notices = drawn_rows(listing, options, len(listing))
    images = _decoded(folder, [contents[row] for row in rows], options)
    listing = listing.take(rows)
    return Gathered(listing, images, prints_of(images, listing.target), tuple(notices))


def _files(folder: Path) -> list[str]:
    """Training, validation and test, where the files say so."""
    files = [file for file in files_below(folder) if file.endswith(SUFFIXES)] if folder.is_dir() else []
    if not files:
        raise DataError(str(folder), "there is no .arrow or .parquet file in it", FETCH)
    parts = {_part(file) for file in files}
    if None in parts and len(parts) > 1:
        raise DataError(str(folder), "some files name a part of the split and some do not", FETCH)
    return sorted(files, key=lambda file: (SPLIT_PARTS.index(_part(file) or SPLIT_PARTS[0]), file))


def _part(file: str) -> str | None:
    """By the last word in its path that is one: `train/data-00000-of-00001.arrow`, `mnist-test.arrow`."""
    found = PART.findall(file.lower())
    return SPLITS[found[-1]] if found else None


def _schema(path: Path) -> pa.Schema:
    try:
        if path.suffix == ".parquet":
            return pq.read_schema(path)
        with pa.memory_map(str(path)) as source:
            return pa.ipc.open_stream(source).schema
    except (OSError, pa.ArrowInvalid) as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> DataError:
    problem = f"is damaged, or no file of Arrow ({type(error).__name__})"
    return DataError(str(path), problem, "Write or fetch the data set anew.")


def _columns(path: Path, image: str, label: str) -> Columns:
    """As the study names them, or the only ones that can be meant."""
    schema = _schema(path)
    features = _features(schema)
    images = [name for name, kind in features.items() if _type(kind) == "Image"]
    labels = [name for name, kind in features.items() if _class_names(kind)]
    chosen_image = _chosen(path, "image", image, images, schema)
    chosen = _chosen(path, "label", label, labels, schema)
    kind = features.get(chosen)
    several = pa.types.is_list(schema.field(chosen).type) or pa.types.is_large_list(schema.field(chosen).type)
    return Columns(chosen_image, chosen, tuple(_class_names(kind) or ()), several)


def _features(schema: pa.Schema) -> Mapping[str, Any]:
    try:
        return cast(Mapping[str, Any], json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"])
    except (KeyError, TypeError, ValueError):
        return {}


def _type(kind: Any) -> Any:
    return kind.get("_type") if isinstance(kind, Mapping) else None


def _class_names(kind: Any) -> list[str] | None:
    """Of a class, or of a list of them."""
    if isinstance(kind, list) and len(kind) == 1:
        return _class_names(kind[0])
    if _type(kind) in ("Sequence", "List", "LargeList"):
        return _class_names(kind.get("feature"))
    names = kind.get("names") if _type(kind) == "ClassLabel" else None
    return list(map(str, names)) if isinstance(names, list) else None


def _chosen(path: Path, setting: str, given: str, found: Sequence[str], schema: pa.Schema) -> str:
    names = schema.names
    if given and given not in names:
        raise StudyError(f"data: {setting}", f"no column is called {given!r}", suggest(given, names, "Columns"))
    likely = [given] if given else [*found] or [name for name in names if name == setting]
    if len(likely) != 1:
        problem = (
            f"{len(likely)} columns could hold the {setting}s" if likely else f"no column is known to hold {setting}s"
        )
        raise DataError(str(path), problem, f"Write `{setting} =` in [data]. Columns: {', '.join(names)}.")
    return likely[0]


def _batches(path: Path, columns: Columns) -> Iterator[tuple[list[bytes], list[Any]]]:
    try:
        for batch in _tables(path, [columns.image, columns.label]):
            cells = batch.column(columns.image).to_pylist()
            contents = [cell.get("bytes") if isinstance(cell, dict) else cell for cell in cells]
            pictures = [content for content in contents if isinstance(content, bytes)]
            if len(pictures) < len(contents):
                problem = "its images are not in it, but in files elsewhere"
                raise DataError(str(path), problem, "Save the data set with its images: `save_to_disk` does so.")
            yield pictures, batch.column(columns.label).to_pylist()
    except (OSError, KeyError, pa.ArrowInvalid) as error:
        raise _damaged(path, error) from None


def _tables(path: Path, names: list[str]) -> Iterator[pa.RecordBatch]:
    if path.suffix == ".parquet":
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(ROWS, columns=names)
        return
    with pa.memory_map(str(path)) as source:
        for batch in pa.ipc.open_stream(source):
            yield batch.select(names)


def _target(
    folder: Path, labels: list[Any], columns: Columns, given: tuple[str, ...]
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Numbers of classes, words that are classes, or lists of the findings of each image."""
    flat = [value for values in labels for value in values] if columns.several else labels
    words = _are_words(folder, flat, columns)
    names = _names(folder, flat, columns, given, words)
    places = {name: place for place, name in enumerate(names)} if words else {n: n for n in range(len(names))}
    if strange := len(set(flat) - set(places)):
        raise DataError(str(folder), f"{strange} labels have no name", "Write all names in `classes` in [data].")
    numbers = np.array([places[value] for value in flat], dtype=np.int64)
    if not columns.several:
        return numbers, names
    target = np.zeros((len(labels), len(names)), dtype=np.int64)
    target[np.repeat(np.arange(len(labels)), [len(values) for values in labels]), numbers] = 1
    return target, names


def _are_words(folder: Path, flat: list[Any], columns: Columns) -> bool:
    if gaps := sum(value is None for value in flat):
        raise DataError(str(folder), f"{gaps} images have no label", "Leave them out of the data set.")
    words = all(isinstance(value, str) for value in flat)
    if not words and not all(isinstance(value, int) and value >= 0 for value in flat):
        problem = f"the column {columns.label!r} holds neither words nor whole numbers from 0 on"
        raise DataError(str(folder), problem, "Name the column with the labels: `label =` in [data].")
    return words


def _names(folder: Path, flat: list[Any], columns: Columns, given: tuple[str, ...], words: bool) -> tuple[str, ...]:
    if columns.names and given and columns.names != given:
        problem = f"the data set names its labels itself: {', '.join(columns.names)}"
        raise StudyError("data: classes", problem, "Leave `classes` out.")
    occurring = tuple(sorted(set(flat))) if words else tuple(map(str, range(max(flat, default=0) + 1)))
    names = columns.names or given or occurring
    if len(names) < 2:
        raise DataError(str(folder), "there is one label only", "Two classes or findings are needed.")
    return names


def _decoded(folder: Path, contents: list[bytes], options: ImageOptions) -> np.ndarray:
    forms = [form for content in contents if (form := header_form(BytesIO(content))) is not None]
    channels, size = form_among(forms, options, str(folder))
    images = np.empty((len(contents), channels, size, size), dtype=np.uint8)
    unreadable = 0
    for row, content in enumerate(contents):
        picture = read_picture(cast(Path, BytesIO(content)), size, options.clahe, channels)
        unreadable += picture.pixels is None
        images[row] = 0 if picture.pixels is None else picture.pixels.reshape(channels, size, size)
    if unreadable:
        raise DataError(str(folder), f"{unreadable} of {len(contents)} images cannot be read", "Correct the data set.")
    return images
