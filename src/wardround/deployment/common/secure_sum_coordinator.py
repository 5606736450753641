"""The coordinator's messages of a secure sum, stage by stage. `secure_sum.py` has the protocol, `secure_wave.py` the
terms.

Everything is on disk before it is sent on: a restarted coordinator repeats its messages with the same content, or the
sites would refuse them. A site that does not answer in time counts as gone, as in training.
"""

import json
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from wardround.core.errors import SecureSumError
from wardround.deployment.common.messaging import Messenger, Step, Take
from wardround.deployment.common.secure_sum_site import read_bytes
from wardround.deployment.common.secure_wave import Place, Trials, expected_sites, shortfall, terms_of
from wardround.deployment.common.spool import Entry
from wardround.privacy.secure_sum.fixed_point import Whole
from wardround.privacy.secure_sum.secure_sum import Advert, Collector, Reveal
from wardround.protocol.messages import Message, Sealed
from wardround.runs.folder import write_atomically

REMEDY = "The round is lost, and nothing of it is shown."


class SumDecisions:
    """The settled parts of one round's sum: `roster`, `adverts`, `shares`, `survivors`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "sum.decisions"  # no site's answer is called so
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
    place: Mapping[str, Any]  # run, wave, round
    trials: Trials
    decisions: SumDecisions
    collector: Collector
    models: Mapping[str, str]  # hashes of what is sent, by trial
    sealed: dict[str, dict[str, bytes]] = field(default_factory=dict)
    total: Whole | None = None

    @property
    def terms(self) -> dict[str, Any]:
        terms = self.collector.terms
        return {"roster": list(terms.roster), "threshold": terms.threshold, "models": dict(self.models)}

    @property
    def adds(self) -> dict[str, list[str]]:
        """The trials to which each advertised site contributes, as it signed them."""
        return {advert["site"]: advert["adds"] for advert in self.decisions.settled["adverts"]}

    @property
    def sharers(self) -> list[str]:
        """The sites that may send a masked vector."""
        return list(self.sealed)

    def payload(self, site: str) -> dict[str, Any]:
        """All that a site needs to send its vector, or to go on after a crash."""
        sealed = {sender: content.hex() for sender, content in self.sealed[site].items()}
        return {**self.terms, "adverts": self.decisions.settled["adverts"], "sealed": sealed}


class SecureSumming(Messenger):
    def begin_sum(self, wave: int, number: int, trials: Trials, models: Mapping[str, str], folder: Path) -> Sum:
        """DeployError if too few sites are left."""
        decisions, place = SumDecisions(folder), Place(self.study.hash, self.run_name, wave, number)
        present = [site for site in expected_sites(trials, number) if site in self.present]
        roster = decisions.settled.get("roster", present)
        terms = terms_of(place, trials, roster, models)
        decisions.settle("roster", roster)
        place_fields = {"run": self.run_name, "wave": wave, "round": number}
        return Sum(place_fields, trials, decisions, Collector(terms, self.keys), models)

    def share_keys(self, sums: Sum, prepare: Callable[[str], Mapping[str, Any]]) -> Generator[Step]:
        """Exchange keys and shares. SecureSumError if too few sites answer. `prepare` gives what a site must be told
        first."""
        collector, decisions = sums.collector, sums.decisions
        adverts: dict[str, Any] = {}

        def take_advert(site: str, sealed: Sealed, message: Message) -> None:
            collector.take_advert(_own(site, Advert.read(message.body["advert"])))
            adverts[site] = message.body["advert"]

        if "adverts" in decisions.settled:
            adverts |= {advert["site"]: advert for advert in decisions.settled["adverts"]}
            for advert in adverts.values():
                collector.take_advert(Advert.read(advert))
        else:
            roster = collector.terms.roster
            messages = {site: Message("keys", {**sums.place, **prepare(site), "sum": sums.terms}) for site in roster}
            yield from self._stage(sums, messages, take_advert, "keys")
        known = collector.adverts()
        decisions.settle("adverts", [adverts[advert.site] for advert in known])
        # before anybody pays for work that cannot be shown
        self._refuse_too_few(sums, [advert.site for advert in known])
        shares: dict[str, Any] = {}

        def take_shares(site: str, sealed: Sealed, message: Message) -> None:
            collector.take_shares(site, read_bytes(message.body["shares"]))
            shares[site] = message.body["shares"]

        if "shares" in decisions.settled:
            shares |= decisions.settled["shares"]
            for site, content in shares.items():
                collector.take_shares(site, read_bytes(content))
        else:
            terms = {**sums.terms, "adverts": decisions.settled["adverts"]}
            messages = {advert.site: Message("shares", {**sums.place, "sum": terms}) for advert in known}
            yield from self._stage(sums, messages, take_shares, "shares")
        sums.sealed = collector.sealed()
        decisions.settle("shares", shares)

    def unmask(self, sums: Sum, entries: Mapping[str, Entry]) -> Generator[Step]:
        """The sum of the vectors that arrived. SecureSumError if too few sites remain."""
        collector = sums.collector
        arrived = [site for site in sums.sharers if site in entries and site in self.present]
        survivors = sums.decisions.settled.get("survivors", arrived)
        self._refuse_too_few(sums, survivors)
        for site in survivors:
            collector.take_masked(site, entries[site].masked().numpy().view(np.uint64))
        survivors = sums.decisions.settle("survivors", collector.survivors())

        def take_confirmation(site: str, sealed: Sealed, message: Message) -> None:
            collector.take_confirmation(site, read_bytes({site: message.body["signature"]})[site])

        messages = self._to(sums, "confirm", survivors, {"survivors": survivors})
        yield from self._stage(sums, messages, take_confirmation, "confirming")
        confirmations = {site: sign.hex() for site, sign in collector.confirmations().items()}
        messages = self._to(sums, "unmask", survivors, {"survivors": survivors, "confirmations": confirmations})

        def take_reveal(site: str, sealed: Sealed, message: Message) -> None:
            collector.take_reveal(_own(site, Reveal.read(message.body["reveal"])))

        yield from self._stage(sums, messages, take_reveal, "unmasking")
        sums.total = collector.total()

    def _refuse_too_few(self, sums: Sum, sites: Collection[str]) -> None:
        problem = shortfall(sums.trials, int(sums.place["round"]), sites, sums.adds)
        if problem:
            raise SecureSumError("secure sum", problem, REMEDY)

    def _to(self, sums: Sum, kind: str, sites: Collection[str], more: Mapping[str, Any]) -> dict[str, Message]:
        return {site: Message(kind, {**sums.place, "sum": {**sums.payload(site), **more}}) for site in sites}

    def _stage(self, sums: Sum, messages: Mapping[str, Message], take: Take, what: str) -> Generator[Step]:
        answered: set[str] = set()

        def take_once(site: str, sealed: Sealed, message: Message) -> None:
            if site not in answered:  # an answer may come twice
                take(site, sealed, message)
                answered.add(site)

        sealed = {site: self.sealed(message, site) for site, message in messages.items() if site in self.present}
        yield from self.collect(sealed, take_once, f"round {int(sums.place['round']) + 1}, {what}", closing=True)


def _own(site: str, message: Any) -> Any:
    """Refuse a message in the name of another site."""
    if message.site != site:
        raise SecureSumError(site, f"speaks in the name of {message.site}", REMEDY)
    return message
