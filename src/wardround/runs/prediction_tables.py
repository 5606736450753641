"""The rows of a run's files: predictions, subgroups, weights."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from wardround.core import tree
from wardround.data.cohort import Cohort
from wardround.evaluation.prediction import SitePrediction
from wardround.training.trial import Run

if TYPE_CHECKING:  # it imports SciPy, which the heart studies need only at their end
    from wardround.uncertainty.row_uncertainty import UnsureRows

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


def unsure_table(arm: str, seed: int, made: "Sequence[UnsureRows]", classes: tuple[str, ...]) -> pd.DataFrame:
    """How sure a trial's model is of each row: `score` is the mean over passes; `side` says which rows they are."""
    label, mean, total = (np.concatenate([getattr(one, name) for one in made]) for name in ("label", "mean", "total"))
    sizes = [len(one.rows) for one in made]

    def columns(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
        names = [name] if values.ndim == 1 else [f"{name}_{one}" for one in classes]
        return dict(zip(names, values.reshape(len(values), -1).T, strict=True))

    told: dict[str, np.ndarray] = {**columns("label", label), **columns("score", mean), **columns("total", total)}
    for name in ("aleatoric", "epistemic", "spread"):
        told |= columns(name, np.concatenate([getattr(one, name) for one in made]))
    return pd.DataFrame(
        {
            "arm": np.full(sum(sizes), arm, dtype=object),
            "seed": np.full(sum(sizes), seed),
            "site": np.repeat(np.array([one.site for one in made], dtype=object), sizes),
            "side": np.repeat(np.array([one.side for one in made], dtype=object), sizes),
            "row": np.concatenate([one.rows for one in made]),
            **told,
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
