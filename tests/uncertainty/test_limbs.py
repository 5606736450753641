"""Drawn limbs: another body part for models of chests."""

import numpy as np

from wardround.uncertainty.shifted_images import _through, drawn_limbs


def test_a_ray_through_the_middle_has_the_longest_way_and_one_outside_none() -> None:
    # at 3/5 of the radius half the chord is 4/5 of it
    assert _through(np.array([0.0, 0.6, 1.0, 2.0]), np.array(1.0)).tolist() == [1.0, 0.8, 0.0, 0.0]


def test_limbs_are_bright_inside_dark_outside_and_all_different() -> None:
    limbs = drawn_limbs(200, 32, 28, np.random.default_rng(0))
    assert limbs.shape == (200, 32, 28)
    assert limbs.dtype == np.float32
    assert limbs.min() >= 0
    assert limbs.max() <= 1
    assert (limbs[:, 16, 14] > 0.25).all()  # flesh at least
    assert (np.quantile(limbs, 0.05, axis=(1, 2)) < 0.05).mean() > 0.9  # air at the sides
    assert len(np.unique(limbs.reshape(200, -1), axis=0)) == 200


def test_the_same_draw_gives_the_same_limbs() -> None:
    limbs, two = (drawn_limbs(5, 16, 16, np.random.default_rng(3)) for _ in range(2))
    assert np.array_equal(limbs, two)


def test_walls_of_a_bone_are_brighter_than_its_marrow() -> None:
    """One long bone, seen along a line across it: two peaks and a valley between them."""
    limbs = drawn_limbs(300, 64, 64, np.random.default_rng(1))
    centre, around = limbs[:, 32, 32], limbs[:, 24:40, 24:40].max(axis=(1, 2))
    assert (around > centre + 0.05).mean() > 0.5
