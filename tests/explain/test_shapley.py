"""Shapley values of networks, against the mean over all orders of the columns."""

import numpy as np

from tests.explain.scorers import COLUMNS, TASKS, by_definition, rows_of, scorer_of
from wardround.core import seeds
from wardround.explain import METHODS, Columns


def test_all_subsets_give_the_values_of_the_definition_for_every_task() -> None:
    rows, background = rows_of(2, 6), rows_of(7, 6, "background")
    for task, scale in TASKS:
        scorer = scorer_of("mlp", task, scale)
        found = METHODS["exact-shapley"]().attribute(scorer, rows, background, seeds.generator(3, "test"))
        for row, values in zip(rows, found.values, strict=True):
            np.testing.assert_allclose(values, by_definition(scorer, row, background), atol=1e-10)
        assert found.completeness_error.max() < 1e-10


def test_sampled_values_are_within_their_stated_error_of_exact_ones() -> None:
    """Over rows, columns and draws: errors in units of the stated one have the spread of Student's t, about 1."""
    columns = Columns.of([f"c{number}" for number in range(10)])
    scorer = scorer_of("mlp", *TASKS[0], columns)
    rows, background = rows_of(6, 10), rows_of(20, 10, "background")
    rng = seeds.generator(3, "test")
    exact = METHODS["exact-shapley"]().attribute(scorer, rows, background, rng)
    draws = [METHODS["sampled-shapley"]().attribute(scorer, rows, background, rng) for _ in range(12)]
    in_errors = np.stack([(draw.values - exact.values) / draw.sampling_error for draw in draws])
    assert 0.8 < np.sqrt((in_errors**2).mean()) < 1.25
    assert (np.abs(in_errors) < 1.96).mean() > 0.9
    assert max(draw.completeness_error.max() for draw in draws) < 1e-10  # orders move values between columns, no more
    apart = np.mean([draw.values for draw in draws], axis=0) - exact.values
    assert np.abs(apart).max() < 0.05 * np.abs(exact.values).max()  # and are not biased


def test_of_a_linear_model_no_order_matters() -> None:
    rows, background = rows_of(3, 6), rows_of(8, 6, "background")
    scorer, rng = scorer_of("linear", *TASKS[0]), seeds.generator(3, "test")
    closed = METHODS["linear-shapley"]().attribute(scorer, rows, background, rng)
    for name in ("exact-shapley", "sampled-shapley"):
        found = METHODS[name]().attribute(scorer, rows, background, rng)
        np.testing.assert_allclose(found.values, closed.values, atol=1e-12)
        if found.sampling_error is not None:
            assert found.sampling_error.max() < 1e-12


def test_methods_say_what_they_take() -> None:
    network, line = scorer_of("mlp", *TASKS[0]), scorer_of("linear", *TASKS[0])
    wide = scorer_of("mlp", *TASKS[0], Columns.of([f"c{number}" for number in range(11)]))
    assert not METHODS["linear-shapley"]().takes(network)
    assert METHODS["linear-shapley"]().takes(line)
    assert METHODS["exact-shapley"]().takes(network)
    assert not METHODS["exact-shapley"]().takes(wide)
    assert not METHODS["sampled-shapley"]().takes(network, images=True)


def test_lime_finds_the_slopes_of_a_linear_model_with_one_background_row() -> None:
    """With a single background row a linear score is linear in which columns are kept: LIME's model is then right, up
    to its ridge."""
    scorer, rows, background = scorer_of("linear", *TASKS[0]), rows_of(3, 6), rows_of(1, 6, "background")
    rng = seeds.generator(3, "test")
    closed = METHODS["linear-shapley"]().attribute(scorer, rows, background, rng)
    found = METHODS["lime"](samples=4000).attribute(scorer, rows, background, rng)
    np.testing.assert_allclose(found.values, closed.values, rtol=0.02, atol=0.02)
    assert np.isnan(found.completeness_error).all()


def test_a_row_with_a_gap_moves_as_a_column() -> None:
    """The number that fills a gap and its indicator are one column: with both as in the background it says nothing."""
    scorer = scorer_of("mlp", *TASKS[0])
    row, background = rows_of(1, 6), rows_of(1, 6, "background")
    row[:, [4, 5]] = background[:, [4, 5]]
    values = METHODS["exact-shapley"]().attribute(scorer, row, background, seeds.generator(3, "test")).values
    assert COLUMNS.names == ("age", "ward", "creatinine")
    assert (np.abs(values[0]) > 1e-12).tolist() == [True, True, False]
