"""The saved uncertainty of a run, arm by arm and seed by seed, as arrays.

Nothing here is chosen on test rows: thresholds, temperatures and cuts come from validation rows, and of these, rows of
patients whom the same seed tests anywhere are left out.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeVar

import numpy as np
import pandas as pd

from wardround.evaluation.scores import label_columns, labels_and_scores, patients_by_row, score_columns, task_of
from wardround.evaluation.thresholds import thresholds_of, untested
from wardround.study.schema import CHOSEN
from wardround.tasks import Task
from wardround.tasks.class_metrics import THRESHOLD
from wardround.tasks.probabilities import ProbabilityTask, probability_task
from wardround.tasks.summed import SummedTask
from wardround.uncertainty.calibration import Temperature, fit_temperature
from wardround.uncertainty.conformal import Cuts, fit_cuts, prediction_sets
from wardround.uncertainty.decision import Answers, answers, predicted_labels
from wardround.uncertainty.decomposition import doubt_of
from wardround.uncertainty.intervals import IntervalCut, fit_interval_cut, interval_widths
from wardround.uncertainty.row_uncertainty import SUBSETS, of_passes

PARTS = ("total", "aleatoric", "epistemic")
MEASURES = (*PARTS, "spread")
KEYS = ["site", "subset", "row"]  # identify a row in each member of an ensemble


@dataclass(frozen=True, eq=False)
class LabelledRows:
    """Rows of one arm with one seed. Shapes of label and score are those of the task."""

    site: np.ndarray
    row: np.ndarray
    patient: np.ndarray
    label: np.ndarray
    score: np.ndarray  # mean over passes
    measures: Mapping[str, np.ndarray]  # in MEASURES: (rows,), or (rows, findings)

    @classmethod
    def of(cls, table: pd.DataFrame, patient: pd.Series | None, task: Task) -> "LabelledRows":
        label, score = labels_and_scores(table)
        row = table["row"].to_numpy()

        def measure(name: str) -> np.ndarray:
            return table[[f"{name}_{finding}" for finding in task.findings] if task.findings else name].to_numpy()

        return cls(
            table["site"].to_numpy(),
            row,
            row if patient is None else patient.reindex(row).to_numpy(),
            label,
            score,
            {name: measure(name) for name in MEASURES},
        )

    def __len__(self) -> int:
        return len(self.row)

    def take(self, chosen: np.ndarray) -> "LabelledRows":
        measures = {name: measure[chosen] for name, measure in self.measures.items()}
        arrays = (array[chosen] for array in (self.site, self.row, self.patient, self.label, self.score))
        site, row, patient, label, score = arrays
        return LabelledRows(site, row, patient, label, score, measures)

    def at(self, site: str) -> "LabelledRows":
        return self.take(self.site == site)


@dataclass(frozen=True, eq=False)
class TrialRows(ABC):
    """One arm with one seed, or an ensemble of all of them."""

    seed: int
    validation: LabelledRows
    test: LabelledRows
    changed: Mapping[str, LabelledRows]  # test images inverted, and so on
    cut: np.ndarray | float  # the threshold of each finding, or of the positive class; of numbers no figure needs it
    task: Task

    @cached_property
    def sites(self) -> list[str]:
        return list(dict.fromkeys(self.test.site.tolist()))

    @abstractmethod
    def doubt(self, rows: LabelledRows) -> np.ndarray:
        """How unclear each row's prediction is, or each of its findings'. By it rows are referred."""

    @abstractmethod
    def answers_at(self, alpha: float) -> Answers | None:
        """Prediction sets of test rows; None for numbers, which have intervals."""


@dataclass(frozen=True, eq=False)
class SeedRows(TrialRows):
    """Of classes or findings."""

    task: ProbabilityTask

    @cached_property
    def temperatures(self) -> dict[str, Temperature]:
        """By site, from its own validation rows; 1 where they are too few, or show no other."""
        return {
            site: fit_temperature(self.task, own.label, own.score, own.patient)
            for site, own in ((site, self.validation.at(site)) for site in self.sites)
        }

    @cached_property
    def after(self) -> np.ndarray:
        """Test scores after each site's temperature."""
        scores = self.test.score.astype(np.float64)
        for site, temperature in self.temperatures.items():
            here = self.test.site == site
            scores[here] = temperature.of(self.test.score[here])
        return scores

    def doubt(self, rows: LabelledRows) -> np.ndarray:
        """In bits: entropy, for findings about their thresholds."""
        return doubt_of(self.task, rows.score, self.cut)

    @cached_property
    def predicted(self) -> np.ndarray:
        """Of test rows: class numbers, or 1 and 0 for each finding."""
        return predicted_labels(self.test.score, None if self.task.threshold_rule is None else self.cut)

    @cached_property
    def wrong(self) -> np.ndarray:
        """Of test rows: 1 where a prediction is wrong, 0 where it is right, -1 where the label is not known."""
        label = self.test.label
        return np.where(label >= 0, (self.predicted != label).astype(np.int64), -1)

    def cuts(self, alpha: float) -> dict[str, Cuts]:
        """By site, from its own validation rows."""
        own = {site: self.validation.at(site) for site in self.sites}
        return {site: fit_cuts(self.task, rows.label, rows.score, alpha) for site, rows in own.items()}

    def answers(self, cuts: Mapping[str, Cuts]) -> Answers:
        """Of each test row, by the cuts of its own site."""
        conformal = np.zeros(self.task.label_probabilities(self.test.score).shape, dtype=bool)
        for site, own in cuts.items():
            here = self.test.site == site
            conformal[here] = prediction_sets(self.task, own, self.test.score[here])
        return answers(conformal, self.predicted)

    def answers_at(self, alpha: float) -> Answers | None:
        return self.answers(self.cuts(alpha))


@dataclass(frozen=True, eq=False)
class NumberRows(TrialRows):
    """Of a number. `alpha` is the study's."""

    task: SummedTask
    alpha: float

    @cached_property
    def cuts(self) -> dict[str, IntervalCut]:
        """By site, from its own validation rows."""
        own = {site: self.validation.at(site) for site in self.sites}
        return {site: fit_interval_cut(self.task, rows.label, rows.score, self.alpha) for site, rows in own.items()}

    @property
    def has_passes(self) -> bool:
        return not bool(np.isnan(self.test.measures["spread"]).all())

    def doubt(self, rows: LabelledRows) -> np.ndarray:
        """In units: the spread of the passes, or without passes the width of the interval. 0 at a site without
        intervals, where nobody is referred for it."""
        if self.has_passes:
            return rows.measures["spread"]
        widths = np.zeros(len(rows))
        for site, cut in self.cuts.items():
            here = rows.site == site
            if not cut.why:
                widths[here] = interval_widths(self.task, cut, rows.score[here])
        return widths

    def answers_at(self, alpha: float) -> Answers | None:
        return None


Of = TypeVar("Of", bound=TrialRows)


def seeds_of(
    table: pd.DataFrame,
    groups: pd.DataFrame,
    ensemble: bool,
    threshold: float | str = CHOSEN,
    task: ProbabilityTask | None = None,
) -> Iterator[SeedRows]:
    """Of one arm. Seeds whose model has diverged are left out. `threshold` is the study's own, or "chosen". Without a
    `task` the columns tell which classes or findings there are."""
    task = probability_task(task_of(table)) if task is None else task
    return _trials(table, groups, ensemble, threshold, task, SeedRows)


def numbers_of(
    table: pd.DataFrame, groups: pd.DataFrame, ensemble: bool, task: SummedTask, alpha: float
) -> Iterator[NumberRows]:
    """Of one arm. Seeds whose model has diverged are left out."""
    return _trials(table, groups, ensemble, CHOSEN, task, partial(NumberRows, alpha=alpha))


def _trials(
    table: pd.DataFrame,
    groups: pd.DataFrame,
    ensemble: bool,
    threshold: float | str,
    task: Task,
    make: Callable[..., Of],
) -> Iterator[Of]:
    table = merge_members(table, task) if ensemble else table
    scores = score_columns(table)
    lost = table.loc[table[scores].isna().any(axis=1), "seed"].unique()
    table = table[~table["seed"].isin(lost)]
    test = table[table["subset"] == "test"]
    if not len(test):
        return
    validation = untested(table[table["subset"] == "validation"], test, groups)
    cuts = thresholds_of(threshold, validation, test, task)
    patient = patients_by_row(groups)
    for seed in sorted(map(int, test["seed"].unique())):
        mine = test[test["seed"] == seed]
        own = table[table["seed"] == seed]
        others = [subset for subset in own["subset"].unique() if subset not in SUBSETS]
        cut = _cut(cuts, str(mine["arm"].iloc[0]), seed, len(label_columns(table)))
        yield make(
            seed,
            LabelledRows.of(validation[validation["seed"] == seed], patient, task),
            LabelledRows.of(mine, patient, task),
            {subset: LabelledRows.of(own[own["subset"] == subset], patient, task) for subset in others},
            cut if task.findings else float(cut[0]),
            task,
        )


def sites_of(seeds: Sequence[TrialRows]) -> list[str]:
    return list(dict.fromkeys(site for rows in seeds for site in rows.sites))


def _cut(cuts: pd.DataFrame | None, arm: str, seed: int, findings: int) -> np.ndarray:
    if cuts is None:
        return np.full(findings, THRESHOLD)
    chosen = cuts.reindex(pd.MultiIndex.from_tuples([(arm, seed)])).to_numpy(dtype=np.float64)[0]
    return np.where(np.isnan(chosen), THRESHOLD, chosen)


def merge_members(table: pd.DataFrame, task: Task) -> pd.DataFrame:
    """The members of an ensemble as one model: each row's mean score over seeds, and their disagreement. The result
    has the first seed. A row without a score from a diverged member has none."""
    members = [part.sort_values(KEYS, kind="stable") for _, part in table.groupby("seed")]
    first = members[0].reset_index(drop=True)
    for member in members[1:]:
        if len(member) != len(first) or (member[KEYS].to_numpy() != first[KEYS].to_numpy()).any():
            raise ValueError("members of an ensemble have different rows")
    p = np.stack([labels_and_scores(member)[1].astype(np.float64) for member in members])
    fine = ~np.isnan(p.reshape(*p.shape[:2], -1)).any(axis=(0, 2))
    merged = of_passes(task, p[:, fine])
    for name, values in zip(("score", *MEASURES), merged, strict=True):
        own = [column for column in first.columns if column == name or column.startswith(f"{name}_")]
        first[own] = np.nan
        first.loc[fine, own] = values.reshape(len(values), -1)
    return first
