"""The uncertainty of a trained model for each validation and test row of a trial, as a run saves it.

Dropout masks, and the order of Laplace's quantiles, are drawn once for a trial: every row of every site goes through
the same passes. Rows are processed in batches, so that memory does not grow with their number.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from wardround.core import seeds
from wardround.core.tree import State, Tree
from wardround.data.site import Rows, Site
from wardround.evaluation.prediction import CELLS, has_site_models
from wardround.study.schema import Uncertainty
from wardround.tasks import Task
from wardround.tasks.probabilities import ProbabilityTask
from wardround.tasks.summed import SummedTask
from wardround.training.rounds import site_model
from wardround.training.trial import Run, Trial
from wardround.uncertainty.decomposition import entropy_parts, score_spread
from wardround.uncertainty.laplace import (
    Laplace,
    choose_prior_by,
    curvature,
    features_of,
    from_curvature,
    laplace_passes,
    last_layer,
    noise_of,
    squared_errors,
)
from wardround.uncertainty.passes import mc_dropout
from wardround.uncertainty.scales import SCALES
from wardround.uncertainty.shifted_images import SHIFTS, Shift, chosen_images, shifted_rows
from wardround.uncertainty.swag import Swag, choose_scale, fit_swag, swag_passes

Subset = Literal["validation", "test"] | Shift
SUBSETS: tuple[Literal["validation", "test"], ...] = ("validation", "test")
PASS_CELLS = 2**24  # numbers that all passes of a batch may hold
MOST_ROWS = 4096  # at a time


@dataclass(frozen=True, eq=False)
class RowUncertainty:
    """Rows of a site. `score` is the mean over passes; the other arrays have one number per row, or per finding: in
    bits, or for numbers in their units. NaN where a figure is not defined: epistemic uncertainty without passes,
    aleatoric of a regression, and everything of a diverged model."""

    site: str
    subset: Subset
    rows: np.ndarray
    label: np.ndarray
    score: np.ndarray
    total: np.ndarray
    aleatoric: np.ndarray
    epistemic: np.ndarray
    spread: np.ndarray


Passes = Callable[[Tensor], Tensor]  # the scores of rows: (passes, rows, outputs)


def row_uncertainty(
    trial: Trial, run: Run, settings: Uncertainty, images_seed: int | None = None, each_image: bool = False
) -> list[RowUncertainty]:
    """For each scored site. `images_seed` also asks for changed test images, chosen by this seed; `each_image`: images
    are scaled one by one. Members of an ensemble are measured alone, and merged once all are trained."""
    images = {} if images_seed is None else chosen_images(trial.scored, images_seed)
    measured = []
    for site, passes in _passes_at_sites(trial, run, settings):
        for subset in SUBSETS:
            rows, numbers = getattr(site, subset), getattr(site, f"{subset}_rows")
            measured.append(_measure(trial, settings, passes, site, subset, rows, numbers))
        for shift in SHIFTS if site.name in images else ():
            chosen = images[site.name]
            rows = shifted_rows(site, chosen, shift, images_seed or 0, each_image, trial.dtype)
            measured.append(_measure(trial, settings, passes, site, shift, rows, site.test_rows[chosen]))
    return measured


def _passes_at_sites(trial: Trial, run: Run, settings: Uncertainty) -> Iterator[tuple[Site, Passes]]:
    """Each scored site with the model that predicts there. Sites with one shared model share what is fitted."""
    if has_site_models(trial, run):
        for number, site in enumerate(trial.scored):
            weights = site_model(trial, run, number)
            yield site, _passes(trial, run.server, weights, settings, [trial.sites[number]], [site])
        return
    # Laplace's sums over the sites' training rows could be added up in a federation like updates
    shared = _passes(trial, run.server, site_model(trial, run, 0), settings, trial.sites, trial.scored)
    for site in trial.scored:
        yield site, shared


def _passes(
    trial: Trial,
    server: State,
    weights: tuple[Tree, Tree],
    settings: Uncertainty,
    trained: Sequence[Site],
    validated: Sequence[Site],
) -> Passes:
    model, (params, buffers) = trial.model, weights
    converged = all(bool(torch.isfinite(leaf).all()) for leaf in params.values())
    uses_laplace = settings.method == "laplace" and converged
    laplace = _fit_laplace(trial, params, buffers, trained, validated) if uses_laplace else None
    swag = _fit_swag(trial, server, weights, validated) if settings.method == "swag" and converged else None

    def passes(x: Tensor) -> Tensor:
        """The stream starts again with each batch: all batches have the same passes."""
        rng = seeds.generator(trial.batch_seed, "uncertainty", 0)
        if laplace is not None:
            return laplace_passes(laplace, model, params, buffers, x, settings.passes, rng)
        if swag is not None:
            return swag_passes(swag, model, buffers, x, settings.passes, rng)
        if settings.method == "dropout":
            return mc_dropout(model, params, buffers, x, settings.passes, rng)
        return model.logits(params, buffers, x, None)[0].unsqueeze(0)

    return passes


def _fit_swag(trial: Trial, server: State, weights: tuple[Tree, Tree], validated: Sequence[Site]) -> Swag:
    """Where patients are protected nothing is chosen on their rows."""
    fitted, validation = fit_swag(server, weights[0]), [site.validation for site in validated]
    if trial.privacy.example is not None:
        return fitted
    batches = list(_batches(validation, trial.dtype))
    return choose_scale(
        fitted, trial.model, weights[1], batches, lambda: seeds.generator(trial.batch_seed, "scale of SWAG", 0)
    )


def _fit_laplace(
    trial: Trial, params: Tree, buffers: Tree, trained: Sequence[Site], validated: Sequence[Site]
) -> Laplace:
    layer, sums, squares = "", None, 0.0
    for x, y in _batches([site.train for site in trained], trial.dtype):
        layer = last_layer(trial.model, params, buffers, x) if sums is None else layer
        part = curvature(trial.model, params, buffers, layer, x, y)
        sums = part if sums is None else sums + part
        squares += squared_errors(trial.model, params, buffers, layer, x, y)
    assert sums is not None  # noqa: S101 - a site without training rows does not train
    noise = noise_of(trial.model, squares, sum(len(site.train) for site in trained))
    fitted, features, labels = from_curvature(layer, sums, noise=noise), [], []
    for x, y in _batches([site.validation for site in validated], trial.dtype):
        features.append(features_of(trial.model, params, buffers, layer, x))
        labels.append(y)
    if not features:
        return fitted
    return choose_prior_by(fitted, trial.model, params, torch.cat(features), torch.cat(labels))


def _measure(
    trial: Trial, settings: Uncertainty, passes: Passes, site: Site, subset: Subset, rows: Rows, numbers: np.ndarray
) -> RowUncertainty:
    task = trial.model.task
    most = max(1, PASS_CELLS // (settings.passes * len(task.names)))
    with torch.no_grad():
        parts = [_of_batch(task, passes(x), y) for x, y in _batches([rows], trial.dtype, most)]
    if not parts:  # no row, but of the right shape
        parts = [_of_batch(task, torch.zeros(1, 0, task.outputs), rows.labels)]
    return RowUncertainty(site.name, subset, numbers, *(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _of_batch(task: Task, scores: Tensor, y: Tensor) -> tuple[np.ndarray, ...]:
    """Labels, and what `of_passes` gives; NaN where the model has diverged."""
    label, p = task.label(y).cpu().numpy(), task.predictions(scores, y).double().cpu().numpy()
    if not np.isfinite(p).all():  # figures of zeros have the shapes
        return label, *(np.full(part.shape, np.nan) for part in of_passes(task, np.zeros_like(p)))
    return label, *of_passes(task, p, scores.double().cpu().numpy())


def of_passes(task: Task, predictions: np.ndarray, scores: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
    """Mean, total, aleatoric, epistemic and spread from the predictions of each pass, or each member of an ensemble.

    A single pass has only a mean and a total. `scores` are computed from predictions if they are not passed.
    """
    return PARTS_OF[task.answers](task, predictions, scores)


def of_probabilities(task: ProbabilityTask, p: np.ndarray, scores: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
    parts = entropy_parts(task, p)
    if len(p) == 1:
        undefined = np.full(parts.total.shape, np.nan)
        return parts.mean, parts.total, undefined, undefined, undefined
    spread = score_spread(task, SCALES[task.probability_scale].scores(p) if scores is None else scores)
    return parts.mean, parts.total, parts.aleatoric, parts.epistemic, spread.reshape(parts.total.shape)


def of_numbers(task: SummedTask, p: np.ndarray, scores: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
    """Standard deviations in units. Epistemic is that of the passes; aleatoric that of outcomes, where the task has a
    family that gives it (a count has), and the total that of both. NaN where it is not known."""
    mean, undefined = p.mean(axis=0), np.full(p.shape[1:], np.nan)
    variance = task.variance(p)
    aleatoric = undefined if variance is None else np.sqrt(variance.mean(axis=0))
    if len(p) == 1:
        return mean, aleatoric, undefined, undefined, undefined
    spread = p.std(axis=0)
    return mean, np.sqrt(aleatoric**2 + spread**2), aleatoric, spread, spread


PARTS_OF: dict[str, Callable[[Any, np.ndarray, np.ndarray | None], tuple[np.ndarray, ...]]] = {
    "class": of_probabilities,
    "findings": of_probabilities,
    "number": of_numbers,
}


def _batches(rows: Sequence[Rows], dtype: torch.dtype, most: int = MOST_ROWS) -> Iterator[tuple[Tensor, Tensor]]:
    for of_site in rows:
        size = max(1, min(MOST_ROWS, most, CELLS // max(1, math.prod(of_site.inputs))))
        for part in torch.split(torch.arange(len(of_site)), size):
            if len(part):
                yield of_site.take(part, dtype)
