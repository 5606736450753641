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
    MOST_METRICS,
    MOST_ROWS,
    MOST_SITES,
    MOST_TRIALS,
    Bytes,
    Count,
    Counts,
    Epochs,
    ExactSum,
    Fields,
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
    messages,
)

with needs("deploy", "a study across hospitals"):
    import msgspec
    from msgspec import UNSET, Meta, Struct, UnsetType

REMEDY = "Install the same version of wardround everywhere."


# -- before the first round


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


# -- a secure sum


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


# -- figures of predictions: after a round, and of the final models


Metrics = Annotated[dict[Name, float | None], Meta(max_length=MOST_METRICS)]  # None where one is not defined


class Curve(Part):
    """Figures of the last model on a site's rows."""

    rows: Annotated[int, Meta(ge=1, le=MOST_ROWS)]
    figures: Metrics


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
    dict[Key, dict[Literal["test", "validation", "regional"], SiteSummary]], Meta(max_length=MOST_TRIALS)
]


# -- rounds


class TrialWork(Part):
    """`finite` is False where local work ended in numbers that are not: then no update of the trial is sent."""

    epochs: Epochs
    loss: float | None
    length: Positive | None
    compression_error: Positive | None  # None without compression
    moved: bool
    finite: bool


# -- of a region, for its hospitals together or for each of them


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


# -- of a party with other features of the same patients


class Voucher(Part):
    """The party's key of the run, signed with the key of its kit."""

    key: Hex
    signature: Hex


# -- all answers by their kind: the signature says who answers; the rest names the request, and the head of the sender's
# audit log

Kinds = Mapping[str, type[Struct]]
SENDER: Fields = {"site": Name, "head": Hex, "wave": Place | UnsetType, "round": Place | UnsetType}
ANSWER: Fields = {**SENDER, "run": Name}
GREETING: Fields = {"task": TaskPart, "versions": Versions}
AGREEING: Fields = {"left": Left, "gone": Sites | UnsetType}  # who left while all had to agree: then there is no more
SUMMARY: Fields = {"summaries": Summaries, "figures": Figures}
REFUSALS = messages(
    SENDER,  # `run` is missing where the request could not be read
    {
        "refused": {
            "reason": Text,
            "until": Annotated[str, Meta(max_length=64)] | None,
            "run": Name | UnsetType,
        },
        "failed": {"notice": Remark, "run": Name | UnsetType},
    },
)
OF_SITES: Kinds = REFUSALS | messages(
    ANSWER,
    {
        "ready": {**GREETING, "columns": Columns | None, "inputs": Shape | None},
        "facts": {
            "sets": Annotated[list[RowSet], Meta(max_length=MOST_TRIALS)],
            "described": Described,
            "directions": Directions,
        },
        "fill_values": {"fill_values": ListOfFillValues},
        "moments": {"moments": ListOfMoments},
        "prepared": {"waves": Place},
        "advert": {"advert": AdvertPart},
        "shared": {"shares": SealedShares},
        "confirmed": {"signature": Hex},
        "revealed": {"reveal": RevealPart},
        "update": {
            "trials": Annotated[dict[Key, TrialWork], Meta(max_length=MOST_TRIALS)],
            "figures": Figures,
        },
        "summary": SUMMARY,
        "goodbye": {},
    },
)
OF_REGIONS: Kinds = REFUSALS | messages(
    ANSWER,
    {
        "ready": {
            **GREETING,
            "columns": Annotated[list[RegionColumn], Meta(max_length=MOST_COLUMNS)] | None,
            "inputs": Shape | None,
            "sites": Sites,
            "left": Left,
        },
        "facts": {
            **AGREEING,
            "kinds": Annotated[list[KindFacts], Meta(max_length=MOST_TRIALS)] | UnsetType,
            "sets": dict[Name, Annotated[list[Sizes], Meta(max_length=MOST_TRIALS)]] | UnsetType,
            "described": dict[Name, Described] | UnsetType,
            "directions": dict[Name, Directions] | UnsetType,
        },
        "fill_values": {**AGREEING, "fill_values": ListOfFillValues | UnsetType},
        "moments": {**AGREEING, "moments": ListOfMoments | UnsetType},
        "prepared": {"waves": Place, "left": Left},
        "update": {
            "left": Left,
            "trials": Annotated[dict[Key, RegionTrial], Meta(max_length=MOST_TRIALS)],
            "rounds": Annotated[list[RegionRound], Meta(max_length=MOST_TRIALS)],
            "figures": RegionFigures,
        },
        "summary": {
            "left": Left,
            "summaries": Annotated[dict[Name, Summaries], Meta(max_length=MOST_SITES)],
            "figures": RegionFigures,
        },
        "goodbye": {},
    },
)
OF_PARTIES: Kinds = REFUSALS | messages(
    ANSWER,
    {
        "ready": {
            "task": TaskPart | None,  # None where a party has no labels
            "versions": Versions,
            "columns": None,
            "inputs": None,
            "visits": bool,
            "voucher": Voucher,
        },
        "matched": {"common": Count | None},
        "assigned": {
            "sizes": Annotated[list[Sizes], Meta(max_length=MOST_TRIALS)],
            "unmatched": Count | None,
            "described": Described,
        },
        "shaped": {"shapes": Annotated[list[Shape], Meta(max_length=MOST_TRIALS)]},
        "agreed": {"waves": Place},
        "embedded": {},  # sealed for the party with the labels
        "learned": {"losses": Annotated[dict[Key, float], Meta(max_length=MOST_TRIALS)]},
        "last_embedded": {},
        "assessed": {
            **SUMMARY,
            "without": Annotated[dict[Key, dict[Name, SiteSummary]], Meta(max_length=MOST_TRIALS)],
        },
        "goodbye": {},
    },
)


def read_answer(site: str, kind: str, body: Mapping[str, Any], kinds: Kinds) -> None:
    """SiteError, which names the site and the place, where it is no answer of this kind."""
    expected = kinds.get(kind)
    if expected is None:
        raise unusable(site, "it is of a kind that nobody asked for")
    try:
        msgspec.convert(body, expected)
    except msgspec.ValidationError as error:
        raise unusable(site, str(error)) from None
    if kind not in REFUSALS and not _names_are_plain(body):
        raise unusable(site, "a name in it has control characters")


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
