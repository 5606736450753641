"""Figures of claims as they are written: per cent, points, years, rounds."""

from collections.abc import Callable
from typing import NamedTuple

from wardround.evaluation.comparisons.compare import IN_POINTS


class Written(NamedTuple):
    """What of a claim decides how its figures are written."""

    metric: str
    statistic: str
    compare: str
    compared: bool  # with other arms


def figure_text(value: float, written: Written) -> str:
    metric, statistic, compare, compared = written
    if compared and compare == "ratio":
        return f"{value:.3f}"
    if compared and compare == "change":
        return f"{100 * value:+.1f} %"
    if metric in OF_ONE and not compared and statistic != "sd":
        return f"{value:.3f}"
    if in_points(metric):
        if metric in LIMITS or (compared and statistic == "mean"):
            return f"{100 * value:+.2f} points"
        over_seeds_or_sites = statistic in ("sd", "spread", "range")
        return f"{100 * value:.2f} {'points' if over_seeds_or_sites else '%'}"
    return UNITS.get(metric, "{:.3f}".format)(value)


def off_text(difference: float, written: Written) -> str:
    """By how much ours is off."""
    if written.compared and written.compare == "ratio":
        return f"{difference:+.3f}"
    if in_points(written.metric) or (written.compared and written.compare == "change"):
        return f"{100 * difference:+.2f} points"
    return f"{difference / 1000:+,.1f} KB" if written.metric == "bytes" else f"{difference:+.3g}"


def in_points(metric: str) -> bool:
    return metric in (*IN_POINTS, *LIMITS, "prevalence") or metric.endswith("_accuracy")


def _p_value(value: float) -> str:
    return f"{value:.4f}" if value >= 0.00005 else f"{value:.1e}"


OF_ONE = ("auc", "f1")  # are written as parts of one
LIMITS = ("interval_low", "interval_high")  # of a difference in accuracy
UNITS: dict[str, Callable[[float], str]] = {
    "bytes": lambda value: f"{value / 1000:,.1f} KB",
    "rows": "{:,.0f}".format,
    "seconds": "{:.3g} s".format,
    "rounds": "{:.1f} rounds".format,
    "age": "{:.1f} years".format,
    "p_value": _p_value,
}
