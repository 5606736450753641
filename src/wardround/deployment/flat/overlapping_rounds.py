"""Rounds that do not wait for all work: asynchronous ones, which close when a buffer of sites has answered, and ones
with a deadline where late work counts in the next round.

A site that works on an earlier round's model goes on and is not asked anew; its update counts in the round in which it
arrives, once. Who is in a round, and the model with which each began, is known when it closes: that is its `Roster`,
and from there on the round is closed as any other. What is open stands in the state of the wave (`working`, and the
models in `Run.earlier`), so that a coordinator that was restarted asks the same again, which a site answers with the
same bytes. Answers that arrived are in the spool: the round that was open closes with them.
"""

import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from wardround.deployment.common.messaging import Answered, Step
from wardround.deployment.common.site_store import NONE_YET
from wardround.deployment.common.spool import Entry, Spool
from wardround.deployment.common.waves import WaveState, seal_with_models
from wardround.deployment.flat.flat_rounds import Arrivals, ClosedRound, FlatRounds, Task, log_round
from wardround.protocol.catalogue import Train, Update
from wardround.protocol.messages import Sealed
from wardround.study.timing import Late
from wardround.training.schedule import Roster, Schedule, tolerance
from wardround.training.trial import Run, Trial, assign

NOTHING = Roster((), {}, frozenset())
LATE = "late"  # a folder in that of the round's answers: work that was too stale to count


def lateness(trials: Sequence[Trial]) -> Late | None:
    """Of a wave whose rounds overlap; None where every round waits for its own work, or drops it."""
    return tolerance(trials[0].training) if trials[0].algorithm.federated else None


def tasks_from(trials: Sequence[Trial], began: int) -> dict[str, Task]:
    """By site, the work that begins with a round's model: it depends on the study alone."""
    by_site: dict[str, Task] = {}
    for number, trial in enumerate(trials):
        for assignment in assign(trial, began):
            by_site.setdefault(assignment.site.name, Task()).work[number] = assignment.epochs
    return by_site


@dataclass(frozen=True)
class Open:
    """What is under way in a round."""

    began: Mapping[str, int]  # by site: the round with whose model its work began
    entries: Mapping[str, Entry[Update]]  # that arrived in time to count, in the order of the sites
    late: Mapping[str, Entry[Update]]  # that were too stale


@dataclass
class OverlappingRounds:
    """Of one wave."""

    rounds: FlatRounds
    late: Late
    sent: dict[str, tuple[int, Sealed]] = field(default_factory=dict)  # open requests as they went out

    def round(self, state: WaveState) -> Generator[Step, None, ClosedRound]:
        """One round of all trials: one update of each shared model."""
        messenger, clock = self.rounds.messenger, time.monotonic()
        spool, late = self.spools(state.round)
        while True:  # once more whenever a site has been told that its work was too stale, and begins anew
            now = self._open(state, spool, late)
            yield from self._collect(state, now, spool, late, clock)
            if not self._dropped_since(now, late):
                break
        now = self._open(state, spool, late)
        trials = [replace(trial, recorded=self._order(number, trial, state.round, now)) for number, trial in self._all]
        closed, records = self.rounds.close(state, trials, Arrivals(now.entries), time.monotonic() - clock)
        began = {site: now.began[site] for site in now.entries}
        log_round(messenger, self.rounds.number, state.round, now.entries, list(now.late), began=began)
        self.sent = {site: open_request for site, open_request in self.sent.items() if site not in now.entries}
        working = {site: round_number for site, round_number in now.began.items() if site not in now.entries}
        if all(trial.training.rounds <= closed.round for trial in trials):
            working = {}
        runs = [_keeping(after, run, t, working) for after, run, t in zip(closed.runs, state.runs, trials, strict=True)]
        counted = {**state.counted, **began}
        return ClosedRound(
            replace(closed, runs=tuple(runs), counted=counted, working=working), records, Arrivals(now.entries)
        )

    def spools(self, round_number: int) -> tuple[Spool, Spool]:
        spool, late = self.rounds.spool(round_number), self.rounds.spool(round_number)
        late.folder = spool.folder / LATE
        return spool, late

    @property
    def _all(self) -> Sequence[tuple[int, Trial]]:
        return list(enumerate(self.rounds.trials))

    def _open(self, state: WaveState, spool: Spool, late: Spool) -> Open:
        """From what is on disk: the state before the round, and the answers that arrived in it."""
        present, here = self.rounds.messenger.present, tasks_from(self.rounds.trials, state.round)
        dropped = late.entries(present, Update)
        began = {}
        for site in present:
            if site in state.working and site not in dropped:
                began[site] = state.working[site]
            elif site in here:
                began[site] = state.round
        entries = spool.entries([site for site in present if site in began], Update)
        return Open(began, entries, dropped)

    def _dropped_since(self, before: Open, late: Spool) -> bool:
        return len(late.entries(self.rounds.messenger.present, Update)) > len(before.late)

    def _collect(self, state: WaveState, now: Open, spool: Spool, late: Spool, clock: float) -> Generator[Step]:
        """Until the round closes, or a site has sent what is too stale."""
        messenger, asynchronous = self.rounds.messenger, self.rounds.trials[0].training.asynchronous
        came: set[str] = set()
        too_stale: list[str] = []

        def take(site: str, answered: Answered[Update]) -> None:
            began = now.began[site]
            stale = state.round - began > self.late.most_stale
            task = tasks_from(self.rounds.trials, began)[site]
            self.rounds.take(state, late if stale else spool, site, answered, task)
            if stale:
                too_stale.append(site)
                self.sent.pop(site, None)
                line = f"{site}: its update began {state.round - began} rounds ago and is dropped; it begins anew"
                messenger.lines.append(line)
            came.add(site)

        def enough() -> bool:
            arrived = [site for site in messenger.present if site in came]
            return bool(too_stale) or (asynchronous is not None and len(arrived) >= asynchronous.buffer)

        messages = self._requests(state, now)
        what, closing = f"round {state.round + 1}", asynchronous is None
        yield from messenger.collect(
            messages, Update, take, what, closing, stored=spool.sealed, enough=enough, began=clock
        )

    def _requests(self, state: WaveState, now: Open) -> dict[str, Sealed]:
        """One to each site; what is open already is the very message that went out, if it was this process."""
        messenger = self.rounds.messenger
        fresh: dict[int, dict[str, tuple[Train, Sequence[int]]]] = {}
        for site, began in now.began.items():
            if self.sent.get(site, (NONE_YET,))[0] == began:
                continue
            task = tasks_from(self.rounds.trials, began)[site]
            request = Train(
                run=messenger.run_name,
                wave=self.rounds.number,
                round=began,
                score=[],
                counted=state.counted.get(site, NONE_YET),
                work=task.work,
                seconds=None,
            )
            fresh.setdefault(began, {})[site] = request, task.trials
        for began, requests in fresh.items():
            earlier = began if began < state.round else None
            sealed = seal_with_models(messenger, self.rounds.trials, state, requests, began=earlier)
            self.sent |= {site: (began, message) for site, message in sealed.items()}
        return {site: self.sent[site][1] for site in now.began}

    def _order(self, number: int, trial: Trial, round_number: int, now: Open) -> Schedule:
        """The order as it is known now: of this round."""
        places = {site.name: place for place, site in enumerate(trial.sites)}
        begun = {
            places[site]: began
            for site, began in now.began.items()
            if number in tasks_from(self.rounds.trials, began)[site].work
        }
        numbers = sorted(n for site, n in places.items() if site in now.entries and n in begun)
        late = {places[s]: e.body.round for s, e in now.late.items() if s in places and e.body.round is not None}
        drawn = Roster(
            numbers=tuple(numbers),
            epochs=dict.fromkeys(numbers, trial.training.local_epochs),
            dropped=frozenset(),
            started={n: begun[n] for n in numbers if begun[n] < round_number},
            late=late,
            sent=tuple(sorted(n for n, began in begun.items() if began == round_number)),
        )
        return Schedule((*(NOTHING,) * round_number, drawn))


def _keeping(after: Run, before: Run, trial: Trial, working: Mapping[str, int]) -> Run:
    """With the models of earlier rounds that sites still work with."""
    needed = sorted(set(working.values()))
    return replace(after, earlier={began: before.shared(trial.algorithm, 0, began) for began in needed})
