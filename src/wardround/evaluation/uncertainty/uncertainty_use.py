"""What uncertainty is good for: leaving rows to a clinician, telling errors from hits and strange images from usual."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from wardround.evaluation.comparisons.differences import correct, difference_of
from wardround.evaluation.comparisons.patients import Drawn, Resamples, compare_drawn, fill_drawn
from wardround.evaluation.intervals import Resampling, summarise, summarise_metrics
from wardround.evaluation.metrics import auc, metrics
from wardround.evaluation.scores import Figures, Scores, within_sites
from wardround.evaluation.uncertainty.uncertainty_rows import MEASURES, SeedRows, Sided
from wardround.study.schema import METRICS
from wardround.uncertainty.decision import (
    CALL_ADDED,
    DOUBT,
    NO_ANSWER_FITS,
    Reason,
    referral_reasons,
    referred,
    rows_with,
)
from wardround.uncertainty.decomposition import of_rows
from wardround.uncertainty.referral import SHARES, ReferralCurve, referral_cut, referred_rows

FIGURES = ("accuracy", "auc")  # what the rows that are kept are judged by
ALL, KEPT, BETWEEN = "all", "kept", "\x1f"  # the last stands between these and a site


# Referral


def describe_referral(
    seeds: Sequence[SeedRows], share: float, alpha: float, resampling: Resampling, within: bool
) -> dict[str, Any]:
    """`share` and `alpha` as the study asks for them. `within`: in this arm, or in one that it is compared with, sites
    have models of their own, so that AUC is the mean of the sites' own.

    The curve ranks the test rows themselves, to show what the order of doubt is worth. `at` is what a hospital would
    do by `uncertainty.decision`: it refers above a cut that its own validation rows have chosen, and calls that their
    sets do not bear out. Rows that are far are not known here.
    """
    curves = [_curves(one, within) for one in seeds]
    reasons = [reasons_of(one, share, alpha) for one in seeds]
    kept = [~referred(one) for one in reasons]
    sites = list(dict.fromkeys(site for one in seeds for site in one.sites))
    return {
        "curve": {
            "share": list(SHARES),
            **{name: _means([curve[name].figures for curve in curves]) for name in FIGURES},
        },
        "area": {name: _mean([curve[name].area for curve in curves]) for name in FIGURES},
        "gain": {name: _mean([curve[name].gain for curve in curves]) for name in FIGURES},
        "at": {
            "asked": share,
            "referred": _mean([float((~here).mean()) for here in kept]),
            "reasons": {
                reason.code: _mean([float(rows_with(own[reason]).mean()) for own in reasons])
                for reason in (DOUBT, CALL_ADDED, NO_ANSWER_FITS)
            },
            "sites": {
                site: _mean([float((~here[one.test.site == site]).mean()) for one, here in _of(seeds, kept, site)])
                for site in sites
            },
            "figures": _compared(seeds, kept, resampling, within),
        },
    }


def _of(seeds: Sequence[SeedRows], kept: Sequence[np.ndarray], site: str) -> list[tuple[SeedRows, np.ndarray]]:
    return [(one, here) for one, here in zip(seeds, kept, strict=True) if site in one.sites]


def _curves(one: SeedRows, within: bool) -> dict[str, ReferralCurve]:
    """Most doubtful rows of all sites first; of equals, those that come first."""
    order = np.argsort(-of_rows(one.doubt(one.test)), kind="stable")
    kept = [order[referred_rows(len(order), share) :] for share in SHARES]
    figures = [_figures(one.test.take(rows), one.cut, within) for rows in kept]
    sizes = tuple(len(rows) for rows in kept)
    return {name: ReferralCurve(name, SHARES, tuple(found[name] for found in figures), sizes) for name in FIGURES}


def _figures(rows: Sided, cut: np.ndarray | float, within: bool) -> dict[str, float]:
    whole = metrics(rows.label, rows.score, cut)
    if within:
        own = [rows.at(site) for site in dict.fromkeys(rows.site.tolist())]
        whole["auc"] = _mean([metrics(one.label, one.score, cut)["auc"] for one in own])
    return whole


def reasons_of(one: SeedRows, share: float, alpha: float) -> dict[Reason, np.ndarray]:
    """Why a clinician takes over which test row, by the cuts of its site; by that of all where it has no rows for a cut
    of doubt."""
    known, doubt = of_rows(one.doubt(one.validation)), of_rows(one.doubt(one.test))
    cut = np.zeros(len(doubt))
    for site in one.sites:
        own = known[one.validation.site == site]
        cut[one.test.site == site] = referral_cut(own if len(own) else known, share)
    return referral_reasons(doubt, cut, one.answers(one.cuts(alpha)))


def _compared(
    seeds: Sequence[SeedRows], kept: Sequence[np.ndarray], resampling: Resampling, within: bool
) -> dict[str, Any]:
    """Figures of all rows and of those kept, and their paired difference: over seeds, or over patients with one."""
    parts = []
    for one, here in zip(seeds, kept, strict=True):
        whole = _table(one, one.test.label, one.test.score)
        parts += [whole.assign(site=ALL), whole.assign(site=KEPT)[here]]
        if within:
            parts += [whole.assign(site=ALL + BETWEEN + whole["site"])]
            parts += [whole.assign(site=KEPT + BETWEEN + whole["site"])[here]]
    scores = Scores.of(pd.concat(parts, ignore_index=True), _patients(seeds), _thresholds(seeds))
    drawn = Resamples(scores) if len(seeds) == 1 or not resampling.extra else None
    told = {}
    for metric in FIGURES:
        inside, place = within and metric == "auc", METRICS.index(metric)
        both = {kind: _side(scores, kind, inside) for kind in (ALL, KEPT)}
        entry: dict[str, Any] = {
            kind: summarise_metrics(both[kind], resampling, (metric,))[metric] for kind in (ALL, KEPT)
        }
        entry["difference"] = difference_of((both[KEPT] - both[ALL])[:, place], metric, resampling)
        if drawn is not None:
            again = {kind: _drawn(drawn, scores, kind, inside) for kind in (ALL, KEPT)}
            for kind in (ALL, KEPT):
                fill_drawn({metric: entry[kind]}, again[kind].figures)
            compare_drawn(entry["difference"], again[KEPT], again[ALL])
            correct([entry["difference"]])
        told[metric] = entry
    return told


def _side(scores: Scores, kind: str, within: bool) -> Figures:
    (by_site,) = scores.by_site.values()
    none = np.full((len(scores.seeds), len(METRICS)), np.nan)
    if not within:
        return by_site.get(kind, none)
    own = {site: figures for site, figures in by_site.items() if site.startswith(kind + BETWEEN)}
    return within_sites(own) if own else none


def _drawn(drawn: Resamples, scores: Scores, kind: str, within: bool) -> Drawn:
    arm = scores.arms[0]
    if within:
        return drawn.within_sites(arm, [site for site in scores.sites if site.startswith(kind + BETWEEN)])
    if kind in scores.sites:
        return drawn.drawn(arm, kind)
    return Drawn(np.full((drawn.count, len(METRICS)), np.nan), np.ones(len(METRICS)))


# Errors


def describe_errors(seeds: Sequence[SeedRows], resampling: Resampling, findings: Sequence[str]) -> dict[str, Any]:
    """Doubt on calls that are right and on those that are wrong, and how well it tells them apart (AUC; of findings the
    mean over them)."""
    doubts = [one.doubt(one.test) for one in seeds]
    tables = [_table(one, one.wrong, doubt) for one, doubt in zip(seeds, doubts, strict=True)]
    scores = Scores.of(pd.concat(tables, ignore_index=True), _patients(seeds))
    drawn, arm = Resamples(scores) if len(seeds) == 1 or not resampling.extra else None, scores.arms[0]
    whole = summarise_metrics(scores.overall[arm], resampling, ("auc",))
    if drawn is not None:
        fill_drawn(whole, drawn.of(arm))
    told = {**_means_of(seeds, doubts), "auc": whole["auc"], "findings": {}}
    for f, name in enumerate(findings):
        each = [_auc(one.wrong[:, f], doubt[:, f]) for one, doubt in zip(seeds, doubts, strict=True)]
        own = {"auc": summarise(each, resampling)}
        if drawn is not None:
            fill_drawn(own, drawn.of_finding(arm, scores.findings[f]))
        told["findings"][name] = {**_means_of(seeds, doubts, f), **own}
    return told


def _means_of(seeds: Sequence[SeedRows], doubts: Sequence[np.ndarray], finding: int | None = None) -> dict[str, Any]:
    chosen = slice(None) if finding is None else (slice(None), finding)
    pairs = [(one.wrong[chosen], doubt[chosen]) for one, doubt in zip(seeds, doubts, strict=True)]
    return {
        "hits": _mean([float(doubt[wrong == 0].mean()) for wrong, doubt in pairs if (wrong == 0).any()]),
        "errors": _mean([float(doubt[wrong == 1].mean()) for wrong, doubt in pairs if (wrong == 1).any()]),
        "share_wrong": _mean([float((wrong == 1).sum() / max(1, (wrong >= 0).sum())) for wrong, _ in pairs]),
    }


def _auc(wrong: np.ndarray, doubt: np.ndarray) -> float:
    known = wrong >= 0
    return auc(wrong[known] == 1, doubt[known])


# Strange images


def describe_shifted(one: SeedRows) -> dict[str, Any] | None:
    """How well each measure tells changed images from the same images as they were; None where there are none."""
    if not one.changed:
        return None
    places = {key: place for place, key in enumerate(zip(one.test.site.tolist(), one.test.row.tolist(), strict=True))}
    told: dict[str, Any] = {}
    for shift, rows in one.changed.items():
        same = one.test.take(
            np.array([places[key] for key in zip(rows.site.tolist(), rows.row.tolist(), strict=True)], dtype=np.int64)
        )
        is_changed = np.arange(2 * len(rows)) < len(rows)
        told[shift] = {"images": len(rows)}
        for name in MEASURES:
            both = np.concatenate([of_rows(rows.measures[name]), of_rows(same.measures[name])])
            told[shift][name] = None if np.isnan(both).any() else auc(is_changed, both)
    return told


def _table(one: SeedRows, label: np.ndarray, score: np.ndarray) -> pd.DataFrame:
    """As `Scores` reads it. Findings and classes are numbered: only their order counts."""
    labels = {"label": label} if label.ndim == 1 else {f"label_{f:05}": label[:, f] for f in range(label.shape[1])}
    scores = {"score": score} if score.ndim == 1 else {f"score_{f:05}": score[:, f] for f in range(score.shape[1])}
    return pd.DataFrame({"arm": "", "seed": one.seed, "site": one.test.site, "row": one.test.row, **labels, **scores})


def _patients(seeds: Sequence[SeedRows]) -> pd.DataFrame:
    """Whose each row is, with whichever seed it was tested."""
    rows = np.concatenate([one.test.row for one in seeds])
    patients = np.concatenate([one.test.patient for one in seeds])
    return pd.DataFrame({"row": rows, "patient": patients}).drop_duplicates("row", ignore_index=True)


def _thresholds(seeds: Sequence[SeedRows]) -> pd.DataFrame | None:
    """None with several classes, of which the highest score decides."""
    if seeds[0].test.score.ndim == 2 and not seeds[0].findings:
        return None
    index = pd.MultiIndex.from_tuples([("", one.seed) for one in seeds], names=["arm", "seed"])
    return pd.DataFrame([np.atleast_1d(one.cut) for one in seeds], index=index)


def _means(lines: Sequence[Sequence[float]]) -> list[float]:
    return [_mean(list(values)) for values in zip(*lines, strict=True)]


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not np.isnan(value)]
    return float(np.mean(known)) if known else float("nan")
