"""Columns that tell the outcome by themselves: a copy of it, something made from it, or recorded because of it.

What is asked of each column, at each hospital: how often does it rank a row of a class above a row of the others? That
is the area under the ROC curve (AUC), over pairs of rows of the same hospital, so that hospitals with other units or
other rates of the outcome do not look like a column that tells it. A column is looked at in two ways:

* by its numbers, upwards or downwards (dates are numbers);
* by its levels: words, numbers in up to 20 groups, and the gap as a level of its own. A row is ranked by how many of
  the *other* rows with its level are of the class. So any division of the levels is found, gaps that tell the outcome
  too, and a column of identifiers, each level of which stands once, tells nothing. Of a known patient one row counts.

A number is looked at as three questions, whether it lies above each quartile of its hospital: a copy of it, in another
unit or turned round, answers all three, and is refused. What answers one of them is warned of.

**Enough rows.** A column is refused if its AUC is above 0.99 and if an honest strong marker would hardly do as well.
The strongest that we take for honest has an AUC of 0.95: every tenth row of the rarer class looks like any row of the
other. Among k rows of the rarer class (summed over hospitals) the number that look so is binomial with k and 0.1, and
an AUC of A is what x = 2 k (1 - A) of them give. Refused is what has a chance of less than 1 in 100 with such a marker:

    P(Binomial(k, 0.1) <= x) < 0.01     (by the incomplete beta function, x need not be whole)

That takes 44 rows of the rarer class if the column separates them all, 64 with one exception, and 71 at an AUC of 0.99.
Weaker columns need not be feared, however many there are: with an AUC of 0.9 the chance at k = 44 is 0.00005, with 0.75
it is 6e-14. From 21 rows of the rarer class a column with an AUC above 0.999 is warned of: that is the same rule with a
marker of an AUC of 0.9.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from wardround.core.notices import Severity
from wardround.data.prepare import Encoded
from wardround.data.records import Records, spaced_evenly

SEPARATES, SEPARATES_ALL = 0.99, 0.999
UNLIKELY = 0.01
MARKER, WEAKER_MARKER = 0.1, 0.2  # share of the rarer class that looks like the other: an AUC of 0.95, and of 0.9
GROUPS = 20  # into which numbers are cut where they are looked at as levels
MOST_HOSPITALS = 50  # the largest: they have rows enough
MOST_ROWS = 5000  # of a hospital, taken evenly
EVERYWHERE = ""  # the hospital of a leak at all of them


@dataclass(frozen=True)
class Judgement:
    """How well a column, or whether it has a value (`gap`), tells a class from all others."""

    auc: float
    gap: bool
    rows: int
    rarer: int  # rows of the rarer class: k above
    severity: Severity | None

    @property
    def enough(self) -> bool:
        """Whether a column that separates the class would be refused."""
        return _chance(0.0, self.rarer, MARKER) < UNLIKELY


@dataclass(frozen=True)
class TargetLeak:
    """A column from which a class can be read."""

    hospital: str
    column: str
    classes: tuple[str, ...]  # which can be told from all others; the positive one of two
    best: Judgement  # of these classes
    severity: Severity


# At one hospital: rows, those of the rarer class, and of each column (4, columns) the pairs of a row of the class and
# another, and how many are in order by numbers, upwards; by levels; by whether there is a value, upwards is: none.
_Pairs = tuple[int, int, np.ndarray]


def target_leaks(records: Records, table: Encoded) -> list[TargetLeak]:
    """Over all hospitals together, and at each hospital what is not so everywhere."""
    names = [column.name for column in table.columns]
    if not names:
        return []
    by_hospital = {hospital: dict(_by_class(records, table, rows)) for hospital, rows in _largest(records)}
    together: dict[str, list[_Pairs]] = {}
    for by_class in by_hospital.values():
        for name, pairs in by_class.items():
            together.setdefault(name, []).append(pairs)
    all_needed = records.task.told_by_all
    everywhere = EVERYWHERE if len(records.hospitals) > 1 else records.hospitals[0]
    leaks = list(_leaks_at(everywhere, names, together, all_needed))
    if sum(map(bool, by_hospital.values())) > 1:
        known = {leak.column: leak.severity for leak in leaks}
        for hospital, by_class in by_hospital.items():
            alone = _leaks_at(hospital, names, {name: [pairs] for name, pairs in by_class.items()}, all_needed)
            leaks += [leak for leak in alone if known.get(leak.column) not in ("error", leak.severity)]
    return leaks


def _by_class(records: Records, table: Encoded, rows: np.ndarray) -> Iterator[tuple[str, _Pairs]]:
    """Of the classes that some of these rows have and others have not."""
    for name, label in records.task.yes_or_no(records.target[rows]):
        known = label >= 0
        if len(np.unique(label[known])) == 2:
            yield name, _pairs(table, rows[known], label[known] == 1)


def _largest(records: Records) -> Iterator[tuple[str, np.ndarray]]:
    chosen = pd.Series(records.hospital).value_counts(sort=True).index[:MOST_HOSPITALS]
    for hospital in (name for name in records.hospitals if name in set(chosen)):
        rows = np.flatnonzero(records.hospital == hospital)
        if records.patient is not None:
            rows = np.sort(rows[np.unique(records.patient[rows], return_index=True)[1]])
        yield hospital, spaced_evenly(rows, MOST_ROWS)


def _pairs(table: Encoded, rows: np.ndarray, positive: np.ndarray) -> _Pairs:
    missing = table.missing[rows]
    numbers = np.where(np.isnan(table.numbers[rows]) & (table.codes[rows] < 0), np.nan, table.numbers[rows])
    scores = _shares_of_others(_levels(table, rows), positive)
    count = int(positive.sum())
    everything = np.full(numbers.shape[1], float(count * (len(rows) - count)))
    known = ~np.isnan(numbers)
    some, others = known[positive].sum(axis=0), known[~positive].sum(axis=0)
    # numbers are compared where there are; a pair with a gap is one half in order
    rising = _in_order(numbers, positive, some, others) + (everything - some * others) / 2
    whole = np.full(numbers.shape[1], count)
    rest = np.full(numbers.shape[1], len(rows) - count)
    by_level, by_gap = (_in_order(values, positive, whole, rest) for values in (scores, missing.astype(float)))
    return len(rows), min(count, len(rows) - count), np.stack([everything, rising, by_level, by_gap])


def _in_order(values: np.ndarray, positive: np.ndarray, some: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Pairs in which the row of the class has the higher value; ties count half (Mann and Whitney's U)."""
    ranks = pd.DataFrame(values).rank().to_numpy()
    return np.where(some * others > 0, np.nansum(ranks[positive], axis=0) - some * (some + 1) / 2, 0.0)


def _levels(table: Encoded, rows: np.ndarray) -> np.ndarray:
    """The number of each row's level, by column; 0 is the gap."""
    levels = np.zeros((len(rows), len(table.columns)), dtype=np.int64)
    for place in range(len(table.columns)):
        numbers = table.numbers[rows, place]
        if table.levels[place]:
            levels[:, place] = table.codes[rows, place] + 1
        elif not np.isnan(numbers).all():
            values = numbers[~np.isnan(numbers)]
            distinct = np.unique(values)
            if len(distinct) > GROUPS:
                distinct = np.unique(np.quantile(values, np.arange(GROUPS) / GROUPS))
            cut = np.searchsorted(distinct, numbers, side="right")
            levels[:, place] = np.where(np.isnan(numbers), 0, np.maximum(cut, 1))
    return levels


def _shares_of_others(levels: np.ndarray, positive: np.ndarray) -> np.ndarray:
    """Of each row: how many of the others with its level are of the class; one half where there are none, and near it
    where there are few."""
    start = np.concatenate([[0], np.cumsum(levels.max(axis=0) + 1)[:-1]])
    flat = levels + start
    size = int(flat.max()) + 1
    counts = np.bincount(flat.ravel(), minlength=size)[flat]
    of_class = np.bincount(flat[positive].ravel(), minlength=size)[flat]
    return np.asarray((of_class - positive[:, None] + 0.5) / counts)


def _leaks_at(
    hospital: str, names: Sequence[str], pairs: dict[str, list[_Pairs]], all_needed: bool
) -> Iterator[TargetLeak]:
    judged = {name: _judge(parts) for name, parts in pairs.items()}
    for place, column in enumerate(names):
        by_class = {name: columns[place] for name, columns in judged.items()}
        classes, severity = _readable_classes(by_class, all_needed)
        if classes:
            best = max((by_class[name] for name in classes), key=lambda judgement: judgement.auc)
            yield TargetLeak(hospital, column, tuple(classes), best, severity)


def _readable_classes(by_class: dict[str, Judgement], all_needed: bool) -> tuple[list[str], Severity]:
    certain = [name for name, judgement in by_class.items() if judgement.severity == "error"]
    suspect = [name for name, judgement in by_class.items() if judgement.severity == "warning"]
    refused = certain
    # one of many classes may stand apart by nature, as a species does by one measure, and so may the highest values of
    # a number; not so by a gap
    if all_needed and any(judgement.severity != "error" and judgement.enough for judgement in by_class.values()):
        refused = [name for name in certain if by_class[name].gap]
    return (refused, "error") if refused else (certain or suspect, "warning")


def _judge(parts: Sequence[_Pairs]) -> list[Judgement]:
    rows, rarer, (pairs, rising, levels, gaps) = (sum(values) for values in zip(*parts, strict=True))
    by_gap = np.maximum(gaps, pairs - gaps) / pairs
    best = np.maximum.reduce([np.maximum(rising, pairs - rising) / pairs, levels / pairs, by_gap])
    return [
        Judgement(auc, gap > SEPARATES, rows, rarer, _severity(auc, rarer))
        for auc, gap in zip(best.tolist(), by_gap.tolist(), strict=True)
    ]


def _severity(auc: float, rarer: int) -> Severity | None:
    if auc <= SEPARATES:
        return None
    alike = 2 * rarer * (1 - auc)
    if _chance(alike, rarer, MARKER) < UNLIKELY:
        return "error"
    return "warning" if auc > SEPARATES_ALL and _chance(alike, rarer, WEAKER_MARKER) < UNLIKELY else None


def _chance(alike: float, rarer: int, share: float) -> float:
    """P(Binomial(rarer, share) <= alike), also between whole numbers."""
    from scipy.special import betainc  # here, because most data have no column to judge, and SciPy takes long to load

    return float(betainc(rarer - alike, alike + 1, 1 - share))
