"""The rows of a run's files: predictions, subgroups, weights."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pandas as pd

from wardround import tree
from wardround.data.cohort import Cohort
from wardround.evaluation.predict import SitePrediction
from wardround.trial import Run

AGE_CUTS = (45, 55, 65)


def prediction_table(
    trials: Sequence[tuple[str, int]], made: Sequence[Sequence[SitePrediction]], classes: tuple[str, ...]
) -> pd.DataFrame:
    """The predictions of several trials, (arm, seed) each, as one table."""
    predictions = [p for of_trial in made for p in of_trial]
    score = np.concatenate([p.score for p in predictions])
    label = np.concatenate([p.label for p in predictions])
    names = ["score"] if score.ndim == 1 else [f"score_{name}" for name in classes]
    labels = ["label"] if label.ndim == 1 else [f"label_{name}" for name in classes]
    sizes = [len(p.rows) for p in predictions]
    of_trial = [sum(len(p.rows) for p in part) for part in made]
    return pd.DataFrame(
        {
            "arm": np.repeat(np.array([arm for arm, _ in trials], dtype=object), of_trial),
            "seed": np.repeat([seed for _, seed in trials], of_trial),
            "site": np.repeat(np.array([p.site for p in predictions], dtype=object), sizes),
            "row": np.concatenate([p.rows for p in predictions]),
            **dict(zip(labels, label.reshape(len(label), -1).T, strict=True)),
            **dict(zip(names, score.reshape(len(score), -1).T, strict=True)),
        }
    )


def group_table(cohorts: Sequence[Cohort]) -> pd.DataFrame:
    """Sex, view and age band of each row, for figures by subgroup. Ages themselves are not written.

    Where patients have several rows, `patient` numbers them. Empty where arms have different rows: a row number then
    means several of them. Arms that see the same patients in another size have the same rows.
    """
    cohort = cohorts[0]
    alike = all(_same_rows(cohort, other) for other in cohorts[1:])
    groups = cohort.records.groups if alike else pd.DataFrame()
    made = pd.DataFrame({"row": cohort.row_numbers})
    if alike and cohort.records.patient is not None:
        made["patient"] = cohort.patient
    if "sex" in groups:
        made["sex"] = groups["sex"].to_numpy(dtype=object)
    if "view" in groups:
        made["view"] = groups["view"].to_numpy(dtype=object)
    if "age" in groups:
        labels = [f"below {AGE_CUTS[0]}", *(f"{a}-{b - 1}" for a, b in pairwise(AGE_CUTS)), f"{AGE_CUTS[-1]} and over"]
        age = groups["age"].to_numpy(dtype=float)
        bands = np.array(labels, dtype=object)[np.digitize(age, AGE_CUTS)]
        bands[np.isnan(age)] = None
        made["age"] = bands
    return made if len(made.columns) > 1 else made.iloc[:0]


def _same_rows(one: Cohort, other: Cohort) -> bool:
    named = one.records.patient is not None and other.records.patient is not None
    return (
        named
        and np.array_equal(one.row_numbers, other.row_numbers)
        and np.array_equal(one.patient, other.patient)
        and np.array_equal(one.records.target, other.records.target)
    )


def saved_leaves(run: Run) -> tree.Tree:
    """A run's state as one flat tree: the server's parts, then what each site keeps."""
    leaves = {f"server/{name}": leaf for name, leaf in tree.flatten(run.server).items()}
    for site, memory in run.memories.items():
        parts = {**memory.algorithm, "private": memory.private, "buffers": memory.buffers}
        leaves |= {f"memory/{site}/{name}": leaf for name, leaf in tree.flatten(parts).items()}
    return leaves
