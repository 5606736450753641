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
from wardround.uncertainty.row_uncertainty import of_probabilities, row_uncertainty
from wardround.uncertainty.shifted_images import SHIFTS, chosen_images, shifted_rows


def with_sides(sites: tuple[Site, ...]) -> tuple[Site, ...]:
    """A third of a site's rows is for validation, a third for test."""
    made = []
    for number, site in enumerate(sites):
        x, y, size = site.train.x, site.train.y, len(site.train) // 3
        sides = [Rows(x[begin : begin + size], y[begin : begin + size]) for begin in (0, size, 2 * size)]
        rows = 100 * number + np.arange(size)
        made.append(replace(site, train=sides[0], validation=sides[1], test=sides[2]))
        made[-1] = replace(made[-1], validation_rows=rows, test_rows=rows + size)
    return tuple(made)


def a_trial(algorithm: str = "fedavg", classes: int = 2, **options: Any) -> Trial:
    sites = with_sides(ragged_sites(classes, sizes=(30, 45, 24)))
    model = mlp(hidden=(6,), dropout=0.3)(Shape((3,), class_task(classes)))
    return trial(ALGORITHMS[algorithm](), sites, model, classes, rounds=3, **options)


def asked(method: Any, passes: int = 8) -> Uncertainty:
    return Uncertainty(method=method, passes=passes)


def test_without_passes_a_score_is_the_plain_one_and_nothing_is_epistemic() -> None:
    one = a_trial()
    run = after(one, 3)
    made = {(part.site, part.subset): part for part in row_uncertainty(one, run, asked("none"))}
    assert [side for _, side in made] == ["validation", "test"] * 3
    for side in ("validation", "test"):
        for plain in predict(one, run, side):
            found = made[plain.site, side]
            assert np.array_equal(found.rows, plain.rows)
            assert np.array_equal(found.label, plain.label)
            assert found.score == pytest.approx(plain.score, rel=1e-14)  # made of all sites' rows at once
            p = plain.score.astype(np.float64)
            assert found.total == pytest.approx((entr(p) + entr(1 - p)) / np.log(2))
            assert np.isnan([found.epistemic, found.aleatoric, found.spread]).all()


def test_dropout_has_the_same_passes_for_every_site_and_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    one = a_trial()
    run = after(one, 3)
    whole = row_uncertainty(one, run, asked("dropout"))
    params, buffers = site_model(one, run, 0)
    for part, site in zip(whole[1::2], one.scored, strict=True):
        rng = seeds.generator(one.batch_seed, "uncertainty", 0)
        p = expit(mc_dropout(one.model, params, buffers, site.test.x, 8, rng).numpy()[..., 0])
        assert part.score == pytest.approx(p.mean(axis=0))
        assert (part.epistemic > 0).all()
        assert part.total == pytest.approx(part.aleatoric + part.epistemic)
    monkeypatch.setattr(module, "CELLS", 9)  # three rows at a time
    for part, again in zip(whole, row_uncertainty(one, run, asked("dropout")), strict=True):
        for name in ("rows", "label", "score", "total", "aleatoric", "epistemic", "spread"):
            assert getattr(part, name) == pytest.approx(getattr(again, name), rel=1e-9)


def test_laplace_of_a_shared_model_is_a_sum_over_sites(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same as fitted on all training rows at one place, however they are cut into pieces."""
    one = a_trial()
    run = after(one, 3)
    monkeypatch.setattr(module, "CELLS", 12)
    made = row_uncertainty(one, run, asked("laplace"))
    params, buffers = site_model(one, run, 0)
    x, y = (torch.cat([getattr(site.train, name) for site in one.sites]) for name in ("x", "y"))
    fitted = fit_laplace(one.model, params, buffers, x, y)
    validation = [torch.cat([getattr(site.validation, name) for site in one.scored]) for name in ("x", "y")]
    fitted = choose_prior(fitted, one.model, params, buffers, validation[0], validation[1])
    for part, site in zip(made[1::2], one.scored, strict=True):
        rng = seeds.generator(one.batch_seed, "uncertainty", 0)
        passes = laplace_passes(fitted, one.model, params, buffers, site.test.x, 8, rng).numpy()[..., 0]
        assert part.score == pytest.approx(expit(passes).mean(axis=0), rel=1e-6)
        assert part.spread == pytest.approx(passes.std(axis=0), rel=1e-6)


def test_sites_with_models_of_their_own_are_measured_by_these() -> None:
    one = a_trial("local")
    run = after(one, 3)
    for part, plain in zip(row_uncertainty(one, run, asked("none"))[1::2], predict(one, run), strict=True):
        assert np.array_equal(part.score, plain.score)
    for number, part in enumerate(row_uncertainty(one, run, asked("laplace"))[1::2]):
        site, (params, buffers) = one.sites[number], site_model(one, run, number)
        fitted = fit_laplace(one.model, params, buffers, site.train.x, site.train.y)
        fitted = choose_prior(fitted, one.model, params, buffers, site.validation.x, site.validation.y)
        rng = seeds.generator(one.batch_seed, "uncertainty", 0)
        passes = laplace_passes(fitted, one.model, params, buffers, site.test.x, 8, rng).numpy()[..., 0]
        assert part.spread == pytest.approx(passes.std(axis=0), rel=1e-6)


def test_classes_have_one_number_a_row_and_pooled_models_serve_all_sites() -> None:
    one = a_trial("pooled", classes=4)
    made = row_uncertainty(one, after(one, 2), asked("dropout"))
    for part in made:
        assert part.score.shape == (len(part.rows), 4)
        assert part.score.sum(axis=1) == pytest.approx(1)
        assert part.total.shape == part.spread.shape == (len(part.rows),)
        assert (part.total <= 2).all()  # bits, of four classes


def test_a_site_without_validation_rows_and_a_diverged_model_are_told_as_nothing() -> None:
    one = a_trial()
    bare = replace(one.scored[0], validation=Rows(torch.zeros(0, 3).double(), torch.zeros(0, dtype=torch.int64)))
    bare = replace(bare, validation_rows=np.array([], dtype=np.int64))
    one = replace(one, scored=(bare, *one.scored[1:]))
    run = after(one, 2)
    first = row_uncertainty(one, run, asked("laplace"))[0]
    assert (len(first.rows), first.score.shape, first.total.shape) == (0, (0,), (0,))
    lost_run = replace(
        run,
        server={
            part: {name: torch.full_like(leaf, torch.nan) for name, leaf in leaves.items()}
            for part, leaves in run.server.items()
        },
    )
    for method in ("none", "dropout", "laplace"):
        for part in row_uncertainty(one, lost_run, asked(method)):
            assert np.isnan(part.score).all()
            assert np.isnan(part.total).all()


def test_parts_of_two_members() -> None:
    """Members say 0.9 and 0.5: the mean is 0.7, whose entropy is 0.8813 bits; their own are 0.4690 and 1. Logits are
    2.1972 and 0, half of which is their SD."""
    mean, total, aleatoric, epistemic, spread = of_probabilities(np.array([[0.9], [0.5]]), multiclass=False)
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
    found = chosen_images([images(900, "a"), images(100, "b")], 0)
    assert {site: len(places) for site, places in found.items()} == {"a": 450, "b": 50}
    assert len(np.unique(found["a"])) == 450
    assert {site: len(one) for site, one in chosen_images([images(20, "a")], 0).items()} == {"a": 20}
    assert chosen_images(with_sides(ragged_sites()), 0) == {}  # a table
