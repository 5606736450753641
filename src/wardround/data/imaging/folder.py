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
from wardround.core.seeds import generator
from wardround.data.imaging import cache as store
from wardround.data.imaging.convert import converted
from wardround.data.imaging.dicom import RANGE, REMARKS, TAGS
from wardround.data.imaging.file_lookup import IMAGES, files_below, matched
from wardround.data.imaging.labels import read_listing
from wardround.data.imaging.listing import Gathered, Listing, Wanted, chosen_rows, settled, some_rows
from wardround.data.imaging.problems import LISTING, Kind, Problem, as_csv, problem_notices, refuse, refused

TABLE = "*Data_Entry_2017*.csv*"
BOXES = "*BBox_List_2017*.csv*"
LISTS = {"train": "train_val_list.txt", "test": "test_list.txt"}


def gather_folder(folder: Path, labels: Path | None, cache: Path, wanted: Wanted) -> Gathered:
    table = labels or find_one(folder, TABLE, "labels")
    if table is None:
        problem = "a folder of images needs a table that says what is in them"
        raise DataError(str(folder), problem, 'Write `labels = "table.csv"`, or put NIH\'s Data_Entry_2017.csv there.')
    listing = read_listing(table, wanted.findings)
    listing, side_notices = _official_sides(listing, {table.parent, folder})
    below = files_below(folder)
    files = matched(listing.names.tolist(), below, table)
    problems = [*listing.problems, *_missing(listing, files), *_extra(files, below)]
    if refused(problems, wanted.accept):  # before anything is decoded, which may take long
        _report(problems, wanted, folder, cache)
    named = len(listing)
    present = np.array([row for row, file in enumerate(files) if file is not None], dtype=np.int64)
    if not len(present):
        problem = f"none of the {named} images that {table.name} names is there"
        raise DataError(str(folder), problem, "Unpack the archives of images, or correct `path`.")
    rows_notices = []
    if wanted.rows is not None:
        patient = listing.said["patient"].to_numpy(object)[present] if "patient" in listing.said else None
        draws = generator(wanted.seed, "chest-xray rows")
        present = present[some_rows(patient, len(present), wanted.rows, draws)]
        rows_notices.append(chosen_rows(wanted.rows, named))
    kept_files = cast("list[str]", [files[row] for row in present])
    asked = store.digest(str(folder.resolve()), str(table.resolve()), f"{wanted.rows} {wanted.seed}")
    conversion = converted(folder, kept_files, wanted.size, wanted.clahe, cache, asked)
    facts = store.read_facts(conversion)
    problems += _pixel_problems(kept_files, facts)
    _report(problems, wanted, folder, cache)
    usable = np.flatnonzero(facts["reason"] == "")
    if not len(usable):
        raise DataError(str(folder), f"none of its {len(facts)} images can be read", "Fetch the images anew.")
    listing = _with_tags(listing.take(present[usable]), facts.iloc[usable].reset_index(drop=True))
    listing, label_notices = settled(listing, wanted.uncertain)
    images = store.open_images(conversion)
    return Gathered(
        listing,
        images,
        store.kept_prints(conversion, images, listing.target),
        (
            *side_notices,
            *rows_notices,
            *problem_notices(problems, named),
            *_remarks(facts.iloc[usable], wanted.size),
            *label_notices,
        ),
    )


def find_one(folder: Path, pattern: str, setting: str) -> Path | None:
    """The one file of this kind directly in the folder."""
    found = sorted(path for path in folder.glob(pattern) if path.is_file())
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise DataError(str(folder), f"there are {len(found)} such files: {names}", f"Name one of them: `{setting} =`.")
    return found[0] if found else None


def _official_sides(listing: Listing, folders: set[Path]) -> tuple[Listing, list[Notice]]:
    """NIH's lists of images for training and for testing, where both are there; a column of the table goes first."""
    found = {
        side: path
        for side, name in LISTS.items()
        for path in sorted(folder / name for folder in folders)
        if path.is_file()
    }
    if not found or "side" in listing.said:
        return listing, []
    if len(found) < len(LISTS):
        return listing, [Notice("side-list-alone", "info", files=(next(iter(found.values())).name,))]
    members = {side: set(path.read_text(encoding="utf-8").split()) for side, path in found.items()}
    inside = {
        side: np.array([name.rpartition("/")[2] in names for name in listing.names]) for side, names in members.items()
    }
    wrong = int((inside["train"] == inside["test"]).sum())
    if wrong:
        problem = f"{wrong} images are in both of {' and '.join(LISTS.values())}, or in neither"
        raise DataError(
            str(found["test"]), problem, "Take the lists of the same release, or give the table a column `side`."
        )
    said = listing.said.assign(side=pd.Series(np.where(inside["test"], "test", "train"), dtype=object))
    return replace(listing, said=said), []


def _missing(listing: Listing, files: Sequence[str | None]) -> list[Problem]:
    return [Problem("missing", name) for name, file in zip(listing.names, files, strict=True) if file is None]


def _extra(files: Sequence[str | None], below: Sequence[str]) -> list[Problem]:
    used = set(files)
    return [Problem("extra", file) for file in below if file.lower().endswith(IMAGES) and file not in used]


def _pixel_problems(files: Sequence[str], facts: pd.DataFrame) -> list[Problem]:
    usable = (facts["reason"] == "").to_numpy()
    sizes = list(zip(facts["width"], facts["height"], strict=True))
    most = Counter(size for size, good in zip(sizes, usable, strict=True) if good).most_common(1)
    problems = []
    for file, reason, found, size in zip(files, facts["reason"], facts["found"], sizes, strict=True):
        if reason:
            problems.append(Problem("unreadable", file, reason))
            continue
        kinds = [word for word in found.split() if word not in REMARKS]
        problems += [Problem(cast("Kind", kind), file) for kind in kinds]
        if size != most[0][0]:
            problems.append(Problem("other-size", file, f"{size[0]} x {size[1]}"))
    return problems


def _report(problems: Sequence[Problem], wanted: Wanted, folder: Path, cache: Path) -> None:
    """All of them in a file, and an end where one is not accepted."""
    listing = cache / LISTING
    if problems or listing.is_file():
        store.write_listing(listing, as_csv(problems))
    refuse(problems, wanted.accept, folder, listing)


def _with_tags(listing: Listing, facts: pd.DataFrame) -> Listing:
    """What DICOM files say of patient, age, sex and view, where the table has no such column."""
    recorded = [word for word in TAGS if word not in listing.said and (facts[word] != "").any()]
    said = listing.said.assign(**{word: facts[word].astype(object) for word in recorded})
    return replace(listing, said=said)


def _remarks(facts: pd.DataFrame, size: int) -> list[Notice]:
    words = Counter(word for found in facts["found"] for word in found.split())
    counts: dict[str, dict[str, float]] = {f"dicom-{word}": {"images": words[word]} for word in REMARKS if words[word]}
    if "dicom-unwindowed" in counts:
        counts["dicom-unwindowed"] |= {"black": RANGE[0], "white": RANGE[1]}
    stretched = int((facts["width"] != facts["height"]).sum())
    if stretched:
        counts["images-rescaled"] = {"images": stretched, "size": size}
    return [Notice(code, "info", counts=of_code) for code, of_code in counts.items()]
