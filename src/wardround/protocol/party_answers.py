"""What a party may answer that has other features of the same patients than the others."""

from typing import Annotated

from wardround.core.extras import needs
from wardround.protocol.figures import SiteSummary
from wardround.protocol.site_answers import Answer, Classes, Described, Sizes, Summary, Versions
from wardround.protocol.values import MOST_TRIALS, Count, Hex, Key, Name, Part, Place, Positive, Shape

with needs("deploy", "a study across hospitals"):
    from msgspec import Meta


class Voucher(Part):
    """The party's key of the run, signed with the key of its kit."""

    key: Hex
    signature: Hex


class PartyReady(Answer):
    columns: None
    inputs: None
    classes: Classes
    findings: bool
    versions: Versions
    visits: bool
    voucher: Voucher


class Matched(Answer):
    common: Count | None


class Dealt(Answer):
    sides: Annotated[list[Sizes], Meta(max_length=MOST_TRIALS)]
    unmatched: Count | None
    described: Described


class Shaped(Answer):
    shapes: Annotated[list[Shape], Meta(max_length=MOST_TRIALS)]


class Agreed(Answer):
    waves: Place


class Embedded(Answer):
    """Sealed for the party with the labels."""


class Learned(Answer):
    losses: Annotated[dict[Key, Positive], Meta(max_length=MOST_TRIALS)]


class Shown(Answer):
    """Sealed for the party with the labels."""


class PartySummary(Summary):
    without: Annotated[dict[Key, dict[Name, SiteSummary]], Meta(max_length=MOST_TRIALS)]
