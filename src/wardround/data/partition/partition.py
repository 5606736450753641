"""What every partitioner keeps to: which rows a site holds, decided before anything is split or prepared."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from wardround.core.errors import DataError
from wardround.data.records import Records, numbered
from wardround.study.facts import PartitionFacts


@dataclass(frozen=True)
class Partitioner(PartitionFacts):
    """How the rows of a source become sites.

    `assign` gives the sorted row numbers of each site. No site is empty, all rows of one patient go to the same site,
    the same generator gives the same sites, and what cannot be done is a DataError that names the setting to change.
    """

    assign: Callable[[Records, np.random.Generator], dict[str, np.ndarray]]


def deal_patients(
    name: str,
    count: int,
    smallest: int,
    deal: Callable[[Records, np.random.Generator, str], np.ndarray],
    citation: str = "",
) -> Partitioner:
    """`count` sites of at least `smallest` rows. `deal` gives the site of each patient; it is also told where errors
    are."""
    where = f"sites: {name}"

    def assign(records: Records, rng: np.random.Generator) -> dict[str, np.ndarray]:
        refuse_too_many_sites(records, count, smallest, where)
        return rows_by_site(deal(records, rng, where)[records.units], site_names(count))

    return Partitioner(assign, citation=citation)


def site_names(count: int) -> list[str]:
    return numbered("site-", count)


def rows_by_site(site_of_row: np.ndarray, names: Sequence[str]) -> dict[str, np.ndarray]:
    return {name: np.flatnonzero(site_of_row == site).astype(np.int64) for site, name in enumerate(names)}


def first_rows(units: np.ndarray) -> np.ndarray:
    """The first row of each patient, in the order of `units`."""
    return np.unique(units, return_index=True)[1]


def refuse_no_rows(records: Records, where: str) -> None:
    if len(records) == 0:
        raise DataError(where, "there are no rows to place", "Check the source and what its filters leave.")


def refuse_too_many_sites(records: Records, count: int, smallest: int, where: str) -> None:
    """What no draw could satisfy is said at once."""
    refuse_no_rows(records, where)
    patients = first_rows(records.units).size
    if count > patients:
        problem = f"{count} sites were asked for, but there are only {patients} patients"
        raise DataError(where, problem, f"Set `count` to at most {patients}.")
    if count * smallest > len(records):
        problem = (
            f"{count} sites of at least {smallest} rows need {count * smallest}, but there are {len(records)} rows"
        )
        raise DataError(where, problem, "Lower `count` or `smallest`.")


def refuse_torn_patients(site_of_row: np.ndarray, units: np.ndarray, where: str, remedy: str) -> None:
    site_of_patient = site_of_row[first_rows(units)]
    if torn := np.unique(units[site_of_row != site_of_patient[units]]).size:
        raise DataError(where, f"patients with rows at more than one site: {torn}", remedy)
