"""What people decided about sites that were named, where the study holds the run for them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Decision:
    """It holds for the whole run: every arm and seed in which the site is named."""

    site: str
    decision: Literal["keep", "drop"]
    name: str  # of the person who decided
    time: str


Decisions = Mapping[str, Decision]  # by site
NONE_DECIDED: Decisions = {}
