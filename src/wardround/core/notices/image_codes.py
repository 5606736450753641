"""Codes of synthetic data and of images."""

from collections.abc import Mapping

from wardround.core.notices.code import NOTHING, Code, Text, count, info
from wardround.core.notices.notice import Notice


def _images(what: str, outcome: str) -> Text:
    def text(notice: Notice) -> str:
        of = f" of {count(notice, 'of')}" if "of" in notice.counts else ""
        more = ", ..." if count(notice, "images") > len(notice.files) else ""
        return f"images {what}, {outcome}: {count(notice, 'images')}{of} ({', '.join(notice.files)}{more})"

    return text


def _boxes(notice: Notice) -> str:
    text = (
        f"{count(notice, 'boxes')} of {count(notice, 'of')} boxes used; {count(notice, 'elsewhere')} are of images "
        f"that are not here, {count(notice, 'left_out')} of findings that the study leaves out"
    )
    unknown = count(notice, "unknown")
    return f"{text}, {unknown} of findings that are not known" if unknown else text


IMAGE_CODES: Mapping[str, Code] = {
    "synthetic-rows": info(
        "The rows are synthetic: no patient is behind them.",
        "Do not report figures on them as results about patients.",
        lambda n: (
            f"all {count(n)} {n.details['what']} are synthetic ({n.details['recipe']}, seed {count(n, 'seed')}): no "
            "patient is behind them"
        ),
    ),
    "synthetic-prevalence": info(
        "How the findings of synthetic images were drawn.",
        NOTHING,
        lambda n: (
            f"findings occur together as in 112,120 images of the NIH (Wang et al., CVPR 2017); {n.details['shares']}"
        ),
    ),
    "phantoms-stand-in": info(
        "The study names no path to images, so synthetic phantoms stand in.",
        "Write `path` in `[data]` to use real images.",
        lambda n: "the study names no path to images, so synthetic phantoms stand in",
    ),
    "sites-cut": info(
        "Synthetic sites are cut to their largest allowed number of rows.",
        NOTHING,
        lambda n: f"cut {count(n, 'sites')} of {count(n, 'of')} sites to their first {count(n)} rows",
    ),
    "parts-joined": info(
        "The training and test images of a published data set are joined, and split anew.",
        NOTHING,
        lambda n: f"joined {count(n, 'training')} training and {count(n, 'test')} test images",
    ),
    "rows-chosen": info(
        "The study uses some of the images only (`rows`).",
        NOTHING,
        lambda n: (
            f"kept {count(n, 'images')} of {count(n, 'of')} images, "
            + {"patients": "by patients drawn at random", "classes": "as equally over the classes as possible"}[
                str(n.details["by"])
            ]
        ),
    ),
    "images-of-part": info(
        "How many images each part of an archive holds.",
        NOTHING,
        lambda n: f"{n.details['part']}: {count(n, 'images')} images",
    ),
    "signal-lengths": info(
        "How many recordings are of another length than the study's rows, or have gaps.",
        "Nothing need be done: a longer recording is cut, what is missing counts nothing.",
        lambda n: (
            f"{count(n, 'recordings')} recordings: {count(n, 'cut')} cut to the study's length, {count(n, 'short')} "
            f"shorter, {count(n, 'gaps')} with gaps"
        ),
    ),
    "split-list-alone": info(
        "One of NIH's two lists of training and test images is there without the other, and is not used.",
        "Put both lists beside the table.",
        lambda n: f"{n.files[0]} is there without its counterpart, and is not used",
    ),
    "image-missing": info(
        "Images that the table names have no file, and are left out.",
        "Fetch the files, or correct the table.",
        _images("that the table names have no file", "left out"),
    ),
    "image-unreadable": info(
        "Images cannot be read, or are not one grey picture, and are left out.",
        "Fetch the files again.",
        _images("cannot be read, or are not one grey picture", "left out"),
    ),
    "image-16-bit": info(
        "Images have 16 bits per pixel, and are converted to 8.",
        NOTHING,
        _images("have 16 bits per pixel", "converted to 8"),
    ),
    "image-colour": info(
        "Images are in colour or have transparency, and are converted to grey.",
        NOTHING,
        _images("are in colour or have transparency", "converted to grey"),
    ),
    "image-other-size": info(
        "Images differ in size from most, and are resized like all.",
        NOTHING,
        _images("differ in size from most", "resized like all"),
    ),
    "image-unknown-finding": info(
        "Images have a finding that is not known, or none at all; what is unknown is ignored.",
        "Correct the label table, or name the findings.",
        _images("have a finding that is not known, or none at all", "what is unknown is ignored"),
    ),
    "image-extra": info(
        "Images are named by no table, and are not used.",
        NOTHING,
        _images("are named by no table", "not used"),
    ),
    "image-no-image": info(
        "A folder holds files that are no images by their endings. They are not used.",
        NOTHING,
        lambda n: (
            f"files that are no images by their endings, not used: {count(n, 'images')} ({', '.join(n.files)}"
            f"{', ...' if count(n, 'images') > len(n.files) else ''})"
        ),
    ),
    "images-rescaled": info(
        "Images are resized, or stretched because they are not square.",
        NOTHING,
        lambda n: (
            f"{n.files[0]}: resized from {count(n, 'width')} x {count(n, 'height')} to "
            f"{count(n, 'size')} x {count(n, 'size')} pixels"
            if n.files
            else f"{count(n, 'images')} images are not square, stretched to {count(n, 'size')} x {count(n, 'size')}"
        ),
    ),
    "dicom-inverted": info(
        "DICOM images that are stored with dark bones (MONOCHROME1) are inverted.",
        NOTHING,
        lambda n: f"{count(n, 'images')} images stored with dark bones (MONOCHROME1) were inverted",
    ),
    "dicom-unwindowed": info(
        "DICOM images have no usable window; percentiles of their pixels become black and white.",
        NOTHING,
        lambda n: (
            f"{count(n, 'images')} images without a usable window: the {n.counts['black']:g}th percentile became "
            f"black, the {n.counts['white']:g}th white"
        ),
    ),
    "dicom-turned": info(
        "DICOM images are turned upright by their PatientOrientation.",
        NOTHING,
        lambda n: f"{count(n, 'images')} images were turned upright by their PatientOrientation",
    ),
    "dicom-unoriented": info(
        "DICOM images do not say how they are turned, and are taken as they are.",
        "Look at some of them.",
        lambda n: (
            f"{count(n, 'images')} images do not say how they are turned (PatientOrientation) and were taken as they "
            "are"
        ),
    ),
    "uncertain-labels": info(
        "Labels are marked as uncertain (-1); `uncertain` in `[data]` says what they count as.",
        "Choose `uncertain` to suit the question.",
        lambda n: (
            f"{count(n, 'labels')} uncertain labels (-1) in {count(n, 'images')} images, "
            + {"ignore": "not counted", "zero": "taken as absent", "one": "taken as present"}[
                str(n.details["uncertain"])
            ]
        ),
    ),
    "boxes-used": info(
        "How many bounding boxes belong to the images and findings of the study.",
        NOTHING,
        _boxes,
    ),
}
