"""What a hospital answers in a flat federation, and in a region towards its coordinator: a handler for each type of
request. `protocol/catalogue.py` says what each of them asks and answers.
"""

from collections.abc import Mapping

from wardround.core.errors import DeployError, WardroundError
from wardround.core.extras import needs
from wardround.core.tree import Tree
from wardround.deployment.common.secure_sum_site import (
    Commitments,
    SumParticipant,
    check_contributors,
    check_models,
    check_survivors,
    checked_terms,
    read_bytes,
)
from wardround.deployment.common.secure_wave import (
    Place,
    Summands,
    group_of,
    is_secure,
    of_trials,
    own_group,
    vector_of,
)
from wardround.deployment.flat.site_analyses import AnalysesAtSite
from wardround.deployment.flat.site_session import Session
from wardround.deployment.flat.site_training import by_trial, evaluate, flat, own_work, train, trials_of
from wardround.deployment.governance.policy import Refusal, Refused
from wardround.deployment.site.answering import OpenRun, Reply, without_tensors
from wardround.privacy.secure_sum.secure_sum import Member
from wardround.privacy.signatures import Signer, Verifier
from wardround.protocol.catalogue import (
    Advert,
    Analyse,
    AskAdmission,
    AskFacts,
    AskFillValues,
    AskMoments,
    AskSurvey,
    Commit,
    Committed,
    Confirm,
    Confirmed,
    Evaluate,
    Keys,
    Open,
    Opened,
    Prepare,
    Revealed,
    Shared,
    Shares,
    SumTerms,
    Train,
    Unmask,
)
from wardround.protocol.text import plain_text
from wardround.study.explanations import conducted_explanations

with needs("deploy", "a study across hospitals"):
    from msgspec import convert

InSum = Keys | Shares | Train | Analyse | Confirm | Unmask  # what can be asked in a secure sum
ASK_WHY = "Ask the coordinator why; nothing was given away."


def open_flat_run(session: Session, signer: Signer, peers: Mapping[str, Verifier]) -> OpenRun:
    work = FlatWork(session, signer, peers)
    return OpenRun(
        session.run,
        session.study.hash,
        session,
        session.store,
        handlers={
            AskFacts: without_tensors(session.facts),
            AskFillValues: without_tensors(session.fill_values),
            AskMoments: without_tensors(session.moments),
            Commit: without_tensors(work.commit),
            Open: without_tensors(work.open),
            Prepare: without_tensors(session.prepare),
            AskSurvey: without_tensors(work.analyses.survey),
            AskAdmission: without_tensors(work.analyses.admission),
            Keys: without_tensors(work.advertise),
            Shares: without_tensors(work.share),
            Confirm: without_tensors(work.confirm),
            Unmask: without_tensors(work.reveal),
            Evaluate: work.evaluate,
        },
        steps={Train: work.train, Analyse: work.analyse},
        catch_up=session.catch_up,
    )


class FlatWork:
    def __init__(self, session: Session, signer: Signer, peers: Mapping[str, Verifier]) -> None:
        """`peers` are the public keys of all sites, for secure sums."""
        self.session, self.signer, self.peers = session, signer, peers
        self.analyses = AnalysesAtSite(session)
        self.seat: tuple[bytes, SumParticipant] | None = None  # in the last secure sum, by its terms
        self.past_sums = Commitments(session.folder.parent / "sums.jsonl")

    def commit(self, request: Commit) -> Committed:
        return Committed(**request.place, commitment=self.session.draw.commit(self.signer))

    def open(self, request: Open) -> Opened:
        refuse_unknown_keys(self.session, self.peers)
        return Opened(**request.place, number=self.session.draw.open(request.commitments, self.peers))

    def train(self, request: Train, tensors: Tree) -> Reply:
        session, number, terms = self.session, request.round, request.sum
        trials = trials_of(session, request.wave)
        if is_secure(list(trials.values())) and request.work and terms is None:
            problem = "asks for updates without masks, where the study adds them up securely"
            raise DeployError("coordinator", problem, "Ask the coordinator why; nothing was trained.")
        seat = None
        if terms is not None:  # what is wrong with a sum is known before it costs anything
            seat = self._seat(request, terms)
            check_models(terms, by_trial(tensors))
        update, updates, memories = train(session, request, tensors)
        leaving = flat(updates)
        if seat is not None:
            vector = vector_of(own_group(trials, session.site), number, session.site, updates)
            leaving = seat.masked(vector, bool(updates))
        settled = {n: memory.settled() for n, memory in memories.items()}
        session.store.keep_memories(request.wave, number, settled)
        lost = [
            f"the update of {trials[n].arm} is not finite and was not sent: its lr may be too high"
            for n, work in update.trials.items()
            if not work.finite
        ]
        return Reply(update, leaving, (f"wave {request.wave + 1}, round {number + 1}: trained", *lost))

    def analyse(self, request: Analyse, tensors: Tree) -> Reply:
        sums, terms = self.analyses.answer(request, tensors), request.sum
        if terms is None:
            return self.analyses.reply(request, sums)
        seat = self._seat(request, terms)
        self.analyses.check_question(request, tensors, terms)
        return self.analyses.reply(request, seat.masked(self.analyses.vector(request, tensors, sums), True))

    def evaluate(self, request: Evaluate, tensors: Tree) -> Reply:
        summary = evaluate(self.session, request, tensors)
        explained = conducted_explanations(self.session.study)  # sums for these come after the last round
        if request.wave == len(self.session.waves) - 1 and not explained:  # the goodbye might never come
            self.session.secret.destroy()
            self.seat = None
        return Reply(summary)

    def advertise(self, request: Keys) -> Advert:
        seat = self._seat(request, request.sum)
        return convert({**request.place, "advert": seat.member.advertise().plain()}, Advert)

    def share(self, request: Shares) -> Shared:
        seat = self._seat(request, request.sum)
        return Shared(**request.place, shares={site: sealed.hex() for site, sealed in seat.shares.items()})

    def confirm(self, request: Confirm) -> Confirmed:
        seat = self._seat(request, request.sum)
        survivors = self._survivors(request)
        signature = seat.member.confirm(survivors).hex()
        seat.refuse_other_sums(self.past_sums, survivors)
        return Confirmed(**request.place, signature=signature)

    def reveal(self, request: Unmask) -> Revealed:
        seat = self._seat(request, request.sum)
        survivors, confirmations = self._survivors(request), request.sum.confirmations
        if confirmations is None:
            raise DeployError("coordinator", "does not say who has confirmed a secure sum", ASK_WHY)
        reveal = seat.member.reveal(survivors, read_bytes(confirmations)).plain()
        seat.refuse_other_sums(self.past_sums, survivors)
        return convert({**request.place, "reveal": reveal}, Revealed)

    def _survivors(self, request: Confirm | Unmask) -> list[str]:
        session, survivors = self.session, request.sum.survivors
        if survivors is None:
            raise DeployError("coordinator", "does not say who is in a secure sum", ASK_WHY)
        check_survivors(session.study, session.site, session.sites, self._sum_of(request)[0], survivors)
        return survivors

    def _sum_of(self, request: InSum) -> tuple[Summands, list[str]]:
        """What is added up by the approved study, and the parts to which this site contributes."""
        session, number = self.session, request.round
        if session.is_analysis(request.wave):
            return self.analyses.summands(request.wave)
        trials = trials_of(session, request.wave)
        if not is_secure(list(trials.values())):
            raise DeployError("coordinator", "asks for a secure sum that the study does not have", ASK_WHY)
        trials = own_group(trials, session.site)
        return of_trials(trials, number), list(map(str, sorted(own_work(session.site, trials, number))))

    def _group_of(self, request: InSum) -> int | None:
        session = self.session
        if session.is_analysis(request.wave):
            return None
        return group_of(trials_of(session, request.wave), session.site)

    def _seat(self, request: InSum, proposed: SumTerms) -> SumParticipant:
        """This site's participant in the sum that a message is about."""
        session = self.session
        summands, adds = self._sum_of(request)
        place = Place(session.study.hash, session.run, request.wave, request.round, self._group_of(request))
        terms = checked_terms(session.study, session.site, session.sites, place, summands, proposed)
        if self.seat is None or self.seat[0] != terms.digest:
            refuse_unknown_keys(session, self.peers)
            secret = session.own_secret()
            member = Member(session.site, terms, secret, self.signer, self.peers, session.commitments, adds)
            self.seat = terms.digest, SumParticipant(member, session.commitments)
        try:
            self.seat[1].follow(proposed)
        except WardroundError:
            self.seat = None
            raise
        adverts = self.seat[1].adverts  # the signed ones, not those of this message
        if adverts is not None:
            among = proposed.survivors or [advert.site for advert in adverts]
            check_contributors(session.site, summands, adverts, among, session.gate.least_sites())
        return self.seat[1]


def refuse_unknown_keys(session: Session, peers: Mapping[str, Verifier]) -> None:
    """Without the others' keys the coordinator could impersonate them."""
    unknown = [site for site in session.companions if site not in peers]
    protected = [arm.privacy for arm in session.study.trained_arms] + [
        own.rows.privacy for own in session.study.analyses
    ]
    if unknown and any(privacy.secure_sum is not None for privacy in protected):
        names = plain_text(", ".join(unknown))  # they come from the coordinator
        reason = f"this site has no public key of {names}, without which a secure sum hides nothing"
        raise Refused(Refusal(reason))
