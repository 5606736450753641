"""Occlusion: by how much the score falls when a square of the image is covered.

It is covered with what the mean of the background has there, and without a background with the image's own mean
brightness. A pixel's value is the mean over the squares that cover it. Nothing smaller than a square is seen, and two
signs that each suffice for the score hide each other.
"""

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from wardround.core.settings import Share
from wardround.explain.images.integrated_gradients import plain_images
from wardround.explain.method import Attribution, Method, Scorer


def occlusion(patch: Share = 1 / 8, stride: Share = 1 / 16) -> Method:
    """`patch` is the side of a square and `stride` how far one is from the next, in parts of the image's shorter side.
    The last square of a line ends at the edge."""

    def attribute(scorer: Scorer, rows: Tensor, background: Tensor, rng: np.random.Generator) -> Attribution:
        height, width = rows.shape[2:]
        side, step = (max(1, round(part * min(height, width))) for part in (patch, stride))
        squares = list(square_places(height, width, side, step))
        values = np.stack(
            [
                falls(scorer, row, plain, squares)
                for row, plain in zip(rows, plain_images(rows, background), strict=True)
            ]
        )
        return Attribution.incomplete(values)

    return Method(
        attribute=attribute,
        title="Occlusion",
        citation="Zeiler and Fergus, ECCV 2014, arXiv:1311.2901",
        explains="image",
    )


def square_places(height: int, width: int, side: int, step: int) -> Iterator[tuple[slice, slice]]:
    for top in starts(height, side, step):
        for left in starts(width, side, step):
            yield slice(top, top + side), slice(left, left + side)


def starts(length: int, side: int, step: int) -> list[int]:
    last = max(0, length - side)
    return sorted({*range(0, last + 1, step), last})


def falls(scorer: Scorer, row: Tensor, plain: Tensor, squares: list[tuple[slice, slice]]) -> np.ndarray:
    """(height, width): the mean fall of the score over the squares that cover a pixel."""
    covered = row[None].repeat(len(squares), 1, 1, 1)
    for number, (lines, columns) in enumerate(squares):
        covered[number, :, lines, columns] = plain[:, lines, columns]
    fall = scorer.values(row[None])[0] - scorer.values(covered)
    total, times = np.zeros((2, *row.shape[1:]))
    for (lines, columns), value in zip(squares, fall, strict=True):
        total[lines, columns] += value
        times[lines, columns] += 1
    return np.asarray(total / np.maximum(times, 1))
