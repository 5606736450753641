"""Verdicts on published claims: the source's own figures recomputed, ours next to them, and how figures are written."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from wardround.data.heterogeneity import gini
from wardround.evaluation.claims.claim_metrics import MEASURES, Material, Measured, statistic_of
from wardround.evaluation.comparisons.benefit import origin_of
from wardround.evaluation.comparisons.listing import grouped
from wardround.evaluation.intervals import CONFIDENCE, Resampling, mean_interval
from wardround.evaluation.summaries.merged_summaries import Scored
from wardround.study.claims import METRIC, QUANTITIES, TAKES, Claim
from wardround.study.schema import Study, in_variant
from wardround.tasks import METRIC_FACTS


@dataclass(frozen=True)
class FromSource:
    compute: Callable[[Sequence[float]], float]
    inputs: str  # what the figure follows from


def two_sample_t(mean: float, sd: float, runs: float, other: float, other_sd: float, other_runs: float) -> float:
    """Welch's; with as many runs in both, Student's has the same value."""
    return float((mean - other) / _error(sd, runs, other_sd, other_runs))


def _error(sd: float, runs: float, other_sd: float, other_runs: float) -> float:
    return float(np.sqrt(sd**2 / runs + other_sd**2 / other_runs))


def t_from_interval(low: float, high: float, runs: float, other_runs: float) -> float:
    """The middle of an interval of a difference, in standard errors."""
    error = (high - low) / 2 / _quantile(runs, other_runs)
    return float((low + high) / 2 / error)


def p_from_t(t: float, runs: float, other_runs: float) -> float:
    """Two-sided."""
    return float(2 * stats.t.sf(abs(t), runs + other_runs - 2))


def _limit(values: Sequence[float], sign: int) -> float:
    mean, sd, runs, other, other_sd, other_runs = values
    return mean - other + sign * _quantile(runs, other_runs) * _error(sd, runs, other_sd, other_runs)


def _quantile(runs: float, other_runs: float) -> float:
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, runs + other_runs - 2))


def possible(formula: str, values: Sequence[float], rounded: float) -> tuple[float, float]:
    """The least and the largest figure that can be had where each value may be off by `rounded`; counts are not."""
    compute, names = FORMULAS[formula].compute, TAKES.get(formula, ("figure",) * len(values))
    ends = [
        (value,) if name == "runs" or not rounded else (value - rounded, value + rounded)
        for name, value in zip(names, values, strict=True)
    ]
    figures = [compute(values), *(compute(corner) for corner in product(*ends))]
    return min(figures), max(figures)


MEANS_AND_SDS = "means and SDs"
FORMULAS: dict[str, FromSource] = {
    "sum": FromSource(lambda values: float(np.sum(values)), "sum"),
    "mean": FromSource(lambda values: float(np.mean(values)), "mean"),
    "sd": FromSource(lambda values: float(np.std(values, ddof=1)), "SD"),
    "lowest": FromSource(min, "lowest figure"),
    "highest": FromSource(max, "highest figure"),
    "range": FromSource(lambda values: float(np.ptp(values)), "highest less lowest figure"),
    "gini": FromSource(lambda values: gini(list(values)), "sizes"),
    "ratio": FromSource(lambda values: values[0] / values[1], "two figures"),
    "change": FromSource(lambda values: values[1] / values[0] - 1, "figures before and after"),
    "t": FromSource(lambda values: two_sample_t(*values), MEANS_AND_SDS),
    "t_from_interval": FromSource(lambda values: t_from_interval(*values), "interval"),
    "p_from_t": FromSource(lambda values: p_from_t(*values), "t"),
    "interval_low": FromSource(lambda values: _limit(values, -1), MEANS_AND_SDS),
    "interval_high": FromSource(lambda values: _limit(values, 1), MEANS_AND_SDS),
}


class FigureFormat(NamedTuple):
    """What of a claim decides how its figures are written."""

    metric: str
    statistic: str
    compare: str
    compared: bool  # with other arms


def figure_text(value: float, figure_format: FigureFormat) -> str:
    metric, statistic, compare, compared = figure_format
    if compared and compare == "ratio":
        return f"{value:.3f}"
    if compared and compare == "change":
        return f"{100 * value:+.1f} %"
    if metric in AS_FRACTIONS and not compared and statistic != "sd":
        return f"{value:.3f}"
    if in_points(metric):
        if metric in LIMITS or (compared and statistic == "mean"):
            return f"{100 * value:+.2f} points"
        over_seeds_or_sites = statistic in ("sd", "spread", "range")
        return f"{100 * value:.2f} {'points' if over_seeds_or_sites else '%'}"
    return UNITS.get(metric, "{:.3f}".format)(value)


def off_text(difference: float, figure_format: FigureFormat) -> str:
    if figure_format.compared and figure_format.compare == "ratio":
        return f"{difference:+.3f}"
    if in_points(figure_format.metric) or (figure_format.compared and figure_format.compare == "change"):
        return f"{100 * difference:+.2f} points"
    return f"{difference / 1000:+,.1f} KB" if figure_format.metric == "bytes" else f"{difference:+.3g}"


def in_points(metric: str) -> bool:
    shared = metric in METRIC_FACTS and METRIC_FACTS[metric].in_points
    return shared or metric in (*LIMITS, "prevalence") or metric.endswith("_accuracy")


def _p_value(value: float) -> str:
    return f"{value:.4f}" if value >= 0.00005 else f"{value:.1e}"


AS_FRACTIONS = ("auc", "f1")  # are written as parts of one
LIMITS = ("interval_low", "interval_high")  # of a difference in accuracy
UNITS: dict[str, Callable[[float], str]] = {
    "bytes": lambda value: f"{value / 1000:,.1f} KB",
    "rows": "{:,.0f}".format,
    "seconds": "{:.3g} s".format,
    "rounds": "{:.1f} rounds".format,
    "age": "{:.1f} years".format,
    "p_value": _p_value,
}


OUTCOMES = ("reproduced", "not reproduced", "contradicted by its source", "cannot be computed", "no verdict")
ROUNDING = 0.006  # relative: figures that a source prints to two or three places may differ so far by rounding


@dataclass(frozen=True)
class Ours:
    value: float | None
    interval: list[float] | None = None
    each: dict[str, float | None] = field(default_factory=dict)  # the figure, or the difference, of each arm
    unknown: str = ""


def judge(
    claim: Claim, study: Study, scores: Scored, arms: Mapping[str, Any], sites: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    material = Material(study, scores, arms, sites)
    ours = _ours(claim, material)
    recomputed = [FORMULAS[name].compute(values) for name, values in zip(claim.formulas, claim.given, strict=True)]
    outcome, reason, verdict = _verdict(claim, ours, recomputed)
    return {
        "text": claim.text,
        "source": claim.source,
        "group": claim.group,
        "metric": claim.metric,
        "statistic": claim.statistic,
        "site": claim.site,
        "arms": list(claim.arms),
        "against": list(claim.against),
        "compare": claim.compare,
        "published": claim.published,
        "tolerance": claim.tolerance,
        "ours": ours.value,
        "interval": ours.interval,
        "each": ours.each,
        "variants": _in_variants(claim, material),
        "stated": claim.stated,
        "formula": claim.formula if isinstance(claim.formula, str | None) else list(claim.formula),
        "rounded": claim.rounded,
        "recomputed": recomputed,
        "outcome": outcome,
        "reason": reason,
        "verdict": verdict,
    }


def count_outcomes(claims: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    outcomes = [claim["outcome"] for claim in claims]
    return {outcome: outcomes.count(outcome) for outcome in OUTCOMES}


def by_group(claims: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Claims by the subject that the study gives them, in the order in which subjects are first named."""
    return grouped((claim["group"], claim) for claim in claims)


def _ours(claim: Claim, material: Material) -> Ours:
    quantity, measure = QUANTITIES.get(claim.metric, METRIC), MEASURES[claim.metric]
    lacking = [arm for arm in (*claim.arms, *claim.against) if arm not in material.arms]
    if quantity.of == "sites":
        return _single_figure(measure(material, claim.arms, claim.site), claim)
    if not claim.arms or lacking:
        return Ours(None)
    if quantity.of == "pair":
        return _single_figure(measure(material, (*claim.arms, *claim.against), claim.site), claim)
    measured, others = (
        [measure(material, (arm,), claim.site) for arm in group] for group in (claim.arms, claim.against)
    )
    unknown = next((part.unknown for part in (*measured, *others) if part.unknown), "")
    if unknown:
        return Ours(None, unknown=unknown)
    if claim.statistic == "mean" and claim.compare == "difference" and measured[0].seeds is not None:
        return _over_seeds(claim, material, measured, others)
    return _of_statistics(claim, measured, others)


def _single_figure(measured: Measured, claim: Claim) -> Ours:
    return Ours(statistic_of(measured, claim.statistic), unknown=measured.unknown)


def _over_seeds(claim: Claim, material: Material, measured: Sequence[Measured], others: Sequence[Measured]) -> Ours:
    """A mean over seeds with its interval; a difference is taken seed by seed."""
    lines = [np.asarray(part.seeds) for part in measured]
    if others:
        lines = [line - np.asarray(other.seeds) for line, other in zip(lines, others, strict=True)]
    mean = np.mean(lines, axis=0)
    known = mean[~np.isnan(mean)]
    each = {arm: statistic_of(Measured(line), "mean") for arm, line in zip(claim.arms, lines, strict=True)}
    if not len(known):
        return Ours(None, each=each)
    evaluation = material.study.evaluation_of(origin_of(material.study, claim.arms[0]))
    interval = mean_interval(known, Resampling.of(evaluation))
    return Ours(float(known.mean()), list(interval) if interval else None, each)


def _of_statistics(claim: Claim, measured: Sequence[Measured], others: Sequence[Measured]) -> Ours:
    """Each arm has one figure; those of `arms` and of `against` are averaged, then compared."""
    names = (*claim.arms, *claim.against)
    figures = [statistic_of(part, claim.statistic) for part in (*measured, *others)]
    each = dict(zip(names, figures, strict=True))
    known = [figure for figure in figures if figure is not None]
    if len(known) < len(figures):
        return Ours(None, each=each)
    ours = float(np.mean(known[: len(measured)]))
    if not others:
        return Ours(ours, each=each)
    less = float(np.mean(known[len(measured) :]))
    if claim.compare == "difference":
        return Ours(ours - less, each=each)
    if less == 0:
        return Ours(None, each=each, unknown="it would be a ratio to nothing")
    return Ours(ours / less - (claim.compare == "change"), each=each)


def _in_variants(claim: Claim, material: Material) -> dict[str, float | None]:
    """The same figure in every variant of the study that has these arms; "" is the study as it stands."""
    figures = {}
    for variant in dict.fromkeys(arm.variant for arm in material.study.arms) if claim.arms else ():
        arms, against = (tuple(in_variant(arm, variant) for arm in group) for group in (claim.arms, claim.against))
        if all(name in material.arms for name in (*arms, *against)):
            figures[variant] = _ours(replace(claim, arms=arms, against=against), material).value
    return figures


def _verdict(claim: Claim, ours: Ours, recomputed: Sequence[float]) -> tuple[str, str, str]:
    """The outcome, what is to be said of it beyond the two figures, and the whole verdict in words."""
    reproduced, not_reproduced, contradicted, unknown, no_verdict = OUTCOMES
    figure_format = FigureFormat(claim.metric, claim.statistic, claim.compare, bool(claim.against))
    reason = "; ".join(_contradictions(claim, figure_format, recomputed))
    if reason:
        suffix = "" if ours.value is None else f"; ours {figure_text(ours.value, figure_format)}"
        return contradicted, reason, f"{contradicted}: {reason}{suffix}"
    if ours.value is None or claim.published is None:
        return unknown, ours.unknown, f"{unknown}: {ours.unknown}" if ours.unknown else unknown
    both = f"{figure_text(ours.value, figure_format)}, published {figure_text(claim.published, figure_format)}"
    if claim.no_verdict:
        return no_verdict, claim.no_verdict, f"{no_verdict}: {both}; {claim.no_verdict}"
    off = ours.value - claim.published
    if abs(off) <= claim.tolerance + 1e-9:  # but for rounding
        return reproduced, "", f"{reproduced}: {both}"
    reason = f"off by {off_text(off, figure_format)}"
    return not_reproduced, reason, f"{not_reproduced}: {both} ({reason})"


def _contradictions(claim: Claim, figure_format: FigureFormat, recomputed: Sequence[float]) -> list[str]:
    """Figures for one thing that differ, and a figure that follows from none of the others that are given."""
    reasons = []
    if len({round(value, 6) for value in claim.stated.values()}) > 1:
        reasons.append(
            ", ".join(f"{figure_text(value, figure_format)} ({where})" for where, value in claim.stated.items())
        )
    published = claim.published
    if recomputed and published is not None and not any(_follows(claim, n, published) for n in range(len(recomputed))):
        many_formulas = len(set(claim.formulas)) > 1
        figures = [
            figure_text(value, figure_format) + (f" (from its {FORMULAS[name].inputs})" if many_formulas else "")
            for name, value in zip(claim.formulas, recomputed, strict=True)
        ]
        reasons.append(
            f"it prints {figure_text(published, figure_format)}, its own figures give {' or '.join(figures)}"
        )
    return reasons


def _follows(claim: Claim, number: int, published: float) -> bool:
    """Whether the published figure can come from one of the lists that are given, but for rounding."""
    low, high = possible(claim.formulas[number], claim.given[number], claim.rounded)
    return _agree(low, published) or _agree(high, published) or low <= published <= high


def _agree(value: float, published: float) -> bool:
    return abs(value - published) <= ROUNDING * max(abs(published), abs(value))
