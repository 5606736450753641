"""The loss of rows with several findings, by hand; labels that are not known count nothing."""

from math import exp, log
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.radiographs import finding_sites
from wardround.core.tree import Tree
from wardround.models import MODELS, Model, Shape
from wardround.models.logistic import logistic
from wardround.tasks import findings_task

FINDINGS = 3
LABELS = torch.tensor([[1, 0, -1], [-1, -1, -1], [0, 1, 1], [-1, 1, -1]])


def soft(value: float) -> float:
    """log(1 + e^value): the loss of a score for a finding that is absent, of minus the score for one that is there."""
    return log(1 + exp(value))


def a_model(inputs: tuple[int, ...] = (4,), **settings: Any) -> Model:
    return logistic(**settings)(Shape(inputs, findings_task(FINDINGS)))


def some_weights(model: Model, copies: int = 0, seed: int = 1) -> Tree:
    rng = np.random.default_rng(seed)
    lead = (copies,) if copies else ()
    return {name: torch.tensor(rng.normal(size=(*lead, *leaf.shape))) for name, leaf in model.init(0)[0].items()}


def test_a_rows_loss_is_the_mean_over_its_known_findings() -> None:
    scores = torch.tensor([[2.0, -1.0, 5.0], [1.0, 1.0, 1.0], [0.5, 3.0, -2.0], [9.0, 0.25, 9.0]], dtype=torch.float64)
    expected = [
        (soft(-2) + soft(-1)) / 2,
        0.0,
        (soft(0.5) + soft(-3) + soft(2)) / 3,
        soft(-0.25),
    ]
    model = a_model()
    assert model.task.row_losses(scores, LABELS).tolist() == pytest.approx(expected, rel=1e-12)


def test_weights_say_how_often_a_row_that_has_the_finding_counts() -> None:
    scores = torch.tensor([[2.0, -1.0, 5.0], [0.5, 3.0, -2.0]], dtype=torch.float64)
    labels, weights = LABELS[[0, 2]], torch.tensor([10.0, 0.5, 4.0], dtype=torch.float64)
    expected = [(10 * soft(-2) + soft(-1)) / 2, (soft(0.5) + 0.5 * soft(-3) + 4 * soft(2)) / 3]
    assert a_model().task.row_losses(scores, labels, weights).tolist() == pytest.approx(expected, rel=1e-12)
    every = torch.tensor([[1, 0, 1], [0, 1, 0]])
    theirs = F.binary_cross_entropy_with_logits(scores, every.double(), pos_weight=weights)
    assert float(a_model().task.row_losses(scores, every, weights).mean()) == pytest.approx(float(theirs), rel=1e-12)


@pytest.mark.parametrize("kind", ["logistic", "mlp"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_finding_that_is_not_known_pulls_at_nothing(kind: str, weighted: bool) -> None:
    """The gradient is the same whatever would have stood there, and that of a finding known of no row is zero."""
    model = MODELS[kind]()(Shape((4,), findings_task(FINDINGS)))
    params = {name: leaf.double() + 0.1 for name, leaf in model.init(1)[0].items()}
    x = torch.tensor(np.random.default_rng(0).normal(size=(4, 4)))
    labels = LABELS.clone()
    labels[:, 2] = -1
    weights = torch.tensor([3.0, 2.0, 7.0], dtype=torch.float64) if weighted else None
    gradient, loss, _ = model.gradient(params, {}, x, labels, {}, weights)
    last = max((name for name in params if name.endswith("bias")), key=lambda name: name)
    assert gradient[last].shape == (FINDINGS,)
    assert float(gradient[last][2]) == 0
    assert (gradient[last][:2] != 0).all()
    assert not gradient[last.replace("bias", "weight")][2].any()

    scores = torch.full((4, 3), 0.3, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(model.task.row_losses(scores, LABELS, weights).sum(), scores)
    assert ((slope == 0) == (LABELS < 0)).all()
    assert torch.isfinite(loss)


def test_a_row_of_which_nothing_is_known_still_counts_in_the_mean() -> None:
    """Shares of rows are fixed before labels are looked at: the batch's loss is the sum over rows / 4."""
    model, x = a_model(), torch.zeros(4, 4, dtype=torch.float64)
    params = {name: leaf.double() for name, leaf in model.init(0)[0].items()}
    assert float(model.loss(params, {}, x, LABELS, {})[0]) == pytest.approx(3 * log(2) / 4, rel=1e-12)


def test_a_call_is_right_by_the_share_of_known_findings_that_are() -> None:
    scores = torch.tensor([[2.0, 0.0, 5.0], [1.0, 1.0, 1.0], [-0.5, 3.0, -2.0], [9.0, 0.25, 9.0]])
    # a score of exactly 0 is a call; of a row without a known finding none is right
    assert a_model().task.row_figures(scores, LABELS).tolist() == pytest.approx([0.5, 0.0, 2 / 3, 1.0])


def test_every_finding_has_a_probability_of_its_own() -> None:
    scores = torch.tensor([[0.0, log(3), -log(3)]], dtype=torch.float64)
    assert a_model().task.predictions(scores).tolist() == [pytest.approx([0.5, 0.75, 0.25])]


@pytest.mark.parametrize("findings", [1, 2, 5])
def test_one_score_for_each_finding_even_where_there_are_two(findings: int) -> None:
    shape = Shape((4,), findings_task(findings))
    assert shape.outputs == findings
    model = logistic()(shape)
    scores, _ = model.logits(model.init(0)[0], {}, torch.zeros(6, 4), None)
    assert scores.shape == model.task.predictions(scores).shape == (6, findings)
    labels = torch.ones(6, findings, dtype=torch.int64)
    assert model.task.row_losses(scores, labels).tolist() == pytest.approx([log(2)] * 6)
    assert model.task.row_figures(scores, labels).tolist() == [1.0] * 6


def autograd_of(model: Model, params: Tree, x: Tensor, y: Tensor, share: Tensor) -> tuple[Tree, float]:
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in params.items()}
    scores, _ = model.logits(leaves, {}, x, {})
    loss = (model.task.row_losses(scores, y) * share).sum()
    if model.penalty is not None:
        loss = loss + model.penalty(leaves)
    loss.backward()  # type: ignore[no-untyped-call]
    return {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}, float(loss.detach())


@pytest.mark.parametrize("inputs", [(4,), (1, 2, 3)])
@pytest.mark.parametrize("l2", [0.0, 0.3])
def test_the_closed_gradient_for_findings_is_autograds(inputs: tuple[int, ...], l2: float) -> None:
    model = a_model(inputs, l2=l2)
    params = some_weights(model)
    rows = finding_sites((9,), inputs)[0].train
    closed, loss, _ = model.gradient(params, {}, rows.x, rows.y, {})
    expected, expected_loss = autograd_of(model, params, rows.x, rows.y, torch.full((9,), 1 / 9, dtype=torch.float64))
    assert float(loss) == pytest.approx(expected_loss, rel=1e-13)
    for name, leaf in expected.items():
        torch.testing.assert_close(closed[name], leaf, rtol=0, atol=1e-14)


@pytest.mark.parametrize("weighted", [False, True])
def test_weights_turn_the_closed_gradient_into_that_of_the_weighted_loss(weighted: bool) -> None:
    model = a_model(l2=0.1)
    params = some_weights(model)
    rows = finding_sites((9,))[0].train
    weights = torch.tensor([5.0, 0.5, 2.0], dtype=torch.float64) if weighted else None
    gradient, loss, _ = model.gradient(params, {}, rows.x, rows.y, {}, weights)
    for name, leaf in params.items():
        step = torch.zeros_like(leaf)
        step.view(-1)[1] = 1e-6
        sides = [
            model.loss({**params, name: leaf + sign * step}, {}, rows.x, rows.y, None, weights)[0] for sign in (1, -1)
        ]
        slope = float(sides[0] - sides[1]) / 2e-6
        assert float(gradient[name].view(-1)[1]) == pytest.approx(slope, rel=1e-6, abs=1e-9)
    assert float(loss) == pytest.approx(float(model.loss(params, {}, rows.x, rows.y, None, weights)[0]), rel=1e-12)


@pytest.mark.parametrize("copies", [1, 2, 5])
@pytest.mark.parametrize("inputs", [(4,), (1, 2, 3)])
def test_a_stack_of_copies_has_each_models_own_gradient(copies: int, inputs: tuple[int, ...]) -> None:
    """Two lanes of 6 rows, each shared by `copies` models; the second lane's batch has one row that only fills up."""
    model = a_model(inputs, l2=0.2)
    lanes = [finding_sites((6,), inputs, seed=seed)[0].train for seed in (0, 1)]
    x, y = torch.stack([lane.x for lane in lanes]), torch.stack([lane.y for lane in lanes])
    share = torch.tensor([[1 / 6] * 6, [1 / 5] * 5 + [0.0]], dtype=torch.float64)
    params = some_weights(model, 2 * copies)
    gradients, losses = model.stacked_gradient(params, x, y, share, {}, copies)
    assert losses.shape == (2 * copies,)
    for number in range(2 * copies):
        lane = number // copies
        own = {name: leaf[number] for name, leaf in params.items()}
        expected, loss = autograd_of(model, own, x[lane], y[lane], share[lane])
        assert float(losses[number]) == pytest.approx(loss, rel=1e-12)
        for name, leaf in expected.items():
            torch.testing.assert_close(gradients[name][number], leaf, rtol=0, atol=1e-13)
