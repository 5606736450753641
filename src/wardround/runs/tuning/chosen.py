"""What [tuning] showed, as `tuning` of results.json has it, and the choices of a finished run."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from wardround.core.settings import parse
from wardround.runs.folder import RunFolder
from wardround.runs.plan import Plan
from wardround.runs.tuning.tune import Tuned, set_chosen, trial_name
from wardround.study.parser import plain
from wardround.study.schema import Arm
from wardround.study.tuning import kinds_of, tuned_arms
from wardround.study.tuning_methods import METHODS, Attempt
from wardround.tasks import METRIC_FACTS
from wardround.tasks.class_metrics import mean_or_none

NEAR = 0.01


def describe_tuning(plan: Plan, tuned: Tuned, records: pd.DataFrame) -> dict[str, Any]:
    """`records` are those of all trainings, trials among them: what was spent is counted there."""
    study, tuning = plan.study, plan.study.tuning
    if tuning is None:
        raise ValueError("only a study with [tuning] has trials")
    trained = Counter(zip(records["arm"].tolist(), records["seed"].tolist(), strict=True))
    arms = {arm.name: _arm(plan, tuned, arm, trained) for arm in tuned_arms(study)}
    spent = {budget["trainings"] for arm in arms.values() for budget in arm["spent"].values()}
    return {
        "method": tuning.method,
        "budget": tuning.budget,
        "metric": tuning.metric,
        "lower_is_better": METRIC_FACTS[str(tuning.metric)].lower_is_better,
        "space": plain(tuning.space),
        "near": near(plan),
        # the same for every arm and seed, by the rounds in the records, and as planned
        "equal_budgets": _equal(plan, arms) and (len(spent) == 1 or _several_lengths(plan)),
        "arms": arms,
    }


def _several_lengths(plan: Plan) -> bool:
    """Arms whose trainings have different numbers of rounds: shares of a training are rounded up to rounds."""
    return len({arm.training.rounds for arm in tuned_arms(plan.study)}) > 1


def _equal(plan: Plan, arms: Mapping[str, Mapping[str, Any]]) -> bool:
    tuning = plan.study.tuning
    planned = {
        arm.name: METHODS[tuning.method].rounds(tuning.budget, arm.training.rounds) if tuning else 0
        for arm in tuned_arms(plan.study)
    }
    return all(spent["rounds"] == planned[name] for name, arm in arms.items() for spent in arm["spent"].values())


def _arm(plan: Plan, tuned: Tuned, arm: Arm, trained: Mapping[tuple[str, int], int]) -> dict[str, Any]:
    seeds, sign = list(plan.study.evaluation.seeds), _sign(plan)
    attempts = {seed: tuned.attempts[arm.name, seed] for seed in seeds}
    chosen = {seed: tuned.chosen((arm.name, seed)) for seed in seeds}
    rounds, task = arm.training.rounds, tuned.tasks[arm.name, seeds[0]]
    spent = {
        seed: sum(trained.get((trial_name(arm.name, n), seed), 0) for n in _numbers(attempts[seed])) for seed in seeds
    }
    return {
        "keys": list(task.space),
        "written": plain(task.written),
        "rounds": rounds,
        "spent": {
            str(seed): {"rounds": count, "trainings": count / rounds, "trials": len(_numbers(attempts[seed]))}
            for seed, count in spent.items()
        },
        "trials": [
            {
                "seed": seed,
                "trial": attempt.trial,
                "values": plain(attempt.values),
                "rounds": attempt.rounds,
                "score": None if attempt.score is None else sign * attempt.score,
            }
            for seed in seeds
            for attempt in _last(attempts[seed])
        ],
        "chosen": {
            str(seed): {"trial": own.trial, "values": plain(own.values), "score": _raw(own, sign)}
            for seed, own in chosen.items()
        },
        "mean_chosen": _mean([_raw(own, sign) for own in chosen.values()]),
        "mean_written": _mean([_raw(of_seed[0], sign) for of_seed in attempts.values() if of_seed[0].rounds == rounds]),
        **_flatness(list(attempts.values()), rounds, near(plan)),
    }


def near(plan: Plan) -> float:
    """How far below the best a score is nearly as good: the difference that would matter, where the study states it."""
    return plan.study.evaluation.important_difference or NEAR


def _flatness(attempts: Sequence[Sequence[Attempt]], rounds: int, margin: float) -> dict[str, Any]:
    """How many of the trials that trained to the end are nearly as good as the best of their seed, and where."""
    shares, values = [], []
    for of_seed in attempts:
        whole = [a for a in of_seed if a.rounds == rounds]
        scores = [a.score for a in whole if a.score is not None]
        if scores:
            close = [a.values for a in whole if a.score is not None and max(scores) - a.score <= margin]
            shares.append(len(close) / len(whole))
            values += close
    keys = values[0] if values else {}
    return {"near_share": _mean(shares), "near_values": {key: _extent([own[key] for own in values]) for key in keys}}


def _extent(values: Sequence[Any]) -> list[Any]:
    """Of numbers the lowest and the highest, else every value once."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return [min(values), max(values)]
    return [plain(value) for place, value in enumerate(values) if value not in values[:place]]


def _last(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Each trial as far as it came."""
    return list({attempt.trial: attempt for attempt in attempts}.values())


def _numbers(attempts: Sequence[Attempt]) -> list[int]:
    return list(dict.fromkeys(attempt.trial for attempt in attempts))


def _mean(values: Sequence[float | None]) -> float | None:
    return mean_or_none(np.array([np.nan if value is None else value for value in values]))


def _raw(attempt: Attempt, sign: int) -> float | None:
    return None if attempt.score is None else sign * attempt.score


def _sign(plan: Plan) -> int:
    tuning = plan.study.tuning
    return -1 if tuning is not None and METRIC_FACTS[str(tuning.metric)].lower_is_better else 1


def set_saved_choices(plan: Plan, folder: RunFolder) -> None:
    """Of a complete run: each arm has the settings again with which it was trained."""
    if plan.study.tuning is None:
        return
    saved = folder.read_json("results.json")["tuning"]["arms"]
    for arm in tuned_arms(plan.study):
        kinds = kinds_of(arm, plan.families)
        for seed, own in saved[arm.name]["chosen"].items():
            values = {key: parse(kinds[key], value, f"tuning: {key}") for key, value in own["values"].items()}
            set_chosen(plan, (arm.name, int(seed)), values)
