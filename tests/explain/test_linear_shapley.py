"""The closed form, and the scale on which scores are explained."""

from collections.abc import Callable

import numpy as np
import torch

from tests.explain.scorers import COLUMNS, TASKS, by_definition, rows_of, scorer_of
from wardround.core import seeds
from wardround.explain import METHODS


def test_values_are_those_of_the_definition_for_every_task() -> None:
    rows, background = rows_of(3, 6), rows_of(11, 6, "background")
    for task, scale in TASKS:
        scorer = scorer_of("linear", task, scale)
        found = METHODS["linear-shapley"]().attribute(scorer, rows, background, seeds.generator(3, "test"))
        for row, values in zip(rows, found.values, strict=True):
            np.testing.assert_allclose(values, by_definition(scorer, row, background), atol=1e-12)
        assert found.completeness_error.max() < 1e-12
        np.testing.assert_allclose(found.base, scorer.values(background).mean(), atol=1e-12)


def test_scores_are_on_the_link_scale() -> None:
    """Turned back by the inverse link, they are the model's predictions."""
    x = rows_of(5, 6)
    inverse: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "log odds": torch.sigmoid,
        "log odds against the other classes": lambda z: torch.softmax(z, dim=1),
        "units": lambda z: z,
        "log rate": torch.exp,
    }
    for task, scale in TASKS:
        scorer = scorer_of("linear", task, scale)
        known = torch.from_numpy(task.unknown_target(np.ones((5, len(task.columns))), scale))
        predicted = task.predictions(scorer.model.logits(scorer.params, {}, x, None)[0], known)
        torch.testing.assert_close(inverse[task.link](scorer.outputs(x)).squeeze(1), predicted)


def test_a_column_is_the_readers_and_not_its_indicators() -> None:
    assert COLUMNS.names == ("age", "ward", "creatinine")
    assert COLUMNS.places == ((0,), (1, 2, 3), (4, 5))
