"""The run that a study starts from, opened again with its rows, and which patients both may have.

Whether two sites share patients is decided on the safe side. They do if they have the same name: a hospital's new rows
may be its old patients. Hospitals of different names do not, unless so many rows are common that one is a copy of the
other. Sites that were drawn from rows have names that say nothing: they share patients if any row is common, and where
their rows are not at hand.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from wardround.core.errors import RunError, WardroundError
from wardround.data.cohort import Cohort
from wardround.data.records import Records
from wardround.data.split import fingerprints, with_target
from wardround.runs.continual.description import Generation
from wardround.runs.continual.predecessor import Predecessor
from wardround.runs.finished_run import open_run_with
from wardround.runs.folder import RunFolder
from wardround.runs.plan import Plan, members_of
from wardround.study.schema import Arm

FEWEST, MANY = 5, 0.1  # rows, and part of a site's rows: common to two hospitals only where one's are the other's
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
    except RunError as error:
        return f"the old run {error.problem}"
    except WardroundError as error:
        return f"the rows of the old run cannot be opened ({error.problem})"


@dataclass(frozen=True, eq=False)
class SharedRows:
    """The rows of two runs, so that those of one patient are found: equal rows, or the same patient's number."""

    old: tuple[np.ndarray, ...]  # keys of the earlier run's rows, of one kind and perhaps of another
    new: tuple[np.ndarray, ...]

    def seen(self, old_rows: np.ndarray, new_rows: np.ndarray) -> np.ndarray:
        """Which of the earlier run's rows are of patients among rows of the new run."""
        parts = [np.isin(old[old_rows], new[new_rows]) for old, new in zip(self.old, self.new, strict=True)]
        return np.asarray(np.logical_or.reduce([np.zeros(len(old_rows), dtype=bool), *parts]))


def shared_rows(old: Cohort, new: Cohort) -> SharedRows:
    """Rows of tables are compared in the columns that both have; where they have none, by patients' numbers alone."""
    keys = [] if (rows := _equal_rows(old.records, new.records)) is None else [rows]
    if old.records.patient is not None and new.records.patient is not None:
        keys.append((old.records.patient.astype(str), new.records.patient.astype(str)))
    return SharedRows(tuple(first for first, _ in keys), tuple(second for _, second in keys))


def _equal_rows(old: Records, new: Records) -> tuple[np.ndarray, np.ndarray] | None:
    if not isinstance(old.features, pd.DataFrame) or not isinstance(new.features, pd.DataFrame):
        both = not old.is_table and not new.is_table
        return (_prints(old), _prints(new)) if both else None
    kinds = {column.name: column.kind for column in new.columns}
    common = {c.name: c.kind if kinds[c.name] == c.kind else "categorical" for c in old.columns if c.name in kinds}
    if not common:
        return None
    return _hashed(old.features, old.target, common), _hashed(new.features, new.target, common)


def _prints(records: Records) -> np.ndarray:
    return fingerprints(records) if records.prints is None else records.prints


def _hashed(table: pd.DataFrame, target: np.ndarray, kinds: Mapping[str, str]) -> np.ndarray:
    """Numbers by their value, anything else by its text: files of two studies may be typed differently."""
    columns = {
        name: pd.to_numeric(table[name], errors="coerce").astype(float)
        if kinds[name] == "numeric"
        else table[name].astype(object).where(table[name].notna(), "").map(str)
        for name in sorted(kinds)
    }
    hashed = with_target(pd.DataFrame(columns), np.asarray(target, dtype=float))
    return np.asarray(pd.util.hash_pandas_object(hashed, index=False).to_numpy())


def rows_of_sites(plan: Plan, arm: Arm) -> dict[str, np.ndarray]:
    """By site: its rows, with any seed."""
    rows: dict[str, list[np.ndarray]] = {}
    for seed in plan.data_seeds(arm):
        for split in plan.splits(arm, seed):
            rows.setdefault(split.site, []).append(split.rows)
    return {site: np.unique(np.concatenate(parts)) for site, parts in rows.items()}


def sharing(plan: Plan, arm: Arm, generation: Generation, earlier: Earlier | None) -> dict[str, tuple[str, ...]]:
    """By site that trains in the arm: the sites of an earlier training whose patients it may have. `earlier` is that
    training's run, where its rows are at hand."""
    sites = training_sites(plan, arm)
    by_name = sharing_by_name(arm, sites, generation)
    if earlier is None or not plan.cohorts or generation.arm not in earlier.arms:
        return by_name
    old_arm = earlier.arms[generation.arm]
    shared = shared_rows(earlier.plan.cohort_of(old_arm), plan.cohort_of(arm))
    own, old = rows_of_sites(plan, arm), rows_of_sites(earlier.plan, old_arm)
    hospitals = arm.sites.facts.keeps_hospitals and generation.hospitals

    def may_share(site: str, other: str) -> bool:
        if site == other or not shared.old:
            return other in by_name[site]
        common = int(shared.seen(old[other], own[site]).sum())
        return common >= max(FEWEST, MANY * min(len(old[other]), len(own[site]))) if hospitals else common > 0

    return {site: tuple(other for other in generation.sites if may_share(site, other)) for site in sites}


def sharing_by_name(arm: Arm, sites: Sequence[str], generation: Generation) -> dict[str, tuple[str, ...]]:
    """Where no rows are at hand."""
    hospitals = arm.sites.facts.keeps_hospitals and generation.hospitals
    return {site: tuple(other for other in generation.sites if not hospitals or site == other) for site in sites}


def training_sites(plan: Plan, arm: Arm) -> Sequence[str]:
    """With any seed."""
    names: dict[str, None] = {}
    for seed in plan.data_seeds(arm):
        if plan.cohorts:
            names |= dict.fromkeys(split.site for split in plan.splits(arm, seed))
        else:  # at the coordinator of a deployment, which has no rows
            names |= dict.fromkeys(site.name for site in plan.sites_of(plan.alike[arm.name], seed))
    return members_of(arm, list(names))
