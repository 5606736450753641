"""A backdoor in a table: rows in which some columns have a certain value are called the target class.

A share of the bad site's training rows gets the trigger and the target's label (Gu et al. 2017, BadNets,
arXiv:1708.06733; in federated learning Bagdasaryan et al., AISTATS 2020, arXiv:1807.00459). Values are in the column's
own units; the site's recipe turns them into what training sees.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from torch import Tensor

from wardround.adversaries.adversary import (
    Adversary,
    Setting,
    chosen_rows,
    class_place,
    column_place,
    numeric_columns,
    own_rows,
)
from wardround.core.errors import StudyError
from wardround.core.settings import Share
from wardround.data.site import Rows

CITATION = "Bagdasaryan et al. How to backdoor federated learning. AISTATS 2020. arXiv:1807.00459"


def backdoor_columns(columns: Mapping[str, float], target: str, share: Share = 0.5) -> Adversary:
    def poison(rows: Rows, setting: Setting, rng: np.random.Generator) -> Rows:
        place, poisoned = class_place(setting, target), own_rows(rows)
        chosen = chosen_rows(len(rows), share, rng)
        x, y = poisoned.x, poisoned.y
        x[chosen], y[chosen] = _with_trigger(x[chosen], columns, setting), place
        return replace(poisoned, x=x, y=y)

    def trigger(rows: Rows, setting: Setting) -> Rows:
        owned = own_rows(rows)
        return replace(owned, x=_with_trigger(owned.x, columns, setting))

    return Adversary(poisons="rows", poison=poison, trigger=trigger, target=target, citation=CITATION)


def _with_trigger(x: Tensor, columns: Mapping[str, float], setting: Setting) -> Tensor:
    names, recipe = numeric_columns(setting), setting.recipe
    if recipe is None or not columns:
        raise StudyError(
            f"{setting.where}: columns", f"names no column of {len(names)}", "Write columns = { NAME = 1.0 }."
        )
    changed = x.clone()
    for name, value in columns.items():
        place = column_place(setting, name)
        prepared = (value - recipe.fit.centre[place]) / recipe.fit.spread[place]
        changed[:, place] = float(np.clip(prepared, 0, 1) if recipe.settings.scale == "ranges" else prepared)
    return changed
