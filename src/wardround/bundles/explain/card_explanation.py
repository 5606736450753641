"""What a bundle's card says of its reasons: the columns that contribute most to scores of this site's test rows."""

from typing import Any

import numpy as np

from wardround.bundles.build.run_inputs import LazyRows
from wardround.bundles.bundle import Bundle
from wardround.bundles.explain.explained_rows import at_equal_distances, background_of, explain_prepared, scorer_of
from wardround.explain.explanation import method_for
from wardround.tasks.class_metrics import SMALLEST_GROUP

MOST_ROWS, TOP = 100, 5


def card_explanation(bundle: Bundle, test: LazyRows, private: bool) -> dict[str, Any] | None:
    """None of images and signals. `largest` is None where patients are protected, or are too few."""
    if bundle.inputs.arrays is not None:
        return None
    background = background_of(bundle)
    name, method = method_for(scorer_of(bundle), len(background.rows))
    facts = {"method": name, "title": method.title, "scale": bundle.task.link, "compared_with": background.words}
    if private or len(test) < SMALLEST_GROUP:
        return {**facts, "rows": 0, "largest": None}
    chosen = at_equal_distances(len(test), MOST_ROWS)
    explanation = explain_prepared(bundle, test[chosen], method=name, background=background)
    sizes = np.abs(explanation.values).mean(axis=(0, 1))
    order = np.argsort(-sizes, kind="stable")[:TOP]
    largest = {explanation.columns[place]: float(sizes[place]) for place in order.tolist()}
    return {**facts, "rows": len(chosen), "largest": largest}
