"""The coordinator's side of a run across hospitals: greet, agree, train wave by wave, compute.

It knows nothing of the network: a `Post` carries sealed letters and brings the answers. `run` is a generator of
steps, so that a terminal or a test decides what to show. Dies at any moment; started again, it goes on with the round
it was in, with the answers that had arrived.
"""

import json
import secrets
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from wardround.artifacts.audit import BEGUN, FINISHED, RESUMED, AuditLog, file_hash
from wardround.artifacts.environment import describe_environment
from wardround.artifacts.folder import JsonLines, RunFolder, write_atomically
from wardround.artifacts.tables import saved_leaves
from wardround.deploy.agreeing import Federation, agree_on, read_federation, write_federation
from wardround.deploy.answers import belongs
from wardround.deploy.outcome import MADE, write_outcome
from wardround.deploy.spool import Spool
from wardround.deploy.waves import (
    WaveState,
    alike_everywhere,
    close_round,
    evaluate_letter,
    models_for,
    read_state,
    scored_records,
    tasks,
    train_letter,
    write_state,
)
from wardround.engines.letters import Letter, Post, Sealed, Signer, Verifier, open_sealed, seal, tensor_bytes
from wardround.errors import DeployError
from wardround.rounds import Trial
from wardround.study import Study
from wardround.studyfile import Families

Take = Callable[[str, Sealed, Letter], None]  # what becomes of an answer
PARTIAL_SHARE = 0.8  # of the deadline: what a site that may stop early has for its local work
ASK_AGAIN = 30.0  # seconds until a closed site is asked again, at the latest


@dataclass(frozen=True)
class Step:
    """What a watcher sees: rounds done of all, over all trials, and what each site is doing."""

    done: int
    total: int
    title: str
    sites: Mapping[str, str]
    line: str = ""  # something that happened, in one line


@dataclass
class Coordinator:
    study: Study
    families: Families
    sites: Sequence[str]
    folder: RunFolder
    post: Post
    signer: Signer
    keys: Mapping[str, Verifier]
    again: bool = False
    revoked: Callable[[], Mapping[str, str]] = dict  # sites whose key was revoked, now
    left: dict[str, str] = field(default_factory=dict)  # sites that refused or failed, and why
    doing: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    done: int = 0
    total: int = 0
    title: str = "waiting for sites"

    def run(self) -> Generator[Step]:
        with self.folder.locked():
            self.log = AuditLog(self.folder.path / "audit.jsonl")
            self._begin()
            federation = yield from self._federate()
            plan = federation.plan
            waves = plan.waves()
            trials = [[plan.trial(self.study.arm(arm), seed) for arm, seed in wave] for wave in waves]
            self.total = sum(trial.training.rounds for wave in trials for trial in wave)
            for number, members in enumerate(trials):
                yield from self._wave(number, members)
            self.title = "computing results"
            yield self._step()
            warnings = [*federation.warnings, *(f"{site}: {why}" for site, why in self.left.items())]
            write_outcome(self.folder, plan, federation.described, len(waves), warnings)
            made = {name: file_hash(self.folder.path / name) for name in MADE}
            self.log.add(FINISHED, study=self.study.hash, files=made)
            self.title = "taking leave"
            yield from self._part(made["results.json"])
            self.folder.remove_state()

    def _begin(self) -> None:
        environment = {**describe_environment(), "engine": "flower", "data_fingerprint": None}
        path = self.folder.path / "state" / "federation.json"
        if self.again or not path.is_file():
            self.folder.begin(self.study, environment)
            self.run_name = f"{self.study.hash[:12]}-{secrets.token_hex(6)}"
            self.members = list(self.sites)
            self._write_federation()
            self.log.add(BEGUN, study=self.study.hash, engine="flower", run=self.run_name, sites=list(self.sites))
            return
        known = json.loads(path.read_text(encoding="utf-8"))
        self.run_name, self.members = known["run"], known["members"]
        # who left is asked again: it was settled with the site, or it leaves again and the quorum is counted again
        self.left = {site: "its key was revoked" for site in self.members if site not in self.sites}
        self.log.add(RESUMED, study=self.study.hash, engine="flower", run=self.run_name)

    def _write_federation(self) -> None:
        path = self.folder.path / "state" / "federation.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {"run": self.run_name, "members": self.members, "left": self.left}
        write_atomically(path, json.dumps(content).encode())

    # -- before the first round

    def _federate(self) -> Generator[Step, None, Federation]:
        """Greet every site, let them agree, and tell them what was agreed. What was agreed once stands."""
        path = self.folder.path / "state" / "agreement.json"
        ready = yield from self._greet(closing=True)
        if path.is_file():
            known = json.loads(path.read_text(encoding="utf-8"))
            federation = read_federation(known, self.study, self.families, self.members)
        else:
            if len(ready) < len(self.members):  # who does not take part from the beginning is no site of this run
                self.members = list(ready)
                self._write_federation()
                ready = yield from self._greet()
            self.title = "agreeing on columns"
            federation = yield from agree_on(self.study, self.families, ready, self._ask_all, self.run_name)
            write_atomically(path, json.dumps(write_federation(federation)).encode())
        yield from self._ask_all(federation.prepare, closing=True)
        return federation

    def _greet(self, closing: bool = False) -> Generator[Step, None, dict[str, Letter]]:
        hello = Letter("hello", {"run": self.run_name, "study": self.study.hash, "sites": self.members})
        ready = yield from self._ask_all(hello, closing)
        for site, letter in ready.items():
            self.log.add("site joined", site=site, versions=letter.body["versions"], head=letter.body["head"])
        return ready

    # -- letters

    def _ask_all(self, letter: Letter, closing: bool = False) -> Generator[Step, None, dict[str, Letter]]:
        """One letter to every site; the answers in the order of the sites."""
        found: dict[str, Letter] = {}

        def take(site: str, sealed: Sealed, answer: Letter) -> None:
            found[site] = answer

        letters = {site: self._sealed(letter) for site in self.members if site not in self.left}
        yield from self._collect(letters, take, letter.kind, closing)
        return {site: found[site] for site in self.members if site in found}

    def _sealed(self, letter: Letter, packed: bytes | None = None, packed_hash: bytes | None = None) -> Sealed:
        with_head = Letter(letter.kind, {**letter.body, "head": self.log.head}, letter.tensors)
        return seal(with_head, self.signer, packed, packed_hash)

    def _collect(
        self,
        letters: Mapping[str, Sealed],
        take: Take,
        what: str,
        closing: bool = False,
        there: Collection[str] = (),
    ) -> Generator[Step]:
        """Until all have answered, or, where the round may close, the deadline has passed and a quorum is there.

        `there` are sites whose answers had arrived before the coordinator was started again.
        """
        waiting, began = dict(letters), time.monotonic()
        not_before: dict[str, float] = {}
        self.doing |= dict.fromkeys(waiting, f"asked: {what}")
        while waiting:
            now = time.monotonic()
            askable = {site: sealed for site, sealed in waiting.items() if not_before.get(site, 0.0) <= now}
            for got in self.post.ask(askable) if askable else _pause():
                if got is not None:
                    site, sealed = got
                    again = self._answered(site, sealed, take, letters[site])
                    if again is None:
                        waiting.pop(site, None)
                    else:
                        not_before[site] = again
                yield self._step()
                if self._expelled(waiting):
                    break
                if closing and self._may_close({*letters, *there}, waiting, began):
                    for site in waiting:
                        self._say(f"{site}: did not answer in time ({self._place(site)}); going on without it")
                        self.doing[site] = "late"
                    return

    def _expelled(self, waiting: dict[str, Sealed]) -> bool:
        gone = [site for site in waiting if site in self.revoked()]
        for site in gone:
            waiting.pop(site)
            self._leave(site, "its key was revoked")
        return bool(gone)

    def _answered(self, site: str, sealed: Sealed, take: Take, asked: Sealed) -> float | None:
        """None, or when the site is to be asked again."""
        try:
            letter = open_sealed(sealed, self.keys[site], site, tensors=False)
            if letter.body.get("site") != site:
                raise DeployError(site, "answered under another name", "Make sure that it has its own kit.")
        except DeployError as error:
            self._leave(site, error.problem)
            return None
        if not belongs(letter, asked):
            return 0.0  # to an earlier question; this one is still open
        if letter.kind == "refused" and letter.body["until"]:
            opens = datetime.fromisoformat(letter.body["until"])
            wait = min(ASK_AGAIN, max(1.0, (opens - datetime.now(opens.tzinfo)).total_seconds()))
            self.doing[site] = letter.body["reason"]
            return time.monotonic() + wait
        if letter.kind in ("refused", "failed"):
            self._leave(site, f"{letter.kind}: {letter.body.get('reason') or letter.body.get('problem')}")
            return None
        self.doing[site] = "answered"
        try:
            take(site, sealed, letter)
        except DeployError as error:
            self._leave(site, error.problem)
        return None

    def _leave(self, site: str, why: str) -> None:
        """The run goes on without it where the study's quorum allows that."""
        self.left[site] = why
        self.doing[site] = why
        self.log.add("site left", site=site, why=why)
        self._write_federation()
        self._say(f"{site}: {why}")
        remaining = [one for one in self.members if one not in self.left]
        if len(remaining) < self._quorum:
            left = "; ".join(f"{name} {reason}" for name, reason in self.left.items())
            problem = f"{len(remaining)} of {len(self.sites)} sites are left and {self._quorum} are needed ({left})"
            remedy = "Settle it with the site and start the coordinator again, or lower `quorum` in [deployment]."
            raise DeployError("coordinator", problem, remedy)

    @property
    def _quorum(self) -> int:
        return self.study.deployment.quorum or len(self.sites)

    def _may_close(self, asked: Collection[str], waiting: Collection[str], began: float) -> bool:
        deadline = self.study.deployment.deadline
        there = [site for site in asked if site not in waiting and site not in self.left]
        return deadline is not None and time.monotonic() - began > deadline and len(there) >= self._quorum

    def _place(self, site: str) -> str:
        return "connected" if self.post.connected().get(site) else "not connected"

    def _say(self, line: str) -> None:
        self.lines.append(line)

    def _step(self) -> Step:
        there = self.post.connected()
        sites = {
            site: self.doing.get(site, "") if there.get(site) or site in self.left else "not connected"
            for site in self.sites
        }
        line = self.lines.pop(0) if self.lines else ""
        return Step(self.done, self.total, self.title, sites, line)

    # -- rounds

    def _wave(self, number: int, trials: list[Trial]) -> Generator[Step]:
        path = self.folder.path / "state" / "waves" / f"{number:05}.safetensors"
        state = read_state(path, trials)
        before, last = self.done, max(trial.training.rounds for trial in trials)
        self.title = f"{trials[0].arm}{f' and {len(trials) - 1} more' if len(trials) > 1 else ''}"
        if not state.done:
            with JsonLines(self.folder.unit_records(number), state.records) as records:
                while state.round < last:
                    self.done = before + sum(min(state.round, trial.training.rounds) for trial in trials)
                    state = yield from self._round(number, trials, state, records)
                    write_state(path, state)
                    Spool(self.folder.path / "state", number, state.round - 1).clear()
                state = yield from self._evaluate(number, trials, state, records)
                write_state(path, state)
        self.done = before + sum(trial.training.rounds for trial in trials)

    def _round(
        self, number: int, trials: list[Trial], state: WaveState, records: JsonLines
    ) -> Generator[Step, None, WaveState]:
        began = time.monotonic()
        spool = Spool(self.folder.path / "state", number, state.round)
        known = spool.entries(self.members)
        quiet = [n for n, trial in enumerate(trials) if self.study.arm(trial.arm).held_out is not None]
        asked = tasks(trials, state, self.study.evaluation.every, quiet)
        deadline = self.study.deployment.deadline
        seconds = None if deadline is None else PARTIAL_SHARE * deadline
        wanted = {
            site: (train_letter(number, state, site, task, seconds, self.run_name), task.trials)
            for site, task in asked.items()
            if site not in self.left and site not in known
        }
        letters = self._with_models(trials, state, wanted)
        yield from self._collect(letters, spool.add, f"round {state.round + 1}", closing=True, there=known)
        entries = spool.entries([site for site in self.members if site in asked])
        ready, waiting = scored_records(state, trials, [entry.body for entry in entries.values()], final=False)
        for record in ready:
            records.add(record)
        closed = close_round(trials, state_with(state, waiting, records.flush()), entries, time.monotonic() - began)
        self.log.add(
            "round closed",
            wave=number,
            round=state.round,
            updates={s: {"letter": e.letter, "bytes": e.size, "head": e.body["head"]} for s, e in entries.items()},
            missing=[site for site in asked if site not in entries],
        )
        return closed

    def _with_models(
        self, trials: list[Trial], state: WaveState, wanted: Mapping[str, tuple[Letter, Sequence[int]]]
    ) -> dict[str, Sealed]:
        """Sealed letters with the models in them. Where all sites are sent the same, it is packed and hashed once."""
        packed: dict[tuple[int, ...], Sealed] = {}
        sealed = {}
        for site, (letter, chosen) in wanted.items():
            tensors = models_for(trials, state, site, chosen)
            whole = Letter(letter.kind, letter.body, tensors)
            key = tuple(chosen)
            if key in packed:
                sealed[site] = self._sealed(whole, packed[key].tensors, packed[key].tensors_hash)
                continue
            sealed[site] = self._sealed(whole, tensor_bytes(tensors))
            if alike_everywhere(trials, chosen):
                packed[key] = sealed[site]
        return sealed

    def _evaluate(
        self, number: int, trials: list[Trial], state: WaveState, records: JsonLines
    ) -> Generator[Step, None, WaveState]:
        """Final models to all; summaries come back."""
        every, quiet = range(len(trials)), [self.study.arm(trial.arm).held_out is not None for trial in trials]
        score = [n for n in every if not quiet[n]]
        wanted = {
            site: (evaluate_letter(number, state, site, score, self.run_name), list(every))
            for site in self.members
            if site not in self.left
        }
        found: dict[str, Letter] = {}

        def take(site: str, sealed: Sealed, letter: Letter) -> None:
            found[site] = letter

        yield from self._collect(self._with_models(trials, state, wanted), take, "evaluation", closing=True)
        answers = {site: found[site] for site in self.members if site in found}
        for record in scored_records(state, trials, [letter.body for letter in answers.values()], final=True)[0]:
            records.add(record)
        keep_summaries(self.folder, number, trials, answers)
        for trial, run in zip(trials, state.runs, strict=True):
            if self.study.arm(trial.arm).held_out is None:
                self.folder.save_model(trial.arm, trial.seed, saved_leaves(run))
        heads = {site: letter.body["head"] for site, letter in answers.items()}
        self.log.add("wave finished", wave=number, heads=heads)
        return state_with(state, [], records.flush(), done=True)

    def _part(self, results: str) -> Generator[Step]:
        """Tell everybody; who is away then learns it from his next start."""
        letter = Letter("goodbye", {"run": self.run_name, "results": results})
        letters = {site: self._sealed(letter) for site in self.members if self.post.connected().get(site)}
        began = time.monotonic()
        for got in self.post.ask(letters) if letters else ():
            if got is not None:
                self.doing[got[0]] = "done"
            yield self._step()
            if time.monotonic() - began > 10:
                return


def state_with(state: WaveState, pending: Sequence[Mapping[str, Any]], records: int, done: bool = False) -> WaveState:
    return replace(state, pending=pending, records=records, done=done)


def keep_summaries(folder: RunFolder, wave: int, trials: Sequence[Trial], answers: Mapping[str, Letter]) -> None:
    lines = []
    for site, letter in answers.items():
        for number, sides in letter.body["summaries"].items():
            trial = trials[int(number)]
            for side, summary in sides.items():
                lines.append({"arm": trial.arm, "seed": trial.seed, "site": site, "side": side, **summary})
    path = folder.path / "state" / "summaries" / f"{wave:05}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(lines).encode())


def _pause() -> Iterator[None]:
    time.sleep(0.25)
    yield None
