"""A region as the loop of `site/answering.py` knows it: to the coordinator of all it answers as a site does. Between a
request and its answer its own hospitals are asked, trained and waited for.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from wardround.deployment.common.messaging import Step
from wardround.deployment.governance.gate import Gate
from wardround.deployment.governance.policy import Refusal, Refused
from wardround.deployment.regional.region_coordinator import RegionalCoordinator
from wardround.deployment.regional.region_session import RegionSession, forget
from wardround.deployment.site.answering import OpenRun, without_tensors
from wardround.deployment.site.session import FILE, RegionRun, greeted, read_session, restored
from wardround.protocol.catalogue import (
    Answer,
    AskFacts,
    AskFillValues,
    AskMoments,
    Evaluate,
    Goodbye,
    Hello,
    Prepare,
    Request,
    TrainRegion,
    requests_to,
)
from wardround.runs.folder import RunFolder
from wardround.study.schema import Study


@dataclass(frozen=True)
class RegionGate(Gate):
    """A region coordinates the one study that its kit was made for. It has no rows, and so no policy: its sites do."""

    known: Study

    def study(self, study_hash: str, sites: list[str]) -> Study:
        self.still_approved(study_hash)
        return self.known

    def still_approved(self, study_hash: str) -> None:
        if study_hash != self.known.hash:
            reason = f"this region's kit is for study {self.known.hash[:12]}, and not for {study_hash[:12]}"
            raise Refused(Refusal(reason))


@dataclass
class Region:
    """`own` makes the coordinator of this region's hospitals for the folder of a run."""

    state: Path
    study: Study
    own: Callable[[RunFolder], RegionalCoordinator]
    notice: Callable[[str], None] = lambda line: None
    watch: Callable[[Step], None] = lambda step: None
    gate: Gate = field(init=False)

    def __post_init__(self) -> None:
        self.gate = RegionGate(self.study)

    @property
    def requests(self) -> Mapping[str, type[Request]]:
        return requests_to("region")

    def greet(self, hello: Hello, run: OpenRun | None) -> tuple[OpenRun, Answer, str]:
        self.gate.still_approved(hello.study)
        known = None if run is None else run.session.coordinator  # it goes on speaking to the same hospitals
        session = greeted(self._session(hello, known))
        answer = session.ready()
        line = f"takes part in {self.study.name} with {', '.join(answer.sites)}, run {hello.run}"
        return self._opened(session), answer, line

    def reopen(self, run: str) -> OpenRun:
        known = read_session(self.state / run)
        return self._opened(restored("region", known if isinstance(known, RegionRun) else None, self._session))

    def finish(self, goodbye: Goodbye, run: OpenRun | None) -> None:
        folder = self.state / goodbye.run
        if (folder / FILE).is_file():
            (run or self.reopen(goodbye.run)).session.goodbye(goodbye)
            forget(folder)

    def give_up(self, folder: Path) -> None:
        forget(folder)

    def _session(self, hello: Hello, coordinator: RegionalCoordinator | None = None) -> RegionSession:
        folder = self.state / hello.run
        (folder / "coordinating").mkdir(parents=True, exist_ok=True, mode=0o700)
        coordinator = coordinator or self.own(RunFolder(folder / "coordinating"))
        return RegionSession(folder, coordinator, hello, self.watch, self.notice)

    def _opened(self, session: RegionSession) -> OpenRun:
        return OpenRun(
            session.run,
            self.study.hash,
            session,
            session.store,
            handlers={
                AskFacts: without_tensors(session.facts),
                AskFillValues: without_tensors(session.fill_values),
                AskMoments: without_tensors(session.moments),
                Prepare: without_tensors(session.prepare),
                Evaluate: session.evaluate,
            },
            steps={TrainRegion: session.train},
            catch_up=session.catch_up,
        )
