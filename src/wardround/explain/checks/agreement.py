"""Agreement between methods (Krishna et al., 2022, arXiv:2202.01602): where two methods put different columns, or
places, first, at most one of them can be what the reader takes it for."""

from collections.abc import Mapping
from itertools import combinations

import numpy as np

from wardround.explain.checks.check import Check, rank_correlation
from wardround.explain.checks.units import Units

RULE = "rank correlation between the two methods: the interval is above 0"


def agreement(values: Mapping[str, np.ndarray], units: Units) -> list[Check]:
    """Of each pair of methods, by title. The figure is a row's rank correlation."""
    by_unit = {title: units.of(own) for title, own in values.items()}
    return [
        Check.above("agreement", f"{one} and {other}", rank_correlation(by_unit[one], by_unit[other]), 0.0, RULE)
        for one, other in combinations(by_unit, 2)
    ]
