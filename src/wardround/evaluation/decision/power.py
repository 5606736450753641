"""What a comparison could have shown: the smallest difference that it would have found, and the patients that finding
another would take."""

from collections.abc import Mapping
from typing import Any

from scipy import stats

from wardround.evaluation.comparisons.differences import ALPHA, quantile

POWER = 0.8
FEW_SEEDS = 1.25  # times what any number of seeds would detect
IMPORTANT_POINTS, IMPORTANT_SHARE = 0.02, 0.05  # of rates and areas; of an error, in parts of it


def detectable(entry: Mapping[str, Any]) -> float | None:
    """The true difference that the corrected test finds with a probability of POWER: so many standard errors from 0.
    None without a standard error, and where it is 0."""
    error = entry["standard_error"]
    return float(_reach(entry) * error + entry.get("off_by", 0.0)) if error else None


def _reach(entry: Mapping[str, Any]) -> float:
    """In standard errors."""
    return quantile(entry["freedom"], entry["comparisons"]) + float(stats.t.ppf(POWER, entry["freedom"]))


def _least_reach(entry: Mapping[str, Any]) -> float:
    """With any number of seeds."""
    return float(stats.norm.isf(ALPHA / (2 * entry["comparisons"])) + stats.norm.ppf(POWER))


def few_seeds(entry: Mapping[str, Any]) -> bool:
    """Whether more seeds, of the same patients, would make the detectable difference clearly smaller."""
    over_seeds = entry["method"].startswith("corrected") and entry["standard_error"]
    return bool(over_seeds) and _reach(entry) > FEW_SEEDS * _least_reach(entry)


def patients_needed(entry: Mapping[str, Any], difference: float, patients: int | None) -> float | None:
    """At these hospitals together, with seeds enough: normal quantiles, and a standard error that shrinks with the root
    of their number. None where either is not known."""
    error = entry["standard_error"]
    if not error or patients is None:
        return None
    return float(patients * (_least_reach(entry) * error / difference) ** 2)
