"""Whether changed test images are noticed: how well each measure of uncertainty tells them from the same images."""

from typing import Any

import numpy as np
import pandas as pd

from wardround.evaluation.uncertainty.uncertainty_rows import MEASURES, TrialRows
from wardround.tasks.class_metrics import auc


def describe_shifted(seed_rows: TrialRows) -> dict[str, Any] | None:
    """How well each measure tells changed images from the same images as they were; None where there are none."""
    if not seed_rows.changed:
        return None
    places = pd.MultiIndex.from_arrays([seed_rows.test.site, seed_rows.test.row])
    described: dict[str, Any] = {}
    for shift, rows in seed_rows.changed.items():
        same = seed_rows.test.take(places.get_indexer(pd.MultiIndex.from_arrays([rows.site, rows.row])))
        is_changed = np.arange(2 * len(rows)) < len(rows)
        described[shift] = {"images": len(rows)}
        for name in MEASURES:
            both = np.concatenate([seed_rows.task.of_rows(side.measures[name]) for side in (rows, same)])
            described[shift][name] = None if np.isnan(both).any() else auc(is_changed, both)
    return described
