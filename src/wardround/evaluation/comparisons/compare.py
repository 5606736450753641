"""Comparisons of arms, paired over seeds.

The verdict follows from the corrected resampled t-test (`intervals.py`, `differences.py`). For an appendix there are
also the plain paired t-test and the independent two-sample t-test that papers often print, which treat splits of one
set of patients as independent studies and reject too often, and a bootstrap (BCa) over patients where a metric is a
mean over rows, else over seeds.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from wardround.evaluation.comparisons.differences import UNKNOWN, difference_of, is_clear
from wardround.evaluation.comparisons.measures import Measure
from wardround.evaluation.intervals import CONFIDENCE, NO_SPREAD, Resampling, p_value
from wardround.evaluation.scores import within_sites
from wardround.evaluation.summaries.merged_summaries import Scored
from wardround.tasks import METRIC_FACTS

RESAMPLES = 2000
BATCH_CELLS = 2**22  # numbers in one batch of a bootstrap


def compare_arms(
    scores: Scored,
    arms: Sequence[str],
    reference: str,
    resampling: Resampling,
    within: bool,
    primary: str,
) -> list[dict[str, Any]]:
    """Every arm against the reference in every compared metric, as yet uncorrected for their number.

    `within`: metrics that rank rows are compared within sites, because some arm has a model for each site or its AUC
    over all sites is not exact.
    """
    tests: list[dict[str, Any]] = []
    for metric in dict.fromkeys((primary, *scores.task.compared)):
        place, inside = scores.metric_names.index(metric), within and METRIC_FACTS[metric].ranked
        base, *lines = (_figures(scores, name, inside)[:, place] for name in (reference, *arms))
        bootstraps = _over_seeds([line - base for line in lines])
        if metric == scores.task.curve:  # a mean over rows
            over_patients = _over_patients(scores, arms, reference)
            bootstraps = [a or b for a, b in zip(over_patients, bootstraps, strict=True)]
        tests += [
            {
                "arm": arm,
                "reference": reference,
                **_test(metric, line, base, resampling),
                "within_sites": inside,
                "bootstrap": bootstrap,
            }
            for arm, line, bootstrap in zip(arms, lines, bootstraps, strict=True)
        ]
    return tests


def _figures(scores: Scored, name: str, inside: bool) -> np.ndarray:
    return within_sites(scores.by_site[name], len(scores.metric_names)) if inside else scores.overall[name]


def _test(metric: str, arm: np.ndarray, reference: np.ndarray, resampling: Resampling) -> dict[str, Any]:
    both = ~np.isnan(arm) & ~np.isnan(reference)
    a, b = arm[both], reference[both]
    difference = np.where(np.abs(a - b) < NO_SPREAD, 0.0, a - b)
    return {
        **difference_of(difference, metric, resampling),
        "p_value_paired": p_value(difference, Resampling(0.0)),
        **_independent(a, b),
        "effect": _effect(a, b),
    }


def _independent(a: np.ndarray, b: np.ndarray) -> dict[str, float | None]:
    """Student's t for two independent samples of equal variance."""
    if len(a) < 2 or a.std() + b.std() < NO_SPREAD:
        return {"t_independent": None, "p_value_independent": None}
    test = stats.ttest_ind_from_stats(a.mean(), a.std(ddof=1), len(a), b.mean(), b.std(ddof=1), len(b))
    return {"t_independent": float(test.statistic), "p_value_independent": float(test.pvalue)}


def _effect(a: np.ndarray, b: np.ndarray) -> dict[str, float | None]:
    """Cohen's d of both kinds: d_z over the SD of the paired differences, d_s over the pooled SD of the two arms."""
    if len(a) < 2:
        return {"d_z": None, "d_s": None}
    difference = a - b
    paired, pooled = difference.std(ddof=1), np.sqrt((a.var(ddof=1) + b.var(ddof=1)) / 2)
    return {
        "d_z": float(difference.mean() / paired) if paired > NO_SPREAD else None,
        "d_s": float(difference.mean() / pooled) if pooled > NO_SPREAD else None,
    }


def _over_patients(scores: Scored, arms: Sequence[str], reference: str) -> list[dict[str, Any] | None]:
    """BCa interval of the difference in a mean over rows, if other patients like these were tested by the same models.

    None for an arm that was not tested on the reference's rows, where one of both has diverged, and without rows.
    """
    by_patient = scores.by_patient((reference, *arms))
    lines: list[tuple[np.ndarray, ...] | None] = []
    for arm in arms:
        a, b = by_patient[arm], by_patient[reference]
        if a is None or b is None or (a[1] != b[1]).any():
            lines.append(None)
        else:
            lines.append((a[0] - b[0], a[1]))
    tested = np.any([line[1] for line in lines if line is not None], axis=0)  # in any arm
    lines = [None if line is None else tuple(column[tested] for column in line) for line in lines]

    def mean(gained: np.ndarray, count: np.ndarray, axis: int) -> np.ndarray:
        return np.asarray(gained.sum(axis=axis) / count.sum(axis=axis))

    return _bca(lines, mean, "patients")


def _over_seeds(differences: Sequence[np.ndarray]) -> list[dict[str, Any] | None]:
    """BCa interval of the mean difference over seeds, as if seeds shared no patients."""
    return _bca([None if np.isnan(x).any() else (x,) for x in differences], np.mean, "seeds")


def _bca(lines: Sequence[tuple[np.ndarray, ...] | None], statistic: Any, unit: str) -> list[dict[str, Any] | None]:
    """One interval for each line; None for lines without any spread."""
    varied = {n: line for n, line in enumerate(lines) if line and len(line[0]) > 1 and line[0].std() > NO_SPREAD}
    intervals: list[dict[str, Any] | None] = [None] * len(lines)
    if not varied:
        return intervals
    data = tuple(np.stack(columns) for columns in zip(*varied.values(), strict=True))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)  # such a line's limits are NaN and left out below
        limits = stats.bootstrap(
            data,
            statistic,
            paired=True,
            vectorized=True,
            axis=-1,
            n_resamples=RESAMPLES,
            batch=max(1, BATCH_CELLS // data[0].size),
            confidence_level=CONFIDENCE,
            method="BCa",
            rng=np.random.default_rng(0),  # a figure of a report must not change from one reading to the next
        ).confidence_interval
    for number, low, high in zip(varied, np.atleast_1d(limits.low), np.atleast_1d(limits.high), strict=True):
        if np.isfinite([low, high]).all():
            interval = [float(low), float(high)]
            intervals[number] = {"interval": interval, "unit": unit, "method": "BCa", "resamples": RESAMPLES}
    return intervals


def sentence(test: Mapping[str, Any], measure: Measure) -> str:
    name, difference, word = test["arm"], test["difference"], measure.metric.words
    if difference is None:
        return f"{name}: cannot be compared with {test['reference']} in {word}: one of them has no figures."
    word = f"{word} within sites" if test.get("within_sites") else word
    amount = f"{measure.difference(difference)} of {word} against {test['reference']}"
    if test["verdict"] == UNKNOWN:
        return f"{name}: {amount}; {why_unknown(test)}."
    if not is_clear(test):
        if test["sd"] == difference == 0:
            return f"{name}: no difference in {word} from {test['reference']} with any seed."
        return f"{name}: no evidence of a difference: {amount}, {interval_words(test, measure)}."
    verdict = "better" if (difference < 0) == measure.metric.lower_is_better else "worse"
    return f"{name}: {verdict}: {amount}, {interval_words(test, measure)}."


def why_unknown(entry: Mapping[str, Any]) -> str:
    if entry["seeds"] == 1:
        return "one seed gives no interval, so that this may be chance"
    if entry["sd"] == 0:
        return "the same with every seed, so that whether this is chance cannot be told"
    return "there is no interval, so that this may be chance"


def interval_words(entry: Mapping[str, Any], measure: Measure) -> str:
    count = entry["comparisons"]
    return f"95 % CI {measure.limits(entry)}" + (f", corrected for {count} comparisons" if count > 1 else "")
