"""Checks pass explanations that are true, and fail those that are not."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from tests.explain.image_scorers import image_scorer, images_of, small_cnn
from tests.explain.scorers import COLUMNS, TASKS, rows_of, scorer_of
from wardround.core import seeds
from wardround.core.notices import text_of
from wardround.explain import METHODS, Scorer
from wardround.explain.checks import (
    Units,
    agreement,
    cells_of_images,
    check_all,
    columns_of_rows,
    deletion,
    insertion,
    notice_of,
    randomisation,
    stability,
)
from wardround.explain.checks.check import rank_correlation
from wardround.explain.checks.faithfulness import area, curve
from wardround.explain.checks.randomisation import shuffled
from wardround.explain.checks.stability import noisy
from wardround.tasks import class_task


def rng() -> np.random.Generator:
    return seeds.generator(7, "test checks")


def linear_case() -> tuple[Scorer, torch.Tensor, torch.Tensor, np.ndarray]:
    scorer, rows, background = scorer_of("linear", *TASKS[0]), rows_of(12, 6), rows_of(30, 6, "background")
    return scorer, rows, background, METHODS["linear-shapley"]().attribute(scorer, rows, background, rng()).values


def test_a_curve_is_the_score_with_the_first_columns_covered_or_shown() -> None:
    scorer, rows, background, values = linear_case()
    units = columns_of_rows(background, rng())
    order = np.argsort(-values[0])
    base = scorer.values(background[torch.from_numpy(rng().choice(30, 16, replace=False))]).mean()
    falling, rising = (curve(scorer, rows[0], order, units, shown) for shown in (False, True))
    own = scorer.values(rows[:1])[0]
    assert falling[0] == pytest.approx(own)
    assert falling[-1] == pytest.approx(base)
    assert rising[0] == pytest.approx(base)
    assert rising[-1] == pytest.approx(own)
    assert area(np.array([0.0, 1.0, 1.0])) == pytest.approx(0.75)


def test_true_values_pass_deletion_and_insertion_and_reversed_or_random_ones_do_not() -> None:
    for scorer, rows, values, units in (table_case(), image_case()):
        for check in (deletion, insertion):
            true = check(scorer, rows, values, units, "true", rng())
            assert true.passed, true
            assert true.low < true.figure < true.high
            assert check(scorer, rows, -values, units, "reversed", rng()).passed is False
            other = seeds.generator(8, "random").normal(size=values.shape)
            assert check(scorer, rows, other, units, "random", rng()).figure < true.figure / 2


def table_case() -> tuple[Scorer, torch.Tensor, np.ndarray, Units]:
    scorer, rows, background, values = linear_case()
    return scorer, rows, values, columns_of_rows(background, rng())


def image_case() -> tuple[Scorer, torch.Tensor, np.ndarray, Units]:
    scorer, rows = image_scorer("logistic", class_task(2), side=32), images_of(8, 32)
    values = METHODS["integrated-gradients"](steps=2).attribute(scorer, rows, rows[:0], rng()).values
    return scorer, rows, values, cells_of_images(rows, rows[:0])


def test_cells_are_means_of_their_pixels_and_are_covered_whole() -> None:
    rows = images_of(1, 32)
    units = cells_of_images(rows, rows[:0])
    by_cell = units.of(rows[:, 0].numpy())
    assert by_cell.shape == (1, 256)
    np.testing.assert_allclose(by_cell[0, 17], rows[0, 0, 2:4, 2:4].mean())
    shown = np.zeros((1, 256))
    shown[0, 17] = 1
    scorer = image_scorer("logistic", class_task(2), side=32)
    image = rows.mean(dim=(2, 3), keepdim=True).expand_as(rows).clone()
    image[..., 2:4, 2:4] = rows[..., 2:4, 2:4]
    np.testing.assert_allclose(units.scores(scorer, rows[0], shown), scorer.values(image))
    odd = cells_of_images(images_of(1, 20), rows[:0])
    assert odd.of(np.ones((1, 20, 20))).shape == (1, 256)
    assert cells_of_images(images_of(1, 8), rows[:0]).of(np.ones((1, 8, 8))).shape == (1, 64)


def test_an_explanation_that_ignores_the_model_fails_randomisation_and_one_that_shows_it_passes() -> None:
    scorer, rows = small_cnn(class_task(2)), images_of(8)
    units = cells_of_images(rows, rows[:0])
    gradients = METHODS["integrated-gradients"]()

    def edges(scorer: Scorer, rows: torch.Tensor) -> np.ndarray:
        """What an edge detector shows, whatever the model says."""
        return np.asarray((rows - rows.mean(dim=(2, 3), keepdim=True)).abs()[:, 0])

    def told(scorer: Scorer, rows: torch.Tensor) -> np.ndarray:
        return gradients.attribute(scorer, rows, rows[:0], rng()).values

    failed = randomisation(scorer, rows, edges(scorer, rows), edges, units, "edges", rng())
    assert failed.passed is False
    assert failed.figure == pytest.approx(1)
    assert randomisation(scorer, rows, told(scorer, rows), told, units, "gradients", rng()).passed


def test_shuffled_weights_are_the_same_numbers_elsewhere() -> None:
    params = small_cnn(class_task(2)).params
    other = shuffled(params, rng())
    for name, leaf in params.items():
        assert leaf.shape == other[name].shape
        assert torch.equal(leaf.reshape(-1).sort().values, other[name].reshape(-1).sort().values)
    assert not torch.equal(params["3.weight"], other["3.weight"])


def test_an_explanation_that_noise_turns_over_is_unstable() -> None:
    scorer, rows, background, values = linear_case()
    units = columns_of_rows(background, rng())

    def told(scorer: Scorer, rows: torch.Tensor) -> np.ndarray:
        return METHODS["linear-shapley"]().attribute(scorer, rows, background, rng()).values

    def hashed(scorer: Scorer, rows: torch.Tensor) -> np.ndarray:
        return np.sin(1e6 * np.asarray(told(scorer, rows)))

    steady = stability(scorer, rows, values, told, units, "true", background, rng())
    assert steady.passed
    assert steady.figure > 0.9
    assert stability(scorer, rows, np.sin(1e6 * values), hashed, units, "no", background, rng()).passed is False


def test_noise_is_small_and_leaves_indicators_alone() -> None:
    background = rows_of(40, 6)
    background[:, 1] = (background[:, 1] > 0).double()
    rows = background[:5]
    changed = noisy(rows, background, rng()) - rows
    assert (changed[:, 1] == 0).all()
    assert (changed[:, [0, 2, 3, 4, 5]] != 0).all()
    assert changed.abs().max() < 0.05 * 4 * background.std(dim=0).max()
    images = images_of(3)
    assert (noisy(images, images, rng()) - images).std() == pytest.approx(0.05, rel=0.2)


def test_methods_agree_where_they_put_the_same_first() -> None:
    values = seeds.generator(1, "test").normal(size=(20, 6))
    other = seeds.generator(2, "test").normal(size=(20, 6))
    units = columns_of_rows(rows_of(5, 6), rng())
    same, against, apart = agreement({"a": values, "b": 2 * values + 1, "c": -values}, units)
    assert same.method == "a and b"
    assert same.figure == pytest.approx(1)
    assert same.passed
    assert against.figure == pytest.approx(-1)
    assert against.passed is False
    assert apart.passed is False
    assert agreement({"a": values, "c": other}, units)[0].passed is False


def test_rank_correlation_is_spearmans() -> None:
    one, other = (np.round(seeds.generator(seed, "test").normal(size=(5, 12)), 0) for seed in (1, 2))  # with ties
    expected = [spearmanr(a, b).statistic for a, b in zip(one, other, strict=True)]
    np.testing.assert_allclose(rank_correlation(one, other), expected, atol=1e-12)
    assert rank_correlation(np.ones((1, 4)), one[:1, :4])[0] == 0  # the same everywhere follows nothing


def test_checks_that_fail_are_said_in_words_and_few_rows_decide_nothing() -> None:
    scorer, rows, background, values = linear_case()
    units = columns_of_rows(background, rng())
    failed = deletion(scorer, rows, -values, units, "LIME", rng())
    notice = notice_of(failed)
    assert notice is not None
    assert notice.code == "explanation-not-faithful"
    assert "LIME" in text_of(notice)
    assert notice_of(deletion(scorer, rows, values, units, "LIME", rng())) is None
    few = deletion(scorer, rows[:3], -values[:3], units, "LIME", rng())
    assert few.passed is None
    assert notice_of(few) is None


def test_all_checks_run_for_tables_and_images() -> None:
    table, rows, background = scorer_of("mlp", *TASKS[0]), rows_of(6, 6), rows_of(8, 6, "background")
    pictures = images_of(5)
    cases = (
        (table, rows, background, ("exact-shapley", "lime")),
        (small_cnn(class_task(2)), pictures, pictures[:0], ("grad-cam", "occlusion")),
    )
    for scorer, x, others, names in cases:
        methods = {name: METHODS[name]() for name in names}
        values = {name: method.attribute(scorer, x, others, rng()).values for name, method in methods.items()}
        checks = check_all(scorer, x, others, methods, values, rng())
        kinds = ["deletion", "insertion", "randomisation", "stability"] * 2 + ["agreement"]
        assert [check.name for check in checks] == kinds
        assert all(np.isfinite([check.figure, check.low, check.high]).all() for check in checks)
        again = check_all(scorer, x, others, methods, values, rng())
        assert [replace(check) for check in checks] == again
    assert len(COLUMNS) == 3
