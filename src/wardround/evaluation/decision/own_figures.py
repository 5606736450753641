"""What one hospital's page shows of its own test rows: calibration and groups of patients, under the way of training
that the answer is about and under training alone.

Nothing is told of few patients: a bin of a calibration curve and a group have at least SMALLEST_GROUP test rows. Where
one group of a kind has fewer, the smallest other one is withheld too, because the first would follow from the rest.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from wardround.evaluation.intervals import Resampling, summarise_metrics
from wardround.evaluation.scores import Subgroups
from wardround.evaluation.summaries.merged_summaries import Scored
from wardround.tasks.class_metrics import SMALLEST_GROUP

MOST_BINS = 5  # one hospital has few rows
SUPPRESSED = {"suppressed": True}


def own_figures(scores: Scored, site: str, arms: Sequence[str], metric: str, resampling: Resampling) -> dict[str, Any]:
    """`calibration` by arm, and `subgroups` by kind and group: rows, and the metric by arm."""
    own = scores.at_site(site, arms)
    bins = min(MOST_BINS, own.rows_tested(arms[0]) // SMALLEST_GROUP)
    return {
        "calibration": {arm: own.calibration(arm, bins) if bins else None for arm in arms},
        "subgroups": {group.kind: _group(group, metric, own, resampling) for group in own.subgroups()},
    }


def _group(group: Subgroups, metric: str, own: Scored, resampling: Resampling) -> dict[str, Any]:
    """By value; a seed with few rows of it does not count."""
    described: dict[str, Any] = {}
    for number, value in enumerate(group.values):
        rows = group.rows[0, :, number]
        large = rows >= SMALLEST_GROUP
        if large.any():
            by_arm = {
                arm: summarise_metrics(own.metric_names, group.figures[a, large, number], resampling, {metric})[metric]
                for a, arm in enumerate(own.arms)
            }
            described[value] = {"rows": float(rows[large].mean()), "figures": by_arm}
        elif rows.any():
            described[value] = dict(SUPPRESSED)
    return _withholding_another(described)


def _withholding_another(described: Mapping[str, Any]) -> dict[str, Any]:
    shown = {value: entry["rows"] for value, entry in described.items() if entry != SUPPRESSED}
    if len(described) - len(shown) != 1 or not shown:
        return dict(described)
    smallest = min(shown, key=shown.__getitem__)
    return {**described, smallest: dict(SUPPRESSED)}
