"""A folder of images and the table that says what is in them: NIH's release, CheXpert's, or DICOM files."""

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
from wardround.data.imaging.labels import read_listing
from wardround.data.imaging.listing import Gathered, ImageOptions, Listing, drawn_rows, settled
from wardround.data.imaging.problems import LISTING, Kind, Problem, as_csv, problem_notices, refuse, refused

TABLE = "*Data_Entry_2017*.csv*"
BOXES = "*BBox_List_2017*.csv*"
LISTS = {"train": "train_val_list.txt", "test": "test_list.txt"}


def gather_folder(folder: Path, labels: Path | None, cache: Path, options: ImageOptions) -> Gathered:
    table = labels or single_file(folder, TABLE, "labels")
    if table is None:
        problem = "a folder of images needs a table that says what is in them"
        raise DataError(str(folder), problem, 'Write `labels = "table.csv"`, or put NIH\'s Data_Entry_2017.csv there.')
    listing, split_notices = _with_official_split(read_listing(table, options.findings), {table.parent, folder})
    below, total = files_below(folder), len(listing)
    matches = matched(listing.names.tolist(), below, table)
    problems = [*listing.problems, *_unmatched(listing, matches, below)]
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
    conversion = store.converted(folder, files, options.size, options.clahe, cache, selection)
    facts = store.read_facts(conversion)
    problems += _pixel_problems(files, facts)
    _report(problems, options, folder, cache)
    usable = np.flatnonzero(facts["reason"] == "")
    if not len(usable):
        raise DataError(str(folder), f"none of its {len(facts)} images can be read", "Fetch the images anew.")
    facts = facts.iloc[usable].reset_index(drop=True)
    listing, uncertain = settled(_with_tags(listing.take(usable), facts), options.uncertain)
    images = store.open_images(conversion)
    prints = store.cached_prints(conversion, images, listing.target)
    remarks = (*problem_notices(problems, total), *_remarks(facts, options.size))
    return Gathered(listing, images, prints, (*split_notices, *chosen_rows, *remarks, *uncertain))


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
