"""One site for each value of a recorded column, or for each band of a number: men and women, young and old."""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
import pandas as pd

from wardround.core.errors import DataError, StudyError, suggest
from wardround.data.partition.partition import Partitioner, refuse_no_rows, refuse_torn_patients, rows_by_site
from wardround.data.records import Records

WHERE = "sites: by-column"
MOST_NUMBERS = 20  # a number with more values than this is a measurement, and a site for each would be absurd
UNKNOWN = "unknown"


def by_column(
    column: str, bands: tuple[float, ...] = (), patients: Literal["refuse", "majority"] = "refuse"
) -> Partitioner:
    """A feature, or failing that a group such as `sex`, `age` or `view`; `bands` are the cut points of a number.

    A band holds its lower cut point and not its upper one. Rows without a value form the site "unknown". A patient
    whose rows would be at several sites is refused; with `patients = "majority"` all his rows go where most of them
    are, the first such site in the order of the sites. Nothing is drawn: the generator is not used.
    """
    if any(low >= high for low, high in pairwise(bands)):
        raise StudyError(f"{WHERE}: bands", "the cut points do not rise", "Write them in rising order, each once.")

    def assign(records: Records, rng: np.random.Generator) -> dict[str, np.ndarray]:
        refuse_no_rows(records, WHERE)
        values = _find_column(records, column)
        names, site_of_row = _by_band(values, column, bands) if bands else _by_value(values, column)
        if (site_of_row == len(names)).any():
            names.append(UNKNOWN)
        if patients == "majority":
            site_of_row = _by_majority(site_of_row, records.units, len(names))
            sites = np.unique(site_of_row)
            names, site_of_row = [names[site] for site in sites], np.searchsorted(sites, site_of_row)
        remedy = 'Choose a column that is the same in all rows of a patient, or set patients = "majority".'
        refuse_torn_patients(site_of_row, records.units, f"{WHERE}: {column}", remedy)
        return rows_by_site(site_of_row, names)

    return Partitioner(assign)


def _by_majority(site_of_row: np.ndarray, units: np.ndarray, sites: int) -> np.ndarray:
    rows = np.zeros((units.max(initial=-1) + 1, sites), dtype=np.int64)
    np.add.at(rows, (units, site_of_row), 1)
    return np.asarray(rows.argmax(axis=1)[units])


def _find_column(records: Records, column: str) -> pd.Series:
    tables = [table for table in (records.features, records.groups) if isinstance(table, pd.DataFrame)]
    for table in tables:
        if column in table.columns:
            return table[column]
    known = {str(name) for table in tables for name in table.columns}
    raise DataError(f"{WHERE}: {column}", "no such column", suggest(column, known, "Columns"))


def _by_band(values: pd.Series, column: str, bands: Sequence[float]) -> tuple[list[str], np.ndarray]:
    """Names of the sites and the site of each row, where one past the last name means that the value is missing."""
    if not _is_number(values):
        remedy = "Leave out `bands`, or choose a numeric column."
        raise DataError(f"{WHERE}: {column}", "`bands` were given, but the column holds no numbers", remedy)
    numbers = values.to_numpy(dtype=np.float64, na_value=np.nan)
    cuts = [_plain(cut) for cut in bands]
    names = [f"below-{cuts[0]}", *(f"{low}-to-{high}" for low, high in pairwise(cuts)), f"{cuts[-1]}-and-over"]
    known = ~np.isnan(numbers)
    site_of_row = np.where(known, np.searchsorted(bands, numbers, side="right"), len(names))
    if empty := len(names) - np.unique(site_of_row[known]).size:
        problem = f"{empty} of {len(names)} bands hold no rows"
        raise DataError(f"{WHERE}: {column}", problem, "Move or remove cut points in `bands`.")
    return _named(names, column), site_of_row


def _by_value(values: pd.Series, column: str) -> tuple[list[str], np.ndarray]:
    """As `_by_band`."""
    is_number = _is_number(values)
    if not is_number:
        values = values.astype("string").str.strip()
        values = values.mask(values == "")
    codes, distinct = pd.factorize(values, sort=True)
    if len(distinct) == 0:
        raise DataError(f"{WHERE}: {column}", "the column holds no values", "Choose another column.")
    if is_number and len(distinct) > MOST_NUMBERS:
        problem = f"a numeric column with {len(distinct)} different values"
        raise DataError(f"{WHERE}: {column}", problem, "Add cut points, such as `bands = [40, 55]`.")
    names = [_plain(float(value)) if is_number else str(value) for value in distinct]
    site_names = _named(names, column)
    if len(set(site_names)) < len(site_names):
        problem = f"{len(distinct)} values would give only {len(set(site_names))} names of sites"
        raise DataError(f"{WHERE}: {column}", problem, "Spell each value one way: capitals and spaces do not count.")
    return site_names, np.where(codes < 0, len(names), codes)


def _is_number(values: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)


def _plain(number: float) -> str:
    return np.format_float_positional(number, trim="-")


def _named(values: Sequence[str], column: str) -> list[str]:
    """Names that are safe as the name of a folder."""
    return [re.sub(r"[\s/\\]+", "-", f"{column}-{value}").lower() for value in values]
