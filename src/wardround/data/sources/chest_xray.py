"""Chest radiographs with any number of findings in each: NIH's release, MedMNIST's file, DICOM or CheXpert.

NIH ChestX-ray14: Wang et al., CVPR 2017, arXiv:1705.02315. ChestMNIST: Yang et al., arXiv:2110.14795. CheXpert: Irvin
et al., AAAI 2019, arXiv:1901.07031. Nothing is downloaded from here.
"""

from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

from wardround.core.errors import StudyError
from wardround.core.notices import Notice
from wardround.core.settings import Count, Range, WholeNumber, settings_of
from wardround.data.imaging.finding_names import FINDINGS, check_findings
from wardround.data.imaging.gathering import gather, records_of
from wardround.data.imaging.listing import ImageOptions
from wardround.data.imaging.problems import CONVERTED, Accepted
from wardround.data.records import Records, Source
from wardround.data.sources.phantom.radiographs import phantom
from wardround.study.facts import SourceFacts, declares

CITATION = "Wang et al. ChestX-ray8: hospital-scale chest X-ray database and benchmarks. CVPR 2017. arXiv:1705.02315"


@declares(SourceFacts(images=True, citation=CITATION))
def chest_xray(
    path: Path | None = None,
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
    phantoms: Count = 4000,
) -> Source:
    """`path` is a folder of images, their table, or an .npz file. Images become `size` x `size` bytes, bone bright.
    Without a path, synthetic phantoms stand in, so that a study can be tried before there are data.

    `labels` is the table of a folder; NIH's is found by itself, and so are its `boxes`. `uncertain` says what a label
    of -1 counts as. `accept` lists the problems with which the study goes on. `cache` is where converted images are
    kept, by default `.wardround-cache` beside the data. `rows` keeps so many images, by patients drawn by `seed`.
    `phantoms` is how many stand in.
    """
    check_findings(findings)
    if path is None:
        return _stand_in(size, findings, labels, boxes, rows or phantoms, seed)
    options = ImageOptions(size, findings, uncertain, clahe, accept, rows, seed)

    def load() -> Records:
        gathered, boxes_in_folder = gather(path, labels, cache, options)
        return records_of(gathered, boxes or boxes_in_folder)

    return Source(load)


def _stand_in(
    size: int, findings: tuple[str, ...], labels: Path | None, boxes: Path | None, rows: int, seed: int
) -> Source:
    if labels is not None or boxes is not None:
        raise StudyError("data: path", "is missing, but `labels` or `boxes` is there", "Name the folder of images too.")
    places = [FINDINGS.index(name) for name in findings if name in FINDINGS]
    if len(places) < len(findings):
        problem = "without a path there are phantoms only, and they have the NIH's findings"
        raise StudyError("data: findings", problem, "Add `path`, or choose among those findings.")
    limits = next(limit for limit in get_args(settings_of(phantom)["size"].kind) if isinstance(limit, Range))
    if not limits.admits(size):
        raise StudyError("data: size", f"{size} pixels are not drawn", f"Add `path`, or write a size {limits}.")

    def load() -> Records:
        drawn = phantom(rows=rows, size=size, seed=seed).load()
        boxes_of = drawn.boxes
        if boxes_of is not None:
            number = {old: new for new, old in enumerate(places)}
            boxes_of = boxes_of[boxes_of["finding"].isin(places)]
            boxes_of = boxes_of.assign(finding=boxes_of["finding"].map(number)).reset_index(drop=True)
        notes = (Notice("phantoms-stand-in", "info"), *drawn.notes)
        return replace(drawn, target=drawn.target[:, places], classes=findings, boxes=boxes_of, notes=notes)

    return Source(load)
