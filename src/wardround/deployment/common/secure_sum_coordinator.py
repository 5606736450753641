"""The coordinator's messages of a secure sum, stage by stage. `secure_sum.py` has the protocol, `secure_wave.py` the
terms.

Everything is on disk before it is sent on: a restarted coordinator repeats its messages with the same content, or the
sites would refuse them. A site that does not answer in time counts as gone, as in training.
"""

import json
from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from wardround.core.errors import SecureSumError
from wardround.core.extras import needs
from wardround.deployment.common.messaging import Answered, B, Messenger, Step, Take
from wardround.deployment.common.secure_sum_site import read_bytes
from wardround.deployment.common.secure_wave import Place, Summands, shortfall, terms_of
from wardround.deployment.common.spool import Entry
from wardround.privacy.secure_sum.fixed_point import Whole
from wardround.privacy.secure_sum.secure_sum import Advert as SignedKeys
from wardround.privacy.secure_sum.secure_sum import Collector, Reveal
from wardround.protocol.catalogue import (
    Advert,
    AdvertPart,
    Confirm,
    Confirmed,
    Keys,
    Request,
    Revealed,
    SealedShares,
    Shared,
    Shares,
    SumTerms,
    Unmask,
)
from wardround.protocol.messages import Sealed, message_of
from wardround.runs.folder import write_atomically

with needs("deploy", "a study across hospitals"):
    from msgspec import convert, structs, to_builtins

REMEDY = "The round is lost, and nothing of it is shown."


class SumDecisions:
    """The settled parts of one round's sum: `roster`, `adverts`, `shares`, `survivors`."""

    def __init__(self, folder: Path, group: int | None) -> None:
        name = "sum" if group is None else f"sum-{group}"
        self.path = folder / f"{name}.decisions"  # no site's answer is called so
        self.settled: dict[str, Any] = json.loads(self.path.read_bytes()) if self.path.is_file() else {}

    def settle(self, name: str, content: Any) -> Any:
        """The first decision stands."""
        if name not in self.settled:
            self.settled[name] = content
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, json.dumps(self.settled).encode())
        return self.settled[name]


@dataclass
class Sum:
    place: Place
    summands: Summands
    decisions: SumDecisions
    collector: Collector
    models: Mapping[str, str]  # hashes of what is sent, by trial
    adverts: list[AdvertPart] = field(default_factory=list)
    sealed: dict[str, dict[str, bytes]] = field(default_factory=dict)
    total: Whole | None = None

    @property
    def terms(self) -> SumTerms:
        terms = self.collector.terms
        return SumTerms(roster=list(terms.roster), threshold=terms.threshold, models=dict(self.models))

    @property
    def adds(self) -> dict[str, list[str]]:
        """The trials to which each advertised site contributes, as it signed them."""
        return {advert.site: advert.adds for advert in self.adverts}

    @property
    def sharers(self) -> list[str]:
        """The sites that may send a masked vector."""
        return list(self.sealed)

    @property
    def survivors(self) -> list[str] | None:
        """Once they are settled: the sites whose vectors are added up."""
        return self.decisions.settled.get("survivors")

    def payload(self, site: str) -> SumTerms:
        """All that a site needs to send its vector, or to go on after a crash."""
        sealed = {sender: content.hex() for sender, content in self.sealed[site].items()}
        return structs.replace(self.terms, adverts=self.adverts, sealed=sealed)


def begin_sum(messenger: Messenger, place: Place, summands: Summands, models: Mapping[str, str], folder: Path) -> Sum:
    """DeployError if too few sites are left."""
    decisions = SumDecisions(folder, place.group)
    present = [site for site in summands.expected if site in messenger.present]
    roster = decisions.settled.get("roster", present)
    terms = terms_of(place, summands, roster, models)
    decisions.settle("roster", roster)
    return Sum(place, summands, decisions, Collector(terms, messenger.keys), models)


def share_keys(messenger: Messenger, sums: Sum) -> Generator[Step]:
    """Exchange keys and shares. SecureSumError if too few sites answer. What was settled before a restart is taken as
    an answer is."""
    collector, decisions, terms = sums.collector, sums.decisions, sums.terms
    adverts: dict[str, AdvertPart] = {}
    shares: dict[str, SealedShares] = {}

    def take_advert(site: str, advert: AdvertPart) -> None:
        collector.take_advert(_own(site, SignedKeys.read(to_builtins(advert))))
        adverts[site] = advert

    def take_shares(site: str, sealed: SealedShares) -> None:
        collector.take_shares(site, read_bytes(sealed))
        shares[site] = sealed

    if "adverts" in decisions.settled:
        for advert in convert(decisions.settled["adverts"], list[AdvertPart]):
            take_advert(advert.site, advert)
    else:
        requests = {site: Keys(**_place(sums), sum=terms) for site in collector.terms.roster}
        caught_up = {site: messenger.caught_up(request, site) for site, request in requests.items()}
        yield from _stage(
            messenger, sums, caught_up, Advert, lambda site, answered: take_advert(site, answered.body.advert), "keys"
        )
    known = [advert.site for advert in collector.adverts()]
    sums.adverts = [adverts[site] for site in known]
    decisions.settle("adverts", to_builtins(sums.adverts))
    _refuse_too_few(sums, known)  # before anybody pays for work that cannot be shown
    if "shares" in decisions.settled:
        for site, sealed in decisions.settled["shares"].items():
            take_shares(site, sealed)
    else:
        request = Shares(**_place(sums), sum=structs.replace(terms, adverts=sums.adverts))
        yield from _stage(
            messenger,
            sums,
            dict.fromkeys(known, request),
            Shared,
            lambda site, answered: take_shares(site, answered.body.shares),
            "shares",
        )
    sums.sealed = collector.sealed()
    decisions.settle("shares", shares)


def unmask(messenger: Messenger, sums: Sum, entries: Mapping[str, Entry[Any]]) -> Generator[Step]:
    """The sum of the vectors that arrived. SecureSumError if too few sites remain."""
    collector = sums.collector
    arrived = [site for site in sums.sharers if site in entries and site in messenger.present]
    counted = arrived if sums.survivors is None else sums.survivors
    _refuse_too_few(sums, counted)
    for site in counted:
        if site not in entries:
            raise SecureSumError(site, "its masked vector, which is part of the sum, is lost", REMEDY)
        collector.take_masked(site, entries[site].masked().numpy().view(np.uint64))
    survivors: list[str] = sums.decisions.settle("survivors", collector.survivors())

    def take_confirmation(site: str, answered: Answered[Confirmed]) -> None:
        collector.take_confirmation(site, read_bytes({site: answered.body.signature})[site])

    terms = {site: structs.replace(sums.payload(site), survivors=survivors) for site in survivors}
    confirm = {site: Confirm(**_place(sums), sum=terms[site]) for site in survivors}
    yield from _stage(messenger, sums, confirm, Confirmed, take_confirmation, "confirming")
    confirmations = {site: sign.hex() for site, sign in collector.confirmations().items()}

    def take_reveal(site: str, answered: Answered[Revealed]) -> None:
        collector.take_reveal(_own(site, Reveal.read(to_builtins(answered.body.reveal))))

    reveal = {
        site: Unmask(**_place(sums), sum=structs.replace(terms[site], confirmations=confirmations))
        for site in survivors
    }
    yield from _stage(messenger, sums, reveal, Revealed, take_reveal, "unmasking")
    sums.total = collector.total()


def _refuse_too_few(sums: Sum, sites: Collection[str]) -> None:
    problem = shortfall(sums.summands, sites, sums.adds)
    if problem:
        raise SecureSumError("secure sum", problem, REMEDY)


def _place(sums: Sum) -> dict[str, Any]:
    return {"run": sums.place.run, "wave": sums.place.wave, "round": sums.place.round}


def _stage(
    messenger: Messenger, sums: Sum, requests: Mapping[str, Request], answer: type[B], take: Take[B], what: str
) -> Generator[Step]:
    answered_sites: set[str] = set()

    def take_once(site: str, answered: Answered[B]) -> None:
        if site not in answered_sites:  # an answer may come twice
            take(site, answered)
            answered_sites.add(site)

    sealed: dict[str, Sealed] = {
        site: messenger.sealed(message_of(request), site)
        for site, request in requests.items()
        if site in messenger.present
    }
    stage = f"round {sums.place.round + 1}, {what}"
    yield from messenger.collect(sealed, answer, take_once, stage, closing=True)


def _own(site: str, message: Any) -> Any:
    """Refuse a message in the name of another site."""
    if message.site != site:
        raise SecureSumError(site, f"speaks in the name of {message.site}", REMEDY)
    return message
