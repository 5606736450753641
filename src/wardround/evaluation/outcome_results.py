"""`results.json` of a study with several outcomes: each by its own task, from its own columns of the predictions.

The whole file is about the study's first outcome; `outcomes` has the same content for each of them. Arms are selected
by the first outcome, once, because a model is trained for all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from wardround.evaluation.comparisons.selection import choose
from wardround.evaluation.results import results
from wardround.evaluation.under_attack.damage import honest_tables
from wardround.screening import NONE_DECIDED, Decisions
from wardround.study.schema import Study
from wardround.tasks import Outcomes, Task

LOSSES = ("test_loss", "validation_loss", "training_loss")  # of all outcomes together


def study_results(
    study: Study,
    predictions: pd.DataFrame,
    groups: pd.DataFrame,
    records: pd.DataFrame,
    sites: Sequence[Mapping[str, Any]],
    task: Task,
    others: Mapping[str, pd.DataFrame | None],
    workers: int = 1,
    decisions: Decisions = NONE_DECIDED,
) -> dict[str, Any]:
    """As `results`, of one outcome or of several. `others` are its other tables, by name."""
    predictions, others = honest_tables(study, predictions, others)
    if not isinstance(task, Outcomes):
        return results(
            study, predictions, groups, records, sites, task, None, workers=workers, decisions=decisions, **others
        )
    first, *_ = task.names
    selection = others.get("selection")
    choices = [] if selection is None else choose(study, own_columns(selection, task, first), task.outcomes[first])
    by_outcome = {
        name: _of_outcome(study, task, name, predictions, groups, records, sites, choices, others, workers, decisions)
        for name in task.names
    }
    return {**by_outcome[first], "task": task.to_json(), "outcome": first, "outcomes": by_outcome}


def by_outcome(study: Study, table: pd.DataFrame, task: Task) -> dict[str, tuple[Study, pd.DataFrame, Task]]:
    """By outcome what scores it: the study with its primary metric, a table of predictions in its own columns, and its
    task. Under an empty name where there is one."""
    if not isinstance(task, Outcomes):
        return {"": (study, table, task)}
    metrics = {name: own.primary for name, own in task.outcomes.items()} | {task.names[0]: study.evaluation.metric}
    return {
        name: (
            replace(study, evaluation=replace(study.evaluation, metric=metrics[name])),
            own_columns(table, task, name),
            own,
        )
        for name, own in task.outcomes.items()
    }


def own_columns(table: pd.DataFrame, task: Outcomes, name: str) -> pd.DataFrame:
    """A table of predictions with one outcome, in the columns that its task has alone."""
    own = task.columns_of(name)
    strange = [*task.label_columns(), *task.score_columns()]
    kept = [str(column) for column in table.columns if column in own or column not in strange]
    columns = {column: own.get(column, column) for column in kept}
    part = table[list(columns)].rename(columns=columns)
    if task.outcomes[name].reads == "classes":
        part = part.astype({"label": np.int64})
    return part


def _of_outcome(
    study: Study,
    task: Outcomes,
    name: str,
    predictions: pd.DataFrame,
    groups: pd.DataFrame,
    records: pd.DataFrame,
    sites: Sequence[Mapping[str, Any]],
    choices: list[dict[str, Any]],
    others: Mapping[str, pd.DataFrame | None],
    workers: int,
    decisions: Decisions,
) -> dict[str, Any]:
    is_first, own = name == task.names[0], task.outcomes[name]
    metric = study.evaluation.metric if is_first else own.primary
    of_outcome = replace(
        study,
        evaluation=replace(study.evaluation, metric=metric),
        claims=study.claims if is_first else (),  # they name metrics of the first
    )
    # losses are of all outcomes together: beside one outcome they would be taken for its own
    rounds = records.drop(columns=[column for column in LOSSES if column in records])
    rounds = rounds if is_first else rounds.assign(loss=np.nan)
    tables = {
        kind: own_columns(table, task, name)
        for kind, table in others.items()
        if table is not None and kind != "selection"
    }
    part = own_columns(predictions, task, name)
    more: dict[str, Any] = {**tables, "workers": workers, "decisions": decisions}
    content = results(of_outcome, part, groups, rounds, _sites_of(sites, name), own, choices, **more)
    return content | {"study": {"name": study.name, "question": study.question, "hash": study.hash}}


def content_of(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A whole results.json as that of one outcome: what all outcomes share, and its own figures."""
    own = content["outcomes"][name]
    shared = {key: value for key, value in content.items() if key not in ("outcomes", "notices")}
    notices = [*own["notices"], *(notice for notice in content["notices"] if "arm" not in notice)]
    return {**shared, **own, "outcome": name, "notices": notices, "sites": _sites_of(content["sites"], name)}


def _sites_of(sites: Sequence[Mapping[str, Any]], name: str) -> list[dict[str, Any]]:
    """Descriptions of sites with the classes, or the numbers, of one outcome."""
    return [
        {**described, "sites": {site: _with_own_part(counts, name) for site, counts in described["sites"].items()}}
        for described in sites
    ]


def _with_own_part(counts: Mapping[str, Any], name: str) -> dict[str, Any]:
    before, kinds = f"{name}: ", [kind for kind in ("classes", "target") if counts.get(kind)]
    own = {
        kind: {label.removeprefix(before): told for label, told in counts[kind].items() if label.startswith(before)}
        for kind in kinds
    }
    return {**counts, **own}
