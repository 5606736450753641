"""How the coordinator of all brings regions to one layout, each as if it were one site."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wardround.core.notices import Notice
from wardround.data.agreement import Facts
from wardround.data.records import Column
from wardround.data.serialization import write_column
from wardround.deployment.common.answer_checks import (
    check_column_facts,
    check_described,
    check_directions,
    check_sizes,
    dominant_sites,
    require,
)
from wardround.deployment.common.deployed_plan import Agreed, DeployedPlan, Key, coordinator_plan
from wardround.deployment.common.schema_agreement import (
    Answers,
    Federation,
    agree_on_layouts,
    common_classes,
    common_columns,
    common_inputs,
    inverted_labels,
    most_train_rows,
    read_facts,
    rows_by_side,
    with_findings,
)
from wardround.deployment.regional.regions import regions_of
from wardround.protocol.messages import Message
from wardround.runs.plan import members_of
from wardround.study.parser import Families
from wardround.study.schema import Arm, Study


@dataclass(frozen=True)
class ToldByRegions:
    """What regions told of each kind of arm."""

    plan: DeployedPlan
    known: Mapping[str, Mapping[Key, Mapping[str, Any]]]
    hospitals: Mapping[str, Sequence[str]]  # of each region

    def contributors(self, arm: Arm) -> list[str]:
        kind = next(kind for kind in self.plan.kinds if kind[0] == self.plan.alike[arm.name])
        return [region for region, told in self.known.items() if told[kind]["trains"]]

    def facts(self, name: str, kind: Key) -> Facts:
        return read_facts(self.known[name][kind]["facts"])

    def present(self, kind: Key) -> list[Sequence[bool]]:
        return [told[kind]["present"] for told in self.known.values()]

    def train_rows(self, name: str) -> int:
        return most_train_rows(self.plan, self.hospitals[name])

    def trains(self, name: str, kind: Key) -> bool:
        return bool(self.known[name][kind]["trains"])


def agree_on_regions(
    study: Study, families: Families, ready: Answers, hospitals: Sequence[str], ask: Any, run: str
) -> Generator[Any, None, Federation]:
    """`ready` are the regions' first answers; `hospitals` are those of all of them, in the order that numbers them."""
    classes, findings = common_classes(ready), with_findings(ready)
    columns, notices = _columns(ready)
    inputs = None if columns else common_inputs(study, ready)
    plan = coordinator_plan(study, families, hospitals, classes, with_findings=findings)
    written = [write_column(column) for column in columns] or None
    body = {"run": run, "columns": written, "classes": classes, "findings": findings}
    members = regions_of(study, hospitals)

    def check(region: str, answer: Message) -> None:
        check_region_facts(answer.body, plan, columns, hospitals, members[region])

    told = yield from ask(Message("facts", body), check)
    sets = _by_hospital(told, "sets", hospitals)
    described = _by_hospital(told, "described", hospitals)
    notices += inverted_labels(study, classes, _by_hospital(told, "directions", hospitals))
    for kind in plan.kinds:
        members_of(study.arm(kind[0]), hospitals)  # refused where nobody is left to train
        place = plan.row_sets.index(plan.rows_of(kind))
        sides = {site: rows_by_side(one[place]) for site, one in sets.items()}
        plan.agreed[kind] = Agreed(tuple(inputs or ()), sides=sides)
    by_kind = {name: dict(zip(plan.kinds, message.body["kinds"], strict=True)) for name, message in told.items()}
    prepare = yield from agree_on_layouts(plan, columns, inputs, ToldByRegions(plan, by_kind, members), ask, run)
    return Federation(plan, described, prepare, (*notices, *dominant_sites(plan)))


def check_region_facts(
    body: Mapping[str, Any],
    plan: DeployedPlan,
    columns: Sequence[Column],
    hospitals: Sequence[str],
    members: Sequence[str],
) -> None:
    """What a region tells of its own hospitals, each of which it has heard of."""
    for name in ("kinds", "sets", "described", "directions"):
        require(name in body, f"nothing of {name}")
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
        check_directions(body["directions"][site], columns)


def _columns(ready: Answers) -> tuple[list[Column], list[Notice]]:
    """In the order of one list of all hospitals, whoever of them is in which region."""
    told = {region: message.body["columns"] for region, message in ready.items()}
    columns, notices = common_columns(told)
    places: dict[str, list[int]] = {}
    for column in (column for listed in told.values() for column in listed or ()):
        place = [int(number) for number in column["place"]]
        places[column["name"]] = min(places.get(column["name"], place), place)
    return sorted(columns, key=lambda column: places[column.name]), notices


def _by_hospital(told: Answers, name: str, hospitals: Sequence[str]) -> dict[str, Any]:
    """What regions told of each hospital; KeyError where one of them is missing."""
    found = {site: one for message in told.values() for site, one in message.body[name].items()}
    return {site: found[site] for site in hospitals}
