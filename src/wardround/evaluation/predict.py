"""Predictions of each site's current model on its own held-out rows."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from wardround.models.model import probabilities, row_losses
from wardround.rounds import Run, Trial, site_model

CHUNK = 4096  # rows at a time, so that images fit into memory


@dataclass(frozen=True)
class SitePrediction:
    site: str
    rows: np.ndarray
    label: np.ndarray
    score: np.ndarray  # (rows,) for two classes, (rows, classes) otherwise
    loss: np.ndarray  # of each row, from the logits


def predict(trial: Trial, run: Run, side: Literal["validation", "test"] = "test") -> list[SitePrediction]:
    made = []
    with torch.no_grad():
        for number, site in enumerate(trial.scored):
            params, buffers = site_model(trial, run, trial.trainer_of(number))
            rows = site.test if side == "test" else site.validation
            numbers = site.test_rows if side == "test" else site.validation_rows
            scores, losses, labels = [], [], []
            for part in torch.split(torch.arange(len(rows)), CHUNK):
                x, y = rows.take(part, trial.dtype)
                logits, _ = trial.model.logits(params, buffers, x, None)
                scores.append(probabilities(logits, trial.model.classes))
                losses.append(row_losses(logits, y, trial.model.classes))
                labels.append(y)
            made.append(
                SitePrediction(site.name, numbers, *(torch.cat(part).numpy() for part in (labels, scores, losses)))
            )
    return made


def quick_figures(predictions: list[SitePrediction]) -> dict[str, float]:
    """Loss and accuracy over all rows: what a curve over rounds shows."""
    label = np.concatenate([p.label for p in predictions])
    score = np.concatenate([p.score for p in predictions])
    loss = np.concatenate([p.loss for p in predictions])
    called = score >= 0.5 if score.ndim == 1 else score.argmax(axis=1)
    return {"loss": float(loss.mean(dtype=np.float64)), "accuracy": float((called == label).mean())}
