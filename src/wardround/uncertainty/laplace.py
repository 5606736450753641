"""Laplace's approximation at the last layer.

The last layer's weights are taken as normally distributed around those that were trained. Their precision is the
Gauss-Newton matrix of the training rows' log likelihood plus a prior precision (MacKay, Neural Computation 1992;
Kristiadi et al., ICML 2020; Daxberger et al., NeurIPS 2021). The scores of a row are then normal too:

    variance of score o = h' (H_o + prior I)^-1 h        H_o = sum over rows of c_o h h'

where h are the features that go into the last layer, and a one for the bias, and c the second derivative of the loss by
the score (the task's `curvature`): p (1 - p) of a probability, the mean of a Poisson count, and 1 / the variance of
errors for the squared loss, which makes it the exact posterior of a linear regression. For two classes, findings and
numbers this is the whole matrix. For several classes the parts between two classes are left out.

H is a sum over rows: sites could add theirs up as they add updates.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor
from torch.nn import functional as F

from wardround.core.errors import StudyError
from wardround.core.tree import Tree
from wardround.models import Model

PRIORS = tuple(10.0 ** (exponent / 2) for exponent in range(-6, 13))  # tried, from 0.001 to 1,000,000
LEAST_NOISE = 1e-12  # a model that fits its training rows exactly has no errors to speak of
MOST_NUMBERS = 2**25  # of all outputs' matrices; beyond, the diagonals alone are kept
ROWS_AT_A_TIME = 1024


@dataclass(frozen=True, eq=False)
class Laplace:
    """`values` and `axes` are each output's eigenvalues and eigenvectors, so that any prior costs a division.
    Without `axes` the matrices are diagonal."""

    layer: str  # "" where the model is a single layer
    values: Tensor  # (outputs, features + 1)
    axes: Tensor | None  # (outputs, features + 1, features + 1), eigenvectors as columns
    prior: float
    noise: float = 1.0  # the variance of outcomes around their score, where the likelihood has one

    def variance(self, features: Tensor) -> Tensor:
        """Of the scores: (rows, outputs)."""
        variances = []
        for output, values in enumerate(self.values):
            along = features if self.axes is None else features @ self.axes[output]
            variances.append(along.square() @ (1 / (values + self.prior)))
        return torch.stack(variances, dim=1)


def fit_laplace(
    model: Model, params: Tree, buffers: Tree, x: Tensor, y: Tensor, prior: float = 1.0, full: bool | None = None
) -> Laplace:
    """From training rows. `full` says whether whole matrices are kept; None: where they are not too large."""
    if not len(x):
        raise StudyError("uncertainty: laplace", "there are no training rows", "Give the rows of a site that trains.")
    layer = last_layer(model, params, buffers, x)
    sums = curvature(model, params, buffers, layer, x, y, full)
    noise = noise_of(model, squared_errors(model, params, buffers, layer, x, y), len(x))
    return from_curvature(layer, sums, prior, noise)


def curvature(
    model: Model, params: Tree, buffers: Tree, layer: str, x: Tensor, y: Tensor, full: bool | None = None
) -> Tensor:
    """H of each output without the prior: (outputs, features + 1, features + 1), or its diagonals. Those of batches of
    rows, and of sites, add up.

    A finding that is not known of a row (a label below 0) adds nothing to its matrix.
    """
    outputs = len(params[_leaf(layer, "bias")])
    width = params[_leaf(layer, "weight")].shape[1] + 1
    full = outputs * width * width <= MOST_NUMBERS if full is None else full
    sums = torch.zeros((outputs, width, width) if full else (outputs, width), dtype=torch.float64)
    for rows in torch.split(torch.arange(len(x)), ROWS_AT_A_TIME):
        h = features_of(model, params, buffers, layer, x[rows])
        weight = model.task.curvature(_from_features(params, layer, h), y[rows])
        for output in range(outputs):
            scaled = h * weight[:, output : output + 1]
            sums[output] += scaled.mT @ h if full else (scaled * h).sum(0)
    return sums


def squared_errors(model: Model, params: Tree, buffers: Tree, layer: str, x: Tensor, y: Tensor) -> float:
    """Their sum, from which `noise_of` makes a variance; those of batches and of sites add up."""
    if not model.task.has_noise:
        return 0.0
    scores = _from_features(params, layer, _all_features(model, params, buffers, layer, x))
    return float(model.task.losses_and_errors(scores, y)[1].square().sum())


def noise_of(model: Model, squares: float, rows: int) -> float:
    """The likeliest variance of outcomes around their score; 1 where the likelihood has none."""
    return max(squares / rows, LEAST_NOISE) if model.task.has_noise else 1.0


def from_curvature(layer: str, sums: Tensor, prior: float = 1.0, noise: float = 1.0) -> Laplace:
    if sums.dim() == 2:
        return Laplace(layer, sums / noise, None, prior, noise)
    values, axes = torch.linalg.eigh(sums / noise)
    return Laplace(layer, values.clamp(min=0), axes, prior, noise)  # rounding may leave a zero a little below it


def choose_prior(
    fitted: Laplace,
    model: Model,
    params: Tree,
    buffers: Tree,
    x: Tensor,
    y: Tensor,
    priors: Sequence[float] | None = None,
) -> Laplace:
    """With the prior precision under which validation rows are most likely; the highest of equals. `priors` are those
    that are plausible, unless given.

    What is expected of scores with a variance is the task's (`expected_losses`).
    """
    return choose_prior_by(fitted, model, params, _all_features(model, params, buffers, fitted.layer, x), y, priors)


def choose_prior_by(
    fitted: Laplace, model: Model, params: Tree, features: Tensor, y: Tensor, priors: Sequence[float] | None = None
) -> Laplace:
    """The same from what goes into the last layer, which fits into memory where images do not."""
    scores = _from_features(params, fitted.layer, features)

    def loss(prior: float) -> float:
        variance = replace(fitted, prior=prior).variance(features)
        return float(model.task.expected_losses(scores, variance, y, fitted.noise).mean())

    known = plausible_priors(params[_leaf(fitted.layer, "weight")]) if priors is None else priors
    return replace(fitted, prior=min(sorted(known, reverse=True), key=loss))


def plausible_priors(weight: Tensor) -> tuple[float, ...]:
    """Those under which the trained weights are not too large: a precision is at most 1 / their mean square (MacKay,
    Neural Computation 1992). For an underconfident model, validation rows alone would choose a prior that leaves no
    uncertainty at all."""
    most = 1 / max(float(weight.double().square().mean()), 1 / max(PRIORS))
    return tuple(prior for prior in PRIORS if prior <= most) or (most,)


def score_and_variance(fitted: Laplace, model: Model, params: Tree, buffers: Tree, x: Tensor) -> tuple[Tensor, Tensor]:
    """Of each row's scores, both (rows, outputs) in double precision."""
    h = _all_features(model, params, buffers, fitted.layer, x)
    return _from_features(params, fitted.layer, h), fitted.variance(h)


def laplace_passes(
    fitted: Laplace, model: Model, params: Tree, buffers: Tree, x: Tensor, passes: int, rng: np.random.Generator
) -> Tensor:
    """(passes, rows, outputs), as `mc_dropout` gives them: quantiles of each score's normal distribution.

    Each output has the same quantiles in an order of its own (a Latin hypercube), so that no finding's distribution
    depends on chance, and classes do not move together.
    """
    scores, variance = score_and_variance(fitted, model, params, buffers, x)
    quantiles = ndtri((np.arange(passes) + 0.5) / passes)
    quantiles /= np.sqrt(np.square(quantiles).mean()) if passes > 1 else 1.0  # few of them have too little variance
    order = np.stack([rng.permutation(passes) for _ in range(scores.shape[1])], axis=1)
    return scores + variance.sqrt() * torch.from_numpy(quantiles[order]).unsqueeze(1)


def last_layer(model: Model, params: Tree, buffers: Tree, x: Tensor) -> str:
    """The name of the linear layer that computes the scores, found by trying: its weights times its input are the
    scores."""
    if model.task.leaves:
        raise StudyError(
            "uncertainty: laplace",
            f"trained beside the weights, and not in the last layer: {', '.join(model.task.leaves)}",
            "Fix it in the settings of the task, or use dropout or an ensemble of several seeds.",
        )
    some = x[:2]
    with torch.no_grad():
        scores = model.logits(params, buffers, some, None)[0].double()
    for name in reversed(params):
        layer = name.removesuffix("weight").removesuffix(".")
        if not name.endswith("weight") or params[name].dim() != 2 or _leaf(layer, "bias") not in params:
            continue
        if len(params[name]) != scores.shape[-1]:
            continue
        try:
            computed = _from_features(params, layer, features_of(model, params, buffers, layer, some))
        except RuntimeError:  # shapes that do not fit: another layer follows
            continue
        if computed.shape == scores.shape and torch.allclose(computed, scores, rtol=1e-4, atol=1e-5):
            return layer
    raise StudyError(
        "uncertainty: laplace",
        "the model's scores do not come from a linear layer with a bias",
        "Use dropout or an ensemble of several seeds.",
    )


def features_of(model: Model, params: Tree, buffers: Tree, layer: str, x: Tensor) -> Tensor:
    """The input of the last layer, and a one: (rows, features + 1), in double precision.

    With the identity as its weights the layer returns its input, so that networks need not declare where to cut.
    """
    weight = params[_leaf(layer, "weight")]
    width = weight.shape[1]
    passing = {
        _leaf(layer, "weight"): torch.eye(width, dtype=weight.dtype, device=weight.device),
        _leaf(layer, "bias"): weight.new_zeros(width),
    }
    with torch.no_grad():
        h = model.logits({**params, **passing}, buffers, x, None)[0]
    return F.pad(h.double(), (0, 1), value=1.0)


def _all_features(model: Model, params: Tree, buffers: Tree, layer: str, x: Tensor) -> Tensor:
    return torch.cat([features_of(model, params, buffers, layer, part) for part in torch.split(x, ROWS_AT_A_TIME)])


def _from_features(params: Tree, layer: str, h: Tensor) -> Tensor:
    weight, bias = params[_leaf(layer, "weight")], params[_leaf(layer, "bias")]
    return h @ torch.cat([weight, bias.unsqueeze(1)], dim=1).double().mT


def _leaf(layer: str, kind: str) -> str:
    return f"{layer}.{kind}" if layer else kind
