"""Images of any kind, grey or in colour, of one class each or with any number of findings.

MedMNIST: Yang et al., Scientific Data 2023, 10:41. The layouts of NIH, CheXpert and VinDr-CXR are known too. Nothing is
downloaded from here.
"""

from pathlib import Path
from typing import Literal

from wardround.core.settings import Count, WholeNumber
from wardround.data.imaging.finding_names import check_findings
from wardround.data.imaging.gathering import gather, records_of
from wardround.data.imaging.listing import ImageOptions
from wardround.data.imaging.problems import CONVERTED, Accepted
from wardround.data.records import Records, Source
from wardround.study.facts import SourceFacts, declares


@declares(SourceFacts(images=True))
def images(
    path: Path,
    size: Count | None = None,
    colour: Literal["auto", "grey", "rgb"] = "auto",
    classes: tuple[str, ...] = (),
    labels: Path | None = None,
    boxes: Path | None = None,
    uncertain: Literal["ignore", "zero", "one"] = "ignore",
    clahe: bool = False,
    accept: tuple[Accepted, ...] = CONVERTED,
    cache: Path | None = None,
    rows: Count | None = None,
    seed: WholeNumber = 0,
) -> Source:
    """`path` is an .npz file in the form of MedMNIST, a folder with a folder for each class, a folder with a table of
    labels, or the table.

    `size` and `colour` are those of the images, unless they are given. `classes` names classes or findings: in the
    order of their numbers where an .npz file has no names, in their order where a folder or a table names them; without
    it names are numbers, or in alphabetical order. The other settings are those of `chest-xray`.
    """
    if classes:
        check_findings(classes)
    options = ImageOptions(size, classes, uncertain, clahe, accept, rows, seed, colour, any_labels=True)

    def load() -> Records:
        gathered, boxes_in_folder = gather(path, labels, cache, options)
        return records_of(gathered, boxes or boxes_in_folder, "images")

    return Source(load)
