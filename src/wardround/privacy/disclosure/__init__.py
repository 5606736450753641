"""Rules for what may leave a site: no figure of a few patients, nor one from which it could be derived.

A rule looks at the patients of the rows that a figure is about. All of `RULES` must be kept before metrics, sums,
histograms, counts by class or ages of these rows leave; cells inside a summary are held to `small_cells` besides. The
numbers of rows in each part of a split are not among them: sites agree on them before the first round.
"""

from collections.abc import Callable

import numpy as np

from wardround.privacy.disclosure.small_cells import has_few_patients

Rule = Callable[[np.ndarray, int], bool]  # the patient of each row, the smallest cell -> whether the rule is broken
RULES: dict[str, Rule] = {"smallest-cell": has_few_patients}


def broken_rule(people: np.ndarray, smallest: int) -> str:
    """The first rule that forbids figures of these rows; empty where all are kept."""
    return next((name for name, broken in RULES.items() if broken(people, smallest)), "")


def must_stay(people: np.ndarray, smallest: int) -> bool:
    """Whether a rule forbids figures of these rows."""
    return bool(broken_rule(people, smallest))
