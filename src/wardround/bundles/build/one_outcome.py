"""A bundle predicts one outcome. Of a run with several it has the outcome's own rows, figures and head of the model."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from wardround.core.errors import BundleError, StudyError, shown, suggest
from wardround.core.tree import Tree
from wardround.data.cohort import Cohort
from wardround.data.site import Rows, Site
from wardround.evaluation.outcome_results import content_of, own_columns
from wardround.models.model import TASK, Model
from wardround.tasks import Outcomes, Task


@dataclass(frozen=True)
class OneOutcome:
    """What a bundle is about. Without `several`, the whole of a run."""

    task: Task
    name: str = ""
    several: Outcomes | None = None

    def results(self, results: Mapping[str, Any]) -> Mapping[str, Any]:
        return results if self.several is None else content_of(results, self.name)

    def cohort(self, cohort: Cohort) -> Cohort:
        return cohort if self.several is None else cohort.by_outcome[self.several.names.index(self.name)]

    def predictions(self, table: pd.DataFrame) -> pd.DataFrame:
        return table if self.several is None else own_columns(table, self.several, self.name)

    def site(self, site: Site) -> Site:
        several = self.several
        if several is None:
            return site

        def own(rows: Rows) -> Rows:
            return replace(rows, y=several.y_of(rows.y, self.name))

        return replace(site, train=own(site.train), validation=own(site.validation), test=own(site.test))

    def weights(self, params: Tree, model: Model, where: str) -> Tree:
        """Those of the outcome's own model: the shared body, and of the last layer the outputs of its head."""
        several = self.several
        if several is None:
            return params
        head, own = several.head_of(self.name), {}
        for name, leaf in model.init(0)[0].items():
            source = f"{TASK}{self.name}.{name.removeprefix(TASK)}" if name.startswith(TASK) else name
            whole = params[source]
            part = whole if whole.shape == leaf.shape else whole[head]
            if part.shape != leaf.shape:
                problem = "its model has no head of its own for each outcome"
                raise BundleError(where, problem, "Use a model whose last layer gives the scores of all outcomes.")
            own[name] = part.clone()
        return own


def one_outcome(task: Task, name: str | None) -> OneOutcome:
    if not isinstance(task, Outcomes):
        if name is not None:
            raise StudyError("--outcome", "the run has one outcome", "Leave it out.")
        return OneOutcome(task)
    if name is None:
        problem = "the run has several outcomes, and a bundle is of one"
        raise StudyError("--outcome", problem, f"Outcomes: {', '.join(task.names)}.")
    if name not in task.names:
        raise StudyError("--outcome", f"the run has no outcome {shown(name)}", suggest(name, task.names, "Outcomes"))
    return OneOutcome(task.outcomes[name], name, task)
