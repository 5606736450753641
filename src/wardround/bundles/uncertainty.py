"""The uncertainty of a bundle's predictions: an interval of the score, a prediction set, and referral to a clinician.

The interval holds the middle 90 % of the scores of many thinned networks (dropout), of likely last layers (Laplace) or
of networks around those of late rounds (SWAG). The prediction set holds the right answer as often as was asked for. The
uncertainty of a row is the doubt of its prediction (`uncertainty.decomposition.doubt_of`), as in a study.
`uncertainty.decision` decides on sets and referral. Everything that is chosen is chosen on validation rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from scipy.special import expit, ndtri
from torch import Tensor

from wardround.bundles.sealed_files import refuse_if
from wardround.core import seeds
from wardround.core.tree import State, Tree, flatten, unflatten
from wardround.models import Model
from wardround.tasks import Task
from wardround.tasks.answer import Answer
from wardround.tasks.probabilities import probability_task
from wardround.tasks.summed import SummedTask, number_task
from wardround.tasks.task import moderated
from wardround.uncertainty.calibration import Temperature
from wardround.uncertainty.conformal import Cuts, prediction_sets
from wardround.uncertainty.decomposition import INTERVAL, doubt_of, interval
from wardround.uncertainty.intervals import IntervalCut, shown_intervals
from wardround.uncertainty.laplace import Laplace, laplace_passes, score_and_variance
from wardround.uncertainty.passes import mc_dropout
from wardround.uncertainty.swag import Swag, swag_passes
from wardround.uncertainty.validation import has_dropout

Method = Literal["dropout", "laplace", "swag", "residuals", "none"]
PASSES = 30
ALPHA = 0.1
SHARE = 0.2  # of rows like the validation rows that are referred by default
SHARES = 100  # a cut is stored for each hundredth
REACH = float(ndtri((1 + INTERVAL) / 2))  # of a normal distribution, in SDs
NEITHER = "none"
MOST_IN_A_NUMBER = 62  # labels, one bit each


@dataclass(frozen=True, eq=False)
class Referral:
    """`cuts[n]` is the uncertainty above which n hundredths of validation rows lie."""

    share: float
    cuts: np.ndarray


@dataclass(frozen=True, eq=False)
class Uncertainty:
    """`why` says why there is no interval; empty where there is one."""

    method: Method
    passes: int
    seed: int  # of the masks, or of the order of quantiles
    why: str
    laplace: Laplace | None = None
    temperature: Temperature | None = None
    cuts: Cuts | None = None
    referral: Referral | None = None
    unchosen: str = ""  # why there is no set and no referral: nothing could be chosen on validation rows
    residuals: IntervalCut | None = None  # of a number: how far its outcome may lie from the prediction
    swag: Swag | None = None

    def cut(self, share: float | None = None) -> float:
        """The uncertainty above which a row is referred; infinite where there is no cut."""
        if self.referral is None:
            return float("inf")
        return float(self.referral.cuts[round(SHARES * (self.referral.share if share is None else share))])


@dataclass(frozen=True)
class Measured:
    """Of some rows. All but `uncertainty` have the shape of the scores. Of a number `mean` is the score itself, and no
    doubt is known."""

    mean: np.ndarray  # over passes
    low: np.ndarray
    high: np.ndarray
    uncertainty: np.ndarray  # (rows,), in bits


def measure(
    settings: Uncertainty,
    model: Model,
    params: Tree,
    buffers: Tree,
    x: Tensor,
    score: np.ndarray,
    thresholds: np.ndarray,
) -> Measured:
    """`score` is the bundle's own score of the same rows; intervals are widened to hold it. `thresholds` are those of
    events."""
    if model.task.answer.bounded_by == "residuals":
        return _of_numbers(settings, number_task(model.task), score)
    mean, low, high = _of_probabilities(settings, model, params, buffers, x, score)
    # huge inputs may have a score, but no finite interval
    not_finite = ~(np.isfinite(mean) & np.isfinite(low) & np.isfinite(high))
    mean, low, high = np.where(not_finite, score, mean), np.where(not_finite, 0.0, low), np.where(not_finite, 1.0, high)
    # a row without a score has no doubt; it is referred because the score is missing
    known = np.where(np.isfinite(mean), mean, 0.5)
    task = probability_task(model.task)
    uncertainty = task.of_rows(doubt_of(task, known, thresholds))
    uncertainty = np.where(not_finite.reshape(len(not_finite), -1).any(axis=1), np.inf, uncertainty)
    return Measured(mean, np.minimum(low, score), np.maximum(high, score), uncertainty)


def _of_probabilities(
    settings: Uncertainty, model: Model, params: Tree, buffers: Tree, x: Tensor, score: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, low and high over passes."""
    if settings.method == "none":
        return score.astype(np.float64), score.astype(np.float64), score.astype(np.float64)
    if settings.method == "laplace" and settings.laplace is not None and model.task.answer.events:
        z, variance = score_and_variance(settings.laplace, model, params, buffers, x)
        z, variance = z.reshape(score.shape), variance.reshape(score.shape)
        half = REACH * variance.sqrt()
        mean, low, high = (expit(values.numpy()) for values in (moderated(z, variance), z - half, z + half))
        return mean, low, high
    rng = seeds.generator(settings.seed, "passes of a bundle")
    if settings.method == "laplace" and settings.laplace is not None:
        logits = laplace_passes(settings.laplace, model, params, buffers, x, settings.passes, rng)
    elif settings.swag is not None:
        logits = swag_passes(settings.swag, model, buffers, x, settings.passes, rng)
    else:
        logits = mc_dropout(model, params, buffers, x, settings.passes, rng)
    p = np.nan_to_num(model.task.predictions(logits).double().numpy(), nan=0.5)  # such rows have no score
    return p.mean(axis=0), *interval(p)


def _of_numbers(settings: Uncertainty, task: SummedTask, score: np.ndarray) -> Measured:
    known = np.where(np.isfinite(score), score, 0.0).astype(np.float64)
    if settings.residuals is None:
        low = high = known
    else:
        low, high = shown_intervals(task, settings.residuals, known)
    return Measured(known, low, high, np.zeros(len(score)))


def conformal_sets(settings: Uncertainty, task: Task, mean: np.ndarray) -> np.ndarray | None:
    """Conformal sets: (rows, classes), or (rows, findings, 2) for absent and present; None where there are no cuts.
    They do not depend on the predicted class."""
    return None if settings.cuts is None else prediction_sets(probability_task(task), settings.cuts, mean)


def set_texts(sets: np.ndarray, names: Sequence[str]) -> tuple[np.ndarray, list[str]]:
    """Sets of labels (rows, labels) as words: an index into the words for each row, and the words."""
    bits = 1 << np.arange(len(names), dtype=np.int64 if len(names) <= MOST_IN_A_NUMBER else object)
    codes, numbers = np.unique(sets @ bits, return_inverse=True)
    words = [
        " or ".join(name for place, name in enumerate(names) if int(code) >> place & 1) or NEITHER for code in codes
    ]
    return numbers, words


def write_uncertainty(settings: Uncertainty) -> dict[str, Any]:
    """As JSON. The tensors of Laplace's approximation are stored with the weights."""
    temperature, cuts, referral = settings.temperature, settings.cuts, settings.referral
    return {
        "method": settings.method,
        "passes": settings.passes,
        "seed": settings.seed,
        "interval": INTERVAL,
        "why": settings.why,
        "unchosen": settings.unchosen,
        "laplace": None
        if settings.laplace is None
        else {"layer": settings.laplace.layer, "prior": settings.laplace.prior},
        "temperature": None
        if temperature is None
        else {"values": temperature.values.tolist(), "fitted": temperature.fitted.tolist()},
        "sets": None
        if cuts is None
        else {"alpha": cuts.alpha, "kind": cuts.kind, "cuts": _finite(cuts.values), "rows": cuts.rows.tolist()},
        "referral": None if referral is None else {"share": referral.share, "cuts": _finite(referral.cuts)},
        **({} if settings.residuals is None else {"residuals": asdict(settings.residuals)}),
        **({} if settings.swag is None else {"swag": {"scale": settings.swag.scale}}),
    }


def tensors_of(settings: Uncertainty) -> Tree:
    if settings.swag is not None:
        parts = {"mean": settings.swag.mean, "variance": settings.swag.variance}
        parts |= {f"deviation {number}": leaves for number, leaves in enumerate(settings.swag.deviations)}
        return {f"swag/{name}": leaf for name, leaf in flatten(parts).items()}
    if settings.laplace is None:
        return {}
    axes = {} if settings.laplace.axes is None else {"laplace/axes": settings.laplace.axes}
    return {"laplace/values": settings.laplace.values, **axes}


def read_uncertainty(content: Mapping[str, Any], tensors: State, model: Model, params: Tree) -> Uncertainty:
    """Raises a ValueError where it does not fit the model. `tensors` are those of the file of weights."""
    method: Method = content["method"]
    of_a_number = model.task.answer.bounded_by == "residuals"
    known = ("none", "residuals") if of_a_number else ("none", "dropout", "laplace", "swag")
    refuse_if(
        method not in known or (method == "dropout" and not has_dropout(model)), "the method does not fit the model"
    )
    passes = int(content["passes"])
    refuse_if(not 2 <= passes <= 1000, "the number of passes is not between 2 and 1000")
    return Uncertainty(
        method,
        passes,
        int(content["seed"]),
        str(content["why"]),
        _read_laplace(content["laplace"], tensors["laplace"], params, model.task.outputs)
        if method == "laplace"
        else None,
        None if content["temperature"] is None else _read_temperature(content["temperature"], model.task),
        None if content["sets"] is None else _read_cuts(content["sets"], model.task.answer),
        None if content["referral"] is None else _read_referral(content["referral"]),
        str(content["unchosen"]),
        _read_residuals(content["residuals"]) if method == "residuals" else None,
        _read_swag(content["swag"], tensors["swag"], params) if method == "swag" else None,
    )


def _read_temperature(content: Mapping[str, Any], task: Task) -> Temperature:
    """One for each question that a row has."""
    values = np.array(content["values"], dtype=float)
    refuse_if(
        values.shape != (len(task.answer.choices),) or not (np.isfinite(values) & (values > 0)).all(),
        "a temperature is not a number above 0",
    )
    return Temperature(values, np.array(content["fitted"], dtype=bool), probability_task(task).probability_scale)


def _read_cuts(content: Mapping[str, Any], answer: Answer) -> Cuts:
    cuts, kind = _infinite(content["cuts"]), content["kind"]
    rows = np.array(content["rows"], dtype=np.int64)
    refuse_if(
        cuts.shape != answer.set_shape or rows.shape != answer.set_shape or kind not in ("plain", "adaptive"),
        "the cuts are not those of the model's labels",
    )
    return Cuts(float(content["alpha"]), kind, cuts, rows)


def _read_residuals(content: Mapping[str, Any]) -> IntervalCut:
    alpha, value, rows = float(content["alpha"]), float(content["value"]), int(content["rows"])
    refuse_if(not 0 < alpha < 1 or not 0 <= value < np.inf or rows < 1, "the cut is not that of residuals")
    return IntervalCut(alpha, value, rows)


def _read_referral(content: Mapping[str, Any]) -> Referral:
    cuts, share = _infinite(content["cuts"]), float(content["share"])
    refuse_if(cuts.shape != (SHARES + 1,) or not 0 <= share <= 1, "there is not a cut for each hundredth")
    return Referral(share, cuts)


def _read_laplace(content: Mapping[str, Any], leaves: Tree, params: Tree, outputs: int) -> Laplace:
    layer, prior = str(content["layer"]), float(content["prior"])
    weight = params[f"{layer}.weight" if layer else "weight"]
    width = weight.shape[1] + 1
    values, axes = leaves["values"], leaves.get("axes")
    fits = values.shape == (outputs, width) and (axes is None or axes.shape == (outputs, width, width))
    refuse_if(
        len(weight) != outputs or not fits or not prior > 0 or not np.isfinite(prior),
        "the approximation is of another last layer",
    )
    for leaf in (values, axes):
        refuse_if(
            leaf is not None and (leaf.dtype != torch.float64 or not bool(torch.isfinite(leaf).all())),
            "the last layer's precision is not a number",
        )
    return Laplace(layer, values, axes, prior)


def _read_swag(content: Mapping[str, Any], leaves: Tree, params: Tree) -> Swag:
    parts, scale = unflatten(leaves), float(content["scale"])
    window = tuple(parts[f"deviation {number}"] for number in range(len(parts) - 2))
    for part in (parts["mean"], parts["variance"], *window):
        alike = set(part) == set(params) and all(part[name].shape == leaf.shape for name, leaf in params.items())
        refuse_if(not alike, "the distribution is of the weights of another model")
        refuse_if(not all(bool(torch.isfinite(leaf).all()) for leaf in part.values()), "a weight is not a number")
    negative = any(bool((leaf < 0).any()) for leaf in parts["variance"].values())
    refuse_if(
        len(window) == 1 or negative or not 0 < scale < np.inf, "the width of the weights' distribution is not one"
    )
    return Swag(parts["mean"], parts["variance"], window, scale)


def _finite(values: np.ndarray) -> Any:
    """JSON has no infinity: null stands for it, and "none" for minus infinity."""
    if values.ndim > 1:
        return [_finite(row) for row in values]
    return [value if np.isfinite(value) else None if value > 0 else NEITHER for value in values.tolist()]


def _infinite(content: Any) -> np.ndarray:
    def number(value: Any) -> Any:
        if isinstance(value, list):
            return _infinite(value)
        return np.inf if value is None else -np.inf if value == NEITHER else value

    array = np.array([number(value) for value in content], dtype=float)
    refuse_if(np.isnan(array).any(), "a cut is not a number")
    return array
