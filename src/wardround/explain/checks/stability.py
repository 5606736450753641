"""Stability under small noise (Alvarez-Melis and Jaakkola, 2018, arXiv:1806.08049): a row that is hardly different must
have hardly another explanation."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from wardround.explain.checks.check import Check, rank_correlation
from wardround.explain.checks.units import Units
from wardround.explain.method import Scorer

NOISE = 0.05  # standard deviations of a number among the background rows, or of an image's own pixels
DRAWS = 3
LEAST = 0.5  # rank correlation
RULE = f"rank correlation with the explanation of a slightly changed row: the interval is above {LEAST:g}"


def stability(
    scorer: Scorer,
    rows: Tensor,
    values: np.ndarray,
    explain: Callable[[Scorer, Tensor], np.ndarray],
    units: Units,
    title: str,
    background: Tensor,
    rng: np.random.Generator,
) -> Check:
    """The figure is a row's rank correlation, a mean over draws of noise."""
    own = units.of(values)
    found = [rank_correlation(own, units.of(explain(scorer, noisy(rows, background, rng)))) for _ in range(DRAWS)]
    return Check.above("stability", title, np.mean(found, axis=0), LEAST, RULE)


def noisy(rows: Tensor, background: Tensor, rng: np.random.Generator) -> Tensor:
    """Numbers of a table that have two values, indicators above all, stay as they are."""
    noise = torch.from_numpy(rng.standard_normal(rows.shape)).to(rows)
    if rows.dim() == 4:
        return rows + NOISE * rows.std(dim=(1, 2, 3), keepdim=True) * noise
    others = background if len(background) > 1 else rows  # one row, such as an average, has no spread
    vary = torch.tensor([len(torch.unique(column)) > 2 for column in others.T])
    return rows + NOISE * torch.where(vary, others.std(dim=0), 0.0) * noise
