"""The answers of a region's sites as one: the coordinator of all learns no column, gap, category, mean or sum of a
single site.

Under each site's name it learns what the report shows of a site in any deployment: numbers of its rows, which way its
columns go with the label (where the study compares labels), and in the end its figures on test rows.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from wardround.core.notices import lines_of
from wardround.data.agreement import Facts, FillValues, Moments
from wardround.data.serialization import write_column
from wardround.deployment.common.answer_checks import split_sizes
from wardround.deployment.common.deployed_plan import DeployedPlan, Key
from wardround.deployment.common.schema_agreement import (
    common_columns,
    merged_part,
    read_facts,
    read_fill_values,
    read_moments,
    refuse_other_tasks,
    refuse_outlier,
    write_facts,
    write_moments,
)
from wardround.deployment.common.waves import SUBSETS, Figured, pooled_figures
from wardround.deployment.regional.regions import trainers
from wardround.privacy.disclosure.target_sums import exactly
from wardround.protocol.catalogue import (
    ColumnFillValues,
    FactsAnswer,
    FillValuesAnswer,
    KindFacts,
    MomentsAnswer,
    Ready,
    RegionFigures,
    RowSet,
    TaskPart,
)
from wardround.study.schema import Arm

P = TypeVar("P")


def merged_ready(ready: Mapping[str, Ready], hospitals: Sequence[str]) -> dict[str, Any]:
    """Of all that are there. `place` says where a column stands first, so that all regions' columns come in the order
    that they have in one list of all hospitals."""
    columns, _ = common_columns({site: body.columns for site, body in ready.items()})
    listed = {site: [column.name for column in body.columns or ()] for site, body in ready.items()}
    places = {
        column.name: min(
            (hospitals.index(s), names.index(column.name)) for s, names in listed.items() if column.name in names
        )
        for column in columns
    }
    return {
        "columns": [{**write_column(column), "place": places[column.name]} for column in columns] or None,
        "inputs": _same_inputs(ready),
        "task": _merged_task(ready),
    }


def lacking_columns(ready: Mapping[str, Ready]) -> list[str]:
    """For the region's own screen."""
    return lines_of(common_columns({site: body.columns for site, body in ready.items()})[1])


def merged_facts(plan: DeployedPlan, answers: Mapping[str, FactsAnswer]) -> dict[str, Any]:
    sets = {site: dict(zip(plan.row_sets, body.sets, strict=True)) for site, body in answers.items()}
    return {
        "kinds": [_facts_of_kind(plan, kind, sets) for kind in plan.kinds],
        "sets": {site: [split_sizes(facts[key]) for key in plan.row_sets] for site, facts in sets.items()},
        "described": {site: body.described for site, body in answers.items()},
        "directions": {site: body.directions for site, body in answers.items()},
    }


def _facts_of_kind(plan: DeployedPlan, kind: Key, sets: Mapping[str, Mapping[Key, RowSet]]) -> KindFacts:
    """For one kind of arm: facts of the sites that train in it, and whether all sites have a value in each column."""
    arm, own = plan.study.arm(kind[0]), {site: row_sets[plan.rows_of(kind)] for site, row_sets in sets.items()}
    members = trainers(arm, own)
    target = exactly([[[number] for number in own[site].target] for site in members])
    known = {site: read_facts(row_set.facts) for site, row_set in own.items() if row_set.facts is not None}
    if len(known) < len(own):
        return KindFacts(facts=None, present=[], trains=bool(members), target=target)
    return KindFacts(
        facts=write_facts(_joined(arm, [known[site] for site in members])) if members else None,
        present=[all(column) for column in zip(*(facts.present for facts in known.values()), strict=True)],
        trains=bool(members),
        target=target,
    )


def merged_fill_values(plan: DeployedPlan, answers: Mapping[str, FillValuesAnswer]) -> dict[str, Any]:
    """Means weighted by the values behind them, and counts of categories added up."""
    by_kind = _of_trainers(plan, {site: body.fill_values for site, body in answers.items()})
    return {"fill_values": [_added_up([read_fill_values(part) for part in parts]) for parts in by_kind]}


def merged_moments(plan: DeployedPlan, answers: Mapping[str, MomentsAnswer]) -> dict[str, Any]:
    by_kind = _of_trainers(plan, {site: body.moments for site, body in answers.items()})
    parts = [[read_moments(part) for part in known if part is not None] for known in by_kind]
    return {"moments": [write_moments(_sum_of(moments)) if moments else None for moments in parts]}


def _of_trainers(plan: DeployedPlan, parts: Mapping[str, Sequence[P]]) -> list[list[P]]:
    """For each kind of arm, those of the sites that train in it."""
    return [
        [parts[site][number] for site in trainers(plan.study.arm(kind[0]), parts)]
        for number, kind in enumerate(plan.kinds)
    ]


def merged_figures(figures: Sequence[Figured]) -> RegionFigures:
    """Loss and accuracy of each trial's model over the rows of all sites that scored it."""
    merged: RegionFigures = {}
    for number in dict.fromkeys(number for by_trial in figures for number in by_trial):
        by_subset = {subset: pooled_figures(number, subset, figures) for subset in SUBSETS}
        merged[number] = {subset: pooled for subset, pooled in by_subset.items() if pooled is not None}
    return merged


def _joined(arm: Arm, facts: Sequence[Facts]) -> Facts:
    enough = all if arm.preparation.schema == "common" else any
    return Facts(
        tuple(enough(column) for column in zip(*(site.present for site in facts), strict=True)),
        tuple(any(column) for column in zip(*(site.gaps for site in facts), strict=True)),
        tuple(
            tuple(sorted({level for levels in column for level in levels}))
            for column in zip(*(site.levels for site in facts), strict=True)
        ),
    )


def _added_up(parts: Sequence[FillValues]) -> ColumnFillValues:
    if not parts:
        return ColumnFillValues(fill=[], counts=[], levels={})
    counts = np.asarray(sum(part.counts for part in parts))
    fill = np.asarray(sum(part.fill * part.counts for part in parts)) / np.maximum(counts, 1)
    levels: dict[str, dict[str, int]] = {}
    for part in parts:
        for name, counted in part.levels.items():
            for level, count in counted.items():
                levels.setdefault(name, {})[level] = levels.get(name, {}).get(level, 0) + int(count)
    return ColumnFillValues(fill=fill.tolist(), counts=counts.tolist(), levels=levels)


def _sum_of(parts: Sequence[Moments]) -> Moments:
    names = ("count", "total", "squares")
    return Moments(*(np.asarray(sum(getattr(part, name) for part in parts)) for name in names))


def _same_inputs(ready: Mapping[str, Ready]) -> list[int] | None:
    inputs = {site: body.inputs for site, body in ready.items()}
    remedy = "Correct [data] in a site file."
    refuse_outlier(inputs, lambda site, other: f"its images are of another size than at {other}", remedy)
    return next(iter(inputs.values()))


def _merged_task(ready: Mapping[str, Ready]) -> TaskPart:
    """The same at every site. A name that all of them withhold may be known in another region."""
    parts = {site: body.task for site, body in ready.items()}
    refuse_other_tasks(parts)
    return merged_part(parts)
