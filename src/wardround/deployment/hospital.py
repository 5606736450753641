"""A hospital as the loop of `site/answering.py` knows it: a site of a flat federation or a region, or a party, by the
study that it is greeted for."""

from collections.abc import Callable, Mapping
from pathlib import Path

from wardround.data.records import Records
from wardround.deployment.common.site_store import Store
from wardround.deployment.flat.run_secret import RunSecret
from wardround.deployment.flat.site_handler import open_flat_run, refuse_unknown_keys
from wardround.deployment.flat.site_session import Session
from wardround.deployment.governance.gate import Gate
from wardround.deployment.site.answering import OpenRun
from wardround.deployment.site.session import PartyRun, greeted, read_session
from wardround.deployment.vertical.party_handler import open_party_run
from wardround.deployment.vertical.party_session import PartySession, forget_matching
from wardround.deployment.vertical.vertical_validation import is_vertical
from wardround.privacy.signatures import Signer, Verifier
from wardround.protocol.catalogue import Answer, Goodbye, Hello, Request, requests_to
from wardround.study.parser import Families


class Hospital:
    def __init__(
        self,
        site: str,
        state: Path,
        gate: Gate,
        families: Families,
        load: Callable[[], Records],
        signer: Signer,
        peers: Mapping[str, Verifier],
    ) -> None:
        """`peers` are the public keys of all sites, for secure sums and for what parties seal for each other."""
        self.site, self.state, self.gate, self.families = site, state, gate, families
        self.load, self.signer, self.peers = load, signer, peers
        self._records: Records | None = None

    @property
    def requests(self) -> Mapping[str, type[Request]]:
        return requests_to("site") | requests_to("party")

    def greet(self, hello: Hello, run: OpenRun | None) -> tuple[OpenRun, Answer, str]:
        study = self.gate.study(hello.study, hello.sites)
        folder, rows = self.state / hello.run, self.rows()
        if not is_vertical(study):
            session = Session(self.site, folder, self.gate, self.families, rows, hello)
            refuse_unknown_keys(session, self.peers)
            opened = open_flat_run(greeted(session), self.signer, self.peers)
        elif run is not None:  # greeted again in the same run, a party goes on with its session in memory
            opened = run
        else:
            keys = (self.signer, self.peers)
            party = PartySession(self.site, folder, self.gate, self.families, rows, hello, *keys)
            opened = open_party_run(greeted(party))
        return opened, opened.session.ready(), f"takes part in {study.name}, run {hello.run}"

    def reopen(self, run: str) -> OpenRun:
        folder, place = self.state / run, (self.gate, self.families)
        if isinstance(read_session(folder), PartyRun):
            keys = (self.signer, self.peers)
            return open_party_run(PartySession.restore(self.site, folder, *place, self.rows, *keys))
        return open_flat_run(Session.restore(self.site, folder, *place, self.rows), self.signer, self.peers)

    def finish(self, goodbye: Goodbye, run: OpenRun | None) -> None:
        self.give_up(self.state / goodbye.run)

    def give_up(self, folder: Path) -> None:
        """Predictions and models stay."""
        Store(folder).forget()
        forget_matching(folder)
        RunSecret(folder).destroy()

    def rows(self) -> Records:
        if self._records is None:
            self._records = self.load()
        return self._records
