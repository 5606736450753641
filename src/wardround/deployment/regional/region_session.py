"""One run as a region sees it: which hospitals take part, what was agreed, and how far its own rounds have come.

All that the coordinator of all sent is kept as a file, and so is every round of the region: a process that died goes on
in the middle of a request that it was answering.
"""

import json
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from shutil import rmtree
from typing import Any, TypeVar

from wardround.core.errors import DeployError
from wardround.core.extras import needs
from wardround.core.tree import Tree
from wardround.data.serialization import read_column
from wardround.deployment.common.answer_checks import check_facts, check_fill_values, check_moments, check_waves
from wardround.deployment.common.deployed_plan import DeployedPlan, coordinator_plan
from wardround.deployment.common.messaging import B, Check, SiteLeft, Step, left_payload
from wardround.deployment.common.schema_agreement import Disagreement, agreed_of
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
from wardround.protocol.catalogue import (
    Agreement,
    AskFacts,
    AskFillValues,
    AskMoments,
    FactsAnswer,
    FillValuesAnswer,
    MomentsAnswer,
    Prepare,
    Prepared,
    Ready,
    Request,
)
from wardround.protocol.reading import read_request_task
from wardround.runs.environment import versions
from wardround.runs.folder import write_atomically
from wardround.training.trial import Trial

with needs("deploy", "a study across hospitals"):
    from msgspec import convert

Body = Mapping[str, Any]
Result = TypeVar("Result")
FILE = "region.json"


class RegionSession:
    def __init__(
        self,
        folder: Path,
        coordinator: RegionalCoordinator,
        watch: Callable[[Step], None],
        notice: Callable[[str], None],
    ) -> None:
        self.folder, self.coordinator, self.watch, self.notice = folder, coordinator, watch, notice
        self.study, self.families = coordinator.messenger.study, coordinator.messenger.families
        self.store = Store(folder)
        self.known: dict[str, Any] = {}  # hospitals; later columns, task and rows; later what was agreed

    @property
    def run(self) -> str:
        return self.folder.name

    def restore(self) -> None:
        self.known = self._read()
        if not self.known:
            remedy = "Start the coordinator of all again: it greets every region first."
            raise DeployError("region", "it knows nothing of this run", remedy)
        self.coordinator.form(self.run, self.known["hospitals"])

    def hello(self, body: Body) -> dict[str, Any]:
        """What these hospitals agreed on in this run stands until they agree anew."""
        hospitals = [str(name) for name in body["sites"]]
        before = self._read()
        self.known = before if before.get("hospitals") == hospitals else {"hospitals": hospitals}
        self._forget_plan()
        self.coordinator.form(self.run, hospitals)
        self._write()
        ready: Mapping[str, Ready] = self.drive(self.coordinator.greet())
        while True:
            try:
                merged = merged_ready(ready, hospitals)
                break
            except Disagreement as error:
                ready = self.coordinator.without(error, ready)
        for line in lacking_columns(ready):
            self.notice(line)
        return {**merged, "sites": list(ready), "versions": versions()}

    def facts(self, body: Body) -> dict[str, Any]:
        self.known |= {"task": read_request_task(body["task"]).to_json(), "columns": body["columns"]}
        self._forget_plan()
        plan, columns = self.plan, [read_column(column) for column in body["columns"] or ()]

        def check(site: str, answer: FactsAnswer) -> None:
            check_facts(site, answer, plan, columns, self.known["hospitals"])

        request = convert({"run": self.run, "columns": body["columns"]}, AskFacts)
        merged = self._merged(request, FactsAnswer, check, merged_facts)
        if "sets" in merged:
            self.known |= {"split_sizes": merged["sets"]}
            self._write()
        return merged

    def fill_values(self, body: Body) -> dict[str, Any]:
        plan, request = self.plan, convert(body, AskFillValues)

        def check(site: str, answer: FillValuesAnswer) -> None:
            rows = self._train_rows(site)
            check_fill_values(answer.fill_values, plan, request.missing, request.of, request.layouts, rows)

        return self._merged(request, FillValuesAnswer, check, merged_fill_values)

    def moments(self, body: Body) -> dict[str, Any]:
        plan, request = self.plan, convert(body, AskMoments)

        def check(site: str, answer: MomentsAnswer) -> None:
            check_moments(answer.moments, plan, request.of, request.layouts, self._train_rows(site))

        return self._merged(request, MomentsAnswer, check, merged_moments)

    def prepare(self, body: Body) -> dict[str, Any]:
        self.remember(dict(body))
        waves = len(self.plan.waves())

        def check(site: str, answer: Prepared) -> None:
            check_waves(answer, waves)

        self.drive(self.coordinator.prepare(self.agreed, check))
        return {"waves": waves}

    def remember(self, prepare: Body) -> None:
        """What was agreed. Sites that were away receive it with their next request."""
        if self.known.get("prepare") != dict(prepare):
            self.known["prepare"] = dict(prepare)
            self._forget_plan()
            self._write()

    def train(self, body: Body, tensors: Tree, request: str) -> tuple[dict[str, Any], Tree]:
        """`request` is its hash: the same request is continued where it was left."""
        wave, first = int(body["wave"]), int(body["round"])
        trials, path = self.trials(wave), self._path(wave)
        state = read_state(path, trials)
        if state.span.get("request") != request:
            span = {"request": request, "first": first, "figures": {}, "rounds": []}
            runs = [replace(run, round=first) for run in state.runs]
            state = replace(state, round=first, runs=tuple(runs), span=span)
            state = with_models(state, trials, by_trial(tensors))
            write_state(path, state)
        span_length = span_of(self.study.arm(trials[0].arm))
        ends = min(first + span_length, max(trial.training.rounds for trial in trials))
        score = [int(number) for number in body["score"]]
        self.coordinator.plan, self.coordinator.messenger.agreement = self.plan, self.agreed
        rounds = self.coordinator.rounds(wave, trials, state, path, ends, score)
        return span_answer(trials, self.drive(rounds))

    def evaluate(self, body: Body, tensors: Tree) -> dict[str, Any]:
        wave = int(body["wave"])
        trials, models = self.trials(wave), by_trial(tensors)
        state: WaveState = with_models(read_state(self._path(wave), trials), trials, models)
        messenger = self.coordinator.messenger
        messenger.title, messenger.agreement, self.coordinator.plan = "evaluating", self.agreed, self.plan
        score = [int(number) for number in body["score"]]
        own = own_for_sites(state, trials, models, messenger.members)
        answers = self.drive(self.coordinator.summaries(wave, trials, state, score, own))
        log_wave(messenger, wave, answers)
        return {
            "summaries": {site: answered.body.summaries for site, answered in answers.items()},
            "figures": merged_figures([answered.body.figures for answered in answers.values()]),
        }

    def goodbye(self, body: Body) -> None:
        self.drive(self.coordinator.messenger.say_goodbye(str(body.get("results")), str(body.get("why") or "")))
        forget(self.folder)

    @cached_property
    def plan(self) -> DeployedPlan:
        """KeyError where too little is known so far."""
        hospitals, known = self.known["hospitals"], self.known
        task = read_request_task(known["task"])
        plan = coordinator_plan(self.study, self.families, hospitals, task, self.coordinator.messenger.members)
        if "prepare" in known and "split_sizes" in known:
            for kind, agreed in agreed_of(plan, convert(known["prepare"], Agreement)).items():
                place = plan.row_sets.index(plan.rows_of(kind))
                split_sizes = {site: sizes[place] for site, sizes in known["split_sizes"].items()}
                plan.agreed[kind] = replace(agreed, split_sizes=split_sizes)
        return plan

    @property
    def agreed(self) -> Prepare:
        return convert(self.known["prepare"], Prepare)

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
        return max(int(sizes["train"]) for sizes in self.known["split_sizes"][site])

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

    def _read(self) -> dict[str, Any]:
        try:
            known: dict[str, Any] = json.loads((self.folder / FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return known

    def _write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(self.folder / FILE, json.dumps(self.known).encode())


def forget(folder: Path) -> None:
    """Delete what was only needed while a region's run went on. Its log stays."""
    Store(folder).forget()
    rmtree(folder / "coordinating" / "state", ignore_errors=True)
