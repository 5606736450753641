"""What an aggregation rule is: a pure function from the sites' updates to one, and declared facts (`study.facts`).

Updates come as the rows of one matrix, because most rules look at whole updates and all are fastest so. What a rule
keeps from round to round is a tree in the server's state, so that a run is saved and resumed with it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from wardround.core.tree import Tree
from wardround.study.facts import RuleFacts


class Updates(NamedTuple):
    rows: Tensor  # (updates, numbers), all of them finite
    weights: Tensor  # (updates,), adding up to 1
    bad: int  # of these updates may be anything
    root: Tensor | None = (
        None  # (numbers,), the update that the coordinator made of root data, for rules that ask for it
    )


def nothing_kept(like: Tensor) -> Tree:
    return {}


@dataclass(frozen=True)
class Rule(RuleFacts):
    combine: Callable[[Updates, Tree], tuple[Tensor, Tree]]  # and what is kept -> one update, and what is kept
    init: Callable[[Tensor], Tree] = nothing_kept  # what is kept at first, given an update's zeros


def a_minority(count: int) -> int:
    """How many of so many are fewer than half."""
    return max((count - 1) // 2, 0)
