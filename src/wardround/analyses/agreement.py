"""Before the first step: which sites take part, and which levels their columns have.

    survey      each site names the levels of its columns: those that are declared, and those that enough patients have
    agree       all levels together, from which the columns of a regression follow
    admission   each site asks the rules of disclosure about what it would release; where one is broken, it is left out,
                and the others agree anew

Rows with a level that no site names do not count.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from wardround.analyses.analysis import Agreed, Analysis, ColumnFacts, LeftOut, Schema, Survey, Uses
from wardround.analyses.site_rows import SiteRows, levels_of
from wardround.core.errors import DataError, StudyError
from wardround.data.records import Column
from wardround.privacy.disclosure import RULES, Limits, Release, broken_rule, rules_asked
from wardround.privacy.disclosure.small_cells import has_few_patients

SITE = "site"  # in a formula: the site of a row
BINARY = ("0", "1")
OTHER_NUMBERS = "other numbers"  # the only level that a site names of a column with other values than 0 and 1


def schema_of(columns: Iterable[Column]) -> Schema:
    return {column.name: ColumnFacts(column.name, column.kind, column.limits, column.levels) for column in columns}


def survey(analysis: Analysis, schema: Schema, rows: SiteRows, limits: Limits) -> Survey:
    """What a site says about itself. Nothing of a site that is left out."""
    uses = analysis.uses(schema)
    counted = rows.take(analysis.eligible(rows))
    levels = {name: own_levels(schema[name], counted, limits.smallest_cell) for name in uses.levels if name != SITE}
    levels |= {name: _whether_binary(counted, name) for name in uses.maybe_binary}
    counted = counted if uses.every_row else counted.take(has_levels(counted, schema, levels))
    broken = broken_rule(Release(counted.people), limits)
    return Survey(broken) if broken else Survey("", levels)


Before = tuple[frozenset[str], Sequence[frozenset[str]]]


def admission(
    analysis: Analysis, agreed: Agreed, rows: SiteRows, limits: Limits, masked: bool, before: Before | None = None
) -> Survey:
    """The same once it is known what would be released. `masked`: the coordinator is to know the sum alone. `before`:
    the patients of this answer and of earlier ones to the same question, where the site remembers them."""
    release = analysis.release(agreed, rows)
    if before is not None:
        release = replace(release, marks=before[0], earlier=before[1])
    if masked:
        release = replace(release, contributors=len(agreed.sites))
    return Survey(broken_rule(release, limits), rules=rules_asked(release))


def own_levels(column: ColumnFacts, rows: SiteRows, smallest: int) -> tuple[str, ...]:
    values = rows.frame[column.name]
    own, people = levels_of(values[values.notna()], column.kind == "numeric"), rows.people[values.notna()]
    present = set(own.tolist())
    if column.levels is not None:
        return tuple(level for level in column.levels if level in present)
    return tuple(sorted(level for level in present if not has_few_patients(people[own == level], smallest)))


def has_levels(rows: SiteRows, schema: Schema, levels: Mapping[str, Sequence[str]]) -> np.ndarray:
    mask = np.ones(len(rows), dtype=bool)
    for name, known in levels.items():
        if name != SITE:
            mask &= np.isin(levels_of(rows.frame[name], schema[name].kind == "numeric").astype(str), list(known))
    return mask


def agree(
    analysis: Analysis, schema: Schema, surveys: Mapping[str, Survey], most_rows: int, where: str
) -> tuple[Agreed, list[LeftOut]]:
    """From what all sites said. DataError if none takes part."""
    uses, left_out = analysis.uses(schema), [LeftOut(site, own.broken) for site, own in surveys.items() if own.broken]
    sites = tuple(site for site, own in surveys.items() if not own.broken)
    if not sites:
        reasons = dict.fromkeys(f"{RULES[site.rule].forbids} ({site.rule})" for site in left_out)
        problem = f"every hospital is left out by a rule of disclosure; none releases {'; '.join(reasons)}"
        raise DataError(where, problem, "Use fewer columns, columns with fewer gaps, or ask more hospitals.")
    levels = {name: _together(schema, name, [surveys[site].levels[name] for site in sites]) for name in asked(uses)}
    if SITE in uses.levels:
        levels[SITE] = tuple(sorted(sites))
    for name, known in levels.items():
        if len(known) < 2 and not uses.every_row:
            problem = f"{name!r} has the same level in all rows that count, so that it explains nothing"
            raise StudyError(f"{where}: formula", problem, "Leave it out.")
    return Agreed(schema, levels, sites, most_rows), left_out


def asked(uses: Uses) -> list[str]:
    """Columns whose levels sites are asked for."""
    return [name for name in (*uses.levels, *uses.maybe_binary) if name != SITE]


def _whether_binary(rows: SiteRows, name: str) -> tuple[str, ...]:
    values = rows.frame[name].dropna()
    if values.empty:
        return ()
    return BINARY if values.isin((0, 1)).all() else (OTHER_NUMBERS,)


def _together(schema: Schema, name: str, by_site: Iterable[Sequence[str]]) -> tuple[str, ...]:
    known = {level for levels in by_site for level in levels}
    if OTHER_NUMBERS in known:
        return (OTHER_NUMBERS,)
    return tuple(sorted(known, key=float if schema[name].kind == "numeric" else str))


def admitted(analysis: Analysis, agreed: Agreed, rows: SiteRows) -> SiteRows:
    """The rows of a site that count, which every step is about."""
    counted = rows.take(analysis.eligible(rows))
    if analysis.uses(agreed.schema).every_row:
        return counted
    return counted.take(has_levels(counted, agreed.schema, agreed.levels))
