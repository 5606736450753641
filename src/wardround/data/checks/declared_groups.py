"""Groups of patients by columns that a study declares (`[evaluation] groups`), beside sex and age.

A column's levels are its groups. It may be a feature, or a column of the files that is none. Rows without a value are
in no group.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from wardround.core.errors import DataError, StudyError, suggest
from wardround.core.notices import Notice
from wardround.data.records import Records

MOST_LEVELS = 20  # of a column that is a group: more are no groups, or too small ones
LONGEST_LEVEL = 60  # characters: longer text is not the name of a group
WHERE = "evaluation: groups"


def with_groups(records: Records, names: Sequence[str], alone: bool = False) -> Records:
    """The records with these columns among their groups. A hospital that is `alone` with the declarations of all may
    lack one: it then has no such groups."""
    groups, notes = records.groups.copy(), list(records.notes)
    if not len(groups.columns):
        groups = pd.DataFrame(index=pd.RangeIndex(len(records)))
    for name in names:
        if name in groups:  # sex, age or the view of an image
            continue
        values = _column(records, name)
        if values is None and not alone:
            known = dict.fromkeys([*(column.own_name for column in records.columns), *records.aside])
            raise StudyError(f"{WHERE}: {name}", "no column is called so", suggest(name, known, "Columns"))
        if values is None:
            notes.append(Notice("group-not-recorded", "info", records.hospitals[0], (name,)))
            values = np.full(len(records), None, dtype=object)
        else:
            _check_levels(name, values, alone)
            notes += _unknown(records, name, values)
        groups[name] = values
    return replace(records, groups=groups, notes=tuple(notes), aside={})


def _column(records: Records, name: str) -> np.ndarray | None:
    """The text of each row, None where there is none; None where no column is called so."""
    if isinstance(records.features, pd.DataFrame):
        own = [column.name for column in records.columns if name in (column.name, column.own_name)]
        if own:  # hospitals with columns of their own may each have one of this name
            values = records.features[own].bfill(axis=1).iloc[:, 0] if len(own) > 1 else records.features[own[0]]
            return as_text(values)
    return as_text(records.aside[name]()) if name in records.aside else None


def as_text(values: pd.Series) -> np.ndarray:
    """Levels as text: whole numbers without a point."""
    texts = [None if pd.isna(v) else f"{v:g}" if isinstance(v, float) else str(v) for v in values]
    return np.array(texts, dtype=object)


def _check_levels(name: str, values: np.ndarray, alone: bool) -> None:
    levels, where = {value for value in values.tolist() if value is not None}, f"{WHERE}: {name}"
    if len(levels) > MOST_LEVELS:
        problem = f"has {len(levels)} different values, and a column of groups may have {MOST_LEVELS}"
        remedy = "Write bands, or fewer and larger groups, into a column. Age in years is banded by itself."
        raise DataError(where, problem, remedy)
    if any(len(level) > LONGEST_LEVEL for level in levels):
        problem = f"has text of more than {LONGEST_LEVEL} characters, which is no name of a group"
        raise DataError(where, problem, "Write short names of groups into the column.")
    if not levels and not alone:
        raise DataError(where, "has no value in any row", "Check the export, or leave it out.")


def _unknown(records: Records, name: str, values: np.ndarray) -> list[Notice]:
    missing = np.array([value is None for value in values.tolist()])
    counts = {site: missing[records.hospital == site] for site in records.hospitals}
    return [
        Notice("group-unknown", "info", site, (name,), {"rows": int(rows.sum()), "of": len(rows)})
        for site, rows in counts.items()
        if rows.any()
    ]
