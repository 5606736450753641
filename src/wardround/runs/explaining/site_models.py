"""The model with which each site of a run predicts, with the site's rows as that model takes them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from wardround.core.errors import StudyError
from wardround.data.prepare import Layout, Recipe
from wardround.data.site import Rows, Site
from wardround.explain import Columns, Scorer
from wardround.explain.across_sites import ModelExplanation, ModelRows
from wardround.explain.explanation import output_names
from wardround.study.schema import Arm
from wardround.training.rounds import site_model
from wardround.training.trial import Run, Trial

NO_COLUMNS = pd.DataFrame()
IMAGES = "its rows are images, and columns are explained here"
SIGNALS = "its rows are signals, and columns are explained here"
IN_PARTS = "its columns are held by several parties, none of which has the whole row"
SEVERAL = "it predicts several outcomes at once"
OWN_COLUMNS = "each hospital has columns of its own"


@dataclass(frozen=True, eq=False)
class SiteModel:
    site: Site
    recipe: Recipe
    scorer: Scorer  # with columns under the names of the site's own file
    dtype: torch.dtype

    def prepared(self, rows: Rows) -> tuple[Tensor, Tensor]:
        return rows.everything(self.dtype)

    @property
    def background(self) -> Tensor:
        return self.prepared(self.site.train)[0]

    def test_rows(self) -> ModelRows:
        """Labelled rows, with columns under the names that all sites share."""
        x, y = self.prepared(self.site.test)
        return ModelRows(
            self.site.name,
            NO_COLUMNS,
            self.site.test.people.numpy(),
            scorer=replace(self.scorer, columns=Columns.of(self.recipe.layout.columns)),
            x=x,
            y=y,
        )


def site_models(trial: Trial, run: Run, scale: tuple[float, ...]) -> list[SiteModel]:
    """Of every site that is scored. `scale` is what the task knows of the target of all sites."""
    models = []
    for site in trial.scored:
        recipe = recipe_of(site)
        scorer = replace(site_scorer(trial, run, site, scale), columns=Columns.of_recipe(recipe))
        models.append(SiteModel(site, recipe, scorer, trial.dtype))
    return models


def site_scorer(trial: Trial, run: Run, site: Site, scale: tuple[float, ...]) -> Scorer:
    """Of rows that have no columns with names."""
    params, buffers = site_model(trial, run, trainer_for(trial, site.name))
    return Scorer(trial.model, params, buffers, scale=scale)


def trainer_for(trial: Trial, site: str) -> int:
    """A site that does not train predicts with the shared model, and so do all where rows are pooled."""
    trainers = [trainer.name for trainer in trial.sites]
    return trainers.index(site) if site in trainers else 0


def recipe_of(site: Site) -> Recipe:
    if site.recipe is None:
        raise StudyError(f"site {site.name}", IMAGES, "Explain a study of tables.")
    return site.recipe


def why_not(arm: Arm, trial: Trial) -> str:
    """Why nothing of an arm can be explained by columns; empty where it can."""
    if trial.model.task.outcomes:
        return SEVERAL
    if arm.model.facts.in_parts:
        return IN_PARTS
    if any(site.recipe is None or site.recipe.layout.names == () for site in trial.scored):
        return SIGNALS if len(trial.scored[0].test.inputs) == len(("channels", "samples")) else IMAGES
    if len({site.recipe.layout.names for site in trial.scored if site.recipe is not None}) > 1:
        return OWN_COLUMNS
    return ""


def analysis_of(arm: Arm, trial: Trial, layout: Layout, repeats: int, secure: bool) -> ModelExplanation:
    task = trial.model.task
    return ModelExplanation(
        layout, output_names(task), task.link, arm.preparation.scale, trial.batch_seed, repeats, secure
    )


def numbers_per_unit(models: Sequence[SiteModel]) -> dict[str, float] | None:
    """By numeric column, how much of it is 1 prepared, in its own units; None where sites scale by themselves."""
    spreads = np.array([model.recipe.fit.spread for model in models])
    if not np.allclose(spreads, spreads[:1], rtol=1e-12):
        return None
    return {column.name: float(size) for column, size in zip(models[0].recipe.layout.numeric, spreads[0], strict=True)}
