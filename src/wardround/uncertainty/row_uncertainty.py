"""How sure a finished model is of each validation and test row, of a whole trial: what a run keeps of it.

The masks of dropout, and the order of Laplace's quantiles, are drawn once for a trial: every row of every site goes
through the same passes. Rows are taken in pieces, so that memory does not grow with their number.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from scipy.special import logit
from torch import Tensor

from wardround.core import seeds
from wardround.core.tree import Tree
from wardround.data.site import Rows, Site
from wardround.evaluation.calibration_curves import CLIP
from wardround.evaluation.prediction import CELLS
from wardround.models import Model
from wardround.study.schema import Uncertainty
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
)
from wardround.uncertainty.passes import mc_dropout
from wardround.uncertainty.shifted_images import SHIFTS, Shift, chosen_images, shifted_rows

Side = Literal["validation", "test"] | Shift
SIDES: tuple[Literal["validation", "test"], ...] = ("validation", "test")
PASS_CELLS = 2**24  # numbers that all passes of a piece may hold


@dataclass(frozen=True, eq=False)
class UnsureRows:
    """Rows of a site. `mean` has the shape of scores; the others have one number for each row, or for each finding.
    NaN where there is none: without passes nothing is epistemic, and a model that has diverged says nothing."""

    site: str
    side: Side
    rows: np.ndarray
    label: np.ndarray
    mean: np.ndarray
    total: np.ndarray
    aleatoric: np.ndarray
    epistemic: np.ndarray
    spread: np.ndarray


@dataclass(frozen=True)
class Way:
    """How a model's many scores of a row are made."""

    model: Model
    params: Tree
    buffers: Tree
    asked: Uncertainty
    seed: int
    laplace: Laplace | None = None

    def passes(self, x: Tensor) -> Tensor:
        """Scores (passes, rows, outputs). The stream begins anew with each piece, so that all have the same passes."""
        rng = seeds.generator(self.seed, "uncertainty", 0)
        if self.laplace is not None:
            return laplace_passes(self.laplace, self.model, self.params, self.buffers, x, self.asked.passes, rng)
        if self.asked.method == "dropout":
            return mc_dropout(self.model, self.params, self.buffers, x, self.asked.passes, rng)
        return self.model.logits(self.params, self.buffers, x, None)[0].unsqueeze(0)


def unsure_rows(
    trial: Trial, run: Run, asked: Uncertainty, images_seed: int | None = None, each_image: bool = False
) -> list[UnsureRows]:
    """Of each scored site. `images_seed` asks for changed test images too, and says which; `each_image` that images are
    scaled one by one. Members of an ensemble say what they say alone; they are put together when all are trained."""
    made = []
    some = {} if images_seed is None else chosen_images(trial.scored, images_seed)
    for site, way in ways(trial, run, asked):
        for side in SIDES:
            made.append(measured(way, site, side, getattr(site, side), getattr(site, f"{side}_rows"), trial.dtype))
        if site.name in some:
            chosen = some[site.name]
            for shift in SHIFTS:
                rows = shifted_rows(site, chosen, shift, images_seed or 0, each_image, trial.dtype)
                made.append(measured(way, site, shift, rows, site.test_rows[chosen], trial.dtype))
    return made


def ways(trial: Trial, run: Run, asked: Uncertainty) -> Iterator[tuple[Site, Way]]:
    """Each scored site with the model that predicts there. Sites with one model between them share what is fitted."""
    own = trial.algorithm.personal or trial.model.private or any(m.buffers for m in run.memories.values())
    if own and not trial.algorithm.pools:
        for number, site in enumerate(trial.scored):
            yield site, _way(trial, site_model(trial, run, number), asked, [trial.sites[number]], [site])
        return
    # what Laplace sums up over the sites' training rows, a federation could sum as it sums updates
    shared = _way(trial, site_model(trial, run, 0), asked, trial.sites, trial.scored)
    for site in trial.scored:
        yield site, shared


def _way(
    trial: Trial, weights: tuple[Tree, Tree], asked: Uncertainty, trained: Sequence[Site], validated: Sequence[Site]
) -> Way:
    params, buffers = weights
    way = Way(trial.model, params, buffers, asked, trial.batch_seed)
    if asked.method != "laplace" or _has_diverged(params):
        return way
    fitted = _fitted(trial, params, buffers, [site.train for site in trained])
    features, labels = [], []
    for x, y in _pieces([site.validation for site in validated], trial.dtype):
        features.append(features_of(trial.model, params, buffers, fitted.layer, x))
        labels.append(y)
    if features:
        fitted = choose_prior_by(fitted, trial.model, params, torch.cat(features), torch.cat(labels))
    return Way(trial.model, params, buffers, asked, trial.batch_seed, fitted)


def _fitted(trial: Trial, params: Tree, buffers: Tree, rows: Sequence[Rows]) -> Laplace:
    layer, sums = "", None
    for x, y in _pieces(rows, trial.dtype):
        layer = last_layer(trial.model, params, buffers, x) if sums is None else layer
        part = curvature(trial.model, params, buffers, layer, x, y)
        sums = part if sums is None else sums + part
    assert sums is not None  # noqa: S101 - a site without training rows does not train
    return from_curvature(layer, sums)


def measured(way: Way, site: Site, side: Side, rows: Rows, numbers: np.ndarray, dtype: torch.dtype) -> UnsureRows:
    several = way.model.classes > 2 and not way.model.findings
    made: list[tuple[np.ndarray, ...]] = []
    widest = way.asked.passes * way.model.classes
    with torch.no_grad():
        for x, y in _pieces([rows], dtype, max(1, PASS_CELLS // widest)):
            made.append((y.cpu().numpy(), *_of_passes(way, way.passes(x), several)))
    if not made:
        label = rows.labels.cpu().numpy()
        # no row, but of the right shape
        empty = np.zeros(label.shape) if way.model.findings else np.zeros(0)
        mean = np.zeros((0, way.model.classes)) if several else empty
        return UnsureRows(site.name, side, numbers, label, mean, empty, empty, empty, empty)
    whole = [np.concatenate(parts) for parts in zip(*made, strict=True)]
    return UnsureRows(site.name, side, numbers, *whole)


def _of_passes(way: Way, scores: Tensor, several: bool) -> tuple[np.ndarray, ...]:
    """Mean, total, aleatoric, epistemic, spread."""
    p = way.model.probabilities(scores).double().cpu().numpy()
    if np.isnan(p).any():
        mean = np.full(p.shape[1:], np.nan)
        nothing = np.full(p.shape[1:-1] if several else p.shape[1:], np.nan)
        return mean, nothing, nothing, nothing, nothing
    return of_probabilities(p, several, scores.double().cpu().numpy())


def of_probabilities(p: np.ndarray, several: bool, scores: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
    """Mean, total, aleatoric, epistemic and spread from the probabilities of each pass, or each member of an ensemble.
    One pass alone disagrees with nobody: only its total is known. `scores` are made from `p` where they are not given.
    """
    parts = entropy_parts(p, several)
    if len(p) == 1:
        nothing = np.full(parts.total.shape, np.nan)
        return parts.mean, parts.total, nothing, nothing, nothing
    if scores is None:
        inside = np.clip(p, CLIP, 1 - CLIP)
        scores = np.log(inside) if several else logit(inside)
    spread = score_spread(scores, several)
    if several:
        spread = spread.mean(axis=-1)
    return parts.mean, parts.total, parts.aleatoric, parts.epistemic, spread.reshape(parts.total.shape)


def _pieces(rows: Sequence[Rows], dtype: torch.dtype, most: int = 4096) -> Iterator[tuple[Tensor, Tensor]]:
    for one in rows:
        size = max(1, min(4096, most, CELLS // max(1, math.prod(one.inputs))))
        for part in torch.split(torch.arange(len(one)), size):
            if len(part):
                yield one.take(part, dtype)


def _has_diverged(params: Tree) -> bool:
    return any(not bool(torch.isfinite(leaf).all()) for leaf in params.values())
