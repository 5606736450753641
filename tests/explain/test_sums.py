"""Importance and effects as sums: what hospitals add up is what all rows give."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.explain.scorers import COLUMNS, TASKS, rows_of, scorer_of
from wardround.core import seeds
from wardround.explain import Columns, Scorer, accumulated_effects, permutation
from wardround.explain.accumulated_effects import Grid
from wardround.models import Model
from wardround.tasks import class_task


def labels_of(scorer: Scorer, count: int) -> torch.Tensor:
    task, rng = scorer.model.task, seeds.generator(4, "labels")
    if task.answers == "class":
        return torch.from_numpy(rng.integers(task.outputs + (task.outputs == 1), size=count))
    if task.answers == "findings":
        return torch.from_numpy(rng.integers(2, size=(count, task.outputs)))
    values = rng.poisson(3, count).astype(float)
    target = np.column_stack([values, np.ones(count)]) if task.kind == "count" else values
    return torch.from_numpy(task.training_target(target, scorer.scale))


def test_importance_of_hospitals_is_that_of_all_rows_shuffled_within_them() -> None:
    """Against losses of rows that are shuffled here, for every task."""
    x = rows_of(30, 6)
    for task, scale in TASKS:
        scorer = scorer_of("mlp", task, scale)
        y = labels_of(scorer, 30)
        parts = [slice(0, 18), slice(18, 30)]
        told = [permutation.sums(scorer, x[part], y[part], seeds.generator(5, "site", site=str(part.start)), 3)
                for part in parts]  # fmt: skip
        found = permutation.result(permutation.merge(told), COLUMNS.names)
        draws = [seeds.generator(5, "site", site=str(part.start)) for part in parts]
        orders = [np.stack([rng.permutation(part.stop - part.start) + part.start for _ in range(3)])
                  for part, rng in zip(parts, draws, strict=True)]  # fmt: skip
        before = row_losses(scorer.model, scorer, x, y)
        for column, places in enumerate(COLUMNS.places):
            rises = []
            for order in np.concatenate(orders, axis=1):
                changed = x.clone()
                changed[:, list(places)] = x[torch.from_numpy(order)][:, list(places)]
                rises.append(row_losses(scorer.model, scorer, changed, y) - before)
            rise = np.mean(rises, axis=0)
            assert found.increase[column] == pytest.approx(rise.mean(), rel=1e-9, abs=1e-12)
            # rows of a patient each: the standard error of a mean
            assert found.error[column] == pytest.approx(rise.std(ddof=1) / np.sqrt(30), rel=1e-6)
        assert found.loss == pytest.approx(before.mean())
        assert found.rows == 30


def row_losses(model: Model, scorer: Scorer, x: torch.Tensor, y: torch.Tensor) -> np.ndarray:
    return np.asarray(model.losses(scorer.params, {}, x, y, None)[0].double())


def test_rows_of_one_patient_are_not_independent() -> None:
    """Each row written down twice for its patient says nothing new: the same importance and the same error."""
    scorer, x = scorer_of("mlp", *TASKS[0]), rows_of(40, 6)
    y = labels_of(scorer, 40)
    once = permutation.sums(scorer, x, y, seeds.generator(5, "once"), 2)
    rise = once["increase_squared"]
    twice = {
        **{name: 2 * once[name] for name in ("rows", "loss", "increase")},
        "people": once["people"],
        "rows_squared": 4 * once["rows_squared"],
        "increase_squared": 4 * rise,
        "increase_by_rows": 4 * once["increase_by_rows"],
    }
    names = COLUMNS.names
    np.testing.assert_allclose(permutation.result(twice, names).error, permutation.result(once, names).error)
    both = permutation.sums(
        scorer, torch.cat([x, x]), torch.cat([y, y]), seeds.generator(5, "once"), 2, np.tile(np.arange(40), 2)
    )
    assert both["people"] == 40
    assert both["rows_squared"] == 40 * 4


def linear_in(slopes: list[float]) -> Scorer:
    scorer = scorer_of("linear", class_task(2), (), Columns.of([f"c{place}" for place in range(len(slopes))]))
    weight = torch.tensor([slopes], dtype=torch.float64)
    return Scorer(scorer.model, {**scorer.params, "weight": weight}, {}, scorer.columns)


def test_effects_of_a_linear_model_are_lines_and_add_up_over_hospitals() -> None:
    scorer, x = linear_in([2.0, -1.0]), rows_of(50, 2)
    grid = Grid("c0", True, (-3.0, -1.0, 0.0, 0.5, 3.0), (0,), np.array([[-3.0], [-1.0], [0.0], [0.5], [3.0]]))
    told = [accumulated_effects.sums(scorer, part, grid) for part in (x[:20], x[20:])]
    merged = accumulated_effects.merge(told)
    whole = accumulated_effects.sums(scorer, x, grid)
    for name in whole:
        np.testing.assert_allclose(merged[name], whole[name], atol=1e-12)
    effect = accumulated_effects.result(merged, "c0", True, grid.values)
    np.testing.assert_allclose(np.diff(effect.effect[:, 0]) / np.diff(grid.values), 2.0)
    middle = (effect.effect[:-1, 0] + effect.effect[1:, 0]) / 2
    assert effect.rows @ middle == pytest.approx(0, abs=1e-10)
    assert effect.rows.sum() == 50
    assert np.nanmax(effect.error) < 1e-7  # all rows of a bin change alike


def test_a_bin_of_few_patients_counts_as_empty_and_cannot_be_computed_from_the_others() -> None:
    """Bins of 9, 2, 6 and 40 rows: the two are hidden with the next smallest, and the line goes on between them."""
    scorer = linear_in([2.0, -1.0])
    values = np.repeat([-1.5, -0.5, 0.5, 1.5], [9, 2, 6, 40])
    x = torch.from_numpy(np.column_stack([values, np.zeros(len(values))]))
    edges = (-2.0, -1.0, 0.0, 1.0, 2.0)
    grid = Grid("c0", True, edges, (0,), np.array(edges)[:, None])
    assert accumulated_effects.sums(scorer, x, grid, smallest=5)["rows"].tolist() == [9, 0, 0, 40]
    assert accumulated_effects.sums(scorer, x, grid)["rows"].tolist() == [9, 2, 6, 40]
    one_patient = np.zeros(len(values), dtype=int)
    assert not accumulated_effects.sums(scorer, x, grid, one_patient, 5)["rows"].any()
    effect = accumulated_effects.result(accumulated_effects.sums(scorer, x, grid, smallest=5), "c0", True, edges)
    np.testing.assert_allclose(np.diff(effect.effect[:, 0]), 2.0)


def test_effects_of_two_columns_that_go_together_are_not_mixed_up() -> None:
    """What partial dependence and ALE differ in: rows are moved within their bin only. The second column is a copy of
    the first; the score is their product, whose local change along the first at v is v per unit."""
    model = scorer_of("linear", class_task(2), ()).model
    product = replace(model, logits=lambda params, buffers, x, masks: (x[:, :1] * x[:, 1:2], {}), linear=False)
    scorer = Scorer(product, {}, {}, Columns.of(["c0", "c1"]))
    values = torch.linspace(0, 4, 4001, dtype=torch.float64)
    edges = np.linspace(0, 4, 9)
    grid = Grid("c0", True, tuple(edges), (0,), edges[:, None])
    effect = accumulated_effects.result(
        accumulated_effects.sums(scorer, torch.stack([values, values], dim=1), grid), "c0", True, grid.values
    )
    np.testing.assert_allclose(effect.effect[:, 0] - effect.effect[0, 0], edges**2 / 2, atol=2e-3)


def test_levels_are_given_to_every_row_and_gaps_are_left_out() -> None:
    scorer, x = scorer_of("linear", class_task(2), ()), rows_of(10, 6)
    levels = Grid("ward", False, ("a", "b", "c"), (1, 2, 3), np.eye(3))
    effect = accumulated_effects.result(accumulated_effects.sums(scorer, x, levels), "ward", False, levels.values)
    slopes = scorer.params["weight"][0, 1:4].numpy()
    np.testing.assert_allclose(effect.effect[:, 0], slopes - slopes.mean(), atol=1e-12)
    x[:, 5] = torch.tensor([1.0, 0.0] * 5)
    numbers = Grid("creatinine", True, (-9.0, 9.0), (4,), np.array([[-9.0], [9.0]]), gap=5)
    assert accumulated_effects.sums(scorer, x, numbers)["rows"].tolist() == [5]
