"""What referring the most doubtful rows to a clinician leaves: of classes, findings and numbers alike."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from wardround.evaluation.comparisons.paired import compare_pairs
from wardround.evaluation.comparisons.patients import Drawn, Resamples
from wardround.evaluation.intervals import Resampling
from wardround.evaluation.scores import Figures, Scores, within_sites
from wardround.evaluation.uncertainty.uncertainty_rows import TrialRows, sites_of
from wardround.tasks import METRIC_FACTS
from wardround.tasks.class_metrics import defined_mean
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

ALL, RETAINED, BETWEEN = "all", "kept", "\x1f"  # the last separates these from a site


def describe_referral(
    seeds: Sequence[TrialRows], share: float, alpha: float, resampling: Resampling, within: bool
) -> dict[str, Any]:
    """`share` and `alpha` are the study's settings. `within`: in this arm, or in one that it is compared with, sites
    have models of their own, so that AUC is the mean of the sites' own.

    The curve ranks the test rows themselves, to show the value of ranking by doubt. `at` is what a hospital would
    do by `uncertainty.decision`: it refers rows above a cut that its own validation rows have chosen, and predictions
    that their sets do not support. Rows out of distribution are not known here.
    """
    metrics = seeds[0].task.referral_metrics
    curves = [_curves(rows, within) for rows in seeds]
    reasons = [reasons_of(rows, share, alpha) for rows in seeds]
    retained = [~referred(of_seed) for of_seed in reasons]
    return {
        "curve": {
            "share": list(SHARES),
            **{name: _means([curve[name].figures for curve in curves]) for name in metrics},
        },
        "area": {name: defined_mean([curve[name].area for curve in curves]) for name in metrics},
        "gain": {name: defined_mean([curve[name].gain for curve in curves]) for name in metrics},
        "at": {
            "target": share,
            "referred": defined_mean([float((~keep).mean()) for keep in retained]),
            "reasons": {
                reason.code: defined_mean([float(rows_with(of_seed[reason]).mean()) for of_seed in reasons])
                for reason in (DOUBT, PREDICTION_ADDED, NO_ANSWER_FITS)
                if reason in reasons[0]
            },
            "sites": _referred_at_sites(seeds, retained),
            "figures": _compared(seeds, retained, resampling, within),
        },
    }


def _referred_at_sites(seeds: Sequence[TrialRows], retained: Sequence[np.ndarray]) -> dict[str, float]:
    pairs = list(zip(seeds, retained, strict=True))
    return {
        site: defined_mean(
            [float((~keep[rows.test.site == site]).mean()) for rows, keep in pairs if site in rows.sites]
        )
        for site in sites_of(seeds)
    }


def _curves(seed_rows: TrialRows, within: bool) -> dict[str, ReferralCurve]:
    """Most doubtful rows of all sites first."""
    doubt = seed_rows.task.of_rows(seed_rows.doubt(seed_rows.test))
    return referral_curves(doubt, lambda rows: _figures(seed_rows, rows, within), seed_rows.task.referral_metrics)


def _figures(seed_rows: TrialRows, chosen: np.ndarray, within: bool) -> dict[str, float]:
    """Of the chosen test rows."""
    rows, task, cut = seed_rows.test.take(chosen), seed_rows.task, seed_rows.cut
    whole = task.figures(rows.label, rows.score, cut)
    if within:
        own = [rows.at(site) for site in dict.fromkeys(rows.site.tolist())]
        each = [task.figures(of_site.label, of_site.score, cut) for of_site in own]
        ranked = [name for name in task.referral_metrics if METRIC_FACTS[name].ranked]
        whole |= {name: defined_mean([figures[name] for figures in each]) for name in ranked}
    return whole


def reasons_of(rows: TrialRows, share: float, alpha: float) -> dict[Reason, np.ndarray]:
    """Why a clinician takes over which test row, by the cuts of its site; by that of all where it has no rows for a cut
    of doubt."""
    known, doubt = (rows.task.of_rows(rows.doubt(side)) for side in (rows.validation, rows.test))
    cut = np.zeros(len(doubt))
    for site in rows.sites:
        own = known[rows.validation.site == site]
        cut[rows.test.site == site] = referral_cut(own if len(own) else known, share)
    return referral_reasons(doubt, cut, rows.answers_at(alpha))


def _compared(
    seeds: Sequence[TrialRows], retained: Sequence[np.ndarray], resampling: Resampling, within: bool
) -> dict[str, Any]:
    """Figures of all rows and of those kept, and their paired difference: over seeds, or over patients with one."""
    parts = []
    for rows, keep in zip(seeds, retained, strict=True):
        whole = as_table(rows, rows.task.questions(rows.test.label), list(np.atleast_2d(rows.test.score.T)))
        parts += [whole.assign(site=ALL), whole.assign(site=RETAINED)[keep]]
        if within:
            parts += [whole.assign(site=ALL + BETWEEN + whole["site"])]
            parts += [whole.assign(site=RETAINED + BETWEEN + whole["site"])[keep]]
    table = pd.concat(parts, ignore_index=True)
    scores = Scores.of(table, patients_of(seeds), _thresholds(seeds), task=seeds[0].task)
    drawn = Resamples(scores) if len(seeds) == 1 or not resampling.extra else None
    compared = {}
    for metric in seeds[0].task.referral_metrics:
        inside = within and METRIC_FACTS[metric].ranked
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


def as_table(rows: TrialRows, labels: Sequence[np.ndarray], scores: Sequence[np.ndarray]) -> pd.DataFrame:
    """As `Scores` reads it. Findings and classes are numbered: only their order counts."""
    columns: dict[str, Any] = {"arm": "", "seed": rows.seed, "site": rows.test.site, "row": rows.test.row}
    for name, arrays in (("label", labels), ("score", scores)):
        one = len(arrays) == 1 and not rows.task.findings
        columns |= {name: arrays[0]} if one else {f"{name}_{f:05}": values for f, values in enumerate(arrays)}
    return pd.DataFrame(columns)


def patients_of(seeds: Sequence[TrialRows]) -> pd.DataFrame:
    """Whose each row is, with whichever seed it was tested."""
    row_numbers = np.concatenate([rows.test.row for rows in seeds])
    patients = np.concatenate([rows.test.patient for rows in seeds])
    return pd.DataFrame({"row": row_numbers, "patient": patients}).drop_duplicates("row", ignore_index=True)


def _thresholds(seeds: Sequence[TrialRows]) -> pd.DataFrame | None:
    """None with several classes, of which the highest score decides."""
    if seeds[0].task.threshold_rule is None:
        return None
    index = pd.MultiIndex.from_tuples([("", rows.seed) for rows in seeds], names=["arm", "seed"])
    return pd.DataFrame([np.atleast_1d(rows.cut) for rows in seeds], index=index)


def _means(lines: Sequence[Sequence[float]]) -> list[float]:
    return [defined_mean(list(values)) for values in zip(*lines, strict=True)]
