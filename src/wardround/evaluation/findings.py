"""Figures of each finding, where a row may have several: at a threshold that validation rows have chosen.

A finding that no test row has is left out of averages over findings, and named. Where a study has no validation rows,
findings are called at a score of one half.
"""

from typing import Any

import numpy as np
import pandas as pd

from wardround.evaluation.grouped import each_finding
from wardround.evaluation.intervals import Resampling, summarise_metrics
from wardround.evaluation.metrics import THRESHOLD
from wardround.evaluation.scores import Scores, label_columns, score_columns
from wardround.study import METRICS

POINTS = 60  # of a curve in a report
SHOWN_AT_SITES = ("auc", "pr_auc", "f1", "sensitivity", "specificity", "brier")


def choose_thresholds(validation: pd.DataFrame) -> pd.DataFrame:
    """For each arm and seed (the index) the threshold of each finding (a column) with the best F1 on validation rows.

    NaN where no validation row has the finding, or a model has diverged.
    """
    labels, scores = label_columns(validation), score_columns(validation)
    made = {}
    for key, part in validation.groupby(["arm", "seed"], sort=False):
        label, score = part[labels].to_numpy(), part[scores].to_numpy()
        made[key] = [best_threshold(label[:, f], score[:, f]) for f in range(len(labels))]
    index = pd.MultiIndex.from_arrays([[arm for arm, _ in made], [seed for _, seed in made]], names=["arm", "seed"])
    return pd.DataFrame(list(made.values()), index=index, columns=labels)


def untested(validation: pd.DataFrame, predictions: pd.DataFrame, groups: pd.DataFrame) -> pd.DataFrame:
    """Without the rows of patients whom the same arm and seed test at any site, as overlapping sites do: nothing is
    chosen on test rows."""
    known = "patient" in groups and len(groups) > 0
    patient = pd.Series(groups["patient"].to_numpy(), index=groups["row"]) if known else None

    def keys(table: pd.DataFrame) -> pd.MultiIndex:
        who = table["row"].to_numpy() if patient is None else patient.reindex(table["row"]).to_numpy()
        return pd.MultiIndex.from_arrays([table["arm"], table["seed"], who])

    return validation[~keys(validation).isin(keys(predictions))]


def best_threshold(label: np.ndarray, score: np.ndarray) -> float:
    """The highest of those scores at which F1 is best; rows in which the finding is not known count nothing."""
    known = label >= 0
    positive, s = label[known] == 1, score[known].astype(np.float64)
    if not positive.any() or np.isnan(s).any():
        return float("nan")
    order = np.argsort(-s, kind="stable")
    last = np.append(s[order][1:] != s[order][:-1], True)  # rows with one score are called together
    hits, called = np.cumsum(positive[order])[last], np.flatnonzero(last) + 1
    return float(s[order][last][(2 * hits / (called + positive.sum())).argmax()])


def describe_findings(scores: Scores, arm: str, resampling: Resampling) -> dict[str, Any]:
    """What results.json says of each finding under one arm. Counts are those of one seed, on average."""
    places = scores.of_arm(arm)
    seeds = len(scores.seeds)
    label, score, cut = scores.label[places], scores.score[places], scores.thresholds[places]
    seed, site = scores.seed[places], scores.site[places]
    overall = each_finding(seed, seeds, label, score, cut)
    by_site = each_finding(site * seeds + seed, len(scores.sites) * seeds, label, score, cut)
    by_site = by_site.reshape(len(scores.findings), len(scores.sites), seeds, len(METRICS))
    there = np.unique(site)
    # with a seed whose model has diverged nothing is called, and it counts in no curve
    kept = ~np.isin(seed, seed[np.isnan(score).any(axis=1)])
    calling = max(1, len(np.unique(seed[kept])))
    found = {}
    for f, name in enumerate(scores.findings):
        known, positive = label[:, f] >= 0, label[:, f] == 1
        called, counted = score[:, f] >= cut[:, f], known & kept
        found[name] = {
            "rows": int(known.sum()) / seeds,
            "positives": int(positive.sum()) / seeds,
            "threshold": {
                "mean": float(cut[kept, f].mean()) if kept.any() else THRESHOLD,
                "chosen": bool(kept.any() and scores.chosen[places[kept], f].all()),
            },
            "confusion": {
                "tp": int((counted & positive & called).sum()) / calling,
                "fp": int((counted & ~positive & called).sum()) / calling,
                "fn": int((counted & positive & ~called).sum()) / calling,
                "tn": int((counted & ~positive & ~called).sum()) / calling,
            },
            "metrics": summarise_metrics(overall[f], resampling),
            "sites": {
                scores.sites[s]: {
                    "positives": int(positive[site == s].sum()) / seeds,
                    "metrics": summarise_metrics(by_site[f, s], resampling, SHOWN_AT_SITES),
                }
                for s in there.tolist()
            },
            **curves_of(positive[counted], score[counted, f]),
        }
    return found


def left_out(described: dict[str, Any]) -> list[str]:
    """Findings that no test row has, or of which nobody tells, so that averages are without them. None where there is
    no average: a model that has diverged says nothing of any finding."""
    known = [name for name, finding in described.items() if finding["metrics"]["loss"]["mean"] is not None]
    return [name for name, finding in described.items() if not finding["positives"]] if known else []


def curves_of(positive: np.ndarray, score: np.ndarray) -> dict[str, Any]:
    """ROC and precision-recall curves at some points, over all seeds' test rows; None where they are not defined."""
    hits, misses = int(positive.sum()), int((~positive).sum())
    if not hits or not misses:
        return {"roc": None, "pr": None}
    order = np.argsort(-score, kind="stable")
    last = np.flatnonzero(np.append(score[order][1:] != score[order][:-1], True))
    tp = np.cumsum(positive[order])[last]
    fp = last + 1 - tp
    # evenly along both axes, so that neither the steep nor the flat part of the curve is lost
    along = tp / hits + fp / misses
    shown = np.unique(np.searchsorted(along, np.linspace(0, along[-1], POINTS)).clip(max=len(last) - 1))
    recall, fallout, precision = tp[shown] / hits, fp[shown] / misses, tp[shown] / (last[shown] + 1)
    return {
        "roc": {"fpr": [0.0, *fallout.tolist()], "tpr": [0.0, *recall.tolist()]},
        "pr": {"recall": recall.tolist(), "precision": precision.tolist()},
    }
