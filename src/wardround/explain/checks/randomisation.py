"""Randomisation of the model (Adebayo et al., NeurIPS 2018, arXiv:1810.03292): with its weights shuffled a model knows
nothing any more, and what explains it must look different. A method whose picture stays shows the image, and not what
the model does with it."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from wardround.core.tree import Tree
from wardround.explain.checks.check import Check, rank_correlation, undecided_for_few
from wardround.explain.checks.units import Units
from wardround.explain.method import Scorer

SHUFFLES = 5
MOST = 0.5  # rank correlation
RULE = f"rank correlation with the explanation of shuffled weights: the interval is below {MOST:g}"
Explain = Callable[[Scorer, Tensor], np.ndarray]  # scorer, rows -> values


def randomisation(
    scorer: Scorer, rows: Tensor, values: np.ndarray, explain: Explain, units: Units, title: str,
    rng: np.random.Generator,
) -> Check:  # fmt: skip
    """The figure is a row's rank correlation, a mean over shuffles."""
    found = with_shuffled(scorer, rows, values, explain, units, rng)
    return undecided_for_few(Check.below("randomisation", title, found, MOST, RULE), units.of(values).shape[1])


def with_shuffled(
    scorer: Scorer, rows: Tensor, values: np.ndarray, explain: Explain, units: Units, rng: np.random.Generator
) -> np.ndarray:
    own = units.of(values)
    found = []
    for _ in range(SHUFFLES):
        other = explain(replace(scorer, params=shuffled(scorer.params, rng)), rows)
        found.append(rank_correlation(own, units.of(other)))
    return np.asarray(np.mean(found, axis=0))


def shuffled(params: Tree, rng: np.random.Generator) -> Tree:
    """Each leaf has its own numbers in another order, so that it is as large as it was."""
    return {
        name: leaf.reshape(-1)[torch.from_numpy(rng.permutation(leaf.numel()))].reshape(leaf.shape)
        for name, leaf in params.items()
    }
