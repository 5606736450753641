"""Figures of each finding, where a row may have several: at a threshold that validation rows have chosen.

A finding that no test row has is left out of averages over findings, and named.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wardround.evaluation.calibration_curves import curves_of
from wardround.evaluation.intervals import Resampling, summarise_metrics
from wardround.evaluation.scores import Scores
from wardround.evaluation.summaries.merged_summaries import Scored, Summaries, Summary
from wardround.tasks.class_metrics import THRESHOLD, Counts, grouped_finding_metrics

SHOWN_AT_SITES = ("auc", "pr_auc", "f1", "sensitivity", "specificity", "brier")


def describe_findings(scores: Scored, arm: str, resampling: Resampling) -> dict[str, Any]:
    """What results.json says of each finding under one arm. Counts are those of one seed, on average."""
    if not scores.findings:
        return {}
    if isinstance(scores, Scores):
        return _from_rows(scores, arm, resampling)
    return _from_summaries(scores, arm, resampling)


def _from_rows(scores: Scores, arm: str, resampling: Resampling) -> dict[str, Any]:
    places = scores.of_arm(arm)
    seeds = len(scores.seeds)
    label, score, cut = scores.label[places], scores.score[places], scores.thresholds[places]
    seed, site = scores.seed[places], scores.site[places]
    overall = grouped_finding_metrics(seed, seeds, label, score, cut)
    by_site = grouped_finding_metrics(site * seeds + seed, len(scores.sites) * seeds, label, score, cut)
    by_site = by_site.reshape(len(scores.findings), len(scores.sites), seeds, len(scores.metric_names))
    there = np.unique(site)
    # with a seed whose model has diverged nothing is called, and it counts in no curve
    converged = ~np.isin(seed, seed[np.isnan(score).any(axis=1)])
    converged_seeds = max(1, len(np.unique(seed[converged])))
    described = {}
    for f, name in enumerate(scores.findings):
        known, positive = label[:, f] >= 0, label[:, f] == 1
        predicted, counted = score[:, f] >= cut[:, f], known & converged
        described[name] = {
            "rows": int(known.sum()) / seeds,
            "positives": int(positive.sum()) / seeds,
            "threshold": {
                "mean": float(cut[converged, f].mean()) if converged.any() else THRESHOLD,
                "chosen": bool(converged.any() and scores.chosen[places[converged], f].all()),
            },
            "confusion": {
                "tp": int((counted & positive & predicted).sum()) / converged_seeds,
                "fp": int((counted & ~positive & predicted).sum()) / converged_seeds,
                "fn": int((counted & positive & ~predicted).sum()) / converged_seeds,
                "tn": int((counted & ~positive & ~predicted).sum()) / converged_seeds,
            },
            "metrics": summarise_metrics(scores.metric_names, overall[f], resampling),
            "sites": {
                scores.sites[s]: {
                    "positives": int(positive[site == s].sum()) / seeds,
                    "metrics": summarise_metrics(scores.metric_names, by_site[f, s], resampling, SHOWN_AT_SITES),
                }
                for s in there.tolist()
            },
            **curves_of(positive[counted], score[counted, f]),
        }
    return described


def _from_summaries(scores: Summaries, arm: str, resampling: Resampling) -> dict[str, Any]:
    """Over the sites that send figures; None for what none of them sends. Thresholds stay at
    the sites, and curves are drawn from histograms. Rows and predictions are of the same sites: those of one seed, on
    average over the seeds in which any site sends them."""
    return {name: _describe_finding(summaries, arm, resampling) for name, summaries in scores.parts.items()}


def _describe_finding(summaries: Summaries, arm: str, resampling: Resampling) -> dict[str, Any]:
    by_seed = [[line for line in lines if line["sums"]] for lines in summaries.converged(arm)]
    seeds, lines = sum(map(bool, by_seed)), [line for of_seed in by_seed for line in of_seed]
    confusion = _counted(lines, seeds)
    rows = summaries.rows_of_cells(arm, all_seeds=False)
    return {
        "rows": sum(line["rows"] for line in lines) / max(1, seeds),
        "positives": _positives(confusion),
        "threshold": {"mean": None, "chosen": bool(lines) and all(line["chosen"] for line in lines)},
        "confusion": confusion,
        "metrics": summarise_metrics(summaries.metric_names, summaries.overall[arm], resampling),
        "sites": {
            site: {
                "positives": _positives(_at_site(summaries, arm, site)),
                "metrics": summarise_metrics(summaries.metric_names, of_site, resampling, SHOWN_AT_SITES),
            }
            for site, of_site in summaries.by_site[arm].items()
        },
        **({"roc": None, "pr": None} if rows is None else curves_of(rows[0] == 1, rows[1])),
    }


def _at_site(summaries: Summaries, arm: str, site: str) -> dict[str, float] | None:
    """Counts of predictions at a site, on average over the seeds in which it sends them."""
    lines = [summaries.lines.get((arm, seed), {}).get(site) for seed in summaries.seeds]
    known = [line for line in lines if line is not None and not line["diverged"] and line["sums"]]
    return _counted(known, len(known))


def _counted(lines: Sequence[Summary], seeds: int) -> dict[str, float] | None:
    """Right and wrong predictions with one seed."""
    if not lines:
        return None
    return {cell: sum(line["sums"]["confusion"][0][cell] for line in lines) / seeds for cell in Counts._fields}


def _positives(confusion: Mapping[str, float] | None) -> float | None:
    return None if confusion is None else confusion["tp"] + confusion["fn"]


def left_out(described: dict[str, Any]) -> list[str]:
    """Findings that no test row has, or of which nobody tells, so that averages are without them. None where there is
    no average: a model that has diverged says nothing of any finding."""
    known = [name for name, finding in described.items() if finding["metrics"]["loss"]["mean"] is not None]
    return [name for name, finding in described.items() if not finding["positives"]] if known else []
