"""Two arms against each other: paired over seeds, by tests that a reviewer can follow.

For each comparison stand side by side the corrected resampled t-test (`intervals.py`), the plain paired t-test, and the
independent two-sample t-test that papers often print; the last two take splits of one set of patients for independent
studies and reject too often. The bootstrap resamples patients where a metric is a mean over rows, else seeds.
"""

import gc
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats
from statsmodels.stats.multitest import multipletests

from wardround.evaluation.intervals import CONFIDENCE, Resampling, mean_interval, p_value
from wardround.evaluation.scores import Scored, within_sites
from wardround.study import LOWER_IS_BETTER, METRICS

RANKED = ("auc",)  # compared metrics that set rows of different sites against each other
COMPARED = ("accuracy", "auc", "f1", "brier", "loss")
WORDS = {"auc": "AUC", "f1": "F1", "brier": "Brier score"}  # of metrics that are not called what they are named
IN_POINTS = ("accuracy", "auc", "f1")  # shown as points of a hundred
RESAMPLES = 2000
BATCH_CELLS = 2**22  # numbers that one piece of a bootstrap may hold
ALPHA = 1 - CONFIDENCE
NO_SPREAD = 1e-12  # figures closer than this are equal but for rounding


@dataclass(frozen=True)
class Pair:
    arm: str
    reference: str


def compare_arms(
    scores: Scored, pairs: Sequence[Pair], resampling: Resampling, own_models: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Every pair in every compared metric. The pairs are one family for Holm's and Bonferroni's corrections.

    `own_models` are arms in which sites predict with models of their own, or whose AUC over all sites is not exact:
    their AUC is compared within sites.
    """
    tests: list[dict[str, Any]] = []
    for metric in COMPARED:
        place = METRICS.index(metric)
        within = [metric in RANKED and bool({pair.arm, pair.reference} & set(own_models)) for pair in pairs]
        lines = [
            (_figures(scores, pair.arm, inside)[:, place], _figures(scores, pair.reference, inside)[:, place])
            for pair, inside in zip(pairs, within, strict=True)
        ]
        found = [
            _test(pair, metric, arm, reference, resampling) | {"within_sites": inside}
            for pair, (arm, reference), inside in zip(pairs, lines, within, strict=True)
        ]
        adjust(found)
        bootstraps = _over_seeds(lines)
        if metric == "accuracy":
            bootstraps = [a or b for a, b in zip(_over_patients(scores, pairs), bootstraps, strict=True)]
        for test, bootstrap in zip(found, bootstraps, strict=True):
            test["bootstrap"] = bootstrap
            test["sentence"] = sentence(test)
        tests += found
    return tests


def _figures(scores: Scored, name: str, inside: bool) -> np.ndarray:
    return within_sites(scores.by_site[name]) if inside else scores.overall[name]


def _test(pair: Pair, metric: str, arm: np.ndarray, reference: np.ndarray, resampling: Resampling) -> dict[str, Any]:
    both = ~np.isnan(arm) & ~np.isnan(reference)
    a, b = arm[both], reference[both]
    difference = np.where(np.abs(a - b) < NO_SPREAD, 0.0, a - b)
    interval = mean_interval(difference, resampling) if len(difference) else None
    return {
        "arm": pair.arm,
        "reference": pair.reference,
        "metric": metric,
        "difference": float(difference.mean()) if len(difference) else None,
        "interval": list(interval) if interval else None,
        "p_value": p_value(difference, resampling),
        "method": resampling.method,
        "p_value_paired": p_value(difference, Resampling(0.0)),
        **_independent(a, b),
        "effect": _effect(a, b),
        "seeds": len(difference),
    }


def _independent(a: np.ndarray, b: np.ndarray) -> dict[str, float | None]:
    """Student's t for two independent samples of equal variance."""
    if len(a) < 2 or a.std() + b.std() < NO_SPREAD:
        return {"t_independent": None, "p_value_independent": None}
    found = stats.ttest_ind_from_stats(a.mean(), a.std(ddof=1), len(a), b.mean(), b.std(ddof=1), len(b))
    return {"t_independent": float(found.statistic), "p_value_independent": float(found.pvalue)}


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


def adjust(tests: Sequence[dict[str, Any]]) -> None:
    """Holm's and Bonferroni's p-values, over the tests that have one."""
    known = [test for test in tests if test["p_value"] is not None]
    for test in tests:
        test["p_value_holm"] = test["p_value_bonferroni"] = None
    for method in ("holm", "bonferroni") if known else ():
        with _nothing_to_collect():
            adjusted = multipletests([test["p_value"] for test in known], ALPHA, method)[1]
        for test, value in zip(known, adjusted.tolist(), strict=True):
            test[f"p_value_{method}"] = value


@contextmanager
def _nothing_to_collect() -> Iterator[None]:
    """statsmodels starts a full garbage collection with every call, which costs more than all our statistics."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


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

        found = _bca((np.stack(whole)[:, there], np.stack(counts)[:, there]), accuracy, "patients")
        for place, bootstrap in zip(places_of, found, strict=True):
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
    if test["interval"] is None:
        if test.get("seeds", 1) > 1:
            return f"{name}: {amount} with every seed; whether that is chance cannot be told."
        return f"{name}: {amount}; one seed gives no interval."
    low, high = test["interval"]
    if low == difference == high == 0:
        return f"{name}: no difference in {word} from {test['reference']} with any seed."
    between = f"95 % interval {in_words(low, metric, False)} to {in_words(high, metric, False)}"
    if low <= 0 <= high:
        return f"{name}: no evidence of a difference: {amount}, {between}."
    better = (difference < 0) == (metric in LOWER_IS_BETTER)
    verdict = "better" if better else "worse"
    holm = test.get("p_value_holm")
    if holm is not None and holm > ALPHA:
        verdict += ", but not after correction for several comparisons"
    return f"{name}: {verdict}: {amount}, {between}."


def in_words(value: float, metric: str, with_unit: bool = True) -> str:
    if metric in IN_POINTS:
        return f"{signed(100 * value, 1)}{' points' if with_unit else ''}"
    return signed(value, 3)


def signed(value: float, digits: int) -> str:
    """With its sign, unless it rounds to nothing."""
    return f"{value:+.{digits}f}" if round(value, digits) else f"{0:.{digits}f}"
