"""What a run of parties adds to results.json: how patients were matched, and the figures while a party was missing."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wardround.core.extras import needs
from wardround.evaluation.comparisons.benefit import compared_metrics
from wardround.evaluation.comparisons.differences import correct, difference_of
from wardround.evaluation.intervals import Resampling, summarise_metrics
from wardround.evaluation.missing_party import describe_deployed_noise
from wardround.evaluation.summaries.merged_summaries import own_figures
from wardround.protocol.catalogue import SiteSummary
from wardround.runs.folder import RunFolder, write_atomically
from wardround.study.schema import Study
from wardround.tasks import Task
from wardround.training.trial import Trial

with needs("deploy", "a study across hospitals"):
    from msgspec import to_builtins


Without = Mapping[int, Mapping[str, SiteSummary]]  # by the number of the trial, then by the party that is missing


def keep_without(folder: RunFolder, wave: int, trials: Sequence[Trial], without: Without) -> None:
    """The holder's figures of test rows as they are without each other party."""
    lines = [
        {"arm": trials[place].arm, "seed": trials[place].seed, "party": party, **to_builtins(summary)}
        for place, by_party in without.items()
        for party, summary in by_party.items()
    ]
    path = folder.path / "state" / "without" / f"{wave:05}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(lines).encode())


def topology_facts(
    folder: RunFolder, study: Study, task: Task, waves: int, matched: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """By arm: what its entry `topology` says in addition to the study."""
    state = folder.path / "state"
    parts = [(state / "without" / f"{wave:05}.json", state / "summaries" / f"{wave:05}.json") for wave in range(waves)]
    without = [line for path, _ in parts for line in json.loads(path.read_bytes())]
    whole = [line for _, path in parts for line in json.loads(path.read_bytes()) if line["subset"] == "test"]
    return {
        arm.name: {
            "matched": dict(matched),
            "missing_party": _missing_party(study, task, arm.name, without, whole),
            "embeddings": describe_deployed_noise(study, arm),
        }
        for arm in study.arms
    }


def _missing_party(
    study: Study, task: Task, arm: str, without: Sequence[Mapping[str, Any]], whole: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    resampling = Resampling.of(study.evaluation_of(study.arm(arm)))
    metrics = compared_metrics(task, study.evaluation.metric)
    by_party: dict[str, Any] = {}
    for party in dict.fromkeys(line["party"] for line in without if line["arm"] == arm):
        lone = _figures(study, task, arm, [line for line in without if line["party"] == party])
        full = _figures(study, task, arm, whole)
        if lone is None or full is None:
            continue
        by_party[party] = {
            "metrics": summarise_metrics(task.metric_names, lone, resampling),
            "difference": {
                metric: difference_of((lone - full)[:, task.metric_names.index(metric)], metric, resampling)
                for metric in metrics
            },
        }
    for metric in metrics:
        correct([entry["difference"][metric] for entry in by_party.values()])
    return by_party


def _figures(study: Study, task: Task, arm: str, lines: Sequence[Mapping[str, Any]]) -> np.ndarray | None:
    """Seeds x metrics, NaN where a figure is withheld; None where all are."""
    metrics = {line["seed"]: own_figures(task, line) for line in lines if line["arm"] == arm}
    by_seed = {seed: values for seed, values in metrics.items() if values is not None}
    if not by_seed:
        return None
    rows = [
        [np.nan if (value := by_seed.get(seed, {}).get(name)) is None else value for name in task.metric_names]
        for seed in study.evaluation.seeds
    ]
    return np.array(rows, dtype=float)
