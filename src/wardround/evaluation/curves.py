"""Figures after each round (loss and accuracy; for findings also the AUC; for numbers the mean error), for people to
look at and never to choose by.

A stack's curves are computed for all its trials at once; they equal `quick_figures` of each trial's predictions.
"""

from collections.abc import Sequence

import numpy as np
import torch

from wardround.algorithms.hierarchical import as_merged
from wardround.core.tree import Tree
from wardround.engines.stacked.lanes import RowPool
from wardround.engines.stacked.stacked import StackState, models_of_stack
from wardround.evaluation.prediction import Subset, predict, quick_figures
from wardround.training.trial import Run, Trial

PREFIX: dict[Subset, str] = {"train": "training", "validation": "validation", "test": "test"}
CELLS = 2**24  # numbers in one batch of a stack's held-out rows


class StackCurves:
    """Held-out rows of a stack, laid out once. Rows of one model stand together, filled up to the longest."""

    def __init__(self, trials: Sequence[Trial], subset: Subset) -> None:
        self.trials, self.subset = trials, subset
        self.whole: tuple[torch.Tensor, torch.Tensor] | None = None
        self.personal = trials[0].algorithm.personal or bool(trials[0].model.private)
        sites = [[getattr(site, subset) for site in trial.scored] for trial in trials]
        self.pool = RowPool([rows for row in sites for rows in row])
        per_site = [[self.pool.of(rows) for rows in row] for row in sites]
        groups = (
            [rows for row in per_site for rows in row] if self.personal else [np.concatenate(row) for row in per_site]
        )
        width = max(map(len, groups))
        self.rows = torch.from_numpy(np.stack([np.pad(group, (0, width - len(group))) for group in groups]))
        self.real = torch.from_numpy(np.stack([np.arange(width) < len(group) for group in groups]))

    def figures(self, state: StackState) -> list[dict[str, float]]:
        trial, task, dtype = self.trials[0], self.trials[0].model.task, self.trials[0].dtype
        leaves = self._models(state)
        per_row = max(1, self.pool.x[0].numel()) * len(self.rows)
        losses, hits = (torch.zeros(len(self.rows), dtype=torch.float64) for _ in range(2))
        predicted: list[tuple[torch.Tensor, torch.Tensor]] = []  # labels and scores, for `round_metrics`
        with torch.no_grad():
            for part in torch.split(torch.arange(self.rows.shape[1]), max(1, CELLS // per_row)):
                x, y = self._rows_of(part, dtype)
                scores = trial.model.stacked_logits(leaves, x)
                real = self.real[:, part]
                flat, truth = scores.flatten(0, 1), y.flatten(0, 1)
                loss = task.row_losses(flat, truth).reshape(real.shape)
                right = task.row_figures(flat, truth).reshape(real.shape)
                losses += (loss * real).sum(1, dtype=torch.float64)
                hits += (right * real).sum(1, dtype=torch.float64)
                if task.round_metrics:
                    predicted.append((y, task.predictions(scores, y)))
        counts = self.real.sum(1)
        lanes = len(self.rows) // len(self.trials)
        total = counts.reshape(-1, lanes).sum(1)
        loss, figure = (value.reshape(-1, lanes).sum(1) / total for value in (losses, hits))
        figure[loss.isnan()] = float("nan")  # diverged
        columns = {"loss": loss.tolist(), task.curve: figure.tolist()}
        if predicted:
            columns |= self._round_figures(*(torch.cat(parts, dim=1) for parts in zip(*predicted, strict=True)))
        named = {f"{PREFIX[self.subset]}_{name}": values for name, values in columns.items()}
        return [dict(zip(named, point, strict=True)) for point in zip(*named.values(), strict=True)]

    def _round_figures(self, label: torch.Tensor, score: torch.Tensor) -> dict[str, list[float]]:
        """Each trial's, of all its groups' rows together; NaN where it has diverged."""
        lanes, task = len(self.rows) // len(self.trials), self.trials[0].model.task
        figures: dict[str, list[float]] = {name: [] for name in task.round_metrics}
        for labels, scores, real in zip(*(torch.split(p, lanes) for p in (label, score, self.real)), strict=True):
            own = scores[real].numpy()
            known = {} if np.isnan(own).any() else task.round_figures(labels[real].numpy(), own)
            for name, values in figures.items():
                values.append(known.get(name, float("nan")))
        return figures

    def _rows_of(self, part: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows of a batch; fetched once for all rounds if all rows fit into one batch."""
        if len(part) < self.rows.shape[1]:
            return self.pool.take(self.rows[:, part], dtype)
        if self.whole is None:
            self.whole = self.pool.take(self.rows, dtype)
        return self.whole

    def _models(self, state: StackState) -> Tree:
        """One model for each group of rows."""
        algorithm = self.trials[0].algorithm
        if not self.personal:
            return algorithm.begin(algorithm.broadcast(as_merged(state.server), 0), {})
        return models_of_stack(self.trials, state)


class Curves:
    """Curves of a unit, whichever engine runs it; after the last round also on training rows, if `on_training`."""

    def __init__(self, trials: Sequence[Trial], on_training: bool = False) -> None:
        self.trials, self.on_training = trials, on_training
        with_validation = any(len(site.validation) for site in trials[0].scored)
        self.subsets: tuple[Subset, ...] = ("test", "validation") if with_validation else ("test",)
        self.stacks: dict[Subset, StackCurves] = {}

    def after(self, state: StackState | Run, last: bool = False) -> list[dict[str, float]]:
        subsets: tuple[Subset, ...] = (*self.subsets, "train") if last and self.on_training else self.subsets
        if isinstance(state, Run):
            figures: dict[str, float] = {}
            for subset in subsets:
                of_subset = quick_figures(predict(self.trials[0], state, subset))
                figures |= {f"{PREFIX[subset]}_{name}": value for name, value in of_subset.items()}
            return [figures]
        for subset in subsets:
            if subset not in self.stacks:
                self.stacks[subset] = StackCurves(self.trials, subset)
        parts = [self.stacks[subset].figures(state) for subset in subsets]
        of_trials = zip(*parts, strict=True)
        return [{name: value for part in of_trial for name, value in part.items()} for of_trial in of_trials]
