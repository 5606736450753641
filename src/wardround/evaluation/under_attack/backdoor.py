"""Does a backdoor work? Test rows of honest sites with the trigger, and what they are called."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from wardround.adversaries import Adversary, Setting
from wardround.evaluation.intervals import Resampling, summarise
from wardround.evaluation.prediction import SitePrediction, predict
from wardround.evaluation.scores import Scores
from wardround.study.schema import Study
from wardround.training.trial import Run, Trial


def predict_triggered(trial: Trial, run: Run, backdoors: Sequence[Adversary]) -> dict[str, list[SitePrediction]]:
    """Predictions for all test rows with a trigger, by a name of the backdoor that no two share."""
    task, predicted = trial.model.task, {}
    for number, backdoor in enumerate(backdoors):
        if backdoor.trigger is not None:
            scored = tuple(
                replace(site, test=backdoor.trigger(site.test, Setting(task, site.recipe, f"arms: {trial.arm}")))
                for site in trial.scored
            )
            predicted[f"{number}:{backdoor.target}"] = predict(replace(trial, scored=scored), run)
    return predicted


def describe_backdoors(
    study: Study, untouched: Scores, triggered: Mapping[str, Scores], twins: Mapping[str, str | None]
) -> dict[str, list[dict[str, Any]]]:
    """By arm, of each backdoor: how often rows of other classes are called its target, with the trigger and without.

    `twins` are the arms with backdoors, and the same without adversaries: what the trigger does to an honest model is
    no success. All test rows of honest sites count together, once in each seed.
    """
    described: dict[str, list[dict[str, Any]]] = {name: [] for name in twins}
    for backdoor, scores in triggered.items():
        target = scores.task.names.index(backdoor.partition(":")[2])
        for name, twin in twins.items():
            if name not in scores.arms:
                continue
            resampling = Resampling.of(study.evaluation_of(study.arm(name)))

            def rate(own: Scores, arm: str | None, resampling: Resampling = resampling, target: int = target) -> Any:
                if arm is None or arm not in own.arms:
                    return None
                return summarise(called(own, arm, target), resampling)

            described[name].append(
                {
                    "target": scores.task.names[target],
                    "success": rate(scores, name),
                    "without_trigger": rate(untouched, name),
                    "honest_model": rate(scores, twin),
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
