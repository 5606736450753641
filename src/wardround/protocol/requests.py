"""Every request that a coordinator may send, as a type. A site refuses what it does not know or what is too large,
before it looks at a value. What the approved study allows is checked by the site's own work."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from wardround.core.errors import DeployError
from wardround.core.extras import needs
from wardround.protocol.answers import AdvertPart, Column, Voucher
from wardround.protocol.text import plain_text
from wardround.protocol.values import (
    MOST_COLUMNS,
    MOST_LEVELS,
    MOST_SITES,
    MOST_TRIALS,
    Epochs,
    Hash,
    Hex,
    Key,
    Name,
    Part,
    Place,
    Positive,
    Shape,
    Sites,
    Text,
    Values,
)

with needs("deploy", "a study across hospitals"):
    import msgspec
    from msgspec import UNSET, Meta, Struct, UnsetType

Columns = Annotated[list[Column], Meta(max_length=MOST_COLUMNS)]
Levels = Annotated[list[Name], Meta(max_length=MOST_LEVELS)]


class Request(Struct, forbid_unknown_fields=True, kw_only=True):
    """`to` whom, in which run, and the head of the coordinator's audit log."""

    to: Name
    head: Hex
    run: Name


class Hello(Request):
    study: Hash
    sites: Sites


class Facts(Request):
    columns: Columns | None
    classes: Levels | UnsetType = UNSET  # to a region, which needs them for its own plan
    findings: bool | UnsetType = UNSET


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
Of = Annotated[list[Place | None], Meta(max_length=MOST_TRIALS)]  # by kind of arm: the place of its layout
Commons = Annotated[list[Common | None], Meta(max_length=MOST_TRIALS)]


class FillValues(Request):
    layouts: Layouts
    of: Of
    missing: Annotated[list[MissingColumns], Meta(max_length=MOST_TRIALS)]


class Moments(Request):
    layouts: Layouts
    of: Of
    commons: Commons


class Agreement(Part):
    """What all agreed on; a site that was away receives it with its next request."""

    run: Name
    columns: Columns | None
    layouts: Layouts
    of: Of
    inputs: Shape | None
    commons: Commons


class Prepare(Agreement):
    to: Name
    head: Hex


class RoundRequest(Request):
    wave: Place
    round: Place


class SumTerms(Part):
    """A secure sum as far as it has come."""

    roster: Sites
    threshold: Place
    models: Annotated[dict[Key, Hash], Meta(max_length=MOST_TRIALS)]
    adverts: Annotated[list[AdvertPart], Meta(max_length=MOST_SITES)] | UnsetType = UNSET
    sealed: Annotated[dict[Name, Hex], Meta(max_length=MOST_SITES)] | UnsetType = UNSET
    survivors: Sites | UnsetType = UNSET
    confirmations: Annotated[dict[Name, Hex], Meta(max_length=MOST_SITES)] | UnsetType = UNSET


class SumStage(RoundRequest):
    sum: SumTerms
    prepare: Agreement | UnsetType = UNSET


Score = Annotated[list[Place], Meta(max_length=MOST_TRIALS)]
Counted = Annotated[int, Meta(ge=-1, le=MOST_TRIALS)]  # the last round in which the site's work counted


class TrainRegion(RoundRequest):
    score: Score
    prepare: Agreement | UnsetType = UNSET


class Train(TrainRegion, kw_only=True):
    counted: Counted
    work: Annotated[dict[Key, Epochs], Meta(max_length=MOST_TRIALS)]
    seconds: Positive | None
    sum: SumTerms | UnsetType = UNSET


class Evaluate(Request):
    wave: Place
    counted: Counted
    score: Score
    prepare: Agreement | UnsetType = UNSET


class Goodbye(Request):
    results: Hex
    why: Text | UnsetType = UNSET


# -- to parties with different features of the same patients


class Match(RoundRequest):
    stage: Literal["patients", "visits"]
    vouchers: Annotated[dict[Name, Voucher], Meta(max_length=MOST_SITES)]
    rosters: dict[Literal["patients", "visits"], Sites]


class Outputs(Part):
    count: Annotated[int, Meta(ge=1, le=MOST_COLUMNS)]
    findings: bool


class Agree(Request):
    shapes: Annotated[dict[Name, Annotated[list[Shape], Meta(max_length=MOST_TRIALS)]], Meta(max_length=MOST_SITES)]
    outputs: Outputs


Kinds = Mapping[str, type[Struct]]
TO_SITES: Kinds = {
    "hello": Hello,
    "facts": Facts,
    "fill_values": FillValues,
    "moments": Moments,
    "prepare": Prepare,
    "keys": SumStage,
    "shares": SumStage,
    "train": Train,
    "confirm": SumStage,
    "unmask": SumStage,
    "evaluate": Evaluate,
    "goodbye": Goodbye,
    "match": Match,
    "assign": Request,
    "shape": Request,
    "agree": Agree,
    "embed": RoundRequest,
    "learn": RoundRequest,
    "embed_last": RoundRequest,
    "assess": RoundRequest,
}
TO_REGIONS: Kinds = {**TO_SITES, "train": TrainRegion}


def read_request(kind: str, body: Mapping[str, Any], kinds: Kinds) -> None:
    """DeployError where it is no request that this version knows."""
    expected = kinds.get(kind)
    problem = "it is of a kind that nobody knows"
    if expected is not None:
        try:
            msgspec.convert(body, expected)
            return
        except msgspec.ValidationError as error:
            problem = plain_text(str(error))
    raise DeployError("coordinator", f"asks what cannot be read: {problem}", "Install the same version everywhere.")
