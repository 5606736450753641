"""How regions agree before the first round: as sites do, each region for all of its hospitals."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import TypeVar

from wardround.core.notices import Notice
from wardround.data.agreement import Facts
from wardround.data.records import Column
from wardround.deployment.common.answer_checks import (
    check_column_facts,
    check_described,
    check_directions,
    check_sizes,
    dominant_sites,
    require,
    split_sizes,
)
from wardround.deployment.common.deployed_plan import Agreed, DeployedPlan, Key, coordinator_plan
from wardround.deployment.common.messaging import Step
from wardround.deployment.common.schema_agreement import column_parts, common_columns, inverted_labels, read_facts
from wardround.deployment.coordinating.agreement import (
    AnswerKinds,
    Ask,
    Federation,
    SiteFacts,
    agree_on_layouts,
    common_inputs,
    common_task,
    most_train_rows,
)
from wardround.deployment.regional.regions import regions_of, trainers
from wardround.privacy.disclosure.target_sums import refuse_unpaid_scale
from wardround.protocol.catalogue import AskFacts, KindFacts, RegionFacts, RegionFillValues, RegionMoments, RegionReady
from wardround.runs.plan import members_of
from wardround.study.parser import Families
from wardround.study.schema import Arm, Study

V = TypeVar("V")


@dataclass(frozen=True)
class FactsOfRegions(SiteFacts):
    kinds: Mapping[str, Mapping[Key, KindFacts]]  # of each region
    hospitals: Mapping[str, Sequence[str]]

    def contributors(self, arm: Arm) -> list[str]:
        kind = next(kind for kind in self.plan.kinds if kind[0] == self.plan.alike[arm.name])
        return [region for region, facts in self.kinds.items() if facts[kind].trains]

    def facts(self, name: str, kind: Key) -> Facts:
        known = self.kinds[name][kind].facts
        return Facts((), (), ()) if known is None else read_facts(known)

    def present(self, kind: Key) -> list[Sequence[bool]]:
        return [facts[kind].present for facts in self.kinds.values()]

    def train_rows(self, name: str) -> int:
        return most_train_rows(self.plan, self.hospitals[name])

    def trains(self, name: str, kind: Key) -> bool:
        return self.kinds[name][kind].trains


def agree_on_regions(
    study: Study,
    families: Families,
    ready: Mapping[str, RegionReady],
    hospitals: Sequence[str],
    ask: Ask,
    run: str,
) -> Generator[Step, None, Federation]:
    """`ready` are the regions' first answers; `hospitals` are those of all of them, in the order that numbers them."""
    task = common_task(ready)
    columns, notices = _columns(ready)
    inputs = None if columns else common_inputs(study, ready)
    refuse_unpaid_scale(study, task)
    plan = coordinator_plan(study, families, hospitals, task)
    members = regions_of(study, hospitals)

    def check(region: str, body: RegionFacts) -> None:
        check_region_facts(body, plan, columns, hospitals, members[region])

    request = AskFacts(run=run, columns=column_parts(columns), task=task.to_json())
    answers = yield from ask(request, RegionFacts, check)
    sets = _of_hospitals([body.sets for body in answers.values()], hospitals)
    described = _of_hospitals([body.described for body in answers.values()], hospitals)
    directions = _of_hospitals([body.directions for body in answers.values()], hospitals)
    notices += inverted_labels(study, task, directions)
    for kind in plan.kinds:
        members_of(study.arm(kind[0]), hospitals)  # refused where nobody is left to train
        place = plan.row_sets.index(plan.rows_of(kind))
        by_site = {site: split_sizes(sizes[place]) for site, sizes in sets.items()}
        plan.agreed[kind] = Agreed(tuple(inputs or ()), split_sizes=by_site)
    by_kind = {name: dict(zip(plan.kinds, body.kinds or (), strict=True)) for name, body in answers.items()}
    targets = {name: {kind: own.target for kind, own in kinds.items()} for name, kinds in by_kind.items()}
    facts = FactsOfRegions(plan, {}, targets, by_kind, members)
    kinds = AnswerKinds(RegionFillValues, RegionMoments)
    prepare = yield from agree_on_layouts(plan, columns, inputs, facts, ask, run, kinds)
    return Federation(plan, described, prepare, (*notices, *dominant_sites(plan)))


def check_region_facts(
    body: RegionFacts, plan: DeployedPlan, columns: Sequence[Column], hospitals: Sequence[str], members: Sequence[str]
) -> None:
    """A region's facts of its own hospitals, all of them."""
    kinds, sets, described, directions = body.kinds or [], body.sets or {}, body.described or {}, body.directions or {}
    for name, by_site in (("sets", sets), ("described", described), ("directions", directions)):
        require(set(by_site) == set(members), f"{name} of other hospitals than its own")
    require(len(kinds) == len(plan.kinds), "facts of another number of arms")
    for kind in kinds:
        require(kind.facts is not None or not (columns and kind.trains), "no facts of rows that train")
        check_column_facts(kind.facts, columns)
        require(len(kind.present) == len(columns), "another number of columns")
    for site in members:
        require(len(sets[site]) == len(plan.row_sets), "other sets of rows than the study has")
        for key, sizes in zip(plan.row_sets, sets[site], strict=True):
            check_sizes(site, sizes, plan, key, hospitals)
        check_described(described[site], sets[site][0], plan)
        check_directions(directions[site], columns, plan.task)
    _check_target(kinds, {site: [sizes.train for sizes in own] for site, own in sets.items()}, plan, members)


def _check_target(
    kinds: Sequence[KindFacts], train_rows: Mapping[str, Sequence[int]], plan: DeployedPlan, members: Sequence[str]
) -> None:
    """Sums over the training rows of a region's hospitals, for each kind of arm. `train_rows` are by set of rows."""
    for key, kind in zip(plan.kinds, kinds, strict=True):
        require(kind.trains or not kind.target, "sums of a target where nobody trains")
        if kind.trains:
            place = plan.row_sets.index(plan.rows_of(key))
            rows = sum(train_rows[site][place] for site in trainers(plan.study.arm(key[0]), members))
            plan.task.check_target_sums([fsum(parts) for parts in kind.target], rows)


def _columns(ready: Mapping[str, RegionReady]) -> tuple[list[Column], list[Notice]]:
    """In the order of one list of all hospitals, whoever of them is in which region."""
    columns, notices = common_columns({region: body.columns for region, body in ready.items()})
    places: dict[str, tuple[int, int]] = {}
    for column in (column for body in ready.values() for column in body.columns or ()):
        places[column.name] = min(places.get(column.name, column.place), column.place)
    return sorted(columns, key=lambda column: places[column.name]), notices


def _of_hospitals(answers: Sequence[Mapping[str, V] | None], hospitals: Sequence[str]) -> dict[str, V]:
    """KeyError where a hospital is missing."""
    entries = {site: entry for answer in answers for site, entry in (answer or {}).items()}
    return {site: entries[site] for site in hospitals}
