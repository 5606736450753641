"""What a region may answer the coordinator of all, for its hospitals together or for each of them."""

from typing import Annotated

from wardround.core.extras import needs
from wardround.protocol.figures import RegionFigures, Summaries
from wardround.protocol.site_answers import (
    Answer,
    Classes,
    Column,
    ColumnFacts,
    ColumnMoments,
    Described,
    Directions,
    LentValues,
    Prepared,
    Sizes,
    Versions,
)
from wardround.protocol.values import (
    MOST_COLUMNS,
    MOST_SITES,
    MOST_TRIALS,
    Bytes,
    Flags,
    Key,
    Left,
    Name,
    Part,
    Place,
    Positive,
    Shape,
    Share,
    Words,
)

with needs("deploy", "a study across hospitals"):
    from msgspec import UNSET, Meta, UnsetType


class RegionColumn(Column):
    place: tuple[Place, Place]  # of the first hospital that has it, and among that hospital's columns


class RegionReady(Answer):
    columns: Annotated[list[RegionColumn], Meta(max_length=MOST_COLUMNS)] | None
    inputs: Shape | None
    classes: Classes
    findings: bool
    versions: Versions
    sites: Annotated[list[Name], Meta(max_length=MOST_SITES)]
    left: Left


class KindFacts(Part):
    facts: ColumnFacts | None
    present: Flags
    trains: bool


Gone = Annotated[list[Name], Meta(max_length=MOST_SITES)]  # left while all had to agree: then nothing else is told


class RegionFacts(Answer):
    left: Left
    gone: Gone | UnsetType = UNSET
    kinds: Annotated[list[KindFacts], Meta(max_length=MOST_TRIALS)] | UnsetType = UNSET
    sets: dict[Name, Annotated[list[Sizes], Meta(max_length=MOST_TRIALS)]] | UnsetType = UNSET
    described: dict[Name, Described] | UnsetType = UNSET
    directions: dict[Name, Directions] | UnsetType = UNSET


class RegionLent(Answer):
    left: Left
    gone: Gone | UnsetType = UNSET
    lent: Annotated[list[LentValues], Meta(max_length=MOST_TRIALS)] | UnsetType = UNSET


class RegionMoments(Answer):
    left: Left
    gone: Gone | UnsetType = UNSET
    moments: Annotated[list[ColumnMoments | None], Meta(max_length=MOST_TRIALS)] | UnsetType = UNSET


class RegionPrepared(Prepared):
    left: Left


class RegionTrial(Part):
    weight: Positive


class RegionRound(Part):
    trial: Place
    round: Place
    loss: float | None
    update_norm: Positive | None
    sites: Annotated[list[Name], Meta(max_length=MOST_SITES)]
    dropped: Annotated[list[Name], Meta(max_length=MOST_SITES)]
    bytes_down: Bytes
    bytes_up: Bytes
    charges: Annotated[dict[Name, tuple[Share, Positive, Place]], Meta(max_length=MOST_SITES)]
    stopped: Annotated[list[Name], Meta(max_length=MOST_SITES)]
    failed: Words
    not_finite: Annotated[list[Name], Meta(max_length=MOST_SITES)]
    epochs: Annotated[dict[Name, Annotated[int, Meta(ge=1, le=1_000_000)]], Meta(max_length=MOST_SITES)]
    weight: Positive


class RegionUpdate(Answer):
    trials: Annotated[dict[Key, RegionTrial], Meta(max_length=MOST_TRIALS)]
    rounds: Annotated[list[RegionRound], Meta(max_length=MOST_TRIALS)]
    figures: RegionFigures
    left: Left


class RegionSummary(Answer):
    summaries: Annotated[dict[Name, Summaries], Meta(max_length=MOST_SITES)]
    figures: RegionFigures
    left: Left
