"""What was forgotten: the model that training started from and the new one, on the test rows of the old hospitals."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from wardround.evaluation.comparisons.compare import in_words, interval_words, why_unknown
from wardround.evaluation.comparisons.differences import GAINS, LOSES, UNKNOWN
from wardround.evaluation.comparisons.paired import MEAN, compare_predictions
from wardround.evaluation.outcome_results import by_outcome
from wardround.evaluation.scores import Scores
from wardround.evaluation.thresholds import thresholds_of
from wardround.study.schema import Evaluation, Study
from wardround.tasks import METRIC_FACTS, Task

OLD, NEW = "old", "new"  # `model` in forgetting.parquet


def forgetting_by_outcome(
    study: Study, predictions: pd.DataFrame, groups: pd.DataFrame | None, drawn: Mapping[str, Evaluation], task: Task
) -> dict[str, dict[str, dict[str, Any]]]:
    """As `score_forgetting`, of each outcome by its own task; of a study with one outcome under an empty name."""
    return {
        name: score_forgetting(own_study, table, groups, drawn, own_task)
        for name, (own_study, table, own_task) in by_outcome(study, predictions, task).items()
    }


def score_forgetting(
    study: Study,
    predictions: pd.DataFrame,
    groups: pd.DataFrame | None,
    drawn: Mapping[str, Evaluation],
    task: Task | None = None,
) -> dict[str, dict[str, Any]]:
    """By arm: each old hospital's figures by both models and their difference, the new less the old one's.

    `predictions` are those of forgetting.parquet; `drawn` says, by arm, how the old run drew its test rows. Both models
    use the same thresholds: what the study fixes, or one half.
    """
    threshold = study.evaluation.threshold
    tables = {name: predictions[predictions["model"] == name].drop(columns="model") for name in (OLD, NEW)}
    fixed = not isinstance(threshold, str)
    old, new = (
        Scores.of(table, groups, thresholds_of(threshold, None, table), fixed, task) for table in tables.values()
    )
    places = {arm: [site for site in new.by_site[arm] if site in old.by_site.get(arm, {})] for arm in new.arms}
    both = {arm: [*sites, *([MEAN] if len(sites) > 1 else [])] for arm, sites in places.items() if sites}
    evaluations = {arm: replace(drawn[arm], metric=study.evaluation.metric) for arm in both}
    scored: dict[str, dict[str, Any]] = {arm: {"sites": {}, "mean": None} for arm in both}
    for arm, place, comparison in compare_predictions(study, both, new, old, evaluations):
        entry = {NEW: comparison.first, OLD: comparison.second, "difference": comparison.difference}
        if place == MEAN:
            scored[arm]["mean"] = entry
        else:
            inside = new.site[new.of_arm(arm)] == new.sites.index(place)
            scored[arm]["sites"][place] = {"rows": float(inside.sum()) / len(new.seeds), **entry}
    for arm, content in scored.items():
        content["sentence"] = sentence(arm, content, study.evaluation.metric)
    return scored


def sentence(arm: str, content: Mapping[str, Any], metric: str) -> str:
    """What the arm forgot at the old hospitals together, and where it lost or gained at one of them."""
    sites, word = content["sites"], METRIC_FACTS[metric].words
    whole = content["mean"] or next(iter(sites.values()))
    where = "at the old hospitals, on average" if content["mean"] else f"at {next(iter(sites))}, the old hospital"
    text = f"{arm}: {_change(whole['difference'][metric], word, where)}"
    single = {site: entry["difference"][metric]["verdict"] for site, entry in sites.items()} if content["mean"] else {}
    for verdict, what in ((LOSES, "It is worse at"), (GAINS, "It is better at")):
        if named := [site for site, found in single.items() if found == verdict]:
            text += f" {what} {', '.join(named)}."
    return text


def _change(entry: Mapping[str, Any], word: str, where: str) -> str:
    if entry["difference"] is None:
        return f"whether anything was forgotten {where} cannot be told: there is no {word}."
    amount = f"{in_words(entry['difference'], entry['metric'])} of {word} {where}"
    if entry["verdict"] == UNKNOWN:
        return f"{amount}, the new model against the old one; {why_unknown(entry)}."
    found = {LOSES: "forgot", GAINS: "forgot nothing and gained"}.get(entry["verdict"], "no evidence that it forgot")
    return f"{found}: {amount}, the new model against the old one, {interval_words(entry)}."
