"""One training at the new hospital, adapted or alone: the study's own rounds and its one local loop, at one site."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd

from wardround.adaptation.constant import with_constants
from wardround.adaptation.newcomer import Newcomer, of_fraction
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
from wardround.study.schema import Training
from wardround.training.rounds import rounds, site_model, start
from wardround.training.trial import Trial

Way = Literal["adapted", "alone"]
WAYS: tuple[Way, ...] = ("adapted", "alone")


@dataclass(frozen=True, eq=False)
class Trained:
    params: Tree  # all leaves, the shared ones with them
    site: Site
    recipe: Recipe
    prediction: SitePrediction  # of the test rows


def within(training: Training, epochs: int | None) -> Training:
    """The study's training, cut to whole rounds of no more than so many epochs in all."""
    if epochs is None or epochs >= training.rounds * training.local_epochs:
        return training
    each = min(training.local_epochs, epochs)
    return replace(training, rounds=epochs // each, local_epochs=each)


def train(part: SharedPart, newcomer: Newcomer, training: Training, way: Way, share: float, seed: int) -> Trained:
    """`adapted` begins where the adapters of the shared part's own training began, so that it speaks their language;
    `alone` begins where the study's arm `local` with this seed would."""
    site, recipe = prepared(part, newcomer, share, seed)
    model = part.model(len(recipe.names))
    shared: Tree = part.leaves if way == "adapted" else {}
    trial = Trial(
        arm=way,
        seed=seed,
        algorithm=local(),
        model=with_constants(model, shared, site.name, recipe.names) if way == "adapted" else model,
        training=training,
        sites=(site,),
        scored=(site,),
        batch_seed=seed,
        init_seed=int(part.about["init_seed"]) if way == "adapted" else seed,
    )
    with torch_threads(1):  # a forked worker must not wait for threads that it does not have
        run = start(trial)
        for after, _ in rounds(run, trial, train_sites):
            run = after
        params, _ = site_model(trial, run, 0)
        return Trained({**shared, **params}, site, recipe, predict(trial, run)[0])


def prepared(part: SharedPart, newcomer: Newcomer, share: float, seed: int) -> tuple[Site, Recipe]:
    """Everything that is fitted is fitted on the rows of the fraction: it could not have known of others."""
    cohort, rows = newcomer.cohort, newcomer.fractions[share][seed]
    recipe = own_recipe(cohort.table, rows, part.preparation)
    return table_site(cohort, of_fraction(newcomer.splits[seed], rows), recipe, part.dtype), recipe


def one_repeat(part: SharedPart, newcomer: Newcomer, training: Training, seed: int) -> Iterator[pd.DataFrame]:
    """Predictions of the test rows after each training."""
    for share in newcomer.fractions:
        for way in WAYS:
            made = train(part, newcomer, training, way, share, seed).prediction
            yield prediction_table(made, way, share, seed, part.classes)


def prediction_table(made: SitePrediction, way: str, share: float, seed: int, classes: tuple[str, ...]) -> pd.DataFrame:
    columns = made.score.reshape(len(made.rows), -1).T
    names = ["score"] if len(columns) == 1 else [f"score_{name}" for name in classes]
    rows = len(made.rows)
    return pd.DataFrame(
        {
            "way": np.full(rows, way, dtype=object),
            "fraction": np.full(rows, share),
            "seed": np.full(rows, seed),
            "row": made.rows,
            "label": made.label,
            **dict(zip(names, columns, strict=True)),
        }
    )
