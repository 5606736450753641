"""A whole federation in one process: letters are sealed and opened as over a network, and carried by hand."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec

from wardround.artifacts.folder import RunFolder
from wardround.catalog import load_study
from wardround.data.records import Records
from wardround.data.sources import Source
from wardround.deploy.coordinator import Coordinator, Step
from wardround.deploy.deployedplan import own_records
from wardround.deploy.policy import Refusal
from wardround.deploy.signing import Key, PublicKey
from wardround.deploy.sitework import Refused, SiteWork
from wardround.engines.letters import Sealed
from wardround.study import Study
from wardround.studyfile import Families


@lru_cache(maxsize=16)
def key(name: str) -> Key:
    return Key(ec.generate_private_key(ec.SECP384R1()))


def public(name: str) -> PublicKey:
    return PublicKey(key(name).private.public_key())


@dataclass
class OpenGate:
    """Approves of one study; refuses as long as `reason` is set."""

    approved: Study
    refusal: Refusal | None = None

    def study(self, study_hash: str, sites: list[str]) -> Study:
        if study_hash != self.approved.hash:
            raise Refused(Refusal("not approved here"))
        return self.approved

    def still_approved(self, study_hash: str) -> None:
        self.study(study_hash, [])

    def enough(self, training_rows: int) -> None:
        pass

    def opening_hours(self) -> None:
        if self.refusal is not None:
            raise Refused(self.refusal)


@dataclass
class ByHand:
    """Carries letters one after another. `before` sees each on its way and may lose it."""

    sites: dict[str, SiteWork]
    before: Callable[[str, Sealed], bool] = lambda site, sealed: True
    carried: list[tuple[str, Sealed, Sealed]] = field(default_factory=list)
    away: set[str] = field(default_factory=set)

    def ask(self, letters: Mapping[str, Sealed]) -> Iterator[tuple[str, Sealed] | None]:
        for site, sealed in reversed(list(letters.items())):  # not in the order of the sites
            if site in self.away or not self.before(site, sealed):
                continue
            answer = self.sites[site].answer(Sealed(sealed.head, sealed.tensors, sealed.signature))
            self.carried.append((site, sealed, answer))
            yield site, Sealed(answer.head, answer.tensors, answer.signature)
        yield None

    def connected(self) -> Mapping[str, bool]:
        return {site: site not in self.away for site in self.sites}


@dataclass
class Federation:
    folder: RunFolder
    post: ByHand
    coordinator: Coordinator
    steps: list[Step] = field(default_factory=list)

    def run(self) -> RunFolder:
        for step in self.coordinator.run():
            self.steps.append(step)
        return self.folder


def federation(
    document: Study | Mapping[str, Any],
    folder: Path,
    sources: Mapping[str, Callable[[], Source]],
    gates: Mapping[str, OpenGate] | None = None,
) -> Federation:
    """`sources` open each site's rows. What is in `folder` already is gone on with."""
    study, families = load_study(document)
    sites = {
        name: site_work(name, folder / "sites" / name, study, families, source, (gates or {}).get(name))
        for name, source in sources.items()
    }
    post = ByHand(sites)
    run_folder = RunFolder(folder / "run")
    keys = {name: public(name) for name in sites}
    return Federation(
        run_folder, post, Coordinator(study, families, list(sites), run_folder, post, key("coordinator"), keys)
    )


def site_work(
    name: str, state: Path, study: Study, families: Families, source: Callable[[], Source], gate: OpenGate | None = None
) -> SiteWork:
    def load() -> Records:
        return own_records(source(), name)

    return SiteWork(name, state, gate or OpenGate(study), families, load, key(name), public("coordinator"))
