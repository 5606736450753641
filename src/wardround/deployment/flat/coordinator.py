"""The coordinator of a deployed run: greet the sites, let them agree, train wave by wave, compute results.

It knows nothing about the network: a `Transport` carries sealed messages and brings the answers. `run` is a generator
of steps, so that a terminal or a test decides what to show. It may die at any moment; when restarted, it resumes the
round it was in with the answers that had arrived.
"""

import json
import secrets
import time
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from wardround.core.errors import SecureSumError
from wardround.core.notices import Notice, read_notice
from wardround.core.tree import Tree
from wardround.deployment.common.answer_checks import (
    check_figures,
    check_ready,
    check_summaries,
    check_update,
    check_waves,
)
from wardround.deployment.common.deployed_plan import DeployedPlan
from wardround.deployment.common.deployment_results import RESULT_FILES, Participants, save_summaries, write_results
from wardround.deployment.common.messaging import SiteLeft, Step, revoked_key
from wardround.deployment.common.schema_agreement import (
    Disagreement,
    Federation,
    agree_on,
    read_federation,
    write_federation,
)
from wardround.deployment.common.secure_sum_coordinator import SecureSumming, Sum
from wardround.deployment.common.secure_wave import (
    expected_sites,
    is_secure,
    masked_length,
    refuse_implausible,
    sums_of,
)
from wardround.deployment.common.spool import MASKED, Entry, Shape, Spool
from wardround.deployment.common.update_checks import problem_in_sent, shapes_of
from wardround.deployment.common.waves import (
    Arrivals,
    Task,
    WaveState,
    close_round,
    evaluate_message,
    model_hashes,
    models_for,
    read_state,
    scored_records,
    tasks,
    train_message,
    write_state,
)
from wardround.deployment.flat.run_secret import RunSecret
from wardround.deployment.flat.site_training import by_trial
from wardround.privacy.dp.noise import SecretStream, Stream, site_key
from wardround.protocol.messages import Message, Sealed, tensor_bytes
from wardround.runs.audit import BEGUN, FINISHED, RESUMED, file_hash
from wardround.runs.environment import describe_environment
from wardround.runs.folder import write_atomically
from wardround.runs.prediction_tables import saved_leaves
from wardround.runs.records import RecordWriter
from wardround.training.trial import Trial

PARTIAL_SHARE = 0.8  # of the deadline: what a site that may stop early has for its local work
LEAVE_WITHIN = 10.0  # seconds for the sites to hear that a run is over


@dataclass
class Coordinator(SecureSumming):
    shapes: list[dict[str, Shape]] = field(default_factory=list)  # of each trial's update
    plan: DeployedPlan | None = None  # once all have agreed
    prepared: set[str] = field(default_factory=set)  # sites that know what was agreed

    def run(self) -> Generator[Step]:
        with self.folder.locked():
            self._begin()
            federation = yield from self._federate()
            self.plan = plan = federation.plan
            waves = plan.waves()
            trials = [[plan.trial(self.study.arm(arm), seed) for arm, seed in wave] for wave in waves]
            self.total = sum(trial.training.rounds for wave in trials for trial in wave)
            for number, members in enumerate(trials):
                yield from self._wave(number, members, federation.prepare)
            self.title = "computing results"
            yield self.step()
            notices = list(dict.fromkeys([*federation.notices, *self.absences.values()]))
            RunSecret(self.folder.path / "state").destroy()
            invited = Participants(self.invited_hospitals, plan.sites, self.absences)
            write_results(self.folder, plan, federation.described, len(waves), notices, invited)
            yield from self._finish()

    def _finish(self) -> Generator[Step]:
        """Once the results are written."""
        hashes = {name: file_hash(self.folder.path / name) for name in RESULT_FILES}
        self.log.add(FINISHED, study=self.study.hash, files=hashes)
        self.title = "taking leave"
        yield from self._say_goodbye(hashes["results.json"])
        self.folder.remove_state()

    def _begin(self) -> None:
        environment = {**describe_environment(), "engine": "flower", "data_fingerprint": None}
        path = self.folder.path / "state" / "federation.json"
        if self.again or not path.is_file():
            self.folder.begin(self.study, environment)
            self.run_name = f"{self.study.hash[:12]}-{secrets.token_hex(6)}"
            self.members = list(self.sites)
            revoked = [site for site in self.revoked() if site not in self.sites]
            self.invited, self.not_joined = [*self.sites, *revoked], {site: revoked_key(site) for site in revoked}
            self.write_federation()
            if any(arm.privacy.site is not None for arm in self.study.trained_arms):
                RunSecret(self.folder.path / "state").draw(used=False)
            self.log.add(BEGUN, study=self.study.hash, engine="flower", run=self.run_name, sites=list(self.sites))
            return
        known = json.loads(path.read_text(encoding="utf-8"))
        self.run_name, self.members = known["run"], known["members"]
        self.invited = known["invited"]
        self.not_joined = {site: read_notice(notice) for site, notice in known["not_joined"].items()}
        # sites that left are asked again: the problem may be solved; otherwise they leave again
        self.left = {site: revoked_key(site) for site in self.members if site not in self.sites}
        self.log.add(RESUMED, study=self.study.hash, engine="flower", run=self.run_name)

    def _federate(self) -> Generator[Step, None, Federation]:
        """Greet every site, let them agree, and send them the agreement, which stands when a run is resumed."""
        path = self.folder.path / "state" / "agreement.json"
        ready = yield from self._greet()
        if path.is_file():
            known = json.loads(path.read_text(encoding="utf-8"))
            federation = read_federation(known, self.study, self.families, self.hospitals_here)
        else:
            federation = yield from self._agree(ready)
            write_atomically(path, json.dumps(write_federation(federation)).encode())
        federation.plan.refuse_unsound_arms()
        waves = len(federation.plan.waves())
        answers = yield from self.ask_all(
            federation.prepare, closing=True, check=lambda site, answer: check_waves(answer.body, waves)
        )
        self.prepared = set(answers)
        return federation

    @property
    def hospitals_here(self) -> list[str]:
        """The hospitals whose rows this run uses: the sites, unless these are regions."""
        return self.members

    @property
    def absences(self) -> dict[str, Notice]:
        """Why sites did not come, or left."""
        return {**self.not_joined, **self.left}

    @property
    def invited_hospitals(self) -> list[str]:
        return self.invited

    def _agree(self, ready: Mapping[str, Message]) -> Generator[Step, None, Federation]:
        """Repeat until all remaining sites agree. Later, no site can be added to this run."""
        while True:
            if len(ready) < len(self.members):
                self.restrict_to([site for site in ready if site not in self.left])
                ready = yield from self._greet()
                continue
            self.title = "agreeing on columns"
            try:
                federation: Federation = yield from agree_on(
                    self.study, self.families, dict(ready), self.ask_required, self.run_name
                )
            except SiteLeft:
                ready = {site: message for site, message in ready.items() if site not in self.left}
            except Disagreement as error:
                ready = self.without(error, ready)
            else:
                return federation

    def restrict_to(self, sites: Collection[str]) -> None:
        """Remove all other sites from the run, and keep the reason for the results."""
        for site in self.members:
            late = Notice("site-late", "warning", site, details={"greeting": True})
            if site not in sites:
                self.not_joined[site] = self.left.get(site, late)
        self.members = [site for site in self.members if site in sites]
        self.write_federation()

    def without(self, error: Disagreement, ready: Mapping[str, Message]) -> dict[str, Message]:
        """Remove who disagrees with the majority, if the quorum allows it; otherwise the run stops."""
        if len(self.present) - len(error.notices) < self.quorum:
            raise error
        for notice in error.notices:
            self.leave(notice)
        return {site: message for site, message in ready.items() if site not in self.left}

    def _greet(self) -> Generator[Step, None, dict[str, Message]]:
        hello = Message("hello", {"run": self.run_name, "study": self.study.hash, "sites": self.hospitals_here})
        ready = yield from self.ask_all(hello, closing=True, check=self.check_ready)
        for site, message in ready.items():
            self.log.add("site joined", site=site, versions=message.body["versions"], head=message.log)
        return ready

    def check_ready(self, site: str, answer: Message) -> None:
        check_ready(answer.body, self.run_name)

    def _wave(self, number: int, trials: list[Trial], prepare: Message) -> Generator[Step]:
        path = self.folder.path / "state" / "waves" / f"{number:05}.safetensors"
        state = read_state(path, trials)
        before, last = self.done, max(trial.training.rounds for trial in trials)
        self.title = f"{trials[0].arm}{f' and {len(trials) - 1} more' if len(trials) > 1 else ''}"
        if not state.done:
            self.shapes = [self._shapes(trial) for trial in trials]
            with self.folder.append_records(trials, state.records) as records:
                while state.round < last:
                    self.done = before + sum(min(state.round, trial.training.rounds) for trial in trials)
                    state = yield from self._round(number, trials, state, records, prepare)
                    write_state(path, state)
                    Spool(self.folder.path / "state", number, state.round - 1).clear()
                state = yield from self._evaluate(number, trials, state, records, prepare)
                write_state(path, state)
        self.done = before + sum(trial.training.rounds for trial in trials)

    def _shapes(self, trial: Trial) -> dict[str, Shape]:
        return shapes_of(trial)

    def _round(
        self, number: int, trials: list[Trial], state: WaveState, records: RecordWriter, prepare: Message
    ) -> Generator[Step, None, WaveState]:
        began = time.monotonic()
        unscored = [n for n, trial in enumerate(trials) if self.study.arm(trial.arm).held_out is not None]
        site_tasks = tasks(trials, state, self.study.evaluation.every, unscored)
        arrivals, missing = yield from self.gather(number, trials, state, prepare, site_tasks)
        bodies = [entry.body for entry in arrivals.entries.values()]
        ready, waiting = scored_records(state, trials, bodies, final=False)
        for record in ready:
            records.add(record)
        scored = replace(state, pending=waiting, records=records.flush())
        closed = close_round(trials, scored, arrivals, time.monotonic() - began, partial(self._noise, state.round))
        self.log_round(number, state.round, arrivals, missing)
        return closed

    def gather(
        self, number: int, trials: list[Trial], state: WaveState, prepare: Message, site_tasks: dict[str, Task]
    ) -> Generator[Step, None, tuple[Arrivals, list[str]]]:
        """The answers of a round, and the sites that did not answer."""
        spool = Spool(self.folder.path / "state", number, state.round)
        sums, sum_of, failed = None, None, ""
        if is_secure(trials) and any(task.work for task in site_tasks.values()):
            models = model_hashes(trials, state)
            sums = self.begin_sum(number, state.round, dict(enumerate(trials)), models, spool.folder)
            # a site that has spent its epsilon adds zeros: the others' masks need it
            site_tasks = {**{site: Task() for site in expected_sites(sums.trials, state.round)}, **site_tasks}
        try:
            if sums is not None:
                yield from self.share_keys(sums, lambda site: self._catch_up(site, prepare))
                self.prepared |= set(sums.sharers)
            yield from self._train(number, trials, state, prepare, spool, site_tasks, sums)
            if sums is not None:
                yield from self.unmask(sums, spool.entries(self.members))
                if sums.total is not None:
                    sum_of = sums_of(sums.trials, state.round, sums.total)
                    refuse_implausible(sums.trials, sum_of, sums.decisions.settled["survivors"], sums.adds)
        except SecureSumError as error:
            sum_of, failed = None, f"{error.where}: {error.problem}"
            self.lines.append(f"round {state.round + 1} of {self.title} came to nothing: {failed}")
        entries = self._entries(spool, site_tasks, sums)
        return Arrivals(entries, sum_of, failed), [site for site in site_tasks if site not in entries]

    def log_round(self, number: int, round_number: int, arrivals: Arrivals, missing: list[str]) -> None:
        updates = {s: {"message": e.message, "bytes": e.size, "head": e.log} for s, e in arrivals.entries.items()}
        failed = {"failed": arrivals.failed} if arrivals.failed else {}
        self.log.add("round closed", wave=number, round=round_number, updates=updates, missing=missing, **failed)

    def _entries(self, spool: Spool, site_tasks: Mapping[str, Task], sums: Sum | None) -> dict[str, Entry]:
        """The answers that count. A vector that is part of a sum counts even if its site has left since."""
        settled = [] if sums is None else sums.decisions.settled.get("survivors", [])
        return spool.entries(
            [site for site in self.members if site in site_tasks and (site in self.present or site in settled)]
        )

    def _train(
        self,
        number: int,
        trials: list[Trial],
        state: WaveState,
        prepare: Message,
        spool: Spool,
        site_tasks: Mapping[str, Task],
        sums: Sum | None,
    ) -> Generator[Step]:
        known = spool.entries(self.present)
        if sums is not None and "survivors" in sums.decisions.settled:
            return  # the sites know the survivors already
        deadline = self.study.deployment.deadline
        seconds = None if deadline is None else PARTIAL_SHARE * deadline
        requests = {
            site: (_in_sum(train_message(number, state, site, task, seconds, self.run_name), site, sums), task.trials)
            for site, task in site_tasks.items()
            if site in self.present and site not in known and _takes_part(site, state.round, sums)
        }
        messages = self._with_models(trials, state, requests, prepare)

        def take(site: str, sealed: Sealed, message: Message) -> None:
            check_update(message.body, site_tasks[site].work, trials)
            check_figures(site, message.body["figures"], site_tasks[site].score, trials, self.agreed_plan)
            masked = sums is not None and site in sums.sharers
            finite = [n for n in site_tasks[site].work if message.body["trials"][str(n)]["finite"]]
            expected = {f"{n}/{name}": shape for n in finite for name, shape in self.shapes[n].items()}
            if sums is not None and masked:
                expected = {MASKED: ("I64", (masked_length(sums.trials, state.round),))}

            def problem_in(entry: Entry) -> str:
                problems = (problem_in_sent(trials[n], state.runs[n].server, entry.update(n)) for n in finite)
                return "" if masked else next(filter(None, problems), "")

            spool.add(site, sealed, message, expected, problem_in)
            self.prepared.add(site)

        yield from self.collect(messages, take, f"round {state.round + 1}", closing=True, there=known)

    def _catch_up(self, site: str, prepare: Message) -> dict[str, Any]:
        """A site that was away when `prepare` was sent receives it with its first message."""
        return {} if site in self.prepared else {"prepare": prepare.body}

    def _noise(self, round_number: int, trial: Trial) -> Stream | None:
        """Noise for whole sites, from the coordinator's secret of this run: a repeated round has the same noise."""
        if trial.privacy.site is None:
            return None
        secret = RunSecret(self.folder.path / "state").draw(used=True)
        key = site_key(secret, self.run_name, trial.arm, trial.seed, round_number)
        return SecretStream(key, "noise for sites")

    def _with_models(
        self,
        trials: list[Trial],
        state: WaveState,
        requests: Mapping[str, tuple[Message, Sequence[int]]],
        prepare: Message,
        extra: Mapping[str, Tree] | None = None,
    ) -> dict[str, Sealed]:
        """Sealed messages with their models. What is the same for all sites is packed and hashed once.

        `extra` are further tensors for a site; sites that receive the same have the very same tree.
        """
        packed: dict[tuple[Any, ...], Sealed] = {}
        sealed = {}
        for site, (message, chosen) in requests.items():
            more = (extra or {}).get(site, {})
            tensors = models_for(trials, state, site, chosen) | more
            whole = Message(message.kind, {**message.body, **self._catch_up(site, prepare)}, tensors)
            key = (*chosen, id(more) if more else None)
            if key in packed:
                sealed[site] = self.sealed(whole, site, packed[key].tensors, packed[key].tensors_hash)
                continue
            sealed[site] = self.sealed(whole, site, tensor_bytes(tensors))
            if not any(trials[number].algorithm.personal for number in chosen):  # the same for all sites
                packed[key] = sealed[site]
        return sealed

    def _evaluate(
        self, number: int, trials: list[Trial], state: WaveState, records: RecordWriter, prepare: Message
    ) -> Generator[Step, None, WaveState]:
        score = [n for n, trial in enumerate(trials) if self.study.arm(trial.arm).held_out is None]
        own = self._own_models(trials, state, score)
        answers = yield from self.summaries(number, trials, state, score, prepare, own)
        for record in scored_records(state, trials, [message.body for message in answers.values()], final=True)[0]:
            records.add(record)
        save_summaries(self.folder, number, trials, self._by_hospital(answers))
        for trial, run in zip(trials, state.runs, strict=True):
            if self.study.arm(trial.arm).held_out is None:
                self.folder.save_model(trial.arm, trial.seed, saved_leaves(run))
        heads = {site: message.log for site, message in answers.items()}
        self.log.add("wave finished", wave=number, heads=heads)
        return replace(state, pending=[], records=records.flush(), done=True)

    def _own_models(self, trials: list[Trial], state: WaveState, score: Sequence[int]) -> dict[str, Tree]:
        """Those of regions, where sites form some."""
        return {}

    def _by_hospital(self, answers: Mapping[str, Message]) -> Mapping[str, Message]:
        """The summaries of each hospital."""
        return answers

    def summaries(
        self,
        number: int,
        trials: list[Trial],
        state: WaveState,
        score: Sequence[int],
        prepare: Message,
        own: Mapping[str, Tree] | None = None,
    ) -> Generator[Step, None, dict[str, Message]]:
        """Send the final models and collect summaries. Where sites form regions, `own` are the regions' own models."""
        requests = {
            site: (evaluate_message(number, state, site, score, self.run_name), list(range(len(trials))))
            for site in self.present
        }
        answers: dict[str, Message] = {}

        def take(site: str, sealed: Sealed, message: Message) -> None:
            self.check_summary(site, message, trials, score, set(by_trial((own or {}).get(site, {}))))
            answers[site] = message

        messages = self._with_models(trials, state, requests, prepare, own)
        yield from self.collect(messages, take, "evaluation", closing=True)
        return {site: answers[site] for site in self.present if site in answers}

    def check_summary(
        self, site: str, message: Message, trials: Sequence[Trial], score: Sequence[int], regional: Collection[int] = ()
    ) -> None:
        """`regional` are the trials for which the site also has its region's own model."""
        check_summaries(site, message.body["summaries"], trials, self.agreed_plan, regional)
        check_figures(site, message.body["figures"], score, trials, self.agreed_plan)

    @property
    def agreed_plan(self) -> DeployedPlan:
        if self.plan is None:
            raise ValueError("sites are asked for models before they have agreed")
        return self.plan

    def _say_goodbye(self, results: str, why: str = "") -> Generator[Step]:
        """A site that is not connected forgets its state when the next run begins."""
        message = Message("goodbye", {"run": self.run_name, "results": results, **({"why": why} if why else {})})
        messages = {site: self.sealed(message, site) for site in self.members if self.transport.connected().get(site)}
        began = time.monotonic()
        for arrival in self.transport.ask(messages) if messages else ():
            if arrival is not None:
                self.activity[arrival[0]] = "done"
            yield self.step()
            if time.monotonic() - began > LEAVE_WITHIN:
                return


def _takes_part(site: str, round_number: int, sums: Sum | None) -> bool:
    """A site without keys or shares is not part of the round's sum; one that only scores needs none."""
    return sums is None or site in sums.sharers or site not in expected_sites(sums.trials, round_number)


def _in_sum(message: Message, site: str, sums: Sum | None) -> Message:
    if sums is None or site not in sums.sharers:
        return message
    return Message(message.kind, {**message.body, "sum": sums.payload(site)}, message.tensors)
