"""Noise that changes over the rounds costs what is charged for it; without a clip no noise is worth anything."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.privacy.opacus_accountant import opacus_epsilon
from tests.privacy.reference_gradients import batch_for, params_of
from tests.privacy.test_protection import private_trial
from wardround.core.errors import StudyError
from wardround.engines.serial import work
from wardround.models import MODELS, Shape
from wardround.privacy.dp.accountant import Charge, epsilon, scheduled_noise_for
from wardround.privacy.dp.example_dp import PrivateGradient, Rule
from wardround.privacy.dp.noise import SeededStream
from wardround.privacy.dp.protection import LEVELS, Sampling, charges_within, multiples, noise_by_round
from wardround.study.schema import ExamplePrivacy, NoiseSchedule
from wardround.tasks import class_task
from wardround.training.rounds import start
from wardround.training.trial import assign

DELTA = 1e-5
FALLING, RISING = NoiseSchedule(0.5), NoiseSchedule(3.0, "exponential")
STEP = NoiseSchedule(0.25, "step", 0.75)


def test_the_shapes() -> None:
    assert multiples(None, 3) == (1, 1, 1)
    assert multiples(FALLING, 5) == (1, 0.875, 0.75, 0.625, 0.5)
    assert multiples(NoiseSchedule(4.0, "exponential"), 3) == (1, 2, 4)
    assert multiples(STEP, 8) == (1,) * 6 + (0.25,) * 2
    assert multiples(NoiseSchedule(2.0, "step"), 3) == (1, 1, 2)
    assert multiples(FALLING, 1) == (1,)


@pytest.mark.parametrize("schedule", [FALLING, RISING])
def test_many_rounds_share_a_few_levels(schedule: NoiseSchedule) -> None:
    levels = multiples(schedule, 500)
    assert len(set(levels)) == LEVELS
    assert (levels[0], levels[-1]) == (1, schedule.last)
    assert list(levels) == sorted(levels, reverse=schedule.last < 1)
    counts = [levels.count(level) for level in set(levels)]
    assert max(counts) - min(counts) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("schedule", [FALLING, RISING])
def test_the_price_is_that_of_two_other_accountants(schedule: NoiseSchedule) -> None:
    """Opacus composes by its own discretisation; Google's accountant is given the events one by one."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.pld import PLDAccountant

    sampling, epochs = Sampling(0.2, 5), (4,) * 3
    charges = charges_within(ExamplePrivacy(3.0, DELTA, 1.0, noise_schedule=schedule), sampling, epochs)
    assert len({charge.noise for charge in charges}) > 1
    spent = epsilon(charges, DELTA)
    other = PLDAccountant(value_discretization_interval=1e-3)
    for charge in charges:
        other.compose(PoissonSampledDpEvent(charge.rate, GaussianDpEvent(charge.noise)), charge.steps)
    assert spent == pytest.approx(other.get_epsilon(DELTA), rel=2e-3)
    assert spent == pytest.approx(opacus_epsilon(charges, DELTA), rel=1e-2)
    assert 0.99 * 3 < spent <= 3


def test_noise_on_all_rows_has_a_price_in_closed_form() -> None:
    """Inverse variances add up: 4 rounds of 1 and 4 rounds of 1/2 are as one round of noise / sqrt(4 + 16)."""
    noise = scheduled_noise_for(1.0, ((1.0, 4), (0.5, 4)), 2.0, DELTA)
    spent = epsilon([Charge(1.0, noise / math.sqrt(20), 1)], DELTA)
    assert epsilon([Charge(1.0, noise, 4), Charge(1.0, noise / 2, 4)], DELTA) == pytest.approx(spent, rel=1e-6)
    assert 1.99 < spent <= 2


def test_what_is_drawn_is_what_is_charged_in_every_round() -> None:
    private = private_trial(ExamplePrivacy(2.0, DELTA, 1.0, noise_schedule=FALLING), rounds=3, batch_size=4)
    for number in range(2):
        charges = []
        for round_number in range(3):
            for assignment in assign(private, round_number):
                if assignment.number == number:
                    charge, rule = (
                        private.charge(number, assignment.epochs, round_number),
                        private.rule(number, round_number),
                    )
                    assert charge is not None
                    assert rule is not None
                    assert rule.noise == charge.noise
                    charges.append(charge)
        assert len({charge.noise for charge in charges}) == 3
        assert 0.97 * 2 < epsilon(charges, DELTA) <= 2


def test_a_round_is_trained_with_the_noise_of_that_round(monkeypatch: pytest.MonkeyPatch) -> None:
    private = private_trial(ExamplePrivacy(2.0, DELTA, 1.0, noise_schedule=FALLING), rounds=4, batch_size=4)
    seen = []

    class Watched(PrivateGradient):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            seen.append(self.rule.noise)

    monkeypatch.setattr("wardround.engines.serial.PrivateGradient", Watched)
    run = start(private)
    site = private.sites[0]
    shared = private.algorithm.broadcast(run.server, 0)
    for number in range(4):
        work(private, site, number, [torch.tensor([0])], shared, run.memories[site.name])
    assert tuple(seen) == noise_by_round(private.privacy.example, private.sampling(0), private.epochs(0))
    assert seen == sorted(seen, reverse=True)


@pytest.mark.parametrize("schedule", [FALLING, RISING])
def test_with_a_given_noise_a_site_stops_before_epsilon_is_exceeded(schedule: NoiseSchedule) -> None:
    example = ExamplePrivacy(4.0, DELTA, 1.0, noise=2.0, noise_schedule=schedule)
    sampling, epochs = Sampling(0.2, 5), (1,) * 60
    noise, stop = noise_by_round(example, sampling, epochs), len(charges_within(example, sampling, epochs))
    assert noise[0] == 2
    assert 0 < stop < 60
    charges = [Charge(0.2, level, 5) for level in noise]
    assert epsilon(charges[:stop], DELTA) <= 4 < epsilon(charges[: stop + 1], DELTA)
    constant = len(charges_within(replace(example, noise_schedule=None), sampling, epochs))
    assert stop < constant if schedule is FALLING else stop > constant


# without a clip


def test_without_a_clip_nothing_is_cut_and_nothing_is_promised() -> None:
    example = ExamplePrivacy(2.0, DELTA, "none")
    private = private_trial(example, rounds=3, batch_size=4)
    rule, charge = private.rule(0), private.charge(0, 1, 0)
    assert rule is not None
    assert charge is not None
    assert rule.clip == example.promised == math.inf
    assert rule.noise == charge.noise == 0
    assert epsilon([charge], DELTA) == math.inf
    assert private.stops(0) == 3  # there is nothing to keep to
    shape = Shape((6,), class_task(2))
    model = MODELS["logistic"]()(shape)
    params, batch = params_of(model), batch_for(model, shape, list(range(9)), seed=2, size=1e3)
    released = PrivateGradient(model, Rule(1.0, 0.0, math.inf, 9), SeededStream(0, "noise", 0, ""))
    gradient = released(params, {}, batch.x, batch.y, {}, batch.people)[0]
    plain = model.gradient(params, {}, batch.x, batch.y, {})[0]
    for name, leaf in plain.items():
        torch.testing.assert_close(gradient[name], leaf)


def test_noise_without_a_clip_is_drawn_and_does_not_count() -> None:
    private = private_trial(ExamplePrivacy(2.0, DELTA, "none", noise=0.3), rounds=3, batch_size=4)
    rule, charge = private.rule(0), private.charge(0, 1, 0)
    assert rule is not None
    assert charge is not None
    assert rule.spread(rule.clip) == 0.3
    assert charge.noise == 0
    assert private.stops(0) == 3


def test_a_wrong_multiple_is_refused() -> None:
    with pytest.raises(StudyError, match="noise multiplier is -1"):
        scheduled_noise_for(0.1, ((-1.0, 3),), 1.0, DELTA)
