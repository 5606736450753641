"""Shapley values by sampled orders of the columns, with the sampling error of each value.

A background row becomes the row that is explained, one column after another in a random order; what the score changes
by at a column is a draw of its value. Each order is also taken backwards, which cancels much of the error (Mitchell et
al., JMLR 23, 2022). Every background row is used equally often, so that values add up to the score exactly, and only
the orders are random.
"""

import numpy as np
from torch import Tensor

from wardround.core.settings import Count
from wardround.explain.coalitions import mixed_scores, own_numbers
from wardround.explain.method import Attribution, Method, Scorer

FEWEST = 2  # orders for each background row: the error is known from how far they are apart


def sampled_shapley(orders: Count = 100) -> Method:
    """At least so many orders for a row, and two for each background row, each taken forwards and backwards."""

    def attribute(scorer: Scorer, rows: Tensor, background: Tensor, rng: np.random.Generator) -> Attribution:
        return by_orders(scorer, rows, background, rng, max(FEWEST, -(-orders // len(background))))

    return Method(
        attribute=attribute,
        title="Shapley values (sampled)",
        citation="Štrumbelj and Kononenko, JMLR 11, 2010; Mitchell et al., JMLR 23, 2022",
        explains="table",
        exact_for_linear=True,
        complete=True,
        samples=True,
    )


def by_orders(scorer: Scorer, rows: Tensor, background: Tensor, rng: np.random.Generator, orders: int) -> Attribution:
    columns, walks = len(scorer.columns), len(background) * orders
    drawn = rng.random((walks, columns)).argsort(axis=1)
    both = np.stack([drawn, drawn[:, ::-1]], axis=1).reshape(2 * walks, columns)
    place = both.argsort(axis=1)  # when each column's turn is
    own = own_numbers(scorer, place[:, None, :] < np.arange(columns + 1)[:, None], rows).flatten(0, 1)
    others = background.repeat_interleave(2 * orders * (columns + 1), dim=0)
    values, errors = np.zeros((len(rows), columns)), np.zeros((len(rows), columns))
    for row, scores in enumerate(mixed_scores(scorer, rows, others, own)):
        steps = np.diff(scores.reshape(2 * walks, columns + 1), axis=1)
        by_pair = np.take_along_axis(steps, place, axis=1).reshape(len(background), orders, 2, columns).mean(axis=2)
        values[row] = by_pair.mean(axis=(0, 1))
        # each background row is taken, so that only orders within one are drawn
        errors[row] = np.sqrt(by_pair.var(axis=1, ddof=1).sum(axis=0) / orders) / len(background)
    return Attribution.complete(values, float(scorer.values(background).mean()), scorer.values(rows), errors)
