"""A run's models described, so that a later study can start from them: `models/ARM/seed-N.json`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from wardround.core.atomic_files import write_atomically
from wardround.runs.continual.description import (
    Charges,
    Description,
    Generation,
    as_text,
    describe,
    read_description,
)
from wardround.runs.continual.fit import parts_of
from wardround.runs.folder import RunFolder
from wardround.runs.ledger import Entry, charges_of
from wardround.runs.plan import Plan, members_of
from wardround.study.parser import plain
from wardround.study.schema import Arm


def describe_models(plan: Plan, folder: RunFolder, entries: Sequence[Entry], data: str) -> None:
    """Of every arm with every seed. `entries` are what patients and hospitals paid; `data` is the fingerprint of the
    rows, empty where they stayed at the hospitals."""
    for seed in plan.study.evaluation.seeds:  # seeds first: rows are prepared once for all arms of a seed
        for arm in plan.study.arms:
            file = folder.path / "models" / arm.name / f"seed-{seed}.safetensors"
            if file.is_file():
                generation = _generation(plan, folder, arm, seed, entries, data)
                content = as_text(_description(plan, plan.arm(arm.name, seed), seed, generation))
                write_atomically(file.with_suffix(".json"), content)


def trainings(folder: RunFolder, arm: Arm, seed: int, sites: Sequence[str]) -> list[dict[str, Any]]:
    """Each training behind a saved model, the last one first, as plain data; `sites` are those whose rows the last one
    used. Empty for a run of an earlier version, which does not describe its models."""
    file = folder.path / "models" / arm.name / f"seed-{seed}.json"
    if not file.is_file():
        return []
    last, *earlier = read_description(file).trained
    return [plain(training) for training in (replace(last, sites=tuple(sites)), *earlier)]


def _description(plan: Plan, arm: Arm, seed: int, generation: Generation) -> Description:
    predecessor = plan.predecessor_of(arm)
    sites = plan.sites_of(plan.alike[arm.name], plan.data_seed(arm, seed))
    own = arm.preparation.schema == "own"
    return describe(
        arm,
        plan.task.to_json(),
        sites[0].train.inputs,
        plan.layout_of(arm, seed),
        parts_of(sites[0]),
        {site.name: site.recipe.names for site in sites if own and site.recipe is not None},
        plan.target_scale_of(arm, seed),
        (generation, *(() if predecessor is None else predecessor.models[seed].description.trained)),
    )


def _generation(plan: Plan, folder: RunFolder, arm: Arm, seed: int, entries: Sequence[Entry], data: str) -> Generation:
    sites = [site.name for site in plan.sites_of(plan.alike[arm.name], plan.data_seed(arm, seed))]
    own = [entry for entry in entries if (entry.arm, entry.seed) == (arm.name, seed)]
    return Generation(
        run=folder.path.name,
        study=plan.study.name,
        hash=plan.study.hash,
        arm=arm.name,
        seed=seed,
        sites=tuple(members_of(arm, sites)),
        hospitals=arm.sites.facts.keeps_hospitals,
        data=data,
        example=arm.privacy.example is not None and arm.privacy.example.clip != "none",
        site=arm.privacy.site is not None and arm.algorithm.facts.federated,
        delta=min((entry.delta for entry in own), default=None),
        charges={site: _charges([e for e in own if e.site == site]) for site in dict.fromkeys(e.site for e in own)},
    )


def _charges(entries: Sequence[Entry]) -> Charges:
    return tuple((charge.rate, charge.noise, charge.steps) for charge in charges_of(entries))
