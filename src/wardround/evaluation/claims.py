"""What was published, what we found, and a verdict.

* reproduced                  ours is within the claim's tolerance of the published figure
* not reproduced              it is not; the verdict says by how much
* contradicted by its source  figures that the source gives for one thing differ, or do not follow from one another
* cannot be computed          an arm has no figures
* no verdict                  the study says why the two are only set side by side
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from wardround.data.heterogeneity import gini
from wardround.evaluation.compare import IN_POINTS
from wardround.evaluation.intervals import Resampling, mean_interval
from wardround.evaluation.scores import Scored
from wardround.study import FINAL, METRICS, Claim, Study, in_variant

FORMULAS: dict[str, Callable[[np.ndarray], float]] = {
    "sum": np.sum,
    "mean": np.mean,
    "gini": lambda values: gini(list(values)),
}
ROUNDING = 0.006  # relative: figures that a source prints to two or three places may differ so far by rounding


def judge(
    claim: Claim, study: Study, scores: Scored, arms: Mapping[str, Any], sites: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """`arms` are the results so far, `sites` the descriptions of the study's sites."""
    ours, interval, each = _ours(claim, study, scores, arms, sites)
    recomputed = [float(FORMULAS[claim.formula](np.array(values))) for values in claim.given] if claim.formula else []
    return {
        "text": claim.text,
        "source": claim.source,
        "metric": claim.metric,
        "arms": list(claim.arms),
        "against": list(claim.against),
        "published": claim.published,
        "tolerance": claim.tolerance,
        "ours": ours,
        "interval": interval,
        "each": each,
        "variants": _in_variants(claim, study, scores, arms, sites),
        "stated": claim.stated,
        "formula": claim.formula,
        "recomputed": recomputed,
        "verdict": _verdict(claim, ours, recomputed),
    }


def _ours(
    claim: Claim, study: Study, scores: Scored, arms: Mapping[str, Any], sites: Sequence[Mapping[str, Any]]
) -> tuple[float | None, list[float] | None, dict[str, float | None]]:
    if claim.metric in ("rows", "gini", "js", "kl", "mmd"):
        named = [described for described in sites if set(claim.arms) & set(described["arms"])]
        there = (named or sites)[0]  # the study's first sites, where the claim names no arm
        return (float(there["rows"]) if claim.metric == "rows" else there["heterogeneity"][claim.metric]), None, {}
    if not claim.arms or any(arm not in arms for arm in (*claim.arms, *claim.against)):
        return None, None, {}
    if claim.metric == "bytes":
        sent, less = (
            np.mean([arms[arm]["cost"]["bytes"] for arm in group] or 0.0) for group in (claim.arms, claim.against)
        )
        return float(sent - less), None, {}
    if claim.metric in FINAL:
        return _final(claim, arms)
    if claim.metric == "t":
        return _t(scores, claim.arms[0], claim.against[0]), None, {}
    place = METRICS.index(claim.metric)
    lines = [scores.overall[arm][:, place] for arm in claim.arms]
    if claim.against:
        lines = [line - scores.overall[arm][:, place] for line, arm in zip(lines, claim.against, strict=True)]
    mean = np.mean(lines, axis=0)
    known = mean[~np.isnan(mean)]
    each = {
        arm: float(line[~np.isnan(line)].mean()) if (~np.isnan(line)).any() else None
        for arm, line in zip(claim.arms, lines, strict=True)
    }
    if not len(known):
        return None, None, each
    family, variant = arms[claim.arms[0]]["family"], arms[claim.arms[0]]["variant"]
    first = next(arm for arm in study.arms if (arm.family, arm.variant) == (family, variant))
    interval = mean_interval(known, Resampling.of(study.evaluation_of(first)))
    return float(known.mean()), list(interval) if interval else None, each


def _final(claim: Claim, arms: Mapping[str, Any]) -> tuple[float | None, None, dict[str, float | None]]:
    """After the last round, on training or validation rows."""
    each = {arm: arms[arm]["final"].get(claim.metric) for arm in (*claim.arms, *claim.against)}
    if any(value is None for value in each.values()):
        return None, None, each
    ours, less = (np.mean([each[arm] for arm in group] or 0.0) for group in (claim.arms, claim.against))
    return float(ours - less), None, each


def _t(scores: Scored, arm: str, reference: str) -> float | None:
    """Student's t of two independent samples, as papers print it."""
    a, b = (scores.overall[name][:, METRICS.index("accuracy")] for name in (arm, reference))
    spread = np.sqrt((a.var(ddof=1) + b.var(ddof=1)) / len(a)) if len(a) > 1 else 0.0
    return float((a.mean() - b.mean()) / spread) if spread > 0 else None


def _in_variants(
    claim: Claim, study: Study, scores: Scored, arms: Mapping[str, Any], sites: Sequence[Mapping[str, Any]]
) -> dict[str, float | None]:
    """The same figure in every variant of the study that has these arms; "" is the study as it stands."""
    found = {}
    for variant in dict.fromkeys(arm.variant for arm in study.arms) if claim.arms else ():
        names = [tuple(in_variant(arm, variant) for arm in group) for group in (claim.arms, claim.against)]
        if all(name in arms for group in names for name in group):
            moved = Claim(claim.text, claim.source, arms=names[0], against=names[1], metric=claim.metric)
            found[variant] = _ours(moved, study, scores, arms, sites)[0]
    return found


def _verdict(claim: Claim, ours: float | None, recomputed: list[float]) -> str:
    def say(value: float) -> str:
        return said(value, claim.metric, bool(claim.against))

    contradictions = []
    if len({round(value, 6) for value in claim.stated.values()}) > 1:
        contradictions.append(", ".join(f"{say(value)} ({where})" for where, value in claim.stated.items()))
    wrong = [value for value in recomputed if not _agree(value, claim.published)]
    if wrong and len(wrong) == len(recomputed) and claim.published is not None:
        found = " or ".join(say(value) for value in wrong)
        contradictions.append(f"it prints {say(claim.published)}, its own figures give {found}")
    beside = "" if ours is None else f"; ours {say(ours)}"
    if contradictions:
        return f"contradicted by its source: {'; '.join(contradictions)}{beside}"
    if ours is None or claim.published is None:
        return "cannot be computed"
    both = f"{say(ours)}, published {say(claim.published)}"
    if claim.no_verdict:
        return f"no verdict: {both}; {claim.no_verdict}"
    if abs(ours - claim.published) <= claim.tolerance + 1e-9:  # but for rounding
        return f"reproduced: {both}"
    return f"not reproduced: {both} (off by {_off(ours - claim.published, claim)})"


def _agree(value: float, published: float | None) -> bool:
    return published is not None and abs(value - published) <= ROUNDING * max(abs(published), abs(value))


def said(value: float, metric: str, difference: bool) -> str:
    """A figure as its metric is written."""
    if metric == "bytes":
        return f"{value / 1000:,.1f} KB"
    if metric == "rows":
        return f"{value:,.0f}"
    if not _in_points(metric):
        return f"{value:.3f}"
    return f"{100 * value:+.2f} points" if difference else f"{100 * value:.2f} %"


def _in_points(metric: str) -> bool:
    return metric in IN_POINTS or metric.endswith("_accuracy")


def _off(difference: float, claim: Claim) -> str:
    if _in_points(claim.metric):
        return f"{100 * difference:+.2f} points"
    return f"{difference / 1000:+,.1f} KB" if claim.metric == "bytes" else f"{difference:+.3g}"
