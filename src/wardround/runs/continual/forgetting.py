"""What a model that was trained on has forgotten: predictions of the old and of the new model for the old test rows.

Both are for the same rows of the hospitals of the run that the study started from. Rows of patients on whom the new
model was trained, or with whom anything was chosen, are left out: they would say that nothing was forgotten.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import torch

from wardround.core.tree import Tree
from wardround.data.cohort import Cohort
from wardround.data.site import Rows, Site
from wardround.evaluation.forgetting import NEW, OLD
from wardround.evaluation.prediction import SitePrediction, scores_of
from wardround.runs.continual.earlier import Earlier, SharedRows, shared_rows
from wardround.runs.finished_run import arm_of, saved_run
from wardround.runs.folder import RunFolder
from wardround.runs.plan import Plan
from wardround.runs.prediction_tables import prediction_table
from wardround.study.schema import Arm
from wardround.training.rounds import site_model
from wardround.training.trial import Run, Trial


def predict_earlier(
    plan: Plan, folder: RunFolder, arm: Arm, earlier: Earlier
) -> tuple[pd.DataFrame | None, dict[str, float]]:
    """Both models' predictions for the earlier run's test rows, with every seed of the arm; None where no row is left.
    And how many rows were left out, by site, on average over seeds.

    `site` and `row` are those of the earlier run.
    """
    predecessor = plan.predecessor_of(arm)
    if predecessor is None:
        raise ValueError("the arm starts from no trained model")
    results, parts = earlier.folder.read_json("results.json"), []
    left_out: dict[str, float] = {}
    for seed, model in predecessor.models.items():
        old_arm = arm_of(earlier.plan.study, results, predecessor.arm, model.seed)
        old_trial = earlier.plan.trial(old_arm, model.seed)
        old = saved_run(old_trial, earlier.folder.load_model(old_arm.name, model.seed))
        trial = plan.trial(arm, seed)
        new = saved_run(trial, folder.load_model(arm.name, seed))
        shared = shared_rows(earlier.plan.cohort_of(old_arm), plan.cohort_of(arm))
        used = used_rows(plan, arm, seed)
        sites = [_untrained(site, earlier.plan.cohort_of(old_arm), shared, used) for site in old_trial.scored]
        for before, after in zip(old_trial.scored, sites, strict=True):
            share = (len(before.test) - len(after.test)) / len(predecessor.models)
            left_out[after.name] = left_out.get(after.name, 0.0) + share
        for name, predicted in (
            (OLD, _by_old(old_trial, old, sites)),
            (NEW, _by_new(trial, new, old_trial, old, sites, earlier.plan.cohort_of(old_arm))),
        ):
            if predicted:
                table = prediction_table([(arm.name, seed)], [predicted])
                parts.append(table.assign(model=name))
    return pd.concat(parts, ignore_index=True) if parts else None, {s: rows for s, rows in left_out.items() if rows}


def used_rows(plan: Plan, arm: Arm, seed: int) -> np.ndarray:
    """Rows on which the arm trains, or with which anything is chosen."""
    return np.concatenate([rows for split in plan.splits(arm, seed) for rows in (split.train, split.validation)])


def _untrained(site: Site, cohort: Cohort, shared: SharedRows, used: np.ndarray) -> Site:
    """The site with the test rows of patients whom the new model has not seen."""
    places = np.searchsorted(cohort.row_numbers, site.test_rows)
    keep = ~shared.seen(places, used)
    return replace(site, test=chosen(site.test, keep), test_rows=site.test_rows[keep])


def chosen(rows: Rows, keep: np.ndarray) -> Rows:
    """Some of the rows."""
    places = torch.from_numpy(np.flatnonzero(keep)).to(rows.y.device)
    names = ["levels", "tabular", "patients", *(["x", "y"] if rows.index is None else ["index"])]
    return replace(rows, **{name: part[places] for name in names if (part := getattr(rows, name)) is not None})


def _by_old(trial: Trial, run: Run, sites: Sequence[Site]) -> list[SitePrediction]:
    return [
        _predicted(trial, site_model(trial, run, _trainer(trial, site.name)), site) for site in sites if len(site.test)
    ]


def _by_new(
    trial: Trial, run: Run, old_trial: Trial, old: Run, sites: Sequence[Site], cohort: Cohort
) -> list[SitePrediction]:
    """A hospital that takes part again predicts with what it keeps now. Another one has the new shared weights, and
    what it kept for itself as the earlier run left it. Where every site has a model of its own, hospitals that do not
    take part again have no new one; nor has one whose own columns are others now, for its old rows."""
    again = {site.name: number for number, site in enumerate(trial.sites)}
    changed = [
        site.name for site in sites if site.name in again and _has_other_columns(site, trial.sites[again[site.name]])
    ]
    predicted = []
    for site in sites:
        if not len(site.test) or site.name in changed or (trial.algorithm.personal and site.name not in again):
            continue
        params, buffers = site_model(trial, run, again.get(site.name, 0))
        if site.name not in again:
            params, buffers = _with_old_parts(trial, params, old, old_trial, site.name)
        predicted.append(_predicted(trial, (params, buffers), _as_new(site, trial, cohort)))
    return predicted


def _with_old_parts(trial: Trial, params: Tree, old: Run, old_trial: Trial, site: str) -> tuple[Tree, Tree]:
    kept = site_model(old_trial, old, _trainer(old_trial, site))
    private = {name: leaf for name, leaf in kept[0].items() if trial.model.is_private(name)}
    own = {name: leaf.to(trial.dtype) for name, leaf in private.items()}
    buffers = {n: leaf.to(trial.dtype) if leaf.is_floating_point() else leaf for n, leaf in kept[1].items()}
    return {**params, **own}, buffers


def _as_new(site: Site, trial: Trial, cohort: Cohort) -> Site:
    """The site's test rows in the new model's precision and, where all sites have one scale, on the new one: each
    site's own scale, and public ranges, stay as they are."""
    rows, new = site.test, trial.scored[0]
    if site.recipe is not None and new.recipe is not None and new.recipe.settings.scale == "federated":
        fit = replace(site.recipe.fit, centre=new.recipe.fit.centre, spread=new.recipe.fit.spread)
        places = np.searchsorted(cohort.row_numbers, site.test_rows)
        prepared = replace(site.recipe, fit=fit).apply(cohort.table, places)
        rows = replace(rows, x=torch.from_numpy(prepared).to(rows.x.dtype))
    return replace(site, test=replace(rows, x=rows.x.to(trial.dtype)) if rows.x.is_floating_point() else rows)


def _has_other_columns(old: Site, new: Site) -> bool:
    recipes = (old.recipe, new.recipe)
    return all(recipe is not None and recipe.settings.schema == "own" for recipe in recipes) and (
        len({recipe.names for recipe in recipes if recipe is not None}) > 1
    )


def _trainer(trial: Trial, site: str) -> int:
    """The number of the training site whose model predicts for a site; the first where the site does not train."""
    names = [trainer.name for trainer in trial.sites]
    return names.index(site) if site in names else 0


def _predicted(trial: Trial, weights: tuple[Tree, Tree], site: Site) -> SitePrediction:
    return SitePrediction(site.name, site.test_rows, *scores_of(trial, weights, site.test), task=trial.model.task)
