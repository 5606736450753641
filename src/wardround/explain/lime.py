"""LIME, as a yardstick: a weighted linear model of the score around one row.

Each sample keeps some columns of the row and takes the others from a background row; a ridge regression on which
columns were kept, with more weight for samples that are nearer to the row, gives a coefficient to each column (Ribeiro
et al., KDD 2016, section 3). The values depend on the kernel's width and do not add up to the score.
"""

import numpy as np
import torch
from torch import Tensor

from wardround.core.settings import Count
from wardround.explain.coalitions import mixed_scores, own_numbers
from wardround.explain.method import Attribution, Method, Scorer

WIDTH = 0.25  # of the kernel, for distances of cosines, as in the authors' program
RIDGE = 1.0


def lime(samples: Count = 1000) -> Method:
    def attribute(scorer: Scorer, rows: Tensor, background: Tensor, rng: np.random.Generator) -> Attribution:
        columns = len(scorer.columns)
        kept = np.ones((samples, columns))
        for sample in range(1, samples):  # the first is the row itself
            changed = rng.choice(columns, rng.integers(1, columns + 1), replace=False)
            kept[sample, changed] = 0
        others = background[torch.from_numpy(rng.integers(len(background), size=samples))]
        fit = weighted_ridge(kept)
        found = np.array(
            [fit @ scores for scores in mixed_scores(scorer, rows, others, own_numbers(scorer, kept, rows))]
        )
        return Attribution.incomplete(found.reshape(len(rows), columns + 1)[:, :columns])

    return Method(
        attribute=attribute,
        title="LIME",
        citation="Ribeiro, Singh and Guestrin, KDD 2016",
        explains="table",
    )


def weighted_ridge(kept: np.ndarray) -> np.ndarray:
    """(columns + 1, samples): what turns scores into coefficients, the intercept last."""
    samples, columns = kept.shape
    distance = 1 - np.sqrt(kept.mean(axis=1))  # of cosines: from the row, in which all are kept
    weight = np.exp(-((distance / WIDTH) ** 2))
    design = np.column_stack([kept, np.ones(samples)])
    penalty = RIDGE * np.diag([*np.ones(columns), 0.0])
    solved: np.ndarray = np.linalg.solve(design.T @ (weight[:, None] * design) + penalty, design.T * weight)
    return solved
