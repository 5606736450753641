"""Checks before training: what would make a result wrong or worthless, as notices with counts.

Nothing here holds a patient's value. An error stops the study, unless it names the check in `[evaluation] accept`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import compress

import numpy as np

from wardround.core.errors import CheckError
from wardround.core.notices import Notice, Severity, errors_among, line_of, place_of, remedy_of, text_of
from wardround.data.checks.duplicates import Elsewhere, copies, copies_elsewhere
from wardround.data.checks.label_direction import MOST_SITES, Opposite, associations, opposites, uncompared
from wardround.data.checks.outliers import outlier_counts
from wardround.data.checks.target_units import other_units
from wardround.data.cohort import Cohort
from wardround.data.split import Split
from wardround.tasks import Task

FEW_ROWS = 30  # below this a site's own figures say little
RARE = 10  # rows of a class at all sites together
FEW = 0.01  # up to this share of a site's rows, patients at two sites are warned of and not refused
NOT_TO_BE_ACCEPTED = ("no-rows",)  # by the advice of an error: without rows there is nothing to train on
IN_STUDY = 'If this is meant, accept it knowingly: `accept = ["{}"]` in [evaluation].'


def check_splits(
    cohort: Cohort, splits: Sequence[Split], overlapping: bool, accept: Iterable[str] = ()
) -> tuple[Notice, ...]:
    """All notices about one partition and split. `overlapping` says that the study asks for shared patients."""
    elsewhere = copies_elsewhere(cohort, splits)
    notices = [
        *_row_counts(splits),
        *(notice for own in cohort.by_outcome for notice in _classes(own, splits)),
        *_columns(cohort, splits),
        *_odd_values(cohort, splits),
        *_shared(cohort, splits, elsewhere, overlapping),
        *_leaks(cohort, splits, elsewhere, overlapping),
        *(notice for own in cohort.by_outcome for notice in _target_leaks(own)),
        *_copies(cohort, splits),
        *(notice for own in cohort.by_outcome for notice in _directions(own, splits)),
        *(notice for own in cohort.by_outcome for notice in _units(own, splits)),
    ]
    return tuple(accepted(notices, accept))


def accepted(notices: Iterable[Notice], codes: Iterable[str]) -> list[Notice]:
    """Errors that a study accepts knowingly are warnings."""
    known = set(codes)
    return [
        replace(notice, severity="warning", accepted=True)
        if notice.severity == "error" and notice.code in known
        else notice
        for notice in notices
    ]


def refuse_errors(notices: Iterable[Notice], how_to_accept: str = IN_STUDY) -> None:
    """CheckError for the first error, with the others. `how_to_accept` has a place for the code."""
    if errors := errors_among(notices):
        first = errors[0]
        more = "".join(f"\n  Also: {line_of(error)}" for error in errors[1:])
        advice = "" if first.code in NOT_TO_BE_ACCEPTED else f" {how_to_accept.format(first.code)}"
        where = f"{place_of(first)}: {first.code}"
        raise CheckError(where, text_of(first), f"{remedy_of(first)}{advice}{more}", first)


def single_site(splits: Sequence[Split]) -> list[Notice]:
    """For federated arms, which need others to learn from."""
    return [Notice("one-site", "warning", splits[0].site)] if len(splits) == 1 else []


def _row_counts(splits: Sequence[Split]) -> Iterable[Notice]:
    for split in splits:
        total = len(split.rows)
        if not len(split.train) or not len(split.test):
            part = "training" if not len(split.train) else "test"
            yield Notice("no-rows", "error", split.site, counts={"rows": total}, details={"part": part})
        elif total < FEW_ROWS:
            yield Notice("few-rows", "warning", split.site, counts={"rows": total, "test": len(split.test)})


def _classes(cohort: Cohort, splits: Sequence[Split]) -> Iterable[Notice]:
    """Where a row may have any number of findings, a class is the presence of a finding."""
    if cohort.records.task.answers == "number":
        yield from _constant_target(cohort, splits)
        return
    target, names = cohort.records.target, cohort.records.classes
    findings = cohort.records.task.answers == "findings"
    present = target == 1 if findings else target[:, None] == np.arange(len(names))
    details = {"findings": True} if findings else {}
    train = np.concatenate([split.train for split in splits])
    occurring = tuple(compress(names, present[train].any(axis=0)))
    if not findings and len(occurring) == 1:
        yield Notice("one-class", "error", classes=occurring)
    elif findings and not (present[train].any(axis=0) & (target[train] == 0).any(axis=0)).any():
        yield Notice("one-class", "error")
    for name, count in zip(names, present.sum(axis=0).tolist(), strict=True):
        if count < RARE and (count or findings):
            yield Notice("rare-class", "warning", classes=(name,), counts={"rows": count}, details=details)
    yield from _missing_classes(names, present, splits, details)


def _constant_target(cohort: Cohort, splits: Sequence[Split]) -> Iterable[Notice]:
    """Over all sites it is an error; at one of them nothing can be learnt about it there."""
    task = cohort.records.task
    values = task.values(cohort.records.target)
    if not np.ptp(values[np.concatenate([split.train for split in splits])]):
        yield Notice("constant-target", "error", columns=task.names)
        return
    for split in splits:
        if len(split.train) > 1 and not np.ptp(values[split.train]):
            yield Notice("constant-target", "warning", split.site, task.names, {"rows": len(split.train)})


def _missing_classes(
    names: Sequence[str], present: np.ndarray, splits: Sequence[Split], details: dict[str, bool]
) -> Iterable[Notice]:
    for split in splits:
        for part, rows in (("training", split.train), ("test", split.test)):
            lacking = tuple(compress(names, ~present[rows].any(axis=0))) if len(rows) else ()
            if lacking:
                counts, in_part = {"of": len(names)}, {"part": part} | details
                yield Notice("missing-class", "warning", split.site, classes=lacking, counts=counts, details=in_part)


def _columns(cohort: Cohort, splits: Sequence[Split]) -> Iterable[Notice]:
    if not cohort.records.is_table:
        return
    table = cohort.table
    values = np.where(np.isnan(table.numbers), table.codes, table.numbers)  # a number for every recorded value
    for split in splits:
        gaps, part = table.missing[split.train], values[split.train]
        if not len(part):
            continue
        # a column that a hospital does not record has notices of its own
        empty = gaps.all(axis=0) & table.records_of(split.rows)
        lowest, highest = np.where(gaps, np.inf, part).min(axis=0), np.where(gaps, -np.inf, part).max(axis=0)
        constant = (lowest == highest) & (len(part) > 1)
        for code, mask in (("empty-column", empty), ("constant-column", constant)):
            if names := tuple(column.name for column in compress(table.columns, mask)):
                yield Notice(code, "warning", split.site, names)


def _odd_values(cohort: Cohort, splits: Sequence[Split]) -> Iterable[Notice]:
    """Of all rows: a typo in a test row falsifies figures as one in a training row does."""
    if not cohort.records.is_table:
        return
    places = [i for i, column in enumerate(cohort.table.columns) if column.kind == "numeric" and not column.dates]
    targets = [own.records for own in cohort.by_outcome if own.records.task.answers == "number"]
    numbers = [cohort.table.numbers[:, places], *(own.task.values(own.target)[:, None] for own in targets)]
    names = [*(cohort.table.columns[place].name for place in places), *(own.task.names[0] for own in targets)]
    for split in splits:
        counts = outlier_counts(np.concatenate([part[split.rows] for part in numbers], axis=1))
        if odd := {name: count for name, count in zip(names, counts.tolist(), strict=True) if count}:
            yield Notice("odd-values", "warning", split.site, tuple(odd), per_column=odd)


def _shared(
    cohort: Cohort, splits: Sequence[Split], elsewhere: Mapping[str, Elsewhere], overlapping: bool
) -> Iterable[Notice]:
    same_row = np.bincount(np.concatenate([np.unique(split.rows) for split in splits])) > 1
    people = [np.unique(cohort.patient[split.rows]) for split in splits]
    values, seen = np.unique(np.concatenate(people), return_counts=True)
    known = cohort.records.patient is not None
    for split in splits:
        shared = same_row[split.rows]
        if known:
            shared = shared | np.isin(cohort.patient[split.rows], values[seen > 1])
        equal = elsewhere.get(split.site)
        if equal is not None:
            shared = shared | equal.copied
        count, total = int(shared.sum()), len(split.rows)
        if count:
            yield _overlap("shared-rows", split.site, {"rows": count, "of": total, **_by_chance(equal)}, overlapping)
        others = 0 if equal is None else int((equal.others & ~shared).sum())
        if others:
            yield Notice("equal-rows", "warning", split.site, counts={"rows": others, "of": total, **_by_chance(equal)})


def _leaks(
    cohort: Cohort, splits: Sequence[Split], elsewhere: Mapping[str, Elsewhere], overlapping: bool
) -> Iterable[Notice]:
    train = np.concatenate([split.train for split in splits])
    known = cohort.records.patient is not None
    for split in splits:
        leaked = np.isin(split.test, train)
        if known:
            leaked = leaked | np.isin(cohort.patient[split.test], cohort.patient[train])
        if (equal := elsewhere.get(split.site)) is not None:
            copied = equal.copied[-len(split.test) :] if len(split.test) else equal.copied[:0]
            leaked = leaked | (copied & np.isin(cohort.prints[split.test], cohort.prints[train]))
        if count := int(leaked.sum()):
            yield _overlap("leak", split.site, {"rows": count, "of": len(split.test)}, overlapping)


def _by_chance(equal: Elsewhere | None) -> dict[str, int]:
    """How many equal rows chance explains, where there are any beyond it."""
    if equal is None or not equal.explained or not (equal.copied.any() or equal.others.any()):
        return {}
    return {"by_chance": int(equal.explained)}


def _overlap(code: str, site: str, counts: Mapping[str, int], overlapping: bool) -> Notice:
    tolerable = overlapping or counts["rows"] < 2 or counts["rows"] / counts["of"] <= FEW
    severity: Severity = "warning" if tolerable else "error"
    return Notice(code, severity, site, counts=counts, details={"overlapping": True} if overlapping else {})


def _target_leaks(cohort: Cohort) -> Iterable[Notice]:
    task = cohort.records.task
    number = {"number": task.names[0]} if task.answers == "number" else {}
    for leak in cohort.target_leaks:
        yield Notice(
            "target-leak",
            leak.severity,
            leak.hospital.replace("/", "-"),
            (leak.column,),
            {"rows": leak.best.rarer, "of": leak.best.rows, "auc": leak.best.auc},
            classes=() if number else leak.classes,
            details={**({"by_gap": True} if leak.best.gap else {}), **number},
        )


def _copies(cohort: Cohort, splits: Sequence[Split]) -> Iterable[Notice]:
    details = {"patients_known": True} if cohort.records.patient is not None else {}
    for split in splits:
        copied = copies(cohort, split.rows)
        if copied.beyond_chance:
            severity: Severity = "error" if copied.many else "warning"
            counts = {"rows": copied.count, "of": copied.rows}
            yield Notice("copies", severity, split.site, counts=counts, details=details)


def _directions(cohort: Cohort, splits: Sequence[Split]) -> Iterable[Notice]:
    """Test rows are not looked at: nothing may be learnt from them, not even which way a column points."""
    if cohort.records.synthetic or not 2 <= len(splits) <= MOST_SITES:  # synthetic sites differ by design
        return
    seen = {split.site: np.concatenate([split.train, split.validation]) for split in splits}
    by_site = {site: associations(cohort, rows) for site, rows in seen.items()}
    records = cohort.records
    yield from direction_notices(opposites(by_site), records.task)
    if records.is_table and records.task.has_upper:
        yield from (Notice("label-not-compared", "warning", site) for site in uncompared(by_site))


def _units(cohort: Cohort, splits: Sequence[Split]) -> Iterable[Notice]:
    """As `_directions`, of a number that one site may record in another unit."""
    records = cohort.records
    if records.synthetic:
        return
    sizes = {
        split.site: records.task.sizes(records.target[np.concatenate([split.train, split.validation])])
        for split in splits
    }
    for odd in other_units({site: values for site, values in sizes.items() if values is not None}):
        counts = {"factor": odd.factor}
        yield Notice("target-units", "warning", odd.site, records.task.names, counts, other_sites=odd.others)


def direction_notices(opposite: Iterable[Opposite], task: Task) -> list[Notice]:
    """In a deployment the coordinator makes them, from what the sites have sent about their columns."""
    number = {"number": True} if task.answers == "number" else {}
    return [
        Notice(
            "label-direction",
            "warning" if number else "error",  # what goes with a number may truly differ between hospitals
            inverted.site,
            per_column=dict.fromkeys(inverted.higher, 1) | dict.fromkeys(inverted.lower, -1),
            classes=task.names[-1:],
            other_sites=() if inverted.certain and len(inverted.others) > 1 else inverted.others,
            details={"certain": inverted.certain, **number},
        )
        for inverted in opposite
    ]
