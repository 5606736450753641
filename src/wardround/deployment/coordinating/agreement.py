"""How the coordinator lets sites agree before the first round: on what is predicted, columns, layouts, fill values and
scales.

It asks for facts about each site's rows, merges them, and sends everybody the same `prepare` message.
"""

from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from wardround.core.errors import DeployError
from wardround.core.extras import needs
from wardround.core.notices import Notice, read_notice
from wardround.data.agreement import Common, Facts, FillValues, common_of, common_scale, layout_of
from wardround.data.prepare import Layout
from wardround.data.records import Column
from wardround.data.serialization import write_layout
from wardround.deployment.common.answer_checks import (
    check_facts,
    check_fill_values,
    check_moments,
    dominant_sites,
    split_sizes,
)
from wardround.deployment.common.deployed_plan import Agreed, DeployedPlan, Key, coordinator_plan
from wardround.deployment.common.messaging import B, Check, Step
from wardround.deployment.common.schema_agreement import (
    OWN_COLUMNS,
    agreed_of,
    column_parts,
    common_columns,
    disagreement,
    inverted_labels,
    merged_part,
    read_facts,
    read_fill_values,
    read_moments,
    read_part,
    refuse_other_tasks,
    refuse_outlier,
    write_common,
)
from wardround.deployment.flat.group_draw import drawn_seed
from wardround.privacy.disclosure.target_sums import Exact, refuse_unpaid_scale, scale_of
from wardround.protocol import catalogue
from wardround.protocol.catalogue import (
    AskFacts,
    AskFillValues,
    AskMoments,
    ColumnFacts,
    Described,
    FactsAnswer,
    FillValuesAnswer,
    MissingColumns,
    MomentsAnswer,
    Prepare,
    Ready,
    RegionFillValues,
    RegionMoments,
    RegionReady,
    Request,
)
from wardround.runs.plan import members_of
from wardround.study.parser import Families
from wardround.study.schema import Arm, Study
from wardround.tasks import Task, read_task

with needs("deploy", "a study across hospitals"):
    from msgspec import convert, json


class Ask(Protocol):
    """One message to everybody, and the answers of all in the order of the sites."""

    def __call__(self, request: Request, answer: type[B], check: Check[B]) -> Generator[Step, None, dict[str, B]]: ...


@dataclass(frozen=True)
class SiteFacts:
    """Facts by site. Those of regions, each for all of its sites, are asked for the same."""

    plan: DeployedPlan
    known: Mapping[str, Mapping[Key, Any]]  # by site and set of rows
    targets: Mapping[str, Mapping[Key, Sequence[Exact]]]  # sums of the target, by site and kind of arm

    def contributors(self, arm: Arm) -> list[str]:
        """Those whose training rows determine the preparation of an arm."""
        return members_of(arm, self.plan.sites)

    def facts(self, name: str, kind: Key) -> Facts:
        facts: Facts = self.known[name][self.plan.rows_of(kind)]
        return facts

    def present(self, kind: Key) -> list[Sequence[bool]]:
        """For every participant, whether each column has a value."""
        return [self.facts(name, kind).present for name in self.known]

    def train_rows(self, name: str) -> int:
        """The largest number of training rows in any arm."""
        return most_train_rows(self.plan, [name])

    def trains(self, name: str, kind: Key) -> bool:
        """Whether sums over training rows are requested."""
        return True


@dataclass(frozen=True)
class AnswerKinds:
    """With what those who are asked answer."""

    fill_values: type[FillValuesAnswer | RegionFillValues]
    moments: type[MomentsAnswer | RegionMoments]


@dataclass(frozen=True)
class Federation:
    plan: DeployedPlan
    described: Mapping[str, Described]  # each site's own counts
    prepare: Prepare  # what every site is sent
    notices: tuple[Notice, ...]


def agree_on(
    study: Study, families: Families, ready: Mapping[str, Ready], ask: Ask, run: str
) -> Generator[Step, None, Federation]:
    """`ready` are the sites' first answers, in the order of the sites."""
    sites = list(ready)
    task = common_task(ready)
    columns, notices = common_columns({site: body.columns for site, body in ready.items()})
    inputs = None if columns else common_inputs(study, ready)
    refuse_unpaid_scale(study, task)
    plan = coordinator_plan(study, families, sites, task)
    if not study.trained_arms:  # nothing is prepared for a model: an analysis asks for what it needs
        prepare = Prepare(run=run, columns=None, layouts=[], of=[], inputs=None, commons=[], target_scales=[])
        return Federation(plan, {}, prepare, tuple(notices))

    def check(site: str, body: FactsAnswer) -> None:
        check_facts(site, body, plan, columns, sites)

    answers = yield from ask(AskFacts(run=run, columns=column_parts(columns)), FactsAnswer, check)
    row_sets = {site: dict(zip(plan.row_sets, body.sets, strict=True)) for site, body in answers.items()}
    described = {site: body.described for site, body in answers.items()}
    notices += inverted_labels(study, task, {site: body.directions for site, body in answers.items()})
    for kind in plan.kinds:
        sizes = {site: split_sizes(row_sets[site][plan.rows_of(kind)]) for site in sites}
        plan.agreed[kind] = Agreed(tuple(inputs or ()), split_sizes=sizes)
    facts = {site: {key: _facts(row_set.facts) for key, row_set in sets.items()} for site, sets in row_sets.items()}
    targets = {
        site: {kind: [[number] for number in row_sets[site][plan.rows_of(kind)].target] for kind in plan.kinds}
        for site in sites
    }
    kinds = AnswerKinds(FillValuesAnswer, MomentsAnswer)
    prepare = yield from agree_on_layouts(plan, columns, inputs, SiteFacts(plan, facts, targets), ask, run, kinds)
    return Federation(plan, described, prepare, (*notices, *dominant_sites(plan)))


def agree_on_layouts(
    plan: DeployedPlan,
    columns: Sequence[Column],
    inputs: list[int] | None,
    facts: SiteFacts,
    ask: Ask,
    run: str,
    kinds: AnswerKinds,
) -> Generator[Step, None, Prepare]:
    """The columns of each kind of arm, and values that some sites take from others."""
    scales = _target_scales(plan, facts)
    chosen = Layouts([None] * len(plan.kinds), [], [None] * len(plan.kinds))
    commons: list[Common | None] = [None] * len(plan.kinds)
    if columns:
        chosen, lacking = _choose_layouts(plan, columns, facts)
        fill_values = yield from _ask_for_fill_values(plan, lacking, facts, chosen, ask, run, kinds.fill_values)
        commons = _fill_values(plan, chosen.by_kind, fill_values, facts)
        commons = yield from _scales(plan, chosen, commons, facts, ask, run, kinds.moments)
        for kind, layout, common in zip(plan.kinds, chosen.by_kind, commons, strict=True):
            if layout is not None:
                agreed = plan.agreed[kind]
                plan.agreed[kind] = replace(agreed, inputs=(len(layout.names),), layout=layout, common=common)
    return Prepare(
        run=run,
        columns=column_parts(columns),
        layouts=chosen.parts,
        of=chosen.places,
        inputs=inputs,
        commons=_common_parts(commons),
        target_scales=scales,
    )


def _target_scales(plan: DeployedPlan, facts: SiteFacts) -> list[list[float]]:
    """By kind of arm, from the sums of those who train in it; or that of the model from which its training starts."""
    for kind in plan.kinds:
        arm = plan.study.arm(kind[0])
        carried = plan.carried_scale(arm, kind[1])
        scale = scale_of(plan.task, [facts.targets[name][kind] for name in facts.contributors(arm)])
        plan.agreed[kind] = replace(plan.agreed[kind], target_scale=scale if carried is None else carried)
    return [list(plan.agreed[kind].target_scale) for kind in plan.kinds]


def _facts(part: ColumnFacts | None) -> Facts:
    return Facts((), (), ()) if part is None else read_facts(part)


def _common_parts(commons: Sequence[Common | None]) -> list[catalogue.Common | None]:
    return [None if common is None else write_common(common) for common in commons]


def most_train_rows(plan: DeployedPlan, sites: Collection[str]) -> int:
    """The largest total over these sites in any arm."""
    return max(sum(agreed.split_sizes[site]["train"] for site in sites) for agreed in plan.agreed.values())


def write_federation(federation: Federation) -> bytes:
    """So that a resumed run need not ask the sites again."""
    plan = federation.plan
    return json.encode(
        {
            "task": plan.task.to_json(),
            "split_sizes": [dict(plan.agreed[kind].split_sizes) for kind in plan.kinds],
            "described": dict(federation.described),
            "prepare": federation.prepare,
            "notices": [notice.to_json() for notice in federation.notices],
        }
    )


def read_federation(content: bytes, study: Study, families: Families, sites: Sequence[str]) -> Federation:
    known = json.decode(content)
    plan = coordinator_plan(study, families, sites, read_task(known["task"]))
    prepare = convert(known["prepare"], Prepare)
    plan.group_seed = drawn_seed(study, sites, prepare.draw)
    plan.agreed = {
        kind: replace(agreed, split_sizes=sizes)
        for (kind, agreed), sizes in zip(agreed_of(plan, prepare).items(), known["split_sizes"], strict=True)
    }
    described = convert(known["described"], dict[str, Described])
    return Federation(plan, described, prepare, tuple(map(read_notice, known["notices"])))


@dataclass(frozen=True)
class Layouts:
    """By kind of arm, None where each site has its own columns. Each different layout is sent once; most studies have
    few."""

    by_kind: list[Layout | None]
    parts: list[catalogue.Layout]  # each different one
    places: list[int | None]  # of each kind's among them


def _choose_layouts(
    plan: DeployedPlan, columns: Sequence[Column], facts: SiteFacts
) -> tuple[Layouts, list[MissingColumns]]:
    """And the columns that some site lacks, by kind of arm."""
    distinct: list[Layout] = []
    layouts: list[Layout | None] = []
    lacking: list[MissingColumns] = []
    for kind in plan.kinds:
        arm = plan.study.arm(kind[0])
        if arm.preparation.schema == "own":
            plan.agreed[kind] = replace(plan.agreed[kind], inputs=OWN_COLUMNS)
            layouts.append(None)
            lacking.append(MissingColumns(numbers=[], categories=[]))
            continue
        layout = layout_of(columns, [facts.facts(name, kind) for name in facts.contributors(arm)], arm.preparation)
        if layout not in distinct:
            distinct.append(layout)
        layouts.append(layout)
        lacking.append(_lacking(layout, columns, facts.present(kind)))
    parts = [convert(write_layout(layout), catalogue.Layout) for layout in distinct]
    return Layouts(layouts, parts, [None if layout is None else distinct.index(layout) for layout in layouts]), lacking


def _ask_for_fill_values(
    plan: DeployedPlan,
    lacking: list[MissingColumns],
    facts: SiteFacts,
    layouts: Layouts,
    ask: Ask,
    run: str,
    kind: type[FillValuesAnswer | RegionFillValues],
) -> Generator[Step, None, dict[str, list[FillValues]]]:
    """Values for columns that some site lacks, by contributor; empty where no site lacks any."""
    if not any(columns.numbers or columns.categories for columns in lacking):
        return {}

    def check(site: str, body: FillValuesAnswer | RegionFillValues) -> None:
        rows = facts.train_rows(site)
        check_fill_values(body.fill_values or (), plan, lacking, layouts.places, layouts.parts, rows)

    request = AskFillValues(run=run, layouts=layouts.parts, of=layouts.places, missing=lacking)
    answers = yield from ask(request, kind, check)
    return {site: [read_fill_values(part) for part in body.fill_values or ()] for site, body in answers.items()}


def _fill_values(
    plan: DeployedPlan,
    layouts: Sequence[Layout | None],
    fill_values: Mapping[str, Sequence[FillValues]],
    facts: SiteFacts,
) -> list[Common | None]:
    commons: list[Common | None] = []
    for number, (kind, layout) in enumerate(zip(plan.kinds, layouts, strict=True)):
        if layout is None:
            commons.append(None)
            continue
        columns = len(layout.numeric)
        nothing = FillValues(np.zeros(columns), np.zeros(columns, dtype=np.int64), {})
        contributors = facts.contributors(plan.study.arm(kind[0]))
        commons.append(common_of([fill_values[name][number] if fill_values else nothing for name in contributors]))
    return commons


def _scales(
    plan: DeployedPlan,
    layouts: Layouts,
    commons: list[Common | None],
    facts: SiteFacts,
    ask: Ask,
    run: str,
    kind: type[MomentsAnswer | RegionMoments],
) -> Generator[Step, None, list[Common | None]]:
    arms = [plan.study.arm(name) for name, _ in plan.kinds]
    if not any(arm.preparation.scale == "federated" for arm in arms):
        return commons

    def check(site: str, body: MomentsAnswer | RegionMoments) -> None:
        trains = partial(facts.trains, site)
        check_moments(body.moments or (), plan, layouts.places, layouts.parts, facts.train_rows(site), trains)

    request = AskMoments(run=run, layouts=layouts.parts, of=layouts.places, commons=_common_parts(commons))
    answers = yield from ask(request, kind, check)
    moments = {
        site: [None if part is None else read_moments(part) for part in body.moments or ()]
        for site, body in answers.items()
    }
    scaled: list[Common | None] = []
    for number, (arm, common) in enumerate(zip(arms, commons, strict=True)):
        parts = [moments[name][number] for name in facts.contributors(arm)]
        known = [part for part in parts if part is not None]
        scaled.append(replace(common, scale=common_scale(known)) if known and common is not None else common)
    return scaled


def _lacking(layout: Layout, columns: Sequence[Column], present: Sequence[Sequence[bool]]) -> MissingColumns:
    """Columns without a value in some site's training rows. Only these are asked about."""
    lacking = {column.name for i, column in enumerate(columns) if not all(row[i] for row in present)}
    return MissingColumns(
        numbers=[place for place, column in enumerate(layout.numeric) if column.name in lacking],
        categories=[name for name in layout.levels if name in lacking],
    )


def common_task(ready: Mapping[str, Ready | RegionReady]) -> Task:
    """The same at every site. A name that one site withholds is known from another, or the run cannot begin."""
    parts = {site: body.task for site, body in ready.items()}
    refuse_other_tasks(parts)
    merged = merged_part(parts)
    if not all(entry.name for entry in merged.names):
        problem = "a class has too few rows to be named at any site"
        raise DeployError("target", problem, "Correct the target, or leave the rows of that class out.")
    return read_part(merged)


def common_inputs(study: Study, ready: Mapping[str, Ready | RegionReady]) -> list[int]:
    """The shape of images. Where each site has its own columns, their number is not asked for."""
    inputs = {site: body.inputs for site, body in ready.items()}
    if all(arm.preparation.schema == "own" for arm in study.trained_arms):
        images = next((site for site, shape in inputs.items() if shape is not None), None)
        if images is not None:
            problem = "has images where the study is about columns"
            raise disagreement({images: problem}, "Correct [data] in its site file.")
        return list(OWN_COLUMNS)
    shapes = {site: _listed(shape) for site, shape in inputs.items()}
    refuse_outlier(
        inputs,
        lambda site, other: f"its images are of another size ({shapes[site]}) than at {other} ({shapes[other]})",
        "Correct [data] in one of the site files (for tables: `positive`, `classes`).",
    )
    return list(next(iter(inputs.values())) or ())


def _listed(values: Any) -> str:
    return ", ".join(map(str, values)) if values else "none"
