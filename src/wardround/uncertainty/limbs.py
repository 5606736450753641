"""Drawn radiographs of another body part: a limb with one or two long bones. No patient is behind any of them.

Brightness is what a ray meets on its way: flesh is a long cylinder, a bone a tube with a dense wall. A model of chests
has seen rays through flesh and bone, but not in this arrangement.
"""

import numpy as np

WALL = 0.55  # of a bone's radius is hollow, or nearly so


def drawn_limbs(count: int, height: int, width: int, rng: np.random.Generator) -> np.ndarray:
    """(count, height, width), each pixel from 0 to 1. Limbs lie at any angle, as images of them do."""
    angle = rng.uniform(0, np.pi, count)[:, None, None]
    y, x = np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij")
    shift = rng.uniform(-0.15, 0.15, count)[:, None, None]
    across = np.cos(angle) * x + np.sin(angle) * y - shift
    along = np.cos(angle) * y - np.sin(angle) * x
    flesh = rng.uniform(0.4, 0.65, count)[:, None, None] * (1 + 0.15 * along)  # thicker towards the body
    made = 0.45 * _through(across, flesh)
    two = rng.random(count)[:, None, None] < 0.5
    bone = rng.uniform(0.12, 0.2, count)[:, None, None]
    bone = bone * (1 + 0.5 * along**4)  # wider towards the joints
    for side in (-1, 1):
        place = np.where(two, side * 0.45 * flesh, 0.0)
        strength = np.where(two, 1.0, 0.5)  # a single one is drawn by both
        made += strength * (0.55 * _through(across - place, bone) - 0.25 * _through(across - place, WALL * bone))
    made += rng.normal(0, 0.02, made.shape)
    return np.asarray(np.clip(made, 0, 1), dtype=np.float32)


def _through(distance: np.ndarray, radius: np.ndarray) -> np.ndarray:
    """The way of a ray through a cylinder, as a share of the longest one."""
    return np.asarray(np.sqrt(np.clip(1 - (distance / radius) ** 2, 0, None)))
