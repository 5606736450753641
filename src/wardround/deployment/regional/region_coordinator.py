"""A region's coordinator towards its own hospitals."""

import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from wardround.core.errors import DeployError
from wardround.deployment.common.messaging import Step
from wardround.deployment.common.spool import Spool
from wardround.deployment.common.update_checks import shapes_of
from wardround.deployment.common.waves import Task, WaveState, close_round, tasks, write_state
from wardround.deployment.flat.coordinator import Coordinator
from wardround.deployment.regional.region_merging import merged_figures
from wardround.deployment.regional.region_rounds import region_records
from wardround.protocol.messages import Message
from wardround.training.trial import Trial


@dataclass
class RegionalCoordinator(Coordinator):
    """A region's coordinator towards its own sites: the flat federation of these, round by round as it is asked for."""

    hospitals: list[str] = field(default_factory=list)  # of all regions, in the order that numbers them

    @property
    def hospitals_here(self) -> list[str]:
        return self.hospitals

    @property
    def quorum(self) -> int:
        """Where the region is smaller than the study's quorum, all of its sites are needed."""
        return min(self.study.deployment.quorum or len(self.sites), len(self.sites))

    def form(self, run: str, hospitals: Sequence[str]) -> None:
        """With those of the run's hospitals that are this region's. Who left before is asked again."""
        revoked = self.revoked()
        self.run_name, self.hospitals, self.left = run, list(hospitals), {}
        self.members = [site for site in hospitals if site in self.sites and site not in revoked]
        if not self.members:
            problem = "none of its hospitals takes part in this run"
            raise DeployError("region", problem, "Settle it with them, then start the coordinator of all again.")

    def greet(self) -> Generator[Step, None, dict[str, Message]]:
        self.prepared = set()
        self.title = "waiting for sites"
        self.write_federation()
        return (yield from self._greet())

    def rounds(
        self,
        wave: int,
        trials: list[Trial],
        state: WaveState,
        path: Path,
        ends: int,
        score: Sequence[int],
        prepare: Message,
    ) -> Generator[Step, None, WaveState]:
        """All rounds until `ends`, each on disk when it is closed. `score` are trials whose model, as it came to the
        region, its sites score in the first of them."""
        self.shapes = [shapes_of(trial) for trial in trials]
        self.total = max(trial.training.rounds for trial in trials)
        self.title = f"{trials[0].arm}{f' and {len(trials) - 1} more' if len(trials) > 1 else ''}"
        while state.round < ends:
            self.done = state.round
            work = tasks(trials, state, 0, ())
            if state.round == state.span["first"]:
                for n in score:
                    for site in trials[n].scored:
                        if site.name in self.members:
                            work.setdefault(site.name, Task()).score.append(n)
            state = yield from self._regional_round(wave, trials, state, work, prepare)
            write_state(path, state)
            Spool(self.folder.path / "state", wave, state.round - 1).clear()
        self.done = state.round
        return state

    def _regional_round(
        self, wave: int, trials: list[Trial], state: WaveState, work: dict[str, Task], prepare: Message
    ) -> Generator[Step, None, WaveState]:
        began = time.monotonic()
        arrivals, missing = yield from self.gather(wave, trials, state, prepare, work)
        closed = close_round(trials, replace(state, pending=[]), arrivals, time.monotonic() - began)
        records = region_records(trials, closed.pending, arrivals)
        span: Mapping[str, Any] = state.span
        if state.round == span["first"]:
            span = {**span, "figures": merged_figures([entry.body for entry in arrivals.entries.values()])}
        self.log_round(wave, state.round, arrivals, missing)
        return replace(closed, pending=[*state.pending, *records], span=span)

    def say_goodbye(self, results: str, why: str) -> Generator[Step]:
        self.title = "taking leave"
        yield from self._say_goodbye(results, why)
