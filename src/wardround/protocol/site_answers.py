"""What a hospital may answer a coordinator."""

from typing import Annotated, Literal

from wardround.core.extras import needs
from wardround.protocol.figures import Figures, Summaries
from wardround.protocol.values import (
    MOST_CLASSES,
    MOST_COLUMNS,
    MOST_LEVELS,
    MOST_SITES,
    MOST_TRIALS,
    Count,
    Counts,
    Flags,
    Hash,
    Hex,
    Key,
    Name,
    Part,
    Place,
    Positive,
    Shape,
    Squares,
    Totals,
    Values,
    Words,
)

with needs("deploy", "a study across hospitals"):
    from msgspec import UNSET, Meta, Struct, UnsetType


class AnswerBase(Struct, forbid_unknown_fields=True, kw_only=True):
    """Who says it is known by the signature; the rest names the question, and the head of the sender's audit log."""

    site: Name
    head: Hex
    wave: Place | UnsetType = UNSET
    round: Place | UnsetType = UNSET


class Answer(AnswerBase, kw_only=True):
    run: Name


# -- no


class Refused(AnswerBase, kw_only=True):
    reason: Words
    until: Annotated[str, Meta(max_length=64)] | None
    run: Name | UnsetType = UNSET  # none, where the question could not be read


class Failed(AnswerBase, kw_only=True):
    problem: Words
    run: Name | UnsetType = UNSET


# -- before the first round


class Column(Part):
    name: Name
    kind: Literal["numeric", "categorical"]
    limits: tuple[float, float] | None
    coded: bool
    levels: Annotated[list[Name], Meta(max_length=MOST_LEVELS)] | None


class ClassName(Part):
    name: Name | None  # None: of too few rows to be named
    hash: Hash


Classes = Annotated[list[ClassName], Meta(max_length=MOST_CLASSES)]
Versions = Annotated[
    dict[Annotated[str, Meta(max_length=40)], Annotated[str, Meta(max_length=80)] | None], Meta(max_length=40)
]


class Ready(Answer):
    columns: Annotated[list[Column], Meta(max_length=MOST_COLUMNS)] | None
    inputs: Shape | None
    classes: Classes
    findings: bool
    versions: Versions


class ColumnFacts(Part):
    present: Flags
    gaps: Flags
    levels: Annotated[list[Annotated[list[Name], Meta(max_length=MOST_LEVELS)]], Meta(max_length=MOST_COLUMNS)]


class Sizes(Part):
    train: Count
    validation: Count
    test: Count


class RowSet(Sizes):
    facts: ColumnFacts | None


class Ages(Part):
    mean: float | None
    sd: Positive | None


class Described(Part):
    train: Count
    validation: Count
    test: Count
    classes: Annotated[dict[Name, Count | None], Meta(max_length=MOST_CLASSES)]
    age: Ages | UnsetType = UNSET


Direction = tuple[Annotated[float, Meta(ge=-0.5, le=0.5)], Annotated[float, Meta(gt=0, lt=1)]]
Directions = Annotated[dict[Name, Direction], Meta(max_length=MOST_COLUMNS)]


class Facts(Answer):
    sets: Annotated[list[RowSet], Meta(max_length=MOST_TRIALS)]
    described: Described
    directions: Directions


class LentValues(Part):
    fill: Values
    counts: Counts
    levels: Annotated[
        dict[Name, Annotated[dict[Name, Count], Meta(max_length=MOST_LEVELS)]], Meta(max_length=MOST_COLUMNS)
    ]


class Lent(Answer):
    lent: Annotated[list[LentValues], Meta(max_length=MOST_TRIALS)]


class ColumnMoments(Part):
    count: Counts
    total: Totals
    squares: Squares


class Moments(Answer):
    moments: Annotated[list[ColumnMoments | None], Meta(max_length=MOST_TRIALS)]


class Prepared(Answer):
    waves: Place


# -- a secure sum


class AdvertPart(Part):
    site: Name
    seal_key: Hex
    mask_key: Hex
    seed_hash: Hex
    adds: Annotated[list[Key], Meta(max_length=MOST_TRIALS)]
    signature: Hex


class Advert(Answer):
    advert: AdvertPart


class Shared(Answer):
    shares: Annotated[dict[Name, Hex], Meta(max_length=MOST_SITES)]


class Confirmed(Answer):
    signature: Hex


class RevealPart(Part):
    site: Name
    seeds: Annotated[dict[Name, Hex], Meta(max_length=MOST_SITES)]
    keys: Annotated[dict[Name, Hex], Meta(max_length=MOST_SITES)]


class Revealed(Answer):
    reveal: RevealPart


# -- rounds


class TrialWork(Part):
    """`finite` is False where local work ended in numbers that are not: then no update of the trial is sent."""

    epochs: Annotated[int, Meta(ge=1, le=1_000_000)]
    loss: float | None
    length: Positive | None
    moved: bool
    finite: bool


class Update(Answer):
    trials: Annotated[dict[Key, TrialWork], Meta(max_length=MOST_TRIALS)]
    figures: Figures


class Summary(Answer):
    summaries: Summaries
    figures: Figures


class Goodbye(Answer):
    """Nothing is left to say."""


# -- between parties with different features of the same patients
