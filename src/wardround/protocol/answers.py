"""Every answer that a site, a region or a party may give, as a type: fields, kinds of values and limits.

`read_answer` refuses what is unknown, missing, of another kind or beyond a limit, before anybody looks at a value. What
an answer must be, given the request and the agreement, is checked in `deployment/common/answer_checks.py`.
JSON has no numbers that are not finite, so that every float here is one.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import orjson

from wardround.core.errors import SiteError
from wardround.core.extras import needs
from wardround.core.notices import Notice
from wardround.protocol.messages import Message, Sealed
from wardround.protocol.text import is_plain, plain_text
from wardround.protocol.values import (
    MOST_CLASSES,
    MOST_COLUMNS,
    MOST_LEVELS,
    MOST_ROWS,
    MOST_SITES,
    MOST_TRIALS,
    Bytes,
    Count,
    Counts,
    Epochs,
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
    Text,
    Totals,
    Values,
)

with needs("deploy", "a study across hospitals"):
    import msgspec
    from msgspec import UNSET, Meta, Struct, UnsetType

REMEDY = "Install the same version of wardround everywhere."


class AnswerBase(Struct, forbid_unknown_fields=True, kw_only=True):
    """The signature says who answers; the rest names the request, and the head of the sender's audit log."""

    site: Name
    head: Hex
    wave: Place | UnsetType = UNSET
    round: Place | UnsetType = UNSET


class Answer(AnswerBase, kw_only=True):
    run: Name


class Refused(AnswerBase, kw_only=True):
    reason: Text
    until: Annotated[str, Meta(max_length=64)] | None
    run: Name | UnsetType = UNSET  # none, where the request could not be read


class Failed(AnswerBase, kw_only=True):
    notice: Remark
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


class Greeting(Answer):
    classes: Annotated[list[ClassName], Meta(max_length=MOST_CLASSES)]
    findings: bool
    versions: Annotated[
        dict[Annotated[str, Meta(max_length=40)], Annotated[str, Meta(max_length=80)] | None], Meta(max_length=40)
    ]


class Ready(Greeting):
    columns: Annotated[list[Column], Meta(max_length=MOST_COLUMNS)] | None
    inputs: Shape | None


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


class Described(Sizes):
    classes: Annotated[dict[Name, Count | None], Meta(max_length=MOST_CLASSES)]
    age: Ages | UnsetType = UNSET


Direction = tuple[Annotated[float, Meta(ge=-0.5, le=0.5)], Annotated[float, Meta(gt=0, lt=1)]]
Directions = Annotated[dict[Name, Direction], Meta(max_length=MOST_COLUMNS)]


class Facts(Answer):
    sets: Annotated[list[RowSet], Meta(max_length=MOST_TRIALS)]
    described: Described
    directions: Directions


class ColumnFillValues(Part):
    fill: Values
    counts: Counts
    levels: Annotated[
        dict[Name, Annotated[dict[Name, Count], Meta(max_length=MOST_LEVELS)]], Meta(max_length=MOST_COLUMNS)
    ]


class FillValues(Answer):
    fill_values: Annotated[list[ColumnFillValues], Meta(max_length=MOST_TRIALS)]


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


# -- figures of predictions: after a round, and of the final models


class Curve(Part):
    """Figures of the last model on a site's rows; None where one is no number."""

    rows: Annotated[int, Meta(ge=1, le=MOST_ROWS)]
    loss: Positive | None
    accuracy: Share | None
    auc: Share | UnsetType | None = UNSET


class RegionCurve(Curve):
    auc_rows: Count | UnsetType = UNSET


Subset = Literal["test", "validation"]
Figures = Annotated[dict[Key, dict[Subset, Curve]], Meta(max_length=MOST_TRIALS)]
RegionFigures = Annotated[dict[Key, dict[Subset, RegionCurve]], Meta(max_length=MOST_TRIALS)]


class Cell(Part):
    low: Share
    high: Share
    rows: Annotated[int, Meta(ge=1, le=MOST_ROWS)]
    score_sum: Positive


Cells = Annotated[list[Cell], Meta(max_length=100)]


class Confusion(Part):
    tp: Count
    fp: Count
    fn: Count
    tn: Count


class Sums(Part):
    right: Count
    brier: Positive
    loss: Positive
    confusion: Annotated[list[Confusion], Meta(max_length=MOST_CLASSES)] | None


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


# -- rounds


class TrialWork(Part):
    """`finite` is False where local work ended in numbers that are not: then no update of the trial is sent."""

    epochs: Epochs
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


# -- of a region, for its hospitals together or for each of them


class RegionAnswer(Answer):
    left: Left


class RegionColumn(Column):
    place: tuple[Place, Place]  # of the first hospital that has it, and among that hospital's columns


class RegionReady(Greeting):
    columns: Annotated[list[RegionColumn], Meta(max_length=MOST_COLUMNS)] | None
    inputs: Shape | None
    sites: Sites
    left: Left


class RegionAgreement(RegionAnswer):
    gone: Sites | UnsetType = UNSET  # left while all had to agree: then the answer has nothing else


class KindFacts(Part):
    facts: ColumnFacts | None
    present: Flags
    trains: bool


class RegionFacts(RegionAgreement):
    kinds: Annotated[list[KindFacts], Meta(max_length=MOST_TRIALS)] | UnsetType = UNSET
    sets: dict[Name, Annotated[list[Sizes], Meta(max_length=MOST_TRIALS)]] | UnsetType = UNSET
    described: dict[Name, Described] | UnsetType = UNSET
    directions: dict[Name, Directions] | UnsetType = UNSET


class RegionFillValues(RegionAgreement):
    fill_values: Annotated[list[ColumnFillValues], Meta(max_length=MOST_TRIALS)] | UnsetType = UNSET


class RegionMoments(RegionAgreement):
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


class RegionUpdate(RegionAnswer):
    trials: Annotated[dict[Key, RegionTrial], Meta(max_length=MOST_TRIALS)]
    rounds: Annotated[list[RegionRound], Meta(max_length=MOST_TRIALS)]
    figures: RegionFigures


class RegionSummary(RegionAnswer):
    summaries: Annotated[dict[Name, Summaries], Meta(max_length=MOST_SITES)]
    figures: RegionFigures


# -- of a party with other features of the same patients


class Voucher(Part):
    """The party's key of the run, signed with the key of its kit."""

    key: Hex
    signature: Hex


class PartyReady(Greeting):
    columns: None
    inputs: None
    visits: bool
    voucher: Voucher


class Matched(Answer):
    common: Count | None


class RowsAssigned(Answer):
    sizes: Annotated[list[Sizes], Meta(max_length=MOST_TRIALS)]
    unmatched: Count | None
    described: Described


class Shaped(Answer):
    shapes: Annotated[list[Shape], Meta(max_length=MOST_TRIALS)]


class Learned(Answer):
    losses: Annotated[dict[Key, Positive], Meta(max_length=MOST_TRIALS)]


class PartySummary(Summary):
    without: Annotated[dict[Key, dict[Name, SiteSummary]], Meta(max_length=MOST_TRIALS)]


Kinds = Mapping[str, type[AnswerBase]]
REFUSALS: Kinds = {"refused": Refused, "failed": Failed}
OF_SITES: Kinds = {
    **REFUSALS,
    "ready": Ready,
    "facts": Facts,
    "fill_values": FillValues,
    "moments": Moments,
    "prepared": Prepared,
    "advert": Advert,
    "shared": Shared,
    "confirmed": Confirmed,
    "revealed": Revealed,
    "update": Update,
    "summary": Summary,
    "goodbye": Answer,
}
OF_REGIONS: Kinds = {
    **REFUSALS,
    "ready": RegionReady,
    "facts": RegionFacts,
    "fill_values": RegionFillValues,
    "moments": RegionMoments,
    "prepared": RegionPrepared,
    "update": RegionUpdate,
    "summary": RegionSummary,
    "goodbye": Answer,
}
OF_PARTIES: Kinds = {
    **REFUSALS,
    "ready": PartyReady,
    "matched": Matched,
    "assigned": RowsAssigned,
    "shaped": Shaped,
    "agreed": Prepared,
    "embedded": Answer,  # sealed for the party with the labels
    "learned": Learned,
    "last_embedded": Answer,
    "assessed": PartySummary,
    "goodbye": Answer,
}


def read_answer(site: str, kind: str, body: Mapping[str, Any], kinds: Kinds) -> AnswerBase:
    """The answer as its type. SiteError, which names the site and the place, where it is not one."""
    expected = kinds.get(kind)
    if expected is None:
        raise unusable(site, "it is of a kind that nobody asked for")
    try:
        answer: AnswerBase = msgspec.convert(body, expected)
    except msgspec.ValidationError as error:
        raise unusable(site, str(error)) from None
    if kind not in REFUSALS and not _names_are_plain(body):
        raise unusable(site, "a name in it has control characters")
    return answer


def bad_answer(site: str, problem: str, remedy: str) -> SiteError:
    return SiteError(Notice("site-answer-unusable", "warning", site, details={"problem": plain_text(problem)}), remedy)


def unusable(site: str, why: str) -> SiteError:
    return SiteError(Notice("site-answer-unusable", "warning", site, details={"reason": plain_text(why)}), REMEDY)


def _names_are_plain(value: Any) -> bool:
    """Keys and texts, wherever they stand: columns, classes, levels and hospitals are shown to people."""
    if isinstance(value, str):
        return is_plain(value)
    if isinstance(value, Mapping):
        return all(is_plain(key) and _names_are_plain(inner) for key, inner in value.items() if key != "left")
    if isinstance(value, list):
        return all(map(_names_are_plain, value))
    return True


ANSWERS = {  # by kind of request
    "hello": "ready",
    "facts": "facts",
    "fill_values": "fill_values",
    "moments": "moments",
    "prepare": "prepared",
    "keys": "advert",
    "shares": "shared",
    "train": "update",
    "confirm": "confirmed",
    "unmask": "revealed",
    "evaluate": "summary",
    "goodbye": "goodbye",
    # between parties with different features of the same patients
    "match": "matched",
    "assign": "assigned",
    "shape": "shaped",
    "agree": "agreed",
    "embed": "embedded",
    "learn": "learned",
    "embed_last": "last_embedded",
    "assess": "assessed",
}
PLACE = ("run", "wave", "round")


def place_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Run, wave and round of a request; its answer repeats them."""
    return {name: body[name] for name in PLACE if name in body}


def belongs(answer: Message, request: Sealed) -> bool:
    content = orjson.loads(request.head)
    if answer.kind in REFUSALS and "run" not in answer.body:
        return True  # the site could not read the request
    known = answer.kind in REFUSALS or answer.kind == ANSWERS[content["kind"]]
    return known and place_of(answer.body) == place_of(content["body"])
