"""Two arms against each other: paired over seeds, by tests that a reviewer can follow.

The verdict follows from the corrected resampled t-test (`intervals.py`, `differences.py`). Beside it stand, for an
appendix, the plain paired t-test and the independent two-sample t-test that papers often print, which take splits of
one set of patients for independent studies and reject too often, and a bootstrap (BCa) over patients where a metric is
a mean over rows, else over seeds.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from wardround.evaluation.comparisons.differences import NO_SPREAD, UNKNOWN, difference_of, is_clear
from wardround.evaluation.intervals import CONFIDENCE, Resampling, p_value
from wardround.evaluation.scores import Scored, within_sites
from wardround.study.schema import LOWER_IS_BETTER, METRICS

RANKED = ("auc", "pr_auc")  # metrics that set rows of different sites against each other
COMPARED = ("accuracy", "auc", "f1", "brier", "loss")  # beside the primary metric
# of metrics that are not called what they are named
WORDS = {"auc": "AUC", "pr_auc": "PR-AUC", "f1": "F1", "ppv": "PPV", "npv": "NPV", "brier": "Brier score"}
IN_POINTS = tuple(metric for metric in METRICS if metric not in LOWER_IS_BETTER)  # shown as points of a hundred
MOST_DIGITS = 6  # of a limit
RESAMPLES = 2000
BATCH_CELLS = 2**22  # numbers that one piece of a bootstrap may hold


@dataclass(frozen=True)
class Pair:
    arm: str
    reference: str


def compare_arms(
    scores: Scored, pairs: Sequence[Pair], resampling: Resampling, within: bool = False, primary: str = "accuracy"
) -> list[dict[str, Any]]:
    """Every pair in every compared metric, as yet uncorrected for their number.

    `within`: metrics that rank rows are compared within sites, because some arm has a model for each site or its AUC
    over all sites is not exact.
    """
    tests: list[dict[str, Any]] = []
    for metric in dict.fromkeys((primary, *COMPARED)):
        place, inside = METRICS.index(metric), within and metric in RANKED
        lines = [
            (_figures(scores, pair.arm, inside)[:, place], _figures(scores, pair.reference, inside)[:, place])
            for pair in pairs
        ]
        of_metric = [
            _test(pair, metric, arm, reference, resampling) | {"within_sites": inside}
            for pair, (arm, reference) in zip(pairs, lines, strict=True)
        ]
        bootstraps = _over_seeds(lines)
        if metric == "accuracy":
            bootstraps = [a or b for a, b in zip(_over_patients(scores, pairs), bootstraps, strict=True)]
        for test, bootstrap in zip(of_metric, bootstraps, strict=True):
            test["bootstrap"] = bootstrap
        tests += of_metric
    return tests


def _figures(scores: Scored, name: str, inside: bool) -> np.ndarray:
    return within_sites(scores.by_site[name]) if inside else scores.overall[name]


def _test(pair: Pair, metric: str, arm: np.ndarray, reference: np.ndarray, resampling: Resampling) -> dict[str, Any]:
    both = ~np.isnan(arm) & ~np.isnan(reference)
    a, b = arm[both], reference[both]
    difference = np.where(np.abs(a - b) < NO_SPREAD, 0.0, a - b)
    return {
        "arm": pair.arm,
        "reference": pair.reference,
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


def _over_patients(scores: Scored, pairs: Sequence[Pair]) -> list[dict[str, Any] | None]:
    """BCa interval of the difference in accuracy if other patients like these had been tested by the same models.

    None for a pair that was not tested on the same rows, or of which one has diverged, and where rows are out of reach.
    """
    right = scores.hits_by_patient(dict.fromkeys(name for pair in pairs for name in (pair.arm, pair.reference)))
    made: list[dict[str, Any] | None] = [None] * len(pairs)
    whole, counts, places_of = [], [], []
    for place, pair in enumerate(pairs):
        a, b = right[pair.arm], right[pair.reference]
        if a is not None and b is not None and (a[1] == b[1]).all():
            whole.append(a[0] - b[0])
            counts.append(a[1])
            places_of.append(place)
    if whole:
        there = np.stack(counts).any(axis=0)

        def accuracy(gained: np.ndarray, count: np.ndarray, axis: int) -> np.ndarray:
            return np.asarray(gained.sum(axis=axis) / count.sum(axis=axis))

        intervals = _bca((np.stack(whole)[:, there], np.stack(counts)[:, there]), accuracy, "patients")
        for place, bootstrap in zip(places_of, intervals, strict=True):
            made[place] = bootstrap
    return made


def _over_seeds(lines: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[dict[str, Any] | None]:
    """BCa interval of the mean difference over seeds. It knows nothing of seeds sharing patients."""
    made: list[dict[str, Any] | None] = []
    whole, places = [], []
    for number, (arm, reference) in enumerate(lines):
        difference = arm - reference
        made.append(None)
        if not np.isnan(difference).any() and len(difference) > 1:
            whole.append(difference)
            places.append(number)
    if whole:
        for number, bootstrap in zip(places, _bca((np.stack(whole),), _mean, "seeds"), strict=True):
            made[number] = bootstrap
    return made


def _mean(values: np.ndarray, axis: int) -> np.ndarray:
    return np.asarray(values.mean(axis=axis))


def _bca(data: tuple[np.ndarray, ...], statistic: Any, unit: str) -> list[dict[str, Any] | None]:
    """One interval for each line of `data`. Lines without any spread have none."""
    varied = data[0].std(axis=1) > NO_SPREAD
    made: list[dict[str, Any] | None] = [None] * len(varied)
    if data[0].shape[1] < 2 or not varied.any():
        return made
    chosen = tuple(part[varied] for part in data)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)  # such a line's limits are NaN and left out below
        limits = stats.bootstrap(
            chosen,
            statistic,
            paired=True,
            vectorized=True,
            axis=-1,
            n_resamples=RESAMPLES,
            batch=max(1, BATCH_CELLS // chosen[0].size),
            confidence_level=CONFIDENCE,
            method="BCa",
            rng=np.random.default_rng(0),  # a figure of a report must not change from one reading to the next
        ).confidence_interval
    low_limits, high_limits = np.atleast_1d(limits.low), np.atleast_1d(limits.high)
    for number, low, high in zip(np.flatnonzero(varied).tolist(), low_limits, high_limits, strict=True):
        if np.isfinite([low, high]).all():
            made[number] = {
                "interval": [float(low), float(high)],
                "unit": unit,
                "method": "BCa",
                "resamples": RESAMPLES,
            }
    return made


def sentence(test: dict[str, Any]) -> str:
    """The comparison in plain words."""
    name, difference, metric = test["arm"], test["difference"], test["metric"]
    word = WORDS.get(metric, metric)
    if difference is None:
        return f"{name}: cannot be compared with {test['reference']} in {word}: one of them has no figures."
    word = f"{word} within sites" if test.get("within_sites") else word
    amount = f"{in_words(difference, metric)} of {word} against {test['reference']}"
    if test["verdict"] == UNKNOWN:
        return f"{name}: {amount}; {why_unknown(test)}."
    if not is_clear(test):
        if test["sd"] == difference == 0:
            return f"{name}: no difference in {word} from {test['reference']} with any seed."
        return f"{name}: no evidence of a difference: {amount}, {interval_words(test)}."
    verdict = "better" if (difference < 0) == (metric in LOWER_IS_BETTER) else "worse"
    return f"{name}: {verdict}: {amount}, {interval_words(test)}."


def why_unknown(entry: Mapping[str, Any]) -> str:
    """Why a difference has no interval."""
    if entry["seeds"] == 1:
        return "one seed gives no interval, so that this may be chance"
    if entry["sd"] == 0:
        return "the same with every seed, so that whether this is chance cannot be told"
    return "there is no interval, so that this may be chance"


def interval_words(entry: Mapping[str, Any]) -> str:
    """The interval that the verdict follows from."""
    count = entry["comparisons"]
    return f"95 % CI {limit_words(entry)}" + (f", corrected for {count} comparisons" if count > 1 else "")


def limit_words(entry: Mapping[str, Any]) -> str:
    """Both limits. Where the interval leaves out 0, none of them is rounded to it."""
    scale, digits = (100, 1) if entry["metric"] in IN_POINTS else (1, 3)
    while digits < MOST_DIGITS and is_clear(entry) and any(not round(scale * x, digits) for x in entry["interval"]):
        digits += 1
    low, high = (signed(scale * limit, digits) for limit in entry["interval"])
    return f"{low} to {high}"


def in_words(value: float, metric: str, with_unit: bool = True) -> str:
    if metric in IN_POINTS:
        return f"{signed(100 * value, 1)}{' points' if with_unit else ''}"
    return signed(value, 3)


def figure_words(value: float, metric: str) -> str:
    """A figure as it is: rates in per cent, areas, scores and losses as they are."""
    return f"{value:.3f}" if metric in (*RANKED, *LOWER_IS_BETTER, "f1") else f"{100 * value:.1f} %"


def signed(value: float, digits: int) -> str:
    """With its sign, unless it rounds to nothing."""
    return f"{value:+.{digits}f}" if round(value, digits) else f"{0:.{digits}f}"
