"""How a site answers messages. It knows nothing of the network: a sealed message in, a sealed message out.

hello        which study, which run, which sites          ready        columns and classes, or refused
facts        the columns that all use                     facts        of its training rows
fill_values  columns that some site lacks                 fill_values  one value a column
moments      for a common scale                           moments      sums
prepare      what was agreed                              prepared
keys         who is in a secure sum                       advert       its keys of this round
shares       everybody's keys                             shared       shares of its secrets, sealed for each other site
train        models, whether its last update counted      update       updates (masked, in a secure sum) and figures
confirm      who has sent a masked vector                 confirmed    its signature
unmask       those signatures                             revealed     its shares of what undoes the masks of the sum
evaluate     final models                                 summary      counts; predictions stay
goodbye      the run is over                              goodbye

What parties with different features of the same patients are asked is in vertical/party_session.py.
"""

from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

from wardround.core.errors import CheckError, DataError, DeployError, SiteError, WardroundError
from wardround.core.notices import Notice, text_of
from wardround.core.tree import Tree
from wardround.data.records import Records
from wardround.deployment.common.secure_sum_site import (
    Commitments,
    SumParticipant,
    check_contributors,
    check_models,
    check_survivors,
    checked_terms,
    read_bytes,
)
from wardround.deployment.common.secure_wave import Place, is_secure
from wardround.deployment.common.site_store import Store
from wardround.deployment.flat.run_secret import RunSecret
from wardround.deployment.flat.site_session import Body, Gate, Session, check_run_name
from wardround.deployment.flat.site_training import by_trial, evaluate, flat, own_work, train, trials_of
from wardround.deployment.governance.policy import Refusal, Refused
from wardround.deployment.vertical.party_handler import KINDS, STEPS, PartyWork
from wardround.deployment.vertical.party_session import PartySession, forget_matching
from wardround.deployment.vertical.vertical_validation import is_vertical
from wardround.privacy.secure_sum.secure_sum import Member
from wardround.privacy.signatures import Signer, Verifier
from wardround.protocol.catalogue import ANSWERED_BY, Request, requests_to
from wardround.protocol.messages import Message, Sealed, open_sealed, seal
from wardround.protocol.reading import place_of, read_request
from wardround.protocol.text import plain_text
from wardround.runs.audit import AuditLog
from wardround.study.parser import Families

MOST_SHOWN = 1000  # characters of one line on this site's screen


class SiteWork:
    requests: ClassVar[Mapping[str, type[Request]]] = requests_to("site") | requests_to("party")

    def __init__(
        self,
        site: str,
        state: Path,
        gate: Gate,
        families: Families,
        load: Callable[[], Records],
        signer: Signer,
        coordinator: Verifier,
        notice: Callable[[str], None] = lambda line: None,
        peers: Mapping[str, Verifier] | None = None,
    ) -> None:
        """`peers` are the public keys of all sites, for secure sums."""
        self.site, self.state, self.gate, self.families, self.signer = site, state, gate, families, signer
        self.load, self.notice, self.coordinator = load, notice, coordinator
        self.peers: Mapping[str, Verifier] = peers or {}
        self.seat: tuple[bytes, SumParticipant] | None = None  # in the last secure sum, by its terms
        self.records: Records | None = None
        self.session: Session | None = None
        self.party: PartyWork | None = None  # where parties hold different features
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.log, self.past_sums = AuditLog(state / "audit.jsonl"), Commitments(state / "sums.jsonl")

    def answer(self, sealed: Sealed) -> Sealed:
        """Never raises. Other sites learn about an error in one line without values; this site's screen shows it in
        full."""
        try:
            message = open_sealed(sealed, self.coordinator, "coordinator")
        except DeployError as error:
            return self._decline(
                "refused", {"reason": error.problem, "until": None}, "forged message", {}, error.problem
            )
        if message.site != self.site:
            reason = "a message to another site"
            return self._decline("refused", {"reason": reason, "until": None}, "message to another", {}, reason)
        about = {}
        try:
            read_request(message, self.requests)
            about = place_of(message.body)
            return self._handle(message, sealed, about)
        except Refused as refused:
            reason, until = refused.refusal.reason, refused.refusal.until
            body = {"reason": reason, "until": until.isoformat() if until else None}
            return self._decline(
                "refused", {**body, **about}, "refused", {"kind": message.kind, "reason": reason}, reason
            )
        except WardroundError as error:
            notice, shown = disclosable(self.site, error), str(error)
        except OSError as error:
            shown = f"cannot write its files ({error.strerror})"
            notice = failure(self.site, shown)
        except Exception as error:  # a defect, or a message that is not what it should be; the rest stays here
            notice, shown = (
                failure(self.site, f"an unexpected {type(error).__name__}"),
                f"{type(error).__name__}: {error}",
            )
        detail = {"kind": plain_text(message.kind, 40), "problem": text_of(notice)}
        return self._decline("failed", {"notice": notice.to_json(), **about}, "failed", detail, shown)

    def _handle(self, message: Message, sealed: Sealed, about: dict[str, Any]) -> Sealed:
        place = {name: value for name, value in about.items() if name != "run"}
        event = {
            "kind": message.kind,
            "run": about.get("run"),
            "message": sealed.hash,
            "head": message.log,
        }
        head = self.log.add("asked", **event, **place)
        if message.kind != "goodbye":
            self.gate.opening_hours()
        answer = self._sealed(message, sealed.tensors_hash, head)
        self.log.add("answered", kind=message.kind, message=answer.hash, bytes=answer.size, **place)
        return answer

    def _decline(self, kind: str, body: dict[str, Any], event: str, detail: dict[str, Any], shown: str) -> Sealed:
        """A negative answer, logged if the log can be written."""
        self.notice(f"{kind}: {plain_text(shown, MOST_SHOWN)}")
        try:
            head = self.log.add(event, **detail)
        except (OSError, WardroundError):
            self.notice("and the log cannot be written")
            head = ""
        return self._seal(kind, body, head)

    def _sealed(self, message: Message, tensors: bytes, head: str) -> Sealed:
        if message.kind == "train":
            return self._train(message, tensors, head)
        if message.kind in KINDS:
            return self._as_party(message, tensors, head)
        answer = self._answer_body(message.kind, message.body, message.tensors)
        return self._seal(ANSWERED_BY[message.kind], {**answer, **place_of(message.body)}, head)

    def _answer_body(self, kind: str, body: Body, tensors: Tree) -> dict[str, Any]:
        if kind == "hello":
            return self._hello(body)
        if kind == "goodbye":
            return self._goodbye(body)
        session = self._session(body)
        if kind == "evaluate":
            answer = evaluate(session, body, tensors)
            if int(body["wave"]) == len(session.waves) - 1:
                self._destroy_secret(session.run)  # all rounds are over; the goodbye might never come
            return answer
        if kind in ("keys", "shares", "confirm", "unmask"):
            return self._in_a_sum(kind, session, body)
        handlers = {
            "facts": session.facts,
            "fill_values": session.fill_values,
            "moments": session.moments,
            "prepare": session.prepare,
        }
        return handlers[kind](body)

    def _goodbye(self, body: Body) -> dict[str, Any]:
        """Accepted outside opening hours too, and after an approval was withdrawn: it only removes state."""
        run = check_run_name(body["run"])
        session = self.session
        (session.store if session is not None and session.run == run else Store(self.state / run)).forget()
        forget_matching(self.state / run)
        self._destroy_secret(run)
        self.party = None
        why = plain_text(body.get("why"))
        self.log.add("run finished", run=run, results=body.get("results"), **({"why": why} if why else {}))
        self.notice(f"run {run} is given up: {why}" if why else f"run {run} is finished")
        return {}

    def _destroy_secret(self, run: str) -> None:
        RunSecret(self.state / run).destroy()
        self.seat = None

    def _hello(self, body: Body) -> dict[str, Any]:
        run = check_run_name(body["run"])
        for other in self.state.glob("*/session.json"):
            if other.parent.name != run:
                Store(other.parent).forget()  # of an unfinished run; its predictions stay
                forget_matching(other.parent)
                RunSecret(other.parent).destroy()
        sites = [str(name) for name in body["sites"]]
        study = self.gate.study(str(body["study"]), sites)
        session = self._greeted_party(run, body) if is_vertical(study) else self._greeted_session(run, body)
        self.log.add("joined", site=self.site, run=run, study=study.hash, sites=sites)
        self.notice(f"takes part in {study.name}, run {run}")
        return session.ready()

    def _greeted_session(self, run: str, body: Body) -> Session:
        self.session = Session(self.site, self.state / run, self.gate, self.families, self.rows(), body)
        self._refuse_unknown_keys(self.session)
        self.session.greeted()
        return self.session

    def _session(self, body: Body) -> Session:
        run = check_run_name(body["run"])
        if self.session is None or self.session.run != run:
            self.session = Session.restore(self.site, self.state / run, self.gate, self.families, self.rows)
            self.log.add("goes on", run=run, study=self.session.study.hash)
        self.gate.still_approved(self.session.study.hash)
        if "prepare" in body:  # we were away when it was sent
            self.session.prepare(body["prepare"])
        return self.session

    def _greeted_party(self, run: str, body: Body) -> PartySession:
        """Greeted again in the same run, it goes on with its session in memory."""
        if self.party is None or self.party.session.run != run:
            keys = (self.signer, self.peers)
            session = PartySession(self.site, self.state / run, self.gate, self.families, self.rows(), body, *keys)
            session.greeted()
            self.party = PartyWork(session)
        return self.party.session

    def _as_party(self, message: Message, tensors: bytes, head: str) -> Sealed:
        """As in `_train`, a repeated request is answered with the same bytes."""
        body = message.body
        run = check_run_name(body["run"])
        if self.party is None or self.party.session.run != run:
            keys = (self.signer, self.peers)
            session = PartySession.restore(self.site, self.state / run, self.gate, self.families, self.rows, *keys)
            self.party = PartyWork(session)
            self.log.add("goes on", run=run, study=session.study.hash)
        store = self.party.session.store
        self.gate.still_approved(self.party.session.study.hash)
        request, stepping = request_hash(body, tensors), message.kind in STEPS
        if stepping:
            known = store.answer(int(body["wave"]), int(body["round"]), request)
            if known is not None:
                return known
            store.refuse_old(int(body["wave"]), int(body["round"]))
        answer, leaving, line = self.party.answer(message)
        sealed = self._seal(ANSWERED_BY[message.kind], {**answer, **place_of(body)}, head, leaving)
        if stepping:
            store.keep_answer(int(body["wave"]), int(body["round"]), request, sealed)
        if line:
            self.notice(line)
        return sealed

    def rows(self) -> Records:
        if self.records is None:
            self.records = self.load()
        return self.records

    def _train(self, message: Message, tensors: bytes, head: str) -> Sealed:
        """A repeated request is answered with the same bytes, whether the answer was lost or the coordinator died."""
        body, session = message.body, self._session(message.body)
        wave, number = int(body["wave"]), int(body["round"])
        request = request_hash(message.body, tensors)
        known = session.store.answer(wave, number, request)
        if known is not None:
            return known
        session.store.refuse_old(wave, number)
        trials = trials_of(session, wave)
        masked = "sum" in body
        if is_secure(list(trials.values())) and body["work"] and not masked:
            problem = "asks for updates without masks, where the study adds them up securely"
            raise DeployError("coordinator", problem, "Ask the coordinator why; nothing was trained.")
        seat = (
            self._seat(session, body) if masked else None
        )  # what is wrong with a sum is known before it costs anything
        if seat is not None:
            check_models(body["sum"], by_trial(message.tensors))
        report, updates, memories = train(session, body, message.tensors)
        leaving = flat(updates) if seat is None else seat.masked(trials, number, updates)
        sealed = self._seal(ANSWERED_BY[message.kind], {**report, **place_of(body)}, head, leaving)
        settled = {n: memory.settled() for n, memory in memories.items()}
        session.store.keep(wave, number, settled, request, sealed)
        self.notice(f"wave {wave + 1}, round {number + 1}: trained")
        for n, entry in report["trials"].items():
            if not entry["finite"]:
                self.notice(
                    f"the update of {trials[int(n)].arm} is not finite and was not sent: its lr may be too high"
                )
        return sealed

    def _refuse_unknown_keys(self, session: Session) -> None:
        """Without the others' keys the coordinator could impersonate them."""
        unknown = [site for site in session.companions if site not in self.peers]
        if unknown and any(arm.privacy.secure_sum is not None for arm in session.study.trained_arms):
            names = plain_text(", ".join(unknown))  # they come from the coordinator
            reason = f"this site has no public key of {names}, without which a secure sum hides nothing"
            raise Refused(Refusal(reason))

    def _seat(self, session: Session, body: Body) -> SumParticipant:
        """This site's participant in the sum that a message is about."""
        wave, number, proposed = int(body["wave"]), int(body["round"]), body["sum"]
        trials = trials_of(session, wave)
        place = Place(session.study.hash, session.run, wave, number)
        terms = checked_terms(session.study, self.site, session.sites, place, trials, proposed)
        if self.seat is None or self.seat[0] != terms.digest:
            self._refuse_unknown_keys(session)
            secret = session.own_secret()
            adds = map(str, sorted(own_work(self.site, trials, number)))
            member = Member(self.site, terms, secret, self.signer, self.peers, session.commitments, adds)
            self.seat = terms.digest, SumParticipant(member, session.commitments)
        try:
            self.seat[1].follow(proposed)
        except WardroundError:
            self.seat = None
            raise
        adverts = self.seat[1].adverts  # the signed ones, not those of this message
        if adverts is not None:
            among = list(map(str, proposed.get("survivors") or [advert["site"] for advert in adverts]))
            check_contributors(self.site, trials, number, adverts, among, self.gate.least_sites())
        return self.seat[1]

    def _in_a_sum(self, kind: str, session: Session, body: Body) -> dict[str, Any]:
        seat, proposed = self._seat(session, body), body["sum"]
        if kind == "keys":
            return {"advert": seat.member.advertise().plain()}
        if kind == "shares":
            return {"shares": {site: sealed.hex() for site, sealed in seat.shares.items()}}
        survivors, trials, number = (
            list(map(str, proposed["survivors"])),
            trials_of(session, int(body["wave"])),
            body["round"],
        )
        check_survivors(session.study, self.site, session.sites, trials, int(number), survivors)
        if kind == "confirm":
            answer: dict[str, Any] = {"signature": seat.member.confirm(survivors).hex()}
        else:
            answer = {"reveal": seat.member.reveal(survivors, read_bytes(proposed["confirmations"])).plain()}
        seat.refuse_other_sums(self.past_sums, survivors)
        return answer

    def _seal(self, kind: str, body: dict[str, Any], head: str, tensors: Tree | None = None) -> Sealed:
        return seal(Message(kind, body, tensors or {}, site=self.site, log=head), self.signer)


def request_hash(body: Body, tensors: bytes) -> str:
    """Identifies a request, however often it is repeated."""
    return sha256(repr(sorted(body.items())).encode() + tensors).hexdigest()


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
