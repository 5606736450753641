"""One training at the new hospital, adapted or alone, with the study's own rounds and its one local loop."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd
from torch import Tensor

from wardround.adaptation.newcomer import Newcomer
from wardround.algorithms.local_only import local
from wardround.bundles.build.shared_part import SharedPart
from wardround.core.threads import torch_threads
from wardround.core.tree import Tree
from wardround.data.agreement import own_recipe
from wardround.data.cohort import table_site
from wardround.data.prepare import Recipe
from wardround.data.site import Site
from wardround.engines.serial import train_sites
from wardround.evaluation.prediction import SitePrediction, predict
from wardround.models import Model
from wardround.study.schema import Training
from wardround.training.rounds import rounds, site_model, start
from wardround.training.trial import Trial


def with_constant_shared(model: Model, shared: Tree, site: str, names: Sequence[str]) -> Model:
    """The model with its shared leaves as constants: only the site's private leaves are parameters.

    Nothing else can change, whatever the optimiser does with the weights that it holds. `names` are the site's feature
    names. The leaves are no longer private: here they are the whole model.
    """
    penalty, extra = model.penalty, model.extra

    def init(seed: int) -> tuple[Tree, Tree]:
        first, buffers = model.init(seed)
        adapter = {} if model.at_site is None else model.at_site(seed, site, names)
        return {**{name: leaf for name, leaf in first.items() if model.is_private(name)}, **adapter}, buffers

    def logits(params: Tree, buffers: Tree, x: Tensor, masks: Tree | None) -> tuple[Tensor, Tree]:
        return model.logits({**shared, **params}, buffers, x, masks)

    return replace(
        model,
        init=init,
        logits=logits,
        private=(),
        penalty=None if penalty is None else lambda params: penalty({**shared, **params}),
        extra=None if extra is None else lambda params, x: extra({**shared, **params}, x),
        closed_gradient=None,
        row_gradients=None,
        at_site=None,
    )


Way = Literal["adapted", "alone"]
WAYS: tuple[Way, ...] = ("adapted", "alone")


@dataclass(frozen=True, eq=False)
class Trained:
    params: Tree  # all leaves, the shared ones with them
    site: Site
    recipe: Recipe
    prediction: SitePrediction  # of the test rows


def within(training: Training, epochs: int | None) -> Training:
    """The study's training, cut to whole rounds with at most `epochs` epochs in total."""
    if epochs is None or epochs >= training.rounds * training.local_epochs:
        return training
    each = min(training.local_epochs, epochs)
    return replace(training, rounds=epochs // each, local_epochs=each)


def train(part: SharedPart, newcomer: Newcomer, training: Training, way: Way, share: float, seed: int) -> Trained:
    """`adapted` starts from the initial adapter of the shared part's own training, so that it fits the shared leaves;
    `alone` starts as the study's arm `local` with this seed would."""
    site, recipe = prepare_fraction(part, newcomer, share, seed, way)
    model = part.model(len(recipe.names))
    shared: Tree = part.leaves if way == "adapted" else {}
    trial = Trial(
        arm=way,
        seed=seed,
        algorithm=local(),
        model=with_constant_shared(model, shared, site.name, recipe.names) if way == "adapted" else model,
        training=training,
        sites=(site,),
        scored=(site,),
        batch_seed=seed,
        init_seed=int(part.about["init_seed"]) if way == "adapted" else seed,
    )
    with torch_threads(1):  # a forked worker has no thread pool to wait for
        run = start(trial)
        for after, _ in rounds(run, trial, train_sites):
            run = after
        params, _ = site_model(trial, run, 0)
        return Trained({**shared, **params}, site, recipe, predict(trial, run)[0])


def prepare_fraction(
    part: SharedPart, newcomer: Newcomer, share: float, seed: int, way: Way = "adapted"
) -> tuple[Site, Recipe]:
    """The recipe is fitted on the rows of the fraction alone. A number is scaled as for the shared part, so that it
    fits the shared leaves; alone, as the study's arm `local` would scale it."""
    cohort, rows = newcomer.cohort, newcomer.fractions[share][seed]
    task, target = cohort.records.task, cohort.records.target
    scale = part.scale if way == "adapted" else task.scale(task.target_sums(target[rows]))
    recipe = own_recipe(cohort.table, rows, part.preparation)
    return table_site(cohort, replace(newcomer.splits[seed], train=rows), recipe, part.dtype, scale), recipe


def train_repeat(part: SharedPart, newcomer: Newcomer, training: Training, seed: int) -> Iterator[pd.DataFrame]:
    """Predictions of the test rows after each training."""
    for share in newcomer.fractions:
        for way in WAYS:
            prediction = train(part, newcomer, training, way, share, seed).prediction
            yield _prediction_table(prediction, way, share, seed)


def _prediction_table(prediction: SitePrediction, way: str, share: float, seed: int) -> pd.DataFrame:
    names = prediction.task.answer.columns("score")
    columns = prediction.score.reshape(len(prediction.rows), len(names)).T
    rows = len(prediction.rows)
    return pd.DataFrame(
        {
            "way": np.full(rows, way, dtype=object),
            "fraction": np.full(rows, share),
            "seed": np.full(rows, seed),
            "row": prediction.rows,
            "label": prediction.label,
            **dict(zip(names, columns, strict=True)),
        }
    )
