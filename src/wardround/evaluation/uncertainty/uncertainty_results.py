"""`uncertainty` of results.json, a function of `uncertainty.parquet`: how large it is, and what it is good for, such as
referring rows to a clinician, and detecting errors and changed images."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from wardround.evaluation.comparisons.benefit import origin_of
from wardround.evaluation.comparisons.paired import compare_pairs
from wardround.evaluation.comparisons.patients import Drawn, Resamples, fill_drawn
from wardround.evaluation.intervals import Resampling, summarise, summarise_metrics
from wardround.evaluation.scores import Figures, Scores, within_sites
from wardround.evaluation.uncertainty.uncertainty_rows import MEASURES, PARTS, SeedRows, seeds_of
from wardround.evaluation.uncertainty.uncertainty_scores import describe_calibration, describe_sets, sites_of
from wardround.study.schema import Study, Uncertainty
from wardround.tasks import Task
from wardround.tasks.class_metrics import auc, defined_mean
from wardround.tasks.probabilities import probability_task
from wardround.uncertainty.decision import (
    DOUBT,
    NO_ANSWER_FITS,
    PREDICTION_ADDED,
    Reason,
    referral_reasons,
    referred,
    rows_with,
)
from wardround.uncertainty.referral import SHARES, ReferralCurve, referral_curves, referral_cut

FIGURES = ("accuracy", "auc")  # what the rows that are kept are judged by
ALL, RETAINED, BETWEEN = "all", "kept", "\x1f"  # the last separates these from a site


def score_uncertainty(
    content: dict[str, Any], study: Study, uncertainty: pd.DataFrame, groups: pd.DataFrame, task: Task | None = None
) -> dict[str, Any]:
    """`content` is a whole results.json; it comes back with the `uncertainty` of arms that ask for it. The table has
    the selected arms already. Without a `task` its columns tell which classes or findings there are."""
    of_arm = {str(name): part for name, part in uncertainty.groupby("arm", sort=False)}
    # one figure for all arms: an AUC within sites beside one over all rows could not be compared
    within = any(results["own_models"] for results in content["arms"].values())
    for name, results in content["arms"].items():
        arm = origin_of(study, name)
        if arm.uncertainty is None or name not in of_arm:
            continue
        ensemble, threshold = arm.uncertainty.method == "ensemble", study.evaluation.threshold
        seeds = list(
            seeds_of(of_arm[name], groups, ensemble, threshold, None if task is None else probability_task(task))
        )
        resampling = Resampling.of(study.evaluation_of(arm))
        members = study.evaluation.seeds.count if arm.uncertainty.method == "ensemble" else None
        results["uncertainty"] = describe_arm(seeds, arm.uncertainty, resampling, content["findings"], within, members)
    return content


def describe_arm(
    seeds: Sequence[SeedRows],
    settings: Uncertainty,
    resampling: Resampling,
    findings: Sequence[str] = (),
    within: bool = False,
    members: int | None = None,
) -> dict[str, Any] | None:
    """None where every seed's model has diverged. `within`: AUC is the mean of the sites' own, because in some arm
    sites predict with models of their own. `members` are those of an ensemble."""
    if not seeds:
        return None
    passes = {"none": 1, "ensemble": members}.get(settings.method, settings.passes)
    return {
        "method": settings.method,
        "passes": passes,
        "seeds": len(seeds),
        "parts": _parts(seeds, findings),
        "calibration": describe_calibration(seeds, findings),
        "sets": describe_sets(seeds, settings.alpha, findings),
        "referral": describe_referral(seeds, settings.refer, settings.alpha, resampling, within),
        "errors": describe_errors(seeds, resampling, findings),
        "shifted": describe_shifted(seeds[0]),
    }


def _parts(seeds: Sequence[SeedRows], findings: Sequence[str]) -> dict[str, Any]:
    """Mean uncertainty of test rows in bits; of findings the mean over them, and each."""
    described: dict[str, Any] = {
        name: float(np.mean([rows.task.of_rows(rows.test.measures[name]).mean() for rows in seeds])) for name in PARTS
    }
    described["findings"] = {
        finding: {name: float(np.mean([rows.test.measures[name][:, f].mean() for rows in seeds])) for name in PARTS}
        for f, finding in enumerate(findings)
    }
    return described


# Referral


def describe_referral(
    seeds: Sequence[SeedRows], share: float, alpha: float, resampling: Resampling, within: bool
) -> dict[str, Any]:
    """`share` and `alpha` are the study's settings. `within`: in this arm, or in one that it is compared with, sites
    have models of their own, so that AUC is the mean of the sites' own.

    The curve ranks the test rows themselves, to show the value of ranking by doubt. `at` is what a hospital would
    do by `uncertainty.decision`: it refers rows above a cut that its own validation rows have chosen, and predictions
    that their sets do not support. Rows out of distribution are not known here.
    """
    curves = [_curves(rows, within) for rows in seeds]
    reasons = [reasons_of(rows, share, alpha) for rows in seeds]
    retained = [~referred(of_seed) for of_seed in reasons]
    return {
        "curve": {
            "share": list(SHARES),
            **{name: _means([curve[name].figures for curve in curves]) for name in FIGURES},
        },
        "area": {name: defined_mean([curve[name].area for curve in curves]) for name in FIGURES},
        "gain": {name: defined_mean([curve[name].gain for curve in curves]) for name in FIGURES},
        "at": {
            "target": share,
            "referred": defined_mean([float((~keep).mean()) for keep in retained]),
            "reasons": {
                reason.code: defined_mean([float(rows_with(of_seed[reason]).mean()) for of_seed in reasons])
                for reason in (DOUBT, PREDICTION_ADDED, NO_ANSWER_FITS)
            },
            "sites": _referred_at_sites(seeds, retained),
            "figures": _compared(seeds, retained, resampling, within),
        },
    }


def _referred_at_sites(seeds: Sequence[SeedRows], retained: Sequence[np.ndarray]) -> dict[str, float]:
    pairs = list(zip(seeds, retained, strict=True))
    return {
        site: defined_mean(
            [float((~keep[rows.test.site == site]).mean()) for rows, keep in pairs if site in rows.sites]
        )
        for site in sites_of(seeds)
    }


def _curves(seed_rows: SeedRows, within: bool) -> dict[str, ReferralCurve]:
    """Most doubtful rows of all sites first."""
    doubt = seed_rows.task.of_rows(seed_rows.doubt(seed_rows.test))
    return referral_curves(doubt, lambda rows: _figures(seed_rows, rows, within), FIGURES)


def _figures(seed_rows: SeedRows, chosen: np.ndarray, within: bool) -> dict[str, float]:
    """Of the chosen test rows."""
    rows, task, cut = seed_rows.test.take(chosen), seed_rows.task, seed_rows.cut
    whole = task.figures(rows.label, rows.score, cut)
    if within:
        own = [rows.at(site) for site in dict.fromkeys(rows.site.tolist())]
        whole["auc"] = defined_mean([task.figures(of_site.label, of_site.score, cut)["auc"] for of_site in own])
    return whole


def reasons_of(rows: SeedRows, share: float, alpha: float) -> dict[Reason, np.ndarray]:
    """Why a clinician takes over which test row, by the cuts of its site; by that of all where it has no rows for a cut
    of doubt."""
    known, doubt = (rows.task.of_rows(rows.doubt(side)) for side in (rows.validation, rows.test))
    cut = np.zeros(len(doubt))
    for site in rows.sites:
        own = known[rows.validation.site == site]
        cut[rows.test.site == site] = referral_cut(own if len(own) else known, share)
    return referral_reasons(doubt, cut, rows.answers(rows.cuts(alpha)))


def _compared(
    seeds: Sequence[SeedRows], retained: Sequence[np.ndarray], resampling: Resampling, within: bool
) -> dict[str, Any]:
    """Figures of all rows and of those kept, and their paired difference: over seeds, or over patients with one."""
    parts = []
    for rows, keep in zip(seeds, retained, strict=True):
        whole = _table(rows, rows.task.questions(rows.test.label), list(np.atleast_2d(rows.test.score.T)))
        parts += [whole.assign(site=ALL), whole.assign(site=RETAINED)[keep]]
        if within:
            parts += [whole.assign(site=ALL + BETWEEN + whole["site"])]
            parts += [whole.assign(site=RETAINED + BETWEEN + whole["site"])[keep]]
    table = pd.concat(parts, ignore_index=True)
    scores = Scores.of(table, _patients(seeds), _thresholds(seeds), task=seeds[0].task)
    drawn = Resamples(scores) if len(seeds) == 1 or not resampling.extra else None
    compared = {}
    for metric in FIGURES:
        inside = within and metric == "auc"
        both = _figures_of(scores, RETAINED, inside), _figures_of(scores, ALL, inside)
        again = None
        if drawn is not None:
            again = {RETAINED: (_drawn(drawn, scores, RETAINED, inside), _drawn(drawn, scores, ALL, inside))}
        comparison = compare_pairs(scores.task, {RETAINED: both}, resampling, metric, again)[RETAINED]
        difference = {key: value for key, value in comparison.difference[metric].items() if key != "site"}
        compared[metric] = {
            ALL: comparison.second[metric],
            RETAINED: comparison.first[metric],
            "difference": difference,
        }
    return compared


def _figures_of(scores: Scores, kind: str, within: bool) -> Figures:
    (by_site,) = scores.by_site.values()
    none = np.full((len(scores.seeds), len(scores.metric_names)), np.nan)
    if not within:
        return by_site.get(kind, none)
    own = {site: figures for site, figures in by_site.items() if site.startswith(kind + BETWEEN)}
    return within_sites(own, len(scores.metric_names)) if own else none


def _drawn(drawn: Resamples, scores: Scores, kind: str, within: bool) -> Drawn:
    arm = scores.arms[0]
    if within:
        return drawn.within_sites(arm, [site for site in scores.sites if site.startswith(kind + BETWEEN)])
    if kind in scores.sites:
        return drawn.drawn(arm, kind)
    metrics = len(scores.metric_names)
    return Drawn(np.full((drawn.count, metrics), np.nan), np.ones(metrics))


# Errors


def describe_errors(seeds: Sequence[SeedRows], resampling: Resampling, findings: Sequence[str]) -> dict[str, Any]:
    """Doubt on calls that are right and on those that are wrong, and how well it tells them apart (AUC; of findings the
    mean over them)."""
    doubts = [rows.doubt(rows.test) for rows in seeds]
    tables = [
        _table(rows, rows.task.questions(rows.wrong), rows.task.questions(doubt))
        for rows, doubt in zip(seeds, doubts, strict=True)
    ]
    scores = Scores.of(pd.concat(tables, ignore_index=True), _patients(seeds))
    drawn, arm = Resamples(scores) if len(seeds) == 1 or not resampling.extra else None, scores.arms[0]
    whole = summarise_metrics(scores.metric_names, scores.overall[arm], resampling, ("auc",))
    if drawn is not None:
        fill_drawn(whole, drawn.of(arm), scores.metric_names)
    described = {**_means_of(seeds, doubts), "auc": whole["auc"], "findings": {}}
    for f, name in enumerate(findings):
        each = [_auc(rows.wrong[:, f], doubt[:, f]) for rows, doubt in zip(seeds, doubts, strict=True)]
        own = {"auc": summarise(each, resampling)}
        if drawn is not None:
            fill_drawn(own, drawn.of_finding(arm, scores.findings[f]), scores.metric_names)
        described["findings"][name] = {**_means_of(seeds, doubts, f), **own}
    return described


def _means_of(seeds: Sequence[SeedRows], doubts: Sequence[np.ndarray], finding: int | None = None) -> dict[str, Any]:
    chosen = slice(None) if finding is None else (slice(None), finding)
    pairs = [(rows.wrong[chosen], doubt[chosen]) for rows, doubt in zip(seeds, doubts, strict=True)]
    return {
        "hits": defined_mean([float(doubt[wrong == 0].mean()) for wrong, doubt in pairs if (wrong == 0).any()]),
        "errors": defined_mean([float(doubt[wrong == 1].mean()) for wrong, doubt in pairs if (wrong == 1).any()]),
        "share_wrong": defined_mean([float((wrong == 1).sum() / max(1, (wrong >= 0).sum())) for wrong, _ in pairs]),
    }


def _auc(wrong: np.ndarray, doubt: np.ndarray) -> float:
    known = wrong >= 0
    return auc(wrong[known] == 1, doubt[known])


# Strange images


def describe_shifted(seed_rows: SeedRows) -> dict[str, Any] | None:
    """How well each measure tells changed images from the same images as they were; None where there are none."""
    if not seed_rows.changed:
        return None
    places = pd.MultiIndex.from_arrays([seed_rows.test.site, seed_rows.test.row])
    described: dict[str, Any] = {}
    for shift, rows in seed_rows.changed.items():
        same = seed_rows.test.take(places.get_indexer(pd.MultiIndex.from_arrays([rows.site, rows.row])))
        is_changed = np.arange(2 * len(rows)) < len(rows)
        described[shift] = {"images": len(rows)}
        for name in MEASURES:
            both = np.concatenate([seed_rows.task.of_rows(side.measures[name]) for side in (rows, same)])
            described[shift][name] = None if np.isnan(both).any() else auc(is_changed, both)
    return described


def _table(rows: SeedRows, labels: Sequence[np.ndarray], scores: Sequence[np.ndarray]) -> pd.DataFrame:
    """As `Scores` reads it. Findings and classes are numbered: only their order counts."""
    columns: dict[str, Any] = {"arm": "", "seed": rows.seed, "site": rows.test.site, "row": rows.test.row}
    for name, arrays in (("label", labels), ("score", scores)):
        one = len(arrays) == 1 and not rows.task.findings
        columns |= {name: arrays[0]} if one else {f"{name}_{f:05}": values for f, values in enumerate(arrays)}
    return pd.DataFrame(columns)


def _patients(seeds: Sequence[SeedRows]) -> pd.DataFrame:
    """Whose each row is, with whichever seed it was tested."""
    row_numbers = np.concatenate([rows.test.row for rows in seeds])
    patients = np.concatenate([rows.test.patient for rows in seeds])
    return pd.DataFrame({"row": row_numbers, "patient": patients}).drop_duplicates("row", ignore_index=True)


def _thresholds(seeds: Sequence[SeedRows]) -> pd.DataFrame | None:
    """None with several classes, of which the highest score decides."""
    if seeds[0].task.threshold_rule is None:
        return None
    index = pd.MultiIndex.from_tuples([("", rows.seed) for rows in seeds], names=["arm", "seed"])
    return pd.DataFrame([np.atleast_1d(rows.cut) for rows in seeds], index=index)


def _means(lines: Sequence[Sequence[float]]) -> list[float]:
    return [defined_mean(list(values)) for values in zip(*lines, strict=True)]
