"""Prediction as a list of steps. A step takes what is known of a block of rows, and returns it with more.

A step also names the columns that it adds to the answer, so that files, tables and servers know them before the first
row. `scoring.STEPS` is the list; another step, such as one that explains each prediction, is put behind it:

    predict_table(bundle, table, steps=(*STEPS, Step("explain", explain, columns_of_explanation)))
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import pyarrow as pa

from wardround.bundles.bundle import Bundle
from wardround.bundles.predict.blocks import Block
from wardround.bundles.predict.reading import Notation, ReadBlock
from wardround.bundles.uncertainty import Measured, Uncertainty
from wardround.uncertainty.decision import Answers, Reason

Mark = tuple[Reason, str, np.ndarray]  # the reason, its column or finding, and which rows it holds for
Types = Mapping[str, pa.DataType]


@dataclass(frozen=True)
class PredictOptions:
    """What `predict_table` and the like may leave out: parties, and all that is about uncertainty. `refer_share` is the
    share of rows, such as those of validation, that a clinician is to look at; None: the bundle's own."""

    without: tuple[str, ...] = ()  # parties that are left out, whatever a file has of theirs
    uncertainty: bool = True  # with intervals, prediction sets and referral, where the bundle has them
    refer_share: float | None = None  # of rows like the validation rows; None: the bundle's own

    def uncertainty_of(self, bundle: Bundle) -> Uncertainty | None:
        """None: there is none, or none is wanted."""
        return bundle.uncertainty if self.uncertainty else None


@dataclass(frozen=True)
class Prepared:
    """Rows as the model takes them, and what is unusual about them."""

    x: np.ndarray
    out_of_distribution: np.ndarray
    outside: Mapping[str, np.ndarray]  # by header: rows with a value outside the column's public range
    unseen: Mapping[str, np.ndarray]  # by header: rows with a level that no training row had
    gaps: Mapping[str, np.ndarray]  # by header of a column that this site records: rows in which it is filled
    new_gaps: Mapping[str, np.ndarray]  # those of columns that had no gap in training
    unreadable: np.ndarray
    y: np.ndarray  # what the task needs to know beside the scores
    unexposed: np.ndarray  # rows whose further columns of the target, such as the exposure, give no prediction


@dataclass(frozen=True)
class Scored:
    model: np.ndarray  # what the model gives for every row
    score: np.ndarray  # the same, and NaN where a row has no prediction
    too_large: np.ndarray  # rows whose numbers give no score
    unscored: np.ndarray  # rows without a prediction


@dataclass(frozen=True)
class Decided:
    predicted: np.ndarray  # as the task's answer has it; -1, or NaN for a number, where there is no prediction
    sets: Answers | None = None


@dataclass(frozen=True)
class Predicting:
    """The rows of one block, and what the steps so far have found; None where no step has, or where the bundle does not
    offer it."""

    bundle: Bundle
    block: Block
    options: PredictOptions
    missing_parties: Mapping[str, np.ndarray] = field(default_factory=dict)  # by party: rows without it
    read: ReadBlock | None = None
    prepared: Prepared | None = None
    scored: Scored | None = None
    measured: Measured | None = None
    decided: Decided | None = None
    refer: np.ndarray | None = None
    columns: Mapping[str, pa.Array] = field(default_factory=dict)  # of the answer
    counts: Counter[str] = field(default_factory=Counter)  # rows of each kind, for the summary

    def __len__(self) -> int:
        return self.block.rows

    @property
    def settings(self) -> Uncertainty | None:
        return self.options.uncertainty_of(self.bundle)

    @property
    def notations(self) -> Mapping[str, Notation]:
        return {} if self.read is None else self.read.notations

    @property
    def unreadable(self) -> dict[str, str]:
        """By place: why an image could not be read."""
        return {self.block.place(row): why for row, why in self.block.unreadable.items()}

    def adding(self, columns: Mapping[str, pa.Array]) -> "Predicting":
        return replace(self, columns={**self.columns, **columns})


Part = TypeVar("Part")


def known(part: Part | None) -> Part:
    """What a step before this one has found."""
    if part is None:
        raise LookupError("a step comes before the one whose result it needs")
    return part


def no_columns(bundle: Bundle, options: PredictOptions) -> Types:
    return {}


@dataclass(frozen=True)
class Step:
    name: str
    run: Callable[[Predicting], Predicting]
    columns: Callable[[Bundle, PredictOptions], Types] = no_columns  # that it adds to the answer, with their types


def run_steps(steps: Sequence[Step], rows: Predicting) -> Predicting:
    for step in steps:
        rows = step.run(rows)
    return rows


def columns_of(steps: Sequence[Step], bundle: Bundle, options: PredictOptions) -> dict[str, pa.DataType]:
    """Of the whole answer, in the order of the steps."""
    return {name: kind for step in steps for name, kind in step.columns(bundle, options).items()}
