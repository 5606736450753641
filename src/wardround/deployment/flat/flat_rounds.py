"""A round of sites that train, as a coordinator without regions has it, and a region's coordinator with its hospitals:
models go out, updates come in, in the clear or under masks, and the round is closed.
"""

import time
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from wardround.core.errors import SecureSumError
from wardround.core.extras import needs
from wardround.deployment.common.answer_checks import check_figures, check_update
from wardround.deployment.common.deployed_plan import DeployedPlan
from wardround.deployment.common.messaging import Answered, Messenger, Step
from wardround.deployment.common.secure_sum_coordinator import Sum, begin_sum, share_keys, unmask
from wardround.deployment.common.secure_wave import (
    Place,
    block_size,
    expected_sites,
    groups_in,
    in_group,
    is_secure,
    masked_length,
    of_trials,
    refuse_implausible,
    sums_of,
)
from wardround.deployment.common.site_store import NONE_YET
from wardround.deployment.common.spool import MASKED, Entry, Shape, Spool
from wardround.deployment.common.update_checks import arrived_update, problem_in_sent, shapes_of
from wardround.deployment.common.waves import TrialRecord, WaveState, model_hashes, seal_with_models
from wardround.deployment.coordinating.closing import close_round
from wardround.deployment.flat.run_secret import RunSecret
from wardround.privacy.dp.noise import SecretStream, Stream, site_key
from wardround.privacy.secure_sum.groups import group_name
from wardround.protocol.catalogue import Train, TrialWork, Update
from wardround.runs.audit import NAMED
from wardround.screening import Evidence
from wardround.training.intake import Intake
from wardround.training.local import Memory, Outcome
from wardround.training.screen import assigned
from wardround.training.trial import Assignment, Run, Trial

with needs("deploy", "a study across hospitals"):
    from msgspec import structs

PARTIAL_SHARE = 0.8  # of the deadline: what a site that may stop early has for its local work


@dataclass(frozen=True)
class Task:
    work: dict[int, int] = field(default_factory=dict)  # epochs, by trial
    score: list[int] = field(default_factory=list)  # trials whose last model is scored there

    @property
    def trials(self) -> list[int]:
        return sorted({*self.work, *self.score})


def tasks(trials: Sequence[Trial], state: WaveState, interval: int, unscored: Sequence[int]) -> dict[str, Task]:
    """By site. Trials in `unscored` are not scored while they train."""
    tasks_by_site: dict[str, Task] = {}
    due = bool(state.round and interval and state.round % interval == 0)
    for number, trial in enumerate(trials):
        if trial.training.rounds <= state.round:
            continue
        for assignment in assigned(trial, state.runs[number]):
            if assignment.counts:
                tasks_by_site.setdefault(assignment.site.name, Task()).work[number] = assignment.epochs
        if due and number not in unscored:
            for site in trial.scored:
                tasks_by_site.setdefault(site.name, Task()).score.append(number)
    return tasks_by_site


Sums = Mapping[int, tuple[np.ndarray, float]]  # by trial, as `sums_of` has them


@dataclass(frozen=True)
class Arrivals:
    """The answers of a round, and in a secure wave the sums of the updates."""

    entries: Mapping[str, Entry[Update]]
    missing: Sequence[str] = ()  # sites that were asked
    secure: Sequence["SecureRound"] = ()

    @property
    def failed(self) -> str:
        """Why the round, or that of a group, came to nothing; empty where it did not."""
        named = ((one.group, one.failed) for one in self.secure if one.failed)
        return "; ".join(why if group is None else f"{group_name(group)}: {why}" for group, why in named)

    @property
    def counting(self) -> list[str]:
        """Where a round came to nothing, what sites remembered before it stays in force."""
        lost = {site for one in self.secure if one.failed for site in one.sites}
        return [site for site in self.entries if site not in lost]

    @property
    def sums(self) -> Sums | None:
        """Of all sites together."""
        return next((one.total for one in self.secure if one.group is None), None)


@dataclass
class SecureRound:
    """The sum of a round's sites, or of a group of them, and what has become of it."""

    group: int | None  # None: all sites of the round
    sums: Sum
    total: Sums | None = None
    failed: str = ""

    @property
    def sites(self) -> list[str]:
        return self.sums.summands.expected


@dataclass(frozen=True)
class ClosedRound:
    state: WaveState
    records: list[TrialRecord]
    arrivals: Arrivals


@dataclass
class FlatRounds:
    """Of one wave."""

    messenger: Messenger
    plan: DeployedPlan
    number: int
    trials: Sequence[Trial]

    @cached_property
    def by_number(self) -> dict[int, Trial]:
        return dict(enumerate(self.trials))

    @cached_property
    def shapes(self) -> list[dict[str, Shape]]:
        """Of each trial's update."""
        return [shapes_of(trial) for trial in self.trials]

    def spool(self, round_number: int) -> Spool:
        return Spool(self.messenger.folder.path / "state", self.number, round_number)

    def round(self, state: WaveState, site_tasks: Mapping[str, Task]) -> Generator[Step, None, ClosedRound]:
        """One round of all trials."""
        began = time.monotonic()
        arrivals = yield from self._gather(state, dict(site_tasks))
        after, records = self.close(state, self.trials, arrivals, time.monotonic() - began)
        self._log_named(records)
        log_round(self.messenger, self.number, state.round, arrivals.entries, arrivals.missing, arrivals.failed)
        return ClosedRound(after, records, arrivals)

    def _gather(self, state: WaveState, site_tasks: dict[str, Task]) -> Generator[Step, None, Arrivals]:
        spool = self.spool(state.round)
        if not is_secure(self.trials) or not any(task.work for task in site_tasks.values()):
            yield from self._train(state, spool, site_tasks, [])
            return self._arrivals(spool, site_tasks, ())
        models = model_hashes(self.trials, state)
        by_number = dict(enumerate(self.trials))
        # a site that has spent its epsilon adds zeros: the others' masks need it
        site_tasks = {**{site: Task() for site in expected_sites(by_number, state.round)}, **site_tasks}
        rounds = [
            SecureRound(
                group,
                begin_sum(
                    self.messenger, Place(self.messenger.study.hash, self.messenger.run_name, self.number, state.round,
                    group), of_trials(in_group(by_number, group), state.round), models, spool.folder,
                ),
            )
            for group in groups_in(by_number)
        ]  # fmt: skip
        yield from self._summed(state, spool, site_tasks, rounds)
        settled = [site for one in rounds for site in one.sums.survivors or ()]
        return replace(self._arrivals(spool, site_tasks, settled), secure=rounds)

    def _arrivals(self, spool: Spool, site_tasks: Mapping[str, Task], settled: Collection[str]) -> Arrivals:
        """A vector that is part of a sum counts even if its site has left since."""
        messenger = self.messenger
        counted = [s for s in messenger.members if s in site_tasks and (s in messenger.present or s in settled)]
        entries = spool.entries(counted, Update)
        return Arrivals(entries, [site for site in site_tasks if site not in entries])

    def _summed(
        self, state: WaveState, spool: Spool, site_tasks: Mapping[str, Task], rounds: Sequence["SecureRound"]
    ) -> Generator[Step]:
        """Each group for itself: where one comes to nothing, the others go on."""
        messenger = self.messenger
        for one in rounds:
            yield from self._try(one, share_keys(messenger, one.sums))
            messenger.prepared |= set(one.sums.sharers)
        if all(one.failed for one in rounds):
            return
        yield from self._train(state, spool, site_tasks, [one.sums for one in rounds])
        for one in rounds:
            if not one.failed:
                entries = spool.entries(messenger.members, Update)
                yield from self._try(one, self._unmasked(state, one, entries))

    def _unmasked(self, state: WaveState, one: "SecureRound", entries: Mapping[str, Entry[Update]]) -> Generator[Step]:
        """SecureSumError where the sum comes to nothing."""
        sums, trials = one.sums, in_group(self.by_number, one.group)
        yield from unmask(self.messenger, sums, entries)
        if sums.total is not None:
            sum_of = sums_of(trials, state.round, sums.total)
            refuse_implausible(trials, sum_of, sums.survivors or (), sums.adds)
            one.total = sum_of

    def _try(self, one: "SecureRound", steps: Generator[Step]) -> Generator[Step]:
        try:
            yield from steps
        except SecureSumError as error:
            one.failed = f"{error.where}: {error.problem}"
            of = "" if one.group is None else f" in {group_name(one.group)}"
            line = f"round {one.sums.place.round + 1} of {self.messenger.title} came to nothing{of}: {one.failed}"
            self.messenger.lines.append(line)

    def _train(
        self, state: WaveState, spool: Spool, site_tasks: Mapping[str, Task], all_sums: Sequence[Sum]
    ) -> Generator[Step]:
        messenger, deadline = self.messenger, self.messenger.study.deployment.deadline
        _ = self.shapes  # before anybody is waited for
        sum_at = {site: sums for sums in all_sums for site in sums.summands.expected}
        asked = asked_sites([site for site in messenger.present if site in site_tasks], all_sums, sum_at)
        seconds = None if deadline is None else PARTIAL_SHARE * deadline
        requests = {}

        def masks(site: str) -> bool:
            return site in sum_at and site in sum_at[site].sharers

        for site in asked:
            task = site_tasks[site]
            request = Train(
                run=messenger.run_name,
                wave=self.number,
                round=state.round,
                score=task.score,
                counted=state.counted.get(site, NONE_YET),
                work=task.work,
                seconds=seconds,
            )
            if masks(site):
                request = structs.replace(request, sum=sum_at[site].payload(site))
            requests[site] = request, task.trials

        def take(site: str, answered: Answered[Update]) -> None:
            masked: dict[str, Shape] | None = None
            if masks(site):
                trials = in_group(self.by_number, sum_at[site].place.group)
                masked = {MASKED: ("I64", (masked_length(trials, state.round),))}
            self.take(state, spool, site, answered, site_tasks[site], masked)

        messages = seal_with_models(messenger, self.trials, state, requests)
        stage = f"round {state.round + 1}"
        yield from messenger.collect(messages, Update, take, stage, closing=True, stored=spool.sealed)

    def take(
        self,
        state: WaveState,
        spool: Spool,
        site: str,
        answered: Answered[Update],
        task: Task,
        masked: dict[str, Shape] | None = None,
    ) -> None:
        """Keep an update that is what the site was asked for. `masked` is the form of one under masks."""
        body = answered.body
        check_update(body, task.work, self.trials)
        check_figures(site, body.figures, task.score, self.trials, self.plan)
        finite = [n for n in task.work if body.trials[n].finite]
        expected = {f"{n}/{name}": shape for n in finite for name, shape in self.shapes[n].items()}

        def problem_in(entry: Entry[Update]) -> str:
            servers = ((n, state.runs[n].server) for n in finite)
            problems = (problem_in_sent(self.trials[n], server, entry.update(n)) for n, server in servers)
            return "" if masked else next(filter(None, problems), "")

        spool.add(site, answered, masked or expected, problem_in)
        self.messenger.prepared.add(site)

    def close(
        self, state: WaveState, trials: Sequence[Trial], arrivals: Arrivals, seconds: float
    ) -> tuple[WaveState, list[TrialRecord]]:
        """Close the round of every trial by the same rules as in a simulation. `trials` are those of the wave, with
        the roster of this round where it follows from what arrived."""
        runs, records, entries = list(state.runs), [], arrivals.entries
        active = [number for number, trial in enumerate(trials) if trial.training.rounds > state.round]
        for number in active:
            trial, run = trials[number], state.runs[number]
            assignments = assigned(trial, run)
            reports = {
                site: entry.body.trials[number] for site, entry in entries.items() if number in entry.body.trials
            }
            reported = [a for a in assignments if a.counts and a.site.name in reports]
            runs[number], record = close_round(
                number,
                trial,
                run,
                assignments,
                _intake(number, trial, run, assignments, reports, arrivals),
                {site: report.epochs for site, report in reports.items()},
                seconds / len(active),
                [a.site.name for a in reported if not reports[a.site.name].finite],
                self._noise(state.round, trial),
            )
            records.append(record)
        counted = {**state.counted, **dict.fromkeys(arrivals.counting, state.round)}
        return replace(state, round=state.round + 1, runs=tuple(runs), counted=counted), records

    def _log_named(self, records: Sequence[TrialRecord]) -> None:
        for record in (trial.record for trial in records):
            for site, numbers in record.named.items():
                self.messenger.log.add(
                    NAMED, arm=record.arm, seed=record.seed, round=record.round, site=site, **_evidence(numbers)
                )
                line = f"{site}: its updates of {record.arm} differ from the others' (round {record.round})"
                self.messenger.lines.append(line)

    def _noise(self, round_number: int, trial: Trial) -> Stream | None:
        """Noise for whole sites, from the coordinator's secret of this run: a repeated round has the same noise."""
        if trial.privacy.site is None:
            return None
        secret = RunSecret(self.messenger.folder.path / "state").draw(used=True)
        key = site_key(secret, self.messenger.run_name, trial.arm, trial.seed, round_number)
        return SecretStream(key, "noise for sites")


def log_round(
    messenger: Messenger,
    wave: int,
    round_number: int,
    entries: Mapping[str, Entry[Any]],
    missing: Sequence[str],
    failed: str = "",
    began: Mapping[str, int] | None = None,
) -> None:
    """`began`: of each update the round with whose model its work began, where that may be an earlier one."""
    updates = {s: {"message": e.message, "bytes": e.size, "head": e.log} for s, e in entries.items()}
    more = {**({"failed": failed} if failed else {}), **({} if began is None else {"began": dict(began)})}
    messenger.log.add("round closed", wave=wave, round=round_number, updates=updates, missing=list(missing), **more)


def _evidence(numbers: Sequence[float]) -> dict[str, Any]:
    found = Evidence.of_numbers(numbers)
    return {"rule": found.rule, "value": found.value}


def _intake(
    number: int,
    trial: Trial,
    run: Run,
    assignments: Sequence[Assignment],
    reports: Mapping[str, TrialWork],
    arrivals: Arrivals,
) -> Intake:
    """What a round's sites have sent of one trial."""
    intake = Intake(trial, run, assignments)
    work = [
        replace(assignment, epochs=reports[assignment.site.name].epochs)
        for assignment in assignments
        if assignment.counts and assignment.site.name in reports and reports[assignment.site.name].finite
    ]
    if trial.privacy.secure_sum is None:
        intake.take(_arrived(trial, run, number, work, arrivals.entries))
    else:
        _take_sum(intake, number, work, arrivals)
    return intake


def _arrived(
    trial: Trial, run: Run, number: int, work: Sequence[Assignment], entries: Mapping[str, Entry[Update]]
) -> Iterator[tuple[Assignment, Outcome]]:
    """Reads one update at a time."""
    for assignment in work:
        entry = entries[assignment.site.name]
        report, sent = entry.body.trials[number], entry.update(number)
        update = arrived_update(trial, run.server, sent)
        moved = update["params"] if report.moved else None
        loss = torch.tensor(float("nan") if report.loss is None else report.loss)
        yield assignment, Outcome(update, Memory(), moved, loss, report.length, sent, report.compression_error)


def _take_sum(intake: Intake, number: int, work: Sequence[Assignment], arrivals: Arrivals) -> None:
    """A failed sum has its cost as well: the sites have worked."""
    intake.came(work, 8 * block_size(intake.trial))
    intake.shapes = {name: shape for name, (_, shape) in shapes_of(intake.trial).items()}
    for one in arrivals.secure:
        came = [assignment.site.name for assignment in work if assignment.site.name in one.sites]
        if one.group is None:
            _take_whole(intake, number, one, came)
        elif one.failed:
            intake.fail_part(group_name(one.group), one.failed, came)
        elif came and one.total is not None:
            intake.total_of_group(one.group, *one.total[number])


def _take_whole(intake: Intake, number: int, one: SecureRound, came: Sequence[str]) -> None:
    """Of all sites together."""
    if one.failed:
        intake.fail(one.failed)
    elif came and one.total is not None:
        intake.total(*one.total[number])


def asked_sites(present: Sequence[str], all_sums: Sequence[Sum], sum_at: Mapping[str, Sum]) -> list[str]:
    """Who is asked to train. Once the survivors of a sum are settled, its sites answer nothing else in this round. A
    site without keys or shares is not part of its sum; one that only scores needs none."""
    settled = [site for sums in all_sums for site in sums.survivors or ()]
    closed = {site for site, sums in sum_at.items() if sums.survivors is not None}
    takes_part = {site: site in sum_at[site].sharers if site in sum_at else not settled for site in present}
    return [site for site in present if takes_part[site] and site not in closed] + settled
