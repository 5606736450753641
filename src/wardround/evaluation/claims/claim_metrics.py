"""Our figures for claims: each metric that a claim may be about, as a function of the results so far.

A metric is measured for an arm, for an arm and the one that it is compared with, or for sites; a statistic reduces it
to one figure. `wardround.study.claims` lists what a claim may name.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy import stats

from wardround.evaluation.intervals import CONFIDENCE
from wardround.evaluation.summaries.merged_summaries import Scored
from wardround.study.schema import Study
from wardround.tasks import METRIC_FACTS, TASKS
from wardround.tasks.class_metrics import defined_mean

STEADY = 1.05  # a seed's time over the fastest one's, in the middle of them: times that vary more tell of the machine
ROLES = ("train", "validation", "test")  # of rows, in the counts of a site
TIMED_ALONE = ("serial", "split")  # engines that train one arm with one seed at a time


@dataclass(frozen=True)
class Material:
    """What claims are judged by: `arms` are the results so far, `sites` the descriptions of the study's sites."""

    study: Study
    scores: Scored
    arms: Mapping[str, Any]
    sites: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Measured:
    """One value for each seed; for each site, or pair of sites; or one in all."""

    seeds: np.ndarray | None = None
    parts: tuple[float, ...] = ()
    value: float | None = None
    unknown: str = ""  # why there is none, where there is more to say than that


Measure = Callable[[Material, Sequence[str], str], Measured]  # arms and a site; "" is all of them


def statistic_of(measured: Measured, statistic: str) -> float | None:
    seeds = np.array([]) if measured.seeds is None else measured.seeds[~np.isnan(measured.seeds)]
    parts = np.array(measured.parts)
    if statistic == "sd":
        return float(seeds.std(ddof=1)) if len(seeds) > 1 else None
    if statistic == "mean" and measured.value is not None:
        return measured.value
    if statistic == "mean" and measured.seeds is not None:
        return float(seeds.mean()) if len(seeds) else None
    if not len(parts) or np.isnan(parts).any():
        return None
    if statistic == "spread":
        return float(parts.std(ddof=1)) if len(parts) > 1 else None
    figures = {"mean": parts.mean(), "lowest": parts.min(), "highest": parts.max(), "range": np.ptp(parts)}
    return float(figures[statistic])


def _scored(material: Material, arms: Sequence[str], site: str, metric: str) -> Measured:
    """On test rows. The mean over seeds at each site are its parts."""
    place, (arm,) = material.scores.metric_names.index(metric), arms
    by_site = {name: figures[:, place] for name, figures in material.scores.by_site[arm].items()}
    if site and site not in by_site:
        return Measured(unknown=_no_site(site))
    parts = tuple(defined_mean(line) for line in by_site.values())
    return Measured(by_site[site] if site else material.scores.overall[arm][:, place], parts)


def _of_arm(material: Material, arms: Sequence[str], site: str, path: Sequence[str]) -> Measured:
    value = material.arms[arms[0]]
    for key in path:
        value = value.get(key)
    return Measured(value=value)


def _seconds(material: Material, arms: Sequence[str], site: str) -> Measured:
    """Of the fastest seed: whatever else a machine does only adds to it. Nothing where it did much else."""
    cost = material.arms[arms[0]]["cost"]
    if cost.get("engine") not in TIMED_ALONE:
        why = "arms and seeds that train at the same time share it; `--engine serial` trains one after the other"
        return Measured(unknown=f"the time of one arm is not known: {why}")
    fastest, median = cost["seed_seconds"]["fastest"], cost["seed_seconds"]["median"]
    if median > STEADY * fastest:
        why = f"half of the seeds took {100 * (median / fastest - 1):.0f} % longer than the fastest, or more"
        return Measured(unknown=f"the machine was busy with other work: {why}")
    return Measured(value=fastest)


def _two_samples(material: Material, arms: Sequence[str], site: str, figure: str) -> Measured:
    """Student's test of two independent samples, as papers print it."""
    lines = [
        material.scores.overall[name][:, material.scores.metric_names.index(material.scores.task.curve)]
        for name in arms
    ]
    a, b = (line[~np.isnan(line)] for line in lines)
    freedom = len(a) + len(b) - 2
    if min(len(a), len(b)) < 2:
        return Measured()
    pooled = ((len(a) - 1) * a.var(ddof=1) + (len(b) - 1) * b.var(ddof=1)) / freedom
    error = float(np.sqrt(pooled * (1 / len(a) + 1 / len(b))))
    if not error > 0:
        return Measured()
    difference = float(a.mean() - b.mean())
    t, half = difference / error, float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * error
    figures = {
        "t": t,
        "p_value": float(2 * stats.t.sf(abs(t), freedom)),
        "interval_low": difference - half,
        "interval_high": difference + half,
    }
    return Measured(value=figures[figure])


def _described(material: Material, arms: Sequence[str]) -> Mapping[str, Any]:
    """The sites of these arms, or the study's first where a claim names none."""
    named = [described for described in material.sites if set(arms) & set(described["arms"])]
    return (named or material.sites)[0]


def _rows(material: Material, arms: Sequence[str], site: str) -> Measured:
    if not site:
        return Measured(value=float(_described(material, arms)["rows"]))
    return _of_sites(material, arms, site, lambda counts: float(sum(counts[role] for role in ROLES)))


def _between_sites(material: Material, arms: Sequence[str], site: str, measure: str) -> Measured:
    heterogeneity = _described(material, arms)["heterogeneity"]
    pairs = [pair.get(measure) for pair in heterogeneity.get("pairs", ())]
    return Measured(value=heterogeneity[measure], parts=() if None in pairs else tuple(pairs))


def _of_sites(
    material: Material, arms: Sequence[str], site: str, read: Callable[[Mapping[str, Any]], float | None]
) -> Measured:
    described = _described(material, arms)["sites"]
    if site and site not in described:
        return Measured(unknown=_no_site(site))
    values = {name: read(counts) for name, counts in described.items()}
    if site:
        return Measured(value=values[site])
    known = tuple(value for value in values.values() if value is not None)
    return Measured(parts=known if len(known) == len(values) else ())


def _prevalence(counts: Mapping[str, Any]) -> float | None:
    """Of the second of two classes."""
    classes = list(counts["classes"].values())
    return classes[1] / sum(classes) if len(classes) == 2 and None not in classes and sum(classes) else None


def _no_site(site: str) -> str:
    return f"no site is called {site}"


MEASURES: dict[str, Measure] = {
    **{metric: partial(_scored, metric=metric) for metric in METRIC_FACTS},
    **{
        figure: partial(_of_arm, path=("final", figure))
        for figure in dict.fromkeys(name for task in TASKS.values() for name in task.after_training())
    },
    "bytes": partial(_of_arm, path=("cost", "bytes")),
    "seconds": _seconds,
    "rounds": partial(_of_arm, path=("convergence", "rounds_to_95_percent", "mean")),
    "weight_change": partial(_of_arm, path=("convergence", "mean_change")),
    **{figure: partial(_two_samples, figure=figure) for figure in ("t", "p_value", "interval_low", "interval_high")},
    "rows": _rows,
    **{measure: partial(_between_sites, measure=measure) for measure in ("gini", "js", "kl", "mmd")},
    "age": partial(_of_sites, read=lambda counts: (counts.get("age") or {}).get("mean")),
    "prevalence": partial(_of_sites, read=_prevalence),
}
