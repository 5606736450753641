"""A loaded bundle: how it scores, classifies and marks prepared rows. Described in docs/reference/bundle.md."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load
from scipy.special import expit, logit
from torch import Tensor

from wardround.bundles.inputs import Inputs, read_inputs, read_part
from wardround.bundles.out_of_distribution import OutOfDistribution, by_ranges
from wardround.bundles.sealed_files import (
    BUNDLE,
    FORMAT,
    PREPARATION,
    UNCERTAINTY,
    VOCABULARY,
    WEIGHTS,
    read_sealed,
    refuse_if,
)
from wardround.bundles.uncertainty import Uncertainty, read_uncertainty
from wardround.core.errors import BundleError, StudyError, as_path, suggest
from wardround.core.settings import Factory, parse_settings, settings_of
from wardround.core.tree import Tree, unflatten
from wardround.data.prepare import Encoded, Recipe
from wardround.data.serialization import read_recipe
from wardround.data.site import Block
from wardround.models import MODELS, Model, Shape, built, with_scores
from wardround.runs.catalog import families
from wardround.runs.folder import MISFITS as CHANGED
from wardround.tasks import Task, class_task, findings_task, read_task
from wardround.tasks.answer import Answer
from wardround.tasks.probabilities import probability_task

__all__ = ["FORMAT", "Bundle", "Calibration", "load_bundle"]

BATCH = 4096  # rows at a time, as a run predicts them
CELLS = 1 << 22  # numbers at a time: fewer rows of images
CLIP = 1e-6  # scores of exactly 0 and 1 have no logit
MOST_LACKING = 1 << 26  # weights that a shared part lacks because they are private; 256 MB
# errors of parts that do not fit each other, such as shapes too large for memory
MISFITS = (*CHANGED, RuntimeError, MemoryError, StudyError)


@dataclass(frozen=True)
class Calibration:
    """logit(probability) = slope x logit(score) + intercept, fitted on validation rows."""

    slope: float
    intercept: float

    def of(self, scores: np.ndarray) -> np.ndarray:
        x = logit(np.clip(scores.astype(np.float64), CLIP, 1 - CLIP))
        return np.asarray(expit(self.slope * x + self.intercept))


@dataclass(frozen=True)
class Event:
    """How one event of the task is predicted: the positive class, or the presence of a finding."""

    threshold: float  # on the score
    calibration: Calibration | None


@dataclass(frozen=True, eq=False)
class Bundle:
    path: Path
    about: Mapping[str, Any]  # the content of bundle.json
    recipe: Recipe
    model: Model
    params: Tree
    buffers: Tree
    events: tuple[Event, ...]  # those of the task's answer, in its order
    out_of_distribution: OutOfDistribution
    vocabulary: Mapping[str, str]  # this site's spellings of outcomes, in lower case, and their classes
    inputs: Inputs = field(default_factory=Inputs)  # images and parties
    scale: tuple[float, ...] = ()  # what the task knows of the target of all sites; empty for classes and findings
    uncertainty: Uncertainty | None = None

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def id(self) -> str:
        return str(self.about["id"])

    @property
    def name(self) -> str:
        return str(self.about["name"])

    @property
    def task(self) -> Task:
        return self.model.task

    @property
    def answer(self) -> Answer:
        return self.model.task.answer

    @property
    def classes(self) -> tuple[str, ...]:
        """Of two classes the second is the positive one; or the names of findings. A number has none."""
        return self.answer.classes

    @property
    def unrecorded(self) -> tuple[str, ...]:
        """Columns that only other sites record. This site's files may lack them; they are gaps, as in training."""
        return tuple(self.about.get("unrecorded", ()))

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if self.about["precision"] == "float64" else torch.float32

    def scores(self, x: Any, y: np.ndarray | None = None) -> np.ndarray:
        """Of prepared rows, in an array or anything that is sliced like one: (rows,) of the positive class for two
        classes, (rows, classes or findings); of a number in its units. `y` is what the task needs to know beside the
        scores, as `beside` gives it; without it, rows are those of an exposure of 1."""
        scores = []
        size = max(1, min(BATCH, CELLS // math.prod(x.shape[1:])))
        with torch.no_grad():
            for start in range(0, max(len(x), 1), size):
                batch = torch.from_numpy(np.ascontiguousarray(x[start : start + size])).to(self.dtype)
                logits, _ = self.model.logits(self.params, self.buffers, batch, None)
                known = (
                    self.beside(np.ones((len(batch), len(self.task.columns)))) if y is None else y[start : start + size]
                )
                scores.append(self.task.predictions(logits, torch.from_numpy(known)).numpy())
        return np.concatenate(scores)

    def beside(self, columns: np.ndarray) -> np.ndarray:
        """What the task needs to know of rows without their outcome, from the columns that belong to its target."""
        return self.task.unknown_target(columns, self.scale)

    def size_of(self, scores: np.ndarray) -> np.ndarray:
        """In what differences between scores are measured: probabilities in themselves, numbers in the spread of their
        target, or in their own size where that is larger."""
        return np.maximum(self.task.spread_in(self.scale), np.abs(scores.astype(np.float64)))

    @property
    def thresholds(self) -> np.ndarray:
        """On the score of each event."""
        return np.array([event.threshold for event in self.events])

    def predicted(self, scores: np.ndarray) -> np.ndarray:
        """The value that is predicted, as the task's answer has it."""
        return self.task.predicted(scores, self.thresholds)

    def probabilities(self, scores: np.ndarray) -> np.ndarray | None:
        """Calibrated, in the shape of the scores, NaN where an event has no calibration; None where none has."""
        calibrations = [event.calibration for event in self.events]
        if not any(calibrations):
            return None
        unknown, by_event = np.full(len(scores), np.nan), scores.reshape(len(scores), len(calibrations))
        columns = [unknown if fit is None else fit.of(by_event[:, place]) for place, fit in enumerate(calibrations)]
        return np.stack(columns, axis=1).reshape(scores.shape)

    def outside(self, table: Encoded, rows: np.ndarray) -> dict[str, np.ndarray]:
        """By column with a public range: which rows have a value outside it. A gap is not outside."""
        needed = {column.name for column in self.recipe.columns}
        outside = {}
        for place, column in enumerate(table.columns):
            if column.limits is not None and column.name in needed:
                values = table.numbers[rows, place]
                outside[column.name] = (values < column.limits[0]) | (values > column.limits[1])
        return outside

    def is_out_of_distribution(self, x: np.ndarray, outside: Mapping[str, np.ndarray] | None = None) -> np.ndarray:
        """Which prepared rows are unlike the training rows.

        A bundle of a private arm uses public ranges only. Prepared numbers no longer show these, so that `outside`
        must hold the result of `Bundle.outside`.
        """
        return self.out_of_distribution.marks(x, outside)


def events_of(task: Task, label: np.ndarray, score: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Labels and scores of each event that a threshold decides, in the rows that know it."""
    return probability_task(task).events(label, score) if task.answer.events else []


def load_bundle(path: str | PathLike[str], models: Mapping[str, Factory] | None = None) -> Bundle:
    """Load a bundle from its folder, after checking that it is complete and unchanged. No data are needed.

    `models` holds your own models under the names that the study uses, as in `run_study`.
    """
    folder = as_path(path, "bundle", BundleError)
    about, files = read_sealed(folder)
    try:
        return _read(folder, about, files, models)
    except MISFITS as error:
        # its hashes are right, so that it was made like this: by another program, or by a defect of this one
        problem = f"does not hold what a bundle of format {FORMAT} holds ({type(error).__name__})"
        raise BundleError(str(folder), problem, BUNDLE.remake) from None


def _read(
    folder: Path, about: Mapping[str, Any], files: Mapping[str, bytes], models: Mapping[str, Factory] | None
) -> Bundle:
    _check_names(about)
    preparation = json.loads(files[PREPARATION])
    recipe = read_recipe(preparation, str(folder / PREPARATION))
    _check_recipe(recipe)
    inputs = read_inputs(preparation, recipe)
    task = stored_task(about)
    _check_shape(about["model"]["shape"], inputs, recipe, task)
    tensors = unflatten(load(files[WEIGHTS]))
    model, params, buffers = _model(about, task, str(folder), models, tensors)
    refuse_if(
        not set(about.get("unrecorded", ())) <= {column.name for column in recipe.columns},
        "a column that is not needed is listed as unrecorded",
    )
    events = read_events(about)
    refuse_if(len(events) != len(task.answer.events), "there is not a threshold for each event, and for nothing else")
    content = json.loads(files[UNCERTAINTY]) if UNCERTAINTY in files else None
    return Bundle(
        folder,
        about,
        recipe,
        model,
        params,
        buffers,
        events,
        _out_of_distribution(
            about["out_of_distribution"], tensors.get("out_of_distribution", {}), inputs.width(recipe)
        ),
        {str(word): str(name) for word, name in json.loads(files[VOCABULARY])["words"].items()},
        inputs,
        stored_scale(about, task),
        None if content is None else read_uncertainty(content, tensors, model, params),
    )


def stored_scale(about: Mapping[str, Any], task: Task) -> tuple[float, ...]:
    scale = tuple(_number(value) for value in about.get("target_scale", ()))
    refuse_if(not task.is_scale(scale), "the scale of the target is not one of its task")
    return scale


def stored_task(about: Mapping[str, Any]) -> Task:
    """As it is written; of a bundle that was made before tasks were, by its classes."""
    names = tuple(map(str, about["classes"]))
    content = about.get("task")
    task = (findings_task if about.get("findings") else class_task)(names) if content is None else read_task(content)
    refuse_if(names != task.answer.classes or not task.answer.is_sound, "classes are missing or repeated")
    return task


def _check_shape(shape: Mapping[str, Any], inputs: Inputs, recipe: Recipe, task: Task) -> None:
    refuse_if(
        tuple(shape["inputs"]) != inputs.shape(recipe)
        or {key: shape[key] for key in ("classes", "findings") if key in shape} != shape_of(task)
        or parts_of(shape) != inputs.parts,
        "preparation, classes and model do not fit each other",
    )


def shape_of(task: Task) -> dict[str, Any]:
    """What a model's description says of its task."""
    findings = {"findings": True} if task.answer.described()["findings"] else {}
    return {"classes": len(task.answer.classes), **findings}


def _model(
    about: Mapping[str, Any],
    task: Task,
    where: str,
    models: Mapping[str, Factory] | None,
    tensors: Mapping[str, Tree],
) -> tuple[Model, Tree, Tree]:
    """The model with its parameters and buffers."""
    params, buffers = tensors.get("params", {}), tensors.get("buffers", {})
    check_shapes(about["model"], task, where, models, params)
    model = build_model(about["model"], task, where, models)
    refuse_if(model.task != task, "the model has another task")
    precision = {"float64": torch.float64, "float32": torch.float32}[about["precision"]]
    initial, initial_buffers = model.init(0)
    return model, _checked(params, initial, precision), _checked(buffers, initial_buffers, precision)


def read_calibration(content: Mapping[str, Any] | None) -> Calibration | None:
    return None if content is None else Calibration(_number(content["slope"]), _number(content["intercept"]))


def read_events(about: Mapping[str, Any]) -> tuple[Event, ...]:
    """Those of findings stand in a list of their own; that of the positive class stands for itself."""
    listed = about.get("findings") or ([about] if about["threshold"] is not None else [])
    return tuple(
        Event(_number(event["threshold"]["value"]), read_calibration(event["calibration"])) for event in listed
    )


def parts_of(shape: Mapping[str, Any]) -> tuple[Block, ...]:
    """The parties' parts of a model that joins them."""
    return tuple(read_part(part) for part in shape.get("parts", ()))


def build_model(description: Mapping[str, Any], task: Task, where: str, models: Mapping[str, Factory] | None) -> Model:
    """From its name, its settings, the shape of its data and its task."""
    kind = str(description["kind"])
    known = MODELS if kind in MODELS else families(models=models).models  # searches installed packages only if need be
    if kind not in known:
        problem = f"needs a model {kind!r}, which is not known here"
        remedy = f"Install the package that offers it, or give it to load_bundle. {suggest(kind, known, 'Known')}"
        raise BundleError(where, problem, remedy)
    factory = known[kind]
    options = parse_settings(settings_of(factory), description["options"], f"{where}: model", Path())
    shape = description["shape"]
    together = read_task(shape["outcomes"]) if "outcomes" in shape else task
    model = built(factory(**options), Shape(tuple(shape["inputs"]), together, parts_of(shape)))
    return one_outcome(model, str(shape["outcome"]), task) if "outcomes" in shape else model


def one_outcome(model: Model, name: str, task: Task) -> Model:
    """Of a model that predicts several outcomes: the scores of one. The weights stay those of the whole."""
    together, whole = model.task, model.logits
    refuse_if(together.outcomes.get(name) != task, "the outcome is none of the model's")

    def logits(params: Tree, buffers: Tree, x: Tensor, masks: Tree | None) -> tuple[Tensor, Tree]:
        scores, after = whole(params, buffers, x, masks)
        return together.scores_of(scores, name), after

    maps = with_scores(model.feature_maps, lambda _, scores: together.scores_of(scores, name))
    return replace(model, task=task, logits=logits, closed_gradient=None, row_gradients=None, feature_maps=maps)


def _checked(leaves: Tree, expected: Tree, precision: torch.dtype) -> Tree:
    """In the model's order: a file sorts its leaves by name."""
    refuse_if(set(expected) != set(leaves), "the weights are not those of the model")
    for name, leaf in expected.items():
        dtype = precision if leaf.is_floating_point() else leaf.dtype
        refuse_if(
            leaves[name].shape != leaf.shape or leaves[name].dtype != dtype,
            "the weights do not have the shape or precision of the model's",
        )
        refuse_if(
            leaves[name].is_floating_point() and not bool(torch.isfinite(leaves[name]).all()),
            "a weight is not a number",
        )
    return {name: leaves[name] for name in expected}


def _out_of_distribution(content: Mapping[str, Any], leaves: Tree, width: int) -> OutOfDistribution:
    if content["kind"] == "ranges":
        return by_ranges()
    mean, whitening = leaves["mean"].numpy(), leaves["whitening"].numpy()
    refuse_if(
        content["kind"] != "distance" or mean.shape != (width,) or whitening.shape != (width, width),
        "the distance from training rows does not fit the preparation",
    )
    refuse_if(
        not np.isfinite(mean).all() or not np.isfinite(whitening).all(),
        "the distance from training rows is not a number",
    )
    return OutOfDistribution("distance", mean, whitening, _number(content["cut"]))


def _number(value: Any) -> float:
    """A JSON number; a text of a number is refused."""
    refuse_if(type(value) not in (int, float) or not math.isfinite(value), "this is not a number")
    return float(value)


def _check_names(about: Mapping[str, Any]) -> None:
    """What identifies the bundle in lists and predictions."""
    study = about["study"]
    for text in (about["name"], about["made"], about["arm"], about["site"], study["name"], study["hash"]):
        if not isinstance(text, str) or not text:
            raise TypeError("a name is missing")
    if type(about["seed"]) is not int:
        raise TypeError("the seed is not a whole number")


def _check_recipe(recipe: Recipe) -> None:
    """It has every column of its layout, and numbers to fill and scale each of them."""
    layout, fit = recipe.layout, recipe.fit
    numeric = [column.name for column in layout.numeric]
    known = [column.name for column in recipe.columns]
    needed = [*numeric, *layout.levels]
    repeated = len(set(known)) < len(known) or len(set(needed)) < len(needed)
    refuse_if(repeated or not {*needed, *layout.indicators} <= set(known), "columns are missing or repeated")
    refuse_if(
        fit.centre.shape != (len(numeric),) or fit.spread.shape != (len(numeric),),
        "centres and spreads are not those of the numeric columns",
    )
    filled = np.array([fit.fill[name] for name in numeric])
    refuse_if(
        not all(np.isfinite(numbers).all() for numbers in (fit.centre, fit.spread, filled)) or (fit.spread <= 0).any(),
        "a column is filled or scaled by something that is not a number, or by 0",
    )


def check_shapes(
    description: Mapping[str, Any], task: Task, where: str, models: Mapping[str, Factory] | None, leaves: Tree
) -> None:
    """Before the model is built: the description of a model with billions of weights must not exhaust the memory.

    On torch's device `meta` leaves have shapes and no numbers. A user's own model may need numbers to be built; it is
    then not checked here.
    """
    try:
        with torch.device("meta"):
            expected, _ = build_model(description, task, where, models).init(0)
    except MISFITS:
        if description["kind"] in MODELS:
            raise
        return
    refuse_if(
        any(name not in expected or expected[name].shape != leaf.shape for name, leaf in leaves.items()),
        "the weights are not those of the model",
    )
    refuse_if(
        sum(leaf.numel() for name, leaf in expected.items() if name not in leaves) > MOST_LACKING,
        "the model is much larger than its weights",
    )
