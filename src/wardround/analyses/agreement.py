"""Before the first step: which sites take part, and which levels their columns have.

A site of which fewer than `smallest` patients would count is left out, and says so. A level that nobody has declared is
named only by a site where so many patients have it; rows with a level that no site names do not count.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from wardround.analyses.analysis import Agreed, Analysis, ColumnFacts, LeftOut, Schema, Survey, Uses
from wardround.analyses.site_rows import SiteRows, levels_of
from wardround.core.errors import DataError, StudyError
from wardround.data.records import Column
from wardround.privacy.disclosure import broken_rule
from wardround.privacy.disclosure.small_cells import has_few_patients

SITE = "site"  # in a formula: the site of a row


def schema_of(columns: Iterable[Column]) -> Schema:
    return {column.name: ColumnFacts(column.name, column.kind, column.limits, column.levels) for column in columns}


def survey(analysis: Analysis, schema: Schema, rows: SiteRows, smallest: int) -> Survey:
    """What a site says about itself. Nothing of a site that is left out."""
    uses = analysis.uses(schema)
    counted = rows.take(analysis.eligible(rows))
    levels = {name: own_levels(schema[name], counted, smallest) for name in uses.levels if name != SITE}
    counted = counted.take(has_levels(counted, schema, levels))
    broken = broken_rule(counted.people, smallest)
    return Survey(broken) if broken else Survey("", levels)


def own_levels(column: ColumnFacts, rows: SiteRows, smallest: int) -> tuple[str, ...]:
    own = levels_of(rows.frame[column.name], column.kind == "numeric")
    present = set(own.tolist())
    if column.levels is not None:
        return tuple(level for level in column.levels if level in present)
    return tuple(sorted(level for level in present if not has_few_patients(rows.people[own == level], smallest)))


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
        problem = f"no hospital has enough patients for it ({left_out[0].rule})" if left_out else "no hospital has rows"
        raise DataError(where, problem, "Ask more hospitals, or use columns with fewer gaps.")
    levels = {name: _together(schema, name, [surveys[site].levels[name] for site in sites]) for name in asked(uses)}
    if SITE in uses.levels:
        levels[SITE] = tuple(sorted(sites))
    for name, known in levels.items():
        if len(known) < 2:
            problem = f"{name!r} has the same level in all rows that count, so that it explains nothing"
            raise StudyError(f"{where}: formula", problem, "Leave it out.")
    return Agreed(schema, levels, sites, most_rows), left_out


def asked(uses: Uses) -> list[str]:
    """Columns whose levels sites are asked for."""
    return [name for name in uses.levels if name != SITE]


def _together(schema: Schema, name: str, by_site: Iterable[Sequence[str]]) -> tuple[str, ...]:
    known = {level for levels in by_site for level in levels}
    return tuple(sorted(known, key=float if schema[name].kind == "numeric" else str))


def admitted(analysis: Analysis, agreed: Agreed, rows: SiteRows) -> SiteRows:
    """The rows of a site that count, which every step is about."""
    counted = rows.take(analysis.eligible(rows))
    return counted.take(has_levels(counted, agreed.schema, agreed.levels))
