"""Checks before training: what would make a result wrong or worthless, said in plain words with counts.

Nothing here prints a patient's value. An error stops the study, unless it names the check in `[evaluation] accept`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from wardround.core.errors import CheckError
from wardround.data.checks.duplicates import Elsewhere, copies, copies_elsewhere
from wardround.data.checks.label_direction import MOST_SITES, Opposite, associations, in_words, opposites, uncompared
from wardround.data.checks.outliers import far_out_counts
from wardround.data.cohort import Cohort
from wardround.data.split import Split

FEW_ROWS = 30  # below this a site's own figures say little
RARE = 10  # rows of a class at all sites together
UNCOMPARED = "has no column to compare with other sites', so that an inverted label would not be seen"
FEW = 0.01  # up to this share of a site's rows, patients at two sites are warned of and not refused

CHECKS = {
    "no-rows": "A site has no training or no test rows.",
    "few-rows": "A site has so few rows that its own figures say little.",
    "one-site": "There is one hospital, so that nothing is federated.",
    "shared-rows": "The same patient is at two sites, or rows are equal there, beyond what chance explains.",
    "leak": "A patient in one site's test rows is in some site's training rows.",
    "target-leak": "A column tells the outcome by itself.",
    "copies": "Many rows of a hospital are copies of each other.",
    "label-direction": "A label runs opposite to the other sites', seen from columns that they share.",
    "one-class": "All training rows of all sites are of one class.",
    "rare-class": "A class has so few rows that it may be a slip of the pen.",
    "missing-class": "A site has no training or no test row of some class.",
    "empty-column": "A column of a site's file has no value in its training rows.",
    "constant-column": "A column has one value in all training rows of a site.",
    "odd-values": "A site has numbers so far from its others that they may be slips of the pen.",
}


@dataclass(frozen=True)
class Finding:
    level: Literal["error", "warning"]
    check: str
    site: str
    message: str
    remedy: str
    rows: int = 0  # how many rows it is about, and of how many, where the check counts rows
    of: int = 0

    def __str__(self) -> str:
        return f"{self.site}: {self.message}"

    @property
    def kind(self) -> tuple[str, str, str]:
        """The same for findings that differ in their counts only, as those of two seeds do."""
        if self.check == "label-direction":  # which columns show it best may differ too
            return self.check, self.site, UNCOMPARED if self.message == UNCOMPARED else ""
        return self.check, self.site, re.sub(r"\d+", "#", self.message)


def check_splits(
    cohort: Cohort, splits: Sequence[Split], overlapping: bool, accept: Iterable[str] = ()
) -> tuple[Finding, ...]:
    """All findings for one partition and split. `overlapping` says that the study asks for shared patients."""
    elsewhere = copies_elsewhere(cohort, splits)
    findings = [
        *_row_counts(splits),
        *_classes(cohort, splits),
        *_columns(cohort, splits),
        *_odd_values(cohort, splits),
        *_shared(cohort, splits, elsewhere, overlapping),
        *_leaks(cohort, splits, elsewhere, overlapping),
        *_target_leaks(cohort),
        *_copies(cohort, splits),
        *_directions(cohort, splits),
    ]
    accepted = set(accept)
    return tuple(
        replace(f, level="warning", message=f"{f.message} (accepted by the study)")
        if f.level == "error" and f.check in accepted
        else f
        for f in findings
    )


def refuse_errors(findings: Iterable[Finding]) -> None:
    errors = [finding for finding in findings if finding.level == "error"]
    if errors:
        first = errors[0]
        more = "".join(f"\n  Also: {error}" for error in errors[1:])
        accept = f'If this is meant, accept it knowingly: `accept = ["{first.check}"]` in [evaluation].'
        remedy = first.remedy if first.check == "no-rows" else f"{first.remedy} {accept}"
        raise CheckError(f"{first.site}: {first.check}", first.message, remedy + more)


def one_site(splits: Sequence[Split]) -> list[Finding]:
    """For arms that are federated, which need others to learn from."""
    if len(splits) != 1:
        return []
    message = "is the only hospital, so that federated training has nobody to learn from and equals training alone"
    remedy = "Name more `files` or `hospitals` in [data], or form sites with a `partition` in [sites]."
    return [Finding("warning", "one-site", splits[0].site, message, remedy)]


def _row_counts(splits: Sequence[Split]) -> Iterable[Finding]:
    for split in splits:
        total = len(split.rows)
        remedy = "Leave this site out, join it with another, or change the shares in [evaluation]."
        if not len(split.train) or not len(split.test):
            lacking = "training" if not len(split.train) else "test"
            yield Finding("error", "no-rows", split.site, f"{total} rows leave no {lacking} rows", remedy)
        elif total < FEW_ROWS:
            message = f"only {total} rows ({len(split.test)} of them for testing); its own figures will say little"
            yield Finding("warning", "few-rows", split.site, message, remedy)


def _classes(cohort: Cohort, splits: Sequence[Split]) -> Iterable[Finding]:
    if cohort.records.has_findings:
        yield from _findings(cohort, splits)
        return
    classes = np.arange(len(cohort.records.classes))
    trained = np.unique(np.concatenate([cohort.records.target[split.train] for split in splits]))
    if len(trained) == 1:
        message = f"every training row is of class {cohort.records.classes[trained[0]]!r}; there is nothing to learn"
        yield Finding("error", "one-class", "all sites", message, "Check the target column and its words.")
    for name, count in zip(
        cohort.records.classes, np.bincount(cohort.records.target, minlength=len(classes)), strict=True
    ):
        if 0 < count < RARE:
            remedy = "If it is a slip, correct it; it makes one more class for every measure."
            yield Finding("warning", "rare-class", "all sites", f"class {name!r} has only {count} rows", remedy)
    for split in splits:
        for side, rows in (("training", split.train), ("test", split.test)):
            absent = np.setdiff1d(classes, cohort.records.target[rows])
            if len(absent) and len(rows):
                names = ", ".join(repr(cohort.records.classes[i]) for i in absent[:3])
                more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
                message = f"no {side} row of class {names}{more} ({len(absent)} of {len(classes)} classes)"
                remedy = "Its rows count in the overall figures; measures that need every class are left out here."
                yield Finding("warning", "missing-class", split.site, message, remedy)


def _findings(cohort: Cohort, splits: Sequence[Split]) -> Iterable[Finding]:
    """The same for rows that may have several findings: a class is then the presence of one."""
    target, names = cohort.records.target, cohort.records.classes
    train = target[np.concatenate([split.train for split in splits])]
    if not ((train == 1).any(axis=0) & (train == 0).any(axis=0)).any():
        message = "no finding is present in some training rows and absent in others; there is nothing to learn"
        yield Finding("error", "one-class", "all sites", message, "Check the label table and its words.")
    for name, count in zip(names, (target == 1).sum(axis=0).tolist(), strict=True):
        if count < RARE:
            remedy = "Its own figures say little; it is left out of averages where it has no row."
            yield Finding("warning", "rare-class", "all sites", f"finding {name!r} is in only {count} rows", remedy)
    for split in splits:
        for side, rows in (("training", split.train), ("test", split.test)):
            absent = [name for name, there in zip(names, (target[rows] == 1).any(axis=0), strict=True) if not there]
            if absent and len(rows):
                more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
                listed = ", ".join(map(repr, absent[:3]))
                message = f"no {side} row with {listed}{more} ({len(absent)} of {len(names)} findings)"
                remedy = "Averages over findings at this site leave them out."
                yield Finding("warning", "missing-class", split.site, message, remedy)


def _columns(cohort: Cohort, splits: Sequence[Split]) -> Iterable[Finding]:
    if not cohort.records.is_table:
        return
    table = cohort.table
    values = np.where(np.isnan(table.numbers), table.codes, table.numbers)  # a number for every recorded value
    for split in splits:
        gaps, part = table.missing[split.train], values[split.train]
        if not len(part):
            continue
        # of a column that a hospital does not record, notes and `not_recorded` tell already
        empty = gaps.all(axis=0) & table.records_of(split.rows)
        lowest, highest = np.where(gaps, np.inf, part).min(axis=0), np.where(gaps, -np.inf, part).max(axis=0)
        constant = (lowest == highest) & (len(part) > 1)
        for check, mask, words in (
            ("empty-column", empty, "never recorded (left out, or filled by what others or the study know)"),
            ("constant-column", constant, "the same in all training rows"),
        ):
            names = [column.name for column, hit in zip(table.columns, mask, strict=True) if hit]
            if names:
                remedy = "Nothing need be done, but this site can say nothing about it."
                yield Finding("warning", check, split.site, f"{', '.join(names)}: {words}", remedy)


def _odd_values(cohort: Cohort, splits: Sequence[Split]) -> Iterable[Finding]:
    """Of all rows, whichever side they are on: a slip in a test row falsifies figures as one in a training row does."""
    if not cohort.records.is_table:
        return
    places = [i for i, column in enumerate(cohort.table.columns) if column.kind == "numeric" and not column.dates]
    for split in splits:
        counts = far_out_counts(cohort.table.numbers[split.rows][:, places])
        if counts.any():
            counted = zip([cohort.table.columns[place].name for place in places], counts.tolist(), strict=True)
            named = ", ".join(f"{name} ({count})" for name, count in counted if count)
            message = f"{named}: values so far from this site's others that they may be slips of the pen"
            remedy = (
                "Look at the cells, and correct or empty those that are wrong. Medians hardly feel them, means and "
                "scales do. `wardround data describe FILE` tells the first one's line."
            )
            yield Finding("warning", "odd-values", split.site, message, remedy)


def _shared(
    cohort: Cohort, splits: Sequence[Split], elsewhere: Mapping[str, Elsewhere], overlapping: bool
) -> Iterable[Finding]:
    same_row = np.bincount(np.concatenate([np.unique(split.rows) for split in splits])) > 1
    people = [np.unique(cohort.patient[split.rows]) for split in splits]
    values, seen = np.unique(np.concatenate(people), return_counts=True)
    known = cohort.records.patient is not None
    for split in splits:
        shared = same_row[split.rows]
        if known:
            shared = shared | np.isin(cohort.patient[split.rows], values[seen > 1])
        found = elsewhere.get(split.site)
        if found is not None:
            shared = shared | found.copied
        count = int(shared.sum())
        if count:
            words = "rows are also at another site"
            yield _finding("shared-rows", split.site, count, len(split.rows), words + _beyond(found), overlapping)
        others = 0 if found is None else int((found.others & ~shared).sum())
        if others:
            message = f"{others} of {len(split.rows)} rows equal rows of other patients elsewhere{_beyond(found)}"
            remedy = "If they are the same people under two numbers, remove the copies."
            yield Finding("warning", "shared-rows", split.site, message, remedy, others, len(split.rows))


def _leaks(
    cohort: Cohort, splits: Sequence[Split], elsewhere: Mapping[str, Elsewhere], overlapping: bool
) -> Iterable[Finding]:
    train = np.concatenate([split.train for split in splits])
    known = cohort.records.patient is not None
    for split in splits:
        leaked = np.isin(split.test, train)
        if known:
            leaked = leaked | np.isin(cohort.patient[split.test], cohort.patient[train])
        found = elsewhere.get(split.site)
        if found is not None:
            copied = found.copied[-len(split.test) :] if len(split.test) else found.copied[:0]
            leaked = leaked | (copied & np.isin(cohort.prints[split.test], cohort.prints[train]))
        count = int(leaked.sum())
        if count:
            words = "test rows are also training rows of some site, so that test figures flatter"
            yield _finding("leak", split.site, count, len(split.test), words, overlapping)


def _beyond(found: Elsewhere | None) -> str:
    """What of equal rows chance explains, where there are any beyond it."""
    if found is None or not found.explained or not (found.copied.any() or found.others.any()):
        return ""
    return f" (chance explains at most {int(found.explained)} equal rows in these columns)"


def _target_leaks(cohort: Cohort) -> Iterable[Finding]:
    for leak in cohort.target_leaks:
        classes = " and ".join(filter(None, (", ".join(map(repr, leak.classes[:-1])), repr(leak.classes[-1]))))
        what = f"whether {leak.column!r} has a value" if leak.gap else f"column {leak.column!r}"
        message = (
            f"{what} alone tells {classes} from the rest: area under the ROC curve {leak.auc:.3f} over {leak.rows} "
            f"rows, {leak.rarer} of them of the rarer class"
        )
        if leak.level == "warning":
            message += ". It may be so by nature; is it known before the outcome?"
        remedy = (
            "Find out how it is recorded: what is known only after the outcome, or because of it, is no feature. "
            f'Leave it out; of a file with `types = {{ "{leak.column}" = "ignore" }}` in [data].'
        )
        site = leak.hospital.replace("/", "-")
        yield Finding(leak.level, "target-leak", site, message, remedy, leak.rarer, leak.rows)


def _copies(cohort: Cohort, splits: Sequence[Split]) -> Iterable[Finding]:
    known = cohort.records.patient is not None
    words = (
        "rows are equal in every column to a row of another patient of this site"
        if known
        else "rows are equal to an earlier one in every column, more than chance explains: a random split would test "
        "on rows that were trained on. Here copies are kept on one side, yet each counts as if it were another patient"
    )
    for split in splits:
        found = copies(cohort, split.rows)
        if found.beyond_chance:
            level: Literal["error", "warning"] = "error" if found.many else "warning"
            message = f"{found.count} of {found.rows} {words}"
            remedy = "Remove the copies from the file, keeping one of each, unless they are different patients."
            yield Finding(level, "copies", split.site, message, remedy, found.count, found.rows)


def _directions(cohort: Cohort, splits: Sequence[Split]) -> Iterable[Finding]:
    """Test rows are not looked at: nothing may be learnt from them, not even which way a column points."""
    if cohort.records.synthetic or not 2 <= len(splits) <= MOST_SITES:  # synthetic sites differ by design
        return
    told = {split.site: associations(cohort, np.concatenate([split.train, split.validation])) for split in splits}
    yield from direction_findings(opposites(told), cohort.records.classes)
    if cohort.records.is_table and not cohort.records.has_findings and len(cohort.records.classes) == 2:
        for site in uncompared(told):
            remedy = "Make sure that the target means the same there; columns are compared where their names are known."
            yield Finding("warning", "label-direction", site, UNCOMPARED, remedy)


def direction_findings(found: Iterable[Opposite], classes: Sequence[str]) -> list[Finding]:
    """In a deployment the coordinator makes them, from what the sites have told of their columns."""
    findings = []
    for one in found:
        site = f"{one.site} and {one.others[0]}" if len(one.others) == 1 else one.site
        findings.append(Finding("error", "label-direction", site, *in_words(one, classes[1])))
    return findings


def _finding(check: str, site: str, count: int, total: int, words: str, overlapping: bool) -> Finding:
    tolerable = overlapping or count < 2 or count / total <= FEW
    remedy = (
        "The partition overlaps by design; use its disjoint variant for figures without leakage."
        if overlapping
        else "Remove the copies."
    )
    level: Literal["error", "warning"] = "warning" if tolerable else "error"
    return Finding(level, check, site, f"{count} of {total} {words}", remedy, count, total)
