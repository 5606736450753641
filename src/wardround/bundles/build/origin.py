"""What a bundle is made from, as one plain value, wherever the model was trained.

A run on one machine (`make.py`), a hospital in a deployment (`deployment/flat/site_bundle.py`) and a new hospital
(`adaptation/handover.py`) each fill it in; `assemble.build_bundle` makes a bundle from it, and does not know which of
them it was.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from wardround.bundles.build.run_inputs import LabelledRows, RunInputs, labelled_rows
from wardround.bundles.card.card import CardFacts
from wardround.core.errors import BundleError, StudyError, shown, suggest
from wardround.core.settings import Factory
from wardround.core.tree import State, Tree
from wardround.data.cohort import Cohort
from wardround.data.site import Rows, Site
from wardround.evaluation.outcome_results import own_columns
from wardround.evaluation.scores import labels_and_scores
from wardround.tasks import Task
from wardround.tasks.outcomes import several_outcomes


class OtherRows(BundleError):
    """The run has predicted other rows than are here."""


class SavedScores(NamedTuple):
    """Of a site's test rows, in the order of `site.test_rows`."""

    label: np.ndarray
    score: np.ndarray


@dataclass(frozen=True, eq=False)
class Origin:
    """One site's model in one arm with one seed, and all that is known of it."""

    facts: CardFacts
    run: str  # the run folder's name
    task: Task
    data: RunInputs
    params: Tree
    buffers: Tree
    vocabulary: Mapping[str, str]
    train: LabelledRows
    validation: LabelledRows  # without patients whom any site tests
    test: np.ndarray  # places of the test rows in the table and among the images
    test_target: np.ndarray  # of these rows, as training has it
    scale: tuple[float, ...]  # of the target
    saved: SavedScores
    models: Mapping[str, Factory] | None = None
    together: Task | None = None  # where several outcomes are predicted together: all of them
    outcome: str = ""  # and which of them the bundle predicts
    test_people: np.ndarray = field(default_factory=lambda: np.zeros(0))  # the patient of each test row
    posterior: State = field(default_factory=dict)  # what training tells of the distribution of the weights
    trained: Sequence[Mapping[str, Any]] = ()  # each training behind the weights, as a run describes its models

    @property
    def private(self) -> bool:
        """Whether each patient is protected: what is read off patients without noise then stays out of the bundle."""
        return self.facts.arm.privacy.example is not None

    @property
    def unrecorded(self) -> tuple[str, ...]:
        """Columns that the recipe needs and the site's files do not have."""
        table = self.data.table
        if table is None:
            return ()
        names = [column.name for column in table.columns]
        recorded = dict(zip(names, table.records_of(self.test).tolist(), strict=True))
        return tuple(column.name for column in self.data.recipe.columns if not recorded[column.name])


def origin_at(
    site: Site,
    cohort: Cohort,
    dtype: torch.dtype,
    *,
    facts: CardFacts,
    run: str,
    data: RunInputs,
    weights: tuple[Tree, Tree],
    saved: SavedScores,
    validation: Rows | None = None,
    models: Mapping[str, Factory] | None = None,
    outcome: str = "",
    posterior: State | None = None,
    trained: Sequence[Mapping[str, Any]] = (),
) -> Origin:
    """Of a site whose rows are those of a cohort. `weights` are parameters and buffers of the model with which the
    site predicts; `validation` is the site's own, unless given. `outcome` is the one that the bundle is to predict,
    where the model predicts several."""
    params, buffers = weights
    together = cohort.records.task
    task = together.outcomes[outcome] if outcome else together

    def own(rows: Rows) -> Rows:
        return replace(rows, y=together.y_of(rows.y, outcome)) if outcome else rows

    target = own(site.test).labels.cpu().numpy()
    return Origin(
        facts=facts,
        run=run,
        task=task,
        data=data,
        params=params,
        buffers=buffers,
        vocabulary=_vocabulary(cohort, site.name),
        train=labelled_rows(own(site.train), dtype, task),
        validation=labelled_rows(own(site.validation if validation is None else validation), dtype, task),
        test=np.searchsorted(cohort.row_numbers, site.test_rows),
        test_target=target,
        test_people=site.test.people.cpu().numpy(),
        scale=task.scale_in(target),
        saved=saved,
        models=models,
        together=together if outcome else None,
        outcome=outcome,
        posterior=posterior or {},
        trained=trained,
    )


def _vocabulary(cohort: Cohort, site: str) -> dict[str, str]:
    """How the site's file writes the outcome, where the site is a hospital and its file has words for it."""
    by_site = {hospital.replace("/", "-"): words for hospital, words in cohort.records.vocabulary.items()}
    return dict(by_site.get(site, {}))


def chosen_outcome(task: Task, outcome: str | None) -> str:
    """The name of the outcome, where there are several to choose from; empty where there is one."""
    known = list(task.outcomes)
    if not known:
        if outcome is not None:
            raise StudyError("--outcome", "the study has one outcome", "Leave it out.")
        return ""
    if outcome is None:
        problem = "the model predicts several outcomes, and a bundle is for one"
        raise StudyError("--outcome", problem, f"Outcomes: {', '.join(known)}.")
    if outcome not in known:
        raise StudyError("--outcome", f"the study has no outcome {shown(outcome)}", suggest(outcome, known, "Outcomes"))
    return outcome


def saved_scores(
    table: pd.DataFrame, where: str, arm: str, seed: int, site: Site, task: Task, outcome: str = ""
) -> SavedScores:
    """From a run's predictions. `outcome` is one of the task's, if it has several."""
    table = own_columns(table, several_outcomes(task), outcome) if outcome else table
    rows = table[(table["arm"] == arm) & (table["seed"] == seed) & (table["site"] == site.name)].set_index("row")
    if not rows.index.is_unique or set(rows.index) != set(site.test_rows.tolist()):
        problem = f"does not hold the test rows of {site.name} in arm {arm}"
        raise OtherRows(where, problem, "Run the study again with --again.")
    ordered: pd.DataFrame = rows.loc[site.test_rows]
    saved = SavedScores(*labels_and_scores(ordered))
    if np.isnan(saved.score).any():
        problem = f"arm {arm} diverged with seed {seed}: its scores are no numbers"
        raise BundleError(where, problem, "Name another seed.")
    return saved
