"""The coordinator of all, where sites form regions: to it a region is a site that answers for its hospitals.

A request is about all rounds that a region has by itself before the next average. Everything else is as between a
coordinator and its sites.
"""

import json
import time
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import fsum
from typing import Any, ClassVar

from wardround.core.notices import Notice, line_of
from wardround.core.tree import Tree
from wardround.data.agreement import Facts
from wardround.data.records import Column
from wardround.data.serialization import write_column
from wardround.deployment.common.answer_checks import (
    Check,
    check_column_facts,
    check_described,
    check_directions,
    check_sizes,
    check_summaries,
    dominant_sites,
    require,
    rows_scored,
)
from wardround.deployment.common.deployed_plan import Agreed, DeployedPlan, Key, coordinator_plan
from wardround.deployment.common.messaging import SiteLeft, Step, Take, read_absence
from wardround.deployment.common.schema_agreement import (
    Answers,
    Disagreement,
    Federation,
    SiteFacts,
    agree_on_layouts,
    common_columns,
    common_inputs,
    common_task,
    inverted_labels,
    most_train_rows,
    read_facts,
    split_sizes,
)
from wardround.deployment.common.secure_wave import is_secure
from wardround.deployment.common.spool import Shape, Spool
from wardround.deployment.common.waves import Arrivals, WaveState, scored_records
from wardround.deployment.flat.coordinator import Coordinator
from wardround.deployment.regional.region_rounds import (
    check_span,
    close_span,
    model_shapes,
    own_of_region,
    trials_with_model,
)
from wardround.deployment.regional.regions import regions_of, span_of, trainers
from wardround.evaluation.summaries.summary_validation import check_curve
from wardround.privacy.disclosure.target_sums import refuse_unpaid_scale
from wardround.protocol.catalogue import End
from wardround.protocol.messages import Message, Sealed
from wardround.runs.plan import members_of
from wardround.runs.records import RecordWriter
from wardround.study.parser import Families
from wardround.study.schema import Arm, Study
from wardround.training.trial import Trial

STAGES = 5  # messages of a round with a secure sum
REQUIRED = {  # what a region's answer has, unless some of its hospitals have left
    "facts": {"kinds", "sets", "described", "directions"},
    "fill_values": {"fill_values"},
    "moments": {"moments"},
}


@dataclass
class CoordinatorOfAll(Coordinator):
    """`sites` are the regions."""

    end: ClassVar[End] = "region"

    hospitals: list[str] = field(default_factory=list)  # of all regions, in the order that numbers them
    patience: int = 2  # a region waits for its own sites first
    all_hospitals: list[str] = field(default_factory=list)  # that could take part
    away: dict[str, Notice] = field(default_factory=dict)  # hospitals that left, by what their regions say

    @property
    def hospitals_here(self) -> list[str]:
        return self.hospitals

    @property
    def quorum(self) -> int:
        """Where there are fewer regions than the study's quorum, all of them are needed."""
        return min(self.study.deployment.quorum or len(self.sites), len(self.sites))

    @property
    def absences(self) -> dict[str, Notice]:
        """Of regions and of their hospitals; with a region all of its hospitals are away."""
        regions = regions_of(self.study, self.all_hospitals)
        gone = {**self.not_joined, **self.left}
        away = {
            site: Notice("region-left", "warning", site, details={"region": name})
            for name in gone
            for site in regions.get(name, ())
        }
        return {**gone, **away, **self.away}

    @property
    def known_names(self) -> list[str]:
        return [*self.sites, *self.all_hospitals]

    @property
    def invited_hospitals(self) -> list[str]:
        return self.all_hospitals

    def _judged(self, site: str, sealed: Sealed, take: Take, request: Sealed) -> float | None:
        """As for any site; each answer of a region also says which of its hospitals left."""

        def take_and_note(region: str, sealed: Sealed, message: Message) -> None:
            members = regions_of(self.study, self.all_hospitals).get(region, ())
            absences = [
                read_absence(hospital, notice, self.known_names)  # before the answer counts: it may be refused
                for hospital, notice in (message.body.get("left") or {}).items()
                if hospital in members
            ]
            take(region, sealed, message)
            for notice in absences:
                self._note(notice)

        return super()._judged(site, sealed, take_and_note, request)

    def _note(self, notice: Notice) -> None:
        if self.away.get(notice.site) != notice:
            self.away[notice.site] = notice
            self.lines.append(line_of(notice))

    def federation(self) -> dict[str, Any]:
        return {**super().federation(), "hospitals": self.hospitals}

    def _begin(self) -> None:
        self.all_hospitals = list(self.hospitals)
        super()._begin()
        path = self.folder.path / "state" / "federation.json"
        self.hospitals = json.loads(path.read_text(encoding="utf-8"))["hospitals"]

    def _agree(self, ready: Mapping[str, Message]) -> Generator[Step, None, Federation]:
        """Until all regions that are left have agreed, on the same list of hospitals."""
        while True:
            there = self._there(ready)
            if len(ready) < len(self.members) or there != self.hospitals:
                self.hospitals = there
                self.restrict_to([region for region in ready if region not in self.left])
                ready = yield from self._greet()
                continue
            self.title = "agreeing on columns"
            try:
                federation: Federation = yield from agree_on_regions(
                    self.study, self.families, dict(ready), self.hospitals, self._ask_regions, self.run_name
                )
            except SiteLeft:
                ready = yield from self._greet()
            except Disagreement as error:
                ready = self.without(error, ready)
            else:
                missing = [notice for site, notice in self.away.items() if site not in self.hospitals]
                return replace(federation, notices=(*federation.notices, *missing))

    def check_ready(self, site: str, answer: Message) -> None:
        super().check_ready(site, answer)
        hospitals = answer.body["sites"]
        known = regions_of(self.study, self.hospitals).get(site, ())
        unique = len(set(hospitals)) == len(hospitals)
        require(unique and set(hospitals) <= set(known), "hospitals of another region")
        require(bool(hospitals), "no hospital that takes part")

    def _there(self, ready: Mapping[str, Message]) -> list[str]:
        """The hospitals that regions say are there, each of them by its own region."""
        known = regions_of(self.study, self.hospitals)
        there = {site for region, message in ready.items() for site in message.body["sites"] if site in known[region]}
        return [site for site in self.hospitals if site in there]

    def _ask_regions(self, message: Message, check: Check) -> Generator[Step, None, dict[str, Message]]:
        """Hospitals that left their region meanwhile are no hospitals of this run: all begin anew without them."""
        members = regions_of(self.study, self.hospitals)

        def check_unless_gone(region: str, answer: Message) -> None:
            gone = answer.body.get("gone")
            require(set(gone or ()) <= set(members[region]), "hospitals of another region")
            if not gone:
                require(REQUIRED.get(answer.kind, set()) <= set(answer.body), "nothing, although nobody left")
                check(region, answer)

        answers = yield from self.ask_required(message, check_unless_gone)
        gone = {site for answer in answers.values() for site in answer.body.get("gone") or ()}
        if gone:
            self.hospitals = [site for site in self.hospitals if site not in gone]
            self.write_federation()
            raise SiteLeft
        return answers

    def _shapes(self, trial: Trial) -> dict[str, Shape]:
        return model_shapes(trial)

    def _round(
        self, number: int, trials: list[Trial], state: WaveState, records: RecordWriter, prepare: Message
    ) -> Generator[Step, None, WaveState]:
        began, first = time.monotonic(), state.round
        last = min(first + self._rounds_of(trials), max(trial.training.rounds for trial in trials))
        spool = Spool(self.folder.path / "state", number, last - 1)
        recipients = list(self.present)
        self.patience = 1 + (last - first) * (STAGES if is_secure(trials) else 1)
        yield from self._ask_for_models(number, trials, state, spool, last, prepare)
        self.patience = 2
        entries = spool.entries(self.present)
        ready, waiting = scored_records(state, trials, [entry.body for entry in entries.values()], final=False)
        for record in ready:
            records.add(record)
        scored = replace(state, pending=waiting, records=records.flush())
        closed = close_span(trials, scored, entries, recipients, last, time.monotonic() - began)
        missing = [region for region in recipients if region not in entries]
        self.log_round(number, first, Arrivals(entries), missing)
        return closed

    def _ask_for_models(
        self, number: int, trials: list[Trial], state: WaveState, spool: Spool, last: int, prepare: Message
    ) -> Generator[Step]:
        known = spool.entries(self.present)
        chosen = [n for n, trial in enumerate(trials) if trial.training.rounds > state.round]
        scored = self._scored(trials, state, chosen)
        body = {"run": self.run_name, "wave": number, "round": state.round, "score": scored}
        requests = {region: (Message("train", body), chosen) for region in self.present if region not in known}
        members = regions_of(self.study, self.hospitals)

        def take(region: str, sealed: Sealed, message: Message) -> None:
            self._check_figures(region, message.body["figures"], scored, trials)
            check_span(region, message, trials, range(state.round, last), members[region])
            expected = {
                f"{n}/{name}": shape for n in trials_with_model(message.body) for name, shape in self.shapes[n].items()
            }
            spool.add(region, sealed, message, expected)
            self.prepared.add(region)

        what = f"round {last}" if last == state.round + 1 else f"rounds {state.round + 1} to {last}"
        yield from self.collect(
            self._with_models(trials, state, requests, prepare), take, what, closing=True, there=known
        )

    def check_summary(
        self, site: str, message: Message, trials: Sequence[Trial], score: Sequence[int], regional: Collection[int] = ()
    ) -> None:
        """Of each of a region's hospitals by itself."""
        members = regions_of(self.study, self.hospitals)[site]
        for hospital, summaries in message.body["summaries"].items():
            require(hospital in members, "figures of another region's hospital")
            check_summaries(hospital, summaries, trials, self.agreed_plan, regional)
        self._check_figures(site, message.body["figures"], score, trials)

    def _check_figures(
        self, region: str, figures: Mapping[str, Any], score: Sequence[int], trials: Sequence[Trial]
    ) -> None:
        """Of all hospitals of a region together, or of those whose figures may leave."""
        members = regions_of(self.study, self.hospitals)[region]
        for key, by_subset in figures.items():
            require(key == str(int(key)) and int(key) in score, "figures of a model that was not to be scored")
            for subset, curve in by_subset.items():
                most = sum(rows_scored(hospital, subset, trials[int(key)], self.agreed_plan)[0] for hospital in members)
                check_curve(curve, most, False, self.agreed_plan.task)
                require(curve.get("auc_rows", 0) <= curve["rows"], "an AUC of more rows than there are")

    def _scored(self, trials: Sequence[Trial], state: WaveState, chosen: Sequence[int]) -> list[int]:
        """Trials whose model is scored: at the first average after a round in which the study asks for it."""
        interval, first = self.study.evaluation.every, state.round
        due = first and interval and first // interval > (first - self._rounds_of(trials)) // interval
        return [n for n in chosen if due and self.study.arm(trials[n].arm).held_out is None]

    def _rounds_of(self, trials: Sequence[Trial]) -> int:
        return span_of(self.study.arm(trials[0].arm))

    def _own_models(self, trials: list[Trial], state: WaveState, score: Sequence[int]) -> dict[str, Tree]:
        return {region: own_of_region(trials, state, region, score) for region in self.present}

    def _by_hospital(self, answers: Mapping[str, Message]) -> dict[str, Message]:
        members = regions_of(self.study, self.hospitals)
        by_site = {
            site: Message("summary", {"summaries": summaries})
            for region, message in answers.items()
            for site, summaries in message.body["summaries"].items()
            if site in members[region]
        }
        return {site: by_site[site] for site in self.hospitals if site in by_site}


@dataclass(frozen=True)
class FactsOfRegions(SiteFacts):
    hospitals: Mapping[str, Sequence[str]]  # of each region

    def contributors(self, arm: Arm) -> list[str]:
        kind = next(kind for kind in self.plan.kinds if kind[0] == self.plan.alike[arm.name])
        return [region for region, facts in self.known.items() if facts[kind]["trains"]]

    def facts(self, name: str, kind: Key) -> Facts:
        return read_facts(self.known[name][kind]["facts"])

    def present(self, kind: Key) -> list[Sequence[bool]]:
        return [facts[kind]["present"] for facts in self.known.values()]

    def train_rows(self, name: str) -> int:
        return most_train_rows(self.plan, self.hospitals[name])

    def trains(self, name: str, kind: Key) -> bool:
        return bool(self.known[name][kind]["trains"])


def agree_on_regions(
    study: Study, families: Families, ready: Answers, hospitals: Sequence[str], ask: Any, run: str
) -> Generator[Any, None, Federation]:
    """`ready` are the regions' first answers; `hospitals` are those of all of them, in the order that numbers them."""
    task = common_task(ready)
    columns, notices = _columns(ready)
    inputs = None if columns else common_inputs(study, ready)
    refuse_unpaid_scale(study, task)
    plan = coordinator_plan(study, families, hospitals, task)
    payload = [write_column(column) for column in columns] or None
    body = {"run": run, "columns": payload, "task": task.to_json()}
    members = regions_of(study, hospitals)

    def check(region: str, answer: Message) -> None:
        check_region_facts(answer.body, plan, columns, hospitals, members[region])

    answers = yield from ask(Message("facts", body), check)
    sets = _by_hospital(answers, "sets", hospitals)
    described = _by_hospital(answers, "described", hospitals)
    notices += inverted_labels(study, task, _by_hospital(answers, "directions", hospitals))
    for kind in plan.kinds:
        members_of(study.arm(kind[0]), hospitals)  # refused where nobody is left to train
        place = plan.row_sets.index(plan.rows_of(kind))
        by_site = {site: split_sizes(sizes[place]) for site, sizes in sets.items()}
        plan.agreed[kind] = Agreed(tuple(inputs or ()), split_sizes=by_site)
    by_kind = {name: dict(zip(plan.kinds, message.body["kinds"], strict=True)) for name, message in answers.items()}
    targets = {name: {kind: own["target"] for kind, own in kinds.items()} for name, kinds in by_kind.items()}
    facts = FactsOfRegions(plan, by_kind, targets, members)
    prepare = yield from agree_on_layouts(plan, columns, inputs, facts, ask, run)
    return Federation(plan, described, prepare, (*notices, *dominant_sites(plan)))


def check_region_facts(
    body: Mapping[str, Any],
    plan: DeployedPlan,
    columns: Sequence[Column],
    hospitals: Sequence[str],
    members: Sequence[str],
) -> None:
    """A region's facts of its own hospitals, all of them."""
    for name in ("sets", "described", "directions"):
        require(set(body[name]) == set(members), f"{name} of other hospitals than its own")
    require(len(body["kinds"]) == len(plan.kinds), "facts of another number of arms")
    for kind in body["kinds"]:
        require(kind["facts"] is not None or not (columns and kind["trains"]), "no facts of rows that train")
        check_column_facts(kind["facts"], columns)
        require(len(kind["present"]) == len(columns), "another number of columns")
    for site in members:
        require(len(body["sets"][site]) == len(plan.row_sets), "other sets of rows than the study has")
        for key, sizes in zip(plan.row_sets, body["sets"][site], strict=True):
            check_sizes(site, sizes, plan, key, hospitals)
        check_described(body["described"][site], body["sets"][site][0], plan)
        check_directions(body["directions"][site], columns, plan.task)
    _check_target(body, plan, members)


def _check_target(body: Mapping[str, Any], plan: DeployedPlan, members: Sequence[str]) -> None:
    """Sums over the training rows of a region's hospitals, for each kind of arm."""
    for key, kind in zip(plan.kinds, body["kinds"], strict=True):
        require(kind["trains"] or not kind["target"], "sums of a target where nobody trains")
        if kind["trains"]:
            place = plan.row_sets.index(plan.rows_of(key))
            trained = trainers(plan.study.arm(key[0]), members)
            rows = sum(body["sets"][site][place]["train"] for site in trained)
            plan.task.check_target_sums([fsum(parts) for parts in kind["target"]], rows)


def _columns(ready: Answers) -> tuple[list[Column], list[Notice]]:
    """In the order of one list of all hospitals, whoever of them is in which region."""
    by_region = {region: message.body["columns"] for region, message in ready.items()}
    columns, notices = common_columns(by_region)
    places: dict[str, list[int]] = {}
    for column in (column for listed in by_region.values() for column in listed or ()):
        place = [int(number) for number in column["place"]]
        places[column["name"]] = min(places.get(column["name"], place), place)
    return sorted(columns, key=lambda column: places[column.name]), notices


def _by_hospital(answers: Answers, name: str, hospitals: Sequence[str]) -> dict[str, Any]:
    """KeyError where a hospital is missing."""
    entries = {site: entry for message in answers.values() for site, entry in message.body[name].items()}
    return {site: entries[site] for site in hospitals}
