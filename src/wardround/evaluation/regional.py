"""Regions of a hierarchical federation: each region's own model next to the global model, and the cost of every link.

A region's own model is the one it had before the last average over regions. Both are scored on the test rows of
the region's sites, so that they are compared on the same patients.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from wardround.algorithms.regions import region_of_each, with_only
from wardround.evaluation.comparisons.benefit import origin_of
from wardround.evaluation.comparisons.paired import Comparison, compare_pairs, compare_predictions, topologies_of
from wardround.evaluation.intervals import Resampling
from wardround.evaluation.prediction import SitePrediction, scores_of
from wardround.evaluation.scores import Figures, Scores
from wardround.evaluation.summaries.merged_summaries import Summaries, Summary
from wardround.study.schema import Arm, Study
from wardround.tasks import Task
from wardround.training.rounds import site_model
from wardround.training.trial import Run, Trial

REGIONAL = "regional"  # the `subset` of a site's summary of its test rows by its region's own model
SCORED = ("test", "metrics", "auc_error_bound", "difference")  # not known before models are scored
LINK = ("messages_down", "messages_up", "bytes_down", "bytes_up")


def predict_regional(trial: Trial, run: Run) -> list[SitePrediction]:
    """Each training site's test rows by its region's own model; none where there are no regions."""
    if trial.algorithm.regions is None:
        return []
    scored = {site.name: site for site in trial.scored}
    return [
        SitePrediction(
            site.name,
            scored[site.name].test_rows,
            *scores_of(trial, site_model(trial, run, number, regional=True), scored[site.name].test),
            task=trial.model.task,
        )
        for number, site in enumerate(trial.sites)
        if site.name in scored
    ]


def describe_regions(arm: Arm, records: pd.DataFrame, sites: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """An arm's regions with their sites and training rows, and its cost. `sites` describes each set of sites."""
    described: Mapping[str, Any] = next((group["sites"] for group in sites if arm.name in group["arms"]), {})
    where = f"arms: {arm.name}: topology: regions"
    present = with_only(arm.topology.regions, list(described))  # in a deployment a site may be missing
    region_of = region_of_each(present, list(described), where) if described else {}
    trains = {site: region for site, region in region_of.items() if not arm.train_at or site in arm.train_at}
    regions = {}
    for name in arm.topology.regions:
        members = [site for site, region in trains.items() if region == name]
        if members:
            rows = [described[site]["train"] for site in members]
            regions[name] = {"sites": members, "train": sum(rows), **dict.fromkeys(SCORED), "withheld": []}
    return {
        "kind": "hierarchical",
        "regional_rounds": arm.topology.regional_rounds,
        "global_rounds": int(records["round"].max()) // arm.topology.regional_rounds,
        "regions": regions,
        "cost": cost_of_links(records),
    }


def cost_of_links(records: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Of one seed, on average: what each kind of link carried, and what a flat federation would have carried.

    In a flat federation with as many rounds the same messages travel between the sites and the one coordinator.
    """
    seeds = records["seed"].nunique()
    worked = records["sites"].map(len)
    requested = worked + records["dropped"].map(len)
    at_sites = [
        float(np.sum(column)) / seeds for column in (requested, worked, records["bytes_down"], records["bytes_up"])
    ]
    between = [_pairs(records, name) / seeds for name in ("region_messages", "region_bytes")]
    return {
        "site_region": dict(zip(LINK, at_sites, strict=True)),
        "region_global": dict(zip(LINK, np.concatenate(between).tolist(), strict=True)),
        "flat": dict(zip(LINK, at_sites, strict=True)),
    }


def _pairs(records: pd.DataFrame, name: str) -> np.ndarray:
    """The sums over rounds of what went down and of what came up."""
    return np.asarray(np.sum([np.asarray(pair, dtype=float) for pair in records[name]], axis=0))


def score_regions(
    content: dict[str, Any],
    study: Study,
    predictions: pd.DataFrame,
    regional: pd.DataFrame,
    groups: pd.DataFrame | None,
    thresholds: pd.DataFrame | None,
    task: Task | None = None,
) -> dict[str, Any]:
    """`content` with the figures of both models in each region, and their paired difference.

    `predictions` are of the global model, `regional` of the regions' own; both have the selected arms already. Both
    models use the same threshold.
    """
    topologies = topologies_of(content, "hierarchical")
    own, of_all = (_by_region(table, topologies, groups, thresholds, task) for table in (regional, predictions))
    if own is None or of_all is None:
        return content
    regions = {
        name: [region for region in topology["regions"] if region in own.by_site.get(name, {})]
        for name, topology in topologies.items()
    }
    for name, region, comparison in compare_predictions(study, regions, own, of_all):
        inside = own.site[own.of_arm(name)] == own.sites.index(region)
        test_rows = float(inside.sum()) / len(own.seeds)
        topologies[name]["regions"][region] |= {"test": test_rows, **_scored(comparison)}
    return content


def score_region_summaries(
    content: dict[str, Any],
    study: Study,
    tested: Sequence[Summary],
    regional: Sequence[Summary],
    gather: Callable[[Sequence[Summary]], Summaries],
) -> dict[str, Any]:
    """As `score_regions`, from sites' summaries of both models: no interval over patients, but one over seeds.

    `tested` are sites' summaries of the global model, `regional` those of their regions' own; `gather` merges
    summaries, with the selected arms. A site counts with both models or with neither.
    """
    both = {_key(line) for line in regional} & {_key(line) for line in tested}
    suppressed = {line["site"] for line in regional if line.get("suppressed")}

    @cache
    def gathered(members: tuple[str, ...]) -> list[Summaries]:
        """Most arms have the same regions."""
        return [
            gather([line for line in lines if line["site"] in members and _key(line) in both])
            for lines in (regional, tested)
        ]

    for name, topology in topologies_of(content, "hierarchical").items():
        pairs: dict[str, tuple[Figures, Figures]] = {}
        auc_bounds: dict[str, float] = {}
        for region, entry in topology["regions"].items():
            entry["withheld"] = [site for site in entry["sites"] if site in suppressed]
            own, of_all = gathered(tuple(entry["sites"]))
            bounds = _region_counts(entry, name, own, of_all)
            if bounds is not None:
                pairs[region], auc_bounds[region] = (own.overall[name], of_all.overall[name]), bounds
        resampling = Resampling.of(study.evaluation_of(origin_of(study, name)))
        comparisons = compare_pairs(of_all.task, pairs, resampling, study.evaluation.metric, auc_bounds=auc_bounds)
        for region, comparison in comparisons.items():
            topology["regions"][region] |= _scored(comparison)
    return content


def _region_counts(entry: dict[str, Any], arm: str, own: Summaries, of_all: Summaries) -> float | None:
    """Adds test rows and AUC bounds to a region's entry; by how much both AUCs together may be wrong, None without
    rows."""
    rows = [line["rows"] for seed in own.seeds for line in own.at(arm, seed)]
    if not rows:
        return None
    entry["test"] = sum(rows) / len(own.seeds)
    bounds = own.auc_error_bound(arm), of_all.auc_error_bound(arm)
    entry["auc_error_bound"] = dict(zip(("regional", "global"), bounds, strict=True))
    return sum(bound or 0.0 for bound in bounds)


def _key(line: Summary) -> tuple[str, int, str]:
    return line["arm"], line["seed"], line["site"]


def _scored(comparison: Comparison) -> dict[str, Any]:
    metrics = {"regional": comparison.first, "global": comparison.second}
    return {"metrics": metrics, "difference": comparison.difference}


def _by_region(
    table: pd.DataFrame,
    topologies: Mapping[str, Mapping[str, Any]],
    groups: pd.DataFrame | None,
    thresholds: pd.DataFrame | None,
    task: Task | None,
) -> Scores | None:
    """Rows of regions' sites, with the region in the place of the site."""
    parts = []
    for name, topology in topologies.items():
        region_of = {site: region for region, entry in topology["regions"].items() for site in entry["sites"]}
        mine = table[(table["arm"] == name) & table["site"].isin(list(region_of))]
        parts.append(mine.assign(site=mine["site"].map(region_of)))
    whole = pd.concat(parts, ignore_index=True) if parts else table.iloc[:0]
    return Scores.of(whole, groups, thresholds, task=task) if len(whole) else None
