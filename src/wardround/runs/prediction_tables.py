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
    from wardround.uncertainty.row_uncertainty import RowUncertainty

AGE_CUTS = (45, 55, 65)


def prediction_table(trials: Sequence[tuple[str, int]], predicted: Sequence[Sequence[SitePrediction]]) -> pd.DataFrame:
    """The predictions of trials, (arm, seed) each, as one table."""
    parts = [part for of_trial in predicted for part in of_trial]
    task = parts[0].task
    sizes = [sum(len(part.rows) for part in of_trial) for of_trial in predicted]
    return pd.DataFrame(
        {
            "arm": np.repeat(np.array([arm for arm, _ in trials], dtype=object), sizes),
            "seed": np.repeat([seed for _, seed in trials], sizes),
            "site": np.repeat(
                np.array([part.site for part in parts], dtype=object), [len(part.rows) for part in parts]
            ),
            "row": np.concatenate([part.rows for part in parts]),
            **_columns(task.label_columns(), np.concatenate([part.label for part in parts])),
            **_columns(task.score_columns(), np.concatenate([part.score for part in parts])),
        }
    )


def uncertainty_table(arm: str, seed: int, parts: "Sequence[RowUncertainty]", classes: tuple[str, ...]) -> pd.DataFrame:
    """`score` is the mean over passes; `subset` says whether rows are validation, test or changed test rows."""
    sizes = [len(part.rows) for part in parts]
    table = {
        "arm": np.full(sum(sizes), arm, dtype=object),
        "seed": np.full(sum(sizes), seed),
        "site": np.repeat(np.array([part.site for part in parts], dtype=object), sizes),
        "subset": np.repeat(np.array([part.subset for part in parts], dtype=object), sizes),
        "row": np.concatenate([part.rows for part in parts]),
    }
    for name in ("label", "score", "total", "aleatoric", "epistemic", "spread"):
        values = np.concatenate([getattr(part, name) for part in parts])
        table |= _columns([name] if values.ndim == 1 else [f"{name}_{label}" for label in classes], values)
    return pd.DataFrame(table)


def _columns(names: Sequence[str], values: np.ndarray) -> dict[str, np.ndarray]:
    """One column, or one for each class, finding or outcome."""
    return dict(zip(names, values.reshape(len(values), -1).T, strict=True))


def group_table(cohorts: Sequence[Cohort]) -> pd.DataFrame:
    """Sex, view, declared groups and age band of each row, for figures by subgroup. Ages themselves are not written.

    Where patients have more than one row, `patient` numbers them. Empty where arms have different rows, because a row
    number is then ambiguous. Arms that see the same patients in another image size have the same rows.
    """
    cohort = cohorts[0]
    alike = all(_same_rows(cohort, other) for other in cohorts[1:])
    groups = cohort.records.groups if alike else pd.DataFrame()
    table = pd.DataFrame({"row": cohort.row_numbers})
    if alike and cohort.records.patient is not None:
        table["patient"] = cohort.patient
    for name in ("sex", "view", *(name for name in groups if name not in ("sex", "view", "age"))):
        if name in groups:
            table[name] = groups[name].to_numpy(dtype=object)
    if "age" in groups:
        labels = [f"below {AGE_CUTS[0]}", *(f"{a}-{b - 1}" for a, b in pairwise(AGE_CUTS)), f"{AGE_CUTS[-1]} and over"]
        age = groups["age"].to_numpy(dtype=float)
        bands = np.array(labels, dtype=object)[np.digitize(age, AGE_CUTS)]
        bands[np.isnan(age)] = None
        table["age"] = bands
    return table if len(table.columns) > 1 else table.iloc[:0]


def _same_rows(cohort: Cohort, other: Cohort) -> bool:
    return (
        cohort.records.patient is not None
        and other.records.patient is not None
        and np.array_equal(cohort.row_numbers, other.row_numbers)
        and np.array_equal(cohort.patient, other.patient)
        and np.array_equal(cohort.records.target, other.records.target)
    )


def saved_leaves(run: Run) -> tree.Tree:
    """A run's state as one flat tree: the server's parts, then what each site keeps."""
    leaves = {f"server/{name}": leaf for name, leaf in tree.flatten(run.server).items()}
    for site, memory in run.memories.items():
        parts = {**memory.algorithm, "private": memory.private, "buffers": memory.buffers}
        leaves |= {f"memory/{site}/{name}": leaf for name, leaf in tree.flatten(parts).items()}
    return leaves
