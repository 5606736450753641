"""Two ways to predict the same rows, compared at several places: regions, or parties that are missing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wardround.evaluation.comparisons.benefit import compared_metrics
from wardround.evaluation.comparisons.differences import correct, difference_of
from wardround.evaluation.comparisons.patients import Drawn, compare_drawn, fill_drawn
from wardround.evaluation.intervals import Resampling, summarise_metrics
from wardround.evaluation.scores import Figures
from wardround.study.schema import METRICS


@dataclass(frozen=True)
class Comparison:
    """Each metric of both ways, and of some metrics how much the one is above the other."""

    one: dict[str, dict[str, Any]]
    other: dict[str, dict[str, Any]]
    difference: dict[str, dict[str, Any]]


def compare_pairs(
    pairs: Mapping[str, tuple[Figures, Figures]],
    resampling: Resampling,
    primary: str,
    drawn: Mapping[str, tuple[Drawn, Drawn]] | None = None,
    unsure: Mapping[str, float] | None = None,
) -> dict[str, Comparison]:
    """By place. Several places are several questions, and one family: intervals and verdicts are corrected for them.

    Differences are paired over seeds. With one seed, or one split for all, there is no interval over these; `drawn`
    then gives one over patients, where rows are at hand. `unsure` says by how much both AUCs together may be off: by so
    much their difference's interval is wider on either side.
    """
    metrics = compared_metrics(primary)
    found = {
        place: Comparison(
            summarise_metrics(one, resampling),
            summarise_metrics(other, resampling),
            {
                metric: {"site": place, **difference_of((one - other)[:, METRICS.index(metric)], metric, resampling)}
                for metric in metrics
            },
        )
        for place, (one, other) in pairs.items()
    }
    for place, (one, other) in (drawn or {}).items():
        comparison = found[place]
        fill_drawn(comparison.one, one.figures)
        fill_drawn(comparison.other, other.figures)
        for entry in comparison.difference.values():
            compare_drawn(entry, one, other)
    for place, most in (unsure or {}).items():
        found[place].difference["auc"]["off_by"] = most
    for metric in metrics:
        correct([comparison.difference[metric] for comparison in found.values()])
    return found
