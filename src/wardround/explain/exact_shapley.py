"""Exact Shapley values: the model is asked for every subset of the columns. What a subset is worth is the mean score of
the row with the other columns taken from background rows."""

from math import factorial

import numpy as np
from torch import Tensor

from wardround.explain.coalitions import mixed_scores, own_numbers
from wardround.explain.method import Attribution, Method, Scorer

MOST = 10  # columns: 1,024 subsets, each with every background row


def exact_shapley() -> Method:
    return Method(
        attribute=attribute,
        title="Shapley values (all subsets)",
        citation="Shapley, Contributions to the Theory of Games 2, 1953; Štrumbelj and Kononenko, JMLR 11, 2010",
        explains="table",
        exact_for_linear=True,
        complete=True,
        most_columns=MOST,
    )


def attribute(scorer: Scorer, rows: Tensor, background: Tensor, rng: np.random.Generator) -> Attribution:
    subsets = all_subsets(len(scorer.columns))
    own = own_numbers(scorer, subsets, rows).repeat_interleave(len(background), dim=0)
    others = background.repeat(len(subsets), 1)
    worth = np.array(
        [scores.reshape(len(subsets), -1).mean(axis=1) for scores in mixed_scores(scorer, rows, others, own)]
    ).reshape(len(rows), len(subsets))
    base = float(scorer.values(background).mean())
    return Attribution.complete(worth @ shapley_weights(subsets).T, base, scorer.values(rows))


def all_subsets(columns: int) -> np.ndarray:
    """(subsets, columns) of 0 and 1; the first is empty, the last has all."""
    return (np.arange(1 << columns)[:, None] >> np.arange(columns)) & 1


def shapley_weights(subsets: np.ndarray) -> np.ndarray:
    """(columns, subsets): by how much the worth of each subset counts for each column."""
    columns = subsets.shape[1]
    size = subsets.sum(axis=1)
    joins = np.array([factorial(k) * factorial(columns - k - 1) for k in range(columns)]) / factorial(columns)
    # a subset with the column is what a smaller one becomes by it
    with_it, without = joins[np.maximum(size - 1, 0)], -joins[np.minimum(size, columns - 1)]
    return np.asarray(np.where(subsets.T == 1, with_it, without))
