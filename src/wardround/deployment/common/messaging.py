"""The coordinator's conversation: messages sealed for one site each, sent, answered and checked.

A site whose answer cannot be used, that refuses or fails, or whose key is revoked leaves the run. The run goes on as
long as the quorum allows. What is the same whatever the sites stand for is here; how many are needed, who may be named
and what an answer says of others is given by the topology.
"""

import json
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

from wardround.core.errors import DeployError, SecureSumError, SiteError
from wardround.core.extras import needs
from wardround.core.notices import ABSENCES, Notice, line_of, read_notice, text_of
from wardround.privacy.signatures import Signer, Verifier
from wardround.protocol.catalogue import (
    REFUSALS,
    Agreement,
    Answer,
    Evaluate,
    FailedAnswer,
    Goodbye,
    Keys,
    Prepare,
    RefusedAnswer,
    Request,
    Train,
    TrainRegion,
)
from wardround.protocol.messages import Message, Sealed, Transport, message_of, open_sealed, seal
from wardround.protocol.reading import bad_answer, belongs, read_answer, unusable
from wardround.protocol.tensors import Buffer
from wardround.protocol.text import plain_text
from wardround.protocol.values import MOST_HEAD
from wardround.runs.audit import AuditLog
from wardround.runs.folder import RunFolder, write_atomically
from wardround.study.parser import Families
from wardround.study.schema import Study
from wardround.tasks.task import Impossible, require

with needs("deploy", "a study across hospitals"):
    from msgspec import structs

B = TypeVar("B", bound=Answer)
R = TypeVar("R", Keys, Train, TrainRegion, Evaluate)  # to a site that was away when all agreed
Check = Callable[[str, B], None]  # of a site's answer; raises if it is impossible
ASK_AGAIN = 30.0  # seconds until a closed site is asked again, at the latest
LEAVE_WITHIN = 10.0  # seconds for the sites to hear that a run is over
MOST_MISMATCHES = 20  # answers to other requests in a row: late ones are few, and more are sent on purpose


@dataclass(frozen=True)
class Answered(Generic[B]):
    """An answer of the right kind, as it came. Its tensors are still closed."""

    body: B
    names: tuple[str, ...]  # of the tensors, in their order
    log: str  # head of the sender's audit log
    sealed: Sealed = field(repr=False)


Take = Callable[[str, Answered[B]], None]  # what becomes of an answer


def not_stored(site: str) -> None:
    """Of no site is there an answer from before."""


def all_of_them() -> bool:
    """No answer is enough as long as another one is awaited."""
    return False


class SiteLeft(Exception):
    """A site left before the first round: the others start over without it."""


@dataclass(frozen=True)
class Step:
    """Progress for a watcher: rounds done over all trials, and what each site is doing."""

    done: int
    total: int
    title: str
    sites: Mapping[str, str]
    line: str = ""  # something that happened, in one line


@dataclass
class Messenger:
    study: Study
    families: Families
    sites: Sequence[str]
    folder: RunFolder
    transport: Transport
    signer: Signer
    keys: Mapping[str, Verifier]
    again: bool = False
    revoked: Callable[[], Mapping[str, str]] = dict  # sites with a revoked key, at present
    quorum: int = 0  # sites without which the run does not go on; 0: as the study says
    all_needed: bool = False  # nobody can be left out: with a late site the run stops, and can go on later
    patience: int = 1  # deadlines that may pass before a round closes: a region has rounds of its own
    known_names: Sequence[str] = ()  # that an answer may name as the reason why a site fails; empty: the sites
    absences_in: Callable[[Answer], Mapping[str, Any]] = lambda body: {}  # of others than the sender, by what it says
    hospitals_of: Callable[[str], Collection[str]] = lambda site: (site,)  # about whom a site speaks
    hospitals: list[str] = field(default_factory=list)  # whose rows the run uses; the members, unless these are regions
    left: dict[str, Notice] = field(default_factory=dict)  # sites that refused or failed, and why
    away: dict[str, Notice] = field(default_factory=dict)  # hospitals that left, by what their regions say
    activity: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    done: int = 0
    total: int = 0
    title: str = "waiting for sites"
    run_name: str = ""
    members: list[str] = field(default_factory=list)  # the sites of this run
    invited: list[str] = field(default_factory=list)  # all that could have been
    not_joined: dict[str, Notice] = field(default_factory=dict)  # invited, and not there when all agreed, and why
    agreement: Prepare | None = None  # once all have agreed
    prepared: set[str] = field(default_factory=set)  # sites that know it
    mismatches: dict[str, int] = field(default_factory=dict)  # answers to other requests since the last right one

    def __post_init__(self) -> None:
        self.log = AuditLog(self.folder.path / "audit.jsonl")
        self.quorum = self.quorum or self.study.deployment.quorum or len(self.sites)

    @property
    def present(self) -> list[str]:
        return [site for site in self.members if site not in self.left]

    @property
    def absences(self) -> dict[str, Notice]:
        """Why sites did not come, or left."""
        return {**self.not_joined, **self.left}

    @property
    def federation_path(self) -> Path:
        return self.folder.path / "state" / "federation.json"

    def write_federation(self) -> None:
        """Who takes part, as plain data from which a run is resumed."""
        content = {
            "run": self.run_name,
            "members": self.members,
            "hospitals": self.hospitals,
            "left": left_payload(self.left),
            "invited": self.invited,
            "not_joined": left_payload(self.not_joined),
        }
        self.federation_path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.federation_path, json.dumps(content).encode())

    def read_federation(self) -> None:
        known = json.loads(self.federation_path.read_text(encoding="utf-8"))
        self.run_name, self.members, self.hospitals = known["run"], known["members"], known["hospitals"]
        self.invited = known["invited"]
        self.not_joined = {site: read_notice(notice) for site, notice in known["not_joined"].items()}
        # sites that left are asked again: the problem may be solved; otherwise they leave again
        self.left = {site: revoked_key(site) for site in self.members if site not in self.sites}

    def ask_all(
        self, request: Request, answer: type[B], closing: bool = False, check: Check[B] = lambda site, body: None
    ) -> Generator[Step, None, dict[str, Answered[B]]]:
        """One message to every site; the answers in the order of the sites."""
        requests = {site: self.sealed(message_of(request), site) for site in self.present}
        return (yield from self.answers(requests, answer, request.kind, closing, check))

    def ask_required(
        self, request: Request, answer: type[B], check: Check[B] = lambda site, body: None
    ) -> Generator[Step, None, dict[str, B]]:
        """As `ask_all`, but a site that does not answer in time is not part of the run."""
        answers = yield from self.ask_all(request, answer, closing=True, check=check)
        for site in self.present:
            if site not in answers:
                self.leave(Notice("site-late", "warning", site))
        if len(answers) < len(self.members):
            raise SiteLeft
        return {site: answered.body for site, answered in answers.items()}

    def answers(
        self,
        requests: Mapping[str, Sealed],
        answer: type[B],
        what: str,
        closing: bool = True,
        check: Check[B] = lambda site, body: None,
    ) -> Generator[Step, None, dict[str, Answered[B]]]:
        answers: dict[str, Answered[B]] = {}

        def take(site: str, answered: Answered[B]) -> None:
            check(site, answered.body)
            answers[site] = answered

        yield from self.collect(requests, answer, take, what, closing)
        return {site: answers[site] for site in self.members if site in answers}

    def sealed(
        self, message: Message, site: str, packed: Buffer | None = None, packed_hash: bytes | None = None
    ) -> Sealed:
        """For one site, which obeys no message to another."""
        addressed = replace(message, site=site, log=self.log.head)
        return seal(addressed, self.signer, packed, packed_hash)

    def caught_up(self, request: R, site: str) -> R:
        """A site that was away when all agreed receives the agreement with its first message."""
        if site in self.prepared or self.agreement is None:
            return request
        return structs.replace(request, prepare=Agreement(**structs.asdict(self.agreement)))

    def collect(
        self,
        requests: Mapping[str, Sealed],
        answer: type[B],
        take: Take[B],
        what: str,
        closing: bool = False,
        stored: Callable[[str], Sealed | None] = not_stored,
        enough: Callable[[], bool] = all_of_them,
        began: float | None = None,
    ) -> Generator[Step]:
        """Wait for all answers, or until those that were taken are `enough`, or, if `closing`, until the deadline has
        passed since `began` (now) and a quorum has answered.

        `stored` has answers that arrived before the coordinator was restarted: they are taken as if they came now.
        """
        began = time.monotonic() if began is None else began
        waiting = self._without_stored(requests, answer, take, stored)
        not_before: dict[str, float] = {}
        self.activity |= dict.fromkeys(waiting, f"asked: {what}")
        while waiting and not enough():
            asking = self._due(waiting, not_before)
            for arrival in self.transport.ask(asking) if asking else _pause():
                if arrival is not None and arrival[0] in waiting:  # who has answered has answered
                    site, sealed = arrival
                    again = self._answered(site, sealed, answer, take, requests[site])
                    if again is None:
                        waiting.pop(site, None)
                    else:
                        not_before[site] = again
                yield self.step()
                if self._expel(waiting) or enough():
                    break
                if closing and self._may_close(requests, waiting, began):
                    for site in waiting:
                        self.lines.append(self._late_line(site))
                        self.activity[site] = "late"
                    return
                asking.update(self._due(waiting, not_before))  # a closed site may be open again

    def _without_stored(
        self, requests: Mapping[str, Sealed], answer: type[B], take: Take[B], stored: Callable[[str], Sealed | None]
    ) -> dict[str, Sealed]:
        """The requests whose answers have not arrived before; those that have are taken."""
        waiting = dict(requests)
        for site, request in requests.items():
            known = stored(site)
            if known is not None and self._is_taken_again(site, known, answer, take, request):
                waiting.pop(site)
        return waiting

    def _due(self, waiting: Mapping[str, Sealed], not_before: dict[str, float]) -> dict[str, Sealed]:
        now = time.monotonic()
        return {site: sealed for site, sealed in waiting.items() if not_before.get(site, 0.0) <= now}

    def _expel(self, waiting: dict[str, Sealed]) -> bool:
        """Whether a site whose answer is still awaited has to leave."""
        revoked = self.revoked()
        for site in [site for site in self.present if site in revoked]:
            self.leave(revoked_key(site))
        gone = [site for site in waiting if site in self.left]
        for site in gone:
            waiting.pop(site)
        return bool(gone)

    def _is_taken_again(self, site: str, sealed: Sealed, answer: type[B], take: Take[B], request: Sealed) -> bool:
        """False where what is stored cannot be used, which is no fault of the site: it is asked anew."""
        with suppress(SiteError, DeployError, SecureSumError, Impossible):
            if self._judged(site, sealed, answer, take, request) is None:
                return True
        self.mismatches.pop(site, None)
        self.lines.append(f"{site}: its answer as it is stored here cannot be used; asking again")
        return False

    def _answered(self, site: str, sealed: Sealed, answer: type[B], take: Take[B], request: Sealed) -> float | None:
        """None, or the time at which to ask the site again."""
        try:
            if site in self.revoked():
                raise SiteError(revoked_key(site), "Provision anew if it was a mistake.")
            return self._judged(site, sealed, answer, take, request)
        except SiteError as error:
            self.leave(error.notice)
        except (DeployError, SecureSumError) as error:
            self.leave(bad_answer(site, error.problem, error.remedy).notice)
        except Impossible as impossible:
            self.leave(unusable(site, str(impossible)).notice)
        return None

    def _judged(self, site: str, sealed: Sealed, answer: type[B], take: Take[B], request: Sealed) -> float | None:
        """As `_answered`; DeployError if the site has to leave."""
        if len(sealed.head) > MOST_HEAD:
            raise unusable(site, "it is too long")
        message = open_sealed(sealed, self.keys[site], site, tensors=False)
        if message.site != site:
            raise DeployError(site, "answered under another name", "Make sure that it has its own kit.")
        if not belongs(message, request):
            return self._mismatched(site)  # to an earlier request; this one is still open
        self.mismatches.pop(site, None)
        if message.kind in REFUSALS:
            return self._refused(site, message)
        body = read_answer(site, message, answer)
        absences = [  # before the answer counts: it may be refused
            read_absence(hospital, notice, self.known_names or self.sites)
            for hospital, notice in self.absences_in(body).items()
            if hospital in self.hospitals_of(site)
        ]
        take(site, Answered(body, message.names, message.log, sealed))
        for absence in absences:
            self._note_absence(absence)
        self.activity[site] = "answered"
        return None

    def _note_absence(self, notice: Notice) -> None:
        if self.away.get(notice.site) != notice:
            self.away[notice.site] = notice
            self.lines.append(line_of(notice))

    def _refused(self, site: str, message: Message) -> float:
        """The time at which to ask a closed site again."""
        if message.kind == FailedAnswer.kind:
            failed = read_answer(site, message, FailedAnswer)
            raise SiteError(
                read_absence(site, failed.notice, self.known_names or self.sites), "Settle it with the site."
            )
        refused = read_answer(site, message, RefusedAnswer)
        reason = plain_text(refused.reason)
        if not refused.until:
            notice = Notice("site-refused", "warning", site, details={"reason": reason})
            raise SiteError(notice, "Settle it with the site.")
        try:
            opens = datetime.fromisoformat(refused.until)
        except ValueError:
            raise unusable(site, "it does not say when it opens again") from None
        wait = min(ASK_AGAIN, max(1.0, (opens - datetime.now(opens.tzinfo)).total_seconds()))
        self.activity[site] = reason
        return time.monotonic() + wait

    def _mismatched(self, site: str) -> float:
        """The time at which to ask again a site that answered another request."""
        self.mismatches[site] = self.mismatches.get(site, 0) + 1
        if self.mismatches[site] > MOST_MISMATCHES:
            raise unusable(site, "it answers other questions than it is asked")
        return 0.0

    def leave(self, notice: Notice) -> None:
        """Record that a site left. DeployError if too few remain for the study's quorum."""
        site, why = notice.site, text_of(notice)
        self.left[site] = notice
        self.activity[site] = why
        self.log.add("site left", site=site, why=why)
        self.write_federation()
        self.lines.append(line_of(notice))
        if len(self.present) < self.quorum:
            left = "; ".join(f"{name} {text_of(absence)}" for name, absence in self.left.items())
            problem = f"{len(self.present)} of {len(self.sites)} sites are left and {self.quorum} are needed ({left})"
            remedy = "Settle it with the site and start the coordinator again: it goes on from here."
            raise DeployError("coordinator", problem, remedy)

    def say_goodbye(self, results: str, why: str | None = None) -> Generator[Step]:
        """A site that is not connected forgets its state when the next run begins."""
        self.title = "taking leave"
        message = message_of(Goodbye(run=self.run_name, results=results, why=why or None))
        messages = {site: self.sealed(message, site) for site in self.members if self.transport.connected().get(site)}
        began = time.monotonic()
        for arrival in self.transport.ask(messages) if messages else ():
            if arrival is not None:
                self.activity[arrival[0]] = "done"
            yield self.step()
            if time.monotonic() - began > LEAVE_WITHIN:
                return

    def _may_close(self, requested: Collection[str], waiting: Collection[str], began: float) -> bool:
        deadline = self.study.deployment.deadline
        answered = [site for site in requested if site not in waiting and site not in self.left]
        over = deadline is not None and time.monotonic() - began > self.patience * deadline
        if over and waiting and self.all_needed:
            late = ", ".join(waiting)
            problem = f"{late} did not answer within {deadline:g} seconds, and every party is needed in every block"
            raise DeployError("coordinator", problem, "Start it again when they are there: it goes on from here.")
        return over and len(answered) >= self.quorum

    def _late_line(self, site: str) -> str:
        place = "connected" if self.transport.connected().get(site) else "not connected"
        theirs = ", ".join(name for name in self.hospitals if name in self.hospitals_of(site) and name != site)
        it = f"it and its hospitals {theirs}" if theirs else "it"
        return f"{site}: did not answer in time ({place}); going on without {it}"

    def step(self) -> Step:
        there = self.transport.connected()
        sites = {
            site: self.activity.get(site, "") if there.get(site) or site in self.left else "not connected"
            for site in self.sites
        }
        line = self.lines.pop(0) if self.lines else ""
        return Step(self.done, self.total, self.title, sites, line)


def revoked_key(site: str) -> Notice:
    return Notice("site-revoked", "warning", site)


def read_absence(site: str, payload: object, known: Collection[str]) -> Notice:
    """Why a site does not go on, as it says itself or its region says: about nobody else, except for a peer."""
    try:
        notice = read_notice(payload)
    except ValueError as error:
        raise Impossible(str(error)) from None
    require(notice.code in ABSENCES and notice.site == site, "a remark that is not about the site itself")
    return replace(notice, other_sites=tuple(name for name in notice.other_sites if name in known))


def left_payload(left: Mapping[str, Notice]) -> dict[str, Any]:
    return {site: notice.to_json() for site, notice in left.items()}


def _pause() -> Iterator[None]:
    time.sleep(0.25)
    yield None
