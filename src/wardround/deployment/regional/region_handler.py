"""How a region answers the coordinator of all: as a site does, one sealed message in, one out. Between the
two its own sites are asked, trained and waited for.

hello        which study, run and hospitals   ready        which of its hospitals are there; their columns together
facts        the columns that all use         facts        of its training rows together; rows of each hospital
fill_values  columns that some site lacks     fill_values  of its hospitals together
moments      for a common scale               moments      of its hospitals together
prepare      what was agreed                  prepared
train        models of all                    update       the region's models, and what each has in weight
evaluate     final models                     summary      of each hospital: counts; predictions stay there
goodbye      the run is over                  goodbye
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from wardround.core.errors import DeployError
from wardround.core.tree import Tree
from wardround.deployment.common.messaging import Step
from wardround.deployment.flat.site_handler import SiteWork, request_hash
from wardround.deployment.flat.site_session import Gate, check_run_name
from wardround.deployment.governance.policy import Refusal, Refused
from wardround.deployment.regional.region_coordinator import RegionalCoordinator
from wardround.deployment.regional.region_session import FILE, Body, RegionSession, forget
from wardround.privacy.signatures import Signer, Verifier
from wardround.protocol.catalogue import ANSWERED_BY, Request, requests_to
from wardround.protocol.messages import Message, Sealed
from wardround.protocol.reading import place_of
from wardround.protocol.text import plain_text
from wardround.runs.folder import RunFolder
from wardround.study.parser import Families
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


class RegionWork(SiteWork):
    requests: ClassVar[Mapping[str, type[Request]]] = requests_to("region")

    def __init__(
        self,
        region: str,
        state: Path,
        study: Study,
        families: Families,
        own: Callable[[RunFolder], RegionalCoordinator],
        signer: Signer,
        coordinator: Verifier,
        notice: Callable[[str], None] = lambda line: None,
        watch: Callable[[Step], None] = lambda step: None,
    ) -> None:
        """`own` makes the coordinator of this region's hospitals for the folder of a run. `signer` and
        `coordinator` are the keys between this region and the coordinator of all."""
        super().__init__(region, state, RegionGate(study), families, _no_rows, signer, coordinator, notice)
        self.study, self.own, self.watch = study, own, watch
        self.region: RegionSession | None = None

    def _answer_body(self, kind: str, body: Body, tensors: Tree) -> dict[str, Any]:
        if kind == "hello":
            return self._hello(body)
        if kind == "goodbye":
            return self._goodbye(body)
        region = self._of_run(body)
        if kind == "evaluate":
            return {**region.evaluate(body, tensors), "left": region.left}
        handlers = {
            "facts": region.facts,
            "fill_values": region.fill_values,
            "moments": region.moments,
            "prepare": region.prepare,
        }
        if kind not in handlers:
            raise DeployError("coordinator", "asks a region what only a hospital could answer", "Start it again.")
        return {**handlers[kind](body), "left": region.left}

    def _train(self, message: Message, tensors: bytes, head: str) -> Sealed:
        """The same request gets the same bytes, whether its answer was lost or the coordinator of all died."""
        body, region = message.body, self._of_run(message.body)
        wave, number = int(body["wave"]), int(body["round"])
        request = request_hash({name: value for name, value in body.items() if name != "prepare"}, tensors)
        known = region.store.answer(wave, number, request)
        if known is not None:
            return known
        region.store.refuse_old(wave, number)
        answer, models = region.train(body, message.tensors, request)
        sealed = self._seal(ANSWERED_BY[message.kind], {**answer, "left": region.left, **place_of(body)}, head, models)
        region.store.keep_answer(wave, number, request, sealed)
        self.notice(f"wave {wave + 1}, rounds from {number + 1} on: answered")
        return sealed

    def _hello(self, body: Body) -> dict[str, Any]:
        run = check_run_name(body["run"])
        self.gate.still_approved(str(body["study"]))
        for other in self.state.glob(f"*/{FILE}"):
            if other.parent.name != run:
                forget(other.parent)  # of a run that never said goodbye
        if self.region is None or self.region.run != run:
            self.region = self._session_of(run)
        answer = {**self.region.hello(body), "left": self.region.left}
        self.log.add("joined", site=self.site, run=run, study=self.study.hash, sites=answer["sites"])
        self.notice(f"takes part in {self.study.name} with {', '.join(answer['sites'])}, run {run}")
        return answer

    def _goodbye(self, body: Body) -> dict[str, Any]:
        run = check_run_name(body["run"])
        if (self.state / run / FILE).is_file():
            self._of_run({"run": run}).goodbye(body)
        self.region = None
        why = plain_text(body.get("why"))
        self.log.add("run finished", run=run, results=body.get("results"), **({"why": why} if why else {}))
        self.notice(f"run {run} is given up: {why}" if why else f"run {run} is finished")
        return {}

    def _of_run(self, body: Body) -> RegionSession:
        run = check_run_name(body["run"])
        if self.region is None or self.region.run != run:
            session = self._session_of(run)
            session.restore()
            self.region = session
            self.log.add("goes on", run=run, study=self.study.hash)
        if "prepare" in body:  # the region was away when the others agreed
            self.region.remember(body["prepare"])
        return self.region

    def _session_of(self, run: str) -> RegionSession:
        folder = self.state / run
        (folder / "coordinating").mkdir(parents=True, exist_ok=True, mode=0o700)
        return RegionSession(folder, self.own(RunFolder(folder / "coordinating")), self.watch, self.notice)


def _no_rows() -> NoReturn:
    raise DeployError("region", "has no rows of its own", "This is a defect in wardround: please report it.")
