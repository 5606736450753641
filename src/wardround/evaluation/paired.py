"""Two ways to predict the same rows, compared at several places: regions, or parties that are missing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from wardround.evaluation.benefit import BENEFIT, correct, difference_of, verdict_of
from wardround.evaluation.intervals import Resampling, summarise_metrics
from wardround.evaluation.patients import compare_drawn, fill_drawn
from wardround.evaluation.scores import Figures
from wardround.study import METRICS

Drawn = tuple[np.ndarray, np.ndarray]  # both ways over the same draws of patients, (draws, metrics)


@dataclass(frozen=True)
class Comparison:
    """Each metric of both ways, and of some metrics how much the one is above the other."""

    one: dict[str, dict[str, Any]]
    other: dict[str, dict[str, Any]]
    difference: dict[str, dict[str, Any]]


def compare_pairs(
    pairs: Mapping[str, tuple[Figures, Figures]],
    resampling: Resampling,
    drawn: Mapping[str, Drawn] | None = None,
    unsure: Mapping[str, float] | None = None,
) -> dict[str, Comparison]:
    """By place. Several places are several questions: a verdict holds after Holm's correction over them.

    Differences are paired over seeds. With one seed there is no interval over these; `drawn` then gives one over
    patients, where rows are at hand. `unsure` says by how much both AUCs together may be off: by so much their
    difference's interval is wider on either side.
    """
    found = {
        place: Comparison(
            summarise_metrics(one, resampling),
            summarise_metrics(other, resampling),
            {metric: difference_of((one - other)[:, METRICS.index(metric)], metric, resampling) for metric in BENEFIT},
        )
        for place, (one, other) in pairs.items()
    }
    for place, both in (drawn or {}).items():
        _over_patients(found[place], both)
    for place, most in (unsure or {}).items():
        entry = found[place].difference["auc"]
        if entry["interval"] is not None:
            entry["interval"] = [entry["interval"][0] - most, entry["interval"][1] + most]
            entry["verdict"] = verdict_of(entry["interval"], "auc")
    for metric in BENEFIT:
        correct([comparison.difference[metric] for comparison in found.values()])
    return found


def _over_patients(comparison: Comparison, drawn: Drawn) -> None:
    for figures, one in zip((comparison.one, comparison.other), drawn, strict=True):
        fill_drawn(figures, one)
    for metric, entry in comparison.difference.items():
        place = METRICS.index(metric)
        compare_drawn(entry, drawn[0][:, place] - drawn[1][:, place])
        entry["verdict"] = verdict_of(entry["interval"], metric)
