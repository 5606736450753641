"""The run that a study starts from, opened again with its rows, and which patients both may have.

Whether two sites share patients is decided on the safe side. They do if they have the same name: a hospital's new rows
may be its old patients. They do if a row of one is a row of the other. They do not if both are hospitals of different
names, or if their rows are at hand and none is common. Where nothing of this is known, they do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from wardround.core.errors import WardroundError
from wardround.data.cohort import Cohort
from wardround.runs.continual.description import Generation
from wardround.runs.continual.predecessor import Predecessor
from wardround.runs.finished_run import open_run_with
from wardround.runs.folder import RunFolder
from wardround.runs.plan import Plan, members_of
from wardround.study.schema import Arm

ELSEWHERE = ("was made across hospitals, and its rows stay there", "Nothing need be done.")
OF_A_BUNDLE = "a bundle has no rows of the hospitals that it was trained at"


@dataclass(frozen=True, eq=False)
class Earlier:
    """An earlier run with its rows."""

    folder: RunFolder
    plan: Plan

    @cached_property
    def arms(self) -> dict[str, Arm]:
        return {arm.name: arm for arm in self.plan.study.arms}


def open_earlier(predecessor: Predecessor, plan: Plan) -> Earlier | str:
    """The run with its rows, or why they are not at hand."""
    if predecessor.kind == "bundle":
        return OF_A_BUNDLE
    try:
        return Earlier(*open_run_with(predecessor.path, ELSEWHERE, plan.families))
    except WardroundError as error:
        return error.problem


def row_keys(cohort: Cohort, rows: np.ndarray) -> set[str]:
    """What tells that two rows are of one patient: equal rows, or the same patient's number at the same hospital."""
    keys = {f"row {key}" for key in np.asarray(cohort.prints)[rows].tolist()}
    patient, hospital = cohort.records.patient, cohort.records.hospital
    if patient is not None:
        keys |= {f"patient {hospital[row]} {patient[row]}" for row in rows.tolist()}
    return keys


def keys_of_sites(plan: Plan, arm: Arm) -> dict[str, set[str]]:
    """By site: its rows, with any seed."""
    keys: dict[str, set[str]] = {}
    for seed in plan.data_seeds(arm):
        for split in plan.splits(arm, seed):
            keys.setdefault(split.site, set()).update(row_keys(plan.cohort_of(arm), split.rows))
    return keys


def sharing(plan: Plan, arm: Arm, generation: Generation, earlier: Earlier | None) -> dict[str, tuple[str, ...]]:
    """By site that trains in the arm: the sites of an earlier training whose patients it may have. `earlier` is that
    training's run, where its rows are at hand."""
    sites = training_sites(plan, arm)
    if earlier is None or not plan.cohorts or generation.arm not in earlier.arms:
        return sharing_by_name(arm, sites, generation)
    own, old = keys_of_sites(plan, arm), keys_of_sites(earlier.plan, earlier.arms[generation.arm])

    def may_share(site: str, other: str) -> bool:
        return site == other or not own.get(site, set()).isdisjoint(old.get(other, set()))

    return {site: tuple(other for other in generation.sites if may_share(site, other)) for site in sites}


def sharing_by_name(arm: Arm, sites: Sequence[str], generation: Generation) -> dict[str, tuple[str, ...]]:
    """Where no rows are at hand."""
    hospitals = arm.sites.facts.keeps_hospitals and generation.hospitals
    return {site: tuple(other for other in generation.sites if not hospitals or site == other) for site in sites}


def training_sites(plan: Plan, arm: Arm) -> Sequence[str]:
    """With any seed."""
    names = dict.fromkeys(
        site.name for seed in plan.data_seeds(arm) for site in plan.sites_of(plan.alike[arm.name], seed)
    )
    return members_of(arm, list(names))
