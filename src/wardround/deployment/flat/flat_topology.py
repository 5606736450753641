"""A coordinator and its sites, without regions or parties."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from wardround.deployment.common.answer_checks import check_figures, check_ready, check_summaries
from wardround.deployment.common.deployed_plan import DeployedPlan
from wardround.deployment.common.deployment_results import Participants, write_results
from wardround.deployment.common.messaging import Messenger, Step
from wardround.deployment.common.waves import TrialRecord, WaveState, first_state, scored_records
from wardround.deployment.coordinating.agreement import Federation, agree_on
from wardround.deployment.coordinating.coordinator import GO_ON, Closed, Coordinator
from wardround.deployment.coordinating.final_scores import ask_for_scores, keep_scores, scored_at_the_end
from wardround.deployment.coordinating.greeting import Greeting, federate
from wardround.deployment.flat.flat_draw import with_groups
from wardround.deployment.flat.flat_rounds import FlatRounds, tasks
from wardround.deployment.flat.overlapping_rounds import OverlappingRounds, lateness
from wardround.protocol.catalogue import Prepared, Ready, Summary
from wardround.runs.decisions.holding import forget_held, stop_if_held, with_decisions, write_held_after
from wardround.training.round_record import RoundRecord
from wardround.training.trial import Trial


def flat_coordinator(messenger: Messenger) -> Coordinator:
    return Coordinator(messenger, Flat(messenger))


@dataclass
class Flat:
    messenger: Messenger
    federation: Federation | None = None

    def agree(self) -> Generator[Step, None, DeployedPlan]:
        messenger = self.messenger

        def check(site: str, body: Ready) -> None:
            check_ready(body, messenger.run_name)

        def negotiate(ready: Mapping[str, Ready]) -> Generator[Step, None, Federation]:
            study, families = messenger.study, messenger.families
            agreed = yield from agree_on(study, families, ready, messenger.ask_required, messenger.run_name)
            return (yield from with_groups(messenger, agreed))

        self.federation = yield from federate(messenger, Greeting(Ready, Prepared, check, list, negotiate))
        return self.federation.plan

    @property
    def agreed(self) -> Federation:
        if self.federation is None:
            raise ValueError("sites are asked for models before they have agreed")
        return self.federation

    def wave(self, number: int, trials: Sequence[Trial]) -> "FlatWave":
        trials = with_decisions(trials, self.messenger.folder)
        rounds, late = FlatRounds(self.messenger, self.agreed.plan, number, trials), lateness(trials)
        return FlatWave(rounds, None if late is None else OverlappingRounds(rounds, late))

    def write_results(self, waves: int, analysed: Mapping[str, Any], explained: Mapping[str, Any]) -> None:
        messenger, agreed = self.messenger, self.agreed
        notices = list(dict.fromkeys([*agreed.notices, *messenger.absences.values()]))
        invited = Participants(messenger.invited, agreed.plan.sites, messenger.absences)
        facts = agreed.plan, agreed.described, waves, notices, invited
        write_results(messenger.folder, *facts, analysed=analysed, explained=explained)


@dataclass(frozen=True)
class FlatWave:
    """A step is a round."""

    rounds: FlatRounds
    overlapping: OverlappingRounds | None = None  # where a round does not wait for all work

    def first(self) -> WaveState:
        return first_state(self.rounds.trials)

    def rounds_done(self, state: WaveState) -> int | None:
        return rounds_done(self.rounds.trials, state)

    def step(self, state: WaveState, pending: Sequence[TrialRecord]) -> Generator[Step, None, Closed[WaveState]]:
        study, trials = self.rounds.messenger.study, self.rounds.trials
        self._stop_if_held(state, pending)
        if self.overlapping is not None:  # sites have models of several rounds, and no curve is made of them
            closed = yield from self.overlapping.round(state)
        else:
            unscored = [n for n, trial in enumerate(trials) if study.arm(trial.arm).held_out is not None]
            closed = yield from self.rounds.round(state, tasks(trials, state, study.evaluation.every, unscored))
        figures = [entry.body.figures for entry in closed.arrivals.entries.values()]
        ready, waiting = scored_records(pending, trials, state.round, figures, final=False)
        return Closed(closed.state, ready, [*waiting, *closed.records])

    def _stop_if_held(self, state: WaveState, pending: Sequence[TrialRecord]) -> None:
        """Before a round: whoever was named in the last one is in its records, which wait for their figures."""
        messenger, number = self.rounds.messenger, self.rounds.number
        records = [waits.record for waits in pending]
        if write_held_after(messenger.folder, number, self.rounds.trials, lambda: state.runs, records):
            stop_if_held(messenger.folder, messenger.log, GO_ON)
        forget_held(messenger.folder, number)

    def forget(self, state: WaveState) -> None:
        self.rounds.spool(state.round - 1).clear()

    def finish(self, state: WaveState, pending: Sequence[TrialRecord]) -> Generator[Step, None, list[RoundRecord]]:
        messenger, plan = self.rounds.messenger, self.rounds.plan
        number, trials = self.rounds.number, self.rounds.trials
        score = scored_at_the_end(messenger, trials)
        check = partial(check_summary, trials=trials, score=score, plan=plan)
        answers = yield from ask_for_scores(messenger, number, trials, state, score, Summary, check)
        summaries = {site: answered.body.summaries for site, answered in answers.items()}
        return keep_scores(messenger, number, trials, state, pending, answers, summaries)


def rounds_done(trials: Sequence[Trial], state: WaveState) -> int | None:
    rounds = [trial.training.rounds for trial in trials]
    return sum(min(state.round, last) for last in rounds) if state.round < max(rounds) else None


def check_summary(
    site: str,
    body: Summary,
    trials: Sequence[Trial],
    score: Sequence[int],
    plan: DeployedPlan,
    regional: Callable[[str], set[int]] = lambda site: set(),
) -> None:
    """`regional` gives the trials for which a site also has its region's own model."""
    check_summaries(site, body.summaries, trials, plan, regional(site))
    check_figures(site, body.figures, score, trials, plan)
