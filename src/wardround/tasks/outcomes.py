"""Several outcomes of one row, classes and numbers mixed: one model with a head for each, and one loss.

The loss of a row is the sum of the outcomes' losses, each times its weight. Predictions of all outcomes stand side by
side; each outcome is scored and reported by its own task: figures are asked of the parts and never of the whole.

A row's target has the columns of one outcome after those of another, as numbers: a class is one column, a number has as
many as its own task says.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, ClassVar, Literal, NoReturn, cast

import numpy as np
import torch
from torch import Tensor

from wardround.core.errors import StudyError
from wardround.tasks.answer import Answer
from wardround.tasks.task import Task


@dataclass(frozen=True)
class Outcomes(Task):
    kind: ClassVar[str] = "outcomes"
    reads: ClassVar[Literal["classes", "numbers"]] = "numbers"
    answers: ClassVar[Literal["class", "findings", "number", "several"]] = "several"
    metrics = ()
    primary = ""
    curve = "loss"
    loss_from_zero = False  # a sum of several, some of which may not
    compared = ()
    at_sites = ()
    over_sites = ()

    tasks: tuple[Task, ...] = ()  # in the order of `names`
    weights: tuple[float, ...] = ()  # of their losses

    @property
    def outcomes(self) -> dict[str, Task]:
        return dict(zip(self.names, self.tasks, strict=True))

    @property
    def outputs(self) -> int:
        return sum(task.outputs for task in self.tasks)

    @property
    def leaves(self) -> dict[str, float]:
        return {f"{name}.{leaf}": value for name, task in self.outcomes.items() for leaf, value in task.leaves.items()}

    @property
    def answer(self) -> Answer:
        raise self._separate()

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for task in self.tasks for name in task.columns))

    @property
    def scale_is_public(self) -> bool:
        return all(task.scale_is_public for task in self.tasks)

    # -- targets

    def target_of(self, target: np.ndarray, name: str) -> np.ndarray:
        """One outcome's part of a source's target."""
        place, task = self.names.index(name), self.outcomes[name]
        own = target[:, self._spans([task.target_width for task in self.tasks])[place]]
        if task.reads == "classes":
            return np.asarray(own[:, 0].astype(np.int64))
        return np.asarray(own[:, 0] if task.target_width == 1 else own)

    def label_of(self, label: np.ndarray, name: str) -> np.ndarray:
        """One outcome's part of `label`."""
        own = label[:, self.names.index(name)]
        return own.astype(np.int64) if self.outcomes[name].reads == "classes" else own

    def blank_target(self, rows: int) -> np.ndarray:
        return np.ones((rows, self.target_width))

    def target_sums(self, target: np.ndarray) -> np.ndarray:
        return np.concatenate([task.target_sums(self.target_of(target, name)) for name, task in self.outcomes.items()])

    def scale(self, sums: np.ndarray) -> tuple[float, ...]:
        spans = self._spans([len(task.target_sums(np.ones((1, task.target_width)))) for task in self.tasks])
        return tuple(value for task, span in zip(self.tasks, spans, strict=True) for value in task.scale(sums[span]))

    def training_target(self, target: np.ndarray, scale: tuple[float, ...]) -> np.ndarray:
        spans, parts = self._spans([task.scale_width for task in self.tasks]), []
        for (name, task), span in zip(self.outcomes.items(), spans, strict=True):
            parts.append(task.training_target(self.target_of(target, name), scale[span]).reshape(len(target), -1))
        return np.concatenate(parts, axis=1).astype(np.float64)

    @property
    def target_width(self) -> int:
        return sum(task.target_width for task in self.tasks)

    @property
    def scale_width(self) -> int:
        return sum(task.scale_width for task in self.tasks)

    def _y(self, y: Tensor) -> Iterator[Tensor]:
        """Each outcome's part of what training takes."""
        for task, span in zip(
            self.tasks, self._spans([task.target_width + task.scale_width for task in self.tasks]), strict=True
        ):
            yield y[..., span.start].long() if task.reads == "classes" else y[..., span]

    def _scores(self, scores: Tensor) -> Iterator[Tensor]:
        """Each outcome's scores, with its own leaves behind them."""
        heads = self._spans([task.outputs for task in self.tasks])
        behind = self._spans([len(task.leaves) for task in self.tasks], self.outputs)
        for head, leaf in zip(heads, behind, strict=True):
            own = scores[..., head]
            yield own if leaf.start == leaf.stop else torch.cat([own, scores[..., leaf]], dim=-1)

    def y_of(self, y: Tensor, name: str) -> Tensor:
        return list(self._y(y))[self.names.index(name)]

    def scores_of(self, scores: Tensor, name: str) -> Tensor:
        return list(self._scores(scores))[self.names.index(name)]

    def _spans(self, widths: list[int], first: int = 0) -> list[slice]:
        return [slice(a, b) for a, b in pairwise(accumulate(widths, initial=first))]

    # -- loss and predictions

    def row_losses(self, scores: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        parts = zip(self.tasks, self.weights, self._scores(scores), self._y(y), strict=True)
        return torch.stack([weight * task.row_losses(own, labels) for task, weight, own, labels in parts]).sum(0)

    def losses_and_errors(self, scores: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        by_copy = scores.reshape(*scores.shape[:-1], -1, self.outputs)
        heads = self._spans([task.outputs for task in self.tasks])
        losses, errors = [], []
        for task, weight, head, labels in zip(self.tasks, self.weights, heads, self._y(y), strict=True):
            loss, error = task.losses_and_errors(by_copy[..., head].flatten(-2), labels)
            losses.append(weight * loss)
            errors.append(weight * error.reshape(*by_copy.shape[:-1], task.outputs))
        return torch.stack(losses).sum(0), torch.cat(errors, dim=-1).flatten(-2)

    def curvature(self, scores: Tensor, y: Tensor) -> Tensor:
        raise self._separate()

    def predictions(self, scores: Tensor, y: Tensor | None = None) -> Tensor:
        if y is None:
            raise ValueError("numbers are predicted in the scale that their targets have beside the values")
        parts = zip(self.tasks, self._scores(scores), self._y(y), strict=True)
        columns = [task.predictions(own, labels).double().reshape(len(own), -1) for task, own, labels in parts]
        return torch.cat(columns, dim=-1)

    def score_of(self, score: np.ndarray, name: str) -> np.ndarray:
        """One outcome's part of predictions."""
        widths = [1 if task.outputs == 1 else task.outputs for task in self.tasks]
        own = score[:, self._spans(widths)[self.names.index(name)]]
        return np.asarray(own[:, 0] if own.shape[1] == 1 else own)

    def row_figures(self, scores: Tensor, y: Tensor) -> Tensor:
        return self.row_losses(scores, y)

    def label(self, y: Tensor) -> Tensor:
        parts = zip(self.tasks, self._y(y), strict=True)
        return torch.stack([task.label(labels).double() for task, labels in parts], dim=-1)

    # -- rows

    def class_weights(self, labels: Tensor) -> Tensor:
        raise _no_classes("class_weights")

    def rarity(self, labels: Tensor) -> Tensor:
        raise _no_classes("oversample")

    def label_counts(self, target: np.ndarray) -> dict[str, int]:
        """Of the outcomes that are classes."""
        return {
            f"{name}: {label}": count
            for name, task in self.outcomes.items()
            for label, count in task.label_counts(self.target_of(target, name)).items()
        }

    def describe_target(self, target: np.ndarray) -> dict[str, float | None] | None:
        """Of the outcomes that are numbers."""
        described = {name: task.describe_target(self.target_of(target, name)) for name, task in self.outcomes.items()}
        told = {f"{name}: {key}": value for name, own in described.items() for key, value in (own or {}).items()}
        return told or None

    @property
    def counted(self) -> tuple[str, ...]:
        return tuple(f"{name}: {label}" for name, task in self.outcomes.items() for label in task.counted)

    def strata(self, target: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Those of the first outcome."""
        return self.tasks[0].strata(self.target_of(target, self.names[0]), rows)

    def coarse(self, target: np.ndarray) -> tuple[np.ndarray, int]:
        """That of the first outcome."""
        return self.tasks[0].coarse(self.target_of(target, self.names[0]))

    def written(self, target: np.ndarray) -> dict[str, np.ndarray]:
        columns: dict[str, np.ndarray] = {}
        for name, task in self.outcomes.items():
            own = task.written(self.target_of(target, name))
            columns |= {f"label_{name}": own.pop("label"), **own}
        return columns

    # -- columns of predictions

    def label_columns(self) -> list[str]:
        return [f"label_{name}" for name in self.names]

    def score_columns(self) -> list[str]:
        return [column for _, columns in self._score_columns() for column in columns]

    def columns_of(self, name: str) -> dict[str, str]:
        """From the columns of one outcome to those that its task would have alone."""
        task, own = self.outcomes[name], dict(self._score_columns())[name]
        return {f"label_{name}": "label", **dict(zip(own, task.score_columns(), strict=True))}

    def _score_columns(self) -> Iterator[tuple[str, list[str]]]:
        for name, task in self.outcomes.items():
            yield name, [f"score_{name}{column.removeprefix('score')}" for column in task.score_columns()]

    # -- figures are the outcomes' own

    def _separate(self) -> TypeError:
        return TypeError(f"each of {', '.join(self.names)} has figures of its own")

    def _none(self, *args: Any, **options: Any) -> NoReturn:
        raise self._separate()

    predicted = row_values = against_constant = figures = grouped_figures = weighted_figures = _none
    row_sums = figures_of_rows = merged_figures = check_sums = on_link_scale = _none

    # -- plain data

    def to_json(self) -> dict[str, Any]:
        tasks = [task.to_json() for task in self.tasks]
        return {"kind": self.kind, "names": list(self.names), "tasks": tasks, "weights": list(self.weights)}

    @property
    def words(self) -> str:
        return "; ".join(task.words for task in self.tasks)


def several_outcomes(task: Task) -> Outcomes:
    """For code that only tasks of several outcomes reach."""
    if not task.outcomes:
        raise ValueError(f"{task.kind} has one outcome")
    return cast(Outcomes, task)


def outcomes_of(tasks: Mapping[str, Task], weights: Mapping[str, float]) -> Outcomes:
    return Outcomes(tuple(tasks), tuple(tasks.values()), tuple(weights.get(name, 1.0) for name in tasks))


def _no_classes(setting: str) -> StudyError:
    problem = "is for one outcome of classes, and this study has several outcomes"
    return StudyError(f"training: {setting}", problem, f"Leave `{setting}` out.")
