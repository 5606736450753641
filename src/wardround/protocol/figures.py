"""Figures that a site tells of its predictions: after a round, and of the final models."""

from typing import Annotated, Literal

from wardround.core.extras import needs
from wardround.protocol.values import (
    MOST_CLASSES,
    MOST_ROWS,
    MOST_TRIALS,
    Count,
    Key,
    Name,
    Part,
    Place,
    Positive,
    Share,
)

with needs("deploy", "a study across hospitals"):
    from msgspec import UNSET, Meta, UnsetType


class Curve(Part):
    """How the last model does on a site's rows; None where it is no number."""

    rows: Annotated[int, Meta(ge=1, le=MOST_ROWS)]
    loss: Positive | None
    accuracy: Share | None
    auc: Share | UnsetType | None = UNSET


class RegionCurve(Curve):
    auc_rows: Count | UnsetType = UNSET


Side = Literal["test", "validation"]
Figures = Annotated[dict[Key, dict[Side, Curve]], Meta(max_length=MOST_TRIALS)]
RegionFigures = Annotated[dict[Key, dict[Side, RegionCurve]], Meta(max_length=MOST_TRIALS)]


class Cell(Part):
    low: Share
    high: Share
    rows: Annotated[int, Meta(ge=1, le=MOST_ROWS)]
    score_sum: Positive


Cells = Annotated[list[Cell], Meta(max_length=100)]


class Calls(Part):
    tp: Count
    fp: Count
    fn: Count
    tn: Count


class Sums(Part):
    right: Count
    brier: Positive
    loss: Positive
    confusion: Annotated[list[Calls], Meta(max_length=MOST_CLASSES)] | None


class Metrics(Part):
    accuracy: Share | None
    auc: Share | None
    pr_auc: Share | None
    f1: Share | None
    sensitivity: Share | None
    specificity: Share | None
    ppv: Share | None
    npv: Share | None
    brier: Annotated[float, Meta(ge=0, le=2.001)] | None
    loss: Positive | None


class GroupSummary(Part):
    """Either `suppressed` alone, or figures: all of them, or the number of rows where the model diverged."""

    suppressed: bool | UnsetType = UNSET
    rows: Annotated[int, Meta(ge=1, le=MOST_ROWS)] | UnsetType = UNSET
    diverged: bool | UnsetType = UNSET
    small_classes: Annotated[list[Place], Meta(max_length=MOST_CLASSES)] | UnsetType = UNSET
    metrics: Metrics | UnsetType = UNSET
    sums: Sums | UnsetType | None = UNSET
    histogram: tuple[Cells, Cells] | UnsetType | None = UNSET  # of the negative and the positive class
    chosen: bool | UnsetType = UNSET  # of a finding: whether its threshold was chosen on validation rows
    findings: Annotated[dict[Name, "GroupSummary"], Meta(max_length=MOST_CLASSES)] | UnsetType = UNSET


class SiteSummary(GroupSummary):
    groups: (
        Annotated[dict[Name, Annotated[dict[Name, GroupSummary], Meta(max_length=1000)]], Meta(max_length=20)]
        | UnsetType
    ) = UNSET


Summaries = Annotated[
    dict[Key, dict[Literal["test", "validation", "regional"], SiteSummary]], Meta(max_length=MOST_TRIALS)
]
