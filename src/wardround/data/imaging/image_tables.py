"""Which tables say what is in a folder of images, and the layouts of published sets: NIH, CheXpert, VinDr-CXR.

CheXpert: Irvin et al., AAAI 2019, arXiv:1901.07031: `train.csv` and `valid.csv`, whose column `Path` begins with the
archive's own name. VinDr-CXR: Nguyen et al., Scientific Data 2022, 9:429: a row for each box that a reader drew, or for
an image in which he found nothing, and folders `train` and `test`.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from wardround.core.errors import DataError
from wardround.data.imaging.finding_names import NO_FINDING, chosen, plain
from wardround.data.imaging.labels import IMAGE, SPLITS, SUFFIXES, Table, listing_of, read_table
from wardround.data.imaging.listing import MARK_COLUMNS, Listing

READER = ("radid",)
MARKED = ("classname",)
CORNERS = (("xmin",), ("ymin",), ("xmax",), ("ymax",))
PARTS = ("annotations_train", "annotations_test", *SPLITS)  # names of tables that are parts of one set


def tables_in(folder: Path) -> list[Path]:
    """The tables of a folder that together say what is in its images; empty where there is none."""
    places = [folder, folder / "annotations"]
    found = [path for place in places if place.is_dir() for path in sorted(place.iterdir()) if _is_table(path)]
    parts = [path for path in found if path.name.split(".")[0].lower() in PARTS]
    if len(parts) == len(found) or len(found) <= 1:
        return found
    if parts:
        return parts
    names = ", ".join(path.name for path in found)
    raise DataError(str(folder), f"there are {len(found)} tables: {names}", "Name one of them: `labels =` in [data].")


def _is_table(path: Path) -> bool:
    return path.is_file() and path.name.lower().endswith(SUFFIXES) and not path.name.startswith(".")


def read_tables(paths: Sequence[Path], labels: tuple[str, ...]) -> Listing:
    """One listing of all tables; of several each is a part of the split."""
    listings = []
    tables = [read_table(path) for path in paths]
    readers = [table.column(READER) is not None and table.column(CORNERS[0]) is not None for table in tables]
    if any(readers):
        labels = labels or _marked_findings(tables)
    for table, by_readers in zip(tables, readers, strict=True):
        listing = _of_readers(table, labels) if by_readers else listing_of(table, labels, any_labels=True)
        listings.append(_in_part(listing, table.path) if len(paths) > 1 else listing)
    return listings[0] if len(listings) == 1 else _joined(listings, paths)


def _in_part(listing: Listing, path: Path) -> Listing:
    part = SPLITS.get(path.name.split(".")[0].lower().removeprefix("annotations_"))
    if part is None or "split" in listing.attributes:
        return listing
    return replace(listing, attributes=listing.attributes.assign(split=part))


def _joined(listings: Sequence[Listing], paths: Sequence[Path]) -> Listing:
    first = listings[0]
    for listing, path in zip(listings, paths, strict=True):
        if listing.classes != first.classes:
            problem = f"has other labels than {paths[0].name}: {', '.join(listing.classes)}"
            remedy = "Write `classes` in [data] with those that all tables have."
            raise DataError(str(path), problem, remedy)
    shared = [name for name in first.attributes if all(name in listing.attributes for listing in listings)]
    marks = [listing.marks for listing in listings if listing.marks is not None]
    return Listing(
        np.concatenate([listing.names for listing in listings]),
        np.concatenate([listing.target for listing in listings]),
        first.classes,
        pd.concat([listing.attributes[shared] for listing in listings], ignore_index=True),
        tuple(problem for listing in listings for problem in listing.problems),
        pd.concat(marks, ignore_index=True) if marks else None,
    )


def _column(table: Table, names: tuple[str, ...]) -> np.ndarray:
    cells = table.column(names)
    if cells is None:
        remedy = "Give the table as VinDr-CXR has it: image_id, rad_id, class_name, x_min, y_min, x_max, y_max."
        raise DataError(str(table.path), f"has no column {names[0]!r}", remedy)
    return cells


def _marked_findings(tables: Sequence[Table]) -> tuple[str, ...]:
    named = {name for table in tables for name in _column(table, MARKED).tolist()}
    return tuple(sorted(name for name in named if plain(name) not in ("", NO_FINDING)))


def _of_readers(table: Table, labels: tuple[str, ...]) -> Listing:
    """A finding is there where at least half of an image's readers marked it; its boxes are those of all of them."""
    image, reader, named = _column(table, IMAGE), _column(table, READER), _column(table, MARKED)
    classes = chosen(labels, _marked_findings([table]) + labels, table.path.name)
    places = {plain(name): place for place, name in enumerate(classes)}
    rows, names = pd.factorize(image)
    finding = np.array([places.get(plain(name), -1) for name in named])
    marked = pd.DataFrame({"row": rows, "reader": reader, "finding": finding})
    votes = marked[finding >= 0].drop_duplicates()
    readers = np.bincount(marked.drop_duplicates(["row", "reader"])["row"], minlength=len(names))
    counts = np.zeros((len(names), len(classes)), dtype=np.int64)
    np.add.at(counts, (votes["row"].to_numpy(), votes["finding"].to_numpy()), 1)
    target = ((counts > 0) & (2 * counts >= readers[:, np.newaxis])).astype(np.int64)
    corners = np.column_stack([pd.to_numeric(_column(table, corner), errors="coerce") for corner in CORNERS])
    drawn = (finding >= 0) & (target[rows, np.maximum(finding, 0)] == 1)
    wrong = drawn & ~((corners[:, 2:] > corners[:, :2]).all(axis=1) & (corners[:, :2] >= 0).all(axis=1))
    table.refuse(wrong, "rows with a finding have no box of four numbers", "Correct them, or leave the rows out.")
    marks = pd.DataFrame(corners[drawn], columns=list(MARK_COLUMNS[2:]))
    marks.insert(0, "image", image[drawn])
    marks.insert(1, "finding", finding[drawn])
    return Listing(np.asarray(names, dtype=object), target, classes, pd.DataFrame(index=range(len(names))), (), marks)


def by_folder(files: Sequence[str], folder: Path, given: tuple[str, ...]) -> tuple[Listing, list[str]]:
    """Images whose folder names their class: CLASS/a.png, or train/CLASS/a.png with val and test beside it. In order of
    the files' names, whatever their class; and the files that belong to them."""
    parts = [file.split("/") for file in files]
    split = all(len(names) > 2 and names[0].lower() in SPLITS for names in parts)
    depth = 1 if split else 0
    loose = sum(len(names) < depth + 2 for names in parts)
    if loose or not files:
        problem = f"{loose} images are in no class's folder" if files else "there is no image in it"
        remedy = "Put each image into the folder of its class, or name a table of labels: `labels =` in [data]."
        raise DataError(str(folder), problem, remedy)
    order = np.array(sorted(range(len(files)), key=lambda row: _place(parts[row], split)))
    owner = [parts[row][depth] for row in order]
    classes = _classes(owner, given, folder)
    attributes = pd.DataFrame(index=range(len(files)))
    if split:
        attributes["split"] = pd.Series([SPLITS[parts[row][0].lower()] for row in order], dtype=object)
    chosen_files = [files[row] for row in order]
    target = np.array([classes.index(name) for name in owner], dtype=np.int64)
    return Listing(np.array(chosen_files, dtype=object), target, classes, attributes), chosen_files


def _place(names: Sequence[str], split: bool) -> tuple[int, str, str]:
    part = list(SPLITS).index(names[0].lower()) if split else 0
    return part, names[-1], "/".join(names)


def _classes(owner: Sequence[str], given: tuple[str, ...], folder: Path) -> tuple[str, ...]:
    """The folders' names, or the study's in its order."""
    classes = given or tuple(sorted(set(owner)))
    if strange := sorted(set(owner) - set(classes)):
        problem = f"{len(strange)} folders are of no class in `classes`: {', '.join(strange[:5])}"
        raise DataError(str(folder), problem, "Add them to `classes` in [data], or move them away.")
    if len(classes) < 2:
        problem = "holds images of one class only"
        raise DataError(str(folder), problem, "Give each class a folder; the folders' names are the classes.")
    return classes
