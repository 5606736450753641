"""The answers of a region's sites as one: the coordinator of all learns no column, gap, category, mean or sum of a
single site.

Under each site's name it learns what the report shows of a site in any deployment: numbers of its rows, which way its
columns go with the label (where the study compares labels), and in the end its figures on test rows.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from wardround.core.notices import lines_of
from wardround.data.agreement import Facts, FillValues, Moments
from wardround.data.serialization import write_column
from wardround.deployment.common.deployed_plan import DeployedPlan
from wardround.deployment.common.schema_agreement import (
    common_classes,
    common_columns,
    disagreement,
    majority_site,
    read_facts,
    read_fill_values,
    read_moments,
    split_sizes,
    with_findings,
    write_facts,
    write_moments,
)
from wardround.deployment.common.waves import pooled_figures
from wardround.protocol.messages import Message
from wardround.study.schema import Arm

Answers = Mapping[str, Message]
SIDES = ("test", "validation")


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
        "classes": _merged_classes(ready),
        "findings": with_findings(dict(ready)),
    }


def lacking_columns(ready: Answers) -> list[str]:
    """For the region's own screen."""
    return lines_of(common_columns({site: message.body["columns"] for site, message in ready.items()})[1])


def merged_facts(plan: DeployedPlan, answers: Answers) -> dict[str, Any]:
    sets = {site: dict(zip(plan.row_sets, message.body["sets"], strict=True)) for site, message in answers.items()}
    kinds = []
    for kind in plan.kinds:
        rows = plan.rows_of(kind)
        kinds.append(
            _facts_of_kind(plan.study.arm(kind[0]), {site: facts[rows]["facts"] for site, facts in sets.items()})
        )
    return {
        "kinds": kinds,
        "sets": {site: [split_sizes(facts[key]) for key in plan.row_sets] for site, facts in sets.items()},
        "described": {site: message.body["described"] for site, message in answers.items()},
        "directions": {site: message.body["directions"] for site, message in answers.items()},
    }


def _facts_of_kind(arm: Arm, facts_by_site: Mapping[str, Any]) -> dict[str, Any]:
    """For one kind of arm: facts of the sites that train in it, and whether all sites have a value in each column."""
    members = _trainers(arm, facts_by_site)
    if any(facts is None for facts in facts_by_site.values()):
        return {"facts": None, "present": [], "trains": bool(members)}
    known = {site: read_facts(facts) for site, facts in facts_by_site.items()}
    return {
        "facts": write_facts(_joined(arm, [known[site] for site in members])) if members else None,
        "present": [all(column) for column in zip(*(facts.present for facts in known.values()), strict=True)],
        "trains": bool(members),
    }


def merged_fill_values(plan: DeployedPlan, answers: Answers) -> dict[str, Any]:
    """Means weighted by the values behind them, and counts of categories added up."""
    fill_values: list[dict[str, Any]] = []
    for number, kind in enumerate(plan.kinds):
        members = _trainers(plan.study.arm(kind[0]), answers)
        parts = [read_fill_values(answers[site].body["fill_values"][number]) for site in members]
        fill_values.append(_added_up(parts))
    return {"fill_values": fill_values}


def merged_moments(plan: DeployedPlan, answers: Answers) -> dict[str, Any]:
    summed: list[dict[str, Any] | None] = []
    for number, kind in enumerate(plan.kinds):
        members = _trainers(plan.study.arm(kind[0]), answers)
        payloads = [answers[site].body["moments"][number] for site in members]
        parts = [read_moments(payload) for payload in payloads if payload is not None]
        summed.append(write_moments(_sum_of(parts)) if parts else None)
    return {"moments": summed}


def merged_figures(bodies: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Loss and accuracy of each trial's model over the rows of all sites that scored it."""
    merged: dict[str, Any] = {}
    for number in dict.fromkeys(number for body in bodies for number in body["figures"]):
        sides = {side: pooled_figures(number, side, bodies) for side in SIDES}
        merged[number] = {side: figures for side, figures in sides.items() if figures is not None}
    return merged


def _trainers(arm: Arm, sites: Iterable[str]) -> list[str]:
    return [site for site in sites if (not arm.train_at or site in arm.train_at) and site != arm.held_out]


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
    """The shape of images, where rows are images."""
    first = majority_site({site: message.body["inputs"] for site, message in ready.items()})
    for site, message in ready.items():
        if message.body["inputs"] != ready[first].body["inputs"]:
            raise disagreement(
                site, f"its images are of another size than at {first}", "Correct [data] in a site file."
            )
    return ready[first].body["inputs"]


def _merged_classes(ready: Answers) -> list[dict[str, Any]]:
    """The same at every site. A name that all of them withhold may be known in another region."""
    names = [{entry["hash"]: entry["name"] for entry in message.body["classes"]} for message in ready.values()]
    if any(list(site) != list(names[0]) for site in names):
        common_classes(dict(ready))  # which says what differs
    known = {digest: next((site[digest] for site in names if site[digest]), None) for digest in names[0]}
    return [{"name": name, "hash": digest} for digest, name in known.items()]
