"""The virtual clock of a simulation: how long a site's work takes, and when a site is away.

A site's work takes its training rows x epochs / speed seconds of virtual time; sending takes none. A site that is away
stops working and goes on when it is back. One that is away when it could begin begins when it is back, with the model
of that time.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TypeVar

import numpy as np

from wardround.core import seeds
from wardround.core.errors import StudyError, suggest
from wardround.core.notices.code import few
from wardround.study.schema import Training
from wardround.study.timing import Away, Speed, Timing

DRAWN = Speed(kind="lognormal")  # where a study says nothing of speeds and an arm is asynchronous
NAMED = 8  # sites in a message
Interval = tuple[float, float]
Value = TypeVar("Value")


@dataclass(frozen=True)
class Clock:
    """What decides when a site's work arrives and when a round closes. Whatever is drawn follows from `seed`."""

    training: Training
    names: tuple[str, ...]
    rows: tuple[int, ...]
    speeds: tuple[float, ...]  # rows in a second
    absences: tuple[tuple[Interval, ...], ...]  # that are given, by site
    away_share: float  # of the time that a site is away, by chance
    away_length: float  # of such an absence, on average
    quorum: int
    deadline: float | None
    seed: int
    most_works: tuple[int, ...]  # after which a site has spent its epsilon

    def seconds(self, number: int) -> float:
        return self.rows[number] * self.training.local_epochs / self.speeds[number]


def clock_of(
    training: Training,
    timing: Timing,
    names: Sequence[str],
    rows: Sequence[int],
    seed: int,
    quorum: int | None,
    deadline: float | None,
    where: str,
) -> Clock | None:
    """None where time does not matter: no speeds are given, and every round waits for all its sites."""
    if timing.speed is None and training.asynchronous is None:
        return None
    away = timing.away or Away()
    return Clock(
        training=training,
        names=tuple(names),
        rows=tuple(rows),
        speeds=speeds_of(timing.speed or DRAWN, names, seed, f"{where}: sites: speed"),
        absences=absences_of(away, names, f"{where}: sites: away"),
        away_share=away.share,
        away_length=away.length,
        quorum=min(quorum or len(names), len(names)),
        deadline=deadline,
        seed=seed,
        most_works=(training.rounds,) * len(names),
    )


def speeds_of(speed: Speed, names: Sequence[str], seed: int, where: str) -> tuple[float, ...]:
    """Each site's by itself, so that one site more changes no other's. Only who is slow is drawn from all of them."""
    drawn = dict.fromkeys(names, speed.median)
    if speed.kind == "lognormal":
        for name in names:
            normal = seeds.generator(seed, "speed", site=name).standard_normal()
            drawn[name] *= float(np.exp(speed.spread * normal))
    if speed.slow is not None:
        count = max(1, round(speed.slow.share * len(names)))
        slow = seeds.generator(seed, "slow sites").choice(len(names), size=count, replace=False)
        for number in slow.tolist():
            drawn[names[number]] /= speed.slow.times
    return tuple((drawn | by_name(speed.sites, names, f"{where}: sites")).values())


def absences_of(away: Away, names: Sequence[str], where: str) -> tuple[tuple[Interval, ...], ...]:
    given = by_name(away.sites, names, f"{where}: sites")
    for name, intervals in given.items():
        for begin, end in intervals:
            if end <= begin:
                problem = f"{name} would be back at {end:g} before it leaves at {begin:g}"
                raise StudyError(f"{where}: sites", problem, "Write [FROM, TO] in seconds of virtual time.")
    return tuple(tuple(sorted(given.get(name, ()))) for name in names)


def by_name(values: Mapping[str, Value], names: Sequence[str], where: str) -> dict[str, Value]:
    """What is given by name or by a pattern such as "a-*", for each site that it fits. A name goes before a pattern."""
    known: dict[str, Value] = {}
    for entry in sorted(values, key=lambda entry: entry in names):
        fitting = [entry] if entry in names else [name for name in names if fnmatchcase(name, entry)]
        if not fitting:
            remedy = suggest(entry, names, "Sites") if len(names) <= NAMED else f"Sites: {few(list(names), NAMED)}."
            raise StudyError(where, f"no site is called {entry!r}", remedy)
        known |= dict.fromkeys(fitting, values[entry])
    return known


class Presence:
    """When one site is there."""

    def __init__(self, clock: Clock, number: int) -> None:
        self.given, self.drawn = clock.absences[number], _drawn(clock, number) if clock.away_share else None
        self.next = next(self.drawn) if self.drawn else None

    def _absence_after(self, time: float) -> Interval | None:
        """The one that goes on at `time`, or the next one. Times never go back."""
        while self.drawn is not None and self.next is not None and self.next[1] <= time:
            self.next = next(self.drawn)
        coming = [interval for interval in self.given if interval[1] > time]
        return min([*coming, *([self.next] if self.next else [])], default=None)

    def back(self, time: float) -> float:
        """When the site is there, at `time` or after it."""
        while (absence := self._absence_after(time)) is not None and absence[0] <= time:
            time = absence[1]
        return time

    def end(self, begin: float, seconds: float) -> float:
        """When work is done that begins at `begin`, where the site is there."""
        time = begin
        while (absence := self._absence_after(time)) is not None and absence[0] < time + seconds:
            seconds -= max(0.0, absence[0] - time)
            time = absence[1]
        return time + seconds


def _drawn(clock: Clock, number: int) -> Iterator[Interval]:
    """Times of presence and absence in turn, both exponential."""
    rng = seeds.generator(clock.seed, "absences", site=clock.names[number])
    there = clock.away_length * (1 - clock.away_share) / clock.away_share
    time = 0.0
    while True:
        begin = time + rng.exponential(there)
        time = begin + rng.exponential(clock.away_length)
        yield begin, time
