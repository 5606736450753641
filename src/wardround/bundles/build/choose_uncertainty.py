"""How a bundle's uncertainty is computed: which method fits the model, and what is chosen on validation rows for it."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wardround.bundles.build.run_inputs import Side
from wardround.bundles.bundle import Bundle
from wardround.bundles.uncertainty import (
    ALPHA,
    PASSES,
    SHARE,
    SHARES,
    Measured,
    Referral,
    Uncertainty,
    measure,
    sets_of,
)
from wardround.core import seeds
from wardround.core.errors import StudyError
from wardround.evaluation.metrics import SMALLEST_GROUP
from wardround.study.schema import Uncertainty as Settings
from wardround.uncertainty.calibration import ece, fit_temperature
from wardround.uncertainty.conformal import coverage, fit_cuts, set_sizes
from wardround.uncertainty.decision import answers, referral_reasons, referred
from wardround.uncertainty.laplace import Laplace, choose_prior, fit_laplace
from wardround.uncertainty.referral import LEAST_ROWS, referral_cut
from wardround.uncertainty.validation import has_dropout

MOST_CELLS = 1 << 26  # numbers of rows that are in memory together; of more rows, so many are drawn
MOST_NUMBERS = 1 << 20  # in Laplace's matrices: 8 MB of the bundle; beyond, their diagonals are kept
PIECE = 1 << 22
NOT_ASKED = 'the study asks for one score of each row ([uncertainty] method = "none")'
PRIVATE = "in a study that protects patients nothing is read off rows without noise"


def choose_uncertainty(
    bundle: Bundle, train: Side, validation: Side, private: bool, asked: Settings | None
) -> Uncertainty:
    """`asked` is what the study says of it; None: nothing, and then what fits the model is taken. A bundle is one
    member of an ensemble, so that for one it is the same. `private`: patients are protected."""
    passes = PASSES if asked is None else asked.passes
    wanted = None if asked is None else asked.method
    none = Uncertainty("none", passes, int(bundle.about.get("seed", 0)), "")
    if wanted == "none":
        how = replace(none, why=NOT_ASKED)
    elif has_dropout(bundle.model) and wanted != "laplace":
        how = replace(none, method="dropout")
    elif private:
        how = replace(none, why=f"the model has no dropout, and {PRIVATE}")
    else:
        how = _laplace(none, bundle, train, validation)
    if private:
        return replace(how, unchosen=PRIVATE)
    if len(validation) < LEAST_ROWS:
        return replace(how, unchosen=f"there are fewer than {LEAST_ROWS} validation rows")
    label = validation.label
    score = bundle.scores(validation.x)
    mean = measured(bundle, how, validation.x, score).mean
    # of several classes most have few rows: one cut for all of them
    each_label = label.ndim == 2 or score.ndim == 1
    how = replace(
        how,
        temperature=fit_temperature(label, mean, validation.people),
        cuts=fit_cuts(label, mean, ALPHA if asked is None else asked.alpha, each_label=each_label),
    )
    uncertainty = measured(bundle, how, validation.x, score).uncertainty
    cuts = np.array([referral_cut(uncertainty, number / SHARES) for number in range(SHARES + 1)])
    return replace(how, referral=Referral(SHARE if asked is None else asked.refer, cuts))


def _laplace(none: Uncertainty, bundle: Bundle, train: Side, validation: Side) -> Uncertainty:
    if not len(train):
        return replace(none, why="the model has no dropout, and this site has no training rows")
    try:
        fitted = _fitted(bundle, train)
        if len(validation) >= LEAST_ROWS:
            x, y = _some(bundle, validation)
            fitted = choose_prior(fitted, bundle.model, bundle.params, bundle.buffers, x, y)
    except StudyError as error:
        return replace(none, why=f"the model has no dropout, and {error.problem}")
    return replace(none, method="laplace", laplace=fitted)


def _fitted(bundle: Bundle, train: Side) -> Laplace:
    x, y = _some(bundle, train)
    found = fit_laplace(bundle.model, bundle.params, bundle.buffers, x, y, full=False)
    outputs, width = found.values.shape
    if outputs * width * width <= MOST_NUMBERS:
        found = fit_laplace(bundle.model, bundle.params, bundle.buffers, x, y, full=True)
    return replace(found, values=found.values * (len(train) / len(x)))  # a sum over all rows


def _some(bundle: Bundle, side: Side) -> tuple[Tensor, Tensor]:
    """All rows, or as many as fit into memory."""
    most = max(1, MOST_CELLS // math.prod(side.x.shape[1:]))
    rows = np.arange(len(side))
    if len(rows) > most:
        rows = np.sort(seeds.generator(0, "rows for uncertainty").choice(rows, most, replace=False))
    return torch.from_numpy(side.x[rows]).to(bundle.dtype), torch.from_numpy(side.label[rows])


def measured(bundle: Bundle, how: Uncertainty, x: Any, score: np.ndarray) -> Measured:
    """In pieces."""
    piece = max(1, min(1024, PIECE // math.prod(x.shape[1:])))
    made = []
    for start in range(0, len(score), piece):
        part = torch.from_numpy(np.ascontiguousarray(x[start : start + piece])).to(bundle.dtype)
        own = score[start : start + piece]
        made.append(measure(how, bundle.model, bundle.params, bundle.buffers, part, own, bundle.thresholds))
    if not made:
        return Measured(score, score, score, np.zeros(0))
    return Measured(
        *(np.concatenate([getattr(one, name) for one in made]) for name in ("mean", "low", "high", "uncertainty"))
    )


def figures(bundle: Bundle, how: Uncertainty, x: Any, score: np.ndarray, label: np.ndarray) -> dict[str, Any] | None:
    """What it is worth on these test rows, for the card; None where there are too few of them."""
    if len(label) < SMALLEST_GROUP:
        return None
    found = measured(bundle, how, x, score)
    known, call = label >= 0, bundle.predicted(score)
    right = (call == label) & known
    told: dict[str, Any] = {"rows": len(label), "width": float((found.high - found.low).mean())}
    conformal = sets_of(how, found.mean)
    given = None if conformal is None else answers(conformal, call)
    if given is not None and how.cuts is not None:
        held = coverage(given.sets, label)
        told["sets"] = {
            "asked": 1 - how.cuts.alpha,
            "coverage": float(held) if held.ndim == 0 else _of_findings(bundle, held),
            "size": float(set_sizes(given.sets).mean()),
            "added": float((given.added | given.empty).mean()),
        }
    if how.temperature is not None:
        told["ece"] = {"before": ece(label, found.mean), "after": ece(label, how.temperature.of(found.mean))}
    if how.referral is not None:
        away = referred(referral_reasons(found.uncertainty, how.cut(), given))
        told["referral"] = {
            "share": float(away.mean()),
            "all": _share(right, known),
            "kept": _share(right[~away], known[~away]),
            "referred": _share(right[away], known[away]),
        }
    return told


def _of_findings(bundle: Bundle, held: np.ndarray) -> dict[str, float | None]:
    each = zip(bundle.classes, held.tolist(), strict=True)
    return {name: None if math.isnan(share) else share for name, share in each}


def _share(right: np.ndarray, known: np.ndarray) -> float | None:
    """Of calls that are right."""
    return float(right.sum() / known.sum()) if known.any() else None
