"""The images of a bundle explained: where in each image the model sees what it predicts."""

from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from wardround.bundles.bundle import Bundle
from wardround.bundles.predict.blocks import Block
from wardround.bundles.predict.pipeline import Predicting, PredictOptions, known
from wardround.bundles.predict.predict import checked_options, file_blocks, opened
from wardround.bundles.predict.scoring import STEPS, predict_block
from wardround.core import seeds
from wardround.core.errors import BundleError, DataError
from wardround.core.threads import torch_threads
from wardround.explain import Method, Scorer
from wardround.explain.checks import Check, check_all
from wardround.explain.explanation import SEED, known_methods, method_for, output_names
from wardround.explain.localisation import shown
from wardround.tasks import Task

EVEN = "an even image of the same brightness"
MEAN = "the mean of {} images"
MOST_OUTPUTS = 3  # of an image: findings that it is said to have
READ = 512  # images that are read: those that are explained come first
FEWEST_FOR_MEAN = 20  # images: a mean of fewer still shows them
CHECKED = 8  # images on which an explanation is checked
OTHERS = ("occlusion", "integrated-gradients")  # methods that it is compared with
TO_DECISION = STEPS[: [step.name for step in STEPS].index("decide") + 1]


@dataclass(frozen=True, eq=False)
class ImageMaps:
    """A line for each explained output of each image."""

    method: str
    title: str
    citation: str
    link: str
    compared_with: str
    outputs: tuple[str, ...]  # that the model has
    row: np.ndarray  # number of the image in its source, counted from 0
    output: np.ndarray
    predicted: np.ndarray  # whether the model says so
    score: np.ndarray  # on the link scale
    pixels: np.ndarray  # (lines, height, width) of grey values
    values: np.ndarray  # (lines, height, width)
    completeness_error: np.ndarray
    unscored: int = 0
    checks: tuple[Check, ...] = ()
    checked_output: int = 0
    site: str = ""  # of a run: whose images they are
    boxes: np.ndarray = field(default_factory=lambda: np.zeros((0, 5)))  # line, and the box in parts of the image

    def __len__(self) -> int:
        return len(self.row)

    @property
    def heat(self) -> np.ndarray:
        """What raises the score, as figures and pictures show it."""
        return shown(self.values)

    def names(self) -> list[str]:
        return [self.outputs[number] for number in self.output]

    def table(self) -> pd.DataFrame:
        """Where the highest point is, in parts of the image from its top left corner."""
        x, y = highest_points(self.heat)
        return pd.DataFrame(
            {
                **({"site": self.site} if self.site else {}),
                "row": self.row,
                "output": np.array(self.names(), dtype=object),
                "predicted": self.predicted,
                "score": self.score,
                "highest_x": x,
                "highest_y": y,
                "highest": self.heat.max(axis=(1, 2)),
                "completeness_error": self.completeness_error,
            }
        )


def highest_points(heat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """In parts of width and height; NaN of a map that shows nothing."""
    width = heat.shape[2]
    flat = heat.reshape(len(heat), -1)
    place, nothing = flat.argmax(axis=1), flat.max(axis=1) <= 0
    x, y = (place % width + 0.5) / width, (place // width + 0.5) / heat.shape[1]
    return np.where(nothing, np.nan, x), np.where(nothing, np.nan, y)


def takes_images(bundle: Bundle) -> bool:
    return bundle.inputs.images is not None and not bundle.inputs.parts


def explain_images(
    bundle: Bundle | str | PathLike[str],
    source: str | Path,
    *,
    method: str | None = None,
    background: str | Path | None = None,
    most: int,
) -> ImageMaps:
    """Explain the first images of a folder, an .npz file or a table that lists them. They are compared with the mean of
    the images in `background`, or of those in the source where they are enough for it."""
    loaded = opened(bundle)
    if not takes_images(loaded):
        raise BundleError(str(loaded.path), "takes no images", "Give it a bundle of images.")
    read = predicted_images(loaded, source, max(most, READ))
    x, pixels, predicted, usable = (
        np.concatenate(parts)
        for parts in zip(*((b.x, b.pixels, b.predicted, b.usable) for b in map(ReadImages.of, read)), strict=True)
    )
    if not usable.any():
        raise DataError(
            str(source), "none of its images has a prediction", "`wardround predict` has a reason for each."
        )
    compared = x[usable] if background is None else mean_source(loaded, background)
    plain, words = plain_of(compared, loaded.dtype, given=background is not None)
    chosen = np.flatnonzero(usable)[:most]
    scorer = image_scorer(loaded)
    with torch_threads(1):
        maps = maps_of(scorer, x[chosen], predicted[chosen], pixels[chosen], plain, words, method)
    return replace(maps, row=chosen[maps.row], unscored=int((~usable[: chosen[-1] + 1]).sum()))


def image_scorer(bundle: Bundle) -> Scorer:
    return Scorer(bundle.model, bundle.params, bundle.buffers, scale=bundle.scale)


@dataclass(frozen=True, eq=False)
class ReadImages:
    x: np.ndarray
    pixels: np.ndarray
    predicted: np.ndarray
    usable: np.ndarray

    @classmethod
    def of(cls, rows: Predicting) -> "ReadImages":
        pixels = rows.block.images
        if pixels is None:
            raise LookupError("a block of images is needed")
        grey = pixels.mean(axis=1).round().astype(np.uint8)  # of colours, what a map is drawn on
        return cls(known(rows.prepared).x, grey, known(rows.decided).predicted, ~known(rows.scored).unscored)


def predicted_images(bundle: Bundle, source: str | Path, most: int) -> list[Predicting]:
    """Blocks of the source until there are enough images."""
    options, read, rows = checked_options(bundle, PredictOptions(uncertainty=False)), [], 0
    with file_blocks(bundle, source, (), options) as opened_source, torch_threads(1):
        for reader in opened_source.blocks:
            block: Block = reader()
            read.append(predict_block(bundle, block, options, TO_DECISION))
            rows += block.rows
            if rows >= most:
                break
    if not rows:
        raise DataError(str(source), "there is no image in it", "Name a source with images.")
    return read


def mean_source(bundle: Bundle, source: str | Path) -> np.ndarray:
    read = [ReadImages.of(rows) for rows in predicted_images(bundle, source, READ)]
    return np.concatenate([rows.x[rows.usable] for rows in read])


def plain_of(images: np.ndarray, dtype: torch.dtype, given: bool) -> tuple[Tensor, str]:
    """What images are compared with: a mean, or nothing."""
    rows = torch.from_numpy(images).to(dtype)
    if len(rows) < (1 if given else FEWEST_FOR_MEAN):
        return rows[:0], EVEN
    return rows.mean(dim=0, keepdim=True), MEAN.format(len(rows)) + (" that were given" if given else " of the source")


def maps_of(
    scorer: Scorer,
    x: np.ndarray,
    predicted: np.ndarray,
    pixels: np.ndarray,
    plain: Tensor,
    words: str,
    method: str | None = None,
) -> ImageMaps:
    """Of prepared images with what the model predicts for them."""
    name, chosen = method_for(scorer, len(plain), images=True, name=method)
    rows = torch.from_numpy(x).to(plain.dtype)
    scores = scorer.all_values(rows)
    lines = explained_lines(scorer.model.task, predicted, scores)
    values, error = attributed(chosen, scorer, rows, lines, plain)
    row, output = lines.row, lines.output
    return ImageMaps(
        name,
        chosen.title,
        chosen.citation,
        scorer.model.task.link,
        words if chosen.needs_background else "",
        output_names(scorer.model.task),
        row,
        output,
        lines.said,
        scores[row, output],
        pixels[row],
        values,
        error,
        checks=checks_of(name, chosen, scorer, rows, lines, plain),
        checked_output=often(lines),
    )


class Lines(NamedTuple):
    """What is explained: an image, an output, and whether the model says so."""

    row: np.ndarray
    output: np.ndarray
    said: np.ndarray

    def of(self, chosen: np.ndarray) -> "Lines":
        return Lines(self.row[chosen], self.output[chosen], self.said[chosen])


def explained_lines(task: Task, predicted: np.ndarray, scores: np.ndarray) -> Lines:
    """Findings that an image is said to have, those with the highest scores first; of an image without any, the one
    that comes nearest. Of classes the predicted one, of two the positive one."""
    images = np.arange(len(scores))
    if task.answers == "findings":
        order = np.argsort(-scores, axis=1, kind="stable")
        said = np.asarray(np.take_along_axis(np.equal(predicted, 1), order, axis=1), dtype=bool)
        said = said & (np.cumsum(said, axis=1) <= MOST_OUTPUTS)
        nearest = ~said.any(axis=1, keepdims=True) & (np.arange(scores.shape[1]) == 0)
        rows, places = np.nonzero(said | nearest)
        return Lines(rows, order[rows, places], said[rows, places])
    if scores.shape[1] == 1:
        positive = np.equal(predicted, 1) if task.answers == "class" else images >= 0
        return Lines(images, np.zeros_like(images), positive)
    return Lines(images, np.asarray(predicted, dtype=np.int64), images >= 0)


def attributed(
    method: Method, scorer: Scorer, rows: Tensor, lines: Lines, plain: Tensor
) -> tuple[np.ndarray, np.ndarray]:
    """Maps of the lines, and the errors of those that promise to add up."""
    values, error = np.zeros((len(lines.row), *rows.shape[2:])), np.full(len(lines.row), np.nan)
    for number in np.unique(lines.output):
        own = np.flatnonzero(lines.output == number)
        chosen = rows[torch.from_numpy(lines.row[own])]
        found = method.attribute(scorer.of(int(number)), chosen, plain, seeds.generator(SEED, "explanation"))
        values[own], error[own] = found.values, found.completeness_error
    return values, error


def checks_of(
    name: str, method: Method, scorer: Scorer, rows: Tensor, lines: Lines, plain: Tensor
) -> tuple[Check, ...]:
    """Of the output that is explained most often, on images with the highest scores among those explained."""
    output = often(lines)
    own = np.unique(lines.row[lines.output == output])
    scorer = scorer.of(output)
    score = scorer.values(rows[torch.from_numpy(own)])
    chosen = rows[torch.from_numpy(own[np.argsort(-score, kind="stable")[:CHECKED]])]
    methods = {name: method}
    other = next(each for each in OTHERS if each != name)
    if known_methods()[other]().takes(scorer, images=True):
        methods[other] = known_methods()[other]()
    draws = seeds.generator(SEED, "explanation checks")
    values = {each: one.attribute(scorer, chosen, plain, draws).values for each, one in methods.items()}
    made = check_all(scorer, chosen, plain, methods, values, draws)
    return tuple(check for check in made if check.method == method.title or check.name == "agreement")


def often(lines: Lines) -> int:
    return int(np.bincount(lines.output).argmax())
