"""Predictions of each site's current model on its own held-out rows."""

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import numpy as np
import torch

from wardround.core.tree import Tree
from wardround.data.site import Rows, join
from wardround.tasks import Task
from wardround.training.rounds import site_model
from wardround.training.trial import Run, Trial

Subset = Literal["train", "validation", "test"]
CELLS = 2**22  # numbers of rows at a time, so that images and a network's activations fit into memory


@dataclass(frozen=True)
class SitePrediction:
    site: str
    rows: np.ndarray
    label: np.ndarray
    score: np.ndarray  # (rows,) for two classes and numbers, (rows, classes) or (rows, findings) otherwise
    loss: np.ndarray  # of each row, from the logits
    right: np.ndarray  # what the task's `curve` is the mean of: whether each row is predicted correctly, or its error
    task: Task = field(kw_only=True)
    patients: np.ndarray | None = None  # the patient of each row, as a number; None: each row is one

    @property
    def people(self) -> np.ndarray:
        return np.arange(len(self.rows)) if self.patients is None else self.patients


def has_site_models(trial: Trial, run: Run) -> bool:
    """Whether sites predict with models that differ, in whole or in part."""
    personal = trial.algorithm.personal or trial.model.private or any(m.buffers for m in run.memories.values())
    return bool(personal) and not trial.algorithm.pools


def predict(trial: Trial, run: Run, subset: Subset = "test") -> list[SitePrediction]:
    """Training rows have no row numbers: they are only used together."""
    rows = [getattr(site, subset) for site in trial.scored]
    numbers = [getattr(site, f"{subset}_rows", np.array([], dtype=np.int64)) for site in trial.scored]
    if has_site_models(trial, run):
        arrays = [scores_of(trial, site_model(trial, run, number), of_site) for number, of_site in enumerate(rows)]
    else:  # one model for all: one pass over all rows
        ends = np.cumsum([0, *map(len, rows)]).tolist()
        whole = scores_of(trial, site_model(trial, run, 0), join(rows))
        arrays = [tuple(array[begin:end] for array in whole) for begin, end in pairwise(ends)]
    return [
        SitePrediction(site.name, places, *of_site, task=trial.model.task)
        for site, places, of_site in zip(trial.scored, numbers, arrays, strict=True)
    ]


def scores_of(trial: Trial, weights: tuple[Tree, Tree], rows: Rows) -> tuple[np.ndarray, ...]:
    """Labels, scores, losses and hits of all rows, computed in batches."""
    params, buffers = weights
    model, task, batches = trial.model, trial.model.task, []
    size = max(1, min(4096, CELLS // max(1, math.prod(rows.inputs))))
    with torch.no_grad():
        for part in torch.split(torch.arange(len(rows)), size):
            x, y = rows.take(part, trial.dtype)
            logits, _ = model.logits(params, buffers, x, None)
            losses, figures = task.row_losses(logits, y), task.row_figures(logits, y)
            batches.append((task.label(y), task.predictions(logits, y), losses, figures))
    return tuple(torch.cat(arrays).cpu().numpy() for arrays in zip(*batches, strict=True))


def quick_figures(predictions: list[SitePrediction]) -> dict[str, float]:
    """Loss and accuracy over all rows: what a curve over rounds shows; for findings also the mean AUC, and in place of
    the accuracy whatever the task's `curve` is."""
    label, score, loss, right = (
        np.concatenate([getattr(p, name) for p in predictions]) for name in ("label", "score", "loss", "right")
    )
    task = predictions[0].task
    figures = {"loss": float(loss.mean(dtype=np.float64)), task.curve: float(right.mean(dtype=np.float64))}
    figures |= task.round_figures(label, score)
    if np.isnan(score).any():  # diverged
        return dict.fromkeys(figures, float("nan"))
    return figures
