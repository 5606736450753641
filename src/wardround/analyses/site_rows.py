"""The rows of one site as an analysis sees them: columns as they were recorded, with the outcome under its name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from wardround.core.errors import StudyError
from wardround.data.records import Column, Records
from wardround.privacy.disclosure import Limits
from wardround.privacy.disclosure.told_cells import ToldCells
from wardround.tasks import Task

Made = TypeVar("Made")


@dataclass(frozen=True, eq=False)
class SiteRows:
    """`people` is the patient of each row; where a site has no numbers of patients, each row is a patient."""

    site: str
    frame: pd.DataFrame
    people: np.ndarray
    excluded: int = 0  # rows of the site that an analysis leaves out
    excluded_people: int = 0  # the patients behind them
    limits: Limits = field(default_factory=Limits)  # of what may be told of them
    told: ToldCells = field(default_factory=ToldCells)  # of all rows of the site, in every table
    _made: dict[tuple[Any, ...], Any] = field(default_factory=dict, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.people)

    def take(self, mask: np.ndarray) -> "SiteRows":
        out = len(np.unique(self.people[~mask])) if not mask.all() else 0
        excluded = self.excluded + int((~mask).sum())
        out += self.excluded_people
        return SiteRows(self.site, self.frame.loc[mask], self.people[mask], excluded, out, self.limits, self.told)

    def under(self, limits: Limits) -> "SiteRows":
        return replace(self, limits=limits, _made={})

    def once(self, key: tuple[Any, ...], make: Callable[[], Made]) -> Made:
        """What follows from the rows and is needed in every step, such as a design matrix, is made once."""
        if key not in self._made:
            self._made[key] = make()
        made: Made = self._made[key]
        return made


def table_of(records: Records) -> tuple[pd.DataFrame, tuple[Column, ...]]:
    """Features and outcomes side by side."""
    if not isinstance(records.features, pd.DataFrame):
        problem = "an analysis reads columns, and these data are images"
        raise StudyError("data: source", problem, "Name a source of tables.")
    outcomes = [outcome_column(records.task, records.target, records.outcome)]
    if records.task.outcomes:
        outcomes = [outcome_column(own.task, own.target, name) for own, name in _outcomes(records)]
    table, columns = records.features, list(records.columns)
    for column, values in filter(None, outcomes):
        if column.name not in table:
            table = table.assign(**{column.name: values})
            columns.append(column)
    return table, tuple(columns)


def _outcomes(records: Records) -> list[tuple[Records, str]]:
    return list(zip(records.by_outcome, records.task.outcomes, strict=True))


def outcome_column(task: Task, target: np.ndarray, name: str) -> tuple[Column, np.ndarray] | None:
    """Of two classes 1 for the positive one and 0 for the other; of more, their names; a number as it is."""
    if task.reads == "numbers":
        return Column(task.names[0], limits=task.public_range), np.asarray(task.values(target), dtype=np.float64)
    if not name:
        return None
    if len(task.names) == 2:
        return Column(name, limits=(0, 1)), target.astype(np.float64)
    names = np.array(task.names, dtype=object)
    return Column(name, "categorical", levels=tuple(task.names)), names[target]


def site_rows(records: Records, sites: Mapping[str, np.ndarray]) -> dict[str, SiteRows]:
    """`sites` are the row numbers of each."""
    table, _ = table_of(records)
    people = np.arange(len(records)) if records.patient is None else records.units
    return {name: SiteRows(name, table.iloc[rows], people[rows]) for name, rows in sites.items()}


def without_gaps(rows: SiteRows, columns: tuple[str, ...]) -> np.ndarray:
    """Rows that have a value in all of these columns."""
    if not columns:
        return np.ones(len(rows), dtype=bool)
    return np.asarray(rows.frame[list(columns)].notna().to_numpy().all(axis=1))


def levels_of(values: pd.Series, numeric: bool) -> np.ndarray:
    """The level of each value, as text: whole numbers without a point."""
    if not numeric:
        return values.to_numpy(dtype=object)
    numbers = values.to_numpy(dtype=np.float64)
    return np.array([level_name(number) for number in numbers.tolist()], dtype=object)


def level_name(number: float) -> str:
    return str(int(number)) if float(number).is_integer() else repr(float(number))
