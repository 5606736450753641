"""Every request that a coordinator may send, as a type. A site refuses what it does not know or what is too large,
before it looks at a value. What the approved study allows is checked by the site's own work."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_type_hints

from wardround.core.errors import DeployError, StudyError
from wardround.core.extras import needs
from wardround.protocol.answers import AdvertPart, Columns, Voucher
from wardround.protocol.text import plain_text
from wardround.protocol.values import (
    MOST_COLUMNS,
    MOST_LEVELS,
    MOST_SITES,
    MOST_TRIALS,
    Epochs,
    Fields,
    Hash,
    Hex,
    Key,
    Name,
    Part,
    Place,
    Positive,
    Shape,
    Sites,
    Sums,
    TaskJson,
    Text,
    Values,
    messages,
)
from wardround.tasks import Task, read_task

with needs("deploy", "a study across hospitals"):
    import msgspec
    from msgspec import UNSET, Meta, Struct, UnsetType

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
Of = Annotated[list[Place | None], Meta(max_length=MOST_TRIALS)]  # by kind of arm: the place of its layout
Commons = Annotated[list[Common | None], Meta(max_length=MOST_TRIALS)]


class Agreement(Part):
    """What all agreed on; a site that was away receives it with its next request."""

    run: Name
    columns: Columns | None
    layouts: Layouts
    of: Of
    inputs: Shape | None
    commons: Commons
    target_scales: Annotated[list[Sums], Meta(max_length=MOST_TRIALS)]  # by kind of arm: of what is predicted


class SumTerms(Part):
    """A secure sum as far as it has come."""

    roster: Sites
    threshold: Place
    models: Annotated[dict[Key, Hash], Meta(max_length=MOST_TRIALS)]
    adverts: Annotated[list[AdvertPart], Meta(max_length=MOST_SITES)] | UnsetType = UNSET
    sealed: Annotated[dict[Name, Hex], Meta(max_length=MOST_SITES)] | UnsetType = UNSET
    survivors: Sites | UnsetType = UNSET
    confirmations: Annotated[dict[Name, Hex], Meta(max_length=MOST_SITES)] | UnsetType = UNSET


Score = Annotated[list[Place], Meta(max_length=MOST_TRIALS)]
Counted = Annotated[int, Meta(ge=-1, le=MOST_TRIALS)]  # the last round in which the site's work counted
Shapes = Annotated[list[Shape], Meta(max_length=MOST_TRIALS)]
Stage = Literal["patients", "visits"]
Kinds = Mapping[str, type[Struct]]
REQUEST: Fields = {"to": Name, "head": Hex, "run": Name}  # `head` of the coordinator's audit log
ROUND: Fields = {"wave": Place, "round": Place}
LATE: Fields = {"prepare": Agreement | UnsetType}  # to who was away when all agreed
SUM_STAGE: Fields = {**ROUND, "sum": SumTerms, **LATE}
TRAIN: Fields = {**ROUND, "score": Score, **LATE}
TO_SITES: Kinds = messages(
    REQUEST,
    {
        "hello": {"study": Hash, "sites": Sites},
        "facts": {
            "columns": Columns | None,
            "task": TaskJson | UnsetType,  # to a region, which needs it for its own plan
        },
        "fill_values": {
            "layouts": Layouts,
            "of": Of,
            "missing": Annotated[list[MissingColumns], Meta(max_length=MOST_TRIALS)],
        },
        "moments": {"layouts": Layouts, "of": Of, "commons": Commons},
        "prepare": get_type_hints(Agreement, include_extras=True),
        "keys": SUM_STAGE,
        "shares": SUM_STAGE,
        "train": {
            **TRAIN,
            "counted": Counted,
            "work": Annotated[dict[Key, Epochs], Meta(max_length=MOST_TRIALS)],
            "seconds": Positive | None,
            "sum": SumTerms | UnsetType,
        },
        "confirm": SUM_STAGE,
        "unmask": SUM_STAGE,
        "evaluate": {"wave": Place, "counted": Counted, "score": Score, **LATE},
        "goodbye": {"results": Hex, "why": Text | UnsetType},
        # to parties with different features of the same patients
        "match": {
            **ROUND,
            "stage": Stage,
            "vouchers": Annotated[dict[Name, Voucher], Meta(max_length=MOST_SITES)],
            "rosters": dict[Stage, Sites],
        },
        "assign": {},
        "shape": {},
        "agree": {"shapes": Annotated[dict[Name, Shapes], Meta(max_length=MOST_SITES)], "task": TaskJson},
        "embed": ROUND,
        "learn": ROUND,
        "embed_last": ROUND,
        "assess": ROUND,
    },
)
TO_REGIONS: Kinds = {**TO_SITES, **messages(REQUEST, {"train": TRAIN})}


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


def read_request_task(content: Mapping[str, Any]) -> Task:
    """DeployError where it is no task that this version knows."""
    try:
        return read_task(content)
    except StudyError as error:
        problem = f"asks for a task that cannot be read: {error.where}: {error.problem}"
        raise DeployError("coordinator", plain_text(problem), "Install the same version everywhere.") from None
