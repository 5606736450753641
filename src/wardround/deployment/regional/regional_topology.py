"""The coordinator of all, where sites form regions: to it a region is a site that answers for its hospitals.

A request is about all rounds that a region has by itself before the next average. Everything else is as between a
coordinator and its sites.
"""

import time
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from wardround.core.extras import needs
from wardround.core.notices import Notice
from wardround.core.tree import Tree
from wardround.deployment.common.answer_checks import check_ready, check_summaries, require, rows_scored
from wardround.deployment.common.deployed_plan import DeployedPlan
from wardround.deployment.common.deployment_results import Participants, write_results
from wardround.deployment.common.messaging import Answered, B, Check, Messenger, SiteLeft, Step
from wardround.deployment.common.secure_wave import is_secure
from wardround.deployment.common.spool import Spool
from wardround.deployment.common.waves import (
    Figured,
    TrialRecord,
    WaveState,
    auc_rows,
    first_state,
    scored_records,
    seal_with_models,
)
from wardround.deployment.coordinating.agreement import Federation
from wardround.deployment.coordinating.coordinator import Closed, Coordinator
from wardround.deployment.coordinating.final_scores import ask_for_scores, keep_scores, scored_at_the_end
from wardround.deployment.coordinating.greeting import Greeting, federate
from wardround.deployment.flat.flat_rounds import log_round
from wardround.deployment.flat.flat_topology import rounds_done
from wardround.deployment.flat.site_training import by_trial
from wardround.deployment.regional.region_agreement import agree_on_regions
from wardround.deployment.regional.region_rounds import (
    check_span,
    close_span,
    model_shapes,
    own_of_region,
    trials_with_model,
)
from wardround.deployment.regional.regions import regions_of, span_of
from wardround.evaluation.summaries.summary_validation import check_curve
from wardround.protocol.catalogue import (
    Answer,
    RegionAnswer,
    RegionFacts,
    RegionFillValues,
    RegionMoments,
    RegionPrepared,
    RegionReady,
    RegionSummary,
    RegionUpdate,
    Request,
    TrainRegion,
)
from wardround.training.round_record import RoundRecord
from wardround.training.trial import Trial

with needs("deploy", "a study across hospitals"):
    from msgspec import to_builtins

STAGES = 5  # messages of a round with a secure sum
PATIENCE = 2  # deadlines: a region waits for its own sites first


def coordinator_of_regions(messenger: Messenger, hospitals: Sequence[str]) -> Coordinator:
    """The messenger's sites are the regions; `hospitals` are all of theirs, in the order that numbers them."""
    regions = regions_of(messenger.study, hospitals)
    # where there are fewer regions than the study's quorum, all of them are needed
    messenger.quorum = min(messenger.quorum, len(messenger.sites))
    messenger.patience = PATIENCE
    messenger.known_names = [*messenger.sites, *hospitals]
    messenger.absences_in = _absences_in
    messenger.hospitals_of = lambda region: regions.get(region, ())
    messenger.hospitals = list(hospitals)
    return Coordinator(messenger, InRegions(messenger, regions, list(hospitals)))


def _absences_in(body: Answer) -> Mapping[str, Any]:
    """Each answer of a region also says which of its hospitals left."""
    return body.left if isinstance(body, RegionAnswer) else {}


@dataclass
class InRegions:
    messenger: Messenger
    regions: Mapping[str, Sequence[str]]  # with all of their hospitals
    hospitals: Sequence[str]  # that could take part
    federation: Federation | None = None

    @property
    def members(self) -> dict[str, tuple[str, ...]]:
        """The hospitals of this run in each region."""
        return regions_of(self.messenger.study, self.messenger.hospitals)

    @property
    def absences(self) -> dict[str, Notice]:
        """Of regions and of their hospitals; with a region all of its hospitals are away."""
        gone = self.messenger.absences
        away = {
            site: Notice("region-left", "warning", site, details={"region": region})
            for region in gone
            for site in self.regions.get(region, ())
        }
        return {**gone, **away, **self.messenger.away}

    def agree(self) -> Generator[Step, None, DeployedPlan]:
        greeting = Greeting(RegionReady, RegionPrepared, self._check_ready, self._there, self._negotiate)
        self.federation = yield from federate(self.messenger, greeting)
        return self.federation.plan

    @property
    def agreed(self) -> Federation:
        if self.federation is None:
            raise ValueError("regions are asked for models before they have agreed")
        return self.federation

    def _check_ready(self, region: str, body: RegionReady) -> None:
        check_ready(body, self.messenger.run_name)
        unique = len(set(body.sites)) == len(body.sites)
        require(unique and set(body.sites) <= set(self.members.get(region, ())), "hospitals of another region")
        require(bool(body.sites), "no hospital that takes part")

    def _there(self, ready: Mapping[str, RegionReady]) -> set[str]:
        """The hospitals that regions say are there, each of them by its own region."""
        return {site for region, body in ready.items() for site in body.sites if site in self.members[region]}

    def _negotiate(self, ready: Mapping[str, RegionReady]) -> Generator[Step, None, Federation]:
        messenger = self.messenger
        federation = yield from agree_on_regions(
            messenger.study, messenger.families, ready, messenger.hospitals, self._ask, messenger.run_name
        )
        missing = [notice for site, notice in messenger.away.items() if site not in messenger.hospitals]
        return replace(federation, notices=(*federation.notices, *missing))

    def _ask(self, request: Request, answer: type[B], check: Check[B]) -> Generator[Step, None, dict[str, B]]:
        """Hospitals that left their region meanwhile are no hospitals of this run: all begin anew without them."""
        members = self.members

        def check_unless_gone(region: str, body: B) -> None:
            gone = _gone(body)
            require(set(gone) <= set(members[region]), "hospitals of another region")
            if not gone:
                require(_is_whole(body), "nothing, although nobody left")
                check(region, body)

        answers = yield from self.messenger.ask_required(request, answer, check_unless_gone)
        gone = {site for body in answers.values() for site in _gone(body)}
        if gone:
            self.messenger.hospitals = [site for site in self.messenger.hospitals if site not in gone]
            self.messenger.write_federation()
            raise SiteLeft
        return answers

    def wave(self, number: int, trials: Sequence[Trial]) -> "RegionalWave":
        return RegionalWave(self.messenger, self.agreed.plan, self.members, number, trials)

    def write_results(self, waves: int, analysed: Mapping[str, Any], explained: Mapping[str, Any]) -> None:
        messenger, agreed = self.messenger, self.agreed
        notices = list(dict.fromkeys([*agreed.notices, *self.absences.values()]))
        invited = Participants(self.hospitals, agreed.plan.sites, self.absences)
        write_results(messenger.folder, agreed.plan, agreed.described, waves, notices, invited)


def _gone(body: Answer) -> Sequence[str]:
    return body.gone or () if isinstance(body, RegionFacts | RegionFillValues | RegionMoments) else ()


def _is_whole(body: Answer) -> bool:
    """What an answer has, unless some hospitals have left their region."""
    if isinstance(body, RegionFacts):
        return None not in (body.kinds, body.sets, body.described, body.directions)
    if isinstance(body, RegionFillValues):
        return body.fill_values is not None
    return not isinstance(body, RegionMoments) or body.moments is not None


@dataclass(frozen=True)
class RegionalWave:
    """A step is all rounds that regions have by themselves before their models are averaged."""

    messenger: Messenger
    plan: DeployedPlan
    members: Mapping[str, Sequence[str]]  # hospitals of each region
    number: int
    trials: Sequence[Trial]

    def first(self) -> WaveState:
        return first_state(self.trials)

    def rounds_done(self, state: WaveState) -> int | None:
        return rounds_done(self.trials, state)

    def step(self, state: WaveState, pending: Sequence[TrialRecord]) -> Generator[Step, None, Closed[WaveState]]:
        began, first, messenger = time.monotonic(), state.round, self.messenger
        last = min(first + self._span, max(trial.training.rounds for trial in self.trials))
        recipients, spool = list(messenger.present), self._spool(last)
        messenger.patience = 1 + (last - first) * (STAGES if is_secure(self.trials) else 1)
        yield from self._ask_for_models(state, spool, last)
        messenger.patience = PATIENCE
        entries = spool.entries(messenger.present, RegionUpdate)
        figures = [entry.body.figures for entry in entries.values()]
        ready, waiting = scored_records(pending, self.trials, first, figures, final=False)
        after, records = close_span(self.trials, state, entries, recipients, last, time.monotonic() - began)
        missing = [region for region in recipients if region not in entries]
        log_round(messenger, self.number, first, entries, missing)
        return Closed(after, ready, [*waiting, *records])

    def forget(self, state: WaveState) -> None:
        self._spool(state.round).clear()

    def finish(self, state: WaveState, pending: Sequence[TrialRecord]) -> Generator[Step, None, list[RoundRecord]]:
        messenger, number, trials = self.messenger, self.number, self.trials
        score = scored_at_the_end(messenger, trials)
        own = {region: own_of_region(trials, state, region, score) for region in messenger.present}
        check = partial(self._check_summary, score=score, own=own)
        answers = yield from ask_for_scores(messenger, number, trials, state, score, RegionSummary, check, own)
        by_site = {
            site: summaries
            for region, answered in answers.items()
            for site, summaries in answered.body.summaries.items()
            if site in self.members[region]
        }
        hospitals = {site: by_site[site] for site in messenger.hospitals if site in by_site}
        return keep_scores(messenger, number, trials, state, pending, answers, hospitals)

    @property
    def _span(self) -> int:
        return span_of(self.messenger.study.arm(self.trials[0].arm))

    def _spool(self, last: int) -> Spool:
        return Spool(self.messenger.folder.path / "state", self.number, last - 1)

    def _ask_for_models(self, state: WaveState, spool: Spool, last: int) -> Generator[Step]:
        messenger, trials = self.messenger, self.trials
        chosen = [n for n, trial in enumerate(trials) if trial.training.rounds > state.round]
        scored = self._scored(state, chosen)
        request = TrainRegion(run=messenger.run_name, wave=self.number, round=state.round, score=scored)
        shapes = [model_shapes(trial) for trial in trials]

        def take(region: str, answered: Answered[RegionUpdate]) -> None:
            body = answered.body
            self._check_figures(region, body.figures, scored)
            check_span(region, body, trials, range(state.round, last), self.members[region])
            expected = {f"{n}/{name}": shape for n in trials_with_model(body) for name, shape in shapes[n].items()}
            spool.add(region, answered, expected)
            messenger.prepared.add(region)

        what = f"round {last}" if last == state.round + 1 else f"rounds {state.round + 1} to {last}"
        requests = dict.fromkeys(messenger.present, (request, chosen))
        sealed = seal_with_models(messenger, trials, state, requests)
        yield from messenger.collect(sealed, RegionUpdate, take, what, closing=True, stored=spool.sealed)

    def _scored(self, state: WaveState, chosen: Sequence[int]) -> list[int]:
        """Trials whose model is scored: at the first average after a round in which the study asks for it."""
        study, first = self.messenger.study, state.round
        interval = study.evaluation.every
        due = first and interval and first // interval > (first - self._span) // interval
        return [n for n in chosen if due and study.arm(self.trials[n].arm).held_out is None]

    def _check_summary(self, region: str, body: RegionSummary, score: Sequence[int], own: Mapping[str, Tree]) -> None:
        """Of each of a region's hospitals by itself."""
        regional = set(by_trial(own.get(region, {})))
        for hospital, summaries in body.summaries.items():
            require(hospital in self.members[region], "figures of another region's hospital")
            check_summaries(hospital, summaries, self.trials, self.plan, regional)
        self._check_figures(region, body.figures, score)

    def _check_figures(self, region: str, figures: Figured, score: Collection[int]) -> None:
        """Of all hospitals of a region together, or of those whose figures may leave."""
        for number, by_subset in figures.items():
            require(number in score, "figures of a model that was not to be scored")
            for subset, curve in by_subset.items():
                trial = self.trials[number]
                most = sum(rows_scored(site, subset, trial, self.plan)[0] for site in self.members[region])
                check_curve(to_builtins(curve), most, False, self.plan.task)
                require(auc_rows(curve) <= curve.rows, "an AUC of more rows than there are")
