"""Saved predictions as arrays, and the metrics of every arm, seed, site and subgroup among them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from wardround.evaluation.grouped import grouped_metrics
from wardround.study import METRICS

Figures = np.ndarray  # (seeds, metrics); NaN where a metric is not defined


def score_columns(predictions: pd.DataFrame) -> list[str]:
    several = [name for name in predictions.columns if name.startswith("score_")]
    return several or ["score"]


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
    label: np.ndarray
    score: np.ndarray  # (rows,) or (rows, classes)

    @classmethod
    def of(cls, predictions: pd.DataFrame) -> "Scores":
        arm, arms = pd.factorize(predictions["arm"])
        seed, seeds = pd.factorize(predictions["seed"], sort=True)
        site, sites = pd.factorize(predictions["site"])
        columns = score_columns(predictions)
        score = predictions[columns].to_numpy()
        return cls(
            tuple(map(str, arms)),
            tuple(int(value) for value in seeds),
            tuple(map(str, sites)),
            arm,
            seed,
            site,
            predictions["row"].to_numpy(),
            predictions["label"].to_numpy(),
            score[:, 0] if columns == ["score"] else score,
        )

    def with_patients(self, groups: pd.DataFrame) -> "Scores":
        """The same, with each row's patient in place of its number, where patients have several rows."""
        if "patient" not in groups or not len(groups):
            return self
        known = pd.Series(groups["patient"].to_numpy(), index=groups["row"])
        return replace(self, row=known.reindex(self.row).to_numpy())

    def of_arm(self, name: str) -> np.ndarray:
        """Places of the arm's rows."""
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
        found = grouped_metrics(self.trial, len(self.arms) * len(self.seeds), self.label, self.score)
        return dict(zip(self.arms, found.reshape(len(self.arms), len(self.seeds), -1), strict=True))

    @cached_property
    def by_site(self) -> dict[str, dict[str, Figures]]:
        """Arm, then site; sites without a row of the arm are left out."""
        found, rows = self._within(self.site, len(self.sites))
        return {
            arm: {site: found[a, :, s] for s, site in enumerate(self.sites) if rows[a, :, s].any()}
            for a, arm in enumerate(self.arms)
        }

    def by_group(self, value_of_row: Mapping[int, str], values: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Figures (arms, seeds, values, metrics) and row counts (arms, seeds, values) of subgroups."""
        number = {value: place for place, value in enumerate(values)}
        of_row = pd.Series(value_of_row).map(number)
        group = of_row.reindex(self.row).fillna(len(values)).to_numpy(dtype=np.int64)
        found, rows = self._within(group, len(values) + 1)  # the last: rows of no known group
        return found[:, :, :-1], rows[:, :, :-1]

    def _within(self, group: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        shape = (len(self.arms), len(self.seeds), count)
        number = self.trial * count + group
        size = int(np.prod(shape))
        figures = grouped_metrics(number, size, self.label, self.score)
        return figures.reshape(*shape, len(METRICS)), np.bincount(number, minlength=size).reshape(shape)
