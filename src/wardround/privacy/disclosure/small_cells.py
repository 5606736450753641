"""Small cells: what counts fewer than `smallest_cell` patients is withheld, and whatever would give it away.

Patients are counted, not rows. Where a total is known, withholding one count is not enough: the others are subtracted
from it. So further ones are withheld (secondary suppression), the smallest first.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from wardround.tasks.multilabel import NO_FINDING


def patients_in(people: np.ndarray) -> int:
    return len(np.unique(people))


def has_few_patients(people: np.ndarray, smallest: int) -> bool:
    fewest = max(smallest, 1)
    if patients_in(people[: 20 * fewest]) >= fewest:  # nearly always; all rows take a hundred times longer
        return False
    return patients_in(people) < fewest


def patients_by_class(label: np.ndarray, people: np.ndarray, classes: int) -> np.ndarray:
    """How many patients have a row of each class."""
    pairs = np.unique(np.stack([label, people]), axis=1)
    return np.bincount(pairs[0], minlength=classes)


def is_small(counts: np.ndarray, smallest: int | np.ndarray) -> np.ndarray:
    return np.asarray((counts > 0) & (counts < smallest))


def suppress_small_count(count: int, smallest: int) -> int | None:
    return None if 0 < count < smallest else count


def releasable_groups(
    places: Mapping[str, np.ndarray], label: np.ndarray, people: np.ndarray, classes: int, fewest: int | np.ndarray
) -> set[str]:
    """Groups in which no class is small, and such that none is small in the rest of the rows.

    `fewest` may be one number for all classes, or one for each.
    """

    def small(rows: np.ndarray) -> bool:
        return bool(is_small(patients_by_class(label[rows], people[rows], classes), fewest).any())

    released = {name for name, rows in places.items() if not small(rows)}
    while released and small(np.setdiff1d(np.arange(len(label)), np.concatenate([places[name] for name in released]))):
        released.remove(min(sorted(released), key=lambda name: len(places[name])))  # the least is lost
    return released


def suppress_small_classes(patients: Mapping[str, np.ndarray], smallest: int) -> dict[str, int | None]:
    """Rows by class; None for classes of fewer than `smallest` patients, and for the next smallest classes if those
    could be derived otherwise. `patients` has the patient of each row of a class.

    The total is known, so at least two counts are withheld, and together they must have enough patients.
    """
    counts = {name: len(rows) for name, rows in patients.items()}
    few = {name for name, rows in patients.items() if 0 < patients_in(rows) < smallest}
    others = sorted(
        (name for name, count in counts.items() if count and name not in few), key=lambda name: counts[name]
    )
    hidden = sorted(few)
    while (
        hidden and others and (len(hidden) < 2 or patients_in(np.concatenate([patients[n] for n in hidden])) < smallest)
    ):
        hidden.append(others.pop(0))
    return {name: None if name in hidden else count for name, count in counts.items()}


def suppress_small_findings(
    present: np.ndarray, people: np.ndarray, names: Sequence[str], smallest: int
) -> dict[str, int | None]:
    """Rows by finding and without any; None where few patients have a finding or lack it. The rows without any finding
    are withheld as well if their number would tell about few patients. `present` is (rows, findings).

    Rows with any finding, minus those with one of them, are rows that have only others. All findings' rows, minus the
    rows with any, tell how many rows have more than one.
    """

    def small(rows: np.ndarray) -> bool:
        return 0 < patients_in(people[rows]) < smallest

    counts: dict[str, int | None] = {
        name: None if small(has) or small(~has) else int(has.sum()) for name, has in zip(names, present.T, strict=True)
    }
    any_finding, multiple = present.any(axis=1), present.sum(axis=1) > 1
    apart = [any_finding & ~has for has in present.T if has.any()]
    hidden = None in counts.values() or any(small(rows) for rows in (any_finding, ~any_finding, multiple, *apart))
    return counts | {NO_FINDING: None if hidden else int((~any_finding).sum())}
