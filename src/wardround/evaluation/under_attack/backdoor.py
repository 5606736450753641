"""Does a backdoor work? Test rows of honest sites with the trigger, and what they are called."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from wardround.adversaries import Adversary, Setting
from wardround.evaluation.intervals import Resampling, summarise
from wardround.evaluation.prediction import SitePrediction, predict
from wardround.evaluation.scores import Scores
from wardround.study.robustness.adversary_validation import backdoors_of, twin_of
from wardround.study.schema import Arm, Study
from wardround.training.trial import Run, Trial


def predict_triggered(trial: Trial, run: Run, backdoors: Mapping[str, Adversary]) -> dict[str, list[SitePrediction]]:
    """Predictions for all test rows with the trigger of each backdoor."""
    task, predicted = trial.model.task, {}
    for name, backdoor in backdoors.items():
        if backdoor.trigger is not None:
            scored = tuple(
                replace(site, test=backdoor.trigger(site.test, Setting(task, site.recipe, f"arms: {trial.arm}")))
                for site in trial.scored
            )
            predicted[name] = predict(replace(trial, scored=scored), run)
    return predicted


def describe_backdoors(
    study: Study, arm: Arm, untouched: Scores, triggered: Mapping[str, Scores]
) -> list[dict[str, Any]]:
    """Of each backdoor of an arm: how often rows of other classes are called its target, with the trigger and without,
    and with it by the same arm without adversaries. All test rows of honest sites count together, in each seed."""
    resampling, twin, own = (
        Resampling.of(study.evaluation_of(arm)),
        twin_of(study, arm),
        [b.kind for b in arm.adversaries],
    )

    def rate(scores: Scores, name: str | None, target: int) -> dict[str, Any] | None:
        if name is None or name not in scores.arms:
            return None
        summary = summarise(called(scores, name, target), resampling)
        if summary["interval"] is not None:
            summary["interval"] = [max(0.0, summary["interval"][0]), min(1.0, summary["interval"][1])]
        return summary

    described = []
    for name, kind in backdoors_of(study, arm).items():
        if kind in own and name in triggered:
            target = list(map(str, untouched.task.names)).index(str(kind.facts.target))
            described.append(
                {
                    "target": kind.facts.target,
                    "success": rate(triggered[name], arm.name, target),
                    "without_trigger": rate(untouched, arm.name, target),
                    "honest_model": rate(triggered[name], None if twin is None else twin.name, target),
                }
            )
    return described


def called(scores: Scores, arm: str, target: int) -> np.ndarray:
    """In each seed, the share of rows of other classes that the arm calls the target."""
    places = scores.of_arm(arm)
    places = places[
        (scores.label[places] != target) & ~np.isnan(scores.score[places]).reshape(len(places), -1).any(axis=1)
    ]
    hits = pd.Series(scores.predicted[places] == target).groupby(scores.seed[places]).mean()
    return hits.reindex(range(len(scores.seeds))).to_numpy(dtype=float)
