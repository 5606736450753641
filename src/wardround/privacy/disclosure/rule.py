"""What a rule of disclosure looks at, and the limits to which a study and a hospital agree."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Annotated

import numpy as np

from wardround.core.settings import Count, Range, Share


@dataclass(frozen=True)
class Limits:
    """Of a study, or of a hospital. Where both have some, the stricter ones hold."""

    smallest_cell: Count = 5  # patients in anything that is told
    largest_share: Share = 0.75  # of a sum that may come from one patient
    columns_per_patient: Annotated[float, Range(low=0, high=1, low_open=True)] = 0.33  # of a regression
    least_sites: Count = 2  # that contribute to a sum which the coordinator opens

    def and_those_of(self, other: "Limits") -> "Limits":
        """The stricter of both, limit by limit."""
        least = {"smallest_cell", "least_sites"}
        strictest = {
            limit.name: (max if limit.name in least else min)(getattr(self, limit.name), getattr(other, limit.name))
            for limit in fields(Limits)
        }
        return Limits(**strictest)


@dataclass(frozen=True, eq=False)
class Release:
    """Figures that are about to leave a site, as far as rules look at them. None: the figures have no such part."""

    people: np.ndarray  # the patient of each row that they are about
    summed: np.ndarray | None = None  # (rows, columns): numbers of which sums leave
    design: np.ndarray | None = None  # (rows, columns) of a regression
    contributors: int | None = None  # sites with rows in the sum that the coordinator opens
    earlier: Sequence[frozenset[str]] = ()  # marks of the patients of each earlier answer to the same question
    marks: frozenset[str] = frozenset()  # and of the patients of this one
    changed: bool = False  # whether counts of the same patients are others than were told
    within: tuple[str, ...] = ()  # rules that decide figure by figure what of it stays


@dataclass(frozen=True)
class DisclosureRule:
    forbids: str  # in words, for people who decide about a study
    applies: Callable[[Release], bool]
    broken: Callable[[Release, Limits], bool]
