"""One run as a region sees it: which hospitals take part, what was agreed, and how far its own rounds have come.

What the coordinator of all told is kept as a file, and every round of the region's is: a process that died goes on in
the middle of a question that it was answering.
"""

import json
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from shutil import rmtree
from typing import Any, TypeVar

from wardround.core.errors import DeployError, SiteError
from wardround.core.tree import Tree
from wardround.data.serialization import read_column
from wardround.deployment.common.answer_checks import Check, check_facts, check_fill_values, check_moments, check_waves
from wardround.deployment.common.deployed_plan import DeployedPlan, coordinator_plan
from wardround.deployment.common.messaging import SiteLeft, Step, left_payload
from wardround.deployment.common.schema_agreement import agreed_of
from wardround.deployment.common.site_store import Store
from wardround.deployment.common.waves import WaveState, read_state, write_state
from wardround.deployment.flat.site_training import by_trial
from wardround.deployment.regional.region_merging import (
    Answers,
    lacking_columns,
    merged_facts,
    merged_figures,
    merged_lent,
    merged_moments,
    merged_ready,
)
from wardround.deployment.regional.region_rounds import own_for_sites, span_answer, with_models
from wardround.deployment.regional.region_sites import RegionalCoordinator
from wardround.deployment.regional.regions import span_of
from wardround.protocol.messages import Message
from wardround.runs.environment import versions
from wardround.runs.folder import write_atomically
from wardround.training.trial import Trial

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
        self.study, self.families = coordinator.study, coordinator.families
        self.store = Store(folder)
        self.known: dict[str, Any] = {}  # hospitals; later columns, classes and rows; later what was agreed

    @property
    def run(self) -> str:
        return self.folder.name

    def restore(self) -> None:
        try:
            self.known = json.loads((self.folder / FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            remedy = "Start the coordinator of all again: it greets every region first."
            raise DeployError("region", "it knows nothing of this run", remedy) from None
        self.coordinator.form(self.run, self.known["hospitals"])

    def hello(self, body: Body) -> dict[str, Any]:
        """What these hospitals agreed on in this run stands until it is told anew."""
        hospitals = [str(name) for name in body["sites"]]
        before = self._read()
        self.known = before if before.get("hospitals") == hospitals else {"hospitals": hospitals}
        self._forget_plan()
        self.coordinator.form(self.run, hospitals)
        self._write()
        ready = self.drive(self.coordinator.greet())
        while True:
            try:
                merged = merged_ready(ready, hospitals)
            except SiteError as error:
                ready = self.coordinator.without(error, ready)
            else:
                break
        for line in lacking_columns(ready):
            self.notice(line)
        return {**merged, "sites": list(ready), "versions": versions()}

    def facts(self, body: Body) -> dict[str, Any]:
        self.known |= {"classes": list(body["classes"]), "findings": bool(body["findings"])}
        self.known |= {"columns": body["columns"]}
        self._forget_plan()
        message = Message("facts", {"run": self.run, "columns": body["columns"]})
        plan, columns = self.plan, [read_column(column) for column in body["columns"] or ()]

        def check(site: str, answer: Message) -> None:
            check_facts(site, answer.body, plan, columns, self.known["hospitals"])

        told = self._ask_everybody(message, check)
        if told is None:
            return self._gone()
        merged = merged_facts(self.plan, told)
        self.known |= {"sides": merged["sets"]}
        self._write()
        return merged

    def lend(self, body: Body) -> dict[str, Any]:
        plan, asked = self.plan, (body["asked"], body["of"], body["layouts"])

        def check(site: str, answer: Message) -> None:
            check_fill_values(answer.body["lent"], plan, *asked, self._train_rows(site))

        told = self._ask_everybody(Message("lend", _passed_on(body)), check)
        return self._gone() if told is None else merged_lent(self.plan, told)

    def moments(self, body: Body) -> dict[str, Any]:
        plan, asked = self.plan, (body["of"], body["layouts"])

        def check(site: str, answer: Message) -> None:
            check_moments(answer.body["moments"], plan, *asked, self._train_rows(site))

        told = self._ask_everybody(Message("moments", _passed_on(body)), check)
        return self._gone() if told is None else merged_moments(self.plan, told)

    def prepare(self, body: Body) -> dict[str, Any]:
        self.remember(_passed_on(body))
        waves = len(self.plan.waves())

        def check(site: str, answer: Message) -> None:
            check_waves(answer.body, waves)

        told = self.drive(self.coordinator.ask_all(self.agreed, closing=True, check=check))
        self.coordinator.prepared = set(told)
        return {"waves": waves}

    def remember(self, prepare: Body) -> None:
        """What was agreed. Sites that were away are told with their next message."""
        if self.known.get("prepare") != dict(prepare):
            self.known["prepare"] = dict(prepare)
            self._forget_plan()
            self._write()

    def train(self, body: Body, tensors: Tree, asked: str) -> tuple[dict[str, Any], Tree]:
        """`asked` names the question: the same one is gone on with where it was left."""
        wave, first = int(body["wave"]), int(body["round"])
        trials, path = self.trials(wave), self._path(wave)
        state = read_state(path, trials)
        if state.span.get("asked") != asked:
            span = {"asked": asked, "first": first, "figures": {}}
            runs = [replace(run, round=first) for run in state.runs]
            state = replace(state, round=first, runs=tuple(runs), pending=[], span=span)
            state = with_models(state, trials, by_trial(tensors))
            write_state(path, state)
        ends = min(first + self._rounds_of(trials), max(trial.training.rounds for trial in trials))
        score = [int(number) for number in body["score"]]
        self.coordinator.plan = self.plan
        rounds = self.coordinator.rounds(wave, trials, state, path, ends, score, self.agreed)
        return span_answer(trials, self.drive(rounds))

    def evaluate(self, body: Body, tensors: Tree) -> dict[str, Any]:
        wave = int(body["wave"])
        trials = self.trials(wave)
        models = by_trial(tensors)
        state: WaveState = with_models(read_state(self._path(wave), trials), trials, models)
        self.coordinator.title, self.coordinator.plan = "evaluating", self.plan
        score = [int(number) for number in body["score"]]
        own = own_for_sites(state, trials, models, self.coordinator.members)
        answers = self.drive(self.coordinator.summaries(wave, trials, state, score, self.agreed, own))
        heads = {site: message.body["head"] for site, message in answers.items()}
        self.coordinator.log.add("wave finished", wave=wave, heads=heads)
        return {
            "summaries": {site: message.body["summaries"] for site, message in answers.items()},
            "figures": merged_figures([message.body for message in answers.values()]),
        }

    def goodbye(self, body: Body) -> None:
        self.drive(self.coordinator.part(str(body.get("results")), str(body.get("why") or "")))
        forget(self.folder)

    @cached_property
    def plan(self) -> DeployedPlan:
        """KeyError where too little was told so far."""
        hospitals, known = self.known["hospitals"], self.known
        near, findings = self.coordinator.members, bool(known.get("findings"))
        plan = coordinator_plan(self.study, self.families, hospitals, known["classes"], near, findings)
        if "prepare" in known and "sides" in known:
            agreed = agreed_of(plan, known["prepare"])
            for kind, one in agreed.items():
                place = plan.row_sets.index(plan.rows_of(kind))
                plan.agreed[kind] = replace(one, sides={site: sides[place] for site, sides in known["sides"].items()})
        return plan

    @property
    def agreed(self) -> Message:
        return Message("prepare", self.known["prepare"])

    def trials(self, wave: int) -> list[Trial]:
        waves = self.plan.waves()
        if not 0 <= wave < len(waves):
            raise DeployError("coordinator", "asks for models that this study does not have", "Start it again.")
        return [self.plan.trial(self.study.arm(arm), seed) for arm, seed in waves[wave]]

    @property
    def left(self) -> dict[str, Any]:
        """Its sites that left, and why."""
        return left_payload(self.coordinator.left)

    def drive(self, steps: Generator[Step, None, Result]) -> Result:
        """All steps, shown as they come."""
        while True:
            try:
                self.watch(next(steps))
            except StopIteration as done:
                found: Result = done.value
                return found

    def _rounds_of(self, trials: list[Trial]) -> int:
        return span_of(self.study.arm(trials[0].arm))

    def _train_rows(self, site: str) -> int:
        """The most that a site has told of in any set of rows."""
        return max(int(sides["train"]) for sides in self.known["sides"][site])

    def _ask_everybody(self, message: Message, check: Check) -> Answers | None:
        """None where a site left: then all regions begin anew without it."""
        self.coordinator.title = "agreeing on columns"
        try:
            return self.drive(self.coordinator.ask_required(message, check))
        except SiteLeft:
            return None

    def _gone(self) -> dict[str, Any]:
        return {"gone": list(self.coordinator.left)}

    def _path(self, wave: int) -> Path:
        return self.coordinator.folder.path / "state" / "waves" / f"{wave:05}.safetensors"

    def _forget_plan(self) -> None:
        self.__dict__.pop("plan", None)

    def _read(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.folder / FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found

    def _write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(self.folder / FILE, json.dumps(self.known).encode())


def forget(folder: Path) -> None:
    """What a region's run was only needed for while it went on. Its log stays."""
    Store(folder).forget()
    rmtree(folder / "coordinating" / "state", ignore_errors=True)


def _passed_on(body: Body) -> dict[str, Any]:
    """A message of the coordinator of all without what it says of itself and of the region."""
    return {name: value for name, value in body.items() if name not in ("to", "head")}
