"""Passes with dropout: each is a thinned network, features are computed once, and no row depends on another."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from wardround.core import seeds
from wardround.core.errors import StudyError
from wardround.core.tree import Tree
from wardround.models import MODELS, Dropout, Model, Shape, from_module
from wardround.tasks import class_task, findings_task
from wardround.uncertainty.passes import mc_dropout

TABLE, IMAGES = (5,), (1, 12, 12)
PLACES: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
    ("mlp", TABLE, {"hidden": (6, 4)}),
    ("adapter", TABLE, {"latent": 4, "hidden": (6, 5)}),
    ("cnn", IMAGES, {"channels": (2, 3), "hidden": 7, "norm": "batch"}),
    ("residual", IMAGES, {"widths": (4, 8), "reduce": 2, "norm": "batch"}),
]
EVERY_DROPOUT = pytest.mark.parametrize(("name", "inputs", "settings"), PLACES, ids=[one[0] for one in PLACES])
KINDS = pytest.mark.parametrize("shape", [(2, False), (5, False), (3, True)], ids=["two", "several", "findings"])


def rng() -> np.random.Generator:
    return seeds.generator(7, "mc dropout")


def weights_of(model: Model) -> tuple[Tree, Tree]:
    """In double precision; with statistics of BatchNorm that are not where they begin."""
    params, buffers = model.init(1)
    moved = {
        name: leaf.double() + (0.1 if name.endswith("mean") else 0.0) if leaf.is_floating_point() else leaf
        for name, leaf in buffers.items()
    }
    return {name: leaf.double() for name, leaf in params.items()}, moved


def some_rows(inputs: tuple[int, ...], rows: int = 6) -> Tensor:
    return torch.tensor(np.random.default_rng(3).normal(size=(rows, *inputs)))


class Between(nn.Module):
    """Dropout in the midst of convolutions, with a Flatten behind it: an axis of passes must not be taken for rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 3, 3, padding=1)
        self.thinned = Dropout(0.5, (3, 12, 12))
        self.second = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.ReLU(inplace=True), nn.MaxPool2d(2))
        self.last = nn.Sequential(nn.Flatten(), nn.Linear(50, 1))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.last(self.second(self.thinned(torch.relu_(self.first(x)))))
        return scores


def by_a_loop(model: Model, params: Tree, buffers: Tree, x: Tensor, passes: int) -> Tensor:
    """One pass after the other, each row with the pass's masks written out for it."""
    masks = model.masks(rng(), passes, x.dtype)
    pass_scores = []
    for number in range(passes):
        own = {name: mask[number].expand(len(x), *mask.shape[1:]) for name, mask in masks.items()}
        pass_scores.append(model.logits(params, {**buffers, **own}, x, None)[0])
    return torch.stack(pass_scores)


@KINDS
@EVERY_DROPOUT
def test_passes_are_those_of_a_loop(
    name: str, inputs: tuple[int, ...], settings: dict[str, Any], shape: tuple[int, bool]
) -> None:
    model = MODELS[name](**settings, dropout=0.3)(Shape(inputs, (findings_task if shape[1] else class_task)(shape[0])))
    params, buffers = weights_of(model)
    x = some_rows(inputs)
    pass_scores = mc_dropout(model, params, buffers, x, 9, rng())
    assert pass_scores.shape == (9, 6, 1 if shape == (2, False) else shape[0])
    torch.testing.assert_close(pass_scores, by_a_loop(model, params, buffers, x, 9), rtol=0, atol=1e-12)
    assert len(torch.unique(pass_scores[:, 0, 0])) > 1


def test_dropout_in_the_midst_of_convolutions_of_a_users_own_network() -> None:
    model = from_module(Between, Shape(IMAGES, class_task(2)))
    params, buffers = weights_of(model)
    x = some_rows(IMAGES)
    pass_scores = mc_dropout(model, params, buffers, x, 9, rng())
    torch.testing.assert_close(pass_scores, by_a_loop(model, params, buffers, x, 9), rtol=0, atol=1e-12)


@EVERY_DROPOUT
def test_a_row_says_the_same_whatever_rows_come_with_it(
    name: str, inputs: tuple[int, ...], settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MODELS[name](**settings, dropout=0.3)(Shape(inputs, class_task(3)))
    params, buffers = weights_of(model)
    x = some_rows(inputs)
    whole = mc_dropout(model, params, buffers, x, 5, rng())
    torch.testing.assert_close(mc_dropout(model, params, buffers, x[4:5], 5, rng())[:, 0], whole[:, 4])
    torch.testing.assert_close(mc_dropout(model, params, buffers, x.flip(0), 5, rng()), whole.flip(1))
    monkeypatch.setattr("wardround.uncertainty.passes.MOST_ROWS", 4)
    torch.testing.assert_close(mc_dropout(model, params, buffers, x, 5, rng()), whole)


def test_the_passes_are_those_of_their_generator_and_the_weights_stay_as_they_are() -> None:
    model = MODELS["cnn"](channels=(2, 3), hidden=7, norm="batch", dropout=0.5)(Shape(IMAGES, class_task(3)))
    params, buffers = weights_of(model)
    before = {name: leaf.clone() for name, leaf in {**params, **buffers}.items()}
    x = some_rows(IMAGES)
    first = mc_dropout(model, params, buffers, x, 5, rng())
    assert torch.equal(first, mc_dropout(model, params, buffers, x, 5, rng()))
    assert not torch.equal(first, mc_dropout(model, params, buffers, x, 5, seeds.generator(8, "mc dropout")))
    assert all(torch.equal(before[name], leaf) for name, leaf in {**params, **buffers}.items())


def test_mean_and_variance_over_passes_where_they_can_be_worked_out() -> None:
    """With one hidden layer the score is b + sum of w h m, where m is 0 or 1 / (1 - p): its mean is b + w'h and its
    variance p / (1 - p) times sum (w h)^2. Over n passes a mean strays by its SD / sqrt(n), a variance of nearly
    normal numbers by sqrt(2 / n) of itself; five of those are allowed."""
    model = MODELS["mlp"](hidden=(40,), dropout=0.25)(Shape(TABLE, class_task(2)))
    params, buffers = weights_of(model)
    x, passes = some_rows(TABLE), 20_000
    pass_scores = mc_dropout(model, params, buffers, x, passes, rng())[:, :, 0]
    h = torch.relu(x @ params["1.weight"].mT + params["1.bias"])
    each = h * params["4.weight"][0]
    variance = 0.25 / 0.75 * each.square().sum(1)
    assert ((pass_scores.mean(0) - each.sum(1) - params["4.bias"]).abs() < 5 * (variance / passes).sqrt()).all()
    assert ((pass_scores.var(0) / variance - 1).abs() < 5 * (2 / passes) ** 0.5).all()


@pytest.mark.parametrize("kind", ["cnn", "residual"])
def test_where_dropout_follows_the_features_they_are_computed_once(kind: str) -> None:
    """Thirty passes do the multiplications of one pass and, 29 times more, those of the last layer: two for each weight
    and row."""
    settings: dict[str, dict[str, Any]] = {"cnn": {"hidden": 64}, "residual": {"widths": (8, 16)}}
    model = MODELS[kind](**settings[kind], dropout=0.2)(Shape((1, 28, 28), findings_task(14)))
    params, buffers = model.init(0)
    x = torch.rand(3, 1, 28, 28)
    last = {"cnn": 64, "residual": 16}[kind] * 14

    def work(passes: int) -> int:
        with FlopCounterMode(display=False) as counter:
            mc_dropout(model, params, buffers, x, passes, rng())
        return int(counter.get_total_flops())

    assert work(30) == work(1) + 29 * 3 * 2 * last


def test_a_model_without_dropout_and_no_passes_are_refused() -> None:
    model = MODELS["mlp"]()(Shape(TABLE, class_task(2)))
    with pytest.raises(StudyError, match="the model has no dropout"):
        mc_dropout(model, *model.init(0), torch.zeros(1, 5), 30, rng())
    thin = MODELS["mlp"](dropout=0.1)(Shape(TABLE, class_task(2)))
    with pytest.raises(StudyError, match="0 passes"):
        mc_dropout(thin, *thin.init(0), torch.zeros(1, 5), 0, rng())
