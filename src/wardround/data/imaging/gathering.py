"""Images and what is known of them, from a folder, a table or an .npz file, as rows of a source."""

from pathlib import Path

from wardround.core.errors import DataError, StudyError
from wardround.data.imaging import cache as store
from wardround.data.imaging.folder import BOXES, gather_folder, single_file
from wardround.data.imaging.labels import is_table, read_boxes
from wardround.data.imaging.listing import HOSPITAL, Gathered, ImageOptions, groups, hospitals, patients
from wardround.data.imaging.npz import gather_npz
from wardround.data.records import Records


def gather(path: Path, labels: Path | None, cache: Path | None, options: ImageOptions) -> tuple[Gathered, Path | None]:
    """And the file of boxes that is with the images, if any."""
    if path.is_file() and is_table(path):
        if labels is not None:
            raise StudyError("data: labels", "`path` is a table already", "Let `path` be the folder of images.")
        path, labels = path.parent, path
    if path.is_dir():
        return gather_folder(path, labels, cache or path / store.FOLDER, options), single_file(path, BOXES, "boxes")
    if path.suffix != ".npz" or not path.is_file():
        problem = "is neither a folder of images, nor a table, nor an .npz file" if path.exists() else "is not there"
        raise DataError(str(path), problem, "Correct `path`, which starts at the study file's folder.")
    if labels is not None:
        raise StudyError("data: labels", "an .npz file has its own labels", "Leave `labels` out.")
    return gather_npz(path, cache or path.parent / store.FOLDER, options), None


def records_of(gathered: Gathered, boxes: Path | None, hospital: str = HOSPITAL) -> Records:
    """`hospital` is what rows are called of which nothing says where they are from."""
    listing = gathered.listing
    patient, unknown_patients = patients(listing.attributes)
    group, impossible_ages = groups(listing.attributes)
    marked, boxes_used = (None, []) if boxes is None else read_boxes(boxes, listing.names, listing.classes)
    return Records(
        features=gathered.images,
        target=listing.target,
        classes=listing.classes,
        hospital=hospitals(listing.attributes, hospital),
        patient=patient,
        groups=group,
        notes=(*gathered.notices, *unknown_patients, *impossible_ages, *boxes_used),
        split=listing.attributes["split"].to_numpy(object) if "split" in listing.attributes else None,
        boxes=gathered.boxes if marked is None else marked,
        prints=gathered.prints,
    )
