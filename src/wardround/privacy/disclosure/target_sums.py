"""The scale of a number that is predicted, agreed without a row: from sums over each hospital's training rows.

Where the target's public range is declared, the scale follows from that and nothing is sent. Elsewhere a hospital sends
the sums that its task names with its other facts. A region adds up those of its hospitals without rounding, so that the
scale has the same bits whoever adds up what.
"""

from collections.abc import Iterable, Sequence
from math import fsum

import numpy as np

from wardround.core.errors import StudyError
from wardround.data.cohort import Cohort
from wardround.privacy.disclosure import must_stay
from wardround.study.schema import Study
from wardround.tasks import Task

Exact = Sequence[float]  # numbers whose sum, without rounding, is meant


def own_target_sums(cohort: Cohort, train: np.ndarray, smallest: int) -> list[float]:
    """StudyError where fewer than `smallest` patients train: without its sums there is no scale of all hospitals."""
    task = cohort.records.task
    sums: list[float] = task.target_sums(cohort.records.target[train]).tolist()
    if sums and len(train) and must_stay(cohort.patient[train], smallest):
        problem = f"fewer than {smallest} patients train here, so that sums of what is predicted may not leave"
        remedy = "Declare its public range under `ranges` in [data] of all site files: then no sum is needed."
        raise StudyError("deployment: smallest_cell", problem, remedy)
    return sums


def refuse_unpaid_scale(study: Study, task: Task) -> None:
    """Under differential privacy nothing about the target leaves that its noise does not cover."""
    for arm in study.trained_arms:
        if (arm.privacy.example is not None or arm.privacy.site is not None) and not task.scale_is_public:
            name = task.names[0]
            problem = f"sums of {name!r} would leave every hospital without noise"
            remedy = (
                f"Declare its public range: `ranges = {{ {name} = [lowest, highest] }}` in [data] of all site files."
            )
            raise StudyError(f"arms: {arm.name}: privacy", problem, remedy)


def exactly(sums: Iterable[Sequence[Exact]]) -> list[list[float]]:
    """Each of these sums over sites, as few numbers whose sum without rounding it is. They follow from the sum alone,
    and tell nothing of what was added up."""
    return [_expansion([number for part in parts for number in part]) for parts in zip(*sums, strict=True)]


def _expansion(numbers: list[float]) -> list[float]:
    """The nearest number to the sum, then the nearest to what that leaves, until nothing is left."""
    expansion: list[float] = []
    while rest := fsum([*numbers, *(-part for part in expansion)]):
        expansion.append(rest)
    return expansion or [0.0]


def scale_of(task: Task, sums: Iterable[Sequence[Exact]]) -> tuple[float, ...]:
    """From the sums of all who train."""
    return task.scale(np.array([fsum(numbers) for numbers in exactly(sums)]))
