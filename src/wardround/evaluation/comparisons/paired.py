"""Two models for the same rows, compared at several places: regions, or missing parties."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wardround.evaluation.comparisons.benefit import compared_metrics, origin_of
from wardround.evaluation.comparisons.differences import correct, difference_of
from wardround.evaluation.comparisons.patients import Drawn, Resamples, compare_drawn, fill_drawn, is_over_patients
from wardround.evaluation.intervals import Resampling, summarise_metrics
from wardround.evaluation.scores import Figures, Scores, within_sites
from wardround.study.schema import Evaluation, Study
from wardround.tasks import Task

MEAN = ""  # the place that stands for the mean over all places


def topologies_of(content: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """By arm, what results.json has of a topology of this kind: `hierarchical` or `vertical`."""
    described = {name: arm.get("topology") for name, arm in content["arms"].items()}
    return {name: topology for name, topology in described.items() if topology and topology["kind"] == kind}


@dataclass(frozen=True)
class Comparison:
    """Each metric of both models, and for some metrics their difference."""

    first: dict[str, dict[str, Any]]
    second: dict[str, dict[str, Any]]
    difference: dict[str, dict[str, Any]]


def compare_predictions(
    study: Study,
    arms: Mapping[str, Sequence[str]],
    first: Scores,
    second: Scores,
    evaluations: Mapping[str, Evaluation] | None = None,
) -> Iterator[tuple[str, str, Comparison]]:
    """Arm, place and comparison of two sets of predictions for the same rows, in which a place stands for the site.

    `arms` has the places of each arm; the place `MEAN` is the mean over all others. `evaluations` says, by arm, how the
    rows were drawn, where this is not as the study draws its own.
    """
    resamples: tuple[Resamples, Resamples] | None = None
    for arm, places in arms.items():
        evaluation = study.evaluation_of(origin_of(study, arm)) if evaluations is None else evaluations[arm]
        pairs = {place: (_figures(first, arm, place), _figures(second, arm, place)) for place in places}
        drawn = None
        if is_over_patients(evaluation, first.seeds):
            resamples = resamples or (Resamples(first), Resamples(second))
            drawn = {place: (_drawn(resamples[0], arm, place), _drawn(resamples[1], arm, place)) for place in places}
        comparisons = compare_pairs(first.task, pairs, Resampling.of(evaluation), evaluation.metric, drawn)
        for place, comparison in comparisons.items():
            yield arm, place, comparison


def _figures(scores: Scores, arm: str, place: str) -> Figures:
    of_arm = scores.by_site[arm]
    return within_sites(of_arm, len(scores.metric_names)) if place == MEAN else of_arm[place]


def _drawn(resamples: Resamples, arm: str, place: str) -> Drawn:
    return resamples.within_sites(arm) if place == MEAN else resamples.drawn(arm, place)


def compare_pairs(
    task: Task,
    pairs: Mapping[str, tuple[Figures, Figures]],
    resampling: Resampling,
    primary: str,
    drawn: Mapping[str, tuple[Drawn, Drawn]] | None = None,
    auc_bounds: Mapping[str, float] | None = None,
) -> dict[str, Comparison]:
    """By place. All places together are one family: intervals and verdicts are corrected for their number.

    Differences are paired over seeds. With one seed, or one split for all, there is no interval over seeds; `drawn`
    then gives one over patients, where rows are at hand. `auc_bounds` says by how much both AUCs together may be wrong:
    the interval of their difference is wider by that on either side.
    """
    metrics, names = compared_metrics(task, primary), task.metric_names
    comparisons = {
        place: Comparison(
            summarise_metrics(names, first, resampling),
            summarise_metrics(names, second, resampling),
            {
                metric: {"site": place, **difference_of((first - second)[:, names.index(metric)], metric, resampling)}
                for metric in metrics
            },
        )
        for place, (first, second) in pairs.items()
    }
    for place, both in (drawn or {}).items():
        comparison = comparisons[place]
        fill_drawn(comparison.first, both[0].figures, names)
        fill_drawn(comparison.second, both[1].figures, names)
        for entry in comparison.difference.values():
            compare_drawn(entry, names, *both)
    for place, bound in (auc_bounds or {}).items():
        if "auc" in metrics:
            comparisons[place].difference["auc"]["off_by"] = bound
    for metric in metrics:
        correct([comparison.difference[metric] for comparison in comparisons.values()])
    return comparisons
