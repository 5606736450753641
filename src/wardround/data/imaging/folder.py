"""A folder of images and what says what is in them: a table, as NIH's release and CheXpert have it, or folders by
class."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd

from wardround.core.errors import DataError
from wardround.core.notices import Notice
from wardround.data.imaging import cache as store
from wardround.data.imaging.dicom import REMARKS, TAGS
from wardround.data.imaging.file_lookup import IMAGES, files_below, matched
from wardround.data.imaging.image_tables import by_folder, read_tables, tables_in
from wardround.data.imaging.labels import read_listing
from wardround.data.imaging.listing import MARK_COLUMNS, Gathered, ImageOptions, Listing, drawn_rows, settled
from wardround.data.imaging.problems import LISTING, Kind, Problem, as_csv, problem_notices, refuse, refused

TABLE = "*Data_Entry_2017*.csv*"
BOXES = "*BBox_List_2017*.csv*"
LISTS = {"train": "train_val_list.txt", "test": "test_list.txt"}


def gather_folder(folder: Path, labels: Path | None, cache: Path, options: ImageOptions) -> Gathered:
    below = files_below(folder)
    listing, matches, table, split_notices, unmatched = _listed(folder, labels, below, options)
    total, problems = len(listing), [*listing.problems, *unmatched]
    if refused(problems, options.accept):  # before anything is decoded, which may take long
        _report(problems, options, folder, cache)
    files = [file for file in matches if file is not None]
    if not files:
        problem = f"none of the {total} images that {table.name} names is there"
        raise DataError(str(folder), problem, "Unpack the archives of images, or correct `path`.")
    listing = listing.take(np.array([file is not None for file in matches]).nonzero()[0])
    rows, chosen_rows = drawn_rows(listing, options, total)
    listing, files = listing.take(rows), [files[row] for row in rows]
    selection = store.digest(str(folder.resolve()), str(table.resolve()), f"{options.rows} {options.seed}")
    conversion = store.converted(folder, files, options, cache, selection)
    facts = store.read_facts(conversion)
    images = store.open_images(conversion)
    problems += _pixel_problems(files, facts)
    _report(problems, options, folder, cache)
    usable = np.flatnonzero(facts["reason"] == "")
    if not len(usable):
        raise DataError(str(folder), f"none of its {len(facts)} images can be read", "Fetch the images anew.")
    facts = facts.iloc[usable].reset_index(drop=True)
    listing, uncertain = settled(_with_tags(listing.take(usable), facts), options.uncertain)
    prints = store.cached_prints(conversion, images, listing.target)
    remarks = (*problem_notices(problems, total), *_remarks(facts, images.shape[-1]))
    boxes, boxes_used = (None, []) if listing.marks is None else _boxes(listing, facts)
    notices = (*split_notices, *chosen_rows, *remarks, *uncertain, *boxes_used)
    return Gathered(listing, images, prints, notices, boxes)


Listed = tuple[Listing, list[str | None], Path, list[Notice], list[Problem]]


def _listed(folder: Path, labels: Path | None, below: list[str], options: ImageOptions) -> Listed:
    """What is said of the images; each one's file, if it is there; the table that says it, or the folder; and notices
    and problems of names and files."""
    table = labels or single_file(folder, TABLE, "labels")
    if table is None and options.any_labels:
        tables = tables_in(folder)
        if not tables:
            images = [file for file in below if _may_be_image(file)]
            listing, files = by_folder(images, folder, options.findings)
            others = [Problem("no-image", file) for file in below if not _may_be_image(file)]
            return listing, list(files), folder, [], others
        table, listing = tables[0], read_tables(tables, options.findings)
    elif table is None:
        problem = "a folder of images needs a table that says what is in them"
        remedy = 'Write `labels = "table.csv"`, or put NIH\'s Data_Entry_2017.csv there. Source `images` needs none.'
        raise DataError(str(folder), problem, remedy)
    elif options.any_labels:
        listing = read_tables([table], options.findings)
    else:
        listing = read_listing(table, options.findings)
    listing, notices = _with_official_split(listing, {table.parent, folder})
    matches = matched(listing.names.tolist(), below, table)
    return listing, matches, table, notices, _unmatched(listing, matches, below)


def _may_be_image(file: str) -> bool:
    """By its ending, in capitals too; DICOM files often have none."""
    name = file.rpartition("/")[2]
    return name.lower().endswith(IMAGES) or "." not in name


def _boxes(listing: Listing, facts: pd.DataFrame) -> tuple[pd.DataFrame, list[Notice]]:
    """Those of the images here, in parts of their width and height. Of an image that was turned they no longer fit."""
    marks = listing.marks if listing.marks is not None else pd.DataFrame(columns=list(MARK_COLUMNS))
    turned = facts["remarks"].str.split().map(lambda remarks: "turned" in remarks).to_numpy(bool)
    places = {name: row for row, name in enumerate(listing.names.tolist()) if not turned[row]}
    of_image = marks["image"].map(places)
    used = of_image.notna().to_numpy()
    row, own = of_image[used].to_numpy(np.int64), marks[used]
    width, height = facts["width"].to_numpy(float)[row], facts["height"].to_numpy(float)[row]
    left, top = own["left"].to_numpy(float) / width, own["top"].to_numpy(float) / height
    right, bottom = own["right"].to_numpy(float) / width, own["bottom"].to_numpy(float) / height
    boxes = pd.DataFrame(
        {
            "row": row,
            "finding": own["finding"].to_numpy(np.int64),
            "x": left,
            "y": top,
            "width": np.minimum(right, 1) - left,
            "height": np.minimum(bottom, 1) - top,
        }
    )
    inside = ((boxes[["x", "y"]] < 1) & (boxes[["width", "height"]].to_numpy() > 0)).all(axis=1)
    counts = {"boxes": int(inside.sum()), "of": len(marks), "elsewhere": int((~used).sum()), "left_out": 0}
    counts["unknown"] = 0
    return boxes[inside].reset_index(drop=True), [Notice("boxes-used", "info", counts=counts)]


def single_file(folder: Path, pattern: str, setting: str) -> Path | None:
    """The only file of this kind directly in the folder."""
    matches = sorted(path for path in folder.glob(pattern) if path.is_file())
    if len(matches) > 1:
        names = ", ".join(path.name for path in matches)
        problem = f"there are {len(matches)} such files: {names}"
        raise DataError(str(folder), problem, f"Name one of them: `{setting} =`.")
    return matches[0] if matches else None


def _with_official_split(listing: Listing, folders: set[Path]) -> tuple[Listing, list[Notice]]:
    """NIH's lists of images for training and for testing, where both are there; a column of the table goes first."""
    lists = {
        part: path
        for part, name in LISTS.items()
        for path in sorted(folder / name for folder in folders)
        if path.is_file()
    }
    if not lists or "split" in listing.attributes:
        return listing, []
    if len(lists) < len(LISTS):
        return listing, [Notice("split-list-alone", "info", files=(next(iter(lists.values())).name,))]
    names = [name.rpartition("/")[2] for name in listing.names]
    train, test = (np.isin(names, lists[part].read_text(encoding="utf-8").split()) for part in LISTS)
    if wrong := int((train == test).sum()):
        problem = f"{wrong} images are in both of {' and '.join(LISTS.values())}, or in neither"
        remedy = "Take the lists of the same release, or give the table a column `split`."
        raise DataError(str(lists["test"]), problem, remedy)
    split = pd.Series(np.where(test, "test", "train"), dtype=object)
    return replace(listing, attributes=listing.attributes.assign(split=split)), []


def _unmatched(listing: Listing, matches: Sequence[str | None], below: Sequence[str]) -> list[Problem]:
    """Names without a file, and images that no table names."""
    used = set(matches)
    missing = [Problem("missing", name) for name, file in zip(listing.names, matches, strict=True) if file is None]
    extra = [Problem("extra", file) for file in below if file.lower().endswith(IMAGES) and file not in used]
    return missing + extra


def _pixel_problems(files: Sequence[str], facts: pd.DataFrame) -> list[Problem]:
    usable = (facts["reason"] == "").to_numpy()
    sizes = list(zip(facts["width"], facts["height"], strict=True))
    most = Counter(size for size, good in zip(sizes, usable, strict=True) if good).most_common(1)
    problems = []
    for file, reason, remarks, size in zip(files, facts["reason"], facts["remarks"], sizes, strict=True):
        if reason:
            problems.append(Problem("unreadable", file, reason))
            continue
        problems += [Problem(cast("Kind", kind), file) for kind in remarks.split() if kind not in REMARKS]
        if size != most[0][0]:
            problems.append(Problem("other-size", file, f"{size[0]} x {size[1]}"))
    return problems


def _report(problems: Sequence[Problem], options: ImageOptions, folder: Path, cache: Path) -> None:
    """All of them in a file, and an end where one is not accepted."""
    listing = cache / LISTING
    if problems or listing.is_file():
        store.write_listing(listing, as_csv(problems))
    refuse(problems, options.accept, folder, listing)


def _with_tags(listing: Listing, facts: pd.DataFrame) -> Listing:
    """What DICOM files record of patient, age, sex and view, where the table has no such column."""
    recorded = [name for name in TAGS if name not in listing.attributes and (facts[name] != "").any()]
    attributes = listing.attributes.assign(**{name: facts[name].astype(object) for name in recorded})
    return replace(listing, attributes=attributes)


def _remarks(facts: pd.DataFrame, size: int) -> list[Notice]:
    images = Counter(remark for remarks in facts["remarks"] for remark in remarks.split())
    notices = [
        Notice(f"dicom-{remark}", "info", counts={"images": images[remark], **REMARKS[remark]})
        for remark in REMARKS
        if images[remark]
    ]
    if stretched := int((facts["width"] != facts["height"]).sum()):
        notices.append(Notice("images-rescaled", "info", counts={"images": stretched, "size": size}))
    return notices
