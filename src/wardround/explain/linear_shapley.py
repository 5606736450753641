"""Shapley values of a linear model in closed form: each coefficient times how far the value is from the background's
mean. They are exact, whatever the columns have to do with each other, for contributions against rows drawn from the
background."""

import numpy as np
import torch
from torch import Tensor

from wardround.explain.method import Attribution, Method, Scorer


def linear_shapley() -> Method:
    return Method(
        attribute=attribute,
        title="Shapley values (closed form)",
        citation="Štrumbelj and Kononenko, Knowledge and Information Systems 41, 2014; Lundberg and Lee, NeurIPS 2017",
        explains="table",
        linear_only=True,
        exact_for_linear=True,
        complete=True,
    )


def attribute(scorer: Scorer, rows: Tensor, background: Tensor, rng: np.random.Generator) -> Attribution:
    weights, intercept = line(scorer, rows)
    mean = background.double().numpy().mean(axis=0)
    by_number = (rows.double().numpy() - mean) * weights
    return Attribution.complete(
        by_number @ scorer.columns.membership.T, float(mean @ weights + intercept), scorer.values(rows)
    )


def line(scorer: Scorer, like: Tensor) -> tuple[np.ndarray, float]:
    """The coefficient of each prepared number, and the intercept, of a linear model. `like` has its shape and type."""
    nothing = torch.zeros_like(like[:1]).requires_grad_()
    with torch.enable_grad():
        score = scorer(nothing)
        [slope] = torch.autograd.grad(score.sum(), nothing)
    return slope[0].double().numpy(), float(score.detach())
