"""Every question that a coordinator may ask, as a type. A site refuses what it does not know or what is too large,
before it looks at a value. What the approved study allows is checked by the site's own work."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from wardround.core.errors import DeployError
from wardround.core.extras import needs
from wardround.protocol.party_answers import Voucher
from wardround.protocol.site_answers import AdvertPart, Column
from wardround.protocol.text import plain_text
from wardround.protocol.values import (
    MOST_COLUMNS,
    MOST_LEVELS,
    MOST_SITES,
    MOST_TRIALS,
    Hash,
    Hex,
    Key,
    Name,
    Part,
    Place,
    Positive,
    Shape,
    Values,
    Words,
)

with needs("deploy", "a study across hospitals"):
    import msgspec
    from msgspec import UNSET, Meta, Struct, UnsetType

Sites = Annotated[list[Name], Meta(max_length=MOST_SITES)]
Columns = Annotated[list[Column], Meta(max_length=MOST_COLUMNS)]
Levels = Annotated[list[Name], Meta(max_length=MOST_LEVELS)]


class Question(Struct, forbid_unknown_fields=True, kw_only=True):
    """`to` whom, in which run, and the head of the coordinator's audit log."""

    to: Name
    head: Hex
    run: Name


class Hello(Question):
    study: Hash
    sites: Sites


class Facts(Question):
    columns: Columns | None
    classes: Levels | UnsetType = UNSET  # to a region, which needs them for its own plan
    findings: bool | UnsetType = UNSET


class Layout(Part):
    numeric: Columns
    levels: Annotated[list[tuple[Name, Levels]], Meta(max_length=MOST_COLUMNS)]
    indicators: Annotated[list[Name], Meta(max_length=MOST_COLUMNS)]


class Lacking(Part):
    """Columns that some site never recorded."""

    numbers: Annotated[list[Place], Meta(max_length=MOST_COLUMNS)]
    categories: Annotated[list[Name], Meta(max_length=MOST_COLUMNS)]


class Common(Part):
    """What sites have from each other."""

    fill: Values
    level: Annotated[dict[Name, Name], Meta(max_length=MOST_COLUMNS)]
    scale: tuple[Values, Values] | None


Layouts = Annotated[list[Layout], Meta(max_length=MOST_TRIALS)]
Of = Annotated[list[Place | None], Meta(max_length=MOST_TRIALS)]  # by kind of arm: the place of its layout
Commons = Annotated[list[Common | None], Meta(max_length=MOST_TRIALS)]


class Lend(Question):
    layouts: Layouts
    of: Of
    asked: Annotated[list[Lacking], Meta(max_length=MOST_TRIALS)]


class Moments(Question):
    layouts: Layouts
    of: Of
    commons: Commons


class Prepared(Part):
    """What all agreed on, as a site is told it that was away."""

    run: Name
    columns: Columns | None
    layouts: Layouts
    of: Of
    inputs: Shape | None
    commons: Commons


class Prepare(Question):
    columns: Columns | None
    layouts: Layouts
    of: Of
    inputs: Shape | None
    commons: Commons


class SumTerms(Part):
    """A secure sum as far as it has come."""

    roster: Sites
    threshold: Place
    models: Annotated[dict[Key, Hash], Meta(max_length=MOST_TRIALS)]
    adverts: Annotated[list[AdvertPart], Meta(max_length=MOST_SITES)] | UnsetType = UNSET
    sealed: Annotated[dict[Name, Hex], Meta(max_length=MOST_SITES)] | UnsetType = UNSET
    survivors: Sites | UnsetType = UNSET
    confirmations: Annotated[dict[Name, Hex], Meta(max_length=MOST_SITES)] | UnsetType = UNSET


class InASum(Question):
    wave: Place
    round: Place
    sum: SumTerms
    prepare: Prepared | UnsetType = UNSET


Score = Annotated[list[Place], Meta(max_length=MOST_TRIALS)]
Counted = Annotated[int, Meta(ge=-1, le=MOST_TRIALS)]  # the last round in which the site's work counted


class Train(Question):
    wave: Place
    round: Place
    counted: Counted
    work: Annotated[dict[Key, Annotated[int, Meta(ge=1, le=1_000_000)]], Meta(max_length=MOST_TRIALS)]
    score: Score
    seconds: Positive | None
    sum: SumTerms | UnsetType = UNSET
    prepare: Prepared | UnsetType = UNSET


class TrainRegion(Question):
    wave: Place
    round: Place
    score: Score
    prepare: Prepared | UnsetType = UNSET


class Evaluate(Question):
    wave: Place
    counted: Counted
    score: Score
    prepare: Prepared | UnsetType = UNSET


class Goodbye(Question):
    results: Hex
    why: Words | UnsetType = UNSET


# -- to parties with different features of the same patients


class Match(Question):
    wave: Place
    round: Place
    stage: Literal["patients", "visits"]
    vouchers: Annotated[dict[Name, Voucher], Meta(max_length=MOST_SITES)]
    rosters: dict[Literal["patients", "visits"], Sites]


class Outputs(Part):
    count: Annotated[int, Meta(ge=1, le=MOST_COLUMNS)]
    findings: bool


class Agree(Question):
    shapes: Annotated[dict[Name, Annotated[list[Shape], Meta(max_length=MOST_TRIALS)]], Meta(max_length=MOST_SITES)]
    outputs: Outputs


class Block(Question):
    wave: Place
    round: Place


Kinds = Mapping[str, type[Question]]
TO_SITES: Kinds = {
    "hello": Hello,
    "facts": Facts,
    "lend": Lend,
    "moments": Moments,
    "prepare": Prepare,
    "keys": InASum,
    "shares": InASum,
    "train": Train,
    "confirm": InASum,
    "unmask": InASum,
    "evaluate": Evaluate,
    "goodbye": Goodbye,
    "match": Match,
    "deal": Question,
    "shape": Question,
    "agree": Agree,
    "embed": Block,
    "learn": Block,
    "show": Block,
    "assess": Block,
}
TO_REGIONS: Kinds = {**TO_SITES, "train": TrainRegion}


def read_question(kind: str, body: Mapping[str, Any], kinds: Kinds) -> None:
    """DeployError where it is no question that this version knows."""
    expected = kinds.get(kind)
    problem = "it is of a kind that nobody knows"
    if expected is not None:
        try:
            msgspec.convert(body, expected)
            return
        except msgspec.ValidationError as error:
            problem = plain_text(str(error))
    raise DeployError("coordinator", f"asks what cannot be read: {problem}", "Install the same version everywhere.")
