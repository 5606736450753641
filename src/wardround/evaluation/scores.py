"""What results are computed from: saved predictions as arrays (in `summaries`: what sites send in their place)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from wardround.evaluation.calibration_curves import BINS, calibration_of, decision_curve_of, ranking_of, score_histogram
from wardround.tasks import Task, class_task, findings_task
from wardround.tasks.class_metrics import SMALLEST_CLASS, SMALLEST_GROUP, THRESHOLD, average

Figures = np.ndarray  # (seeds, metrics); NaN where a metric is not defined


class Subgroups(NamedTuple):
    kind: str
    values: list[str]
    figures: np.ndarray  # (arms, seeds, values, metrics)
    rows: np.ndarray  # (arms, seeds, values)


GROUP_RATES = ("sensitivity", "selection_rate", "calibration")  # in which groups are compared, where two classes are


class GroupRates(NamedTuple):
    """`calibration` is predicted less observed risk. NaN where too few rows are in the group, or of a class in it."""

    kind: str
    values: list[str]
    rates: np.ndarray  # (arms, seeds, values, rates)
    rows: np.ndarray  # (arms, seeds, values)


def group_rates_of(rows: Any, positive: Any, called: Any, right: Any, score: Any) -> np.ndarray:
    """From counts of rows, of those of the positive class, of those called so and of those rightly, and the sum of
    scores; the rates stand along the last axis."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.stack([right / positive, called / rows, (score - positive) / rows], axis=-1)


def within_sites(by_site: Mapping[str, Figures], metrics: int) -> Figures:
    """Each metric's mean over the sites where it is defined; every site counts the same.

    Where sites predict with models of their own, scores of two sites cannot be ranked against each other: an AUC over
    all rows would also reward a model for knowing which site, with which prevalence, a patient is at.
    """
    if not by_site:  # all sites withhold their figures
        return np.full((1, metrics), np.nan)
    return average(np.stack(list(by_site.values())))


def in_order(values: Iterable[str]) -> list[str]:
    """Values of a subgroup as a table lists them: the lowest age band first."""
    return sorted(values, key=lambda value: (not value.startswith("below"), value))


def score_columns(predictions: pd.DataFrame) -> list[str]:
    by_class = [name for name in predictions.columns if name.startswith("score_")]
    return by_class or ["score"]


def label_columns(predictions: pd.DataFrame) -> list[str]:
    findings = [name for name in predictions.columns if name.startswith("label_")]
    return findings or ["label"]


def labels_and_scores(table: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """In one column each, or one for each finding or class."""
    labels, scores = label_columns(table), score_columns(table)
    label = table["label" if labels == ["label"] else labels].to_numpy()
    return label, table["score" if scores == ["score"] else scores].to_numpy()


def task_of(predictions: pd.DataFrame) -> Task:
    """Classes or findings, by the names of the columns."""
    labels, scores = label_columns(predictions), score_columns(predictions)
    if labels != ["label"]:
        return findings_task([name.removeprefix("label_") for name in labels])
    return class_task(2 if scores == ["score"] else [name.removeprefix("score_") for name in scores])


@dataclass(frozen=True)
class Scores:
    """Columns of a predictions file. Arms, seeds and sites are numbered in the order of `arms`, `seeds` and `sites`."""

    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    sites: tuple[str, ...]
    arm: np.ndarray
    seed: np.ndarray
    site: np.ndarray
    row: np.ndarray
    label: np.ndarray  # (rows,) or (rows, findings)
    score: np.ndarray  # (rows,), (rows, classes) or (rows, findings)
    task: Task
    groups: pd.DataFrame | None = None  # of the rows' patients
    # (rows,) or (rows, findings): chosen on validation rows, or fixed; NaN where none was. None for multiclass
    own_thresholds: np.ndarray | None = None
    fixed: bool = False  # whether the study fixes the thresholds, so that none was chosen

    @classmethod
    def of(
        cls,
        predictions: pd.DataFrame,
        groups: pd.DataFrame | None = None,
        thresholds: pd.DataFrame | None = None,
        fixed: bool = False,
        task: Task | None = None,
    ) -> "Scores":
        """`thresholds` come from `thresholds.choose_thresholds`, or are `fixed` by the study. Without a `task` the
        columns tell which classes or findings there are."""
        arm, arms = pd.factorize(predictions["arm"])
        seed, seeds = pd.factorize(predictions["seed"], sort=True)
        site, sites = pd.factorize(predictions["site"])
        label, score = labels_and_scores(predictions)
        task = task_of(predictions) if task is None else task
        return cls(
            tuple(map(str, arms)),
            tuple(int(value) for value in seeds),
            tuple(map(str, sites)),
            arm,
            seed,
            site,
            predictions["row"].to_numpy(),
            label,
            score,
            task,
            groups,
            None if thresholds is None else _for_rows(thresholds, predictions, task.answers == "findings"),
            fixed,
        )

    @property
    def metric_names(self) -> tuple[str, ...]:
        return self.task.metric_names

    @property
    def findings(self) -> tuple[str, ...]:
        """Their names, where a row may have several."""
        return self.task.findings

    @cached_property
    def chosen(self) -> np.ndarray:
        """(rows,) or (rows, findings): whether a threshold was chosen."""
        if self.fixed or self.own_thresholds is None:
            return np.zeros(self.score.shape, dtype=bool)
        return np.asarray(~np.isnan(self.own_thresholds))

    @cached_property
    def thresholds(self) -> np.ndarray:
        """(rows,) or (rows, findings): the least score at which the positive class, or a finding, is predicted."""
        if self.own_thresholds is None:
            return np.full(self.score.shape, THRESHOLD)
        return np.where(np.isnan(self.own_thresholds), THRESHOLD, self.own_thresholds)

    @cached_property
    def predicted(self) -> np.ndarray:
        """The predicted class of each row; for findings, whether each is predicted; the predicted number."""
        return self.task.predicted(self.score, self.thresholds)

    @cached_property
    def patient(self) -> np.ndarray:
        """Each row's patient, if groups name patients; else the row's number."""
        patients = patients_by_row(self.groups)
        return self.row if patients is None else patients.reindex(self.row).to_numpy()

    def at_site(self, site: str, arms: Sequence[str]) -> "Scores":
        """The rows of one site, under these arms."""
        number = np.full(len(self.arms), -1)
        number[[self.arms.index(arm) for arm in arms]] = np.arange(len(arms))
        kept = (self.site == self.sites.index(site)) & (number[self.arm] >= 0)
        columns = ("seed", "row", "label", "score")
        return replace(
            self,
            arms=tuple(arms),
            sites=(site,),
            arm=number[self.arm[kept]],
            site=np.zeros(kept.sum(), dtype=self.site.dtype),
            own_thresholds=None if self.own_thresholds is None else self.own_thresholds[kept],
            **{name: getattr(self, name)[kept] for name in columns},
        )

    def rows_tested(self, arm: str) -> int:
        """With the seed that has fewest."""
        counts = np.unique(self.seed[self.of_arm(arm)], return_counts=True)[1]
        return int(counts.min()) if len(counts) else 0

    def of_arm(self, name: str) -> np.ndarray:
        return self._places[self.arms.index(name)]

    @cached_property
    def _places(self) -> list[np.ndarray]:
        order = np.argsort(self.arm, kind="stable")
        return np.split(order, np.searchsorted(self.arm[order], np.arange(1, len(self.arms))))

    @cached_property
    def trial(self) -> np.ndarray:
        """Each row's arm and seed as one number."""
        return np.asarray(self.arm * len(self.seeds) + self.seed)

    @cached_property
    def overall(self) -> dict[str, Figures]:
        """By arm, over all sites' rows together."""
        figures = self._figures(self.trial, len(self.arms) * len(self.seeds))
        return dict(zip(self.arms, figures.reshape(len(self.arms), len(self.seeds), -1), strict=True))

    @cached_property
    def by_site(self) -> dict[str, dict[str, Figures]]:
        """Arm, then site; sites without a row of the arm are left out."""
        figures, rows = self._within(self.site, len(self.sites))
        return {
            arm: {site: figures[a, :, s] for s, site in enumerate(self.sites) if rows[a, :, s].any()}
            for a, arm in enumerate(self.arms)
        }

    def by_group(self, value_of_row: Mapping[int, str], values: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Figures (arms, seeds, values, metrics) and row counts (arms, seeds, values) of subgroups."""
        figures, rows = self._within(self._group_of_rows(value_of_row, values), len(values) + 1)
        return figures[:, :, :-1], rows[:, :, :-1]

    def _group_of_rows(self, value_of_row: Mapping[int, str], values: Sequence[str]) -> np.ndarray:
        """The place of each row's group among `values`; of rows of unknown group, the one after the last."""
        numbers = pd.Series(value_of_row).map({value: place for place, value in enumerate(values)})
        return numbers.reindex(self.row).fillna(len(values)).to_numpy(dtype=np.int64)

    def _kinds(self) -> Iterator[tuple[str, dict[int, str], list[str]]]:
        """Each kind of group, with the value of each row and all values."""
        groups = pd.DataFrame() if self.groups is None else self.groups
        for kind in (name for name in groups.columns if name not in ("row", "patient") and len(groups)):
            known = groups.dropna(subset=[kind])
            values = in_order(known[kind].unique().tolist())
            yield str(kind), dict(zip(known["row"].tolist(), known[kind].tolist(), strict=True)), values

    def group_rates(self) -> Iterator[GroupRates]:
        """Of each kind of group, where one class of two is predicted."""
        if not self.task.scored_by_class:
            return
        positive, called = self.label == 1, self.predicted == 1
        columns = (np.ones(len(self.row)), positive, called, positive & called, self.score)
        for kind, value_of_row, values in self._kinds():
            shape = (len(self.arms), len(self.seeds), len(values) + 1)
            number = self.trial * shape[-1] + self._group_of_rows(value_of_row, values)
            sums = [np.bincount(number, column, int(np.prod(shape))).reshape(shape)[:, :, :-1] for column in columns]
            rates, rows = group_rates_of(*sums), sums[0].astype(np.int64)
            rates[rows < SMALLEST_GROUP] = np.nan
            rates[np.isnan(sums[-1])] = np.nan  # a model that has diverged
            # on average over seeds, so that those that happen to test few events do not drop out of a mean
            events = self._class_counts(value_of_row, values).mean(axis=1)
            few = ((events > 0) & (events < SMALLEST_CLASS)).any(axis=-1)[:, None]
            for by_class in ("sensitivity", "calibration"):
                rates[np.broadcast_to(few, rows.shape), GROUP_RATES.index(by_class)] = np.nan
            yield GroupRates(kind, values, rates, rows)

    def subgroups(self) -> Iterator[Subgroups]:
        for kind, value_of_row, values in self._kinds():
            figures, rows = self.by_group(value_of_row, values)
            by_class = [metric for metric, facts in enumerate(self.task.metrics) if not facts.over_rows]
            figures[..., by_class] = np.where(
                self._has_small_class(value_of_row, values)[..., None], np.nan, figures[..., by_class]
            )
            yield Subgroups(kind, values, figures, rows)

    def _has_small_class(self, value_of_row: Mapping[int, str], values: Sequence[str]) -> np.ndarray:
        """(arms, seeds, values): whether a class has rows, but fewer than SMALLEST_CLASS. Figures by class would be
        about single patients then: an AUC of one death tells how that patient was ranked."""
        if self.task.answers != "class":
            return np.zeros((len(self.arms), len(self.seeds), len(values)), dtype=bool)
        counts = self._class_counts(value_of_row, values)
        return np.asarray(((counts > 0) & (counts < SMALLEST_CLASS)).any(axis=-1))

    def _class_counts(self, value_of_row: Mapping[int, str], values: Sequence[str]) -> np.ndarray:
        """(arms, seeds, values, classes): rows."""
        group = self._group_of_rows(value_of_row, values)
        shape = (len(self.arms), len(self.seeds), len(values) + 1, len(self.task.names))
        number = np.ravel_multi_index((self.arm, self.seed, group, self.label.astype(np.int64)), shape)
        return np.bincount(number, minlength=int(np.prod(shape))).reshape(shape)[:, :, :-1]

    def calibration(self, arm: str, bins: int = BINS) -> dict[str, Any] | None:
        places = self.of_arm(arm)
        return calibration_of(self.task, self.label[places], self.score[places], self.patient[places], bins)

    def decision_curve(self, arm: str) -> dict[str, Any] | None:
        places = self.of_arm(arm)
        return decision_curve_of(self.task, self.label[places], self.score[places])

    def score_histogram(self, arm: str) -> dict[str, Any] | None:
        """Where a prediction is one probability."""
        places = self.of_arm(arm)
        return score_histogram(self.label[places], self.score[places]) if self.task.calibration == "logistic" else None

    def ranking(self, arm: str) -> dict[str, Any]:
        places = self.of_arm(arm)
        return ranking_of(self.task, self.label[places], self.score[places], self.seed[places], len(self.seeds))

    def auc_error_bound(self, arm: str) -> float | None:
        """By how much its AUC over all sites may be wrong with any seed; None where there is none."""
        ranked = [place for place, metric in enumerate(self.task.metrics) if metric.ranked][:1]
        return None if np.isnan(self.overall[arm][:, ranked]).all() else 0.0

    def by_patient(self, arms: Iterable[str]) -> dict[str, tuple[np.ndarray, np.ndarray] | None]:
        """For each arm, what the task's `curve` is the mean of, summed over each patient's rows, and the rows; None
        where a model has diverged, and where it is no mean over rows."""
        patients, number = np.unique(self.patient, return_inverse=True)
        of_arms: dict[str, tuple[np.ndarray, np.ndarray] | None] = dict.fromkeys(arms)
        for arm in of_arms:
            places = self.of_arm(arm)
            label, score = self.label[places], self.score[places]
            values = None if np.isnan(score).any() else self.task.row_values(label, score, self.thresholds[places])
            if values is not None:
                sums = np.bincount(number[places], weights=values, minlength=len(patients))
                of_arms[arm] = sums, np.bincount(number[places], minlength=len(patients)).astype(float)
        return of_arms

    def _within(self, group: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        shape = (len(self.arms), len(self.seeds), count)
        number = self.trial * count + group
        size = int(np.prod(shape))
        figures = self._figures(number, size)
        return figures.reshape(*shape, -1), np.bincount(number, minlength=size).reshape(shape)

    def _figures(self, group: np.ndarray, count: int) -> np.ndarray:
        return self.task.grouped_figures(group, count, self.label, self.score, self.thresholds)


def patients_by_row(groups: pd.DataFrame | None) -> pd.Series | None:
    """The patient of each row number; None where groups do not name patients."""
    if groups is None or "patient" not in groups or not len(groups):
        return None
    return pd.Series(groups["patient"].to_numpy(), index=groups["row"])


def _for_rows(thresholds: pd.DataFrame, predictions: pd.DataFrame, findings: bool) -> np.ndarray:
    of_rows = thresholds.reindex(pd.MultiIndex.from_frame(predictions[["arm", "seed"]])).to_numpy(dtype=np.float64)
    return of_rows if findings else of_rows[:, 0]
