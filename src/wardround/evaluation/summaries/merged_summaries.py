"""Sites' summaries of their predictions, merged: figures over all sites without a row of any.

Sums add up, so that every metric that follows from them is what the predictions themselves would give, over the sites
that send what it needs. AUC compares the scores of each pair of a positive and a negative row: `score_histograms` says
how far it can be trusted.

Where a task has parts, as findings are, each is merged by itself, then averaged as in a simulation. A finding that no
test row has, or that every site withholds because too few patients have it, is left out of averages.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from wardround.evaluation.calibration_curves import (
    BINS,
    curves_of,
    decision_curve,
    reliability,
    score_histogram,
    wilson,
)
from wardround.evaluation.scores import (
    GROUP_RATES,
    Figures,
    GroupRates,
    Scores,
    Subgroups,
    group_rates_of,
    in_order,
)
from wardround.evaluation.summaries.residual_cells import residual_bins
from wardround.evaluation.summaries.score_histograms import cells_of, crosses_thresholds, merged_auc, spread_rows
from wardround.tasks import Task
from wardround.tasks.class_metrics import average

Summary = Mapping[str, Any]  # as `site_summary` makes it


@dataclass(frozen=True)
class Summaries:
    """By arm and seed, then site. What a site withheld altogether is left out."""

    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    lines: Mapping[tuple[str, int], Mapping[str, Summary]]
    task: Task

    @property
    def metric_names(self) -> tuple[str, ...]:
        return self.task.metric_names

    @property
    def findings(self) -> tuple[str, ...]:
        return tuple(self.task.parts)

    @cached_property
    def parts(self) -> dict[str, "Summaries"]:
        """The summaries of each part of the task. Sites that withheld it are left out."""
        return {name: self._part(name, task) for name, task in self.task.parts.items()}

    def _part(self, name: str, task: Task) -> "Summaries":
        by_key = {}
        for key, sites in self.lines.items():
            lines = {site: _line_of_part(line, name) for site, line in sites.items()}
            by_key[key] = {site: line for site, line in lines.items() if "suppressed" not in line}
        return Summaries(self.arms, self.seeds, by_key, task)

    def with_choices(self, choices: Iterable[Mapping[str, Any]]) -> "Summaries":
        """With the selected arms added: with each seed, the summaries of the chosen value."""
        lines, arms = dict(self.lines), list(self.arms)
        for choice in choices:
            for seed, arm in choice["chosen"].items():
                lines[choice["arm"], int(seed)] = self.lines.get((arm, int(seed)), {})
            if choice["chosen"]:
                arms.append(choice["arm"])
        return replace(self, arms=tuple(arms), lines=lines)

    def at(self, arm: str, seed: int) -> list[Summary]:
        return list(self.lines.get((arm, seed), {}).values())

    @cached_property
    def over_sites(self) -> dict[str, list[tuple[dict[str, float], float]]]:
        return {arm: [merge_summaries(self.task, self.at(arm, seed)) for seed in self.seeds] for arm in self.arms}

    @cached_property
    def overall(self) -> dict[str, Figures]:
        if self.parts:
            each = {arm: np.stack([part.overall[arm] for part in self.parts.values()]) for arm in self.arms}
            return {arm: self.task.figures_over_parts(figures) for arm, figures in each.items()}
        return {arm: np.array([self._row(figures) for figures, _ in lines]) for arm, lines in self.over_sites.items()}

    @cached_property
    def by_site(self) -> dict[str, dict[str, Figures]]:
        """Each site's own figures, of parts their means; sites that sent nothing about the arm are left out."""
        return {arm: self._means_by_site(arm) if self.parts else self._own_by_site(arm) for arm in self.arms}

    def _own_by_site(self, arm: str) -> dict[str, Figures]:
        of_seeds = [self.lines.get((arm, seed), {}) for seed in self.seeds]
        return {
            site: np.array([self._row(own_figures(self.task, lines.get(site)) or {}) for lines in of_seeds])
            for site in self.sites_of(arm)
        }

    def _means_by_site(self, arm: str) -> dict[str, Figures]:
        nothing = np.full((len(self.seeds), len(self.metric_names)), np.nan)
        parts = [part.by_site[arm] for part in self.parts.values()]
        return {
            site: average(np.stack([part.get(site, nothing) for part in parts]))
            for site in self.sites_of(arm)
            if any(site in part for part in parts)
        }

    def _row(self, figures: Mapping[str, float | None]) -> list[float]:
        """In the order of the task's metrics."""
        return [math.nan if (value := figures.get(name)) is None else value for name in self.metric_names]

    def sites_of(self, arm: str) -> list[str]:
        return list(dict.fromkeys(site for seed in self.seeds for site in self.lines.get((arm, seed), {})))

    def group_values(self) -> Iterator[tuple[str, list[str]]]:
        """Each kind of subgroup, such as sex, with the values that any site sent."""
        groups = [line.get("groups", {}) for sites in self.lines.values() for line in sites.values()]
        for kind in dict.fromkeys(kind for of_line in groups for kind in of_line):
            yield kind, in_order({value for of_line in groups for value in of_line.get(kind, {})})

    def subgroups(self) -> Iterator[Subgroups]:
        of_parts = [{group.kind: group for group in part.subgroups()} for part in self.parts.values()]
        for kind, values in self.group_values():
            shape = (len(self.arms), len(self.seeds), len(values))
            figures, rows = np.full((*shape, len(self.metric_names)), np.nan), np.zeros(shape, dtype=np.int64)
            for a, s, v in np.ndindex(shape):
                groups = [line.get("groups", {}).get(kind, {}) for line in self.at(self.arms[a], self.seeds[s])]
                told = [group[values[v]] for group in groups if values[v] in group]
                rows[a, s, v] = sum(group["rows"] for group in told)
                if not self.parts:
                    figures[a, s, v] = self._row(merge_summaries(self.task, told)[0])
            if self.parts:
                each = np.stack([figures] * len(of_parts))
                for part, of_kinds in zip(each, of_parts, strict=True):
                    for v, value in enumerate(of_kinds[kind].values if kind in of_kinds else ()):
                        part[:, :, values.index(value)] = of_kinds[kind].figures[:, :, v]
                figures = self.task.figures_over_parts(each)
            yield Subgroups(kind, values, figures, rows)

    def group_rates(self) -> Iterator[GroupRates]:
        """Of the sites that tell counts by class of a group: sums of their counts and of their scores."""
        for kind, values in self.group_values() if self.task.scored_by_class else ():
            shape = (len(self.arms), len(self.seeds), len(values))
            rates, rows = np.full((*shape, len(GROUP_RATES)), np.nan), np.zeros(shape, dtype=np.int64)
            for a, s, v in np.ndindex(shape):
                groups = [line.get("groups", {}).get(kind, {}) for line in self.at(self.arms[a], self.seeds[s])]
                told = [group[values[v]] for group in groups if values[v] in group]
                rows[a, s, v] = sum(group["rows"] for group in told)
                counted = [group for group in told if group.get("histogram") is not None]
                if counted and not any(group["diverged"] for group in told):
                    rates[a, s, v] = _rates(counted)
            yield GroupRates(kind, values, rates, rows)

    def auc_error_bound(self, arm: str) -> float | None:
        """Of parts the mean of their bounds: their mean AUC is wrong by this at most."""
        if self.parts:
            bounds = np.array([[bound for _, bound in part.over_sites[arm]] for part in self.parts.values()])
            there = ~np.isnan(bounds)
            means = np.where(there, bounds, 0).sum(axis=0) / np.maximum(there.sum(axis=0), 1)
            return float(means.max()) if there.any() else None
        known = [uncertain for _, uncertain in self.over_sites[arm] if not math.isnan(uncertain)]
        return max(known) if known else None

    def by_patient(self, arms: Iterable[str]) -> dict[str, tuple[np.ndarray, np.ndarray] | None]:
        return dict.fromkeys(arms)

    def at_site(self, site: str, arms: Sequence[str]) -> "Summaries":
        """What one site sent, of these arms."""
        own = {key: {site: lines[site]} for key, lines in self.lines.items() if key[0] in arms and site in lines}
        return Summaries(tuple(arms), self.seeds, own, self.task)

    def rows_tested(self, arm: str) -> int:
        """With the seed that has fewest."""
        return min((sum(line["rows"] for line in self.at(arm, seed)) for seed in self.seeds), default=0)

    def calibration(self, arm: str, bins: int = BINS) -> dict[str, Any] | None:
        """From the cells of histograms, or of residuals. The intervals of slope and intercept would need the rows."""
        if self.task.calibration == "linear":
            lines = self.converged(arm)
            cells = [cell for of_seed in lines for line in of_seed for cell in line["cells"]]
            whole = cells and len(lines) == len(self.seeds)
            return {"slope": None, "intercept": None, "bins": residual_bins(cells, bins)} if whole else None
        rows = self.rows_of_cells(arm)
        if rows is None or len(np.unique(rows[0])) < 2:
            return None
        points = reliability(*rows, bins)  # no patient is known: as if all seeds had tested the same ones
        known = [{**point, "interval": wilson(point["positive"], point["rows"] / len(self.seeds))} for point in points]
        return {"slope": None, "intercept": None, "bins": known}

    def score_histogram(self, arm: str) -> dict[str, Any] | None:
        """From the cells of the sites' histograms, where two classes have them."""
        rows = None if self.task.calibration != "logistic" else self.rows_of_cells(arm)
        return None if rows is None else score_histogram(*rows)

    def ranking(self, arm: str) -> dict[str, Any]:
        """From the cells of histograms, which sites send where there are two classes."""
        rows = None if self.task.calibration != "logistic" else self.rows_of_cells(arm, all_seeds=False)
        if rows is None:
            return {}
        positive, seeds = rows[0] == 1, max(1, len(self.converged(arm)))
        counts = {"rows": len(positive) / seeds, "positives": int(positive.sum()) / seeds}
        return {self.task.names[1]: {**counts, **curves_of(positive, rows[1])}}

    def decision_curve(self, arm: str) -> dict[str, Any] | None:
        """From the cells of histograms: exact, but for thresholds inside a cell that was merged of several bins."""
        rows = self.rows_of_cells(arm)
        curve = None if rows is None else decision_curve(*rows)
        return None if curve is None else {**curve, "interpolated": self._merged(arm)}

    def _with_cells(self, arm: str, all_seeds: bool = True) -> list[Summary]:
        """Over all seeds; none where the arm diverged with any, unless `all_seeds` is false, and none where rows have
        findings, which have scores of their own."""
        converged = self.converged(arm)
        if all_seeds and len(converged) < len(self.seeds):
            return []
        return [summary for lines in converged for summary in lines if summary.get("histogram") is not None]

    def converged(self, arm: str) -> list[list[Summary]]:
        """By seed, without those with which the arm diverged."""
        of_seeds = [self.at(arm, seed) for seed in self.seeds]
        return [lines for lines in of_seeds if not any(summary["diverged"] for summary in lines)]

    def rows_of_cells(self, arm: str, all_seeds: bool = True) -> tuple[np.ndarray, np.ndarray] | None:
        """Labels, and scores that each row would have if a cell's rows were evenly spread around their mean."""
        summaries = self._with_cells(arm, all_seeds)
        if not summaries:
            return None
        scores = [spread_rows(cells_of(summaries, number)) for number in (0, 1)]
        return np.repeat([0, 1], [len(part) for part in scores]), np.concatenate(scores)

    def _merged(self, arm: str) -> bool:
        return any(crosses_thresholds(cells_of(self._with_cells(arm), number)) for number in (0, 1))


def _rates(told: Sequence[Summary]) -> np.ndarray:
    """Of one group at these sites, as `GROUP_RATES` has them."""
    counts = [group["sums"]["confusion"][0] for group in told]
    tp, fp, fn = (sum(of_site[name] for of_site in counts) for name in ("tp", "fp", "fn"))
    score = math.fsum(cell["score_sum"] for group in told for cells in group["histogram"] for cell in cells)
    rows = sum(group["rows"] for group in told)
    return group_rates_of(*map(np.float64, (rows, tp + fn, tp + fp, tp, score)))


def merge_summaries(task: Task, summaries: Collection[Summary]) -> tuple[dict[str, float], float]:
    """Each metric over all these sites' rows, and by how much the AUC may be wrong. NaN where it cannot be computed."""
    figures = dict.fromkeys(task.metric_names, math.nan)
    if not summaries or any(summary["diverged"] for summary in summaries):
        return figures, math.nan
    if len(summaries) == 1:  # its own figures, for which it has every row
        known = own_figures(task, next(iter(summaries))) or {}
        figures |= {name: value for name, value in known.items() if value is not None}
        return figures, math.nan if math.isnan(figures.get("auc", math.nan)) else 0.0
    merged, bound = task.merged_figures(list(summaries)), math.nan
    if merged and task.scored_by_class:
        merged["auc"], bound = merged_auc([summary for summary in summaries if summary["histogram"] is not None])
    return figures | merged, bound


def own_figures(task: Task, line: Summary | None) -> Mapping[str, float | None] | None:
    """A site's own figures, of parts their means; None where it sends none."""
    if line is None or line.get("suppressed") or line["diverged"]:
        return None
    figures = task.figures_of_rows(line)
    return None if all(value is None for value in figures.values()) else figures


Scored = Scores | Summaries  # arms with their figures, computed from rows or from summaries


def gather_summaries(lines: Iterable[Summary], arms: Sequence[str], seeds: Iterable[int], task: Task) -> Summaries:
    """`lines` have `arm`, `seed` and `site` beside a summary. An arm without any line has no figures."""
    by_key: dict[tuple[str, int], dict[str, Summary]] = {}
    for line in lines:
        if line["arm"] in arms and not line.get("suppressed"):
            by_key.setdefault((line["arm"], line["seed"]), {})[line["site"]] = line
    return Summaries(tuple(arms), tuple(seeds), by_key, task)


def _line_of_part(line: Summary, name: str) -> Summary:
    """A line reduced to one part of the task."""
    if line["diverged"]:
        return {"rows": line["rows"], "diverged": True}
    groups = {
        kind: {value: part for value, group in values.items() if "suppressed" not in (part := group["findings"][name])}
        for kind, values in line["groups"].items()
    }
    return {**line["findings"][name], "groups": groups}
