"""A vertical study's plan where nobody holds all columns: each party has its own numbers of a row, zeros for others'.

All ends make the same trials from the study and from two public things: how many rows train, and how many numbers each
party gives. So order, dropout and augmentation are drawn alike everywhere, as in a simulation, and none of them has to
travel.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, prod
from typing import Any

import numpy as np
import torch

from wardround.core.errors import DataError, StudyError, suggest
from wardround.core.notices import Notice
from wardround.data.agreement import recipes
from wardround.data.brightness import levels
from wardround.data.checks.duplicates import FEWEST_COLUMNS
from wardround.data.cohort import Cohort, image_site, load_cohort, target_scale
from wardround.data.parties import IMAGE, Holdings, columns_held, table_of
from wardround.data.prepare import Encoded, Recipe
from wardround.data.records import SPLIT_PARTS, Records
from wardround.data.site import Block, Rows, Site
from wardround.data.sources import Source
from wardround.data.split import Split
from wardround.deployment.common.deployed_plan import NOWHERE, Agreed, DeployedPlan, Key, no_labels
from wardround.deployment.vertical.vertical_validation import holder_of, parties_of
from wardround.engines.serial import order_of
from wardround.models import Model, ModelBuilder, Shape, built
from wardround.runs.plan import cohort_key, dtype_of
from wardround.study.parser import Families
from wardround.study.schema import Arm, Study
from wardround.tasks import Task
from wardround.training.trial import Trial

EQUAL_ROWS = ("leak", "copies", "shared-rows", "equal-rows")  # checks that look for equal rows
Shapes = Mapping[str, tuple[int, ...]]  # what each party gives of a row: so many numbers, or an image of this shape
# in one message; a party also writes the parts of its models once in a step
WAVE_EMBEDDINGS, WAVE_MODELS = 16 * 2**20, 32 * 2**20


@dataclass(frozen=True)
class AssignedRows:
    """The rows of one kind of arm at one end. At a party they are its own rows, in the order of the holder."""

    rows: Mapping[str, np.ndarray]  # that train, validate and test
    present: Mapping[str, np.ndarray] = field(default_factory=dict)  # at the holder: whether a party has each row


@dataclass
class VerticalPlan(DeployedPlan):
    """`sites` is the party with the labels alone: results are about its rows."""

    assigned: dict[Key, AssignedRows] = field(default_factory=dict)
    shapes: dict[Key, Shapes] = field(default_factory=dict)
    counts: dict[Key, int] = field(default_factory=dict)  # rows that train, at the coordinator

    @property
    def holder(self) -> str:
        return self.sites[0]

    def _sites_of(self, key: str, seed: int) -> tuple[Site, ...]:
        arm = self.study.arm(key)
        blocks = blocks_of(self.shapes[key, seed], self.holder)
        width = max([0, *(block.stop for block in blocks), *(1 + (block.present or 0) for block in blocks)])
        if self.own is None:
            count = self.counts[key, seed]
            x, y = torch.zeros((1, width)).expand(count, width), no_labels(self.task, count)
            nothing = Rows(x[:0], y[:0])
            return (Site(self.holder, Rows(x, y), nothing, nothing, NOWHERE, NOWHERE, None, blocks),)
        return (own_site(self, arm, seed, blocks, width),)

    def _model_of(self, arm_name: str, inputs: tuple[int, ...], parts: tuple[Block, ...] = ()) -> Model:
        """First weights of the part for images are a file that only the party with the images has to have."""
        arm = self.study.arm(arm_name)
        if self.own is not None and IMAGE in arm.topology.parties[self.own]:
            return super()._model_of(arm_name, inputs, parts)
        options = {name: None if name == "weights" else value for name, value in arm.model.options.items()}
        build: ModelBuilder = self.families.models[arm.model.name](**options)
        return built(build, Shape(inputs, self.task, parts))

    def own_notices(self) -> list[Notice]:
        """Without what is known from equal rows, where the holder has so few columns that patients look alike: their
        numbers keep them apart."""
        notices = super().own_notices()
        columns = min(len(cohort.records.columns) for cohort in self.cohorts.values())
        tables = all(cohort.records.is_table for cohort in self.cohorts.values())
        return [n for n in notices if n.code not in EQUAL_ROWS or not tables or columns >= FEWEST_COLUMNS]

    def own_columns(self, arm: Arm) -> tuple[str, ...]:
        """What this party gives in an arm, checked against its file."""
        records = self.cohort_of(arm).records
        name = "" if self.own is None else self.own
        named = arm.topology.parties[name]
        if named == (IMAGE,):
            if records.is_table:
                raise StudyError(f"topology: parties: {name}", "its rows have no images", "Name its columns.")
            return named
        held = {name: tuple(column.name for column in records.columns)}
        columns = columns_held(name, named, replace(records, held=held))
        outcome = arm.data.options.get("target")
        if name != self.holder and outcome in columns:
            problem = f"its file has {outcome!r}, which is the outcome at {self.holder}"
            remedy = "Delete it there, or rename it if it is something else."
            raise StudyError(f"topology: parties: {name}", problem, remedy)
        for column in columns:
            if column not in held[name]:
                remedy = suggest(column, held[name], "Columns of its file")
                raise StudyError(f"topology: parties: {name}", f"its file has no column {column!r}", remedy)
        return columns

    def prepared(self, arm: Arm, seed: int) -> tuple[Encoded, Recipe] | None:
        """How this party's own columns become numbers; None where it gives none."""
        columns = self.own_columns(arm)
        if not columns or IMAGE in columns:
            return None
        own = Holdings({self.own or "": columns}, self.own or "")
        table = table_of(self.cohort_of(arm).records, own)
        if table is None:
            return None
        train = self.assigned[self.alike[arm.name], seed].rows["train"]
        return table, recipes(table, {"all": train}, arm.preparation, ["all"])["all"]

    def own_shape(self, kind: Key) -> tuple[int, ...]:
        """Empty where this party, which then has the labels, gives no numbers."""
        arm = self.study.arm(kind[0])
        if IMAGE in self.own_columns(arm):
            features = self.cohort_of(arm).records.features
            return tuple(int(size) for size in features.shape[1:])
        prepared = self.prepared(arm, kind[1])
        return () if prepared is None else (len(prepared[1].names),)

    def agree(self, shapes: Mapping[Key, Shapes]) -> None:
        """Once it is known how much every party gives. What was made for other sizes is forgotten."""
        self.sites_of.cache_clear()
        self.model_of.cache_clear()
        self.shapes = dict(shapes)
        self.agreed = {kind: Agreed((1,)) for kind in shapes}

    def expect(self, task: Task) -> None:
        """At a party without labels: what is predicted, so that the network is of one size everywhere."""
        self.agreed_task = task

    def steps_of(self, trial: Trial) -> tuple[int, int]:
        """Blocks in a round, and in all rounds."""
        batches = len(order_of(trial, trial.sites[0], 0, trial.training.local_epochs))
        each = ceil(batches / trial.topology.block)
        return each, each * trial.training.rounds

    def waves(self) -> list[tuple[tuple[str, int], ...]]:
        """All arms with all seeds, cut where a message, or what a party writes in each step, would grow too large."""
        cut: list[list[tuple[str, int]]] = []
        embeddings = models = 0  # bytes in the last wave
        for arm in self.study.trained_arms:
            for seed in self.study.evaluation.seeds:
                trial = self.trial(arm, seed)
                width = 0 if trial.model.cut is None else trial.model.cut.width
                size = 8 if arm.training.precision == "float64" else 4
                block = size * width * trial.training.batch_size * trial.topology.block * len(arm.topology.parties)
                model = 3 * size * trial.model.size
                if not cut or embeddings + block > WAVE_EMBEDDINGS or models + model > WAVE_MODELS:
                    cut.append([])
                    embeddings = models = 0
                cut[-1].append((arm.name, seed))
                embeddings, models = embeddings + block, models + model
        return [tuple(wave) for wave in cut]

    def assign_rows(self, numbers: Mapping[str, np.ndarray]) -> dict[Key, dict[str, dict[str, np.ndarray]]]:
        """At the holder: which rows train, validate and test. `numbers` has for each of its rows the number by which
        another party knows it, or -1. Returns each party's own numbers, by kind, party and part of the split."""
        present = {party: known >= 0 for party, known in numbers.items()}
        everywhere = np.logical_and.reduce(list(present.values()))
        by_kind: dict[Key, dict[str, dict[str, np.ndarray]]] = {}
        for kind in self.kinds:
            arm = self.study.arm(kind[0])
            split = self.for_selection(arm, self.splits(arm, kind[1]))[0]
            rows = {part: getattr(split, part) for part in SPLIT_PARTS}
            rows["train"] = rows["train"][everywhere[rows["train"]]]
            if not len(rows["train"]):
                raise DataError(self.holder, "no training patient is at all parties", "Look at their patients.")
            self.assigned[kind] = AssignedRows(rows, present)
            by_kind[kind] = {
                party: {part: known[rows[part]][known[rows[part]] >= 0] for part in SPLIT_PARTS}
                for party, known in numbers.items()
            }
        return by_kind

    def own_scale(self, kind: Key) -> tuple[float, ...]:
        """Of what is predicted, over the rows that train. The holder has all of them, so that nobody is asked."""
        cohort = self.cohort_of(self.study.arm(kind[0]))
        return target_scale(cohort, [self.assigned_split(kind)], [self.holder])

    def assigned_split(self, kind: Key) -> Split:
        return Split(self.holder, *(self.assigned[kind].rows[part] for part in SPLIT_PARTS))


def own_site(plan: VerticalPlan, arm: Arm, seed: int, blocks: Sequence[Block], width: int) -> Site:
    """This end's rows as lines of numbers, as long as where all parties' numbers are at one place."""
    kind = plan.alike[arm.name], seed
    cohort, assigned, prepared = plan.cohort_of(arm), plan.assigned[kind], plan.prepared(arm, seed)
    own = next((block for block in blocks if block.party == plan.own), None)
    pixels = next((block.shape for block in blocks if len(block.shape) == 3), ())
    skipped, dtype = prod(pixels) if pixels else 0, dtype_of(arm)
    labels = cohort.training_labels(plan.own_scale(kind))
    images = _images(plan, arm, cohort, kind, labels) if own is not None and len(own.shape) == 3 else None

    def rows_of(part: str) -> Rows:
        chosen = assigned.rows[part]
        line = np.zeros((len(chosen), width - skipped))
        if prepared is not None and own is not None:
            table, recipe = prepared
            line[:, own.start - skipped : own.stop - skipped] = recipe.apply(table, chosen)
        for block in blocks:
            if block.present is not None:
                has = assigned.present.get(block.party)
                line[:, block.present - skipped] = 1.0 if has is None else has[chosen]
        numbers = torch.from_numpy(line).to(dtype)
        people, own_labels = torch.from_numpy(cohort.patient[chosen]), labels[chosen]
        if images is not None:
            rows: Rows = getattr(images, part)
            return replace(rows, tabular=numbers)
        if pixels:
            empty = torch.zeros((1, *pixels), dtype=dtype).expand(len(chosen), *pixels)
            # by number, as where the images are: rows that are joined then keep what stands beside an image
            return Rows(empty, own_labels, torch.arange(len(chosen)), None, people, numbers)
        return Rows(numbers, own_labels, patients=people)

    return Site(
        plan.holder,
        rows_of("train"),
        rows_of("validation"),
        rows_of("test"),
        cohort.row_numbers[assigned.rows["validation"]],
        cohort.row_numbers[assigned.rows["test"]],
        None if prepared is None else prepared[1],
        tuple(blocks),
    )


def _images(plan: VerticalPlan, arm: Arm, cohort: Cohort, kind: Key, labels: torch.Tensor) -> Site:
    split, scale = plan.assigned_split(kind), None
    if arm.preparation.scales_pixels:
        scales = levels(cohort.brightness, {plan.holder: split.train}, [plan.holder], arm.preparation)
        scale = None if scales is None else scales[plan.holder]
    return image_site(cohort, split, scale, labels)


def blocks_of(shapes: Shapes, holder: str) -> tuple[Block, ...]:
    """As data/parties.py arranges a line: an image first, then each party's numbers, then who has the patient."""
    at = sum(prod(shape) for shape in shapes.values() if len(shape) == 3)
    spans: dict[str, tuple[int, int, tuple[int, ...]]] = {}
    for party, shape in shapes.items():
        if len(shape) == 3:
            spans[party] = (0, prod(shape), shape)
        elif shape:
            spans[party] = (at, at + shape[0], shape)
            at += shape[0]
    others = [party for party in shapes if party != holder]
    flag = {party: at + number for number, party in enumerate(others)}
    return tuple(Block(party, *span, flag.get(party)) for party, span in spans.items())


def own_vertical_plan(study: Study, families: Families, name: str, records: Records) -> VerticalPlan:
    holder = holder_of(study)
    if name == holder and not has_labels(records):
        problem = "has the labels of this study, and its rows have none"
        raise DataError(name, problem, "Name the column to predict (`target`) in [data] of its site file.")
    source = Source(lambda: records)
    cohorts = {cohort_key(arm): load_cohort(source, arm.preparation) for arm in study.arms}
    plan = VerticalPlan(
        study,
        families,
        cohorts,
        sites=(holder,),
        agreed_task=records.task,
        own=name,
    )
    for arm in study.trained_arms:
        plan.own_columns(arm)
    return plan


def has_labels(records: Records) -> bool:
    """A table without a target is read as one with a single class."""
    return not records.task.classes or len(records.task.classes) > 1


def coordinator_vertical_plan(study: Study, families: Families, task: Task) -> VerticalPlan:
    return VerticalPlan(study, families, {}, sites=(holder_of(study),), agreed_task=task)


def without_names(task: Task) -> dict[str, Any]:
    """What parties without labels are told of the task: the names stay with the holder."""
    return {**task.to_json(), "names": [f"class {place}" for place in range(len(task.names))]}


def shapes_by_kind(
    study: Study, kinds: Sequence[Key], shapes: Mapping[str, Sequence[Sequence[int]]]
) -> dict[Key, Shapes]:
    """`shapes` are each party's for all kinds; here in the order of the study's parties."""
    return {
        kind: {party: tuple(int(size) for size in shapes[party][place]) for party in parties_of(study)}
        for place, kind in enumerate(kinds)
    }
