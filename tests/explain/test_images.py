"""Heat maps against the equations of the papers, worked out here without the code that is tested."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.explain.image_scorers import (
    SIDE,
    enlarged_by_hand,
    image_scorer,
    images_of,
    maps_by_hand,
    score_by_hand,
    slopes_by_hand,
    small_cnn,
)
from tests.explain.scorers import TASKS, rows_of, scorer_of
from wardround.core import seeds
from wardround.core.errors import StudyError
from wardround.explain import METHODS, Attribution, Scorer
from wardround.explain.images.feature_maps import FINE, chosen_layer, with_maps
from wardround.models import MODELS, Shape
from wardround.tasks import class_task, findings_task

IMAGE_METHODS = [name for name, method in METHODS.items() if method().explains == "image"]


def explained(name: str, scorer: Scorer, rows: torch.Tensor, **settings: object) -> Attribution:
    return METHODS[name](**settings).attribute(scorer, rows, rows[:0], seeds.generator(3, "test"))


def test_maps_that_are_seen_are_those_of_the_network_and_its_scores_stay() -> None:
    for options in ({}, {"norm": "group"}, {"norm": "batch", "dropout": 0.2}):
        for kind, more in (("cnn", {"channels": (4, 8), "hidden": 5}), ("residual", {"widths": (4, 8), "blocks": 2})):
            if kind == "residual" and not options:
                continue
            scorer = image_scorer(kind, findings_task(2), side=16, **options, **more)  # type: ignore[arg-type]
            rows = images_of(3, 16)
            assert scorer.model.feature_maps is not None
            for layer in scorer.model.feature_maps.layers:
                score, maps = with_maps(scorer, rows, layer)
                np.testing.assert_allclose(score.detach(), scorer.values(rows), atol=1e-12)
                assert maps.dim() == 4
                assert (maps >= 0).all()
    plain = small_cnn(findings_task(2))
    _, maps = with_maps(plain, images_of(3), "4")
    np.testing.assert_allclose(maps.detach(), maps_by_hand(plain, images_of(3)), atol=1e-12)


def test_grad_cam_is_that_of_the_papers_equations() -> None:
    """Equations 1 and 2 of Selvaraju et al., in numpy, with slopes worked out by hand."""
    scorer, rows = small_cnn(findings_task(3)), images_of(6)
    maps = maps_by_hand(scorer, rows).numpy()
    weights = slopes_by_hand(scorer, maps).mean(axis=(2, 3))
    expected = np.maximum(np.einsum("rk,rkij->rij", weights, maps), 0)
    found = explained("grad-cam", scorer, rows, layer="4").values
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(found, enlarged_by_hand(expected, SIDE), atol=1e-10)


def test_grad_cam_of_a_network_that_ends_in_a_mean_is_the_class_activation_map() -> None:
    """Section 3.1 of the paper: the weight of a map is that of its mean in the last layer, divided by its cells."""
    scorer = image_scorer("residual", class_task(2), side=16, widths=(4, 8), reduce=2)
    rows = images_of(4, 16)
    _, maps = with_maps(scorer, rows, "stages.1")
    cells = maps.shape[2] * maps.shape[3]
    expected = np.maximum(np.einsum("k,rkij->rij", scorer.params["head.weight"][0], maps.detach()) / cells, 0)
    found = explained("grad-cam", scorer, rows, layer="stages.1").values
    np.testing.assert_allclose(found, enlarged_by_hand(expected, 16), atol=1e-10)


def derivatives_of_exp(scorer: Scorer, maps: torch.Tensor) -> tuple[np.ndarray, ...]:
    """Of exp(S), in each number of one image's maps by itself: the first, second and third."""
    maps = maps.clone().requires_grad_()
    [slopes] = torch.autograd.grad(score_by_hand(scorer, maps).exp().sum(), maps, create_graph=True)
    found = np.zeros((3, maps.numel()))
    for place, first in enumerate(slopes.reshape(-1)):
        second = torch.autograd.grad(first, maps, create_graph=True)[0].reshape(-1)[place]
        third = torch.autograd.grad(second, maps, retain_graph=True)[0].reshape(-1)[place]
        found[:, place] = [float(value.detach()) for value in (first, second, third)]
    return tuple(found.reshape(3, *maps.shape[1:]))


def test_grad_cam_plus_plus_is_that_of_the_papers_equations() -> None:
    """Equations 5 and 10 of Chattopadhyay et al., with derivatives of exp(S) by repeated differentiation."""
    scorer, rows = small_cnn(findings_task(1)), images_of(3)
    found = explained("grad-cam++", scorer, rows, layer="4").values
    for row, image in enumerate(rows):
        maps = maps_by_hand(scorer, image[None])
        first, second, third = derivatives_of_exp(scorer, maps)
        maps = maps[0]
        below = 2 * second + maps.numpy().sum(axis=(1, 2), keepdims=True) * third
        alpha = np.divide(second, below, out=np.zeros_like(second), where=below != 0)
        weights = (alpha * np.maximum(first, 0)).sum(axis=(1, 2))
        expected = np.maximum(np.einsum("k,kij->ij", weights, maps.numpy()), 0)
        scale = float(score_by_hand(scorer, maps[None]).exp())  # what all weights of a row share
        assert expected.max() / scale > 1e-3
        np.testing.assert_allclose(found[row], enlarged_by_hand(expected[None] / scale, SIDE)[0], atol=1e-8)


def test_integrated_gradients_add_up_to_the_score_within_the_error_that_they_state() -> None:
    for task, scale in TASKS:
        scorer, rows = small_cnn(task, scale), images_of(3)
        start = scorer.values(rows.mean(dim=(2, 3), keepdim=True).expand_as(rows))
        coarse, fine = (explained("integrated-gradients", scorer, rows, steps=steps) for steps in (4, 400))
        for found in (coarse, fine):
            apart = np.abs(found.values.sum(axis=(1, 2)) + start - scorer.values(rows))
            np.testing.assert_allclose(found.completeness_error, apart, atol=1e-12)
        spread = np.abs(scorer.values(rows) - start).max()
        assert fine.completeness_error.max() < 0.01 * spread
        assert fine.completeness_error.mean() < coarse.completeness_error.mean()


def test_integrated_gradients_of_a_linear_model_are_its_weights_times_what_differs() -> None:
    scorer, rows = image_scorer("logistic", class_task(2)), images_of(3)
    found = explained("integrated-gradients", scorer, rows, steps=3)
    weights = scorer.params["1.weight"].reshape(SIDE, SIDE)
    expected = (weights * (rows - rows.mean(dim=(2, 3), keepdim=True))[:, 0]).numpy()
    np.testing.assert_allclose(found.values, expected, atol=1e-12)
    assert found.completeness_error.max() < 1e-12


def test_occlusion_is_the_mean_fall_over_the_squares_that_cover_a_pixel() -> None:
    """Square by square, with squares of 3 pixels every 2, of which the last ends at the edge."""
    for task, scale in TASKS:
        scorer, rows = small_cnn(task, scale), images_of(2)
        found = explained("occlusion", scorer, rows, patch=3 / SIDE, stride=2 / SIDE).values
        for row in range(2):
            falls: dict[tuple[int, int], list[float]] = {}
            for top in (0, 2, 4, 5):
                for left in (0, 2, 4, 5):
                    covered = rows[row : row + 1].clone()
                    covered[:, :, top : top + 3, left : left + 3] = rows[row].mean()
                    fall = float(scorer.values(rows[row : row + 1])[0] - scorer.values(covered)[0])
                    for line in range(top, top + 3):
                        for column in range(left, left + 3):
                            falls.setdefault((line, column), []).append(fall)
            expected = [[np.mean(falls[line, column]) for column in range(SIDE)] for line in range(SIDE)]
            np.testing.assert_allclose(found[row], expected, atol=1e-10)


def test_every_method_explains_every_task_each_row_by_itself_and_changes_nothing() -> None:
    rows = images_of(3)
    for task, scale in TASKS:
        scorer = small_cnn(task, scale)
        before = {name: leaf.clone() for name, leaf in scorer.params.items()}
        for name in IMAGE_METHODS:
            values = explained(name, scorer, rows).values
            assert values.shape == (3, SIDE, SIDE), name
            assert np.isfinite(values).all(), name
            alone = np.concatenate([explained(name, scorer, rows[row : row + 1]).values for row in range(3)])
            np.testing.assert_allclose(values, alone, atol=1e-12, err_msg=name)
        assert all(torch.equal(before[name], leaf) for name, leaf in scorer.params.items())
        assert not rows.requires_grad


def test_with_a_background_its_mean_is_the_plain_image() -> None:
    scorer, rows, others = image_scorer("logistic", class_task(2)), images_of(2), images_of(9)[2:]
    rng = seeds.generator(3, "test")
    weights = scorer.params["1.weight"].reshape(SIDE, SIDE)
    expected = (weights * (rows - others.mean(dim=0))[:, 0]).numpy()
    gradients = METHODS["integrated-gradients"](steps=2).attribute(scorer, rows, others, rng)
    np.testing.assert_allclose(gradients.values, expected, atol=1e-12)
    assert gradients.base == pytest.approx(scorer.values(others.mean(dim=0, keepdim=True))[0])
    single = METHODS["occlusion"](patch=1 / SIDE, stride=1 / SIDE).attribute(scorer, rows, others, rng)
    np.testing.assert_allclose(single.values, expected, atol=1e-12)  # of a linear model, pixel by pixel


def test_colours_of_a_pixel_are_one_place() -> None:
    """Of a linear model: each pixel has the sum of what its colours give."""
    model = MODELS["logistic"]()(Shape((3, SIDE, SIDE), class_task(2)))
    rng = seeds.generator(5, "test colours")
    params = {name: torch.from_numpy(rng.normal(size=leaf.shape)) for name, leaf in model.init(0)[0].items()}
    rows = torch.from_numpy(rng.normal(size=(2, 3, SIDE, SIDE)))
    weights = params["1.weight"].reshape(3, SIDE, SIDE)
    expected = (weights * (rows - rows.mean(dim=(2, 3), keepdim=True))).sum(dim=1).numpy()
    scorer = Scorer(model, params, {})
    for name, settings in (("integrated-gradients", {"steps": 2}), ("occlusion", {"patch": 0.01, "stride": 0.01})):
        np.testing.assert_allclose(explained(name, scorer, rows, **settings).values, expected, atol=1e-10)


def test_another_score_has_another_map() -> None:
    scorer, rows = small_cnn(findings_task(3)), images_of(2)
    for name in IMAGE_METHODS:
        first, second = (explained(name, scorer.of(output), rows).values for output in (0, 1))
        assert np.abs(first - second).max() > 1e-6, name


def test_methods_say_which_models_they_take() -> None:
    flat, convolutional = image_scorer("mlp", class_task(2), hidden=(4,)), small_cnn(class_task(2))
    for name in IMAGE_METHODS:
        method = METHODS[name]()
        assert method.takes(convolutional, images=True)
        assert method.takes(flat, images=True) == (not method.needs_feature_maps)
        assert not method.takes(scorer_of("mlp", *TASKS[0]))
    with pytest.raises(StudyError, match=r"(?s)no convolutional layer.*occlusion"):
        explained("grad-cam", flat, images_of(1))
    with pytest.raises(StudyError, match=r"(?s)'9' is no layer.*1, 4"):
        explained("grad-cam", convolutional, images_of(1), layer="9")
    assert rows_of(1, 6).dim() == 2


def test_the_layer_is_the_last_one_that_is_not_too_coarse() -> None:
    """Unless none is fine enough: then the finest."""
    network = image_scorer("residual", class_task(2), side=32, widths=(4, 4, 4), reduce=1)  # 32, 16 and 8 cells a side
    assert chosen_layer(network, images_of(1, 32)) == "stages.2"
    assert chosen_layer(network, images_of(1, 2 * (FINE + 1))) == "stages.1"
    assert chosen_layer(network, images_of(1, 8)) == "stages.0"
    tiny = image_scorer("residual", class_task(2), side=8, widths=(4, 4), reduce=4)  # 2 cells and 1
    assert chosen_layer(tiny, images_of(1)) == "stages.0"


def test_maps_survive_what_wraps_a_model() -> None:
    """A task with leaves of its own, and one of several outcomes."""
    task, scale = TASKS[-2]  # a number with a spread of its own is built around the network
    scorer = small_cnn(task, scale)
    score, _ = with_maps(scorer, images_of(2), "4")
    np.testing.assert_allclose(score.detach(), scorer.values(images_of(2)), atol=1e-12)
    other = replace(scorer, params={name: leaf + 1 for name, leaf in scorer.params.items()})
    assert np.abs(other.values(images_of(2)) - scorer.values(images_of(2))).max() > 1e-3
