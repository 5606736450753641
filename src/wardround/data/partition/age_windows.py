"""Overlapping age windows, as a published study of the Cleveland heart data formed its four hospitals.

Rows are sorted by age; a site draws its rows from one stretch of that order. The study's windows overlap, so that one
patient can be at several sites: in one's training rows and in another's test rows. `disjoint` removes that leak.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from wardround.core.errors import DataError, StudyError
from wardround.core.settings import Count, Fraction, Share
from wardround.data.partition.partition import Partitioner, first_rows, refuse_no_rows, site_names
from wardround.data.records import Records

WHERE = "sites: age-windows"
Window = tuple[int, int]  # first and one past the last position in the order of age


def age_windows(
    disjoint: bool = False,
    windows: tuple[tuple[Fraction, Share], ...] = ((0.4, 1.0), (0.3, 0.7), (0.2, 0.5), (0.0, 0.4)),
    sizes: tuple[Count, ...] = (95, 83, 44, 71),
) -> Partitioner:
    """`sizes` rows drawn without replacement from each window; with `disjoint`, no row is drawn twice.

    Where the rows are too few, all sizes shrink by the common factor that just fits, rounded down. It works on rows,
    not on patients, and therefore refuses records in which a patient has several. Rows of unknown age are left out.
    """
    _check_settings(windows, sizes)

    def assign(records: Records, rng: np.random.Generator) -> dict[str, np.ndarray]:
        by_age = _rows_by_age(records, rng)
        spans = [(round(low * by_age.size), round(high * by_age.size)) for low, high in windows]
        fitting = _shrink_to_fit(spans, sizes, disjoint)
        draw = _draw_disjoint if disjoint else _draw_each
        positions = draw(spans, fitting, rng)
        return {name: np.sort(by_age[chosen]) for name, chosen in zip(site_names(len(windows)), positions, strict=True)}

    return Partitioner(assign, overlapping=not disjoint, complete=False)


def _check_settings(windows: Sequence[tuple[float, float]], sizes: Sequence[int]) -> None:
    if not windows or len(windows) != len(sizes):
        problem = f"{len(windows)} windows and {len(sizes)} sizes"
        raise StudyError(WHERE, problem, "Write one entry of `sizes` for each of `windows`, and at least one.")
    for number, (low, high) in enumerate(windows):
        if not 0 <= low < high <= 1:
            problem = f"windows[{number}] runs from {low:g} to {high:g}"
            raise StudyError(WHERE, problem, "Write shares of the rows in order of age, such as [0.3, 0.7].")
    if min(sizes) < 1:
        raise StudyError(WHERE, f"the smallest of `sizes` is {min(sizes)}", "Write at least 1 row for each site.")


def _rows_by_age(records: Records, rng: np.random.Generator) -> np.ndarray:
    """Rows of known age, youngest first; rows of the same age stand in random order."""
    refuse_no_rows(records, WHERE)
    if "age" not in records.groups.columns:
        raise DataError(WHERE, "the source records no age", "Choose another `partition`, or a source with ages.")
    if repeated := len(records) - first_rows(records.units).size:
        problem = f"{repeated} rows belong to a patient who has another row, and windows would tear them apart"
        raise DataError(WHERE, problem, 'Keep one row for each patient, or use `partition = "by-column"` with `bands`.')
    ages = pd.to_numeric(records.groups["age"], errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    shuffled = rng.permutation(np.flatnonzero(~np.isnan(ages)))
    return shuffled[np.argsort(ages[shuffled], kind="stable")].astype(np.int64)


def _shrink_to_fit(spans: Sequence[Window], sizes: Sequence[int], disjoint: bool) -> list[int]:
    """The sizes as asked for, or all of them shrunk by the tightest ratio of rows there are to rows asked for."""
    if disjoint:
        crowds = [(end - start, demand) for start, end, demand in _demands(spans, sizes)]
    else:
        crowds = [(end - start, size) for (start, end), size in zip(spans, sizes, strict=True)]
    room, demand = min(crowds, key=lambda crowd: crowd[0] / crowd[1])
    fitting = [size * min(room, demand) // demand for size in sizes]
    if min(fitting) == 0:
        problem = "too few rows of known age: after shrinking `sizes` to fit, a site would have none"
        raise DataError(WHERE, problem, "Use wider or fewer `windows`, or `sizes` that are more alike.")
    return fitting


def _demands(spans: Sequence[Window], sizes: Sequence[int]) -> list[tuple[int, int, int]]:
    """Every stretch between a window's start and a window's end, with the rows that the windows inside it ask for.

    By Hall's theorem for intervals, the sizes can be had exactly when no stretch is asked for more rows than it has.
    """
    stretches = sorted({(start, end) for start, _ in spans for _, end in spans})
    demands = [
        (start, end, sum(size for (low, high), size in zip(spans, sizes, strict=True) if start <= low and high <= end))
        for start, end in stretches
    ]
    return [(start, end, demand) for start, end, demand in demands if demand]


def _draw_each(spans: Sequence[Window], sizes: Sequence[int], rng: np.random.Generator) -> list[np.ndarray]:
    return [
        start + rng.choice(end - start, size, replace=False) for (start, end), size in zip(spans, sizes, strict=True)
    ]


def _draw_disjoint(spans: Sequence[Window], sizes: Sequence[int], rng: np.random.Generator) -> list[np.ndarray]:
    """The sites draw one row at a time in random order, never one that would leave another site short.

    A stretch with as many free rows as its own windows still ask for is closed to all other windows. This keeps the
    condition of `_demands` true after every draw, so that the draw never gets stuck.
    """
    free = np.ones(max(end for _, end in spans), dtype=bool)
    chosen: list[list[int]] = [[] for _ in spans]
    demands = _demands(spans, sizes)
    stretches = [(start, end) for start, end, _ in demands]
    inside = [[start <= low and high <= end for low, high in spans] for start, end in stretches]
    # rows that a stretch has to spare: free ones less those that the windows inside it still ask for
    spare = [end - start - demand for start, end, demand in demands]
    for site in rng.permutation(np.repeat(np.arange(len(spans)), sizes)).tolist():
        low, high = spans[site]
        allowed = free.copy()
        allowed[:low] = allowed[high:] = False
        for number, (start, end) in enumerate(stretches):
            if spare[number] == 0 and not inside[number][site]:
                allowed[start:end] = False
        position = int(rng.choice(np.flatnonzero(allowed)))
        free[position] = False
        for number, (start, end) in enumerate(stretches):
            spare[number] += inside[number][site] - (start <= position < end)
        chosen[site].append(position)
    return [np.array(positions, dtype=np.int64) for positions in chosen]
