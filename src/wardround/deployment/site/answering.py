"""The one loop in which a site answers, whatever the topology: a sealed message in, a sealed message out. It knows
nothing of the network.

A topology is tables of handlers, one handler for each type of request (`protocol/catalogue.py` lists them):
`flat/site_handler.py` for a hospital, `vertical/party_handler.py` for a party, `regional/region_handler.py` for a
region. A hospital is a site or a party by the study that it is greeted for.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from wardround.core.errors import CheckError, DataError, DeployError, SiteError, WardroundError
from wardround.core.extras import needs
from wardround.core.memory import return_memory
from wardround.core.notices import Notice, text_of
from wardround.core.tree import Tree
from wardround.deployment.common.site_store import Store
from wardround.deployment.governance.gate import Gate
from wardround.deployment.governance.policy import Refused
from wardround.deployment.site.session import FILE
from wardround.privacy.signatures import Signer, Verifier
from wardround.protocol.catalogue import (
    Agreement,
    Answer,
    Body,
    FailedAnswer,
    Goodbye,
    GoodbyeAnswer,
    Hello,
    RefusedAnswer,
    Request,
)
from wardround.protocol.messages import Message, OtherVersion, Sealed, open_sealed, seal
from wardround.protocol.reading import check_own, read_request
from wardround.protocol.text import plain_text
from wardround.runs.audit import AuditLog

with needs("deploy", "a study across hospitals"):
    from msgspec import structs

MOST_SHOWN = 1000  # characters of one line on this site's screen


@dataclass(frozen=True)
class Reply:
    answer: Answer
    tensors: Tree = field(default_factory=dict, repr=False)
    lines: tuple[str, ...] = ()  # for this site's own screen
    released: Mapping[str, Any] = field(default_factory=dict)  # what the log says of figures that leave


Handler = Callable[[Any, Tree], Reply]  # of a request of its type, and the request's tensors
Handlers = Mapping[type[Request], Handler]


def without_tensors(handle: Callable[[Any], Answer]) -> Handler:
    """Of a request that has none, and whose answer has none."""
    return lambda request, tensors: Reply(handle(request))


@dataclass(frozen=True)
class OpenRun:
    """A run in which this end takes part."""

    name: str
    study: str  # its hash
    session: Any  # of the topology
    store: Store
    handlers: Handlers
    steps: Handlers  # whose answers are kept until the next step: the same request is answered with the same bytes
    catch_up: Callable[[Agreement], None] = lambda agreement: None  # this end was away when all agreed


class Topology(Protocol):
    gate: Gate

    @property
    def requests(self) -> Mapping[str, type[Request]]:
        """By kind, what this end can be asked."""

    def greet(self, hello: Hello, run: OpenRun | None) -> tuple[OpenRun, Answer, str]:
        """The run, its answer, and a line for this site's own screen. `run` is the same one, where it is open."""

    def reopen(self, run: str) -> OpenRun:
        """From its files."""

    def finish(self, goodbye: Goodbye, run: OpenRun | None) -> None:
        """Remove what is only needed while a run goes on."""

    def give_up(self, folder: Path) -> None:
        """The same for an unfinished run that is not spoken of any more."""


class SiteWork:
    def __init__(
        self,
        site: str,
        state: Path,
        topology: Topology,
        signer: Signer,
        coordinator: Verifier,
        notice: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.site, self.state, self.topology = site, state, topology
        self.signer, self.coordinator, self.notice = signer, coordinator, notice
        self.run: OpenRun | None = None
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.log = AuditLog(state / "audit.jsonl")

    def answer(self, sealed: Sealed) -> Sealed:
        """Never raises. Other sites learn about an error in one line without values; this site's screen shows it in
        full."""
        try:
            message = open_sealed(sealed, self.coordinator, "coordinator")
        except DeployError as error:
            other = isinstance(error, OtherVersion)
            shown = f"the coordinator {error.problem}" if other else error.problem
            return self._refuse(error.problem, "other version" if other else "forged message", {}, shown=shown)
        if message.site != self.site:
            return self._refuse("a message to another site", "message to another", {})
        place: dict[str, Any] = {}
        try:
            request = read_request(message, self.topology.requests)
            place = request.place
            return self._answer(request, message, sealed)
        except Refused as refused:
            reason, until = refused.refusal.reason, refused.refusal.until
            when = until.isoformat() if until else None
            return self._refuse(reason, "refused", {"kind": message.kind, "reason": reason}, place, when)
        except WardroundError as error:
            notice, shown = disclosable(self.site, error), str(error)
        except OSError as error:
            shown = f"cannot write its files ({error.strerror})"
            notice = failure(self.site, shown)
        except Exception as error:  # a defect, or a message that is not what it should be; the rest stays here
            name = type(error).__name__
            notice, shown = failure(self.site, f"an unexpected {name}"), f"{name}: {error}"
        detail = {"kind": plain_text(message.kind, 40), "problem": text_of(notice)}
        return self._decline(FailedAnswer(notice=notice.to_json(), **place), "failed", detail, shown)

    def _answer(self, request: Request, message: Message, sealed: Sealed) -> Sealed:
        place = {name: value for name, value in request.place.items() if name != "run"}
        event = {"kind": message.kind, "run": request.run, "message": sealed.hash, "head": message.log}
        head = self.log.add("asked", **event, **place)
        check_run_name(request.run)
        if isinstance(request, Goodbye):
            answer = self._seal(self._goodbye(request), head)
        else:
            self.topology.gate.opening_hours()
            if isinstance(request, Hello):
                answer = self._seal(self._hello(request), head)
            else:
                answer = self._in_run(request, message.tensors, sealed.tensors_hash, head)
        self.log.add("answered", kind=message.kind, message=answer.hash, bytes=answer.size, **place)
        return answer

    def _hello(self, hello: Hello) -> Answer:
        run, answer, line = self.topology.greet(hello, self._open(hello.run))
        for other in self.state.glob(f"*/{FILE}"):
            if other.parent.name != run.name:
                self.topology.give_up(other.parent)
        self.run = run
        sites = getattr(answer, "sites", hello.sites)  # a region says which of its hospitals are there
        self.log.add("joined", site=self.site, run=run.name, study=run.study, sites=sites)
        self.notice(line)
        return answer

    def _goodbye(self, goodbye: Goodbye) -> Answer:
        """Accepted outside opening hours too, and after an approval was withdrawn: it only removes state."""
        self.topology.finish(goodbye, self._open(goodbye.run))
        self.run = None
        return_memory()
        why = plain_text(goodbye.why)
        self.log.add("run finished", run=goodbye.run, results=goodbye.results, **({"why": why} if why else {}))
        self.notice(f"run {goodbye.run} is given up: {why}" if why else f"run {goodbye.run} is finished")
        return GoodbyeAnswer(run=goodbye.run)

    def _in_run(self, request: Request, tensors: Tree, tensors_hash: bytes, head: str) -> Sealed:
        run = self._gone_on_with(request)
        step = run.steps.get(type(request))
        if step is not None:
            return self._step(run, step, request, tensors, tensors_hash, head)
        handler = run.handlers.get(type(request))
        if handler is None:
            problem = "asks this site for another one's work"
            raise DeployError("coordinator", problem, "Start the coordinator again.")
        return self._sent(handler(request, tensors), head)

    def _open(self, name: str) -> OpenRun | None:
        return self.run if self.run is not None and self.run.name == name else None

    def _gone_on_with(self, request: Request) -> OpenRun:
        run = self._open(request.run)
        if run is None:
            self.run = run = self.topology.reopen(request.run)
            self.log.add("goes on", run=run.name, study=run.study)
        self.topology.gate.still_approved(run.study)
        agreement: Agreement | None = getattr(request, "prepare", None)
        if agreement is not None:
            run.catch_up(agreement)
        return run

    def _step(self, run: OpenRun, step: Handler, request: Any, tensors: Tree, tensors_hash: bytes, head: str) -> Sealed:
        """A repeated request is answered with the same bytes, whether the answer was lost or the coordinator died."""
        asked = request_hash(request, tensors_hash)
        known = run.store.answer(request.wave, request.round, asked)
        if known is not None:
            return known
        run.store.refuse_old(request.wave, request.round)
        reply = step(request, tensors)
        if reply.released:
            head = self.log.add("released", **reply.released)
        answer = self._seal(reply.answer, head, reply.tensors)
        run.store.keep_answer(request.wave, request.round, asked, answer)
        self._show(reply)
        return answer

    def _sent(self, reply: Reply, head: str) -> Sealed:
        answer = self._seal(reply.answer, head, reply.tensors)
        self._show(reply)
        return answer

    def _show(self, reply: Reply) -> None:
        for line in reply.lines:
            self.notice(line)

    def _refuse(
        self,
        reason: str,
        event: str,
        detail: Mapping[str, Any],
        place: Mapping[str, Any] | None = None,
        until: str | None = None,
        shown: str = "",
    ) -> Sealed:
        return self._decline(RefusedAnswer(reason=reason, until=until, **place or {}), event, detail, shown or reason)

    def _decline(
        self, answer: RefusedAnswer | FailedAnswer, event: str, detail: Mapping[str, Any], shown: str
    ) -> Sealed:
        """A negative answer, logged if the log can be written."""
        self.notice(f"{answer.kind}: {plain_text(shown, MOST_SHOWN)}")
        try:
            head = self.log.add(event, **detail)
        except (OSError, WardroundError):
            self.notice("and the log cannot be written")
            head = ""
        return self._sealed(answer, head)

    def _seal(self, answer: Answer, head: str, tensors: Tree | None = None) -> Sealed:
        check_own(self.site, answer)
        return self._sealed(answer, head, tensors)

    def _sealed(self, answer: Body, head: str, tensors: Tree | None = None) -> Sealed:
        return seal(Message(answer.kind, answer, tensors or {}, site=self.site, log=head), self.signer)


def check_run_name(run: str) -> None:
    """It comes from outside and becomes the name of a folder."""
    if not 8 <= len(run) <= 80 or not all(c.isalnum() or c == "-" for c in run):
        raise DeployError("coordinator", "names its run in a way that is no name", "Install the same version there.")


def request_hash(request: Request, tensors_hash: bytes) -> str:
    """Identifies a request, however often it is repeated, and whether or not it says again what was agreed."""
    content = structs.asdict(request)
    content.pop("prepare", None)
    return sha256(repr(sorted(content.items())).encode() + tensors_hash).hexdigest()


def disclosable(site: str, error: WardroundError) -> Notice:
    """What others may know about an error: no content of a cell, and no number of rows; the peer that is at fault."""
    if isinstance(error, CheckError) and error.notice is not None:
        return Notice("site-fails-check", "warning", site, details={"check": error.notice.code})
    if isinstance(error, DataError | CheckError):
        return Notice("site-data-unusable", "warning", site)
    about = error.notice.site if isinstance(error, SiteError) else site
    return failure(site, error.problem, () if about == site else (about,))


def failure(site: str, reason: str, peers: tuple[str, ...] = ()) -> Notice:
    return Notice("site-failed", "warning", site, other_sites=peers, details={"reason": plain_text(reason)})
