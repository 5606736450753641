"""`results.json` as a pure function of saved predictions and records. Described in docs/reference/results.md."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from wardround.evaluation.intervals import CONFIDENCE, Resampling, mean_interval, p_value
from wardround.evaluation.metrics import metrics
from wardround.study import METRICS, Arm, Claim, Study

SCHEMA_VERSION = 1
SMALLEST_GROUP = 10  # subgroups with fewer test rows are suppressed
COMPARED = ("accuracy", "auc", "f1", "brier", "loss")
Figures = pd.DataFrame  # one row per seed, one column per metric


@dataclass(frozen=True)
class Scores:
    """Predictions as arrays, in order of seed."""

    seed: np.ndarray
    site: np.ndarray
    row: np.ndarray
    label: np.ndarray
    score: np.ndarray  # (rows,) or (rows, classes)

    @classmethod
    def of(cls, predictions: pd.DataFrame) -> "Scores":
        ordered = predictions.sort_values("seed", kind="stable")
        columns = score_columns(predictions)
        score = ordered[columns].to_numpy()
        seed, site, row, label = (ordered[name].to_numpy() for name in ("seed", "site", "row", "label"))
        return cls(seed, site, row, label, score[:, 0] if columns == ["score"] else score)

    def where(self, chosen: np.ndarray) -> "Scores":
        return Scores(*(array[chosen] for array in (self.seed, self.site, self.row, self.label, self.score)))

    def per_seed(self) -> Figures:
        seeds, starts = np.unique(self.seed, return_index=True)
        parts = zip(np.split(self.label, starts[1:]), np.split(self.score, starts[1:]), strict=True)
        return pd.DataFrame([metrics(label, score) for label, score in parts], index=seeds, columns=list(METRICS))


def results(study: Study, predictions: pd.DataFrame, groups: pd.DataFrame, records: pd.DataFrame) -> dict[str, Any]:
    """`groups` gives sex and age band of rows; `records` are the rounds as `records.jsonl` has them."""
    resampling = Resampling.of(study.evaluation)
    scores = {str(arm): Scores.of(part) for arm, part in predictions.groupby("arm", sort=False)}
    of_arm = {str(arm): part for arm, part in records.groupby("arm", sort=False)}
    overall = {arm.name: scores[arm.name].per_seed() for arm in study.arms}
    arms = {
        arm.name: _arm(arm, scores[arm.name], overall[arm.name], groups, of_arm[arm.name], resampling)
        for arm in study.arms
    }
    return {
        "schema_version": SCHEMA_VERSION,
        "study": {"name": study.name, "question": study.question, "hash": study.hash},
        "seeds": list(study.evaluation.seeds),
        "interval": {"confidence": CONFIDENCE, "method": resampling.method, "covers": resampling.covers},
        "arms": arms,
        "tests": _comparisons(study, overall, resampling),
        "claims": [_claim(claim, overall, resampling) for claim in study.claims],
    }


def score_columns(predictions: pd.DataFrame) -> list[str]:
    several = [name for name in predictions.columns if name.startswith("score_")]
    return several or ["score"]


def _arm(
    arm: Arm, scores: Scores, overall: Figures, groups: pd.DataFrame, records: pd.DataFrame, resampling: Resampling
) -> dict[str, Any]:
    sites = list(dict.fromkeys(scores.site.tolist()))
    return {
        "family": arm.family,
        "algorithm": {"name": arm.algorithm.name, **arm.algorithm.options},
        "metrics": _summary(overall, resampling),
        "sites": {site: _summary(scores.where(scores.site == site).per_seed(), resampling) for site in sites},
        "subgroups": _subgroups(scores, groups, resampling),
        "convergence": _convergence(records),
        "cost": _cost(records),
    }


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


def _subgroups(scores: Scores, groups: pd.DataFrame, resampling: Resampling) -> dict[str, Any]:
    """Seeds in which a group has fewer test rows than SMALLEST_GROUP do not count; none left means suppressed."""
    found: dict[str, Any] = {}
    for kind in (name for name in groups.columns if name != "row" and len(groups)):
        value_of = pd.Series(groups[kind].to_numpy(), index=groups["row"]).reindex(scores.row).to_numpy(dtype=object)
        found[kind] = {}
        for value in sorted({value for value in value_of.tolist() if isinstance(value, str)}):
            part = scores.where(value_of == value)
            seeds, sizes = np.unique(part.seed, return_counts=True)
            large = sizes >= SMALLEST_GROUP
            if large.any():
                kept = part.where(np.isin(part.seed, seeds[large]))
                figures = _summary(kept.per_seed(), resampling)
                found[kind][value] = {"rows": float(sizes[large].mean()), "metrics": figures}
            else:
                found[kind][value] = {"suppressed": True}
    return found


def _convergence(records: pd.DataFrame) -> dict[str, Any]:
    """Rounds until 95 % of the last round's accuracy, on validation rows where the study has them."""
    measured = "validation_accuracy" in records and records["validation_accuracy"].notna().any()
    name = "validation_accuracy" if measured else "test_accuracy"
    curve = records.pivot(index="seed", columns="round", values=name)  # columns in order of rounds
    reached = curve.ge(
        0.95 * curve.iloc[:, -1], axis=0
    ).to_numpy()  # rounds that were not evaluated are NaN: not reached
    needed = curve.columns.to_numpy()[reached.argmax(axis=1)][reached.any(axis=1)]  # without seeds that diverged
    final = records[records["round"] == records["round"].max()]
    return {
        "measured_on": name.removesuffix("_accuracy"),
        "rounds_to_95_percent": {
            "mean": float(needed.mean()) if len(needed) else None,
            "sd": float(needed.std(ddof=1)) if len(needed) > 1 else None,
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
    """Paired differences over seeds, each arm on the reference's data against the reference."""
    reference = study.evaluation.reference
    if reference is None:
        return []
    tests = []
    same_data = study.arm(reference).data
    for arm in (arm.name for arm in study.arms if arm.name != reference and arm.data == same_data):
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


def _claim(claim: Claim, overall: Mapping[str, Figures], resampling: Resampling) -> dict[str, Any]:
    """What was published, what we found, and a verdict. The difference is paired over seeds and pairs of arms."""
    pairs = [
        overall[a][claim.metric] - overall[b][claim.metric] for a, b in zip(claim.arms, claim.against, strict=True)
    ]
    ours = pd.concat(pairs, axis=1).mean(axis=1).dropna().to_numpy()
    mean = float(ours.mean()) if len(ours) else None
    interval = mean_interval(ours, resampling) if len(ours) else None
    if mean is None:
        verdict = "cannot be computed"
    elif abs(mean - claim.published) <= claim.tolerance:
        verdict = f"reproduced: {mean:+.3f}, published {claim.published:+.3f}"
    else:
        verdict = f"not reproduced: {mean:+.3f}, published {claim.published:+.3f}"
    return {
        "text": claim.text,
        "source": claim.source,
        "metric": claim.metric,
        "published": claim.published,
        "tolerance": claim.tolerance,
        "ours": mean,
        "interval": list(interval) if interval else None,
        "each": {arm: float(pair.mean()) for arm, pair in zip(claim.arms, pairs, strict=True)},
        "verdict": verdict,
    }


def _mean(values: pd.Series) -> float | None:
    defined = values.dropna()
    return float(defined.mean()) if len(defined) else None
