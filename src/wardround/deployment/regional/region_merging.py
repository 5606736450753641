"""The answers of a region's sites as one: the coordinator of all learns no column, gap, category, mean or sum of a
single site.

Under each site's name it learns what the report shows of a site in any deployment: numbers of its rows, which way its
columns go with the label (where the study compares labels), and in the end its figures on test rows.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wardround.core.notices import lines_of
from wardround.data.agreement import Facts, FillValues, Moments
from wardround.data.serialization import write_column
from wardround.deployment.common.deployed_plan import DeployedPlan, Key
from wardround.deployment.common.schema_agreement import (
    common_columns,
    merged_payload,
    read_facts,
    read_fill_values,
    read_moments,
    refuse_other_tasks,
    refuse_outlier,
    split_sizes,
    write_facts,
    write_moments,
)
from wardround.deployment.common.waves import pooled_figures
from wardround.deployment.regional.regions import trainers
from wardround.privacy.disclosure.target_sums import exactly
from wardround.protocol.messages import Message
from wardround.study.schema import Arm

Answers = Mapping[str, Message]
SUBSETS = ("test", "validation")


def merged_ready(ready: Answers, hospitals: Sequence[str]) -> dict[str, Any]:
    """Of all that are there. `place` says where a column stands first, so that all regions' columns come in the order
    that they have in one list of all hospitals."""
    columns, _ = common_columns({site: message.body["columns"] for site, message in ready.items()})
    listed = {site: [column["name"] for column in message.body["columns"] or ()] for site, message in ready.items()}
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


def lacking_columns(ready: Answers) -> list[str]:
    """For the region's own screen."""
    return lines_of(common_columns({site: message.body["columns"] for site, message in ready.items()})[1])


def merged_facts(plan: DeployedPlan, answers: Answers) -> dict[str, Any]:
    sets = {site: dict(zip(plan.row_sets, message.body["sets"], strict=True)) for site, message in answers.items()}
    return {
        "kinds": [_facts_of_kind(plan, kind, sets) for kind in plan.kinds],
        "sets": {site: [split_sizes(facts[key]) for key in plan.row_sets] for site, facts in sets.items()},
        "described": {site: message.body["described"] for site, message in answers.items()},
        "directions": {site: message.body["directions"] for site, message in answers.items()},
    }


def _facts_of_kind(plan: DeployedPlan, kind: Key, sets: Mapping[str, Mapping[Key, Any]]) -> dict[str, Any]:
    """For one kind of arm: facts of the sites that train in it, and whether all sites have a value in each column."""
    arm, facts_by_site = plan.study.arm(kind[0]), {site: own[plan.rows_of(kind)]["facts"] for site, own in sets.items()}
    members = trainers(arm, facts_by_site)
    sums = [[[number] for number in sets[site][plan.rows_of(kind)]["target"]] for site in members]
    target = exactly(sums)
    if any(facts is None for facts in facts_by_site.values()):
        return {"facts": None, "present": [], "trains": bool(members), "target": target}
    known = {site: read_facts(facts) for site, facts in facts_by_site.items()}
    return {
        "facts": write_facts(_joined(arm, [known[site] for site in members])) if members else None,
        "present": [all(column) for column in zip(*(facts.present for facts in known.values()), strict=True)],
        "trains": bool(members),
        "target": target,
    }


def merged_fill_values(plan: DeployedPlan, answers: Answers) -> dict[str, Any]:
    """Means weighted by the values behind them, and counts of categories added up."""
    by_kind = _payloads(plan, answers, "fill_values")
    return {"fill_values": [_added_up([read_fill_values(payload) for payload in payloads]) for payloads in by_kind]}


def merged_moments(plan: DeployedPlan, answers: Answers) -> dict[str, Any]:
    by_kind = _payloads(plan, answers, "moments")
    parts = [[read_moments(payload) for payload in payloads if payload is not None] for payloads in by_kind]
    return {"moments": [write_moments(_sum_of(moments)) if moments else None for moments in parts]}


def _payloads(plan: DeployedPlan, answers: Answers, name: str) -> list[list[Any]]:
    """For each kind of arm, those of the sites that train in it."""
    return [
        [answers[site].body[name][number] for site in trainers(plan.study.arm(kind[0]), answers)]
        for number, kind in enumerate(plan.kinds)
    ]


def merged_figures(bodies: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Loss and accuracy of each trial's model over the rows of all sites that scored it."""
    merged: dict[str, Any] = {}
    for number in dict.fromkeys(number for body in bodies for number in body["figures"]):
        by_subset = {subset: pooled_figures(number, subset, bodies) for subset in SUBSETS}
        merged[number] = {subset: figures for subset, figures in by_subset.items() if figures is not None}
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


def _added_up(parts: Sequence[FillValues]) -> dict[str, Any]:
    if not parts:
        return {"fill": [], "counts": [], "levels": {}}
    counts = np.asarray(sum(part.counts for part in parts))
    fill = np.asarray(sum(part.fill * part.counts for part in parts)) / np.maximum(counts, 1)
    levels: dict[str, dict[str, int]] = {}
    for part in parts:
        for name, counted in part.levels.items():
            for level, count in counted.items():
                levels.setdefault(name, {})[level] = levels.get(name, {}).get(level, 0) + int(count)
    return {"fill": fill.tolist(), "counts": counts.tolist(), "levels": levels}


def _sum_of(parts: Sequence[Moments]) -> Moments:
    names = ("count", "total", "squares")
    return Moments(*(np.asarray(sum(getattr(part, name) for part in parts)) for name in names))


def _same_inputs(ready: Answers) -> Any:
    inputs = {site: message.body["inputs"] for site, message in ready.items()}
    remedy = "Correct [data] in a site file."
    refuse_outlier(inputs, lambda site, other: f"its images are of another size than at {other}", remedy)
    return next(iter(inputs.values()))


def _merged_task(ready: Answers) -> dict[str, Any]:
    """The same at every site. A name that all of them withhold may be known in another region."""
    payloads = {site: message.body["task"] for site, message in ready.items()}
    refuse_other_tasks(payloads)
    return merged_payload(payloads)
