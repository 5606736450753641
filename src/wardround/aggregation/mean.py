"""The mean of all updates, each with its weight: what a study without [aggregation] does.

It is never applied to a matrix of updates: engines and coordinators add updates up as they come. One bad site moves it
as far as it likes.
"""

from torch import Tensor

from wardround.aggregation.distances import weighted
from wardround.aggregation.rule import Rule, Updates
from wardround.core.tree import Tree


def mean() -> Rule:
    def combine(updates: Updates, kept: Tree) -> tuple[Tensor, Tree]:
        return weighted(updates.weights, updates.rows), kept

    return Rule(combine, is_mean=True, in_sums=True, weighs=True)
