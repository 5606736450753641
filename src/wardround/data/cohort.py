"""All rows of a study before sites are formed, and the way from there to prepared sites."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from math import fsum

import numpy as np
import pandas as pd
import torch

from wardround.core import seeds
from wardround.core.errors import DataError, StudyError, refuse_strangers
from wardround.core.notices import Notice
from wardround.data.agreement import recipes
from wardround.data.brightness import brightness, levels, levels_of
from wardround.data.checks.coincidences import HashedRows, hash_rows
from wardround.data.checks.declared_groups import with_groups
from wardround.data.checks.target_leak import TargetLeak, target_leaks
from wardround.data.partition import Partitioner
from wardround.data.prepare import Encoded, Recipe, complete_rows, encode
from wardround.data.records import Records
from wardround.data.signals.scale import signal_levels, statistics
from wardround.data.site import Rows, Site
from wardround.data.sources import Source
from wardround.data.split import Split, fingerprints, recorded_split, same_patient, split_site
from wardround.study.schema import Evaluation, Preparation


@dataclass(frozen=True)
class Cohort:
    """`row_numbers` are the rows' places in the source; `patient` numbers rows of one patient alike."""

    records: Records
    row_numbers: np.ndarray
    prints: np.ndarray
    notices: tuple[Notice, ...]

    @cached_property
    def patient(self) -> np.ndarray:
        return same_patient(self.records, self.prints)

    @cached_property
    def table(self) -> Encoded:
        return encode(self.records)

    @cached_property
    def by_outcome(self) -> "tuple[Cohort, ...]":
        """The same rows with one outcome each, where several are predicted together; itself otherwise."""
        if not self.records.task.outcomes:
            return (self,)
        return tuple(replace(self, records=records) for records in self.records.by_outcome)

    @cached_property
    def target_leaks(self) -> list[TargetLeak]:
        """Columns that tell the outcome by themselves. They depend on no split, so that they are looked for once."""
        return target_leaks(self.records, self.table) if self.records.is_table else []

    @cached_property
    def hashed(self) -> HashedRows:
        """Of a table: what tells how many rows are equal by chance."""
        return hash_rows(self.table, self.records.target)

    @cached_property
    def images(self) -> torch.Tensor:
        """One tensor for all sites; they hold row numbers into it."""
        if self.records.is_table:
            raise TypeError("a table is prepared per site")
        with warnings.catch_warnings():
            # of a file that is mapped for reading only; nothing ever writes into this tensor
            warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
            return torch.from_numpy(np.ascontiguousarray(self.records.features))

    @cached_property
    def brightness(self) -> np.ndarray:
        """Of each image; looked at once, whatever the number of seeds."""
        if isinstance(self.records.features, np.ndarray):
            return brightness(self.records.features)
        raise TypeError("a table is prepared per site")

    @cached_property
    def signal_statistics(self) -> np.ndarray:
        """Of each channel of each recording; looked at once, whatever the number of seeds."""
        return statistics(np.asarray(self.records.features))

    @cached_property
    def labels(self) -> torch.Tensor:
        return torch.from_numpy(self.records.target)

    def training_labels(self, scale: tuple[float, ...]) -> torch.Tensor:
        """As training takes them; `scale` is what the task needs to know of all sites' targets (`target_scale`)."""
        target = self.records.task.training_target(self.records.target, scale)
        return self.labels if target is self.records.target else torch.from_numpy(target)

    @property
    def fingerprint(self) -> str:
        """Changes when any row changes. Tells two data sets of one study apart; no row can be read from it."""
        digest = sha256(np.ascontiguousarray(self.prints).tobytes())
        for names in (self.records.hospital, self.records.patient, self.records.split):
            digest.update("\x1f".join(map(str, [] if names is None else names.tolist())).encode())
        return digest.hexdigest()


def load_cohort(source: Source, preparation: Preparation, groups: Sequence[str] = (), alone: bool = False) -> Cohort:
    """`groups` are the declared ones. A hospital that is `alone` with what a study declares may lack a column."""
    records = without_columns(with_groups(source.load(), groups, alone), preparation.not_recorded)
    prints = fingerprints(records) if records.prints is None else records.prints
    rows = np.arange(len(records))
    notices = records.notices
    if preparation.missing == "drop" and records.is_table:
        rows = complete_rows(records, in_own_columns=preparation.schema != "all")
        if len(rows) < len(records):
            notices = (*notices, *_dropped(records, rows, preparation.schema != "all"))
            records = records.take(rows)
    return Cohort(records, rows, prints[rows], notices)


def without_columns(records: Records, not_recorded: Mapping[str, Sequence[str]]) -> Records:
    """Where a study says that a hospital does not really record a column, the few values that it has are not used."""
    if not not_recorded or not isinstance(records.features, pd.DataFrame):
        return records
    names, table, notices = [column.name for column in records.columns], records.features.copy(), []
    recorded = {hospital: records.recorded.get(hospital, tuple(names)) for hospital in records.hospitals}
    for hospital, columns in not_recorded.items():
        if hospital not in recorded:
            continue  # of another site, whose columns nobody here knows
        rows = records.hospital == hospital
        for name in _table_names(columns, records, recorded[hospital], hospital):
            there = int((rows & table[name].notna().to_numpy()).sum())
            table[name] = table[name].mask(rows, np.nan if table[name].dtype.kind == "f" else None)
            recorded[hospital] = tuple(other for other in recorded[hospital] if other != name)
            if there:
                counts = {"rows": there, "of": int(rows.sum())}
                notices.append(Notice("column-set-aside", "info", hospital, (name,), counts))
    return replace(records, features=table, recorded=recorded, notes=(*records.notes, *notices))


def _table_names(columns: Sequence[str], records: Records, recorded: Sequence[str], hospital: str) -> list[str]:
    """Of columns that go by the hospital's own names. A column that only others record has none."""
    known = {name for column in records.columns for name in (column.name, column.own_name)}
    refuse_strangers(columns, known, f"data: not_recorded: {hospital}", "column", "Columns")
    own = [column for column in records.columns if column.name in recorded]
    return [column.name for name in columns for column in own if name in (column.name, column.own_name)]


def _dropped(records: Records, complete: np.ndarray, in_own_columns: bool) -> list[Notice]:
    notices = []
    for hospital in records.hospitals:
        total = int((records.hospital == hospital).sum())
        left = int((records.hospital[complete] == hospital).sum())
        if left == 0:
            empty = _without_values(records, hospital, in_own_columns)
            reason = f" ({', '.join(empty)}: no value in any row)" if empty else ""
            problem = f'none of its {total} rows is complete{reason}, and missing = "drop" keeps complete rows only'
            remedy = 'Set missing = "median" (or "mean") in [data], or leave this hospital out.'
            raise DataError(hospital, problem, remedy)
        if left < total:
            notices.append(Notice("rows-dropped", "info", hospital, counts={"rows": total - left, "of": total}))
    return notices


def _without_values(records: Records, hospital: str, in_own_columns: bool) -> list[str]:
    """Columns that make every row of a hospital incomplete."""
    if not isinstance(records.features, pd.DataFrame):
        return []
    names = [column.name for column in records.columns]
    required = list(records.recorded.get(hospital, names) if in_own_columns else names)
    empty = records.features.loc[records.hospital == hospital, required].isna().all()
    return [name for name in required if empty[name]]


def split_sites(cohort: Cohort, partitioner: Partitioner, evaluation: Evaluation, seed: int) -> tuple[Split, ...]:
    partition_seed = evaluation.seed_for("partition", seed)
    split_seed = evaluation.seed_for("split", seed)
    if evaluation.split == "given" and cohort.records.split is None:
        problem = "the source comes with no split of its own"
        raise StudyError("evaluation: split", problem, 'Write split = "drawn", or leave it out.')
    named = place_rows(cohort, partitioner, partition_seed)
    parts = cohort.records.split if evaluation.split == "given" else None

    def split(name: str, rows: np.ndarray) -> Split:
        rng = seeds.generator(split_seed, "split", site=name)
        shares = evaluation.test_share, evaluation.validation_share
        by = cohort.records.task.strata(cohort.records.target, rows)
        if parts is not None:
            return recorded_split(name, rows, parts, by, cohort.patient, evaluation.validation_share, rng)
        return split_site(name, rows, by, cohort.patient, *shares, rng)

    return tuple(split(name, rows) for name, rows in named.items())


def place_rows(cohort: Cohort, partitioner: Partitioner, seed: int) -> dict[str, np.ndarray]:
    """The row numbers of each site."""
    records = cohort.records
    copies = cohort.patient.max(initial=-1) + 1 < len(records)
    if records.patient is None and copies and not partitioner.overlapping:
        records = replace(records, patient=cohort.patient)  # equal rows may be one patient: they stay together
    assigned = partitioner.assign(records, seeds.generator(seed, "partition"))
    # names become parts of file and tensor names, where '/' means something else
    named = {name.replace("/", "-"): rows for name, rows in assigned.items()}
    if len(named) < len(assigned):
        raise DataError("sites", "two names differ only in '/' and '-'", "Rename one of the hospitals.")
    return named


def prepare_sites(
    cohort: Cohort,
    splits: Sequence[Split],
    preparation: Preparation,
    dtype: torch.dtype,
    members: Sequence[str] | None = None,
    known_scale: tuple[float, ...] | None = None,
) -> tuple[Site, ...]:
    """Tensors for the engines. A table is prepared per site; images stay one array that the sites point into.

    Sites that are not among `members` are prepared by the members' layout, as a newcomer would be. `known_scale` is
    that of the target, where it is not to be found out from the members' rows.
    """
    train = {split.site: split.train for split in splits}
    members = list(train) if members is None else members
    scale = target_scale(cohort, splits, members) if known_scale is None else known_scale
    if not cohort.records.is_table:
        by_image = array_levels(cohort, train, members, preparation)
        labels = cohort.training_labels(scale)
        return tuple(
            image_site(cohort, split, None if by_image is None else by_image[split.site], labels) for split in splits
        )
    by_site = recipes(cohort.table, train, preparation, members)
    return tuple(table_site(cohort, split, by_site[split.site], dtype, scale) for split in splits)


def array_levels(
    cohort: Cohort, train: Mapping[str, np.ndarray], members: Sequence[str], preparation: Preparation
) -> dict[str, np.ndarray] | None:
    """By site, centre and spread of its images or signals; None where they stay as they are."""
    if cohort.records.is_signals:
        return signal_levels(cohort.signal_statistics, train, members, preparation)
    if preparation.scale == "record":
        problem = '"record" is for signals, and these data are images'
        raise StudyError("data: scale", problem, 'Write `scale = "image"`: each image by itself.')
    return levels(cohort.brightness, train, members, preparation) if preparation.scales_pixels else None


def target_scale(cohort: Cohort, splits: Sequence[Split], members: Sequence[str]) -> tuple[float, ...]:
    """What the task needs to know of the target over the training rows of all members, from their sums."""
    task, target = cohort.records.task, cohort.records.target
    sums = [task.target_sums(target[split.train]) for split in splits if split.site in members]
    # without rounding in between: in a deployment regions add up first, and the scale must have the same bits
    return task.scale(np.array([fsum(column) for column in zip(*sums, strict=True)]))


def table_site(
    cohort: Cohort, split: Split, recipe: Recipe, dtype: torch.dtype, target_scale: tuple[float, ...] = ()
) -> Site:
    labels = cohort.training_labels(target_scale)

    def rows(chosen: np.ndarray) -> Rows:
        return Rows(torch.from_numpy(recipe.apply(cohort.table, chosen)).to(dtype), labels[chosen])

    return replace(site_of(cohort, split, rows), recipe=recipe)


def image_site(cohort: Cohort, split: Split, scale: np.ndarray | None, labels: torch.Tensor | None = None) -> Site:
    """`scale` is one centre and spread for the site, or one for each image; None: pixels as they are. `labels` are
    those of training; without them the source's own, which classes and findings are trained on as they are."""
    of_rows = cohort.labels if labels is None else labels

    def rows(chosen: np.ndarray) -> Rows:
        own_levels = None if scale is None else levels_of(scale, chosen)
        return Rows(cohort.images, of_rows, torch.from_numpy(chosen), own_levels)

    return site_of(cohort, split, rows)


def site_of(cohort: Cohort, split: Split, rows: Callable[[np.ndarray], Rows]) -> Site:
    """`rows` prepares the rows with these numbers; whose they are is added here."""
    train, validation, test = (
        replace(rows(chosen), patients=torch.from_numpy(cohort.patient[chosen]))
        for chosen in (split.train, split.validation, split.test)
    )
    numbers = cohort.row_numbers
    return Site(split.site, train, validation, test, numbers[split.validation], numbers[split.test])
