"""What a method of explanation is: a pure function that says how much each column, or pixel, of a row contributes to
one score of a model, and declared facts.

A score is explained before the inverse link (log odds, log rate, or units of a number), where contributions add up. A
column is what the reader knows as one: all of its numbers (indicators of its levels and of its gaps) change together.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from wardround.core.tree import Tree
from wardround.data.prepare import Recipe
from wardround.models import Model

CELLS = 1 << 22  # numbers of rows that are scored together


@dataclass(frozen=True)
class Columns:
    """The columns of a hospital's own file."""

    names: tuple[str, ...]
    places: tuple[tuple[int, ...], ...]  # of each: its numbers among those of a prepared row

    def __len__(self) -> int:
        return len(self.names)

    @classmethod
    def of(cls, columns: Sequence[str]) -> "Columns":
        """From the column behind each number of a prepared row."""
        names = tuple(dict.fromkeys(columns))
        return cls(names, tuple(tuple(np.flatnonzero(np.array(columns) == name).tolist()) for name in names))

    @classmethod
    def of_recipe(cls, recipe: Recipe) -> "Columns":
        """By their names in the hospital's own file."""
        own = {column.name: column.own_name for column in recipe.columns}
        return cls.of([own[name] for name in recipe.layout.columns])

    @cached_property
    def membership(self) -> np.ndarray:
        """(columns, numbers): 1 where a number is the column's."""
        matrix = np.zeros((len(self), 1 + max((place for own in self.places for place in own), default=-1)))
        for column, places in enumerate(self.places):
            matrix[column, list(places)] = 1
        return matrix


@dataclass(frozen=True, eq=False)
class Scorer:
    """One score of a model as a pure function of prepared rows, differentiable where the model is."""

    model: Model
    params: Tree = field(repr=False)
    buffers: Tree = field(repr=False)
    columns: Columns = Columns((), ())  # none for images
    scale: tuple[float, ...] = ()  # what the task knows of the target of all sites
    output: int = 0  # which of the model's scores

    def __call__(self, x: Tensor) -> Tensor:
        """(rows,) on the task's link scale."""
        return self.outputs(x)[:, self.output]

    def outputs(self, x: Tensor) -> Tensor:
        """All scores of the model, (rows, outputs)."""
        scores, _ = self.model.logits(self.params, self.buffers, x, None)
        return self.model.task.on_link_scale(scores, self.scale)

    def values(self, x: Tensor) -> np.ndarray:
        """Without gradients, so many rows at a time that the memory holds them: (rows,) in double precision."""
        return self.all_values(x)[:, self.output]

    def all_values(self, x: Tensor) -> np.ndarray:
        """Of all outputs, (rows, outputs)."""
        size = max(1, CELLS // max(1, math.prod(x.shape[1:])))
        with torch.no_grad():
            return torch.cat([self.outputs(part).double() for part in torch.split(x, size)]).numpy()

    def of(self, output: int) -> "Scorer":
        return replace(self, output=output)


@dataclass(frozen=True, eq=False)
class Attribution:
    """Of some rows. `values` is (rows, columns), or (rows, height, width) for images."""

    values: np.ndarray
    base: float  # the mean score of the background; NaN where a method knows none
    completeness_error: np.ndarray  # (rows,): |base + sum of values - score|; NaN where a method does not promise it
    sampling_error: np.ndarray | None = None  # standard error of each value, where values are sampled

    @classmethod
    def complete(
        cls, values: np.ndarray, base: float, scores: np.ndarray, sampling_error: np.ndarray | None = None
    ) -> "Attribution":
        """Of a method that promises that values add up to the score."""
        total = values.reshape(len(values), -1).sum(axis=1)
        return cls(values, base, np.abs(base + total - scores), sampling_error)

    @classmethod
    def incomplete(cls, values: np.ndarray, base: float = math.nan) -> "Attribution":
        return cls(values, base, np.full(len(values), math.nan))


# scorer, rows (rows, ...), background (rows, ...), draws -> their attribution. Nothing is written into the arguments
Attribute = Callable[[Scorer, Tensor, Tensor, np.random.Generator], Attribution]


@dataclass(frozen=True, kw_only=True)
class Method:
    attribute: Attribute
    title: str  # for readers
    citation: str
    explains: Literal["table", "image", "both"]
    linear_only: bool = False  # takes no other model
    exact_for_linear: bool = False  # equals w x (value - mean of the background), where the model is linear
    complete: bool = False  # promises that base and values add up to the score
    samples: bool = False  # draws, and states a sampling error
    needs_gradients: bool = False
    needs_feature_maps: bool = False  # of a convolutional layer
    needs_background: bool = True  # looks at the rows of the background, not at their shape alone
    most_columns: int | None = None  # takes no more; None: any number

    def takes(self, scorer: Scorer, images: bool = False) -> bool:
        """Whether it can explain rows of this model."""
        if self.explains not in ("both", "image" if images else "table"):
            return False
        if self.linear_only and not scorer.model.linear:
            return False
        if self.needs_feature_maps and scorer.model.feature_maps is None:
            return False
        return self.most_columns is None or len(scorer.columns) <= self.most_columns
