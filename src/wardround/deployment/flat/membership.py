"""Who takes part in a run: invited, greeted, agreed, told. What was agreed once stands when the run goes on."""

import json
import secrets
from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass, field

from wardround.core.errors import SiteError
from wardround.core.notices import Notice, read_notice
from wardround.deployment.common.answer_checks import check_ready, check_waves
from wardround.deployment.common.messaging import SiteLeft, Step, revoked_key
from wardround.deployment.common.schema_agreement import Federation, agree_on, read_federation, write_federation
from wardround.deployment.common.secure_sum_coordinator import SecureSumming
from wardround.deployment.flat.site_secret import RunSecret
from wardround.protocol.messages import Message
from wardround.runs.audit import BEGUN, RESUMED
from wardround.runs.environment import describe_environment
from wardround.runs.folder import write_atomically


@dataclass
class Membership(SecureSumming):
    prepared: set[str] = field(default_factory=set)  # sites that know what was agreed

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
        # who left is asked again: it was settled with the site, or it leaves again and the quorum is counted again
        self.left = {site: revoked_key(site) for site in self.members if site not in self.sites}
        self.log.add(RESUMED, study=self.study.hash, engine="flower", run=self.run_name)

    def _federate(self) -> Generator[Step, None, Federation]:
        """Greet every site, let them agree, and tell them what was agreed. What was agreed once stands."""
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
        told = yield from self.ask_all(
            federation.prepare, closing=True, check=lambda site, answer: check_waves(answer.body, waves)
        )
        self.prepared = set(told)
        return federation

    @property
    def hospitals_here(self) -> list[str]:
        """Whose rows this run is about: the sites, unless these are regions."""
        return self.members

    @property
    def absences(self) -> dict[str, Notice]:
        """Who did not come, or left, and why."""
        return {**self.not_joined, **self.left}

    @property
    def invited_hospitals(self) -> list[str]:
        return self.invited

    def _agree(self, ready: Mapping[str, Message]) -> Generator[Step, None, Federation]:
        """Until all that are left have agreed. Who does not take part from the beginning is no site of this run."""
        while True:
            if len(ready) < len(self.members):
                self.restrict_to([site for site in ready if site not in self.left])
                ready = yield from self._greet()
                continue
            self.title = "agreeing on columns"
            try:
                made: Federation = yield from agree_on(
                    self.study, self.families, dict(ready), self.ask_required, self.run_name
                )
            except SiteLeft:
                ready = {site: message for site, message in ready.items() if site not in self.left}
            except SiteError as error:
                ready = self.without(error, ready)
            else:
                return made

    def restrict_to(self, sites: Collection[str]) -> None:
        """These alone are sites of the run. Why the others are not is kept, for the results."""
        for site in self.members:
            late = Notice("site-late", "warning", site, details={"greeting": True})
            if site not in sites:
                self.not_joined[site] = self.left.get(site, late)
        self.members = [site for site in self.members if site in sites]
        self.write_federation()

    def without(self, error: SiteError, ready: Mapping[str, Message]) -> dict[str, Message]:
        """Who disagrees with most of the others leaves, where the quorum allows it; otherwise the run stops here."""
        if error.notice.site not in self.present or len(self.present) <= self.quorum:
            raise error
        self.leave(error.notice)
        return {site: message for site, message in ready.items() if site not in self.left}

    def _greet(self) -> Generator[Step, None, dict[str, Message]]:
        hello = Message("hello", {"run": self.run_name, "study": self.study.hash, "sites": self.hospitals_here})
        ready = yield from self.ask_all(hello, closing=True, check=self.check_ready)
        for site, message in ready.items():
            self.log.add("site joined", site=site, versions=message.body["versions"], head=message.body["head"])
        return ready

    def check_ready(self, site: str, answer: Message) -> None:
        check_ready(answer.body, self.run_name)
