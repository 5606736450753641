"""What the model of a coalition is worth: the metric on validation rows of all sites, those of sites outside included.

A site's own validation rows are among them, so that part of what a hospital adds may be to itself. That is why the
worth for the others, on rows without a site's own, is kept as well where a model without this site is compared with
that of all.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from wardround.core.atomic_files import write_atomically
from wardround.evaluation.prediction import predict
from wardround.runs.folder import RunFolder
from wardround.runs.plan import Plan
from wardround.runs.prediction_tables import prediction_table
from wardround.study.robustness.contribution import COALITION, contributed_arm
from wardround.tasks import METRIC_FACTS, Task
from wardround.training.trial import Run, Trial

Key = tuple[int, int]  # seed, coalition


@dataclass(frozen=True)
class Worth:
    """The higher the better: a metric of which less is better has its sign turned."""

    overall: float
    for_others: Mapping[str, float]  # by site: on the rows of the others


def players_of(plan: Plan, seed: int) -> list[str]:
    """Sites that train in the arm, in their order."""
    return [site.name for site in plan.trial(contributed_arm(plan.study), seed).sites]


def worth_of(plan: Plan, trial: Trial, run: Run, players: Sequence[str], coalition: int) -> Worth:
    table = prediction_table([(trial.arm, trial.seed)], [predict(trial, run, "validation")])
    whole, missing = 2 ** len(players) - 1, [p for n, p in enumerate(players) if not coalition >> n & 1]
    compared = players if coalition == whole else missing if len(missing) == 1 else []
    others = {site: _score(plan, table[table["site"] != site]) for site in compared}
    return Worth(_score(plan, table), others)


def _score(plan: Plan, table: pd.DataFrame) -> float:
    """NaN where the metric is not defined."""
    from wardround.evaluation.scores import Scores  # SciPy, which other studies need only at their end

    if not len(table):
        return float("nan")
    task: Task = plan.task
    scores, metric = Scores.of(table, task=task), metric_of(plan)
    value = float(next(iter(scores.overall.values()))[0, scores.metric_names.index(metric)])
    return -value if METRIC_FACTS[metric].lower_is_better else value


def method_of(plan: Plan) -> str:
    if plan.study.contribution is None:
        raise ValueError("only a study with [contribution] has a method")
    return plan.study.contribution.method


def metric_of(plan: Plan) -> str:
    contribution = plan.study.contribution
    return str(contribution.metric if contribution is not None else plan.study.evaluation.metric)


def save_worths(plan: Plan, folder: RunFolder, number: int, trials: Sequence[Trial], runs: Sequence[Run]) -> None:
    """Of a unit's coalitions."""
    lines = []
    for trial, run in zip(trials, runs, strict=True):
        coalition = int(trial.arm.partition(COALITION)[2], 16)
        worth = worth_of(plan, trial, run, players_of(plan, trial.seed), coalition)
        others = {site: _plain(value) for site, value in worth.for_others.items()}
        lines.append([trial.seed, coalition, _plain(worth.overall), others])
    path = _path(folder, number)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(lines).encode())


def read_worths(folder: RunFolder, number: int) -> dict[Key, Worth]:
    return {
        (seed, coalition): Worth(_number(overall), {site: _number(value) for site, value in others.items()})
        for seed, coalition, overall, others in json.loads(_path(folder, number).read_bytes())
    }


def _path(folder: RunFolder, number: int) -> Path:
    return folder.path / "state" / "contribution" / f"unit-{number:05}.json"


def _plain(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _number(value: float | None) -> float:
    return float("nan") if value is None else value
