"""What is done with updates before an aggregation rule: the keys of [aggregation] that every rule has."""

from dataclasses import dataclass
from typing import Annotated, Literal

from wardround.core.settings import Fraction, Range


@dataclass(frozen=True)
class Preaggregation:
    """The keys of [aggregation] that every rule has: what is done with updates before it (`aggregation.mixing`)."""

    before: Literal["none", "bucketing", "nearest-neighbours"] = "none"
    bucket_size: Annotated[int, Range(low=2)] = 2  # bucketing: updates in each
    momentum: Fraction = 0.0  # of each site's updates, at the coordinator
    # with secure sums: groups of sites that each have a sum of their own; the rule is between the groups' means
    groups: Annotated[int, Range(low=2)] | None = None
