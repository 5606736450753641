"""What a coordinator that sees updates can say of each: its length, its direction against the others, how it changed
over rounds, and whose update it equals.

All follow from the inner products of sketches. The state between two rounds is a dict of arrays over all sites, so that
a run is saved and resumed with it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

WINDOW = 3  # rounds in which a site worked: one round says little, and later rounds must not wait for ever
NEVER = 0.0

State = dict[str, np.ndarray]


@dataclass(frozen=True)
class Seen:
    """One site's update."""

    sketch: np.ndarray
    length: float


@dataclass(frozen=True)
class RoundStatistics:
    """Of one round, in the order of `sites`, which are numbers of sites. NaN where it cannot be said."""

    sites: tuple[int, ...]
    length: np.ndarray
    ratio: np.ndarray  # log of the length over the median length
    agreement: np.ndarray  # mean cosine with each of the others' updates
    echo: np.ndarray  # sine of the angle to the round's broadcast change: 0 for what was sent, given back
    apart: np.ndarray  # sine of the angle to each of the others: (sites, sites)


def first_state(sites: int, size: int) -> State:
    """`size` is that of a sketch."""
    none = np.full((sites, WINDOW), np.nan)
    return {
        "sketches": np.full((sites, 2 * WINDOW, size), np.nan),  # the last ones, in the order of rounds
        "worked": np.zeros(sites),  # rounds
        "agreement": none.copy(),  # in the first rounds in which it worked: before models settle
        "ratio": none.copy(),  # in the last
        "echo": none.copy(),
        "apart": np.full((sites, sites, WINDOW), np.nan),
        "change": np.zeros(size),  # of the shared model, in the last round
        "named": np.full(sites, NEVER),  # the round in which it was, from 1
    }


def describe(seen: Mapping[int, Seen], change: np.ndarray) -> RoundStatistics:
    """`change` is the sketch of what the round before did to the shared model; zeros before there was one."""
    sites = tuple(sorted(seen))
    lengths = np.array([seen[site].length for site in sites])
    directions = np.array([_direction(seen[site].sketch) for site in sites])
    cosines = np.clip(directions @ directions.T, -1, 1)
    np.fill_diagonal(cosines, np.nan)
    return RoundStatistics(
        sites,
        lengths,
        _log_ratio(lengths),
        _mean_of_others(cosines),
        _sine(directions @ _direction(change)),
        _sine(cosines),
    )


def remember(state: State, statistics: RoundStatistics, seen: Mapping[int, Seen]) -> State:
    """The state after a round: what it showed of the sites that worked in it. The rest stays."""
    after = {name: values.copy() for name, values in state.items()}
    places = np.array(statistics.sites)
    for place, site in enumerate(statistics.sites):
        worked = int(after["worked"][site])
        if worked < WINDOW:
            after["agreement"][site, worked] = statistics.agreement[place]
        for name in ("ratio", "echo"):
            after[name][site] = _pushed(after[name][site], getattr(statistics, name)[place])
        after["sketches"][site] = np.concatenate([after["sketches"][site, 1:], seen[site].sketch[None]])
        after["apart"][site, places] = _pushed(after["apart"][site, places], statistics.apart[place])
        after["worked"][site] += 1
    return after


def turning(state: State) -> np.ndarray:
    """Cosine of each site's updates over its last rounds with those over as many before. NaN before there are such."""
    late, early = state["sketches"][:, WINDOW:].sum(1), state["sketches"][:, :WINDOW].sum(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        lengths = np.linalg.norm(late, axis=-1) * np.linalg.norm(early, axis=-1)
        return np.asarray((late * early).sum(-1) / lengths)


def _log_ratio(lengths: np.ndarray) -> np.ndarray:
    """To the median; NaN where either is no number above 0, but that an update of length 0 is as short as can be."""
    finite = np.isfinite(lengths)
    middle = np.median(lengths[finite]) if finite.any() else 0.0
    if not middle:
        return np.full(len(lengths), np.nan)
    with np.errstate(divide="ignore"):
        return np.where(finite, np.log(np.where(finite, lengths, 1.0) / middle), np.nan)


def _direction(sketch: np.ndarray) -> np.ndarray:
    """Of length one; NaN of an update without a direction."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(sketch / np.linalg.norm(sketch))


def _sine(cosines: np.ndarray) -> np.ndarray:
    return np.asarray(np.sqrt(np.clip(1 - np.square(cosines), 0, 1)))


def _mean_of_others(cosines: np.ndarray) -> np.ndarray:
    """Over the others that have a direction."""
    known = np.isfinite(cosines)
    count = known.sum(1)
    return np.where(count > 0, np.where(known, cosines, 0).sum(1) / np.maximum(count, 1), np.nan)


def _pushed(values: np.ndarray, new: np.ndarray | float) -> np.ndarray:
    """The last ones, with a new one behind them."""
    return np.concatenate([values[..., 1:], np.asarray(new)[..., None]], axis=-1)
