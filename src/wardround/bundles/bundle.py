"""A bundle that is open: how it scores, calls and marks prepared rows. Described in docs/reference/bundle.md."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load
from scipy.special import expit, logit

from wardround.bundles.inputs import Inputs, read_inputs, read_part
from wardround.bundles.out_of_distribution import Far, by_ranges
from wardround.bundles.sealed_files import ANEW, FORMAT, PREPARATION, UNCERTAINTY, VOCABULARY, WEIGHTS, read_sealed
from wardround.bundles.uncertainty import Uncertainty, read_uncertainty
from wardround.core.errors import BundleError, StudyError, as_path, suggest
from wardround.core.settings import Factory, parse_settings, settings_of
from wardround.core.tree import Tree, unflatten
from wardround.data.prepare import Encoded, Recipe
from wardround.data.serialization import read_recipe
from wardround.data.site import Block
from wardround.evaluation.metrics import THRESHOLD
from wardround.models import MODELS, Model, Shape
from wardround.runs.catalog import families
from wardround.runs.folder import MISFITS as CHANGED
from wardround.uncertainty.decision import called

__all__ = ["FORMAT", "Bundle", "Calibration", "load_bundle"]

PIECE = 4096  # rows at a time, as a run predicts them
CELLS = 1 << 22  # numbers at a time: of images fewer rows
CLIP = 1e-6  # scores of exactly 0 and 1 have no logit
MOST_LACKING = 1 << 26  # weights that a shared part lacks because they are private; 256 MB
# what reading parts that do not fit each other may end in; numbers and lists that no memory can hold are among it
MISFITS = (*CHANGED, RuntimeError, MemoryError, StudyError)


@dataclass(frozen=True)
class Calibration:
    """The probability's logit is slope x the score's logit + intercept. Fitted on validation rows."""

    slope: float
    intercept: float

    def of(self, scores: np.ndarray) -> np.ndarray:
        x = logit(np.clip(scores.astype(np.float64), CLIP, 1 - CLIP))
        made: np.ndarray = expit(self.slope * x + self.intercept)
        return made


@dataclass(frozen=True)
class Finding:
    """How one of several findings is called."""

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
    classes: tuple[str, ...]  # for two the second is the positive one; or the findings' names
    threshold: float | None  # on the score; None for more than two classes, and for findings
    calibration: Calibration | None
    far: Far
    vocabulary: Mapping[str, str]  # this site's words, in lower case, and the class that each means
    inputs: Inputs = field(default_factory=Inputs)  # images and parties; columns alone need nothing here
    findings: tuple[Finding, ...] = ()  # in the order of `classes`; empty: a row is of one class
    uncertainty: Uncertainty | None = None  # None: the bundle says nothing of it

    @property
    def id(self) -> str:
        return str(self.about["id"])

    @property
    def name(self) -> str:
        return str(self.about["name"])

    @property
    def unrecorded(self) -> tuple[str, ...]:
        """Columns that the model knows from other sites and this site does not record: its files may lack them, and a
        file without them has a gap in every row, as in training."""
        return tuple(self.about.get("unrecorded", ()))

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if self.about["precision"] == "float64" else torch.float32

    def scores(self, x: Any) -> np.ndarray:
        """Of prepared rows: (rows,) of the positive class for two classes, (rows, classes or findings) otherwise.

        `x` is an array, or what is taken from like one."""
        made = []
        piece = max(1, min(PIECE, CELLS // math.prod(x.shape[1:])))
        with torch.no_grad():
            for start in range(0, max(len(x), 1), piece):
                part = torch.from_numpy(np.ascontiguousarray(x[start : start + piece])).to(self.dtype)
                logits, _ = self.model.logits(self.params, self.buffers, part, None)
                made.append(self.model.probabilities(logits).numpy())
        return np.concatenate(made)

    @property
    def thresholds(self) -> np.ndarray | float:
        """About which calls are in doubt: of each finding its own. Classes are in doubt where they are equally
        probable, wherever a site has put its threshold."""
        return np.array([one.threshold for one in self.findings]) if self.findings else THRESHOLD

    def calls(self, scores: np.ndarray) -> np.ndarray:
        """Class numbers: by the threshold for two classes, the highest score otherwise. Of each finding 1 or 0."""
        thresholds = np.array([one.threshold for one in self.findings]) if self.findings else self.threshold
        return called(scores, thresholds)

    def probabilities(self, scores: np.ndarray) -> np.ndarray | None:
        """Calibrated, of the positive class; None where the bundle has no calibration. For findings of each, and NaN
        where one has none."""
        if self.findings:
            fitted = [one.calibration for one in self.findings]
            if not any(fitted):
                return None
            nothing = np.full(len(scores), np.nan)
            each = [nothing if one is None else one.of(scores[:, f]) for f, one in enumerate(fitted)]
            return np.stack(each, axis=1)
        return None if self.calibration is None else self.calibration.of(scores)

    def outside(self, table: Encoded, rows: np.ndarray) -> dict[str, np.ndarray]:
        """By column with a public range: which rows have a value outside it. Gaps are not."""
        found = {}
        for place, column in enumerate(table.columns):
            if column.limits is not None and any(column.name == needed.name for needed in self.recipe.columns):
                values = table.numbers[rows, place]
                found[column.name] = (values < column.limits[0]) | (values > column.limits[1])
        return found

    def is_far(self, x: np.ndarray, outside: Mapping[str, np.ndarray] | None = None) -> np.ndarray:
        """Which prepared rows are far from the training rows.

        A bundle of a private arm goes by public ranges alone, which prepared numbers no longer show: `outside` gives
        what `Bundle.outside` found. A bundle that goes by distance needs no `outside`.
        """
        return self.far.marks(x, outside)


def load_bundle(path: str | Path, models: Mapping[str, Factory] | None = None) -> Bundle:
    """A bundle from its folder, refused unless it is whole and as it was made. No data are needed.

    `models` gives models of your own by the name that the study gave them, as `run_study` takes them.
    """
    folder = as_path(path, "bundle", BundleError)
    about, files = read_sealed(folder)
    try:
        return _opened(folder, about, files, models)
    except MISFITS as error:
        # every hash is right, so it was made like this: by another program, or by a defect of this one
        problem = f"does not hold what a bundle of format {FORMAT} holds ({type(error).__name__})"
        raise BundleError(str(folder), problem, ANEW) from None


def _opened(
    folder: Path, about: Mapping[str, Any], files: Mapping[str, bytes], models: Mapping[str, Factory] | None
) -> Bundle:
    _refuse_unnamed(about)
    recipe = read_recipe(json.loads(files[PREPARATION]), str(folder / PREPARATION))
    _refuse_unfit(recipe)
    inputs = read_inputs(json.loads(files[PREPARATION]), recipe)
    findings = _findings(about)
    classes = tuple(map(str, about["classes"]))
    if len(set(classes)) < max(len(classes), 1 if findings else 2) or len(findings) not in (0, len(classes)):
        raise ValueError("classes are lacking, or one stands there twice")
    shape = about["model"]["shape"]
    fits = tuple(shape["inputs"]) == inputs.shape(recipe) and shape["classes"] == len(classes)
    if not fits or bool(shape.get("findings")) != bool(findings) or parts_of(shape) != inputs.parts:
        raise ValueError("preparation, classes and model do not fit each other")
    parts = unflatten(load(files[WEIGHTS]))
    refuse_other_shapes(about["model"], str(folder), models, parts.get("params", {}))
    model = build_model(about["model"], str(folder), models)
    if model.classes != len(classes):
        raise ValueError("the model is for another number of classes")
    precision = {"float64": torch.float64, "float32": torch.float32}[about["precision"]]
    first, first_buffers = model.init(0)
    params = _fitting(first, parts.get("params", {}), precision)
    buffers = _fitting(first_buffers, parts.get("buffers", {}), precision)
    if not set(about.get("unrecorded", ())) <= {column.name for column in recipe.columns}:
        raise ValueError("a column is said not to be recorded that is not needed")
    threshold, calibration = about["threshold"], about["calibration"]
    if (threshold is None) != (len(classes) > 2 or bool(findings)):
        raise ValueError("a threshold belongs to two classes")
    told = json.loads(files[UNCERTAINTY]) if UNCERTAINTY in files else None
    outputs = Shape((), len(classes), bool(findings)).outputs
    return Bundle(
        folder,
        about,
        recipe,
        model,
        params,
        buffers,
        classes,
        None if threshold is None else _number(threshold["value"]),
        None if calibration is None else Calibration(_number(calibration["slope"]), _number(calibration["intercept"])),
        _far(about["far"], parts.get("far", {}), inputs.width(recipe)),
        {str(word): str(name) for word, name in json.loads(files[VOCABULARY])["words"].items()},
        inputs,
        findings,
        None if told is None else read_uncertainty(told, parts.get("laplace", {}), model, params, outputs),
    )


def _findings(about: Mapping[str, Any]) -> tuple[Finding, ...]:
    """Of a bundle for findings; nothing where a row is of one class."""
    return tuple(
        Finding(
            _number(one["threshold"]["value"]),
            None
            if one["calibration"] is None
            else Calibration(_number(one["calibration"]["slope"]), _number(one["calibration"]["intercept"])),
        )
        for one in about.get("findings") or ()
    )


def parts_of(shape: Mapping[str, Any]) -> tuple[Block, ...]:
    """Of a model that joins what several parties hold."""
    return tuple(read_part(one) for one in shape.get("parts", ()))


def build_model(told: Mapping[str, Any], where: str, models: Mapping[str, Factory] | None) -> Model:
    """From its name, its settings and the shape of its data."""
    kind = str(told["kind"])
    known = (
        MODELS if kind in MODELS else families(models=models).models
    )  # installed packages are looked through if need be
    if kind not in known:
        problem = f"needs a model {kind!r}, which is not known here"
        remedy = f"Install the package that offers it, or give it to load_bundle. {suggest(kind, known, 'Known')}"
        raise BundleError(where, problem, remedy)
    factory = known[kind]
    options = parse_settings(settings_of(factory), told["options"], f"{where}: model", Path())
    shape = told["shape"]
    known_parts, findings = parts_of(shape), bool(shape.get("findings"))
    made: Model = factory(**options)(Shape(tuple(shape["inputs"]), int(shape["classes"]), findings, known_parts))
    return made


def _fitting(wanted: Tree, found: Tree, precision: torch.dtype) -> Tree:
    """In the model's order: a file sorts its leaves by name."""
    if set(wanted) != set(found):
        raise ValueError("the weights are not those of the model")
    for name, leaf in wanted.items():
        kind = precision if leaf.is_floating_point() else leaf.dtype
        if found[name].shape != leaf.shape or found[name].dtype != kind:
            raise ValueError("the weights do not have the shape of the model's")
        if found[name].is_floating_point() and not bool(torch.isfinite(found[name]).all()):
            raise ValueError("a weight is not a number")
    return {name: found[name] for name in wanted}


def _far(told: Mapping[str, Any], leaves: Tree, width: int) -> Far:
    if told["kind"] == "ranges":
        return by_ranges()
    mean, whitening = leaves["mean"].numpy(), leaves["whitening"].numpy()
    if told["kind"] != "distance" or mean.shape != (width,) or whitening.shape != (width, width):
        raise ValueError("what is far does not fit the preparation")
    if not np.isfinite(mean).all() or not np.isfinite(whitening).all():
        raise ValueError("what is far is measured by something that is not a number")
    return Far("distance", mean, whitening, _number(told["cut"]))


def _number(told: Any) -> float:
    """As JSON has it: a text of a number is none."""
    if type(told) not in (int, float) or not math.isfinite(told):
        raise ValueError("this is not a number")
    return float(told)


def _refuse_unnamed(about: Mapping[str, Any]) -> None:
    """What says which bundle this is, in lists and predictions."""
    study = about["study"]
    for text in (about["name"], about["made"], about["arm"], about["site"], study["name"], study["hash"]):
        if not isinstance(text, str) or not text:
            raise TypeError("a name is missing")
    if type(about["seed"]) is not int:
        raise TypeError("the seed is not a whole number")


def _refuse_unfit(recipe: Recipe) -> None:
    """Every column that the layout asks for, and numbers to fill and scale each of them by."""
    layout, fit = recipe.layout, recipe.fit
    numeric = [column.name for column in layout.numeric]
    known = [column.name for column in recipe.columns]
    asked = [*numeric, *layout.levels]
    if len(set(known)) < len(known) or len(set(asked)) < len(asked) or not {*asked, *layout.indicators} <= set(known):
        raise ValueError("columns are lacking, or stand there twice")
    if fit.centre.shape != (len(numeric),) or fit.spread.shape != (len(numeric),):
        raise ValueError("centres and spreads are not those of the numeric columns")
    filled = np.array([fit.fill[name] for name in numeric])
    if not all(np.isfinite(numbers).all() for numbers in (fit.centre, fit.spread, filled)) or (fit.spread <= 0).any():
        raise ValueError("a column would be filled or scaled by something that is not a number, or by nothing")


def refuse_other_shapes(told: Mapping[str, Any], where: str, models: Mapping[str, Factory] | None, found: Tree) -> None:
    """Leaves that the model does not have, before it is made: one that is said to have a million million weights would
    take all memory.

    On torch's device `meta` leaves have shapes and no numbers. A model of somebody's own may need numbers to be made;
    then there is nothing to compare with, and it is made.
    """
    try:
        with torch.device("meta"):
            wanted, _ = build_model(told, where, models).init(0)
    except MISFITS:
        if told["kind"] in MODELS:
            raise
        return
    if any(name not in wanted or wanted[name].shape != leaf.shape for name, leaf in found.items()):
        raise ValueError("the weights are not those of the model")
    if sum(leaf.numel() for name, leaf in wanted.items() if name not in found) > MOST_LACKING:
        raise ValueError("the model is far larger than the weights are")
