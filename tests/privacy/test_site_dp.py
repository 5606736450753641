"""Privacy for whole hospitals: clipped updates of equal weight, noise on their sum, sampling by chance."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.privacy.reference_gradients import length_of, looks_standard_normal
from tests.small_federations import assert_same_tree, ragged_sites, trial
from wardround.algorithms import ALGORITHMS, Algorithm
from wardround.algorithms.fedavg import fedavg
from wardround.algorithms.scaffold import scaffold
from wardround.core import tree
from wardround.engines import serial
from wardround.models import MODELS, Shape
from wardround.privacy.dp.accountant import Charge, epsilon
from wardround.privacy.dp.noise import Stream
from wardround.privacy.dp.protection import site_noise
from wardround.study.schema import Privacy, SitePrivacy, Stragglers
from wardround.tasks import class_task
from wardround.training.intake import Intake
from wardround.training.local import Outcome
from wardround.training.rounds import close, rounds, start
from wardround.training.schedule import roster
from wardround.training.trial import Assignment, Run, Trial, assign

DELTA = 1e-3


class Silent:
    def uniform(self, count: int) -> np.ndarray:
        return np.full(count, 0.5)

    def normal(self, count: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(count, dtype=dtype)


def site_trial(algorithm: Algorithm | None = None, clip: float = 0.1, **training: Any) -> Trial:
    experiment = trial(fedavg() if algorithm is None else algorithm, **training)
    return replace(experiment, privacy=Privacy(site=SitePrivacy(3.0, DELTA, clip)))


def taken(experiment: Trial, run: Run | None = None) -> tuple[Run, list[Assignment], Intake, list[Outcome]]:
    run = start(experiment) if run is None else run
    assignments = assign(experiment, run.round)
    pairs = list(serial.train_sites(experiment, run, assignments))
    intake = Intake(experiment, run, assignments)
    intake.take(pairs)
    return run, assignments, intake, [outcome for _, outcome in pairs]


def moved(experiment: Trial, run: Run, intake: Intake, noise: Stream | None) -> dict[str, Tensor]:
    return tree.sub(intake.aggregate(run.server, noise)["params"], run.server["params"])


def test_every_update_is_clipped_and_weighs_the_same() -> None:
    """Sites have 5 to 23 rows; without noise the model moves by the plain sum of their clipped changes over six."""
    clip = 0.05
    experiment = site_trial(clip=clip)
    run, _, intake, outcomes = taken(experiment)
    plain = [
        outcome for _, outcome in serial.train_sites(replace(experiment, privacy=Privacy()), run, assign(experiment, 0))
    ]
    assert any(length_of(plain_outcome.update["params"]) > clip for plain_outcome in plain)
    expected = tree.zeros_like(run.server["params"])
    for plain_outcome in plain:
        factor = min(1.0, clip / length_of(plain_outcome.update["params"]))
        expected = tree.add(expected, tree.scale(plain_outcome.update["params"], factor / 6))
    assert_same_tree(moved(experiment, run, intake, Silent()), expected, atol=1e-6)
    assert all(length_of(outcome.update["params"]) <= clip for outcome in outcomes)


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_one_site_moves_the_sum_by_no_more_than_the_clip(name: str) -> None:
    experiment = site_trial(ALGORITHMS[name](), clip=0.05)
    _, _, _, outcomes = taken(experiment)
    for outcome in outcomes:
        parts = {f"{part}/{leaf}": value for part, leaves in outcome.update.items() for leaf, value in leaves.items()}
        assert length_of(parts) <= 0.05


def wide_trial(algorithm: Algorithm, **training: Any) -> Trial:
    """3 x 1501 numbers, so that a standard deviation can be read off one round."""
    sites = ragged_sites(classes=3, inputs=(1500,))
    model = MODELS["logistic"]()(Shape((1500,), class_task(3)))
    experiment = trial(algorithm, sites, model, classes=3, **training)
    return replace(experiment, privacy=Privacy(site=SitePrivacy(3.0, DELTA, 0.2)))


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_noise_on_the_sum_is_what_is_charged_over_the_number_that_is_expected(share: float) -> None:
    experiment = wide_trial(fedavg(), share=share)
    run, _, intake, _ = taken(experiment)
    noise = tree.sub(moved(experiment, run, intake, None), moved(experiment, run, intake, Silent()))
    assert experiment.privacy.site is not None
    multiplier = site_noise(experiment.privacy.site, share, experiment.training.rounds)
    spread = 0.2 * multiplier / (share * 6)
    assert looks_standard_normal(torch.cat([leaf.flatten() for leaf in noise.values()]).numpy() / spread)
    assert epsilon([Charge(share, multiplier, experiment.training.rounds)], DELTA) <= 3.0
    assert epsilon([Charge(share, multiplier * 0.98, experiment.training.rounds)], DELTA) > 3.0


def test_controls_have_noise_as_the_weights_have() -> None:
    """SCAFFOLD's server adds share x mean of the controls' changes, here without any share: six of six."""
    experiment = wide_trial(scaffold())
    run, _, intake, _ = taken(experiment)
    loud, silent = intake.aggregate(run.server), intake.aggregate(run.server, Silent())
    assert experiment.privacy.site is not None
    spread = 0.2 * site_noise(experiment.privacy.site, 1.0, experiment.training.rounds) / 6
    for part in ("params", "control"):
        noise = tree.sub(loud[part], silent[part])
        assert looks_standard_normal(torch.cat([leaf.flatten() for leaf in noise.values()]).numpy() / spread)
    both = [torch.cat([(loud[p][n] - silent[p][n]).flatten() for n in loud[p]]) for p in ("params", "control")]
    assert abs(float(torch.corrcoef(torch.stack(both))[0, 1])) < 4.5 / math.sqrt(len(both[0]))


def test_a_round_to_which_nobody_comes_has_noise_as_well() -> None:
    experiment = wide_trial(fedavg(), share=0.1, rounds=20)
    empty = next(number for number in range(20) if not experiment.roster(number).numbers)
    run = replace(start(experiment), round=empty)
    _, assignments, intake, outcomes = taken(experiment, run)
    assert not outcomes
    after, record = close(run, experiment, assignments, intake)
    change = tree.sub(after.server["params"], run.server["params"])
    assert experiment.privacy.site is not None
    spread = 0.2 * site_noise(experiment.privacy.site, 0.1, 20) / 0.6
    assert looks_standard_normal(torch.cat([leaf.flatten() for leaf in change.values()]).numpy() / spread)
    assert record.site_charge is not None


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "scaffold", "fedadam", "fedyogi", "fedadagrad"])
def test_a_round_to_which_nobody_comes_is_one_that_every_algorithm_takes(name: str) -> None:
    experiment = site_trial(ALGORITHMS[name](), share=0.1, rounds=20)
    empty = next(number for number in range(20) if not experiment.roster(number).numbers)
    run = replace(start(experiment), round=empty)
    _, assignments, intake, _ = taken(experiment, run)
    after, _ = close(run, experiment, assignments, intake)
    assert {part: leaves.keys() for part, leaves in after.server.items()} == {
        part: leaves.keys() for part, leaves in run.server.items()
    }
    assert not torch.equal(after.server["params"]["weight"], run.server["params"]["weight"])


def test_sites_are_drawn_by_themselves() -> None:
    training = replace(trial(fedavg()).training, share=0.3)
    count, sites = 3000, 8
    drawn = np.zeros((count, sites), dtype=bool)
    for number in range(count):
        drawn[number, list(roster(training, sites, 5, number, by_chance=True).numbers)] = True
    assert (np.abs(drawn.mean(axis=0) - 0.3) < 4.5 * math.sqrt(0.21 / count)).all()
    assert drawn.sum(axis=1).var(ddof=1) / (sites * 0.21) == pytest.approx(1, abs=0.12)
    assert {len(roster(training, sites, 5, number).numbers) for number in range(50)} == {
        2
    }  # without it: always so many


def test_what_is_told_of_a_round_is_what_was_paid_for() -> None:
    """Losses, lengths and how far sites are apart are the sites' own, and have no noise."""
    experiment = site_trial(share=0.5, rounds=4)
    records = [record for _, record in rounds(start(experiment), experiment, serial.train_sites)]
    assert len(records) == 4
    for record in records:
        assert record.loss is None
        assert record.update_norm is None
        assert record.divergence is None
        assert record.site_charge is not None
        assert record.charges == {}
    assert experiment.privacy.site is not None
    assert {record.site_charge for record in records} == {(0.5, site_noise(experiment.privacy.site, 0.5, 4), 1)}
    charges = [Charge(*record.site_charge) for record in records if record.site_charge is not None]
    assert 0.97 * 3 < epsilon(charges, DELTA) <= 3


def test_without_privacy_for_sites_the_roster_is_the_old_one() -> None:
    plain = trial(fedavg(), share=0.5, stragglers=Stragglers(0.5, "keep"))
    sizes: Sequence[int] = [len(plain.roster(number).numbers) for number in range(20)]
    assert set(sizes) == {3}
