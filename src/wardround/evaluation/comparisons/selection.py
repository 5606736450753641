"""The value of a swept setting that a seed would have chosen, without a look at its test rows."""

from typing import Any

import numpy as np
import pandas as pd

from wardround.evaluation.scores import Scores
from wardround.evaluation.summaries.merged_summaries import Scored
from wardround.study.schema import SELECTED, Arm, Selection, Study, in_variant
from wardround.tasks import METRIC_FACTS, Task
from wardround.tasks.class_metrics import mean_or_none


def choose(study: Study, scored: pd.DataFrame, task: Task | None = None) -> list[dict[str, Any]]:
    """For each swept arm and variant: each value's mean score and the value chosen with each seed.

    `scored` are predictions on validation rows, or on a held-out site's rows by models trained without it. Ties go to
    the value that stands first in the study; a seed in which no value has a score chooses none.
    """
    return [] if study.selection is None else choose_by(study, study.selection, Scores.of(scored, task=task))


def choose_by(study: Study, selection: Selection, scores: Scored) -> list[dict[str, Any]]:
    variants = dict.fromkeys(arm.variant for arm in study.arms)
    return [
        _choice(selection, family, variant, arms, scores)
        for variant in variants
        for family in selection.arms
        if (arms := [arm for arm in study.arms if (arm.family, arm.variant) == (family, variant)])
    ]


def scored_name(selection: Selection, arm: Arm) -> str:
    """The arm whose predictions decide on this one."""
    return arm.name if selection.on == "validation" else f"{arm.name}?without={selection.site}"


def _choice(selection: Selection, family: str, variant: str, arms: list[Arm], scores: Scored) -> dict[str, Any]:
    metric = str(selection.metric)  # parsed with the study's primary one where it names none
    place = scores.metric_names.index(metric)
    table = np.stack([scores.overall[scored_name(selection, arm)][:, place] for arm in arms])
    sign = -1 if METRIC_FACTS[metric].lower_is_better else 1
    known = ~np.isnan(table)
    best = np.where(known, sign * table, -np.inf).argmax(axis=0)  # the first of equals
    decided = known.any(axis=0)
    return {
        "arm": in_variant(f"{family}[{SELECTED}]", variant),
        "family": family,
        "variant": variant,
        "on": selection.on,
        "site": selection.site,
        "metric": metric,
        "scores": {arm.name: mean_or_none(line) for arm, line in zip(arms, table, strict=True)},
        "chosen": {
            str(seed): arms[number].name
            for seed, number, ok in zip(scores.seeds, best.tolist(), decided.tolist(), strict=True)
            if ok
        },
    }


def compose(table: pd.DataFrame, choices: list[dict[str, Any]]) -> pd.DataFrame:
    """Predictions or records with those of the selected arms added: with each seed, the chosen value's."""
    parts = [table]
    for choice in choices:
        keys = [(arm, int(seed)) for seed, arm in choice["chosen"].items()]
        chosen = table[pd.MultiIndex.from_frame(table[["arm", "seed"]]).isin(keys)]
        parts.append(chosen.assign(arm=choice["arm"]))
    return pd.concat(parts, ignore_index=True) if len(parts) > 1 else table
