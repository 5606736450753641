"""What a comparison could have shown: the smallest difference that it would have found, and the patients that finding
another would take."""

from collections.abc import Mapping
from typing import Any

from scipy import stats

from wardround.evaluation.comparisons.differences import ALPHA, quantile

POWER = 0.8
IMPORTANT_POINTS, IMPORTANT_SHARE = 0.02, 0.05  # of rates and areas; of an error, in parts of it


def detectable(entry: Mapping[str, Any]) -> float | None:
    """The true difference that the corrected test finds with a probability of POWER: so many standard errors from 0.
    None without a standard error, and where it is 0."""
    error = entry["standard_error"]
    if not error:
        return None
    reach = quantile(entry["freedom"], entry["comparisons"]) + float(stats.t.ppf(POWER, entry["freedom"]))
    return float(reach * error + entry.get("off_by", 0.0))


def patients_needed(entry: Mapping[str, Any], difference: float, patients: int | None) -> float | None:
    """At these hospitals together, with seeds enough: normal quantiles, and a standard error that shrinks with the root
    of their number. None where either is not known."""
    error = entry["standard_error"]
    if not error or patients is None:
        return None
    reach = float(stats.norm.isf(ALPHA / (2 * entry["comparisons"])) + stats.norm.ppf(POWER))
    return float(patients * (reach * error / difference) ** 2)
