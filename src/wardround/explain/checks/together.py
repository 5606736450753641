"""All checks of the methods that explain a score."""

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from wardround.explain.checks.agreement import agreement
from wardround.explain.checks.check import Check
from wardround.explain.checks.faithfulness import deletion, insertion
from wardround.explain.checks.randomisation import randomisation
from wardround.explain.checks.stability import stability
from wardround.explain.checks.units import units_for
from wardround.explain.method import Method, Scorer


def check_all(
    scorer: Scorer,
    rows: Tensor,
    background: Tensor,
    methods: Mapping[str, Method],
    values: Mapping[str, np.ndarray],
    rng: np.random.Generator,
) -> list[Check]:
    """`values` are what each method gave for these rows, by the same names."""
    units = units_for(scorer, rows, background, rng)
    checks: list[Check] = []
    for name, method in methods.items():

        def explain(scorer: Scorer, rows: Tensor, method: Method = method) -> np.ndarray:
            return method.attribute(scorer, rows, background, rng).values

        own, title = values[name], method.title
        checks += [
            deletion(scorer, rows, own, units, title, rng),
            insertion(scorer, rows, own, units, title, rng),
            randomisation(scorer, rows, own, explain, units, title, rng),
            stability(scorer, rows, own, explain, units, title, background, rng),
        ]
    return checks + agreement({methods[name].title: own for name, own in values.items()}, units)
