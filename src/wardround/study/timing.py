"""Settings of time: how fast sites are and when they are away, and what becomes of work that is not waited for."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from wardround.core.settings import Count, Fraction, NonNegative, Positive, Range, Share, WholeNumber


@dataclass(frozen=True)
class Stragglers:
    """This share of a round's sites completes only part of its local epochs (Li et al. 2020, section 5.2)."""

    share: Annotated[float, Range(low=0, high=1)]
    policy: Literal["drop", "keep"]


@dataclass(frozen=True)
class Late:
    """Work that arrives after its round has closed is used in the round that is open then, weighed by its staleness:
    how often the shared model was updated since the work began."""

    staleness: Literal["polynomial", "hinge", "none"] = "polynomial"  # the function of FedAsync that weighs it
    exponent: NonNegative = 0.5  # polynomial: (1 + staleness) ^ -exponent
    slope: Positive = 10.0  # hinge: 1 / (1 + slope x (staleness - free))
    free: WholeNumber = 4  # hinge: up to which staleness work counts in full
    most_stale: Count = 20  # work that is staler is dropped


@dataclass(frozen=True)
class Asynchronous(Late):
    """The shared model is updated whenever the work of `buffer` sites has arrived (FedBuff). With a buffer of 1 it is
    mixed with each site's model (FedAsync)."""

    buffer: Count = 3
    mixing: Share = 0.6  # with a buffer of 1: the part of a site's model in the next one, if it is not stale


@dataclass(frozen=True)
class Slow:
    """Sites that are drawn, and are slower than they would be."""

    share: Share = 0.1
    times: Annotated[float, Range(low=1)] = 10.0


@dataclass(frozen=True)
class Speed:
    """Rows on which a site trains in a second of virtual time."""

    kind: Literal["equal", "lognormal"] = "equal"
    median: Positive = 1.0
    spread: NonNegative = 1.0  # lognormal: SD of the logarithm
    slow: Slow | None = None
    sites: dict[str, Positive] = field(default_factory=dict)  # by name, or by a pattern such as "a-*"


@dataclass(frozen=True)
class Away:
    """When sites do not work, in seconds of virtual time."""

    share: Fraction = 0.0  # of the time, by chance; each site by itself
    length: Positive = 100.0  # of such an absence, on average
    sites: dict[str, tuple[tuple[NonNegative, Positive], ...]] = field(default_factory=dict)  # [from, to], by name


@dataclass(frozen=True)
class Timing:
    """The keys of [sites] that every partition has. Across hospitals the clock on the wall decides instead."""

    speed: Speed | None = None  # None: no time passes; drawn where an arm is asynchronous
    away: Away | None = None
