"""Does a label mean the same everywhere? Columns that several sites record should point the same way.

Where older patients are more often positive at every site but one, the positive class of that one may mean the
opposite there. A site reports for each column only how well it ranks positive above negative rows: the area under the
ROC curve less one half, with its standard error. So the same functions serve a simulation and a deployment.

The evidence is a likelihood ratio in natural logarithms: how much better "this site's label is inverted" explains its
associations than "it runs as the others' do". Random effects: a site's association with a column differs truly from
the mean over hospitals by `BETWEEN`, and that mean is itself a draw of spread `USUAL`, so that noise on both sides,
which has no direction, is no evidence.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from math import log

import numpy as np
import pandas as pd

from wardround.data.checks.clinical_names import SEX, common_name
from wardround.data.cohort import Cohort
from wardround.data.records import spaced_evenly

LEAST = 10  # positive and negative rows with a value: fewer say next to nothing, and come close to single patients
ENOUGH = 5000  # rows of a class that are looked at: sampling error is by then far below BETWEEN
# The mean over eight columns of DerSimonian and Laird's estimate (Controlled Clinical Trials 1986) for the four UCI
# heart hospitals is 0.03 squared.
BETWEEN = 0.03
USUAL = 0.15  # associations of clinical columns with a diagnosis: an area of 0.65, or of 0.35
ALIKE = 0.2  # columns tell partly the same: mean absolute rank correlations at those hospitals are 0.12 to 0.22
CLEAR = log(1000)
MOST_SITES = 50  # beyond, no site is compared: nobody could confirm so many labels one by one
NAMED = 3  # columns in a message

MEANINGS = dict.fromkeys(("1", "yes", "y", "true", "t", "present", "positive"), 1.0)
MEANINGS |= dict.fromkeys(("0", "no", "n", "false", "f", "absent", "negative"), 0.0)
SEX_MEANINGS = dict.fromkeys(("male", "m", "man"), 1.0) | dict.fromkeys(("female", "f", "w", "woman"), 0.0)


@dataclass(frozen=True)
class Association:
    """Of one column with the positive class at one site."""

    effect: float  # area under the ROC curve less one half: above 0 where positive rows have the higher values
    error: float  # its standard error
    positives: int
    negatives: int


@dataclass(frozen=True)
class Opposite:
    """A site whose label seems to run against that of `others`."""

    site: str
    others: tuple[str, ...]
    certain: bool  # whether the others are more, so that it is this one that differs
    evidence: float  # natural logarithm of the likelihood ratio
    higher: tuple[str, ...]  # columns that are higher in positive rows here and lower there, the weightiest first
    lower: tuple[str, ...]


def associations(cohort: Cohort, rows: np.ndarray) -> dict[str, Association]:
    """By the column's common name, so that `trestbps` here and `Systolic blood pressure` there can be compared.

    Copies of a row count once. Columns with fewer than `LEAST` known values in either class are left out, and so are
    two that come under one name. Empty unless there is a table with two classes, or with a number: then rows above its
    middle at this site take the place of positive ones.
    """
    records = cohort.records
    if not records.is_table:
        return {}
    distinct = rows[np.unique(cohort.prints[rows], return_index=True)[1]]
    upper = records.task.is_upper(records.target[distinct])
    if upper is None:
        return {}
    by_class = (np.sort(distinct[side]) for side in (upper, ~upper))
    chosen = np.concatenate([spaced_evenly(rows_of_class, ENOUGH) for rows_of_class in by_class])
    names, values = _comparable(cohort, chosen)
    if not names or not len(chosen):
        return {}
    positive, known = np.isin(chosen, distinct[upper]), ~np.isnan(values)
    positives, negatives = known[positive].sum(axis=0), known[~positive].sum(axis=0)
    varied = np.where(known, values, -np.inf).max(axis=0) > np.where(known, values, np.inf).min(axis=0)
    usable = (positives >= LEAST) & (negatives >= LEAST) & varied
    occurrences = Counter(compress(names, usable))
    places = [place for place in np.flatnonzero(usable).tolist() if occurrences[names[place]] == 1]
    if not places:
        return {}
    p, n = positives[places], negatives[places]
    ranks = pd.DataFrame(values[:, places]).rank().to_numpy()[positive]
    areas = (np.nansum(ranks, axis=0) - p * (p + 1) / 2) / (p * n)
    errors = standard_errors(areas, p, n)
    columns = zip(places, (areas - 0.5).tolist(), errors.tolist(), p.tolist(), n.tolist(), strict=True)
    return {names[place]: Association(*statistics) for place, *statistics in columns}


def standard_errors(areas: np.ndarray, positives: np.ndarray, negatives: np.ndarray) -> np.ndarray:
    """Hanley and McNeil, Radiology 1982. With ties it is a little too large.

    An area below one half is taken as the other class's above it, so that an inverted label has the same error.
    """
    area, below = np.maximum(areas, 1 - areas), areas < 0.5
    positives, negatives = np.where(below, negatives, positives), np.where(below, positives, negatives)
    two_positives, two_negatives = area / (2 - area), 2 * area**2 / (1 + area)
    spread = area * (1 - area)
    spread = spread + (positives - 1) * (two_positives - area**2) + (negatives - 1) * (two_negatives - area**2)
    return np.asarray(np.sqrt(spread / (positives * negatives)))


def opposites(by_site: Mapping[str, Mapping[str, Association]]) -> list[Opposite]:
    """Sites whose label runs against the others', found one after another: the clearest is set aside, and the rest are
    compared again, so that one inverted site does not make the others look inverted.
    """
    names = sorted(set().union(*by_site.values()))
    sites = [site for site, columns in by_site.items() if columns]
    if not names or not 2 <= len(sites) <= MOST_SITES:
        return []
    effects, spreads = _arrays(by_site, sites, names)
    inverted, others = _set_aside(effects, spreads)
    recorded = np.isfinite(spreads)
    results = []
    for place, evidence, shares in inverted:
        comparable = set(np.flatnonzero((recorded & recorded[place]).any(axis=1)).tolist()) - {place}
        against = tuple(sites[other] for other in sorted(comparable & others) or sorted(comparable))
        columns = _named(names, effects[place], shares)
        results.append(Opposite(sites[place], against, len(against) > len(inverted), evidence, *columns))
    return results


def _set_aside(effects: np.ndarray, spreads: np.ndarray) -> tuple[list[tuple[int, float, np.ndarray]], set[int]]:
    """The sites that clearly differ, each with its evidence in total and by column, and the other sites."""
    remaining, inverted = list(range(len(effects))), list[tuple[int, float, np.ndarray]]()
    while len(remaining) > 1:
        shares = _evidence(effects[remaining], spreads[remaining])
        totals = np.array([total(share) for share in shares])
        worst = int(np.round(totals, 9).argmax())  # two sites have the same evidence: the first is named first
        if totals[worst] <= CLEAR:
            break
        inverted.append((remaining.pop(worst), float(totals[worst]), shares[worst]))
    return inverted, set(remaining)


def uncompared(by_site: Mapping[str, Mapping[str, Association]]) -> list[str]:
    """Sites that share no usable column with any other: an inverted label there could not be seen."""
    sites_with = Counter(name for columns in by_site.values() for name in columns)
    return [site for site, columns in by_site.items() if all(sites_with[name] == 1 for name in columns)]


def total(shares: np.ndarray) -> float:
    """Of the columns' evidence, as far as they tell different things.

    With k columns whose pairwise correlation is r, a sum counts 1 + (k - 1) r times what is new in it (Kish, Survey
    Sampling, 1965); columns that say nothing do not count among the k.
    """
    size = np.abs(shares).sum()
    if not size:
        return 0.0
    count = size**2 / (shares**2).sum()
    return float(shares.sum() / (1 + (count - 1) * ALIKE))


def _comparable(cohort: Cohort, rows: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Columns in which higher means the same everywhere, as far as names and words can say."""
    table, names, values = cohort.table, [], []
    for place, column in enumerate(table.columns):
        name = common_name(column.name)
        if column.kind == "numeric" and not column.dates and name != SEX:
            # of a sex in 0 and 1 nobody knows which is which: it may itself be inverted, and is evidence of nothing
            names.append(name)
            values.append(table.numbers[rows, place])
        elif column.kind == "categorical":
            codes = table.codes[rows, place]
            meanings = _meanings(table.levels[place], codes, SEX_MEANINGS if name == SEX else MEANINGS)
            if meanings is not None:
                names.append(name)
                values.append(np.append(meanings, np.nan)[codes])  # the code of a gap is -1: the last
    return names, np.column_stack(values) if values else np.empty((len(rows), 0))


def _meanings(levels: Sequence[str], codes: np.ndarray, vocabulary: Mapping[str, float]) -> np.ndarray | None:
    """A number for each level, where exactly two occur here and their words say which is the higher."""
    occurring = np.unique(codes[codes >= 0])
    if len(occurring) != 2:
        return None
    numbers = np.array([vocabulary.get(level.casefold(), np.nan) for level in levels])
    return numbers if np.isfinite(numbers[occurring]).all() and np.ptp(numbers[occurring]) > 0 else None


def _arrays(
    by_site: Mapping[str, Mapping[str, Association]], sites: Sequence[str], names: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Effects, and their variances around the mean over hospitals, infinite where a site has no such column."""
    effects, spreads = np.zeros((len(sites), len(names))), np.full((len(sites), len(names)), np.inf)
    places = {name: place for place, name in enumerate(names)}
    for row, site in enumerate(sites):
        for name, association in by_site[site].items():
            effects[row, places[name]] = association.effect
            spreads[row, places[name]] = association.error**2 + BETWEEN**2
    return effects, spreads


def _evidence(effects: np.ndarray, spreads: np.ndarray) -> np.ndarray:
    """Of each site and column against the other sites.

    With this site's effect e and the others' mean m, of variances a and b, both around a mean that is drawn with
    variance T: e and m are normal with covariance T if the label runs alike and -T if it is inverted. The logarithm of
    the ratio of the two densities is -2 e m / (a + b + a b / T).
    """
    weights = 1 / spreads
    others = weights.sum(axis=0) - weights
    there = (weights > 0) & (others > 1e-9)
    safe = np.where(there, others, 1.0)
    mean = ((weights * effects).sum(axis=0) - weights * effects) / safe
    own, theirs = np.where(there, spreads, 1.0), 1 / safe
    return np.where(there, -2 * effects * mean / (own + theirs + own * theirs / USUAL**2), 0.0)


def _named(names: Sequence[str], effects: np.ndarray, shares: np.ndarray) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The columns with the largest shares in the evidence, apart by where they point."""
    places = [place for place in np.argsort(-shares, kind="stable")[:NAMED].tolist() if shares[place] > 0]
    places = [place for place in places if shares[place] >= shares[places[0]] / 10]
    return (
        tuple(names[place] for place in places if effects[place] > 0),
        tuple(names[place] for place in places if effects[place] < 0),
    )
