"""A study's plan where nobody holds all rows: each end knows the sites by name, and a hospital its own rows.

Both ends make the same trials from the study. A placeholder of the right shape stands for rows that are elsewhere. The
coordinator's placeholders have the right number of training rows, because updates are weighted by it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import pandas as pd
import torch

from wardround.algorithms.regions import with_only
from wardround.core.errors import DeployError, StudyError
from wardround.core.notices import Notice, identity
from wardround.data.agreement import Common, Facts, compute_fill_values, facts, fit_site, own_recipe
from wardround.data.checks.before_training import check_splits
from wardround.data.cohort import Cohort, array_levels, image_site, load_cohort, table_site
from wardround.data.prepare import Layout, recipe_of
from wardround.data.records import Column, Records
from wardround.data.site import Rows, Site
from wardround.data.sources import Source
from wardround.data.split import Split
from wardround.deployment.common.deployable import is_federated, refuse_hollow_privacy, refuse_several_outcomes
from wardround.deployment.regional.regions import companions, span_of
from wardround.privacy.disclosure.target_sums import refuse_unpaid_scale
from wardround.privacy.dp.accountant import Charge, together
from wardround.privacy.dp.protection import Sampling, charges_within
from wardround.privacy.validation import refuse_unsound
from wardround.runs.continual.predecessor import Predecessor
from wardround.runs.plan import Plan, cohort_key, dtype_of, members_of
from wardround.study.parser import Families
from wardround.study.robustness.adversary_validation import refuse_deployed_adversaries
from wardround.study.schema import Arm, Preparation, Study, Topology
from wardround.tasks import Task
from wardround.training.schedule import planned_epochs, tolerance
from wardround.training.trial import Trial
from wardround.training.validation import need_extras, refuse_unkept

ABOUT_ALL_SITES = ("one-class", "constant-target", "rare-class")  # checks that speak of all sites together
WAVE_BYTES = 64 * 2**20  # of shared parameters in one message, unless one model alone is larger
NOWHERE = np.array([], dtype=np.int64)
Key = tuple[str, int]  # an arm, and the seed of its rows
Subset = Literal["test", "validation"]


def reported_subsets(study: Study) -> tuple[Subset, ...]:
    """Validation rows only where selection uses them. The test rows of a held-out site include its validation rows."""
    by_validation = study.selection is not None and study.selection.on == "validation"
    return ("test", "validation") if by_validation else ("test",)


@dataclass(frozen=True)
class Agreed:
    """What holds at every site for one kind of arm with one data seed."""

    inputs: tuple[int, ...]
    layout: Layout | None = None  # None: images, or columns that each site has for itself
    common: Common | None = None
    target_scale: tuple[float, ...] = ()  # what training needs to know of all sites' targets
    # rows of each site by part of the split; known to the coordinator only
    split_sizes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass
class DeployedPlan(Plan):
    sites: tuple[str, ...] = ()
    agreed_task: Task = field(kw_only=True)
    own: str | None = None  # None at the coordinator
    agreed: dict[Key, Agreed] = field(default_factory=dict)
    # the sites of one region, whose rounds are a flat federation; empty without regions and at the coordinator of all
    within: tuple[str, ...] = ()
    group_seed: int | None = None  # of the groups that the sites have drawn together

    def _seeds_in_memory(self) -> int:
        return super()._seeds_in_memory() if self.cohorts else 1024

    @property
    def task(self) -> Task:
        return self.agreed_task

    @property
    def classes(self) -> tuple[str, ...]:
        return self.task.names

    @property
    def row_sets(self) -> list[Key]:
        """Each distinct set of rows that the study trains on, in the same order at both ends."""
        return self._keys(self.first_with_rows)

    @property
    def kinds(self) -> list[Key]:
        """Each distinct way in which rows are prepared and scored."""
        return self._keys(self.alike)

    def _keys(self, first: Mapping[str, str]) -> list[Key]:
        names = dict.fromkeys(first.values())
        return [(name, seed) for name in names for seed in self.data_seeds(self.study.arm(name))]

    def rows_of(self, kind: Key) -> Key:
        return self.first_with_rows[kind[0]], kind[1]

    def own_split(self, key: Key) -> Split:
        return self.splits(self.study.arm(key[0]), key[1])[0]

    def _sites_of(self, key: str, seed: int) -> tuple[Site, ...]:
        arm, agreed = self.study.arm(key), self.agreed[key, seed]
        return tuple(
            self._own_site(arm, seed, agreed)
            if name == self.own
            else placeholder(name, agreed, dtype_of(arm), self.task)
            for name in self.sites
        )

    def _own_site(self, arm: Arm, seed: int, agreed: Agreed) -> Site:
        cohort = self.cohort_of(arm)
        splits = self.splits(arm, seed)
        chosen = self.for_selection(arm, splits) if arm.held_out in (None, self.own) else splits
        if cohort.records.is_table and arm.preparation.schema == "own":
            recipe = own_recipe(cohort.table, splits[0].train, arm.preparation)
            return table_site(cohort, chosen[0], recipe, dtype_of(arm), agreed.target_scale)
        if agreed.layout is None or agreed.common is None:
            labels = cohort.training_labels(agreed.target_scale)
            return image_site(cohort, chosen[0], own_levels(cohort, splits[0], arm), labels)
        train, preparation = splits[0].train, arm.preparation
        own = compute_fill_values(cohort.table, train, agreed.layout, preparation)
        fitted = fit_site(cohort.table, train, agreed.layout, preparation, own, agreed.common)
        recipe = recipe_of(cohort.table.columns, agreed.layout, fitted, preparation)
        return table_site(cohort, chosen[0], recipe, dtype_of(arm), agreed.target_scale)

    def predecessor_of(self, arm: Arm) -> Predecessor | None:
        """Only the coordinator of all has the model that a study starts from: it comes with the first round."""
        return super().predecessor_of(arm) if self.own is None and not self.within else None

    def target_scale_of(self, arm: Arm, seed: int) -> tuple[float, ...]:
        return self.agreed[self.alike[arm.name], self.data_seed(arm, seed)].target_scale

    def layout_of(self, arm: Arm, seed: int) -> Layout | None:
        return self.agreed[self.alike[arm.name], self.data_seed(arm, seed)].layout

    def trial(self, arm: Arm, seed: int) -> Trial:
        """Without the virtual clock of a simulation: here time passes by itself."""
        return replace(self._trial(arm, seed), clock=None)

    def _trial(self, arm: Arm, seed: int) -> Trial:
        if self.within:
            return replace(super().trial(replace(arm, topology=Topology()), seed), within=self.within)
        if arm.topology.kind != "hierarchical":
            return super().trial(arm, seed)
        there = replace(arm.topology, regions=with_only(arm.topology.regions, self.sites))
        return super().trial(replace(arm, topology=there), seed)

    def seed_of_groups(self) -> int:
        if self.group_seed is None:
            raise DeployError("groups", "were not drawn by the hospitals", "Start the coordinator again.")
        return self.group_seed

    def own_notices(self) -> list[Notice]:
        """Notices about this hospital's own rows, without repeats and without those about all sites."""
        notices: dict[tuple[object, ...], Notice] = {}
        for name, seed in self.row_sets:
            arm = self.study.arm(name)
            splits, accept = self.splits(arm, seed), self.study.evaluation.accept
            for notice in check_splits(self.cohort_of(arm), splits, False, accept):
                if notice.code not in ABOUT_ALL_SITES:
                    notices.setdefault(identity(notice), notice)
        return list(notices.values())

    def own_facts(self, key: Key) -> Facts | None:
        """None for images."""
        arm = self.study.arm(key[0])
        cohort = self.cohort_of(arm)
        if not cohort.records.is_table:
            return None
        return facts(cohort.table, self.own_split(key).train, arm.preparation)

    def own_charges(self) -> list[Charge]:
        """The cost of all private arms with all seeds for this hospital's patients."""
        charges: list[Charge] = []
        for arm in self.study.trained_arms:
            example, members = arm.privacy.example, members_of(arm, self.sites)
            if example is None or self.own not in members:
                continue
            training = arm.training if is_federated(arm) else arm.training.alone
            for seed in self.study.evaluation.seeds:
                rows = self.splits(arm, seed)[0].train
                sampling, drawn = Sampling.of(len(rows), training.batch_size), arm.privacy.site is not None
                batches = self.study.evaluation_of(arm).seed_for("batches", seed)
                planned = planned_epochs(training, len(members), batches, drawn)[members.index(self.own)]
                charges += together(charges_within(example, sampling, planned))
        return charges

    def refuse_unsound_arms(self) -> None:
        """Refuse protections that would not protect, once the inputs of the models are known."""
        for arm in self.study.trained_arms:
            trial = self.trial(arm, self.study.evaluation.seeds.first)
            agreed = self.agreed[self.alike[arm.name], self.data_seeds(arm)[0]]
            tables = agreed.layout is not None or arm.preparation.schema == "own"
            refuse_unsound(arm, trial.algorithm, tuple(trial.model.blank[1]), tables, False, self.task)
            refuse_unkept(trial)

    def waves(self) -> list[tuple[tuple[str, int], ...]]:
        """All arms with all seeds, in the order of the study, split where a message would become too large.

        Arms with masked updates have waves of their own, because such a round counts for all of them or for none. So
        have arms whose regions run another number of rounds by themselves, arms whose sites are in groups, and arms
        whose rounds do not wait for all work: what arrives in time arrives for all of them.
        """
        cut: list[list[tuple[str, int]]] = []
        filled, kind = 0, (False, 1, 0, "")
        for arm in sorted(self.study.trained_arms, key=self._travels):
            for seed in self.study.evaluation.seeds:
                size = self.trial(arm, seed).model.shared_size * (
                    8 if arm.training.precision == "float64" or _is_masked(arm) else 4
                )
                if not cut or filled + size > WAVE_BYTES or kind != self._travels(arm):
                    cut.append([])
                    filled, kind = 0, self._travels(arm)
                cut[-1].append((arm.name, seed))
                filled += size
        return [tuple(wave) for wave in cut]

    def _travels(self, arm: Arm) -> tuple[bool, int, int, str]:
        """Arms travel together where this is equal."""
        groups = 0 if arm.by_mean else arm.preaggregation.groups
        late = tolerance(arm.training) if is_federated(arm) else None
        alike = "" if late is None else repr((late, arm.training.rounds, members_of(arm, self.sites)))
        return _is_masked(arm), span_of(arm), groups or 0, alike


def _is_masked(arm: Arm) -> bool:
    return arm.privacy.secure_sum is not None and is_federated(arm)


def own_levels(cohort: Cohort, split: Split, arm: Arm) -> np.ndarray | None:
    if arm.preparation.scale == "federated":
        what, by_itself = ("size", "record") if cohort.records.is_signals else ("brightness", "image")
        rows = "signals" if cohort.records.is_signals else "images"
        problem = f"the {what} of all hospitals' {rows} together is not exchanged in a deployment"
        raise StudyError(f"arms: {arm.name}: data: scale", problem, f'Use "per-site", "{by_itself}" or "ranges".')
    by_site = array_levels(cohort, {split.site: split.train}, [split.site], arm.preparation)
    return None if by_site is None else by_site[split.site]


def placeholder(name: str, agreed: Agreed, dtype: torch.dtype, task: Task) -> Site:
    """One row of zeros, repeated as often as the site has rows."""
    count = agreed.split_sizes[name]["train"] if name in agreed.split_sizes else 1
    x = torch.zeros((1, *agreed.inputs), dtype=dtype).expand(count, *agreed.inputs)
    y = no_labels(task, count, agreed.target_scale)
    nothing = Rows(x[:0], y[:0])
    return Site(name, Rows(x, y), nothing, nothing, NOWHERE, NOWHERE)


def no_labels(task: Task, count: int, target_scale: tuple[float, ...] = ()) -> torch.Tensor:
    """In the form of those of as many rows."""
    blank = torch.from_numpy(task.training_target(task.blank_target(1), target_scale))
    return blank.expand(count, *blank.shape[1:])


def own_plan(study: Study, families: Families, name: str, sites: Sequence[str], records: Records) -> DeployedPlan:
    """The plan at a hospital. All arms of a deployed study use the same rows."""
    refuse_deployed_adversaries(study)
    refuse_hollow_privacy(study)
    refuse_several_outcomes(tuple(records.task.outcomes))
    refuse_unpaid_scale(study, records.task)
    refuse_other_signals(study, records)
    for arm in study.trained_arms:  # before anything is sent; what depends on the model is checked later
        need_extras(arm.name, arm.privacy)
        algorithm = arm.algorithm.build(families.algorithms)
        refuse_unsound(arm, algorithm, (), records.is_table, False, records.task)
    source = Source(lambda: records)
    kinds = {cohort_key(arm): arm for arm in study.arms}
    cohorts = {
        key: load_cohort(source, for_own_columns(arm.preparation, name, records), study.evaluation.groups, alone=True)
        for key, arm in kinds.items()
    }
    return DeployedPlan(
        study,
        families,
        cohorts,
        sites=tuple(sites),
        agreed_task=records.task,
        own=name,
        within=companions(study, name, sites),
    )


def refuse_other_signals(study: Study, records: Records) -> None:
    """Channel 2 and a second must mean the same everywhere: nothing of them is exchanged, so the study must say it."""
    if not records.is_signals:
        return
    options = study.data.options
    named = next((options[key] for key in ("channels", "leads", "values") if options.get(key)), ())
    if not named:
        problem = "the study does not name the channels, so that hospitals could take one for another"
        raise DeployError("data: channels", problem, "Name them in the study: `channels`, or of visits `values`.")
    own = [name.strip().lower() for name in records.channels[: len(named)]]
    if own != [name.strip().lower() for name in named]:
        problem = f"this hospital's channels are {', '.join(records.channels)}, and the study's {', '.join(named)}"
        raise DeployError("data: channels", problem, "Give the site file the study's channels, in their order.")
    rate = options.get("rate")
    if rate is not None and rate != records.rate:
        problem = f"this hospital's signals come at {records.rate} samples a second, and the study's at {rate}"
        raise DeployError("data: rate", problem, "Give the site file the study's `rate`.")


def for_own_columns(preparation: Preparation, site: str, records: Records) -> Preparation:
    """Drop what a study says about columns that this hospital does not have."""
    names = {text for column in records.columns for text in (column.name, column.own_name)}
    not_recorded = tuple(name for name in preparation.not_recorded.get(site, ()) if name in names)
    return replace(preparation, not_recorded={site: not_recorded} if not_recorded else {})


def coordinator_plan(
    study: Study,
    families: Families,
    sites: Sequence[str],
    task: Task,
    within: Sequence[str] = (),
) -> DeployedPlan:
    """The plan at the coordinator. At a region's coordinator, `within` are its sites."""
    return DeployedPlan(
        study,
        families,
        {},
        sites=tuple(sites),
        agreed_task=task,
        within=tuple(within),
    )


def in_agreed_columns(records: Records, columns: Sequence[Column]) -> Records:
    """The same rows with columns in the order and of the kinds that all sites use."""
    if not isinstance(records.features, pd.DataFrame):
        return records
    rows, features = len(records), {}
    for column in columns:
        if column.name in records.features:
            features[column.name] = records.features[column.name]
        elif column.kind == "numeric":
            features[column.name] = pd.Series(np.full(rows, np.nan))
        else:
            features[column.name] = pd.Series([None] * rows, dtype=object)
    recorded = tuple(column.name for column in columns if column.name in records.features)
    own = {column.name: column for column in records.columns}
    return replace(
        records,
        features=pd.DataFrame(features),
        columns=tuple(with_local_format(column, own.get(column.name)) for column in columns),
        recorded=dict.fromkeys(records.hospitals, recorded),
    )


def with_local_format(agreed: Column, own: Column | None) -> Column:
    """The agreed column, with how this hospital's own file writes it, which other sites do not know."""
    if own is None:
        return agreed
    return replace(agreed, header=own.header, dates=own.dates, words=own.words, missing_codes=own.missing_codes)
