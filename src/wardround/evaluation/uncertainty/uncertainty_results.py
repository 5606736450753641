"""`uncertainty` of results.json, a function of `uncertainty.parquet`: how large it is, and what it is good for, such as
referring rows to a clinician, and detecting errors and changed images."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from wardround.evaluation.comparisons.benefit import origin_of
from wardround.evaluation.comparisons.patients import Resamples, fill_drawn
from wardround.evaluation.intervals import Resampling, summarise, summarise_metrics
from wardround.evaluation.scores import Scores, task_of
from wardround.evaluation.uncertainty.number_results import describe_method, describe_numbers
from wardround.evaluation.uncertainty.referral_results import as_table, describe_referral, patients_of
from wardround.evaluation.uncertainty.shifted_results import describe_shifted
from wardround.evaluation.uncertainty.uncertainty_rows import PARTS, SeedRows, numbers_of, seeds_of
from wardround.evaluation.uncertainty.uncertainty_scores import describe_calibration, describe_sets
from wardround.study.schema import Study, Uncertainty
from wardround.tasks import Task
from wardround.tasks.class_metrics import auc, defined_mean
from wardround.tasks.probabilities import probability_task
from wardround.tasks.summed import number_task


def score_uncertainty(
    content: dict[str, Any], study: Study, uncertainty: pd.DataFrame, groups: pd.DataFrame, task: Task | None = None
) -> dict[str, Any]:
    """`content` is a whole results.json; it comes back with the `uncertainty` of arms that ask for it. The table has
    the selected arms already. Without a `task` its columns tell which classes or findings there are."""
    task = task_of(uncertainty) if task is None else task
    of_arm = {str(name): part for name, part in uncertainty.groupby("arm", sort=False)}
    # one figure for all arms: an AUC within sites beside one over all rows could not be compared
    within = any(results["own_models"] for results in content["arms"].values())
    for name, results in content["arms"].items():
        arm = origin_of(study, name)
        if arm.uncertainty is None or name not in of_arm:
            continue
        settings, resampling = arm.uncertainty, Resampling.of(study.evaluation_of(arm))
        table, ensemble, members = of_arm[name], settings.method == "ensemble", study.evaluation.seeds.count
        if task.answers == "number":
            numbers = list(numbers_of(table, groups, ensemble, number_task(task), settings.alpha))
            results["uncertainty"] = describe_numbers(numbers, settings, resampling, members)
        else:
            seeds = list(seeds_of(table, groups, ensemble, study.evaluation.threshold, probability_task(task)))
            results["uncertainty"] = describe_arm(seeds, settings, resampling, task.findings, within, members)
    return content


def describe_arm(
    seeds: Sequence[SeedRows],
    settings: Uncertainty,
    resampling: Resampling,
    findings: Sequence[str] = (),
    within: bool = False,
    members: int | None = None,
) -> dict[str, Any] | None:
    """None where every seed's model has diverged. `within`: AUC is the mean of the sites' own, because in some arm
    sites predict with models of their own. `members` are those of an ensemble."""
    if not seeds:
        return None
    return {
        **describe_method(settings, members),
        "seeds": len(seeds),
        "parts": _parts(seeds, findings),
        "calibration": describe_calibration(seeds, findings),
        "sets": describe_sets(seeds, settings.alpha, findings),
        "referral": describe_referral(seeds, settings.refer, settings.alpha, resampling, within),
        "errors": describe_errors(seeds, resampling, findings),
        "shifted": describe_shifted(seeds[0]),
    }


def _parts(seeds: Sequence[SeedRows], findings: Sequence[str]) -> dict[str, Any]:
    """Mean uncertainty of test rows in bits; of findings the mean over them, and each."""
    described: dict[str, Any] = {
        name: float(np.mean([rows.task.of_rows(rows.test.measures[name]).mean() for rows in seeds])) for name in PARTS
    }
    described["findings"] = {
        finding: {name: float(np.mean([rows.test.measures[name][:, f].mean() for rows in seeds])) for name in PARTS}
        for f, finding in enumerate(findings)
    }
    return described


# Errors


def describe_errors(seeds: Sequence[SeedRows], resampling: Resampling, findings: Sequence[str]) -> dict[str, Any]:
    """Doubt on calls that are right and on those that are wrong, and how well it tells them apart (AUC; of findings the
    mean over them)."""
    doubts = [rows.doubt(rows.test) for rows in seeds]
    tables = [
        as_table(rows, rows.task.questions(rows.wrong), rows.task.questions(doubt))
        for rows, doubt in zip(seeds, doubts, strict=True)
    ]
    scores = Scores.of(pd.concat(tables, ignore_index=True), patients_of(seeds))
    drawn, arm = Resamples(scores) if len(seeds) == 1 or not resampling.extra else None, scores.arms[0]
    whole = summarise_metrics(scores.metric_names, scores.overall[arm], resampling, ("auc",))
    if drawn is not None:
        fill_drawn(whole, drawn.of(arm), scores.metric_names)
    described = {**_means_of(seeds, doubts), "auc": whole["auc"], "findings": {}}
    for f, name in enumerate(findings):
        each = [_auc(rows.wrong[:, f], doubt[:, f]) for rows, doubt in zip(seeds, doubts, strict=True)]
        own = {"auc": summarise(each, resampling)}
        if drawn is not None:
            fill_drawn(own, drawn.of_finding(arm, scores.findings[f]), scores.metric_names)
        described["findings"][name] = {**_means_of(seeds, doubts, f), **own}
    return described


def _means_of(seeds: Sequence[SeedRows], doubts: Sequence[np.ndarray], finding: int | None = None) -> dict[str, Any]:
    chosen = slice(None) if finding is None else (slice(None), finding)
    pairs = [(rows.wrong[chosen], doubt[chosen]) for rows, doubt in zip(seeds, doubts, strict=True)]
    return {
        "hits": defined_mean([float(doubt[wrong == 0].mean()) for wrong, doubt in pairs if (wrong == 0).any()]),
        "errors": defined_mean([float(doubt[wrong == 1].mean()) for wrong, doubt in pairs if (wrong == 1).any()]),
        "share_wrong": defined_mean([float((wrong == 1).sum() / max(1, (wrong >= 0).sum())) for wrong, _ in pairs]),
    }


def _auc(wrong: np.ndarray, doubt: np.ndarray) -> float:
    known = wrong >= 0
    return auc(wrong[known] == 1, doubt[known])
