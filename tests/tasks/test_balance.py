"""Weights and odds that make rare classes and findings count more, worked out by hand."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from tests.small_federations import site, trial
from wardround.algorithms.fedavg import fedavg
from wardround.engines.serial import order_of
from wardround.models import Shape
from wardround.models.logistic import logistic
from wardround.tasks import class_task, findings_task, row_odds
from wardround.tasks.task import HEAVIEST
from wardround.training.local import batches, orders


def test_a_finding_counts_as_often_as_it_is_outnumbered() -> None:
    """Presence then weighs what absence does: weight x present = absent. Unknown labels are neither."""
    labels = torch.tensor([[1, 1, 0], [0, 1, -1], [0, 1, -1], [0, -1, 1], [0, 0, 1]])
    assert findings_task(3).class_weights(labels).tolist() == [4.0, pytest.approx(1 / 3), 0.5]


@pytest.mark.parametrize("value", [0, 1, -1])
def test_a_finding_that_all_rows_have_or_none_or_of_which_nothing_is_known_counts_once(value: int) -> None:
    labels = torch.full((6, 2), value)
    labels[:, 1] = torch.tensor([1, 0, 0, 0, 0, 0])
    assert findings_task(2).class_weights(labels).tolist() == [1.0, 5.0]


def test_no_finding_is_heavier_than_the_heaviest() -> None:
    labels = torch.zeros(1001, 2, dtype=torch.int64)
    labels[0, 0] = 1
    labels[:10, 1] = 1
    assert findings_task(2).class_weights(labels).tolist() == [HEAVIEST, pytest.approx(99.1)]


def test_all_classes_that_are_there_weigh_alike_and_the_mean_weight_is_one() -> None:
    """len / (classes that are there x rows of the class): 12 / (3 x 6), 12 / (3 x 4), 12 / (3 x 2); one has no row."""
    labels = torch.tensor([0] * 6 + [1] * 4 + [3] * 2)
    weights = class_task(4).class_weights(labels)
    assert weights.tolist() == [pytest.approx(2 / 3), 1.0, 1.0, 2.0]
    assert float(weights[labels].mean()) == pytest.approx(1)
    assert class_task(2).class_weights(torch.zeros(5, dtype=torch.int64)).tolist() == [1.0, 1.0]


def test_no_class_is_heavier_than_the_heaviest() -> None:
    labels = torch.zeros(1000, dtype=torch.int64)
    labels[0] = 1
    assert class_task(2).class_weights(labels).tolist() == [pytest.approx(1000 / 1998), HEAVIEST]


def test_balanced_weights_make_the_gradient_that_of_rows_repeated() -> None:
    """Four rows, one of them of class 1: its weight is three times the others', as if it stood there three times."""
    x, y = (
        torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)),
        torch.tensor([0, 1, 0, 0]),
    )
    model = logistic()(Shape((3,), class_task(2)))
    params = {"weight": torch.full((1, 3), 0.2, dtype=torch.float64), "bias": torch.zeros(1, dtype=torch.float64)}
    weights = class_task(2).class_weights(y).double()
    weighted, loss, _ = model.gradient(params, {}, x, y, {}, weights)
    repeated = torch.tensor([0, 1, 1, 1, 2, 3])
    plain, plain_loss, _ = model.gradient(params, {}, x[repeated], y[repeated], {})
    for name, leaf in weighted.items():
        torch.testing.assert_close(leaf, plain[name], rtol=1e-6, atol=1e-9)  # weights are single-precision numbers
    assert float(loss) == pytest.approx(float(plain_loss), rel=1e-6)


CLASSES = torch.tensor([0] * 60 + [1] * 30 + [2] * 10)
# of 10 rows 2 have a mass, 4 have air (one of them both), 5 have neither; a row with both counts as its rarest, mass
FINDINGS = torch.tensor([[1, 0], [1, 1], [0, 1], [0, 1], [-1, 1], [0, 0], [0, 0], [-1, -1], [0, 0], [0, -1]])


@pytest.mark.parametrize("strength", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(("labels", "findings"), [(CLASSES, False), (FINDINGS, True)])
def test_odds_sum_to_one(labels: torch.Tensor, findings: bool, strength: float) -> None:
    odds = row_odds(findings_task(2) if findings else class_task(3), labels, strength)
    assert odds.shape == (len(labels),)
    assert odds.dtype == np.float64
    assert odds.sum() == pytest.approx(1, abs=1e-12)
    assert (odds > 0).all()


def test_without_strength_all_rows_are_alike() -> None:
    assert row_odds(class_task(3), CLASSES, 0.0) == pytest.approx(np.full(100, 0.01), abs=1e-15)
    assert row_odds(findings_task(2), FINDINGS, 0.0) == pytest.approx(np.full(10, 0.1), abs=1e-15)


def test_with_full_strength_every_class_is_drawn_as_often_as_any_other() -> None:
    odds = row_odds(class_task(3), CLASSES, 1.0)
    for label in range(3):
        assert odds[CLASSES.numpy() == label].sum() == pytest.approx(1 / 3, abs=1e-7)


def test_half_the_strength_is_the_square_root() -> None:
    odds = row_odds(class_task(3), CLASSES, 0.5)
    wanted = np.array([0.6, 0.3, 0.1])[CLASSES.numpy()] ** -0.5
    assert odds == pytest.approx(wanted / wanted.sum(), rel=1e-6)


def test_a_row_is_drawn_by_the_rarest_of_its_findings() -> None:
    """Shares: mass 2/10, air 4/10, neither 5/10. Odds are their inverses: 5, 2.5 and 2, which sum to
    2 x 5 + 3 x 2.5 + 5 x 2 = 27.5.
    """
    expected = [5, 5, 2.5, 2.5, 2.5, 2, 2, 2, 2, 2]
    assert row_odds(findings_task(2), FINDINGS, 1.0) == pytest.approx(np.array(expected) / 27.5, rel=1e-6)


def test_rows_that_all_have_a_finding_have_odds_too() -> None:
    labels = torch.tensor([[1, 0], [1, 0], [1, 1]])
    assert row_odds(findings_task(2), labels, 1.0) == pytest.approx(np.array([1, 1, 3]) / 5, rel=1e-6)


@pytest.mark.parametrize(("strength", "share"), [(1.0, Fraction(1, 2)), (0.0, Fraction(1, 10))])
def test_oversampled_orders_hold_rare_rows_as_often_as_derived(strength: float, share: Fraction) -> None:
    """A tenth of 200 rows is of class 1. 40 epochs are 8,000 draws: the count's SD is at most sqrt(8000) / 2."""
    rows = 200
    y = (torch.arange(rows) < rows // 10).long()
    arm = trial(fedavg(), [site("a", torch.zeros(rows, 2, dtype=torch.float64), y)], batch_size=16, oversample=strength)
    steps = order_of(arm, arm.sites[0], 3, 40)
    assert len(steps) == 40 * 13  # as many steps as without: an epoch is as many rows as there are
    assert sum(map(len, steps)) == 40 * rows
    rare = int(y[torch.cat(steps)].sum())
    assert rare == pytest.approx(float(share) * 8000, abs=4 * np.sqrt(8000) / 2 if strength else 0)


def test_findings_are_oversampled_too() -> None:
    model = logistic()(Shape((2,), findings_task(2)))
    arm = trial(fedavg(), [site("a", torch.zeros(10, 2, dtype=torch.float64), FINDINGS)], model, oversample=1.0)
    drawn = torch.cat(order_of(arm, arm.sites[0], 0, 500)).numpy()
    expected = np.array([5, 5, 2.5, 2.5, 2.5, 2, 2, 2, 2, 2]) / 27.5 * 5000
    counts = np.bincount(drawn, minlength=10)
    assert (abs(counts - expected) < 4.5 * np.sqrt(expected)).all(), counts


def test_without_oversampling_every_epoch_has_every_row_once() -> None:
    order = orders(7, 3, np.random.default_rng(0))
    assert np.sort(order, axis=1).tolist() == [list(range(7))] * 3


def test_fewer_epochs_are_the_first_of_the_same_orders() -> None:
    odds = row_odds(class_task(3), CLASSES, 1.0)
    for given in (None, odds):
        few, many = (orders(100, epochs, np.random.default_rng(5), given) for epochs in (2, 6))
        np.testing.assert_array_equal(few, many[:2])
        steps = batches(100, 2, 32, np.random.default_rng(5), given)
        assert [len(step) for step in steps] == [32, 32, 32, 4] * 2
        assert torch.cat(steps).tolist() == few.flatten().tolist()


def test_the_order_is_drawn_from_the_sites_own_rows_and_repeats() -> None:
    rows = 60
    sites = [
        site(name, torch.zeros(rows, 2, dtype=torch.float64), (torch.arange(rows) < rare).long())
        for name, rare in (("few", 6), ("many", 30))
    ]
    arm = trial(fedavg(), sites, oversample=1.0)
    first, again = ([step.tolist() for step in order_of(arm, sites[0], 1, 2)] for _ in range(2))
    assert first == again
    other = replace(arm, batch_seed=arm.batch_seed + 1)
    assert first != [step.tolist() for step in order_of(other, sites[0], 1, 2)]
    shares = [
        float(hospital.train.labels[torch.cat(order_of(arm, hospital, 1, 100))].double().mean()) for hospital in sites
    ]
    assert shares == pytest.approx([0.5, 0.5], abs=4 * 0.5 / np.sqrt(6000))
