"""Sites' summaries of predictions where a row may have several findings, put together: each finding as two classes are,
then averaged over findings as in a simulation.

A finding that no test row has, or that so few have at every site that nobody tells of them, is left out of averages.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from wardround.evaluation.findings import SHOWN_AT_SITES, curves_of
from wardround.evaluation.grouped import average
from wardround.evaluation.intervals import Resampling, summarise_metrics
from wardround.evaluation.metrics import NEED_POSITIVES, Counts
from wardround.evaluation.scores import Figures, Subgroups, in_order
from wardround.evaluation.summaries.merged_summaries import Summaries, Summary
from wardround.study.schema import METRICS

NEEDY = [METRICS.index(name) for name in NEED_POSITIVES]
SENSITIVITY, AUC, PR_AUC = (METRICS.index(name) for name in ("sensitivity", "auc", "pr_auc"))


@dataclass(frozen=True)
class FindingSummaries(Summaries):
    """`given` are whole lines, with a part for each of the findings."""

    names: tuple[str, ...] = ()

    @property
    def findings(self) -> tuple[str, ...]:
        return self.names

    @cached_property
    def each(self) -> dict[str, Summaries]:
        """What was told of each finding, as of rows of two classes. Sites that withheld it are left out."""
        found = {}
        for name in self.names:
            given = {}
            for key, sites in self.given.items():
                parts = {site: _part(line, name) for site, line in sites.items()}
                given[key] = {site: part for site, part in parts.items() if "suppressed" not in part}
            found[name] = Summaries(self.arms, self.seeds, given)
        return found

    @cached_property
    def overall(self) -> dict[str, Figures]:
        return {arm: _averaged(np.stack([self.of_finding(name, arm) for name in self.names])) for arm in self.arms}

    def of_finding(self, name: str, arm: str) -> Figures:
        return _defined(self.each[name].overall[arm])

    @cached_property
    def by_site(self) -> dict[str, dict[str, Figures]]:
        """Each site's own means over the findings that it tells of; sites that tell of none are left out."""
        nothing = np.full((len(self.seeds), len(METRICS)), np.nan)
        found: dict[str, dict[str, Figures]] = {}
        for arm in self.arms:
            parts = [one.by_site[arm] for one in self.each.values()]
            sites = dict.fromkeys(site for seed in self.seeds for site in self.given.get((arm, seed), {}))
            found[arm] = {
                site: average(np.stack([part.get(site, nothing) for part in parts]))
                for site in sites
                if any(site in part for part in parts)
            }
        return found

    def subgroups(self) -> Iterator[Subgroups]:
        parts = [{part.kind: part for part in one.subgroups()} for one in self.each.values()]
        told = [line.get("groups", {}) for sites in self.given.values() for line in sites.values()]
        for kind in dict.fromkeys(kind for groups in told for kind in groups):
            values = in_order({value for groups in told for value in groups.get(kind, {})})
            rows = np.zeros((len(self.arms), len(self.seeds), len(values)), dtype=np.int64)
            for (arm, seed), sites in self.given.items():
                for line in sites.values():
                    for value, one in line.get("groups", {}).get(kind, {}).items():
                        rows[self.arms.index(arm), self.seeds.index(seed), values.index(value)] += one["rows"]
            figures = np.full((len(self.names), *rows.shape, len(METRICS)), np.nan)
            for f, part in enumerate(parts):
                if kind in part:
                    for v, value in enumerate(part[kind].values):
                        figures[f, :, :, values.index(value)] = _defined(part[kind].figures[:, :, v])
            yield Subgroups(kind, values, _averaged(figures), rows)

    def auc_uncertain_by(self, arm: str) -> float | None:
        """The mean of what findings' AUCs may be wrong by: so far at most is their mean."""
        bounds = np.array([[bound for _, bound in one.over_sites[arm]] for one in self.each.values()])
        known = ~np.isnan(bounds)
        if not known.any():
            return None
        means = np.where(known, bounds, 0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
        return float(means.max())

    def calibration(self, arm: str) -> dict[str, Any] | None:
        """None, as in a simulation: findings have scores of their own."""
        return None

    def decision_curve(self, arm: str) -> dict[str, Any] | None:
        return None


def put_together(
    lines: Iterable[Summary], arms: Sequence[str], seeds: Iterable[int], findings: Sequence[str] = ()
) -> Summaries:
    """Lines put together; `findings` are named where rows may have several."""
    made = Summaries.of(lines, arms, seeds)
    return FindingSummaries(made.arms, made.seeds, made.given, tuple(findings)) if findings else made


def own_metrics(line: Summary) -> Mapping[str, float | None] | None:
    """A site's own figures, of findings their means; None where it tells none."""
    if "findings" not in line:
        return line.get("metrics")
    told = [part["metrics"] for part in line["findings"].values() if "metrics" in part]
    if not told:
        return None
    known = {name: [one[name] for one in told if one[name] is not None] for name in METRICS}
    return {name: math.fsum(values) / len(values) if values else None for name, values in known.items()}


def describe_told(scores: FindingSummaries, arm: str, resampling: Resampling) -> dict[str, Any]:
    """As `describe_findings`, over the sites that tell: None for what none of them does. Thresholds stay at the sites,
    and curves are drawn from histograms. Rows and calls are of the same sites, those of one seed, on average over the
    seeds in which any tells."""
    found = {}
    for name, one in scores.each.items():
        lines = [one.at(arm, seed) for seed in one.seeds]
        sound = [told for told in lines if not any(line["diverged"] for line in told)]
        telling = [told for told in ([line for line in told if line["sums"]] for told in sound) if told]
        whole = _counted([line for told in telling for line in told], len(telling))
        rows = one.rows_of_cells(arm, every_seed=False)
        found[name] = {
            "rows": sum(line["rows"] for told in telling for line in told) / max(1, len(telling)),
            "positives": _positives(whole),
            "threshold": {"mean": None, "chosen": bool(telling) and all(line["chosen"] for t in telling for line in t)},
            "confusion": whole,
            "metrics": summarise_metrics(scores.of_finding(name, arm), resampling),
            "sites": {
                site: {
                    "positives": _positives(_at_site(one, arm, site)),
                    "metrics": summarise_metrics(figures, resampling, SHOWN_AT_SITES),
                }
                for site, figures in one.by_site[arm].items()
            },
            **({"roc": None, "pr": None} if rows is None else curves_of(rows[0] == 1, rows[1])),
        }
    return found


def _part(line: Summary, name: str) -> Summary:
    """A line as if the finding were all that there is."""
    if line["diverged"]:
        return {"rows": line["rows"], "diverged": True}
    groups = {
        kind: {value: told for value, one in values.items() if "suppressed" not in (told := one["findings"][name])}
        for kind, values in line["groups"].items()
    }
    return {**line["findings"][name], "groups": groups}


def _defined(figures: np.ndarray) -> np.ndarray:
    """Without what says nothing of a finding that no row has."""
    made = figures.copy()
    without = np.isnan(figures[..., SENSITIVITY])
    for place in NEEDY:
        made[..., place] = np.where(without, np.nan, made[..., place])
    return made


def _averaged(each: np.ndarray) -> np.ndarray:
    """Over findings. PR-AUC is known of findings that one site alone tells of: their mean would be of other findings
    than the mean AUC, so that there is none unless all have one."""
    made = average(each)
    lacking = (np.isnan(each[..., PR_AUC]) & ~np.isnan(each[..., AUC])).any(axis=0)
    made[..., PR_AUC] = np.where(lacking, np.nan, made[..., PR_AUC])
    return made


def _at_site(told: Summaries, arm: str, site: str) -> dict[str, float] | None:
    """Calls at a site, on average over the seeds in which it tells them."""
    lines = [told.given.get((arm, seed), {}).get(site) for seed in told.seeds]
    telling = [line for line in lines if line is not None and not line["diverged"] and line["sums"]]
    return _counted(telling, len(telling))


def _counted(telling: Sequence[Summary], seeds: int) -> dict[str, float] | None:
    """Right and wrong calls in one seed."""
    if not telling:
        return None
    return {cell: sum(line["sums"]["confusion"][0][cell] for line in telling) / seeds for cell in Counts._fields}


def _positives(confusion: Mapping[str, float] | None) -> float | None:
    return None if confusion is None else confusion["tp"] + confusion["fn"]
