"""What to do next: rules from values, the same for every study. docs/how-to/read-the-report.md states them."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from wardround.evaluation.comparisons.differences import GAINS, LOSES, NO_EVIDENCE
from wardround.tasks import METRIC_FACTS

Code = Literal["compare", "repair", "more-seeds", "adopt", "stay-alone", "no-gain", "collect", "repeat"]
SiteCode = Literal["wait", "take-part", "stay-alone", "with-the-others", "undecided", "no-result"]
MANY_SEEDS = 10  # that a study should have where its seeds are too few


class Situation(NamedTuple):
    """All that the rule looks at. `needed` and `patients` are None where they are not known."""

    compared: bool
    broken: bool  # training went wrong with every seed
    seeds: int
    few_seeds: bool  # with more of them the same patients would show smaller differences
    entry: Mapping[str, Any] | None
    important: float
    needed: float | None
    patients: int | None


def next_step(now: Situation) -> Code:
    """The first of these that applies."""
    if not now.compared:
        return "compare"
    if now.broken or now.entry is None or now.entry["difference"] is None:
        return "repair"
    if now.seeds == 1 or now.entry["interval"] is None:
        return "more-seeds"
    if now.entry["verdict"] == GAINS:
        return "adopt"
    if now.entry["verdict"] == LOSES:
        return "stay-alone"
    if best_case(now.entry) < now.important:
        return "no-gain"
    if now.few_seeds:
        return "more-seeds"
    return "repeat" if now.needed is not None and now.patients and now.needed <= now.patients else "collect"


def best_case(entry: Mapping[str, Any]) -> float:
    """The largest gain that the interval leaves open, whichever way is better."""
    low, high = entry["interval"]
    return float(-low if METRIC_FACTS[entry["metric"]].lower_is_better else high)


def site_step(entry: Mapping[str, Any], of_all: Code, mean: Mapping[str, Any] | None) -> SiteCode:
    """For one hospital, from its own comparison and from what all are advised."""
    if entry["difference"] is None or entry["interval"] is None:
        return "no-result"
    if of_all in ("repair", "more-seeds"):
        return "wait"
    if entry["verdict"] == GAINS:
        return "take-part"
    if entry["verdict"] == LOSES:
        return "stay-alone"
    gained = mean is not None and mean["verdict"] == GAINS
    return "with-the-others" if gained and entry["verdict"] == NO_EVIDENCE else "undecided"
