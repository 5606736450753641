"""A whole federation in one process: messages are sealed and opened as over a network, and carried by hand."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from cryptography.hazmat.primitives.asymmetric import ec

from wardround.core.settings import Factory
from wardround.data.records import Records
from wardround.data.sources import Source
from wardround.deployment import Refusal, Refused, Step
from wardround.deployment.common.messaging import Messenger
from wardround.deployment.coordinating.coordinator import Coordinator
from wardround.deployment.flat.flat_topology import flat_coordinator
from wardround.deployment.governance.gate import Gate
from wardround.deployment.hospital import Hospital
from wardround.deployment.site.answering import SiteWork
from wardround.protocol.messages import Sealed
from wardround.protocol.signing import Key, PublicKey
from wardround.runs.catalog import load_study
from wardround.runs.folder import RunFolder
from wardround.study.parser import Families
from wardround.study.schema import Study


@lru_cache(maxsize=16)
def key(name: str) -> Key:
    return Key(ec.generate_private_key(ec.SECP384R1()))


def public(name: str) -> PublicKey:
    return PublicKey(key(name).private.public_key())


def kind_of(sealed: Sealed) -> str:
    return str(orjson.loads(sealed.head)["kind"])


def body_of(sealed: Sealed) -> dict[str, Any]:
    body: dict[str, Any] = orjson.loads(sealed.head)["body"]
    return body


def reason_in(body: Mapping[str, Any]) -> str:
    """Why a site failed, in its answer."""
    return str(body["notice"]["details"]["reason"])


@dataclass
class OpenGate(Gate):
    """Approves of one study; refuses as long as `refusal` is set, or the approval is `withdrawn`."""

    approved: Study | None
    refusal: Refusal | None = None
    withdrawn: bool = False
    most_total_epsilon: float | None = None

    def __post_init__(self) -> None:
        self.known = None if self.approved is None else self.approved.hash  # once: it takes milliseconds

    def study(self, study_hash: str, sites: list[str]) -> Study:
        if self.approved is None or study_hash != self.known:
            raise Refused(Refusal("not approved here"))
        return self.approved

    def still_approved(self, study_hash: str) -> None:
        if self.withdrawn:
            raise Refused(Refusal("the approval was withdrawn"))
        self.study(study_hash, [])

    def budget(self) -> float | None:
        return self.most_total_epsilon

    def least_sites(self) -> int:
        return 2

    def opening_hours(self) -> None:
        if self.refusal is not None:
            raise Refused(self.refusal)


@dataclass
class ByHand:
    """Carries messages one after another.

    `before` sees each message on its way and may lose it (False), `after` each answer and may lose (None) or change it.
    """

    sites: dict[str, SiteWork]
    before: Callable[[str, Sealed], bool] = lambda site, sealed: True
    after: Callable[[str, Sealed, Sealed], Sealed | None] = lambda site, sealed, answer: answer
    carried: list[tuple[str, Sealed, Sealed]] = field(default_factory=list)
    away: set[str] = field(default_factory=set)

    def ask(self, messages: Mapping[str, Sealed]) -> Iterator[tuple[str, Sealed] | None]:
        for site, sealed in reversed(list(messages.items())):  # not in the order of the sites
            if site in self.away or not self.before(site, sealed):
                continue
            network = self.sites[site].answer(Sealed(sealed.head, sealed.tensors, sealed.signature))
            self.carried.append((site, sealed, network))
            answer = self.after(site, sealed, network)
            if answer is not None:
                yield site, Sealed(answer.head, answer.tensors, answer.signature)
        yield None

    def connected(self) -> Mapping[str, bool]:
        return {site: site not in self.away for site in self.sites}


@dataclass
class Federation:
    folder: RunFolder
    transport: ByHand
    coordinator: Coordinator
    open_site: Callable[[str], SiteWork]
    steps: list[Step] = field(default_factory=list)

    def run(self) -> RunFolder:
        for step in self.coordinator.run():
            self.steps.append(step)
        return self.folder

    @property
    def messenger(self) -> Messenger:
        return self.coordinator.messenger

    @property
    def lines(self) -> list[str]:
        """All that a watcher was told, also what no step has shown yet."""
        return [step.line for step in self.steps if step.line] + self.messenger.lines

    def restart_site(self, name: str) -> None:
        """As if its process had died: what it knows is what its folder holds."""
        self.transport.sites[name] = self.open_site(name)

    def restart_coordinator(self) -> "Federation":
        """Another process on the same folder; the sites live on."""
        old = self.messenger
        transport = ByHand(self.transport.sites)
        ends = old.study, old.families, list(old.sites), old.folder, transport, old.signer, old.keys
        fresh = flat_coordinator(Messenger(*ends))
        return Federation(self.folder, transport, fresh, self.open_site)


def federation(
    document: Study | Mapping[str, Any],
    folder: Path,
    sources: Mapping[str, Callable[[], Source]],
    gates: Mapping[str, OpenGate] | None = None,
    models: Mapping[str, Factory] | None = None,
    known_sources: Mapping[str, Factory] | None = None,
) -> Federation:
    """`sources` open each site's rows. What is in `folder` already is gone on with."""
    study, families = load_study(document, models=models, sources=known_sources)

    def open_site(name: str) -> SiteWork:
        gate = (gates or {}).get(name)
        return site_work(name, folder / "sites" / name, study, families, sources[name], gate, keys)

    keys = {name: public(name) for name in sources}
    transport = ByHand({name: open_site(name) for name in sources})
    run_folder = RunFolder(folder / "run")
    ends = study, families, list(sources), run_folder, transport, key("coordinator"), keys
    coordinator = flat_coordinator(Messenger(*ends))
    return Federation(run_folder, transport, coordinator, open_site)


def own_records(source: Source, name: str) -> Records:
    """A hospital's rows, all of them its own whatever the source calls them."""
    records = source.load()
    return replace(records, hospital=np.full(len(records), name, dtype=object))


def site_work(
    name: str,
    state: Path,
    study: Study,
    families: Families,
    source: Callable[[], Source],
    gate: OpenGate | None = None,
    peers: Mapping[str, PublicKey] | None = None,
) -> SiteWork:
    def load() -> Records:
        return own_records(source(), name)

    return answering(name, state, gate or OpenGate(study), families, load, public("coordinator"), peers=peers)


def answering(
    name: str,
    state: Path,
    gate: Gate,
    families: Families,
    load: Callable[[], Records],
    coordinator: PublicKey,
    notice: Callable[[str], None] = lambda line: None,
    peers: Mapping[str, PublicKey] | None = None,
) -> SiteWork:
    """A hospital's process."""
    hospital = Hospital(name, state, gate, families, load, key(name), peers or {})
    return SiteWork(name, state, hospital, key(name), coordinator, notice)


def session_of(work: SiteWork) -> Any:
    """As it stands, or as its files have it after the run."""
    if work.run is not None:
        return work.run.session
    (folder,) = [path.parent for path in work.state.glob("*/session.json")]
    return work.topology.reopen(folder.name).session
