"""DP-SGD does what the accountant assumes: clip by patient, Poisson sampling, noise by the expected number."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from tests.privacy.reference_gradients import (
    DOUBLE,
    IMAGES,
    TABLES,
    Batch,
    batch_for,
    clipped_by_hand,
    length_of,
    looks_standard_normal,
    params_of,
)
from tests.small_federations import assert_same_tree
from wardround.algorithms.fedavg import fedavg
from wardround.algorithms.fedprox import fedprox
from wardround.core import tree
from wardround.core.threads import torch_threads
from wardround.core.tree import Tree
from wardround.data.site import Rows
from wardround.models import MODELS, Model, Shape
from wardround.privacy.dp import example_dp
from wardround.privacy.dp.example_dp import Adaptation, PrivateGradient, Rule, adapted, clipped_sum, poisson_order
from wardround.privacy.dp.noise import SecretStream, SeededStream
from wardround.tasks import class_task, findings_task
from wardround.training.local import Memory, local_train
from wardround.training.optimisers import sgd

SHAPES = [
    Shape((6,), class_task(2)),
    Shape((6,), class_task(3)),
    Shape((6,), findings_task(14)),
    Shape((6,), findings_task(1)),
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


class Silent:
    """Draws everybody, and its noise is none."""

    def uniform(self, count: int) -> np.ndarray:
        return np.full(count, 1e-9)

    def normal(self, count: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(count, dtype=dtype)


def stream(purpose: str = "noise") -> SeededStream:
    return SeededStream(5, purpose, 0, "site-1")


def summed(model: Model, params: Tree, batch: Batch, clip: float) -> Tree:
    return clipped_sum(model, params, batch.x, batch.y, batch.masks, batch.people, clip)[0]


def gradient_of(private: PrivateGradient, params: Tree, batch: Batch) -> Tree:
    return private(params, {}, batch.x, batch.y, batch.masks, batch.people)[0]


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(list(TABLES)),
    shape=st.sampled_from(SHAPES),
    people=st.lists(st.integers(0, 5), min_size=1, max_size=12),
    clip=st.floats(1e-3, 10),
    size=st.sampled_from([1e-3, 1.0, 1e3]),
    seed=st.integers(0, 1000),
    double=st.booleans(),
)
def test_no_patient_moves_the_sum_by_more_than_the_clip(
    name: str, shape: Shape, people: list[int], clip: float, size: float, seed: int, double: bool
) -> None:
    """With and without each patient in turn, all others as they are: that is what the accountant calls neighbours."""
    dtype = DOUBLE if double else torch.float32
    model = TABLES[name](shape)
    params, batch = params_of(model, dtype, seed), batch_for(model, shape, people, seed, dtype, size)
    whole = summed(model, params, batch, clip)
    for patient in set(people):
        rest = summed(model, params, batch.without(patient), clip)
        assert length_of({k: leaf - rest[k] for k, leaf in whole.items()}) <= clip
        alone = batch
        for other in set(people) - {patient}:
            alone = alone.without(other)
        assert length_of(summed(model, params, alone, clip)) <= clip


@settings(max_examples=8, deadline=None)
@given(
    name=st.sampled_from(list(IMAGES)),
    shape=st.sampled_from([Shape((1, 8, 8), class_task(2)), Shape((2, 9, 8), findings_task(14))]),
    people=st.lists(st.integers(0, 3), min_size=1, max_size=6),
    clip=st.floats(1e-2, 1),
    seed=st.integers(0, 1000),
)
def test_no_patient_moves_the_sum_over_images_by_more_than_the_clip(
    name: str, shape: Shape, people: list[int], clip: float, seed: int
) -> None:
    model = IMAGES[name](shape)
    params, batch = params_of(model, seed=seed), batch_for(model, shape, people, seed)
    whole = summed(model, params, batch, clip)
    for patient in set(people):
        rest = summed(model, params, batch.without(patient), clip)
        assert length_of({k: leaf - rest[k] for k, leaf in whole.items()}) <= clip


def test_long_gradients_are_cut_to_the_clip_and_short_ones_stay() -> None:
    model = TABLES["mlp"](SHAPES[1])
    params, batch = params_of(model), batch_for(model, SHAPES[1], [0, 1, 1, 2, 3], seed=1)
    _, lengths = clipped_sum(model, params, batch.x, batch.y, {}, batch.people, 1.0)
    clip = float(lengths.median())
    assert (lengths < clip).any()
    assert (lengths > clip).any()
    assert_same_tree(summed(model, params, batch, clip), clipped_by_hand(model, params, batch, clip), atol=1e-3 * clip)
    lone_batch = batch_for(model, SHAPES[1], [0], seed=1)
    assert length_of(summed(model, params, lone_batch, 1e-3)) == pytest.approx(1e-3, rel=2e-4)


def test_private_leaves_are_part_of_the_one_vector() -> None:
    """An intercept that stays at its site is clipped with the weights, and has noise of its own."""
    model = MODELS["logistic"](intercept="private")(Shape((6,), class_task(2)))
    params, batch = params_of(model), batch_for(model, Shape((6,), class_task(2)), [0], seed=1)
    gradient = summed(model, params, batch, 1e-3)
    assert gradient["bias"].abs() > 0
    assert length_of(gradient) == pytest.approx(1e-3, rel=2e-4)
    empty = batch.without(0)
    noise = gradient_of(PrivateGradient(model, Rule(0.5, 1.0, 1.0, 10), stream()), params, empty)
    assert noise["bias"].abs() > 0


def test_rows_in_pieces_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    model = TABLES["without rules"](SHAPES[1])
    params, batch = params_of(model), batch_for(model, SHAPES[1], [3, 1, 3, 3, 2, 2, 5, 1], seed=1)
    whole = summed(model, params, batch, 0.1)
    for rows in (1, 2, 3, 5):
        monkeypatch.setattr(example_dp, "rows_at_a_time", lambda params, rows=rows: rows)
        assert_same_tree(summed(model, params, batch, 0.1), whole, atol=1e-14)


@pytest.mark.parametrize("name", [*TABLES])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_without_clip_and_noise_it_is_the_plain_gradient(name: str, shape: Shape) -> None:
    model = TABLES[name](shape)
    params, batch = params_of(model), batch_for(model, shape, list(range(9)), seed=2)
    private = PrivateGradient(model, Rule(1.0, 1.0, 1e9, 9), Silent())
    gradient = gradient_of(private, params, batch)
    plain, _, _ = model.gradient(params, {}, batch.x, batch.y, batch.masks)
    assert_same_tree(gradient, plain, atol=1e-12)


def test_a_penalty_is_added_after_the_noise_and_not_clipped() -> None:
    shape = Shape((6,), class_task(2))
    model = MODELS["logistic"](l2=100.0)(shape)
    params = {name: torch.ones_like(leaf) for name, leaf in params_of(model).items()}
    batch = batch_for(model, shape, [0, 1, 2], seed=3)
    without = replace(model, penalty=None)
    rule = Rule(0.5, 1.3, 1e-3, 6)
    with_it = gradient_of(PrivateGradient(model, rule, stream()), params, batch)
    noise_only = gradient_of(PrivateGradient(without, rule, stream()), params, batch)
    torch.testing.assert_close(with_it["weight"] - noise_only["weight"], torch.full((1, 6), 100.0, dtype=DOUBLE))
    assert torch.equal(with_it["bias"], noise_only["bias"])


def test_the_divisor_is_the_expected_number_of_patients_and_never_the_drawn() -> None:
    shape = Shape((6,), class_task(2))
    model = TABLES["logistic"](shape)
    params = params_of(model)
    rule = Rule(rate=0.25, noise=1.0, clip=0.1, patients=40)
    for drawn in (1, 7, 15):
        batch = batch_for(model, shape, list(range(drawn)), seed=4)
        gradient = gradient_of(PrivateGradient(model, rule, Silent()), params, batch)
        assert_same_tree(gradient, tree.scale(summed(model, params, batch, 0.1), 1 / 10), atol=1e-15)


@pytest.mark.parametrize("secret", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_noise_has_the_standard_deviation_that_is_charged(secret: bool, dtype: torch.dtype) -> None:
    """An empty step is nothing but noise: noise x clip / expected on each of 2 x 5001 numbers, bounds of chi-square."""
    shape = Shape((5000,), class_task(3))
    model = MODELS["logistic"]()(shape)
    params = params_of(model, dtype)
    batch = batch_for(model, shape, [0], seed=1, dtype=dtype).without(0)
    private = PrivateGradient(model, Rule(0.25, 3.1, 0.7, 40), SecretStream(bytes(32), "noise") if secret else stream())
    gradient = gradient_of(private, params, batch)
    assert all(leaf.dtype == dtype for leaf in gradient.values())
    numbers = torch.cat([leaf.flatten() for leaf in gradient.values()]).double().numpy() / (3.1 * 0.7 / 10)
    assert looks_standard_normal(numbers)
    assert stats.kstest(numbers, "norm").pvalue > 0.01
    again = gradient_of(private, params, batch)
    assert not any(torch.equal(again[name], leaf) for name, leaf in gradient.items())  # each step has its own


def test_the_loss_is_told_to_nobody() -> None:
    model = TABLES["logistic"](SHAPES[0])
    batch = batch_for(model, SHAPES[0], [0, 1], seed=1)
    private = PrivateGradient(model, Rule(0.5, 1.0, 1.0, 4), stream())
    assert private(params_of(model), {}, batch.x, batch.y, {}, batch.people)[1].isnan()


# Poisson sampling


def test_all_rows_of_a_patient_are_drawn_or_none() -> None:
    people = torch.tensor([7, 3, 7, 9, 3, 7, 1])
    steps = poisson_order(people, 0.5, 400, stream("sampling"))
    assert len(steps) == 400
    sizes = set()
    for rows in steps:
        drawn = set(people[rows].tolist())
        assert rows.tolist() == [row for row, patient in enumerate(people.tolist()) if patient in drawn]
        sizes.add(len(drawn))
    assert sizes == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("rows_each", [1, 3])
def test_patients_are_drawn_with_the_rate_that_is_charged(rows_each: int) -> None:
    people = torch.arange(20).repeat(rows_each)[
        torch.randperm(20 * rows_each, generator=torch.Generator().manual_seed(0))
    ]
    rate, count = 0.3, 3000
    steps = poisson_order(people, rate, count, stream("sampling"))
    drawn = np.array([np.bincount(people[rows].numpy(), minlength=20) > 0 for rows in steps])
    assert (np.abs(drawn.mean(axis=0) - rate) < 4.5 * math.sqrt(rate * (1 - rate) / count)).all()
    assert drawn.sum(axis=1).var(ddof=1) / (20 * rate * (1 - rate)) == pytest.approx(1, abs=0.12)
    assert abs(np.corrcoef(drawn[1:].ravel(), drawn[:-1].ravel())[0, 1]) < 4.5 / math.sqrt(drawn.size)


# the local loop


def rows_of(size: int, seed: int = 0) -> Rows:
    rng = np.random.default_rng(seed)
    return Rows(torch.tensor(rng.normal(size=(size, 4)), dtype=DOUBLE), torch.tensor(rng.integers(0, 2, size)))


def trained(mu: float, rule: Rule, order: list[Tensor], rows: Rows, lr: float = 0.3) -> tuple[Tree, Tree, Any]:
    model = MODELS["logistic"](l2=0.01)(Shape((4,), class_task(2)))
    algorithm = fedprox(mu) if mu else fedavg()
    begin = {name: torch.full_like(leaf, 0.5) for name, leaf in params_of(model).items()}
    shared = algorithm.broadcast(algorithm.init(begin, 1), 0)
    rng = np.random.default_rng(0)
    private = PrivateGradient(model, rule, stream())
    outcome = local_train(algorithm, model, sgd(0.0), rows, order, shared, Memory(), lr, rng, private=private)
    return begin, outcome.update["params"], outcome


def test_the_proximal_pull_comes_after_the_noise_and_is_not_clipped() -> None:
    """Step by step: w <- w - lr (noisy gradient + l2 w + mu (w - start)); so much noise, and so large a mu, that the
    pull is several clips long."""
    rows, rule, mu, lr = rows_of(12), Rule(0.5, 60.0, 0.05, 12), 50.0, 0.01
    order = [torch.tensor([0, 3, 5]), torch.tensor([], dtype=torch.int64), torch.tensor([1, 2, 3, 4, 8])]
    begin, moved, outcome = trained(mu, rule, order, rows, lr)
    model, noise = MODELS["logistic"]()(Shape((4,), class_task(2))), stream()
    at = dict(begin)
    for drawn in order:
        batch = Batch(rows.x[drawn], rows.y[drawn], {}, drawn)
        total = clipped_by_hand(model, at, batch, 0.05) if len(drawn) else tree.zeros_like(at)
        drawn_noise = torch.split(noise.normal(5, DOUBLE), [4, 1])
        step = {
            "weight": (total["weight"] + 60 * 0.05 * drawn_noise[0].reshape(1, 4)) / 6 + 0.01 * at["weight"],
            "bias": (total["bias"] + 60 * 0.05 * drawn_noise[1]) / 6,
        }
        pull = {name: mu * (leaf - begin[name]) for name, leaf in at.items()}
        at = {name: leaf - lr * (step[name] + pull[name]) for name, leaf in at.items()}
    assert length_of(pull) > 3 * 0.05
    assert_same_tree(moved, tree.sub(at, begin), atol=1e-6)  # the clip keeps a ten-thousandth back
    assert outcome.loss.isnan()


def test_steps_that_draw_nobody_are_steps_of_noise() -> None:
    nobody = [torch.tensor([], dtype=torch.int64)] * 4
    _, moved, _ = trained(0.0, Rule(0.01, 2.0, 0.1, 100), nobody, rows_of(12))
    assert length_of(moved) > 0
    assert all(bool(leaf.isfinite().all()) for leaf in moved.values())


# the clip that follows


def test_both_releases_together_cost_what_is_charged() -> None:
    """Andrew et al., theorem 1. A count that one patient moves by a half, with noise of 5, is a noise of 10; from
    1/3.1^2 = 1/z^2 + 1/10^2 follows z = 3.2606."""
    rule = Rule(0.25, 3.1, 1.0, 100, Adaptation(0.5, 0.2, 5.0))
    assert rule.gradient_noise == pytest.approx(3.2606, abs=1e-4)
    assert rule.gradient_noise**-2 + (2 * 5.0) ** -2 == pytest.approx(3.1**-2)
    assert Rule(0.25, 3.1, 1.0, 100).gradient_noise == 3.1
    with pytest.raises(ValueError, match="costs more"):
        _ = Rule(0.25, 3.1, 1.0, 100, Adaptation(0.5, 0.2, 1.55)).gradient_noise


def test_the_noise_of_an_adaptive_clip_follows_the_clip_and_the_formula() -> None:
    shape = Shape((4000,), class_task(2))
    model = MODELS["logistic"]()(shape)
    rule = Rule(0.25, 3.1, 1.0, 40, Adaptation(0.5, 0.2, 5.0))
    empty = batch_for(model, shape, [0], seed=1).without(0)
    gradient = gradient_of(PrivateGradient(model, rule, stream(), clip=0.2), params_of(model), empty)
    scaled = gradient["weight"].numpy() / (rule.gradient_noise * 0.2 / 10)
    assert looks_standard_normal(scaled)


def test_one_patient_moves_the_count_by_a_half() -> None:
    rule, how = Rule(0.5, 1.0, 1.0, 20), Adaptation(0.5, 1.0, 3.0)

    def count(lengths: list[float]) -> float:
        """The clip is exp(-(count / 10)) where the quantile is a half: what was added up before the noise."""
        return -10 * math.log(adapted(1.0, torch.tensor(lengths), rule, how, Silent()))

    others = [0.5, 0.9, 2.0]
    for more in (0.3, 5.0, float("inf"), float("nan")):
        assert abs(count([*others, more]) - count(others)) == pytest.approx(0.5)


def test_the_clip_moves_to_the_quantile_of_the_lengths() -> None:
    lengths = torch.linspace(0.01, 2, 200)
    for quantile in (0.2, 0.5, 0.8):
        rule, how, noise = Rule(1.0, 1.0, 9.0, 200), Adaptation(quantile, 0.2, 2.0), stream()
        clip, seen = rule.clip, []
        for _ in range(150):
            clip = adapted(clip, lengths, rule, how, noise)
            seen.append(clip)
        assert np.mean(seen[-50:]) == pytest.approx(2 * quantile, abs=0.04)


def test_the_count_has_the_noise_that_it_is_charged_for() -> None:
    rule, how, noise = Rule(0.5, 1.0, 1.0, 2000), Adaptation(0.5, 1.0, 7.0), stream()
    none = torch.zeros(0)
    counts = np.array([-1000 * math.log(adapted(1.0, none, rule, how, noise)) for _ in range(2000)]) / 7.0
    assert looks_standard_normal(counts)


def test_a_step_moves_the_clip_after_its_own_use() -> None:
    shape = Shape((6,), class_task(2))
    model = TABLES["logistic"](shape)
    params, batch = params_of(model), batch_for(model, shape, list(range(10)), seed=5)
    private = PrivateGradient(model, Rule(1.0, 1.0, 1e-4, 10, Adaptation(0.5, 0.5, 5.0)), Silent())
    first = gradient_of(private, params, batch)
    assert length_of(first) <= 1e-4
    # nobody's gradient is shorter than the clip: the share below is 0, and the clip grows by exp(rate x quantile)
    assert private.clip == pytest.approx(1e-4 * math.exp(0.5 * 0.5))
