"""Chest radiographs with any number of findings in each: NIH's release, MedMNIST's file, DICOM or CheXpert.

NIH ChestX-ray14: Wang et al., CVPR 2017, arXiv:1705.02315. ChestMNIST: Yang et al., arXiv:2110.14795. CheXpert: Irvin
et al., AAAI 2019, arXiv:1901.07031. Nothing is downloaded from here.
"""

from pathlib import Path
from typing import Literal

from wardround.data.images import store
from wardround.data.images.boxes import read_boxes
from wardround.data.images.findings import FINDINGS, check_findings
from wardround.data.images.folder import BOXES, find_one, gather_folder
from wardround.data.images.gathered import Gathered, Wanted
from wardround.data.images.npz import gather_npz
from wardround.data.images.people import groups, hospitals, patients
from wardround.data.images.problems import CONVERTED, Accepted
from wardround.data.images.tables import is_table
from wardround.data.records import Records
from wardround.data.sources.source import Source
from wardround.errors import DataError, StudyError
from wardround.settings import Count, WholeNumber


def chest_xray(
    path: Path,
    size: Count = 64,
    findings: tuple[str, ...] = FINDINGS,
    labels: Path | None = None,
    boxes: Path | None = None,
    uncertain: Literal["ignore", "zero", "one"] = "ignore",
    clahe: bool = False,
    accept: tuple[Accepted, ...] = CONVERTED,
    cache: Path | None = None,
    rows: Count | None = None,
    seed: WholeNumber = 0,
) -> Source:
    """`path` is a folder of images, their table, or an .npz file. Images become `size` x `size` bytes, bone bright.

    `labels` is the table of a folder; NIH's is found by itself, and so are its `boxes`. `uncertain` says what a label
    of -1 counts as. `accept` lists the problems with which the study goes on. `cache` is where converted images are
    kept, by default `.wardround-cache` beside the data. `rows` keeps so many images, by patients drawn by `seed`.
    """
    check_findings(findings)
    wanted = Wanted(size, findings, uncertain, clahe, accept, rows, seed)

    def load() -> Records:
        gathered, found_boxes = _gather(path, labels, cache, wanted)
        return _records(gathered, boxes or found_boxes)

    return Source(load)


def _gather(path: Path, labels: Path | None, cache: Path | None, wanted: Wanted) -> tuple[Gathered, Path | None]:
    """And the file of boxes that is with the images, if any."""
    if path.is_file() and is_table(path):
        if labels is not None:
            raise StudyError("data: labels", "`path` is a table already", "Let `path` be the folder of images.")
        path, labels = path.parent, path
    if path.is_dir():
        return gather_folder(path, labels, cache or path / store.FOLDER, wanted), find_one(path, BOXES, "boxes")
    if path.suffix != ".npz" or not path.is_file():
        problem = "is neither a folder of images, nor a table, nor an .npz file" if path.exists() else "is not there"
        raise DataError(str(path), problem, "Correct `path`, which starts at the study file's folder.")
    if labels is not None:
        raise StudyError("data: labels", "an .npz file has its own labels", "Leave `labels` out.")
    return gather_npz(path, cache or path.parent / store.FOLDER, wanted), None


def _records(gathered: Gathered, boxes: Path | None) -> Records:
    listing = gathered.listing
    patient, patient_notes = patients(listing.said)
    group, group_notes = groups(listing.said)
    marked, box_notes = (None, []) if boxes is None else read_boxes(boxes, listing.names, listing.classes)
    return Records(
        features=gathered.images,
        target=listing.target,
        classes=listing.classes,
        hospital=hospitals(listing.said),
        patient=patient,
        groups=group,
        notes=(*gathered.notes, *patient_notes, *group_notes, *box_notes),
        side=listing.said["side"].to_numpy(object) if "side" in listing.said else None,
        boxes=marked,
        prints=gathered.prints,
    )
