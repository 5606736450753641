"""How unsure a bundle is of a row: an interval of its score, a set of answers, and whether a clinician should look.

The interval says where the middle 90 % of many thinned networks (dropout) or of likely last layers (Laplace) put the
score. The set holds the right answer as often as was asked for. Who is the least clear goes by the doubt of the calls
(`uncertainty.parts.doubt_of`), as a study measures it. What follows for the set and for referral is decided in
`uncertainty.decision`. All that is chosen is chosen on validation rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from scipy.special import expit, ndtri
from torch import Tensor

from wardround.core import seeds
from wardround.core.tree import Tree
from wardround.models import Model
from wardround.uncertainty.calibration import Temperature
from wardround.uncertainty.conformal import Cuts, prediction_sets
from wardround.uncertainty.decomposition import INTERVAL, doubt_of, interval, of_rows
from wardround.uncertainty.laplace import Laplace, laplace_passes, moderated, score_and_variance
from wardround.uncertainty.passes import mc_dropout
from wardround.uncertainty.validation import has_dropout

Method = Literal["dropout", "laplace", "none"]
PASSES = 30
ALPHA = 0.1
SHARE = 0.2  # of rows like the validation rows that are referred, unless another is asked for
SHARES = 100  # cuts are kept for every hundredth
REACH = float(ndtri((1 + INTERVAL) / 2))  # of a normal distribution, in SDs
NEITHER = "none"
MOST_IN_A_NUMBER = 62  # labels, of which each is a bit


@dataclass(frozen=True, eq=False)
class Referral:
    """`cuts[n]` is the uncertainty above which n hundredths of validation rows lie."""

    share: float
    cuts: np.ndarray


@dataclass(frozen=True, eq=False)
class Uncertainty:
    """`why` says in plain words why there is no interval, or no set and no referral; empty where there are."""

    method: Method
    passes: int
    seed: int  # of the masks, or of the order of quantiles
    why: str
    laplace: Laplace | None = None
    temperature: Temperature | None = None
    cuts: Cuts | None = None
    referral: Referral | None = None
    unchosen: str = ""  # why nothing was chosen on validation rows

    def cut(self, share: float | None = None) -> float:
        """Above which uncertainty a row is referred; infinite where none is known."""
        if self.referral is None:
            return float("inf")
        return float(self.referral.cuts[round(SHARES * (self.referral.share if share is None else share))])


@dataclass(frozen=True)
class Measured:
    """Of some rows. All but `unsure` have the shape of the scores."""

    mean: np.ndarray  # over passes
    low: np.ndarray
    high: np.ndarray
    unsure: np.ndarray  # (rows,), in bits


def measure(
    how: Uncertainty,
    model: Model,
    params: Tree,
    buffers: Tree,
    x: Tensor,
    score: np.ndarray,
    thresholds: np.ndarray | float,
) -> Measured:
    """`score` is the bundle's own of the same rows: an interval is widened where it would not hold it. `thresholds` are
    those of findings."""
    mean, low, high = score.astype(np.float64), score.astype(np.float64), score.astype(np.float64)
    if how.method == "laplace" and how.laplace is not None and (model.findings or model.classes == 2):
        z, variance = score_and_variance(how.laplace, model, params, buffers, x)
        if not model.findings:
            z, variance = z.squeeze(-1), variance.squeeze(-1)
        half = REACH * variance.sqrt()
        mean, low, high = (expit(one.numpy()) for one in (moderated(z, variance), z - half, z + half))
    elif how.method != "none":
        rng = seeds.generator(how.seed, "passes of a bundle")
        if how.method == "laplace" and how.laplace is not None:
            logits = laplace_passes(how.laplace, model, params, buffers, x, how.passes, rng)
        else:
            logits = mc_dropout(model, params, buffers, x, how.passes, rng)
        p = np.nan_to_num(model.probabilities(logits).double().numpy(), nan=0.5)  # such rows have no score either
        mean = p.mean(axis=0)
        low, high = interval(p)
    # numbers beyond all bounds may have a score; how sure it is cannot be computed
    lost = ~(np.isfinite(mean) & np.isfinite(low) & np.isfinite(high))
    mean, low, high = np.where(lost, score, mean), np.where(lost, 0.0, low), np.where(lost, 1.0, high)
    # a row without a score has no doubt that could be computed: it is referred for that
    known = np.where(np.isfinite(mean), mean, 0.5)
    unsure = of_rows(doubt_of(known, model.findings, thresholds))
    unsure = np.where(lost.reshape(len(lost), -1).any(axis=1), np.inf, unsure)
    return Measured(mean, np.minimum(low, score), np.maximum(high, score), unsure)


def sets_of(how: Uncertainty, mean: np.ndarray) -> np.ndarray | None:
    """Conformal sets: (rows, classes), or (rows, findings, 2) for absent and present; None where no cut is known. The
    call is not looked at here."""
    return None if how.cuts is None else prediction_sets(how.cuts, mean)


def in_sets(sets: np.ndarray, names: Sequence[str]) -> tuple[np.ndarray, list[str]]:
    """Of (rows, labels): for each row the number of its words, and the words."""
    bits = 1 << np.arange(len(names), dtype=np.int64 if len(names) <= MOST_IN_A_NUMBER else object)
    found, numbers = np.unique(sets @ bits, return_inverse=True)
    words = [" or ".join(name for place, name in enumerate(names) if int(one) >> place & 1) or NEITHER for one in found]
    return numbers, words


def write_uncertainty(how: Uncertainty) -> dict[str, Any]:
    """As plain data; what Laplace needs are tensors, and kept with the weights."""
    temperature, cuts, referral = how.temperature, how.cuts, how.referral
    return {
        "method": how.method,
        "passes": how.passes,
        "seed": how.seed,
        "interval": INTERVAL,
        "why": how.why,
        "unchosen": how.unchosen,
        "laplace": None if how.laplace is None else {"layer": how.laplace.layer, "prior": how.laplace.prior},
        "temperature": None
        if temperature is None
        else {"values": temperature.values.tolist(), "fitted": temperature.fitted.tolist()},
        "sets": None
        if cuts is None
        else {"alpha": cuts.alpha, "kind": cuts.kind, "cuts": _finite(cuts.values), "rows": cuts.rows.tolist()},
        "referral": None if referral is None else {"share": referral.share, "cuts": _finite(referral.cuts)},
    }


def tensors_of(how: Uncertainty) -> Tree:
    if how.laplace is None:
        return {}
    axes = {} if how.laplace.axes is None else {"laplace/axes": how.laplace.axes}
    return {"laplace/values": how.laplace.values, **axes}


def read_uncertainty(told: Mapping[str, Any], leaves: Tree, model: Model, params: Tree, outputs: int) -> Uncertainty:
    """Refused, by a ValueError, where it does not fit the model."""
    method: Method = told["method"]
    if method not in ("dropout", "laplace", "none") or (method == "dropout" and not has_dropout(model)):
        raise ValueError("the model's uncertainty is not known in this way")
    passes = int(told["passes"])
    if not 2 <= passes <= 1000:
        raise ValueError("so many passes are not made")
    made = Uncertainty(method, passes, int(told["seed"]), str(told["why"]), unchosen=str(told["unchosen"]))
    if method == "laplace":
        made = replace(made, laplace=_read_laplace(told["laplace"], leaves, params, outputs))
    size = model.classes if model.findings else 1
    if told["temperature"] is not None:
        values = np.array(told["temperature"]["values"], dtype=float)
        if values.shape != (size,) or not (np.isfinite(values) & (values > 0)).all():
            raise ValueError("a temperature is not a number above 0")
        fitted = np.array(told["temperature"]["fitted"], dtype=bool)
        made = replace(made, temperature=Temperature(values, fitted, model.findings))
    if told["sets"] is not None:
        shape = (model.classes, 2) if model.findings else (model.classes,)
        cuts, kind = _infinite(told["sets"]["cuts"]), told["sets"]["kind"]
        rows = np.array(told["sets"]["rows"], dtype=np.int64)
        if cuts.shape != shape or rows.shape != shape or kind not in ("plain", "adaptive"):
            raise ValueError("the sets are of other labels")
        made = replace(made, cuts=Cuts(float(told["sets"]["alpha"]), kind, cuts, rows))
    if told["referral"] is not None:
        cuts, share = _infinite(told["referral"]["cuts"]), float(told["referral"]["share"])
        if cuts.shape != (SHARES + 1,) or not 0 <= share <= 1:
            raise ValueError("there is not a cut for each hundredth")
        made = replace(made, referral=Referral(share, cuts))
    return made


def _read_laplace(told: Mapping[str, Any], leaves: Tree, params: Tree, outputs: int) -> Laplace:
    layer, prior = str(told["layer"]), float(told["prior"])
    weight = params[f"{layer}.weight" if layer else "weight"]
    width = weight.shape[1] + 1
    values, axes = leaves["values"], leaves.get("axes")
    fits = values.shape == (outputs, width) and (axes is None or axes.shape == (outputs, width, width))
    if len(weight) != outputs or not fits or not prior > 0 or not np.isfinite(prior):
        raise ValueError("the last layer is another")
    for leaf in (values, axes):
        if leaf is not None and (leaf.dtype != torch.float64 or not bool(torch.isfinite(leaf).all())):
            raise ValueError("the last layer's precision is not a number")
    return Laplace(layer, values, axes, prior)


def _finite(values: np.ndarray) -> Any:
    """JSON has no infinity: null stands for it, and "none" for the one below all."""
    return [_finite(one) if isinstance(one, np.ndarray) else _told(float(one)) for one in values]


def _told(value: float) -> float | str | None:
    return value if np.isfinite(value) else None if value > 0 else NEITHER


def _infinite(told: Any) -> np.ndarray:
    made = np.array(
        [
            _infinite(one) if isinstance(one, list) else np.inf if one is None else -np.inf if one == NEITHER else one
            for one in told
        ],
        dtype=float,
    )
    if np.isnan(made).any():
        raise ValueError("a cut is not a number")
    return made
