"""Who works in a round, with which model each began, and when the round closes: one value for every kind of round.

Rounds count updates of the shared model. A `Roster` says of one round which sites' work is aggregated, and from which
earlier round's model each piece of work began (`started`). Where no time passes it is drawn round by round (`roster`).
On a virtual clock `schedule` plays all rounds in advance. Both are pure functions of settings, seed and sites:

* synchronous: a round closes when all its sites have answered; partial: also when the deadline is over and a quorum
  has answered. Late work is dropped when it arrives, and its site begins anew; with `training.late` it is used in the
  round in which it arrives.
* asynchronous: a round closes when `buffer` sites' work has arrived. A site that has answered waits for the next
  model, so that it is in a buffer at most once and never begins twice with one model: (site, `started`) names a piece
  of work, and decides its batches, its learning rate and its noise.

An order that was recorded is replayed by `replace(trial, recorded=recorded_rosters(...))`: a record has the sites that
counted and the staleness of each.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np

from wardround.core import seeds
from wardround.study.schema import Training
from wardround.study.timing import Late
from wardround.training.clock import Clock, Presence


@dataclass(frozen=True)
class Roster:
    """Which sites' work arrives in a round, by number, and how much of it."""

    numbers: tuple[int, ...]
    epochs: Mapping[int, int]
    dropped: frozenset[int]  # of `numbers`: stragglers whose work does not count
    started: Mapping[int, int] = field(default_factory=dict)  # the round with whose model work began; if not this one
    late: Mapping[int, int] = field(default_factory=dict)  # arrived too late, and not used: `started` of each
    sent: tuple[int, ...] | None = None  # sites that were sent this round's model; None: those of `numbers`
    spent: tuple[int, ...] = ()  # sites that would have exceeded their epsilon
    summing: tuple[int, ...] | None = None  # whose keys are in a secure sum of the round; None: those of `numbers`
    time: float | None = None  # at which the round closes, on the virtual clock


def roster(training: Training, sites: int, seed: int, round_number: int, by_chance: bool = False) -> Roster:
    """Depends on (seed, round) only, so that all arms see the same draw.

    `by_chance`: each site is drawn independently, as site-level privacy assumes, so that their number varies.
    """
    count = max(1, round(training.share * sites))
    chosen = list(range(sites))
    if by_chance and training.share < 1:
        drawn = seeds.generator(seed, "participation by chance", round_number).random(sites) < training.share
        chosen = np.flatnonzero(drawn).tolist()
        count = len(chosen)
    elif count < sites:
        chosen = _draw(seed, round_number, chosen, count)
    epochs = dict.fromkeys(chosen, training.local_epochs)
    slow: list[int] = []
    if training.stragglers is not None:
        rng = seeds.generator(seed, "stragglers", round_number)
        slow = rng.choice(chosen, size=round(training.stragglers.share * count), replace=False).tolist()
        # x epochs, uniform between 1 and E, as in the FedProx paper
        epochs |= {number: int(rng.integers(1, training.local_epochs + 1)) for number in slow}
    drop = training.stragglers is not None and training.stragglers.policy == "drop"
    return Roster(tuple(chosen), epochs, frozenset(slow) if drop else frozenset())


def _draw(seed: int, round_number: int, candidates: Sequence[int], count: int) -> list[int]:
    places = seeds.generator(seed, "participation", round_number).choice(len(candidates), size=count, replace=False)
    return sorted(candidates[place] for place in places.tolist())


@lru_cache(maxsize=64)
def planned_epochs(training: Training, sites: int, seed: int, by_chance: bool) -> tuple[tuple[int, ...], ...]:
    """By site, then by round: 0 if a site does not work or its work does not count.

    Where work may be late nobody knows in advance who begins with which model: a site may do so in every round.
    """
    if (training.share == 1 and training.stragglers is None) or tolerance(training) is not None:
        return ((training.local_epochs,) * training.rounds,) * sites
    rosters = [roster(training, sites, seed, number, by_chance) for number in range(training.rounds)]
    return tuple(tuple(0 if n in r.dropped else r.epochs.get(n, 0) for r in rosters) for n in range(sites))


def tolerance(training: Training) -> Late | None:
    """How stale work may be and what it is worth; None: it counts in its own round or not at all."""
    return training.asynchronous or training.late


def factor_of(training: Training, staleness: int) -> float:
    """What an update counts for, beside the weight of its site, when the shared model was updated `staleness` times
    since its work began."""
    late = tolerance(training)
    if late is None:
        return 1.0
    mixing = training.asynchronous.mixing if training.mixes_models and training.asynchronous is not None else 1.0
    if late.staleness == "polynomial":
        return mixing * float((1 + staleness) ** -late.exponent)
    if late.staleness == "hinge" and staleness > late.free:
        return mixing / (late.slope * (staleness - late.free) + 1)
    return mixing


@dataclass(frozen=True)
class Schedule:
    """All rounds of a trial."""

    rosters: tuple[Roster, ...]

    @cached_property
    def _last_use(self) -> dict[int, int]:
        """By round: the last later round in which work counts that began with its model."""
        uses: dict[int, int] = {}
        for number, drawn in enumerate(self.rosters):
            uses |= {started: number for started in drawn.started.values() if started < number}
        return uses

    def needed(self, round_number: int) -> list[int]:
        """The earlier rounds with whose models work began that is yet to count, when this round begins."""
        return sorted(earlier for earlier, last in self._last_use.items() if earlier < round_number <= last)


def recorded_rosters(
    training: Training, names: Sequence[str], rounds: Iterable[tuple[Mapping[str, int], Mapping[str, int]]]
) -> Schedule:
    """The order of a run that was recorded. Of each round: the epochs and the staleness of the sites that counted."""
    number_of = {name: number for number, name in enumerate(names)}
    rosters = []
    for round_number, (epochs, staleness) in enumerate(rounds):
        done = {number_of[name]: count for name, count in epochs.items()}
        started = {number_of[name]: round_number - late for name, late in staleness.items() if late}
        rosters.append(Roster(tuple(sorted(done)), done, frozenset(), started))
    return Schedule(tuple(rosters))


@lru_cache(maxsize=16)
def schedule(clock: Clock) -> Schedule:
    """All rounds on a virtual clock."""
    network = _Network(clock)
    return Schedule(tuple(network.play(number) for number in range(clock.training.rounds)))


class _Network:
    """The sites at one moment of virtual time. Each waits, is away before it begins, or works on one thing."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.training = clock, clock.training
        self.sites = len(clock.names)
        self.presence = [Presence(clock, number) for number in range(self.sites)]
        self.events: list[tuple[float, int]] = []  # when a site comes back, or its work arrives
        self.idle = set(range(self.sites))
        self.working: dict[int, int] = {}  # with which round's model
        self.works = [0] * self.sites
        self.time = 0.0
        self.epochs: dict[int, int] = {}  # of the last round
        # of the open round
        self.round = 0
        self.asked: set[int] = set()
        self.counted: dict[int, int] = {}
        self.late: dict[int, int] = {}
        self.sent: list[int] = []

    def play(self, round_number: int) -> Roster:
        self.round, self.counted, self.late, self.sent, began = round_number, {}, {}, [], self.time
        spent = tuple(n for n in range(self.sites) if self._has_spent(n) and n not in self.working)
        self.asked = self._asked()
        for number in sorted(self.asked & self.idle):
            self._begin(number)
        while not self._is_complete():
            over = self._over(began)
            if not self.events or (over is not None and self.events[0][0] > over):
                self.time = self.time if over is None else max(self.time, over)
                break
            self._next()
        return self._closed(spent)

    def _closed(self, spent: tuple[int, ...]) -> Roster:
        numbers, sent, asked = (tuple(sorted(some)) for some in (self.counted, self.sent, self.asked))
        if numbers != tuple(self.epochs):  # mostly they stay the same, and a thousand sites in each round add up
            self.epochs = dict.fromkeys(numbers, self.training.local_epochs)
        return Roster(
            numbers=tuple(self.epochs),
            epochs=self.epochs,
            dropped=frozenset(),
            started={number: started for number, started in self.counted.items() if started < self.round},
            late=self.late,
            sent=None if sent == numbers else sent,
            spent=spent,
            summing=None if asked == numbers or tolerance(self.training) is not None else asked,
            time=self.time,
        )

    def _asked(self) -> set[int]:
        """Sites that this round's model is for."""
        able = [number for number in range(self.sites) if not self._has_spent(number) or number in self.working]
        if self.training.asynchronous is None:
            drawn = roster(self.training, self.sites, self.clock.seed, self.round).numbers
            return set(drawn) & set(able)
        # those that may work at a time, beside the ones that still do
        free = max(1, round(self.training.share * self.sites)) - (self.sites - len(self.idle))
        waiting = [number for number in able if number in self.idle]
        return set(waiting if free >= len(waiting) else _draw(self.clock.seed, self.round, waiting, max(free, 0)))

    def _has_spent(self, number: int) -> bool:
        return self.works[number] >= self.clock.most_works[number]

    def _begin(self, number: int) -> None:
        """With the open round's model, now or when the site is back."""
        self.idle.discard(number)
        back = self.presence[number].back(self.time)
        if back > self.time:
            heapq.heappush(self.events, (back, number))
            return
        self.working[number] = self.round
        self.works[number] += 1
        self.sent.append(number)
        heapq.heappush(self.events, (self.presence[number].end(self.time, self.clock.seconds(number)), number))

    def _next(self) -> None:
        self.time, number = heapq.heappop(self.events)
        if number not in self.working:  # it is back
            self._begin_if_asked(number)
            return
        started, late = self.working.pop(number), tolerance(self.training)
        if self.round - started <= (0 if late is None else late.most_stale):
            self.counted[number] = started
            self.idle.add(number)
        else:
            self.late[number] = started
            self._begin_if_asked(number)

    def _begin_if_asked(self, number: int) -> None:
        wanted = self.training.asynchronous is not None or number in self.asked
        if wanted and not self._has_spent(number):
            self._begin(number)
        else:
            self.idle.add(number)

    def _is_complete(self) -> bool:
        if self.training.asynchronous is not None:
            return len(self.counted) >= self.training.asynchronous.buffer
        return self.asked <= self.counted.keys()

    def _over(self, began: float) -> float | None:
        """When the round closes without those who have not answered."""
        deadline = None if self.training.asynchronous else self.clock.deadline
        enough = len(self.counted) >= min(self.clock.quorum, len(self.asked))
        return began + deadline if deadline is not None and enough else None
