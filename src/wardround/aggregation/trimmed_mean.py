"""The mean of each number without its `bad` largest and `bad` smallest values (Yin et al., ICML 2018, definition 2)."""

from torch import Tensor

from wardround.aggregation.median import CITATION
from wardround.aggregation.ordering import by_column
from wardround.aggregation.rule import Rule, Updates, a_minority
from wardround.core.settings import WholeNumber
from wardround.core.tree import Tree


def trimmed_mean(bad: WholeNumber = 1) -> Rule:
    def combine(updates: Updates, kept: Tree) -> tuple[Tensor, Tree]:
        end = len(updates.rows) - updates.bad
        return by_column(updates.rows, lambda ordered: ordered[updates.bad : end].mean(0)), kept

    return Rule(combine, bad=bad, most_bad=a_minority, citation=CITATION)
