"""Predictions of each site's current model on its own held-out rows."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from wardround.data.site import Rows, join
from wardround.models.model import probabilities, row_losses
from wardround.rounds import Run, Trial, site_model
from wardround.tree import Tree

CHUNK = 4096  # rows at a time, so that images fit into memory


@dataclass(frozen=True)
class SitePrediction:
    site: str
    rows: np.ndarray
    label: np.ndarray
    score: np.ndarray  # (rows,) for two classes, (rows, classes) otherwise
    loss: np.ndarray  # of each row, from the logits


def predict(trial: Trial, run: Run, side: Literal["validation", "test"] = "test") -> list[SitePrediction]:
    rows = [getattr(site, side) for site in trial.scored]
    numbers = [getattr(site, f"{side}_rows") for site in trial.scored]
    own_models = trial.algorithm.personal or trial.model.private or any(m.buffers for m in run.memories.values())
    if own_models and not trial.algorithm.pools:
        made = [scores_of(trial, site_model(trial, run, number), one) for number, one in enumerate(rows)]
    else:  # one model for all: one pass over all rows
        ends = np.cumsum([len(one) for one in rows])[:-1]
        whole = scores_of(trial, site_model(trial, run, 0), join(rows))
        made = list(zip(*(np.split(array, ends) for array in whole), strict=True))
    return [
        SitePrediction(site.name, places, *arrays)
        for site, places, arrays in zip(trial.scored, numbers, made, strict=True)
    ]


def scores_of(trial: Trial, model: tuple[Tree, Tree], rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, scores and losses of all rows, in pieces."""
    params, buffers = model
    scores, losses, labels = [], [], []
    with torch.no_grad():
        for part in torch.split(torch.arange(len(rows)), CHUNK):
            x, y = rows.take(part, trial.dtype)
            logits, _ = trial.model.logits(params, buffers, x, None)
            scores.append(probabilities(logits, trial.model.classes))
            losses.append(row_losses(logits, y, trial.model.classes))
            labels.append(y)
    label, score, loss = (torch.cat(pieces).cpu().numpy() for pieces in (labels, scores, losses))
    return label, score, loss


def quick_figures(predictions: list[SitePrediction]) -> dict[str, float]:
    """Loss and accuracy over all rows: what a curve over rounds shows."""
    label = np.concatenate([p.label for p in predictions])
    score = np.concatenate([p.score for p in predictions])
    loss = np.concatenate([p.loss for p in predictions])
    if np.isnan(score).any():  # diverged: a call from such a score would be an accuracy of nothing
        return {"loss": float("nan"), "accuracy": float("nan")}
    called = score >= 0.5 if score.ndim == 1 else score.argmax(axis=1)
    return {"loss": float(loss.mean(dtype=np.float64)), "accuracy": float((called == label).mean())}
