"""A study with its data loaded and checked: everything that can be known before anything trains."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from wardround.adversaries.of_arm import (
    forgers,
    idle_adversaries,
    poisoned_sites,
    refuse_strange_adversaries,
    turning_rounds,
)
from wardround.aggregation.robust import by_rule
from wardround.aggregation.root import root_of
from wardround.algorithms.algorithm import Algorithm
from wardround.algorithms.hierarchical import in_regions
from wardround.core import seeds
from wardround.core.errors import (
    DataError,
    MachineError,
    RunError,
    StudyError,
    WardroundError,
    refuse_strangers,
    suggest,
)
from wardround.core.notices import CHECKS, Notice, identity, over_seeds
from wardround.core.processes import mapped
from wardround.data.checks.before_training import check_splits, refuse_errors, single_site
from wardround.data.cohort import Cohort, load_cohort, prepare_sites, site_of, split_sites, target_scale
from wardround.data.parties import Holdings, holdings_of, joined_sites, known_patients, table_of
from wardround.data.prepare import Layout
from wardround.data.site import Block, Rows, Site, join
from wardround.data.split import Split, held_out_rows, untested_validation
from wardround.engines.split.exchange import through_channel
from wardround.models import SMALL_MODEL, Model, ModelBuilder, Shape, built, weights_digest
from wardround.models.starting_weights import StartingModel
from wardround.privacy.secure_sum.groups import draw_groups, refuse_small_groups
from wardround.privacy.validation import refuse_unsound
from wardround.runs.continual.description import read_description
from wardround.runs.continual.fit import start_at
from wardround.runs.continual.predecessor import Predecessor, read_predecessor
from wardround.study.analyses import AnalysedRows
from wardround.study.parser import Families
from wardround.study.robustness.contribution import is_coalition, own_arm
from wardround.study.schema import CHOSEN, Arm, Choice, Compression, Privacy, StartFrom, Study, Topology
from wardround.tasks import Task
from wardround.training.rounds import site_model, start
from wardround.training.trial import Trial, on_clock
from wardround.training.validation import refuse_unfit_changes, refuse_unkept
from wardround.uncertainty.swag import collecting
from wardround.uncertainty.validation import refuse_unfit

CACHE_BYTES = 2**30
MANY_SETS = 40  # of rows, that are worth a second process


@dataclass
class Plan:
    study: Study
    families: Families
    cohorts: Mapping[str, Cohort]  # by what an arm says of its data; mostly there is one
    # by the first arm that has these rows, then by seed: a second look at a seed replaces the first
    check_notices: dict[str, dict[int, tuple[Notice, ...]]] = field(default_factory=dict)
    start_notices: list[Notice] = field(default_factory=list)  # of arms that start from a trained model
    tuned: dict[tuple[str, int], Arm] = field(default_factory=dict)  # with a seed: trials, and arms as they were tuned
    analysed: Cohort | None = None  # the rows of the study's analyses; often those of its arms
    finished: Path | None = None  # the folder of its run, once that is complete: what training started from may be gone

    def __post_init__(self) -> None:
        # arms mostly share their sites, so that one seed's tensors serve them all
        self.sites_of = lru_cache(maxsize=self._seeds_in_memory())(self._sites_of)
        self.model_of = lru_cache(maxsize=None)(self._model_of)
        self._tuned_models: dict[str, Arm] = {}
        self._predecessors: dict[StartFrom, Predecessor] = {}
        self._starting: dict[tuple[str, int], StartingModel | None] = {}
        self._looked_at: dict[tuple[str, int], tuple[tuple[Split, ...], tuple[Notice, ...]]] = {}
        self._splits_of = lru_cache(maxsize=1024)(self._draw_splits)  # row numbers only
        self.alike: dict[str, str] = {}  # the first arm with the same rows, prepared and scored in the same way
        self.first_with_rows: dict[str, str] = {}
        prepared: dict[str, str] = {}
        rows: dict[str, str] = {}
        for arm in self.study.trained_arms:
            kind = repr((cohort_key(arm), _key(arm.sites), arm.vary, arm.preparation.least_level))
            self.first_with_rows[arm.name] = rows.setdefault(kind, arm.name)
            kind += repr((arm.preparation, arm.training.precision, arm.train_at, arm.held_out))
            kind += repr(arm.topology) if arm.model.facts.in_parts else ""
            kind += "" if arm.start.start_from is None else f" from {arm.start.start_from.digest}"
            self.alike[arm.name] = prepared.setdefault(kind, arm.name)

    def arm(self, name: str, seed: int) -> Arm:
        """The arm with the settings that it has with this seed."""
        return self.tuned.get((name, seed)) or self.study.arm(name)

    def add_tuned(self, arm: Arm, seed: int) -> None:
        """An arm of the study, or a trial of one, with settings of its own. Its rows are those of the study's arm."""
        base = own_arm(arm.name)
        self.tuned[arm.name, seed] = arm
        self.alike[arm.name], self.first_with_rows[arm.name] = self.alike[base], self.first_with_rows[base]

    def _seeds_in_memory(self) -> int:
        """Prepared tables are kept for as many seeds as fit; images are never copied, so that all seeds fit."""
        records = [cohort.records for cohort in self.cohorts.values()]
        sizes = (len(table) * max(len(table.columns), 1) if table.is_table else 1 for table in records)
        # some 4 bytes a cell, times 4 for one-hot columns and indicators
        return max(4, CACHE_BYTES // (16 * max(sizes, default=1)))

    def cohort_of(self, arm: Arm) -> Cohort:
        return self.cohorts[cohort_key(arm)]

    @property
    def fingerprint(self) -> str:
        """Of all that a run depends on besides its study: rows, and files of weights, which the study's hash leaves out
        (that of a study which starts from a trained model has the model's digest)."""
        digests = [weights_digest(arm.model.options) for arm in self.study.arms]
        return self._together([*self._prints, *dict.fromkeys(digest for digest in digests if digest is not None)])

    @property
    def rows_fingerprint(self) -> str:
        return self._together(self._prints)

    @property
    def _prints(self) -> list[str]:
        return [cohort.fingerprint for cohort in self._all_cohorts]

    @property
    def _all_cohorts(self) -> list[Cohort]:
        cohorts = list(self.cohorts.values())
        known = [id(cohort) for cohort in cohorts]
        return cohorts if self.analysed is None or id(self.analysed) in known else [*cohorts, self.analysed]

    @staticmethod
    def _together(prints: Sequence[str]) -> str:
        return prints[0] if len(prints) == 1 else sha256("".join(prints).encode()).hexdigest()

    @property
    def source_notices(self) -> list[Notice]:
        return list(dict.fromkeys(notice for cohort in self._all_cohorts for notice in cohort.notices))

    @property
    def classes(self) -> tuple[str, ...]:
        return next(iter(self.cohorts.values())).records.classes

    @property
    def task(self) -> Task:
        return next(iter(self.cohorts.values())).records.task

    @property
    def chooses_thresholds(self) -> bool:
        """Whether validation rows decide the thresholds of classes or findings."""
        rules = [task.threshold_rule for task in (self.task, *self.task.outcomes.values())]
        return self.study.evaluation.threshold == CHOSEN and any(rule is not None for rule in rules)

    @property
    def synthetic(self) -> bool:
        return any(cohort.records.synthetic for cohort in self._all_cohorts)

    @property
    def has_findings(self) -> bool:
        return next(iter(self.cohorts.values())).records.has_findings

    def splits(self, arm: Arm, seed: int) -> tuple[Split, ...]:
        return self._splits_of(self.first_with_rows[arm.name], self.data_seed(arm, seed))

    def _draw_splits(self, name: str, seed: int) -> tuple[Split, ...]:
        if (known := self._looked_at.get((name, seed))) is not None:
            return known[0]
        arm = self.study.arm(name)
        partitioner = arm.sites.build(self.families.partitioners)
        return split_sites(self.cohort_of(arm), partitioner, self.study.evaluation_of(arm), seed)

    def check(self, arm: Arm, seed: int) -> tuple[Split, ...]:
        """The arm's sites for a seed, refused where they must not be trained on; notices are kept for the report."""
        splits, name = self.splits(arm, seed), self.first_with_rows[arm.name]
        known = self._looked_at.get((name, self.data_seed(arm, seed))) if arm.name == name else None
        notices = self.notices_of(arm, splits) if known is None else known[1]
        refuse_errors(notices)
        self.check_notices.setdefault(name, {})[seed] = notices
        return splits

    def notices_of(self, arm: Arm, splits: tuple[Split, ...]) -> tuple[Notice, ...]:
        notices = check_splits(self.cohort_of(arm), splits, arm.sites.facts.overlapping, self.study.evaluation.accept)
        among_sites = any(
            other.algorithm.facts.federated and other.topology.kind != "vertical"
            for other in self.study.trained_arms
            if self.first_with_rows[other.name] == arm.name
        )
        return (*notices, *single_site(splits)) if among_sites else notices

    def _sites_of(self, key: str, seed: int) -> tuple[Site, ...]:
        arm = self.study.arm(key)
        # arms that differ only in who trains have the same rows, which need not be checked again
        splits = self.check(arm, seed) if self.first_with_rows[key] == key else self.splits(arm, seed)
        members = members_of(arm, [split.site for split in splits])
        splits = self.for_selection(arm, splits)
        scale = self.carried_scale(arm, seed)
        if arm.model.facts.in_parts:
            return sites_of_parties(self.cohort_of(arm), splits, arm, dtype_of(arm), members, seed, scale)
        return prepare_sites(self.cohort_of(arm), splits, arm.preparation, dtype_of(arm), members, scale)

    def for_selection(self, arm: Arm, splits: tuple[Split, ...]) -> tuple[Split, ...]:
        """The splits without rows on which nothing may be chosen."""
        patient, selection = self.cohort_of(arm).patient, self.study.selection
        if arm.held_out is not None:
            return held_out_rows(splits, arm.held_out, patient)
        tried = self.study.tuning is not None or self.study.contribution is not None
        if tried or (selection is not None and selection.on == "validation"):
            return untested_validation(splits, patient)
        return splits

    def _model_of(self, arm_name: str, inputs: tuple[int, ...], parts: tuple[Block, ...] = ()) -> Model:
        arm = self._tuned_models.get(arm_name) or self.study.arm(arm_name)
        build: ModelBuilder = arm.model.build(self.families.models)
        model = built(build, Shape(inputs, self.task, parts))
        if arm.topology.kind == "vertical" and arm.topology.embeddings is not None:
            return through_channel(model, arm.topology.embeddings, self.study.evaluation.seeds.first)
        return model

    def _model_name(self, arm: Arm) -> str:
        """Under which its model is kept. A tuned arm may have another model with each seed."""
        name = own_arm(arm.name)
        if not self.tuned or self.study.arm(name).model == arm.model:
            return name
        self._tuned_models[named := f"{name} {_key(arm.model)}"] = arm
        return named

    def predecessor_of(self, arm: Arm) -> Predecessor | None:
        """The trained model that the arm starts from; read once. None: the seed draws its first weights."""
        start = arm.start.start_from
        if start is None:
            return None
        if start not in self._predecessors:
            self._predecessors[start] = read_predecessor(start, list(self.study.evaluation.seeds))
        return self._predecessors[start]

    def carried_scale(self, arm: Arm, seed: int) -> tuple[float, ...] | None:
        """Of the target: that with which the model was trained from which the arm starts, in whose units its weights
        are. None: the arm's own rows decide."""
        if self.finished is not None and arm.start.start_from is not None:
            return read_description(self.finished / "models" / arm.name / f"seed-{seed}.json").target_scale or None
        old = self._known_predecessor(arm)
        return None if old is None else old.models[seed].description.target_scale or None

    def target_scale_of(self, arm: Arm, seed: int) -> tuple[float, ...]:
        """What training knows of the target of all sites."""
        carried, cohort = self.carried_scale(arm, self.data_seed(arm, seed)), self.cohort_of(arm)
        if carried is not None:
            return carried
        splits = self.for_selection(arm, self.splits(arm, seed))
        if arm.topology.kind == "vertical":
            present = present_at(cohort, holdings_of(arm.topology, cohort.records), arm.topology, seed)
            splits = matched(splits, present)
        return target_scale(cohort, splits, members_of(arm, [split.site for split in splits]))

    def layout_of(self, arm: Arm, seed: int) -> Layout | None:
        """What the arm's sites agreed on; None for images, and where each site has columns of its own."""
        recipe = self.sites_of(self.alike[arm.name], self.data_seed(arm, seed))[0].recipe
        return None if recipe is None or arm.preparation.schema == "own" else recipe.layout

    def starting(self, arm: Arm, seed: int, model: Model, sites: Sequence[Site]) -> StartingModel | None:
        """The weights that an arm begins with, checked; None where the seed draws them."""
        if (arm.name, seed) not in self._starting:
            old = self._known_predecessor(arm)
            self._starting[arm.name, seed] = (
                None
                if old is None
                else start_at(old, arm, seed, model, self.layout_of(arm, seed), sites, self.target_scale_of(arm, seed))
            )
        return self._starting[arm.name, seed]

    def _known_predecessor(self, arm: Arm) -> Predecessor | None:
        """None as well where a finished run's is gone."""
        try:
            return self.predecessor_of(arm)
        except (StudyError, RunError):
            if self.finished is None:
                raise
            return None

    def trial(self, arm: Arm, seed: int) -> Trial:
        arm = self.tuned.get((arm.name, seed), arm)
        prepared = self.sites_of(self.alike[arm.name], self.data_seed(arm, seed))
        algorithm = arm.algorithm.build(self.families.algorithms)
        model = self.model_of(self._model_name(arm), prepared[0].train.inputs, prepared[0].blocks)
        refuse_own_columns(arm, model)
        sites = tuple(_on_device(site, device_for(arm, model)) for site in prepared)
        members = members_of(arm, names := [site.name for site in sites])
        # of some of the sites all may be bad
        refuse_strange_adversaries(self.study, arm, names, names if is_coalition(arm.name) else members)
        trainers = tuple(site for site in sites if site.name in members)
        evaluation = self.study.evaluation_of(arm)
        batch_seed = evaluation.seed_for("batches", seed)
        algorithm = by_rule(arm, algorithm, self.families.rules, len(trainers), batch_seed)
        algorithm = collecting(arm, in_regions(arm, algorithm, names, members), arm.training.rounds)
        scored = sites if arm.held_out is None else tuple(site for site in sites if site.name == arm.held_out)
        trial = Trial(
            arm=arm.name,
            seed=seed,
            algorithm=algorithm,
            model=model,
            training=arm.training if algorithm.federated else arm.training.alone,
            sites=self._trained(arm, seed, algorithm, trainers, 1),
            scored=scored,
            batch_seed=batch_seed,
            init_seed=evaluation.seed_for("init", seed),
            # nothing is summed where sites train alone, or where all rows are pooled
            privacy=arm.privacy if algorithm.federated else Privacy(example=arm.privacy.example),
            compression=arm.compression if algorithm.federated else Compression(),
            topology=arm.topology,
            screening=arm.screened,
            groups=self.groups_of(arm, [site.name for site in trainers]),
            root=root_of(arm, sites, members, model),
            bound=arm.bounded_at_site,
            starting=self.starting(arm, seed, model, prepared),
            forgers=forgers(arm, self.families.adversaries, members),
            turned={n: self._trained(arm, seed, algorithm, trainers, n) for n in turning_rounds(arm)},
        )
        return on_clock(trial, arm.timing, self.study.deployment) if algorithm.federated else trial

    def groups_of(self, arm: Arm, trainers: Sequence[str]) -> tuple[int, ...]:
        """The group of each training site; the same with all seeds and in all arms. None where there are no groups."""
        count = None if arm.by_mean else arm.preaggregation.groups
        if count is None:
            return ()
        refuse_small_groups(len(trainers), count, f"arms: {arm.name}: aggregation: groups")
        return draw_groups(self.seed_of_groups(), trainers, count)

    def seed_of_groups(self) -> int:
        return self.study.evaluation.seeds.first

    def _trained(
        self, arm: Arm, seed: int, algorithm: Algorithm, trainers: Sequence[Site], round_number: int
    ) -> tuple[Site, ...]:
        """The sites that train, with the rows that they have in a round; 1 is the first."""
        known, data_seed = self.families.adversaries, self.data_seed(arm, seed)
        sites = poisoned_sites(arm, known, trainers, self.task, data_seed, round_number)
        return (_pooled(sites),) if algorithm.pools else sites

    def refuse_unsound(self, arm: Arm, trial: Trial, buffers: Sequence[str]) -> None:
        """Protections that would not protect, uncertainty that would mean nothing. `buffers` are the model's."""
        tables = self.cohort_of(arm).records.is_table
        refuse_unsound(arm, trial.algorithm, buffers, tables, arm.sites.facts.overlapping, self.task)
        refuse_unkept(trial)
        if trial.seed == self.study.evaluation.seeds.first:  # the others have the same model
            refuse_unfit(arm, trial)

    def check_all(self, workers: int = 1) -> None:
        """Every set of sites with every seed, before anything trains. `workers` processes look at them."""
        self._look_at_all(workers)
        for name in dict.fromkeys(self.alike.values()):
            for seed in self.data_seeds(self.study.arm(name)):
                known = [site.name for site in self.sites_of(name, seed)]
                refuse_strangers(self.study.evaluation.bundles, known, "evaluation: bundles", "site", "Sites")

    def _look_at_all(self, workers: int) -> None:
        """Draw and check many sets of rows side by side. What cannot be drawn is refused when its turn comes."""
        names = {self.first_with_rows[name]: None for name in self.alike.values()}
        todo = [(name, seed) for name in names for seed in self.data_seeds(self.study.arm(name))]
        if workers < 2 or len(todo) < MANY_SETS:
            return

        def look_at(name_and_seed: tuple[str, int]) -> tuple[tuple[Split, ...], tuple[Notice, ...]] | None:
            arm = self.study.arm(name_and_seed[0])
            try:
                return (splits := self._draw_splits(*name_and_seed)), self.notices_of(arm, splits)
            except WardroundError:
                return None

        looked_at = mapped(look_at, todo, workers)
        self._looked_at = {key: known for key, known in zip(todo, looked_at, strict=True) if known is not None}

    def data_seeds(self, arm: Arm) -> list[int]:
        return list(dict.fromkeys(self.data_seed(arm, seed) for seed in self.study.evaluation.seeds))

    def data_seed(self, arm: Arm, seed: int) -> int:
        """Seeds that change neither sites nor splits share the first one's rows."""
        return seed if {"partition", "split"} & set(arm.vary) else self.study.evaluation.seeds.first

    @property
    def notices(self) -> list[Notice]:
        """Of reading, then of the checks with all seeds."""
        notices = [*self.start_notices, *self.source_notices, *idle_adversaries(self.study)]
        for name, of_seed in self.check_notices.items():
            variant = self.study.arm(name).variant
            notices += [replace(notice, variant=variant) for notice in over_seeds(of_seed.values())]
        return notices


def dtype_of(arm: Arm) -> torch.dtype:
    return torch.float64 if arm.training.precision == "float64" else torch.float32


def members_of(arm: Arm, sites: Sequence[str]) -> list[str]:
    """The sites that train in this arm, in the order of the sites."""
    named = (*arm.train_at, arm.held_out) if arm.held_out else arm.train_at
    refuse_strangers(named, sites, f"arms: {arm.name}: train_at or selection: site", "site", "Sites")
    members = [name for name in sites if (not arm.train_at or name in arm.train_at) and name != arm.held_out]
    if not members:
        raise StudyError(f"arms: {arm.name}", "no site is left to train", "Hold out a site that is not the only one.")
    return members


def load_plan(study: Study, families: Families) -> Plan:
    """Read the data of a study. Both arguments are what `load_study` returns."""
    for name in study.evaluation.accept:
        if name not in CHECKS:
            raise StudyError("evaluation: accept", f"there is no check {name!r}", suggest(name, CHECKS, "Checks"))
    cohorts = {
        key: load_cohort(arm.data.build(families.sources), arm.preparation, study.evaluation.groups)
        for key, arm in {cohort_key(arm): arm for arm in study.arms}.items()
    }
    for arm in study.arms:  # in a simulation all hospitals are known, so that a misspelt one can be refused
        known, where = cohorts[cohort_key(arm)].records.hospitals, f"arms: {arm.name}: data: not_recorded"
        refuse_strangers(arm.preparation.not_recorded, known, where, "hospital", "Hospitals")
    if len({cohort.records.task for cohort in cohorts.values()}) > 1:
        problem = "they predict different outcomes, different classes, or numbers of different kinds"
        raise StudyError(
            "arms", problem, "Compare arms with the same outcome, the same classes and the same settings of `task`."
        )
    return Plan(study, families, cohorts, analysed=load_analysed(study, families, cohorts))


def load_analysed(study: Study, families: Families, cohorts: Mapping[str, Cohort]) -> Cohort | None:
    """All rows that the study's analyses look at: each leaves out those with gaps in its own columns. None without
    analyses; what arms have read is not read again."""
    if not study.analyses:
        return None
    rows = study.analyses[0].rows
    rows = replace(rows, preparation=replace(rows.preparation, missing="median"))
    cohort = cohorts.get(cohort_key(rows)) or load_cohort(rows.data.build(families.sources), rows.preparation)
    known, where = cohort.records.hospitals, "data: not_recorded"
    refuse_strangers(rows.preparation.not_recorded, known, where, "hospital", "Hospitals")
    return cohort


def check_study(plan: Plan) -> list[Notice]:
    """The first of each notice, over every set of sites with every seed. Errors do not raise here.

    `plan` is what `load_plan` returns.
    """
    notices: dict[tuple[object, ...], Notice] = {}
    for name in dict.fromkeys(plan.first_with_rows.values()):
        arm = plan.study.arm(name)
        for seed in plan.data_seeds(arm):
            for notice in plan.notices_of(arm, plan.splits(arm, seed)):
                known = notices.get(identity(notice))
                if known is None or (notice.severity == "error" and known.severity == "warning"):
                    notices[identity(notice)] = notice
    return [*notices.values(), *idle_adversaries(plan.study)]


def site_choices(study: Study) -> dict[str, Arm]:
    """One arm for each different way of forming sites."""
    chosen: dict[str, Arm] = {}
    for arm in study.arms:
        chosen.setdefault(cohort_key(arm) + _key(arm.sites), arm)
    return chosen


def device_for(arm: Arm, model: Model | None = None) -> torch.device:
    """`auto` takes a CUDA device for a large model; a small one is faster on the processor."""
    device = arm.training.device
    if device == "cuda" and not torch.cuda.is_available():
        remedy = 'Set training.device = "auto" or "cpu".'
        raise MachineError(f"arms: {arm.name}: training: device", "this machine has no usable CUDA device", remedy)
    if device == "auto" and torch.cuda.is_available() and model is not None:
        device = "cuda" if model.size >= SMALL_MODEL else "cpu"
    return torch.device("cuda" if device == "cuda" else "cpu")


def rehearse(plan: Plan) -> None:
    """Refusals of every arm before its first round, such as a model that does not fit its data."""
    for arm in plan.study.trained_arms:
        trial = plan.trial(arm, plan.study.evaluation.seeds.first)
        if trial.starting is not None:  # columns may differ from those of the model with some seeds only
            for seed in plan.study.evaluation.seeds:
                plan.trial(arm, seed)
        params, buffers = site_model(trial, start(trial), 0)
        refuse_outsiders(trial, tuple(buffers))
        refuse_unfit_changes(trial)
        plan.refuse_unsound(arm, trial, tuple(buffers))
        x, _ = trial.sites[0].train.take(torch.arange(min(2, len(trial.sites[0].train))), trial.dtype)
        try:
            logits, _ = trial.model.logits(params, buffers, x, None)
        except RuntimeError:
            shape = " x ".join(map(str, x.shape[1:]))
            problem = f"does not fit the data, whose rows are {shape} numbers"
            raise StudyError(
                f"arms: {arm.name}: model: {arm.model.name}", problem, "Build it from `shape.inputs`."
            ) from None
        outputs = trial.model.task.outputs + len(trial.model.task.leaves)
        if tuple(logits.shape) != (len(x), outputs):
            problem = f"gives {tuple(logits.shape[1:])} scores a row where {outputs} are needed"
            raise StudyError(f"arms: {arm.name}: model: {arm.model.name}", problem, "Build it from `shape.outputs`.")


def refuse_outsiders(trial: Trial, buffers: Sequence[str]) -> None:
    """A site that did not train has no private part of a model to predict with."""
    outside = {site.name for site in trial.scored} - {site.name for site in trial.sites}
    if outside and not trial.algorithm.pools and (buffers or trial.model.private):
        problem = "the model keeps a part of itself at each site, and a site that does not train has none"
        raise StudyError(f"arms: {trial.arm}", problem, "Let all sites train, or choose another model.")


def refuse_own_columns(arm: Arm, model: Model) -> None:
    """Where every site has columns of its own, a model must have a part for each of them."""
    if arm.preparation.schema == "own" and model.at_site is None:
        problem = f'{arm.model.name} takes the same columns from all sites, and with schema = "own" each has its own'
        remedy = 'Use model "adapter", or write `"data.schema" = "all"` or "common" in this arm.'
        raise StudyError(f"arms: {arm.name}: model", problem, remedy)


def _on_device(site: Site, device: torch.device) -> Site:
    if device.type == "cpu":
        return site

    def move(rows: Rows) -> Rows:
        tensors = {name: getattr(rows, name) for name in ("x", "y", "index", "levels", "tabular")}
        return replace(rows, **{name: tensor.to(device) for name, tensor in tensors.items() if tensor is not None})

    return replace(site, train=move(site.train), validation=move(site.validation), test=move(site.test))


def _pooled(sites: tuple[Site, ...]) -> Site:
    empty = np.array([], dtype=np.int64)
    train = join([site.train for site in sites])
    first = sites[0]
    return Site("pooled", train, first.validation, first.test, empty, empty, first.recipe, first.blocks)


def sites_of_parties(
    cohort: Cohort,
    splits: Sequence[Split],
    arm: Arm,
    dtype: torch.dtype,
    members: Sequence[str],
    seed: int,
    known_scale: tuple[float, ...] | None = None,
) -> tuple[Site, ...]:
    """Sites whose columns are grouped by party; in a vertical topology trained on matched patients."""
    holdings = holdings_of(arm.topology, cohort.records)
    present = present_at(cohort, holdings, arm.topology, seed)
    vertical = arm.topology.kind == "vertical"
    if vertical:
        splits = matched(splits, present)
    table = table_of(cohort.records, holdings)
    if cohort.records.is_table:
        scale = target_scale(cohort, splits, members) if known_scale is None else known_scale
        base = tuple(_without_numbers(cohort, split, scale) for split in splits)
    else:
        base = prepare_sites(cohort, splits, arm.preparation, dtype, members, known_scale)
    subsets = ("train", "validation", "test")
    rows = {split.site: {subset: getattr(split, subset) for subset in subsets} for split in splits}
    return joined_sites(base, table, rows, holdings, present, arm.preparation, members, vertical, dtype)


def present_at(cohort: Cohort, holdings: Holdings, topology: Topology, seed: int) -> dict[str, np.ndarray]:
    drawn = drawn_at(cohort, holdings, topology, seed)
    return {party: has & cohort.records.known_to.get(party, has) for party, has in drawn.items()}


def drawn_at(cohort: Cohort, holdings: Holdings, topology: Topology, seed: int) -> dict[str, np.ndarray]:
    """The patients of each other party under `known` alone."""
    rng = seeds.generator(seed, "patients of parties")
    return known_patients(cohort.patient, holdings, topology.known if topology.kind == "vertical" else {}, rng)


def matched(splits: Sequence[Split], present: Mapping[str, np.ndarray]) -> tuple[Split, ...]:
    """Training rows of patients whom every party has. The other rows are only predicted."""
    if not present:
        return tuple(splits)
    everywhere = np.logical_and.reduce(list(present.values()))
    common = tuple(replace(split, train=split.train[everywhere[split.train]]) for split in splits)
    if not sum(len(split.train) for split in common):
        raise DataError("topology: parties", "they have no training patient in common", "Look at their patients.")
    return common


def _without_numbers(cohort: Cohort, split: Split, scale: tuple[float, ...]) -> Site:
    labels = cohort.training_labels(scale)
    return site_of(cohort, split, lambda chosen: Rows(torch.zeros((len(chosen), 0)), labels[chosen]))


def _key(choice: Choice[Any]) -> str:
    return repr((choice.name, sorted(choice.options.items())))


def cohort_key(arm: Arm | AnalysedRows) -> str:
    """Arms and analyses on the same rows: the same data, and rows with gaps dropped or not."""
    prepared = arm.preparation
    unrecorded = f" without {sorted(prepared.not_recorded.items())}" if prepared.not_recorded else ""
    complete = f" complete {prepared.schema != 'all'}" if prepared.missing == "drop" else ""
    return f"{_key(arm.data)}{complete}{unrecorded}"
