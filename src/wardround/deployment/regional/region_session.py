"""One run as a region sees it: which hospitals take part, what was agreed, and how far its own rounds have come.

All that the coordinator of all sent is kept as a file, and so is every round of the region: a process that died goes on
in the middle of a request that it was answering.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from shutil import rmtree
from typing import Any, TypeVar

from wardround.core.errors import DeployError
from wardround.core.extras import needs
from wardround.core.tree import Tree, leaves_hash
from wardround.deployment.common.answer_checks import check_facts, check_fill_values, check_moments, check_waves
from wardround.deployment.common.deployed_plan import DeployedPlan, coordinator_plan
from wardround.deployment.common.messaging import B, Check, SiteLeft, Step, left_payload
from wardround.deployment.common.schema_agreement import Disagreement, agreed_of, read_columns
from wardround.deployment.common.site_store import Store
from wardround.deployment.common.waves import WaveState, read_state, write_state
from wardround.deployment.coordinating.final_scores import log_wave
from wardround.deployment.flat.site_training import by_trial
from wardround.deployment.regional.region_coordinator import RegionalCoordinator
from wardround.deployment.regional.region_merging import (
    lacking_columns,
    merged_facts,
    merged_figures,
    merged_fill_values,
    merged_moments,
    merged_ready,
)
from wardround.deployment.regional.region_rounds import own_for_sites, span_answer, with_models
from wardround.deployment.regional.regions import span_of
from wardround.deployment.site.answering import Reply, request_hash
from wardround.deployment.site.session import RegionRun, agreement_of, write_session
from wardround.protocol.catalogue import (
    Agreement,
    Answer,
    AskFacts,
    AskFillValues,
    AskMoments,
    Evaluate,
    FactsAnswer,
    FillValuesAnswer,
    Goodbye,
    Hello,
    MomentsAnswer,
    Prepare,
    Prepared,
    Ready,
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
from wardround.protocol.reading import read_request_task
from wardround.runs.environment import versions
from wardround.training.trial import Trial

with needs("deploy", "a study across hospitals"):
    from msgspec import convert, to_builtins

Result = TypeVar("Result")
A = TypeVar("A", bound=Answer)
AGAIN = "Start the coordinator of all again: it greets every region first."


class RegionSession:
    def __init__(
        self,
        folder: Path,
        coordinator: RegionalCoordinator,
        hello: Hello,
        watch: Callable[[Step], None],
        notice: Callable[[str], None],
    ) -> None:
        self.folder, self.coordinator, self.watch, self.notice = folder, coordinator, watch, notice
        self.study, self.families = coordinator.messenger.study, coordinator.messenger.families
        self.run, self.hospitals = hello.run, hello.sites
        self.store = Store(folder)
        self.kept = RegionRun(hello=hello)
        coordinator.form(self.run, self.hospitals)

    def recall(self, kept: RegionRun) -> None:
        """What other hospitals agreed on does not hold for these."""
        if kept.hello.sites == self.hospitals:
            self.kept = kept

    def ready(self) -> RegionReady:
        ready: Mapping[str, Ready] = self.drive(self.coordinator.greet())
        while True:
            try:
                merged = merged_ready(ready, self.hospitals)
                break
            except Disagreement as error:
                ready = self.coordinator.without(error, ready)
        for line in lacking_columns(ready):
            self.notice(line)
        content = {**merged, "sites": list(ready), "versions": versions()}
        return self._answer(RegionReady, self.kept.hello, content)

    def facts(self, request: AskFacts) -> RegionFacts:
        if request.task is None:
            raise DeployError("coordinator", "does not tell the region what is predicted", AGAIN)
        self.kept.task, self.kept.columns = read_request_task(request.task).to_json(), request.columns
        self._forget_plan()
        plan, columns = self.plan, read_columns(request.columns)

        def check(site: str, answer: FactsAnswer) -> None:
            check_facts(site, answer, plan, columns, self.hospitals)

        asked = AskFacts(run=self.run, columns=request.columns)
        answer = self._answer(RegionFacts, request, self._merged(asked, FactsAnswer, check, merged_facts))
        if answer.sets is not None:
            self.kept.split_sizes = answer.sets
            write_session(self)
        return answer

    def fill_values(self, request: AskFillValues) -> RegionFillValues:
        plan = self.plan

        def check(site: str, answer: FillValuesAnswer) -> None:
            rows = self._train_rows(site)
            check_fill_values(answer.fill_values, plan, request.missing, request.of, request.layouts, rows)

        merged = self._merged(request, FillValuesAnswer, check, merged_fill_values)
        return self._answer(RegionFillValues, request, merged)

    def moments(self, request: AskMoments) -> RegionMoments:
        plan = self.plan

        def check(site: str, answer: MomentsAnswer) -> None:
            check_moments(answer.moments, plan, request.of, request.layouts, self._train_rows(site))

        return self._answer(RegionMoments, request, self._merged(request, MomentsAnswer, check, merged_moments))

    def prepare(self, request: Prepare) -> RegionPrepared:
        self.catch_up(agreement_of(request))
        waves = len(self.plan.waves())

        def check(site: str, answer: Prepared) -> None:
            check_waves(answer, waves)

        self.drive(self.coordinator.prepare(self.agreed, check))
        return self._answer(RegionPrepared, request, {"waves": waves})

    def catch_up(self, agreement: Agreement) -> None:
        """Sites that were away when all agreed are told with their next request."""
        if self.kept.prepare != agreement:
            self.kept.prepare = agreement
            self._forget_plan()
            write_session(self)

    def train(self, request: TrainRegion, tensors: Tree) -> Reply:
        """The same request is continued where it was left."""
        wave, first = request.wave, request.round
        trials, path, asked = self.trials(wave), self._path(wave), request_hash(request, leaves_hash(tensors))
        state = read_state(path, trials)
        if state.span.get("request") != asked:
            span = {"request": asked, "first": first, "figures": {}, "rounds": []}
            runs = [replace(run, round=first) for run in state.runs]
            state = replace(state, round=first, runs=tuple(runs), span=span)
            state = with_models(state, trials, by_trial(tensors))
            write_state(path, state)
        span_length = span_of(self.study.arm(trials[0].arm))
        ends = min(first + span_length, max(trial.training.rounds for trial in trials))
        self.coordinator.plan, self.coordinator.messenger.agreement = self.plan, self.agreed
        rounds = self.coordinator.rounds(wave, trials, state, path, ends, request.score)
        content, models = span_answer(trials, self.drive(rounds))
        line = f"wave {wave + 1}, rounds from {first + 1} on: answered"
        return Reply(self._answer(RegionUpdate, request, content), models, (line,))

    def evaluate(self, request: Evaluate, tensors: Tree) -> Reply:
        wave = request.wave
        trials, models = self.trials(wave), by_trial(tensors)
        state: WaveState = with_models(read_state(self._path(wave), trials), trials, models)
        messenger = self.coordinator.messenger
        messenger.title, messenger.agreement, self.coordinator.plan = "evaluating", self.agreed, self.plan
        own = own_for_sites(state, trials, models, messenger.members)
        answers = self.drive(self.coordinator.summaries(wave, trials, state, request.score, own))
        log_wave(messenger, wave, answers)
        content = {
            "summaries": {site: answered.body.summaries for site, answered in answers.items()},
            "figures": merged_figures([answered.body.figures for answered in answers.values()]),
        }
        return Reply(self._answer(RegionSummary, request, content))

    def goodbye(self, request: Goodbye) -> None:
        self.drive(self.coordinator.messenger.say_goodbye(request.results, request.why or ""))

    @cached_property
    def plan(self) -> DeployedPlan:
        kept = self.kept
        if kept.task is None:
            raise DeployError("coordinator", "goes on before it has said what is predicted", AGAIN)
        task = read_request_task(kept.task)
        plan = coordinator_plan(self.study, self.families, self.hospitals, task, self.coordinator.messenger.members)
        if kept.prepare is not None and kept.split_sizes is not None:
            for kind, agreed in agreed_of(plan, kept.prepare).items():
                place = plan.row_sets.index(plan.rows_of(kind))
                split_sizes = {site: to_builtins(sizes[place]) for site, sizes in kept.split_sizes.items()}
                plan.agreed[kind] = replace(agreed, split_sizes=split_sizes)
        return plan

    @property
    def agreed(self) -> Prepare:
        if self.kept.prepare is None:
            raise DeployError("coordinator", "goes on before all have agreed", AGAIN)
        return convert(self.kept.prepare, Prepare, from_attributes=True)

    def trials(self, wave: int) -> list[Trial]:
        waves = self.plan.waves()
        if not 0 <= wave < len(waves):
            raise DeployError("coordinator", "asks for models that this study does not have", "Start it again.")
        return [self.plan.trial(self.study.arm(arm), seed) for arm, seed in waves[wave]]

    @property
    def left(self) -> dict[str, Any]:
        return left_payload(self.coordinator.messenger.left)

    def drive(self, steps: Generator[Step, None, Result]) -> Result:
        while True:
            try:
                self.watch(next(steps))
            except StopIteration as done:
                result: Result = done.value
                return result

    def _train_rows(self, site: str) -> int:
        """The most in any set of rows of a site."""
        if self.kept.split_sizes is None:
            raise DeployError("coordinator", "goes on before it has asked for rows", AGAIN)
        return max(sizes.train for sizes in self.kept.split_sizes[site])

    def _answer(self, answer: type[A], request: Request, content: dict[str, Any]) -> A:
        return convert({**request.place, **content, "left": self.left}, answer, str_keys=True)

    def _merged(
        self,
        request: Request,
        answer: type[B],
        check: Check[B],
        merge: Callable[[DeployedPlan, dict[str, B]], dict[str, Any]],
    ) -> dict[str, Any]:
        """The answers of all sites as one; only who left, where a site did: then all regions begin anew without it."""
        messenger = self.coordinator.messenger
        messenger.title = "agreeing on columns"
        try:
            answers = self.drive(messenger.ask_required(request, answer, check))
        except SiteLeft:
            return {"gone": list(messenger.left)}
        return merge(self.plan, answers)

    def _path(self, wave: int) -> Path:
        return self.coordinator.messenger.folder.path / "state" / "waves" / f"{wave:05}.safetensors"

    def _forget_plan(self) -> None:
        self.__dict__.pop("plan", None)


def forget(folder: Path) -> None:
    """Delete what was only needed while a region's run went on. Its log stays."""
    Store(folder).forget()
    rmtree(folder / "coordinating" / "state", ignore_errors=True)
