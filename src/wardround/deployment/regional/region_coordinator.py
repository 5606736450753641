"""A region's coordinator towards its own hospitals: the flat federation of these, round by round as it is asked for."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from wardround.core.errors import DeployError
from wardround.core.extras import needs
from wardround.core.tree import Tree
from wardround.deployment.common.answer_checks import check_ready
from wardround.deployment.common.deployed_plan import DeployedPlan
from wardround.deployment.common.messaging import Answered, Messenger, Step
from wardround.deployment.common.schema_agreement import Disagreement
from wardround.deployment.common.waves import WaveState, write_state
from wardround.deployment.coordinating.coordinator import title_of
from wardround.deployment.coordinating.final_scores import ask_for_scores
from wardround.deployment.coordinating.greeting import greet, without
from wardround.deployment.flat.flat_rounds import FlatRounds, Task, tasks
from wardround.deployment.flat.flat_topology import check_summary
from wardround.deployment.flat.site_training import by_trial
from wardround.deployment.regional.region_merging import merged_figures
from wardround.deployment.regional.region_rounds import region_records
from wardround.protocol.catalogue import Prepare, Prepared, Ready, Summary
from wardround.training.trial import Trial

with needs("deploy", "a study across hospitals"):
    from msgspec import to_builtins


def region_coordinator(messenger: Messenger) -> "RegionalCoordinator":
    # where the region is smaller than the study's quorum, all of its sites are needed
    messenger.quorum = min(messenger.quorum, len(messenger.sites))
    return RegionalCoordinator(messenger)


@dataclass
class RegionalCoordinator:
    messenger: Messenger
    plan: DeployedPlan | None = field(default=None)  # once all have agreed

    def form(self, run: str, hospitals: Sequence[str]) -> None:
        """With those of the run's hospitals that are this region's. Who left before is asked again."""
        messenger, revoked = self.messenger, self.messenger.revoked()
        messenger.run_name, messenger.hospitals, messenger.left = run, list(hospitals), {}
        messenger.members = [site for site in hospitals if site in messenger.sites and site not in revoked]
        if not messenger.members:
            problem = "none of its hospitals takes part in this run"
            raise DeployError("region", problem, "Settle it with them, then start the coordinator of all again.")

    def greet(self) -> Generator[Step, None, dict[str, Ready]]:
        messenger = self.messenger
        messenger.prepared = set()
        messenger.title = "waiting for sites"
        messenger.write_federation()
        return (yield from greet(messenger, Ready, lambda site, body: check_ready(body, messenger.run_name)))

    def without(self, error: Disagreement, ready: Mapping[str, Ready]) -> dict[str, Ready]:
        return without(self.messenger, error, ready)

    def prepare(self, agreed: Prepare, check: Callable[[str, Prepared], None]) -> Generator[Step]:
        """Who is away now receives it with the next request."""
        self.messenger.agreement = agreed
        answers = yield from self.messenger.ask_all(agreed, Prepared, closing=True, check=check)
        self.messenger.prepared = set(answers)

    def rounds(
        self, wave: int, trials: list[Trial], state: WaveState, path: Path, ends: int, score: Sequence[int]
    ) -> Generator[Step, None, WaveState]:
        """All rounds until `ends`, each on disk when it is closed. `score` are trials whose model, as it came to the
        region, its sites score in the first of them."""
        messenger, rounds = self.messenger, FlatRounds(self.messenger, self.agreed_plan, wave, trials)
        messenger.total = max(trial.training.rounds for trial in trials)
        messenger.title = title_of(trials)
        while state.round < ends:
            messenger.done = state.round
            first = state.round == state.span["first"]
            closed = yield from rounds.round(state, self._tasks(trials, state, score if first else ()))
            span = {**state.span, "rounds": [*state.span["rounds"], *region_records(trials, closed)]}
            if first:
                figures = merged_figures([entry.body.figures for entry in closed.arrivals.entries.values()])
                span["figures"] = to_builtins(figures, str_keys=True)
            state = replace(closed.state, span=span)
            write_state(path, state)
            rounds.spool(state.round - 1).clear()
        messenger.done = state.round
        return state

    def _tasks(self, trials: list[Trial], state: WaveState, score: Sequence[int]) -> dict[str, Task]:
        work = tasks(trials, state, 0, ())
        for number in score:
            for site in trials[number].scored:
                if site.name in self.messenger.members:
                    work.setdefault(site.name, Task()).score.append(number)
        return work

    def summaries(
        self, wave: int, trials: list[Trial], state: WaveState, score: Sequence[int], own: Mapping[str, Tree]
    ) -> Generator[Step, None, dict[str, Answered[Summary]]]:
        check = partial(
            check_summary,
            trials=trials,
            score=score,
            plan=self.agreed_plan,
            regional=lambda site: set(by_trial(own.get(site, {}))),
        )
        return (yield from ask_for_scores(self.messenger, wave, trials, state, score, Summary, check, own))

    @property
    def agreed_plan(self) -> DeployedPlan:
        if self.plan is None:
            raise ValueError("sites are asked for models before they have agreed")
        return self.plan
