"""How sure a trial's models are of each row, and images that are changed on purpose."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import entr, expit

from tests.small_federations import after, ragged_sites, trial
from wardround.algorithms import ALGORITHMS
from wardround.core import seeds
from wardround.data.site import Rows, Site
from wardround.evaluation.prediction import predict
from wardround.models import Shape
from wardround.models.mlp import mlp
from wardround.study.schema import Uncertainty
from wardround.tasks import class_task
from wardround.training.rounds import site_model
from wardround.training.trial import Trial
from wardround.uncertainty import row_uncertainty as module
from wardround.uncertainty.laplace import choose_prior, fit_laplace, laplace_passes
from wardround.uncertainty.passes import mc_dropout
from wardround.uncertainty.row_uncertainty import of_passes, row_uncertainty
from wardround.uncertainty.shifted_images import SHIFTS, chosen_images, shifted_rows


def with_sides(sites: tuple[Site, ...]) -> tuple[Site, ...]:
    """A third of a site's rows is for validation, a third for test."""
    split_sites = []
    for number, site in enumerate(sites):
        x, y, size = site.train.x, site.train.y, len(site.train) // 3
        sides = [Rows(x[begin : begin + size], y[begin : begin + size]) for begin in (0, size, 2 * size)]
        rows = 100 * number + np.arange(size)
        split_sites.append(replace(site, train=sides[0], validation=sides[1], test=sides[2]))
        split_sites[-1] = replace(split_sites[-1], validation_rows=rows, test_rows=rows + size)
    return tuple(split_sites)


def a_trial(algorithm: str = "fedavg", classes: int = 2, **options: Any) -> Trial:
    sites = with_sides(ragged_sites(classes, sizes=(30, 45, 24)))
    model = mlp(hidden=(6,), dropout=0.3)(Shape((3,), class_task(classes)))
    return trial(ALGORITHMS[algorithm](), sites, model, classes, rounds=3, **options)


def asked(method: Any, passes: int = 8) -> Uncertainty:
    return Uncertainty(method=method, passes=passes)


def test_without_passes_a_score_is_the_plain_one_and_nothing_is_epistemic() -> None:
    experiment = a_trial()
    run = after(experiment, 3)
    measurements = {(part.site, part.subset): part for part in row_uncertainty(experiment, run, asked("none"))}
    assert [side for _, side in measurements] == ["validation", "test"] * 3
    for side in ("validation", "test"):
        for plain in predict(experiment, run, side):
            measurement = measurements[plain.site, side]
            assert np.array_equal(measurement.rows, plain.rows)
            assert np.array_equal(measurement.label, plain.label)
            assert measurement.score == pytest.approx(plain.score, rel=1e-14)  # made of all sites' rows at once
            p = plain.score.astype(np.float64)
            assert measurement.total == pytest.approx((entr(p) + entr(1 - p)) / np.log(2))
            assert np.isnan([measurement.epistemic, measurement.aleatoric, measurement.spread]).all()


def test_dropout_has_the_same_passes_for_every_site_and_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = a_trial()
    run = after(experiment, 3)
    whole = row_uncertainty(experiment, run, asked("dropout"))
    params, buffers = site_model(experiment, run, 0)
    for part, site in zip(whole[1::2], experiment.scored, strict=True):
        rng = seeds.generator(experiment.batch_seed, "uncertainty", 0)
        p = expit(mc_dropout(experiment.model, params, buffers, site.test.x, 8, rng).numpy()[..., 0])
        assert part.score == pytest.approx(p.mean(axis=0))
        assert (part.epistemic > 0).all()
        assert part.total == pytest.approx(part.aleatoric + part.epistemic)
    monkeypatch.setattr(module, "CELLS", 9)  # three rows at a time
    for part, again in zip(whole, row_uncertainty(experiment, run, asked("dropout")), strict=True):
        for name in ("rows", "label", "score", "total", "aleatoric", "epistemic", "spread"):
            assert getattr(part, name) == pytest.approx(getattr(again, name), rel=1e-9)


def test_laplace_of_a_shared_model_is_a_sum_over_sites(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same as fitted on all training rows at one place, however they are cut into pieces."""
    experiment = a_trial()
    run = after(experiment, 3)
    monkeypatch.setattr(module, "CELLS", 12)
    measurements = row_uncertainty(experiment, run, asked("laplace"))
    params, buffers = site_model(experiment, run, 0)
    x, y = (torch.cat([getattr(site.train, name) for site in experiment.sites]) for name in ("x", "y"))
    fitted = fit_laplace(experiment.model, params, buffers, x, y)
    validation = [torch.cat([getattr(site.validation, name) for site in experiment.scored]) for name in ("x", "y")]
    fitted = choose_prior(fitted, experiment.model, params, buffers, validation[0], validation[1])
    for part, site in zip(measurements[1::2], experiment.scored, strict=True):
        rng = seeds.generator(experiment.batch_seed, "uncertainty", 0)
        passes = laplace_passes(fitted, experiment.model, params, buffers, site.test.x, 8, rng).numpy()[..., 0]
        assert part.score == pytest.approx(expit(passes).mean(axis=0), rel=1e-6)
        assert part.spread == pytest.approx(passes.std(axis=0), rel=1e-6)


def test_sites_with_models_of_their_own_are_measured_by_these() -> None:
    experiment = a_trial("local")
    run = after(experiment, 3)
    for part, plain in zip(
        row_uncertainty(experiment, run, asked("none"))[1::2], predict(experiment, run), strict=True
    ):
        assert np.array_equal(part.score, plain.score)
    for number, part in enumerate(row_uncertainty(experiment, run, asked("laplace"))[1::2]):
        site, (params, buffers) = experiment.sites[number], site_model(experiment, run, number)
        fitted = fit_laplace(experiment.model, params, buffers, site.train.x, site.train.y)
        fitted = choose_prior(fitted, experiment.model, params, buffers, site.validation.x, site.validation.y)
        rng = seeds.generator(experiment.batch_seed, "uncertainty", 0)
        passes = laplace_passes(fitted, experiment.model, params, buffers, site.test.x, 8, rng).numpy()[..., 0]
        assert part.spread == pytest.approx(passes.std(axis=0), rel=1e-6)


def test_classes_have_one_number_a_row_and_pooled_models_serve_all_sites() -> None:
    experiment = a_trial("pooled", classes=4)
    measurements = row_uncertainty(experiment, after(experiment, 2), asked("dropout"))
    for part in measurements:
        assert part.score.shape == (len(part.rows), 4)
        assert part.score.sum(axis=1) == pytest.approx(1)
        assert part.total.shape == part.spread.shape == (len(part.rows),)
        assert (part.total <= 2).all()  # bits, of four classes


def test_a_site_without_validation_rows_and_a_diverged_model_are_told_as_nothing() -> None:
    experiment = a_trial()
    bare = replace(experiment.scored[0], validation=Rows(torch.zeros(0, 3).double(), torch.zeros(0, dtype=torch.int64)))
    bare = replace(bare, validation_rows=np.array([], dtype=np.int64))
    experiment = replace(experiment, scored=(bare, *experiment.scored[1:]))
    run = after(experiment, 2)
    first = row_uncertainty(experiment, run, asked("laplace"))[0]
    assert (len(first.rows), first.score.shape, first.total.shape) == (0, (0,), (0,))
    lost_run = replace(
        run,
        server={
            part: {name: torch.full_like(leaf, torch.nan) for name, leaf in leaves.items()}
            for part, leaves in run.server.items()
        },
    )
    for method in ("none", "dropout", "laplace"):
        for part in row_uncertainty(experiment, lost_run, asked(method)):
            assert np.isnan(part.score).all()
            assert np.isnan(part.total).all()


def test_parts_of_two_members() -> None:
    """Members say 0.9 and 0.5: the mean is 0.7, whose entropy is 0.8813 bits; their own are 0.4690 and 1. Logits are
    2.1972 and 0, half of which is their SD."""
    mean, total, aleatoric, epistemic, spread = of_passes(class_task(2), np.array([[0.9], [0.5]]))
    assert mean == pytest.approx(0.7)
    assert total == pytest.approx(0.88129, abs=1e-5)
    assert aleatoric == pytest.approx((0.46900 + 1) / 2, abs=1e-5)
    assert epistemic == pytest.approx(0.88129 - 0.73450, abs=1e-5)
    assert spread == pytest.approx(np.log(9) / 2)


def images(count: int, name: str = "site", levels: bool = True) -> Site:
    rng = np.random.default_rng(count)
    x = torch.from_numpy(rng.integers(0, 256, (count, 1, 4, 4), dtype=np.uint8))
    scale = torch.tensor([0.5, 0.25]).repeat(count, 1) if levels else None
    nothing = Rows(x[:0], torch.zeros(0, dtype=torch.int64))
    index = torch.arange(count - 1, -1, -1)  # rows may be shared with other sites, in any order
    test = Rows(x, torch.zeros(count, dtype=torch.int64), index, scale)
    return Site(name, nothing, nothing, test, np.array([]), np.arange(count))


def test_changed_images_are_inverted_upside_down_or_noise() -> None:
    site, chosen = images(6), np.array([1, 4])
    plain = site.test.take(torch.from_numpy(chosen), torch.float32)[0]
    everything = torch.arange(2)
    inverted, noise, turned = (
        shifted_rows(site, chosen, shift, 0, each_image=False).take(everything, torch.float32)[0]
        for shift in ("inverted", "noise", "upside down")
    )
    # (p - 0.5) / 0.25 of 1 - p is the same with the other sign
    assert torch.allclose(inverted, -plain, atol=1e-6)
    assert torch.equal(turned, plain.flip(2))
    assert not torch.allclose(noise, plain)
    again = shifted_rows(site, chosen, "noise", 0, each_image=False).take(everything, torch.float32)[0]
    assert torch.equal(noise, again)


def test_changed_images_are_scaled_by_what_they_have_become_where_each_is_scaled_by_itself() -> None:
    site, chosen = images(6), np.arange(6)
    for shift in SHIFTS:
        x = shifted_rows(site, chosen, shift, 0, each_image=True).take(torch.arange(6), torch.float32)[0]
        assert torch.allclose(x.mean((1, 2, 3)), torch.zeros(6), atol=1e-5)
        assert torch.allclose(x.std((1, 2, 3), unbiased=False), torch.ones(6), atol=1e-4)


def test_at_most_500_images_are_changed_and_sites_have_their_shares() -> None:
    choices = chosen_images([images(900, "a"), images(100, "b")], 0)
    assert {site: len(places) for site, places in choices.items()} == {"a": 450, "b": 50}
    assert len(np.unique(choices["a"])) == 450
    assert {site: len(site_choices) for site, site_choices in chosen_images([images(20, "a")], 0).items()} == {"a": 20}
    assert chosen_images(with_sides(ragged_sites()), 0) == {}  # a table
