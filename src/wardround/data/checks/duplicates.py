"""Rows of one site that are copies of each other, or of rows at another site, beyond what chance explains."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from wardround.data.checks.coincidences import explained_by_chance
from wardround.data.cohort import Cohort
from wardround.data.split import Split

FEWEST = 3  # copies: a pair or two may always be, a coincidence or a typo
FEWEST_COLUMNS = 4  # that vary: of fewer, equal rows of one site say nothing
# A tenth of the rows as second copies carry a fifth more variance than as many different rows would, so that
# intervals that take rows for patients come out a tenth too narrow. Below it, figures hardly change.
MANY = 0.1
SAME_FILE = 10  # different rows: two files with the same rows, as often each, are one file even if columns are coarse


@dataclass(frozen=True)
class Copies:
    count: int  # rows that are equal to an earlier one
    rows: int
    explained: float  # as many may be chance; infinite where the table is too coarse to say

    @property
    def beyond_chance(self) -> bool:
        return self.count >= FEWEST and self.count > self.explained

    @property
    def many(self) -> bool:
        return self.beyond_chance and self.count - self.explained >= MANY * self.rows


@dataclass(frozen=True)
class Elsewhere:
    """Rows of one site that are equal to rows at other sites, beyond what chance explains."""

    copied: np.ndarray  # of the site's rows: whether an equal row elsewhere may be the same patient's
    others: np.ndarray  # whether it is known to be another patient's
    explained: float  # as many may be chance


def copies(cohort: Cohort, rows: np.ndarray) -> Copies:
    """Equal in every column and in the target. Where patients are known, one patient's rows are no copies: who comes
    twice may well be found as before.
    """
    if not cohort.records.is_table:
        return Copies(0, len(rows), np.inf)
    visits = pd.DataFrame({"row": cohort.prints[rows]})
    if cohort.records.patient is not None:
        visits = visits.assign(patient=cohort.patient[rows]).drop_duplicates()
    count, chosen = int(visits["row"].duplicated().sum()), rows[visits.index.to_numpy()]
    if count < FEWEST or _varying(cohort, chosen) < FEWEST_COLUMNS:
        return Copies(count, len(rows), np.inf)
    return Copies(count, len(rows), explained_by_chance(cohort.hashed, chosen))


def copies_elsewhere(cohort: Cohort, splits: Sequence[Split]) -> dict[str, Elsewhere]:
    """By site. Rows at several sites at once, as a partition may want it, are left to the check of patients.

    Two patients whose numbers can be compared and differ are different people, however alike their rows are.
    """
    rows = [np.unique(split.rows) for split in splits]
    if not pd.Series(cohort.prints[np.unique(np.concatenate(rows))]).duplicated().any():
        return {}  # the usual case, at no cost
    table = pd.DataFrame({"site": np.repeat(np.arange(len(splits)), list(map(len, rows))), "row": np.concatenate(rows)})
    table["print"], table["numbering"] = cohort.prints[table["row"]], numbering(cohort)[table["row"]]
    equal = table[table.duplicated("print", keep=False)]
    equal = equal[equal.groupby("print")["site"].transform("nunique") > 1]
    if equal.empty:
        return {}
    own = equal.groupby(["print", "site"])["row"].transform("size")
    everywhere = equal.groupby("print")["row"].transform("size")
    comparable = equal.groupby(["print", "numbering"])["row"].transform("size")
    comparable -= equal.groupby(["print", "numbering", "site"])["row"].transform("size")
    known = equal["numbering"] >= 0
    open_pairs = (everywhere - own - comparable.where(known, 0)) > 0
    closed_pairs = known & (comparable > 0)
    elsewhere = {}
    again = _same_file(cohort, rows)
    for number, split in enumerate(splits):
        here = equal["site"] == number
        if not here.any():
            continue
        others = np.setdiff1d(table.loc[table["site"] != number, "row"].to_numpy(), rows[number])
        copied, alike = (equal.loc[here & pairs, "row"].to_numpy() for pairs in (open_pairs, closed_pairs))
        matched = [_matched(cohort.prints, chosen, others) for chosen in (copied, alike)]
        explained = 0.0
        if cohort.records.is_table and max(matched):  # no two images are equal by chance
            explained = explained_by_chance(cohort.hashed, rows[number], others)
        elsewhere[split.site] = Elsewhere(
            np.isin(split.rows, copied) & (matched[0] > explained or number in again),
            np.isin(split.rows, alike) & (matched[1] > explained),
            explained,
        )
    return elsewhere


def numbering(cohort: Cohort) -> np.ndarray:
    """A number for each row; patients of rows with the same one are the same exactly if their patient numbers are. -1:
    whose a row is, is not known."""
    records = cohort.records
    if records.patient is None:
        return np.full(len(records), -1)
    if not records.numbering:
        return np.zeros(len(records), dtype=np.int64)
    names = {name: place for place, name in enumerate(dict.fromkeys(records.numbering.values()))}
    by_hospital = {hospital: names[name] for hospital, name in records.numbering.items()}
    return np.array([by_hospital.get(hospital, -1) for hospital in records.hospital.tolist()], dtype=np.int64)


def _varying(cohort: Cohort, rows: np.ndarray) -> int:
    table = cohort.table
    values = np.where(np.isnan(table.numbers[rows]), table.codes[rows], table.numbers[rows])
    values = np.where(table.missing[rows], np.inf, values)
    return int((values != values[0]).any(axis=0).sum())


def _matched(prints: np.ndarray, rows: np.ndarray, others: np.ndarray) -> int:
    """Rows that can be given an equal one each: six rows that equal a single one are one coincidence."""
    here, there = (pd.Series(prints[chosen]).value_counts() for chosen in (rows, others))
    common = here.index.intersection(there.index)
    return int(np.minimum(here[common].to_numpy(), there[common].to_numpy()).sum())


def _same_file(cohort: Cohort, rows: Sequence[np.ndarray]) -> set[int]:
    """Sites that have the very rows of another site. That 10 or more kinds of rows are as frequent at two hospitals to
    the last row is no chance: the most likely counts of 2 in each kind agree with a chance of about 0.2 to the tenth.
    """
    contents: dict[bytes, list[int]] = {}
    for number, chosen in enumerate(rows):
        prints = np.sort(cohort.prints[chosen])
        if len(np.unique(prints)) >= SAME_FILE:
            contents.setdefault(prints.tobytes(), []).append(number)
    return {number for same in contents.values() if len(same) > 1 for number in same}
