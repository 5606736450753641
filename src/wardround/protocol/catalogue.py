"""Every message of the protocol as a type: its kind, who sends it to whom, its fields and their limits.

A request goes from a coordinator to a site, to a region that answers for its hospitals, or to a party whose patients
other parties have too; each kind of request is answered by one kind of answer. What is unknown, missing, of another
type or beyond a limit is refused before anybody looks at a value (`protocol/reading.py`). What a message must be, given
the study and what was agreed, is checked by its receiver. Tensors travel beside the body (`protocol/messages.py`).

JSON has no numbers that are not finite, so that every float here is one.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from wardround.core.extras import needs
from wardround.protocol.values import (
    MOST_CLASSES,
    MOST_COLUMNS,
    MOST_LEVELS,
    MOST_METRICS,
    MOST_ROWS,
    MOST_SITES,
    MOST_TRIALS,
    Bytes,
    Count,
    Counts,
    Epochs,
    ExactSum,
    Flags,
    Hash,
    Hex,
    Key,
    Left,
    Name,
    Part,
    Place,
    Positive,
    Remark,
    Shape,
    Share,
    Sites,
    Squares,
    Sums,
    TaskJson,
    Text,
    Totals,
    Values,
)

with needs("deploy", "a study across hospitals"):
    from msgspec import UNSET, Meta, UnsetType

PROTOCOL = 7  # both ends must speak the same one

End = Literal["site", "region", "party"]  # who answers a coordinator


class Body(Part):
    """What every message says in plain data."""

    kind: ClassVar[str]


class Answer(Body, kw_only=True):
    """To a coordinator. It repeats the run, the wave and the round of its request."""

    run: Name
    wave: Place | None = None
    round: Place | None = None


class Request(Body, kw_only=True):
    """From a coordinator. `answers` says who can be asked, and with what each of them answers."""

    answers: ClassVar[Mapping[End, type[Answer]]]

    run: Name


# -- parts: columns, rows, what is predicted


class Column(Part):
    name: Name
    kind: Literal["numeric", "categorical"]
    limits: tuple[float, float] | None
    coded: bool
    levels: Annotated[list[Name], Meta(max_length=MOST_LEVELS)] | None


class HashedName(Part):
    name: Name | None  # None: a class of too few rows to be named
    hash: Hash


class TaskPart(Part):
    """What a site predicts, as its task has it; `options` are checked by the task of this kind."""

    kind: Name
    names: Annotated[list[HashedName], Meta(min_length=1, max_length=MOST_CLASSES)]
    options: TaskJson


Columns = Annotated[list[Column], Meta(max_length=MOST_COLUMNS)]
Versions = Annotated[
    dict[Annotated[str, Meta(max_length=40)], Annotated[str, Meta(max_length=80)] | None], Meta(max_length=40)
]


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
    target: Sums  # of training rows, as the task names them; none where no scale is needed, or it is public


class Ages(Part):
    mean: float | None
    sd: Positive | None


class Described(Sizes):
    classes: Annotated[dict[Name, Count | None], Meta(max_length=MOST_CLASSES)]
    age: Ages | UnsetType = UNSET


Direction = tuple[Annotated[float, Meta(ge=-0.5, le=0.5)], Annotated[float, Meta(gt=0, lt=1)]]
Directions = Annotated[dict[Name, Direction], Meta(max_length=MOST_COLUMNS)]


class ColumnFillValues(Part):
    fill: Values
    counts: Counts
    levels: Annotated[
        dict[Name, Annotated[dict[Name, Count], Meta(max_length=MOST_LEVELS)]], Meta(max_length=MOST_COLUMNS)
    ]


class ColumnMoments(Part):
    count: Counts
    total: Totals
    squares: Squares


ListOfFillValues = Annotated[list[ColumnFillValues], Meta(max_length=MOST_TRIALS)]
ListOfMoments = Annotated[list[ColumnMoments | None], Meta(max_length=MOST_TRIALS)]
Levels = Annotated[list[Name], Meta(max_length=MOST_LEVELS)]


class Layout(Part):
    numeric: Columns
    levels: Annotated[list[tuple[Name, Levels]], Meta(max_length=MOST_COLUMNS)]
    indicators: Annotated[list[Name], Meta(max_length=MOST_COLUMNS)]


class MissingColumns(Part):
    """Columns that some site never recorded."""

    numbers: Annotated[list[Place], Meta(max_length=MOST_COLUMNS)]
    categories: Annotated[list[Name], Meta(max_length=MOST_COLUMNS)]


class Common(Part):
    """What sites have from each other."""

    fill: Values
    level: Annotated[dict[Name, Name], Meta(max_length=MOST_COLUMNS)]
    scale: tuple[Values, Values] | None


Layouts = Annotated[list[Layout], Meta(max_length=MOST_TRIALS)]
LayoutOfArm = Annotated[list[Place | None], Meta(max_length=MOST_TRIALS)]  # by kind of arm
Commons = Annotated[list[Common | None], Meta(max_length=MOST_TRIALS)]


class Agreement(Part):
    """What all agreed on; a site that was away receives it with its next request."""

    run: Name
    columns: Columns | None
    layouts: Layouts
    of: LayoutOfArm
    inputs: Shape | None
    commons: Commons
    target_scales: Annotated[list[Sums], Meta(max_length=MOST_TRIALS)]  # by kind of arm: of what is predicted


# -- parts: a secure sum


class AdvertPart(Part):
    site: Name
    seal_key: Hex
    mask_key: Hex
    seed_hash: Hex
    adds: Annotated[list[Key], Meta(max_length=MOST_TRIALS)]
    signature: Hex


class RevealPart(Part):
    site: Name
    seeds: Annotated[dict[Name, Hex], Meta(max_length=MOST_SITES)]
    keys: Annotated[dict[Name, Hex], Meta(max_length=MOST_SITES)]


SealedShares = Annotated[dict[Name, Hex], Meta(max_length=MOST_SITES)]


class SumTerms(Part):
    """A secure sum as far as it has come."""

    roster: Sites
    threshold: Place
    models: Annotated[dict[Key, Hash], Meta(max_length=MOST_TRIALS)]
    adverts: Annotated[list[AdvertPart], Meta(max_length=MOST_SITES)] | None = None
    sealed: SealedShares | None = None
    survivors: Sites | None = None
    confirmations: Annotated[dict[Name, Hex], Meta(max_length=MOST_SITES)] | None = None


# -- parts: figures of predictions, after a round and of the final models


Metrics = Annotated[dict[Name, float | None], Meta(max_length=MOST_METRICS)]  # None where one is not defined


class Curve(Part):
    """Figures of the last model on a site's rows."""

    rows: Annotated[int, Meta(ge=1, le=MOST_ROWS)]
    figures: Metrics


class RegionCurve(Curve):
    auc_rows: Count | UnsetType = UNSET


Subset = Literal["test", "validation"]
Figures = Annotated[dict[Place, dict[Subset, Curve]], Meta(max_length=MOST_TRIALS)]  # by the number of the trial
RegionFigures = Annotated[dict[Place, dict[Subset, RegionCurve]], Meta(max_length=MOST_TRIALS)]


class Cell(Part):
    low: Share
    high: Share
    rows: Annotated[int, Meta(ge=1, le=MOST_ROWS)]
    score_sum: Positive


Cells = Annotated[list[Cell], Meta(max_length=100)]


class ResidualCell(Part):
    rows: Annotated[int, Meta(ge=1, le=MOST_ROWS)]
    score_sum: float
    label_sum: float
    squares: Positive


class Confusion(Part):
    tp: Count
    fp: Count
    fn: Count
    tn: Count


class ClassSums(Part):
    right: Count
    brier: Positive
    loss: Positive
    confusion: Annotated[list[Confusion], Meta(max_length=MOST_CLASSES)] | None


class GroupSummary(Part):
    """Either `suppressed` alone, or figures: all of them, or the number of rows where the model diverged."""

    suppressed: bool | UnsetType = UNSET
    rows: Annotated[int, Meta(ge=1, le=MOST_ROWS)] | UnsetType = UNSET
    diverged: bool | UnsetType = UNSET
    small_classes: Annotated[list[Place], Meta(max_length=MOST_CLASSES)] | UnsetType = UNSET
    terms: Annotated[list[float], Meta(max_length=MOST_METRICS)] | UnsetType = UNSET  # of numbers: sums over rows
    cells: Annotated[list[ResidualCell], Meta(max_length=100)] | UnsetType = UNSET  # of numbers, of all rows
    metrics: Metrics | UnsetType = UNSET
    sums: ClassSums | UnsetType | None = UNSET
    histogram: tuple[Cells, Cells] | UnsetType | None = UNSET  # of the negative and the positive class
    chosen: bool | UnsetType = UNSET  # of a finding: whether its threshold was chosen on validation rows
    findings: Annotated[dict[Name, "GroupSummary"], Meta(max_length=MOST_CLASSES)] | UnsetType = UNSET


class SiteSummary(GroupSummary):
    groups: (
        Annotated[dict[Name, Annotated[dict[Name, GroupSummary], Meta(max_length=1000)]], Meta(max_length=20)]
        | UnsetType
    ) = UNSET


Summaries = Annotated[
    dict[Place, dict[Literal["test", "validation", "regional"], SiteSummary]], Meta(max_length=MOST_TRIALS)
]


# -- parts: rounds


class TrialWork(Part):
    """`finite` is False where local work ended in numbers that are not: then no update of the trial is sent."""

    epochs: Epochs
    loss: float | None
    length: Positive | None
    compression_error: Positive | None  # None without compression
    moved: bool
    finite: bool


class RegionColumn(Column):
    place: tuple[Place, Place]  # of the first hospital that has it, and among that hospital's columns


class KindFacts(Part):
    facts: ColumnFacts | None
    present: Flags
    trains: bool
    # as the `target` of a set of rows, over all hospitals that train: numbers whose sum without rounding is meant
    target: Annotated[list[ExactSum], Meta(max_length=MOST_METRICS)]


class RegionTrial(Part):
    weight: Positive


class RegionRound(Part):
    trial: Place
    round: Place
    loss: float | None
    update_norm: Positive | None
    compression_error: Positive | None
    sites: Sites
    dropped: Sites
    bytes_down: Bytes
    bytes_up: Bytes
    charges: Annotated[dict[Name, tuple[Share, Positive, Place]], Meta(max_length=MOST_SITES)]
    stopped: Sites
    failed: Text
    not_finite: Sites
    epochs: Annotated[dict[Name, Epochs], Meta(max_length=MOST_SITES)]
    weight: Positive


class Voucher(Part):
    """A party's key of the run, signed with the key of its kit."""

    key: Hex
    signature: Hex


Score = Annotated[list[Place], Meta(max_length=MOST_TRIALS)]  # trials whose model is scored
Counted = Annotated[int, Meta(ge=-1, le=MOST_TRIALS)]  # the last round in which the site's work counted
Shapes = Annotated[list[Shape], Meta(max_length=MOST_TRIALS)]
ListOfSizes = Annotated[list[Sizes], Meta(max_length=MOST_TRIALS)]
Stage = Literal["patients", "visits"]


# -- answers of anybody, to anything


class RefusedAnswer(Body):
    """What the site does not allow: a limit of its policy, never a count of patients. `until` says when it opens."""

    kind = "refused"

    reason: Text
    until: Annotated[str, Meta(max_length=64)] | None
    run: Name | None = None  # None where the request could not be read
    wave: Place | None = None
    round: Place | None = None


class FailedAnswer(Body):
    """What went wrong, in a notice without any value. The rest is shown at the site only."""

    kind = "failed"

    notice: Remark
    run: Name | None = None
    wave: Place | None = None
    round: Place | None = None


# -- greeting


class Ready(Answer):
    """A site: its columns, and what it predicts."""

    kind = "ready"

    task: TaskPart
    versions: Versions
    columns: Columns | None
    inputs: Shape | None


class RegionReady(Answer):
    """Of the hospitals that are there: their columns together."""

    kind = "ready"

    task: TaskPart
    versions: Versions
    columns: Annotated[list[RegionColumn], Meta(max_length=MOST_COLUMNS)] | None
    inputs: Shape | None
    sites: Sites
    left: Left


class PartyReady(Answer):
    """A party: its key of the run, and what is predicted if it has the labels."""

    kind = "ready"

    task: TaskPart | None  # None where a party has no labels
    versions: Versions
    columns: None
    inputs: None
    visits: bool
    voucher: Voucher


class Hello(Request):
    """Which study, which run, which hospitals."""

    kind = "hello"
    answers: ClassVar = {"site": Ready, "region": RegionReady, "party": PartyReady}

    study: Hash
    sites: Sites


# -- agreeing on columns


class FactsAnswer(Answer):
    kind = "facts"

    sets: Annotated[list[RowSet], Meta(max_length=MOST_TRIALS)]
    described: Described
    directions: Directions


class RegionFacts(Answer):
    """Of training rows together, and the rows of each hospital; only `gone` where a hospital has left meanwhile."""

    kind = "facts"

    left: Left
    gone: Sites | None = None
    kinds: Annotated[list[KindFacts], Meta(max_length=MOST_TRIALS)] | None = None
    sets: dict[Name, ListOfSizes] | None = None
    described: dict[Name, Described] | None = None
    directions: dict[Name, Directions] | None = None


class AskFacts(Request):
    """The columns that all use."""

    kind = "facts"
    answers: ClassVar = {"site": FactsAnswer, "region": RegionFacts}

    columns: Columns | None
    task: TaskJson | None = None  # to a region, which needs it for its own plan


class FillValuesAnswer(Answer):
    kind = "fill_values"

    fill_values: ListOfFillValues


class RegionFillValues(Answer):
    kind = "fill_values"

    left: Left
    gone: Sites | None = None
    fill_values: ListOfFillValues | None = None


class AskFillValues(Request):
    """Columns that some hospital never recorded."""

    kind = "fill_values"
    answers: ClassVar = {"site": FillValuesAnswer, "region": RegionFillValues}

    layouts: Layouts
    of: LayoutOfArm
    missing: Annotated[list[MissingColumns], Meta(max_length=MOST_TRIALS)]


class MomentsAnswer(Answer):
    kind = "moments"

    moments: ListOfMoments


class RegionMoments(Answer):
    kind = "moments"

    left: Left
    gone: Sites | None = None
    moments: ListOfMoments | None = None


class AskMoments(Request):
    """For a common scale."""

    kind = "moments"
    answers: ClassVar = {"site": MomentsAnswer, "region": RegionMoments}

    layouts: Layouts
    of: LayoutOfArm
    commons: Commons


class Prepared(Answer):
    kind = "prepared"

    waves: Place


class RegionPrepared(Answer):
    kind = "prepared"

    waves: Place
    left: Left


class Prepare(Request):
    """What was agreed."""

    kind = "prepare"
    answers: ClassVar = {"site": Prepared, "region": RegionPrepared}

    columns: Columns | None
    layouts: Layouts
    of: LayoutOfArm
    inputs: Shape | None
    commons: Commons
    target_scales: Annotated[list[Sums], Meta(max_length=MOST_TRIALS)]


# -- rounds


class Advert(Answer):
    """The site's keys of this round."""

    kind = "advert"

    advert: AdvertPart


class Keys(Request):
    """Who is in a secure sum."""

    kind = "keys"
    answers: ClassVar = {"site": Advert}

    wave: Place
    round: Place
    sum: SumTerms
    prepare: Agreement | None = None


class Shared(Answer):
    """Shares of the site's secrets, each sealed for one other site."""

    kind = "shared"

    shares: SealedShares


class Shares(Request):
    """Everybody's keys."""

    kind = "shares"
    answers: ClassVar = {"site": Shared}

    wave: Place
    round: Place
    sum: SumTerms
    prepare: Agreement | None = None


class Update(Answer):
    """Updates, or one masked vector; figures of the models that were sent."""

    kind = "update"

    trials: Annotated[dict[Place, TrialWork], Meta(max_length=MOST_TRIALS)]
    figures: Figures


class Train(Request):
    """Models, and whether the site's last update counted."""

    kind = "train"
    answers: ClassVar = {"site": Update}

    wave: Place
    round: Place
    score: Score
    counted: Counted
    work: Annotated[dict[Place, Epochs], Meta(max_length=MOST_TRIALS)]  # epochs, by the number of the trial
    seconds: Positive | None
    sum: SumTerms | None = None
    prepare: Agreement | None = None


class RegionUpdate(Answer):
    """The region's models, and what each has in weight."""

    kind = "update"

    left: Left
    trials: Annotated[dict[Place, RegionTrial], Meta(max_length=MOST_TRIALS)]
    rounds: Annotated[list[RegionRound], Meta(max_length=MOST_TRIALS)]
    figures: RegionFigures


class TrainRegion(Request):
    """Models of all, for the rounds that the region has by itself before the next average."""

    kind = "train"
    answers: ClassVar = {"region": RegionUpdate}

    wave: Place
    round: Place
    score: Score
    prepare: Agreement | None = None


class Confirmed(Answer):
    """The site's signature under the list of survivors."""

    kind = "confirmed"

    signature: Hex


class Confirm(Request):
    """Who has sent a masked vector."""

    kind = "confirm"
    answers: ClassVar = {"site": Confirmed}

    wave: Place
    round: Place
    sum: SumTerms
    prepare: Agreement | None = None


class Revealed(Answer):
    """The site's shares of what undoes the masks of the sum."""

    kind = "revealed"

    reveal: RevealPart


class Unmask(Request):
    """Those signatures."""

    kind = "unmask"
    answers: ClassVar = {"site": Revealed}

    wave: Place
    round: Place
    sum: SumTerms
    prepare: Agreement | None = None


class Summary(Answer):
    """Counts and figures; predictions stay at the site."""

    kind = "summary"

    summaries: Summaries
    figures: Figures


class RegionSummary(Answer):
    """Those of each hospital; predictions stay there."""

    kind = "summary"

    left: Left
    summaries: Annotated[dict[Name, Summaries], Meta(max_length=MOST_SITES)]
    figures: RegionFigures


class Evaluate(Request):
    """Final models."""

    kind = "evaluate"
    answers: ClassVar = {"site": Summary, "region": RegionSummary}

    wave: Place
    counted: Counted
    score: Score
    prepare: Agreement | None = None


# -- parties with different features of the same patients


class Matched(Answer):
    """Its own messages of the matching."""

    kind = "matched"

    common: Count | None


class Match(Request):
    """Messages of the matching that wait for this party."""

    kind = "match"
    answers: ClassVar = {"party": Matched}

    wave: Place
    round: Place
    stage: Stage
    vouchers: Annotated[dict[Name, Voucher], Meta(max_length=MOST_SITES)]
    rosters: dict[Stage, Sites]


class Assigned(Answer):
    """Rows of each party, sealed for it."""

    kind = "assigned"

    sizes: ListOfSizes
    unmatched: Count | None
    described: Described


class Assign(Request):
    """To the holder of the labels: who trains, validates and tests?"""

    kind = "assign"
    answers: ClassVar = {"party": Assigned}


class Shaped(Answer):
    """How many numbers the party gives of a row."""

    kind = "shaped"

    shapes: Shapes


class AskShape(Request):
    """What the holder sealed for this party."""

    kind = "shape"
    answers: ClassVar = {"party": Shaped}


class Agreed(Answer):
    kind = "agreed"

    waves: Place


class Agree(Request):
    """What all parties give."""

    kind = "agree"
    answers: ClassVar = {"party": Agreed}

    shapes: Annotated[dict[Name, Shapes], Meta(max_length=MOST_SITES)]
    task: TaskJson


class Embedded(Answer):
    """Embeddings of the next block, sealed for the party with the labels."""

    kind = "embedded"


class Embed(Request):
    """Gradients of the block before, sealed for this party."""

    kind = "embed"
    answers: ClassVar = {"party": Embedded}

    wave: Place
    round: Place


class Learned(Answer):
    """Gradients, sealed for each party; the loss of a round that ends."""

    kind = "learned"

    losses: Annotated[dict[Place, float], Meta(max_length=MOST_TRIALS)]


class Learn(Request):
    """To the holder of the labels: all embeddings of a block."""

    kind = "learn"
    answers: ClassVar = {"party": Learned}

    wave: Place
    round: Place


class LastEmbedded(Answer):
    """Embeddings of validation and test rows, sealed for the party with the labels."""

    kind = "last_embedded"


class EmbedLast(Request):
    """Gradients of the last block."""

    kind = "embed_last"
    answers: ClassVar = {"party": LastEmbedded}

    wave: Place
    round: Place


class Assessed(Answer):
    """Counts and figures, and the same once more for each other party as if it had been missing."""

    kind = "assessed"

    summaries: Summaries
    figures: Figures
    without: Annotated[dict[Place, dict[Name, SiteSummary]], Meta(max_length=MOST_TRIALS)]


class Assess(Request):
    """To the holder of the labels: those embeddings."""

    kind = "assess"
    answers: ClassVar = {"party": Assessed}

    wave: Place
    round: Place


# -- the end


class GoodbyeAnswer(Answer):
    kind = "goodbye"


class Goodbye(Request):
    """The run is over, or given up, and why."""

    kind = "goodbye"
    answers: ClassVar = {"site": GoodbyeAnswer, "region": GoodbyeAnswer, "party": GoodbyeAnswer}

    results: Hex
    why: Text | None = None


# -- all of them

REQUESTS: tuple[type[Request], ...] = tuple(Request.__subclasses__())
REFUSALS: dict[str, type[Body]] = {"refused": RefusedAnswer, "failed": FailedAnswer}
ANSWERED_BY = {request.kind: answer.kind for request in REQUESTS for answer in request.answers.values()}


def requests_to(end: End) -> dict[str, type[Request]]:
    """By kind, what a coordinator may ask this end."""
    return {request.kind: request for request in REQUESTS if end in request.answers}


def answers_of(end: End) -> dict[str, type[Body]]:
    """By kind, what this end may answer."""
    return REFUSALS | {
        request.answers[end].kind: request.answers[end] for request in REQUESTS if end in request.answers
    }
