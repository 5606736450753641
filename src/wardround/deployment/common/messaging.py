"""The coordinator's messages: sealed for one site each, sent, answered and checked.

A site whose answer cannot be used, that refuses or fails, or whose key is revoked leaves the run. The run goes on as
long as the quorum allows.
"""

import json
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, ClassVar

from wardround.core.errors import DeployError, SecureSumError, SiteError
from wardround.core.notices import ABSENCES, Notice, line_of, read_notice, text_of
from wardround.deployment.common.answer_checks import Check, require
from wardround.privacy.signatures import Signer, Verifier
from wardround.protocol.catalogue import REFUSALS, End
from wardround.protocol.messages import Message, Sealed, Transport, open_sealed, seal
from wardround.protocol.reading import bad_answer, belongs, read_answer, unusable
from wardround.protocol.text import plain_text
from wardround.protocol.values import MOST_HEAD
from wardround.runs.audit import AuditLog
from wardround.runs.folder import RunFolder, write_atomically
from wardround.study.parser import Families
from wardround.study.schema import Study
from wardround.tasks.task import Impossible

Take = Callable[[str, Sealed, Message], None]  # what becomes of an answer
ASK_AGAIN = 30.0  # seconds until a closed site is asked again, at the latest
MOST_MISMATCHES = 20  # answers to other requests in a row: late ones are few, and more are sent on purpose


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
    left: dict[str, Notice] = field(default_factory=dict)  # sites that refused or failed, and why
    activity: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    done: int = 0
    total: int = 0
    title: str = "waiting for sites"
    run_name: str = ""
    members: list[str] = field(default_factory=list)  # the sites of this run
    invited: list[str] = field(default_factory=list)  # all that could have been
    not_joined: dict[str, Notice] = field(default_factory=dict)  # invited, and not there when all agreed, and why
    patience: int = 1  # deadlines that may pass before a round closes: a region has rounds of its own
    mismatches: dict[str, int] = field(default_factory=dict)  # answers to other requests since the last right one

    end: ClassVar[End] = "site"  # who answers

    def __post_init__(self) -> None:
        self.log = AuditLog(self.folder.path / "audit.jsonl")

    @property
    def present(self) -> list[str]:
        return [site for site in self.members if site not in self.left]

    def write_federation(self) -> None:
        path = self.folder.path / "state" / "federation.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(self.federation()).encode())

    def federation(self) -> dict[str, Any]:
        """Who takes part, as plain data from which a run is resumed."""
        return {
            "run": self.run_name,
            "members": self.members,
            "left": left_payload(self.left),
            "invited": self.invited,
            "not_joined": left_payload(self.not_joined),
        }

    def ask_all(
        self, message: Message, closing: bool = False, check: Check = lambda site, answer: None
    ) -> Generator[Step, None, dict[str, Message]]:
        """One message to every site; the answers in the order of the sites. `check` raises if an answer is
        impossible."""
        answers: dict[str, Message] = {}

        def take(site: str, sealed: Sealed, answer: Message) -> None:
            check(site, answer)
            answers[site] = answer

        messages = {site: self.sealed(message, site) for site in self.present}
        yield from self.collect(messages, take, message.kind, closing)
        return {site: answers[site] for site in self.members if site in answers}

    def ask_required(
        self, message: Message, check: Check = lambda site, answer: None
    ) -> Generator[Step, None, dict[str, Message]]:
        """As `ask_all`, but a site that does not answer in time is not part of the run."""
        answers = yield from self.ask_all(message, closing=True, check=check)
        for site in self.present:
            if site not in answers:
                self.leave(Notice("site-late", "warning", site))
        if len(answers) < len(self.members):
            raise SiteLeft
        return answers

    def sealed(
        self, message: Message, site: str, packed: bytes | None = None, packed_hash: bytes | None = None
    ) -> Sealed:
        """For one site, which obeys no message to another."""
        addressed = replace(message, site=site, log=self.log.head)
        return seal(addressed, self.signer, packed, packed_hash)

    def collect(
        self, messages: Mapping[str, Sealed], take: Take, what: str, closing: bool = False, there: Collection[str] = ()
    ) -> Generator[Step]:
        """Wait for all answers, or, if `closing`, until the deadline has passed and a quorum has answered.

        `there` are sites whose answers arrived before the coordinator was restarted.
        """
        waiting, began = dict(messages), time.monotonic()
        not_before: dict[str, float] = {}
        self.activity |= dict.fromkeys(waiting, f"asked: {what}")
        while waiting:
            asking = self._due(waiting, not_before)
            for arrival in self.transport.ask(asking) if asking else _pause():
                if arrival is not None:
                    site, sealed = arrival
                    again = self._answered(site, sealed, take, messages[site])
                    if again is None:
                        waiting.pop(site, None)
                    else:
                        not_before[site] = again
                yield self.step()
                if self._expel(waiting):
                    break
                if closing and self._may_close({*messages, *there}, waiting, began):
                    for site in waiting:
                        self.lines.append(f"{site}: did not answer in time ({self._place(site)}); going on without it")
                        self.activity[site] = "late"
                    return
                asking.update(self._due(waiting, not_before))  # a closed site may be open again

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

    def _answered(self, site: str, sealed: Sealed, take: Take, request: Sealed) -> float | None:
        """None, or the time at which to ask the site again."""
        try:
            return self._judged(site, sealed, take, request)
        except SiteError as error:
            self.leave(error.notice)
        except (DeployError, SecureSumError) as error:
            self.leave(bad_answer(site, error.problem, error.remedy).notice)
        except Impossible as impossible:
            self.leave(unusable(site, str(impossible)).notice)
        return None

    def _judged(self, site: str, sealed: Sealed, take: Take, request: Sealed) -> float | None:
        """As `_answered`; DeployError if the site has to leave."""
        if site in self.revoked():
            raise SiteError(revoked_key(site), "Provision anew if it was a mistake.")
        if len(sealed.head) > MOST_HEAD:
            raise unusable(site, "it is too long")
        message = open_sealed(sealed, self.keys[site], site, tensors=False)
        if message.site != site:
            raise DeployError(site, "answered under another name", "Make sure that it has its own kit.")
        if not belongs(message, request):
            return self._mismatched(site)  # to an earlier request; this one is still open
        self.mismatches.pop(site, None)
        read_answer(site, message, self.end)
        if message.kind in REFUSALS:
            return self._refused(site, message)
        take(site, sealed, message)
        self.activity[site] = "answered"
        return None

    def _refused(self, site: str, message: Message) -> float:
        """The time at which to ask a closed site again."""
        if message.kind == "failed":
            raise SiteError(read_absence(site, message.body["notice"], self.known_names), "Settle it with the site.")
        reason = plain_text(message.body["reason"])
        if not message.body.get("until"):
            notice = Notice("site-refused", "warning", site, details={"reason": reason})
            raise SiteError(notice, "Settle it with the site.")
        try:
            opens = datetime.fromisoformat(message.body["until"])
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

    @property
    def known_names(self) -> Sequence[str]:
        """Those that an answer may name as the reason why a site fails."""
        return self.sites

    @property
    def quorum(self) -> int:
        return self.study.deployment.quorum or len(self.sites)

    def _may_close(self, requested: Collection[str], waiting: Collection[str], began: float) -> bool:
        deadline = self.study.deployment.deadline
        answered = [site for site in requested if site not in waiting and site not in self.left]
        over = deadline is not None and time.monotonic() - began > self.patience * deadline
        return over and len(answered) >= self.quorum

    def _place(self, site: str) -> str:
        return "connected" if self.transport.connected().get(site) else "not connected"

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
