"""What was published, what we found, and a verdict.

* reproduced                  ours is within the claim's tolerance of the published figure
* not reproduced              it is not; the verdict says by how much
* contradicted by its source  figures that the source gives for one thing differ, or do not follow from one another
* cannot be computed          there is no figure of ours
* no verdict                  the study says why the two are only set side by side

What ours is stands in `claim_metrics.py`, what follows from a source's other figures in `claim_formulas.py`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from wardround.evaluation.claims.claim_formulas import FORMULAS, possible
from wardround.evaluation.claims.claim_metrics import MEASURES, Material, Measured, statistic_of
from wardround.evaluation.claims.claim_text import Written, figure_text, off_text
from wardround.evaluation.intervals import Resampling, mean_interval
from wardround.evaluation.scores import Scored
from wardround.study.claims import METRIC, QUANTITIES, Claim
from wardround.study.schema import Study, in_variant

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
    """`arms` are the results so far, `sites` the descriptions of the study's sites."""
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
    """How many claims have each outcome, in the order of OUTCOMES."""
    found = [claim["outcome"] for claim in claims]
    return {outcome: found.count(outcome) for outcome in OUTCOMES}


def by_group(claims: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Claims by the subject that the study gives them, in the order in which subjects are first named."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for claim in claims:
        found.setdefault(claim["group"], []).append(claim)
    return found


def _ours(claim: Claim, material: Material) -> Ours:
    quantity, measure = QUANTITIES.get(claim.metric, METRIC), MEASURES[claim.metric]
    lacking = [arm for arm in (*claim.arms, *claim.against) if arm not in material.arms]
    if quantity.of == "sites":
        return _one(measure(material, claim.arms, claim.site), claim)
    if not claim.arms or lacking:
        return Ours(None)
    if quantity.of == "pair":
        return _one(measure(material, (*claim.arms, *claim.against), claim.site), claim)
    measured, others = (
        [measure(material, (arm,), claim.site) for arm in group] for group in (claim.arms, claim.against)
    )
    unknown = next((one.unknown for one in (*measured, *others) if one.unknown), "")
    if unknown:
        return Ours(None, unknown=unknown)
    if claim.statistic == "mean" and claim.compare == "difference" and measured[0].seeds is not None:
        return _over_seeds(claim, material, measured, others)
    return _of_statistics(claim, measured, others)


def _one(measured: Measured, claim: Claim) -> Ours:
    return Ours(statistic_of(measured, claim.statistic), unknown=measured.unknown)


def _over_seeds(claim: Claim, material: Material, measured: Sequence[Measured], others: Sequence[Measured]) -> Ours:
    """A mean over seeds with its interval; a difference is taken seed by seed."""
    lines = [np.asarray(one.seeds) for one in measured]
    if others:
        lines = [line - np.asarray(other.seeds) for line, other in zip(lines, others, strict=True)]
    mean = np.mean(lines, axis=0)
    known = mean[~np.isnan(mean)]
    each = {arm: statistic_of(Measured(line), "mean") for arm, line in zip(claim.arms, lines, strict=True)}
    if not len(known):
        return Ours(None, each=each)
    described, study = material.arms[claim.arms[0]], material.study
    alike = (described["family"], described["variant"])
    first = next(arm for arm in study.arms if (arm.family, arm.variant) == alike)
    interval = mean_interval(known, Resampling.of(study.evaluation_of(first)))
    return Ours(float(known.mean()), list(interval) if interval else None, each)


def _of_statistics(claim: Claim, measured: Sequence[Measured], others: Sequence[Measured]) -> Ours:
    """Each arm has one figure; those of `arms` and of `against` are averaged, then compared."""
    names = (*claim.arms, *claim.against)
    figures = [statistic_of(one, claim.statistic) for one in (*measured, *others)]
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
    found = {}
    for variant in dict.fromkeys(arm.variant for arm in material.study.arms) if claim.arms else ():
        arms, against = (tuple(in_variant(arm, variant) for arm in group) for group in (claim.arms, claim.against))
        if all(name in material.arms for name in (*arms, *against)):
            found[variant] = _ours(replace(claim, arms=arms, against=against), material).value
    return found


def _verdict(claim: Claim, ours: Ours, recomputed: Sequence[float]) -> tuple[str, str, str]:
    """The outcome, what is to be said of it beyond the two figures, and the whole verdict in words."""
    reproduced, not_reproduced, contradicted, unknown, side_by_side = OUTCOMES
    written = Written(claim.metric, claim.statistic, claim.compare, bool(claim.against))
    reason = "; ".join(_contradictions(claim, written, recomputed))
    if reason:
        beside = "" if ours.value is None else f"; ours {figure_text(ours.value, written)}"
        return contradicted, reason, f"{contradicted}: {reason}{beside}"
    if ours.value is None or claim.published is None:
        return unknown, ours.unknown, f"{unknown}: {ours.unknown}" if ours.unknown else unknown
    both = f"{figure_text(ours.value, written)}, published {figure_text(claim.published, written)}"
    if claim.no_verdict:
        return side_by_side, claim.no_verdict, f"{side_by_side}: {both}; {claim.no_verdict}"
    off = ours.value - claim.published
    if abs(off) <= claim.tolerance + 1e-9:  # but for rounding
        return reproduced, "", f"{reproduced}: {both}"
    reason = f"off by {off_text(off, written)}"
    return not_reproduced, reason, f"{not_reproduced}: {both} ({reason})"


def _contradictions(claim: Claim, written: Written, recomputed: Sequence[float]) -> list[str]:
    """Figures for one thing that differ, and a figure that follows from none of the others that are given."""
    found = []
    if len({round(value, 6) for value in claim.stated.values()}) > 1:
        found.append(", ".join(f"{figure_text(value, written)} ({where})" for where, value in claim.stated.items()))
    wrong = [number for number in range(len(recomputed)) if not _follows(claim, number)]
    if wrong and len(wrong) == len(recomputed) and claim.published is not None:
        several = len(set(claim.formulas)) > 1
        figures = [
            figure_text(value, written) + (f" (from its {FORMULAS[name].words})" if several else "")
            for name, value in zip(claim.formulas, recomputed, strict=True)
        ]
        found.append(f"it prints {figure_text(claim.published, written)}, its own figures give {' or '.join(figures)}")
    return found


def _follows(claim: Claim, number: int) -> bool:
    """Whether the published figure can come from one of the lists that are given, but for rounding."""
    if claim.published is None:
        return False
    low, high = possible(claim.formulas[number], claim.given[number], claim.rounded)
    return _agree(low, claim.published) or _agree(high, claim.published) or low <= claim.published <= high


def _agree(value: float, published: float) -> bool:
    return abs(value - published) <= ROUNDING * max(abs(published), abs(value))
