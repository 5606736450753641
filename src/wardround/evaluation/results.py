"""`results.json` as a pure function of saved predictions and records. Described in docs/reference/results.md."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from wardround.evaluation.intervals import CONFIDENCE, Resampling, mean_interval, p_value
from wardround.evaluation.metrics import METRICS, metrics
from wardround.study import Arm, Study

SCHEMA_VERSION = 1
SMALLEST_GROUP = 10  # subgroups with fewer test rows are suppressed
COMPARED = ("accuracy", "auc", "f1", "brier", "loss")
Figures = pd.DataFrame  # one row per seed, one column per metric


def results(study: Study, predictions: pd.DataFrame, groups: pd.DataFrame, records: pd.DataFrame) -> dict[str, Any]:
    """`groups` gives sex and age band of rows; `records` are the rounds as `records.jsonl` has them."""
    resampling = Resampling.of(study.evaluation)
    by_arm = dict(tuple(predictions.groupby("arm", sort=False)))
    overall = {arm.name: _per_seed(by_arm[arm.name]) for arm in study.arms}
    arms = {
        arm.name: _arm(
            arm, by_arm[arm.name], overall[arm.name], groups, records[records["arm"] == arm.name], resampling
        )
        for arm in study.arms
    }
    return {
        "schema_version": SCHEMA_VERSION,
        "study": {"name": study.name, "question": study.question, "hash": study.hash},
        "seeds": list(study.evaluation.seeds),
        "interval": {"confidence": CONFIDENCE, "method": resampling.method, "covers": resampling.covers},
        "arms": arms,
        "tests": _comparisons(study, overall, resampling),
    }


def score_columns(predictions: pd.DataFrame) -> list[str]:
    several = [name for name in predictions.columns if name.startswith("score_")]
    return several or ["score"]


def _arm(
    arm: Arm,
    predictions: pd.DataFrame,
    overall: Figures,
    groups: pd.DataFrame,
    records: pd.DataFrame,
    resampling: Resampling,
) -> dict[str, Any]:
    return {
        "family": arm.family,
        "algorithm": {"name": arm.algorithm.name, **arm.algorithm.options},
        "metrics": _summary(overall, resampling),
        "sites": {
            str(site): _summary(_per_seed(part), resampling) for site, part in predictions.groupby("site", sort=False)
        },
        "subgroups": _subgroups(predictions, groups, resampling),
        "convergence": _convergence(records),
        "cost": _cost(records),
    }


def _per_seed(predictions: pd.DataFrame) -> Figures:
    columns = score_columns(predictions)
    rows = {}
    for seed, part in predictions.groupby("seed", sort=True):
        score = part[columns].to_numpy()
        rows[seed] = metrics(part["label"].to_numpy(), score[:, 0] if columns == ["score"] else score)
    return pd.DataFrame.from_dict(rows, orient="index", columns=list(METRICS))


def _summary(figures: Figures, resampling: Resampling) -> dict[str, Any]:
    """Mean, SD and interval over the seeds in which a metric is defined; `seeds` counts them."""
    summary = {}
    for name in METRICS:
        values = figures[name].dropna().to_numpy()
        interval = mean_interval(values, resampling) if len(values) else None
        summary[name] = {
            "mean": float(values.mean()) if len(values) else None,
            "sd": float(values.std(ddof=1)) if len(values) > 1 else None,
            "interval": list(interval) if interval else None,
            "seeds": len(values),
        }
    return summary


def _subgroups(predictions: pd.DataFrame, groups: pd.DataFrame, resampling: Resampling) -> dict[str, Any]:
    """Seeds in which a group has fewer test rows than SMALLEST_GROUP do not count; none left means suppressed."""
    found: dict[str, Any] = {}
    if groups.empty:
        return found
    joined = predictions.merge(groups, on="row", how="left")
    for kind in (name for name in groups.columns if name != "row"):
        found[kind] = {}
        for value, part in joined.groupby(kind, sort=True):
            sizes = part.groupby("seed").size()
            large = sizes[sizes >= SMALLEST_GROUP].index
            if len(large) == 0:
                found[kind][str(value)] = {"suppressed": True}
            else:
                kept = part[part["seed"].isin(large)]
                figures = _summary(_per_seed(kept), resampling)
                found[kind][str(value)] = {"rows": float(sizes[large].mean()), "metrics": figures}
    return found


def _convergence(records: pd.DataFrame) -> dict[str, Any]:
    """Rounds until 95 % of the last round's accuracy, on validation rows where the study has them."""
    name = (
        "validation_accuracy"
        if "validation_accuracy" in records and records["validation_accuracy"].notna().any()
        else "test_accuracy"
    )
    needed = []
    for _, rounds in records.groupby("seed"):
        curve = rounds.sort_values("round").dropna(subset=[name])
        reached = curve[curve[name] >= 0.95 * curve[name].iloc[-1]]
        needed.append(int(reached["round"].iloc[0]))
    final = records[records["round"] == records["round"].max()]
    return {
        "measured_on": name.removesuffix("_accuracy"),
        "rounds_to_95_percent": {
            "mean": float(np.mean(needed)),
            "sd": float(np.std(needed, ddof=1)) if len(needed) > 1 else None,
        },
        "final_change": _mean(final["change"]),
        "final_divergence": _mean(final["divergence"]),
        "final_update_norm": _mean(final["update_norm"]),
    }


def _cost(records: pd.DataFrame) -> dict[str, Any]:
    """Of one seed, on average."""
    per_seed = records.groupby("seed")[["bytes_up", "bytes_down", "seconds"]].sum()
    return {
        "rounds": int(records["round"].max()),
        "bytes": float((per_seed["bytes_up"] + per_seed["bytes_down"]).mean()),
        "bytes_up": float(per_seed["bytes_up"].mean()),
        "bytes_down": float(per_seed["bytes_down"].mean()),
        "seconds": float(per_seed["seconds"].mean()),
    }


def _comparisons(study: Study, overall: Mapping[str, Figures], resampling: Resampling) -> list[dict[str, Any]]:
    """Paired differences over seeds, each arm against the reference."""
    reference = study.evaluation.reference
    if reference is None:
        return []
    tests = []
    for arm in (arm.name for arm in study.arms if arm.name != reference):
        for name in COMPARED:
            difference = (overall[arm][name] - overall[reference][name]).dropna().to_numpy()
            interval = mean_interval(difference, resampling) if len(difference) else None
            tests.append(
                {
                    "arm": arm,
                    "reference": reference,
                    "metric": name,
                    "difference": float(difference.mean()) if len(difference) else None,
                    "interval": list(interval) if interval else None,
                    "p_value": p_value(difference, resampling),
                    "method": resampling.method,
                    "seeds": len(difference),
                }
            )
    return tests


def _mean(values: pd.Series) -> float | None:
    defined = values.dropna()
    return float(defined.mean()) if len(defined) else None
