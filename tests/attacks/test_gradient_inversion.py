"""Rows from gradients: exactly from an unprotected step, not at all from a protected one."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.attacks.studies import heart
from tests.small_federations import site
from tests.small_federations import trial as small_trial
from wardround.algorithms.fedavg import fedavg
from wardround.algorithms.fedprox import fedprox
from wardround.algorithms.scaffold import scaffold
from wardround.attacks.inversion import (
    Effort,
    by_matching,
    from_first_layer,
    label_of,
    likeness_of,
    observe_step,
    psnr,
    reconstruct,
    ssim,
)
from wardround.models import Model, Shape
from wardround.models.cnn import cnn
from wardround.models.logistic import logistic
from wardround.models.mlp import mlp
from wardround.privacy.dp.example_dp import Rule
from wardround.privacy.dp.protection import seeded_streams
from wardround.runs.catalog import load_study
from wardround.runs.plan import load_plan
from wardround.tasks import class_task, findings_task
from wardround.training.rounds import start
from wardround.training.trial import Trial

STREAMS = seeded_streams(1, 0, "attack")
NO_SEARCH = Effort(steps=0)


def heart_trial(**changes: Any) -> Trial:
    plan = load_plan(*load_study(heart(**changes)))
    return plan.trial(plan.study.arm("private"), 1)


def rebuilt(trial: Trial, row: int, rule: Rule | None, effort: Effort = NO_SEARCH) -> torch.Tensor:
    observation = observe_step(trial, start(trial), 0, row, rule, STREAMS)
    shape = tuple(trial.sites[0].train.x.shape[1:])
    return reconstruct(trial.model, observation, shape, torch.Generator().manual_seed(1), effort)


@pytest.mark.parametrize("model", [{"kind": "logistic", "l2": 0.01}, {"kind": "mlp", "hidden": [16]}])
def test_a_patient_s_row_comes_back_from_an_unprotected_step_and_not_from_a_protected_one(
    model: dict[str, Any],
) -> None:
    trial = heart_trial(model=model)
    rule, x = trial.rule(0), trial.sites[0].train.x
    assert rule is not None
    for row in (0, 17, 40):
        torch.testing.assert_close(rebuilt(trial, row, None), x[row], atol=1e-4, rtol=0)
        others = torch.cat([x[:row], x[row + 1 :]])[:99]
        assert likeness_of(rebuilt(trial, row, None), x[row], others).success
        assert not likeness_of(rebuilt(trial, row, rule), x[row], others).success


@pytest.mark.parametrize("algorithm", [fedavg(), fedprox(mu=0.5), scaffold()])
def test_no_algorithm_hides_a_row_by_itself(algorithm: Any) -> None:
    trial = small_trial(algorithm, model=mlp(hidden=(8,))(Shape((3,), class_task(2))))
    torch.testing.assert_close(rebuilt(trial, 2, None), trial.sites[0].train.x[2], atol=1e-6, rtol=0)


def test_a_penalty_a_decay_and_dropout_are_no_protection() -> None:
    """Both depend on weights that the attacker has; that dropout is left out is said of the attack."""
    trial = small_trial(
        fedavg(), model=mlp(hidden=(8,), dropout=0.5)(Shape((3,), class_task(2))), weight_decay=0.1, momentum=0.9
    )
    torch.testing.assert_close(rebuilt(trial, 1, None), trial.sites[0].train.x[1], atol=1e-6, rtol=0)


def test_a_first_layer_that_is_not_linear_has_no_quotient() -> None:
    params, _ = cnn(channels=(2, 2), hidden=4)(Shape((1, 8, 8), class_task(2))).init(0)
    assert from_first_layer(params, (1, 8, 8)) is None
    private = small_trial(fedavg(), model=logistic(intercept="private")(Shape((3,), class_task(2))))
    observation = observe_step(private, start(private), 0, 0, None, STREAMS)
    assert from_first_layer(observation.gradient, (3,)) is None
    searched = by_matching(private.model, observation, (3,), torch.Generator().manual_seed(1), Effort(steps=3))
    assert searched.isfinite().all()


@pytest.mark.parametrize("label", range(4))
def test_the_label_is_read_off_the_last_layer(label: int) -> None:
    model = mlp(hidden=(5,))(Shape((3,), class_task(4)))
    params, _ = model.init(3)
    gradient, _, _ = model.gradient(params, {}, torch.randn(1, 3), torch.tensor([label]), {})
    assert int(label_of(model, gradient)) == label


def test_a_binary_label_and_findings_are_read_off_too() -> None:
    for y in (0, 1):
        model = logistic()(Shape((3,), class_task(2)))
        gradient, _, _ = model.gradient(model.init(0)[0], {}, torch.ones(1, 3), torch.tensor([y]), {})
        assert int(label_of(model, gradient)) == y
    findings = torch.tensor([[1, 0, -1, 1]])  # the third is not known of this row
    model = mlp(hidden=(5,))(Shape((3,), findings_task(4)))
    gradient, _, _ = model.gradient(model.init(0)[0], {}, torch.ones(1, 3), findings, {})
    assert label_of(model, gradient).tolist() == findings[0].tolist()


def image_trial() -> tuple[Trial, torch.Tensor]:
    """Sixty images of 12 x 12 with some bright blots each, no two alike."""
    coarse = torch.tensor(np.random.default_rng(5).random((60, 1, 4, 4)))
    x = torch.nn.functional.interpolate(coarse, size=(12, 12), mode="bilinear")
    model: Model = cnn(channels=(8, 16), hidden=32, kernel=3)(Shape((1, 12, 12), class_task(3)))
    return small_trial(fedavg(), [site("one", x, torch.arange(60) % 3)], model, classes=3), x


@pytest.mark.slow
def test_an_image_comes_back_from_a_convolutional_network_and_not_through_noise() -> None:
    trial, x = image_trial()
    effort, others = Effort(steps=600), x[1:]
    plain = likeness_of(rebuilt(trial, 0, None, effort), x[0], others)
    assert plain.success
    assert plain.psnr is not None
    assert plain.guess_psnr is not None
    assert plain.psnr > plain.guess_psnr + 10
    assert plain.ssim is not None
    assert plain.ssim > 0.9
    # epsilon 8 for 60 patients in batches of 15: a noise of about one clip
    assert not likeness_of(rebuilt(trial, 0, Rule(0.25, 1.0, 1.0, 60), effort), x[0], others).success


def test_the_search_is_repeatable() -> None:
    trial, x = image_trial()
    observation = observe_step(trial, start(trial), 0, 0, None, STREAMS)
    first, again = (
        by_matching(trial.model, observation, x.shape[1:], torch.Generator().manual_seed(3), Effort(steps=5))
        for _ in range(2)
    )
    assert torch.equal(first, again)


def test_likeness_is_measured_against_what_could_be_guessed() -> None:
    true = torch.tensor([1.0, 0.0])
    others = torch.tensor([[0.0, 0.0], [0.0, 2.0]])
    same = likeness_of(true.clone(), true, others)
    assert (same.error, same.rank, same.candidates, same.success) == (0.0, 1, 3, True)
    assert same.guess_error == pytest.approx(1.0)  # the mean is (0, 1): (1 + 1) / 2
    assert same.nearest_error == pytest.approx(0.5)
    near_another = likeness_of(torch.tensor([0.1, 0.0]), true, others)
    assert near_another.rank == 2
    assert not near_another.success
    # nearest to the true row, but no nearer than another patient's row is: nothing was learnt
    distant = likeness_of(torch.tensor([3.0, 0.0]), true, others)
    assert distant.rank == 1
    assert not distant.success
    assert not likeness_of(torch.tensor([float("nan"), 0.0]), true, others).success


def test_psnr_and_ssim() -> None:
    image = torch.linspace(0, 1, 64).reshape(1, 8, 8)
    assert psnr(image + 0.1, image) == pytest.approx(20.0, abs=1e-4)  # 10 log10(1 / 0.01)
    assert ssim(image, image) == pytest.approx(1.0)
    assert ssim(1 - image, image) < 0
