"""Differences between two ways of training: interval, p-value and verdict, corrected for how many are looked at.

A report shows many differences at once: every arm, every hospital, the mean over hospitals. Of twenty that are nothing,
one seems to be something at 95 %. All differences that one report shows in one metric are therefore one family, and
Bonferroni's rule in a single step serves all of them alike: among m differences, each interval is one of 1 - 5 % / m
and each p-value is m times that of the difference by itself. So interval, p-value and verdict always agree, whatever
depends on whatever, and the chance that any verdict of the family is false is at most 5 %.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import stdtr, stdtrit

from wardround.evaluation.intervals import (
    CONFIDENCE,
    NO_SPREAD,
    Resampling,
    is_uninformative,
    standard_error,
)
from wardround.tasks import METRIC_FACTS
from wardround.tasks.metric import Metric

ALPHA = 1 - CONFIDENCE
RULE = "Bonferroni"
GAINS, LOSES, NO_EVIDENCE, UNKNOWN = "gains", "loses", "no evidence", "cannot be told"
DIFFERS = "differs"  # of a measure of which neither more nor less is better
# entries about a `measure` of how evenly hospitals or groups are served; of hospitals in the units of their `metric`
SPREAD = {"sd": "SD over hospitals", "worst": "worst hospital", "gap": "from best to worst hospital"}
GAPS = {
    "sensitivity": Metric("sensitivity", "sensitivity", None, "share"),
    "selection_rate": Metric("selection_rate", "share called positive", None, "share"),
    "calibration": Metric("calibration", "predicted less observed risk", None, "share", -1.0, 1.0),
}
Entry = dict[str, Any]
Identity = tuple[tuple[str | None, ...], float, float]


def difference_of(
    difference: np.ndarray, metric: str, resampling: Resampling, about: Mapping[str, Any] | None = None
) -> Entry:
    """The mean of paired differences over seeds, as the only one of its family until `correct` knows the others.

    Where the split is fixed, seeds repeat the same test patients: they say nothing of other patients, so that there is
    no interval until `patients.py` has drawn one. `about` is what it is a difference of.
    """
    x = np.asarray(difference, dtype=float)
    x = x[~np.isnan(x)]
    x = np.where(np.abs(x) < NO_SPREAD, 0.0, x)
    entry: Entry = {
        **(about or {}),
        "metric": metric,
        "difference": float(x.mean()) if len(x) else None,
        "sd": float(x.std(ddof=1)) if len(x) > 1 else None,
        "seeds": len(x),
        "standard_error": None,
        "freedom": None,
        "method": resampling.method,
    }
    if len(x) > 1 and resampling.extra and not is_uninformative(x, resampling):
        entry |= {"standard_error": standard_error(x, resampling), "freedom": len(x) - 1}
    correct([entry])
    return entry


def correct(entries: Sequence[Entry]) -> None:
    """Intervals, p-values and verdicts of one family.

    The same difference may stand at two places, or turned round, and arms may agree to the last digit (FedProx with a
    small mu and FedAvg): equal entries of one site, or of one group, are one comparison. Those of two sites are two,
    however equal. What is 0 with every seed can never be claimed, and is none.
    """
    known = [entry for entry in entries if entry["standard_error"] is not None]
    count = max(1, len({_identity(entry) for entry in known if entry["difference"] or entry["standard_error"]}))
    for entry in entries:
        entry |= {"interval": None, "p_value": None, "comparisons": count, "uncorrected": None, "p_value_holm": None}
    for entry in known:
        single = _p_value(entry)
        entry["uncorrected"] = {"interval": _interval(entry, 1), "p_value": single}
        entry["interval"] = _interval(entry, count)
        entry["p_value"] = min(1.0, count * single)
    _holm(known, count)
    for entry in entries:
        entry["verdict"] = verdict_of(entry["interval"], facts_of(entry))


def facts_of(entry: Mapping[str, Any]) -> Metric:
    """Of the figure that an entry is about."""
    measure = entry.get("measure")
    if measure in GAPS:
        return GAPS[measure]
    metric = METRIC_FACTS[entry["metric"]]
    return replace(metric, better="lower") if measure in ("sd", "gap") else metric


def verdict_of(interval: Sequence[float] | None, metric: Metric) -> str:
    if interval is None:
        return UNKNOWN
    low, high = (-interval[1], -interval[0]) if metric.lower_is_better else interval
    if metric.name in GAPS and metric.better is None:
        return DIFFERS if low > 0 or high < 0 else NO_EVIDENCE
    return GAINS if low > 0 else LOSES if high < 0 else NO_EVIDENCE


def is_clear(entry: Mapping[str, Any]) -> bool:
    return entry["verdict"] in (GAINS, LOSES)


def _interval(entry: Entry, comparisons: int) -> list[float]:
    reach = quantile(entry["freedom"], comparisons) * entry["standard_error"] + entry.get("off_by", 0.0)
    metric = facts_of(entry)
    most = metric.high - metric.low  # as far as it can differ
    return [max(-most, entry["difference"] - reach), min(most, entry["difference"] + reach)]


def _p_value(entry: Entry) -> float:
    """Two-sided, against no difference. `off_by`: so much of the difference may be an error of its computation."""
    amount = max(0.0, abs(entry["difference"]) - entry.get("off_by", 0.0))
    if not amount:
        return 1.0
    error = entry["standard_error"]
    return float(2 * stdtr(entry["freedom"], -amount / error)) if error else 0.0


def _holm(known: Sequence[Entry], count: int) -> None:
    """Holm's p-values, for the appendix: valid too, but no interval goes with them."""
    highest, seen = 0.0, set[Identity]()
    for entry in sorted(known, key=lambda entry: entry["uncorrected"]["p_value"]):
        factor = max(1, count - len(seen - {_identity(entry)}))
        highest = max(highest, min(1.0, factor * entry["uncorrected"]["p_value"]))
        seen.add(_identity(entry))
        entry["p_value_holm"] = highest


def _identity(entry: Entry) -> Identity:
    """The same for the same comparison, but for rounding."""
    about = (entry["kind"], entry["group"]) if "group" in entry else (entry.get("site"),)
    return about, round(abs(entry["difference"]), 12), round(entry["standard_error"], 12)


@lru_cache(maxsize=4096)
def quantile(freedom: float, comparisons: int) -> float:
    """So many standard errors from 0 a difference of a family is shown to be one."""
    return float(-stdtrit(freedom, ALPHA / (2 * max(1, comparisons)))) if math.isfinite(freedom) else math.nan
