"""The median of each number (Yin et al., ICML 2018, arXiv:1803.01498, definition 1)."""

from torch import Tensor

from wardround.aggregation.ordering import by_column, middle
from wardround.aggregation.rule import Rule, Updates, a_minority
from wardround.core.settings import WholeNumber
from wardround.core.tree import Tree

CITATION = (
    "Yin et al. Byzantine-robust distributed learning: towards optimal statistical rates. ICML 2018. arXiv:1803.01498"
)


def median(bad: WholeNumber = 1) -> Rule:
    def combine(updates: Updates, kept: Tree) -> tuple[Tensor, Tree]:
        return by_column(updates.rows, middle), kept

    return Rule(combine, bad=bad, most_bad=a_minority, citation=CITATION)
