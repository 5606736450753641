"""A data set of Hugging Face that is on this machine. Nothing is downloaded, and no code of a data set is run."""

from pathlib import Path
from typing import Literal

from wardround.core.settings import Count, WholeNumber
from wardround.data.imaging.arrow_tables import gather_data_set
from wardround.data.imaging.finding_names import check_findings
from wardround.data.imaging.gathering import records_of
from wardround.data.imaging.listing import ImageOptions
from wardround.data.records import Records, Source
from wardround.study.facts import SourceFacts, declares


@declares(SourceFacts(images=True))
def hugging_face(
    path: Path,
    image: str = "",
    label: str = "",
    size: Count | None = None,
    colour: Literal["auto", "grey", "rgb"] = "auto",
    classes: tuple[str, ...] = (),
    rows: Count | None = None,
    seed: WholeNumber = 0,
) -> Source:
    """`path` is a folder that `save_to_disk` wrote, or that of one data set in the cache: Arrow or Parquet files.

    `image` and `label` are columns, where the data set does not say which they are. `classes` names labels that have no
    names in it. The other settings are those of `images`.
    """
    if classes:
        check_findings(classes)
    options = ImageOptions(size, classes, "ignore", False, (), rows, seed, colour, any_labels=True)

    def load() -> Records:
        return records_of(gather_data_set(path, image, label, options), None, "images")

    return Source(load)
