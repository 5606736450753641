"""How a new hospital's outcome was read: each word, the class that it was taken for, and how many rows have it.

A person must confirm it. In a study an inverted label shows beside the other hospitals' rows; here nothing is known of
them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from wardround.data.agreement import LEAST
from wardround.data.cohort import Cohort
from wardround.data.records import label_counts
from wardround.data.sources.csv.column_types import one_spelling
from wardround.data.sources.csv.text_table import checked_names
from wardround.data.sources.csv.text_table import read_table as read_csv
from wardround.deployment.provisioning.kit_files import read_table


def target_of(hospital: str | Path, name: str, cohort: Cohort) -> list[dict[str, Any]]:
    """`word`, `class` and `rows`; the word is None where the source has classes and no words for them.

    Rows are None where they are fewer than five: a word that few patients have may be about one of them.
    """
    words = cohort.records.vocabulary.get(name)
    if not words:
        counted = label_counts(cohort.records, np.arange(len(cohort.records)))
        return [{"word": None, "class": name, "rows": _told(rows)} for name, rows in counted.items()]
    rows = _rows_of_words(Path(hospital))
    return [{"word": word, "class": meant, "rows": _told(rows.get(word, 0))} for word, meant in words.items()]


def _told(rows: int) -> int | None:
    return rows if rows >= LEAST or rows == 0 else None


def _rows_of_words(hospital: Path) -> Mapping[str, int]:
    """Counted in the file itself: once rows are read, only their classes are left."""
    path = (hospital / "site.toml" if hospital.is_dir() else hospital).absolute()
    data = read_table(path, "a hospital's file")["data"]
    cells = read_csv(path.parent / data["file"], data.get("separator", "auto"), checked_names)[data["target"]]
    counts = np.bincount(cells.codes[cells.codes >= 0], minlength=cells.distinct)
    found: dict[str, int] = {}
    for word, count in zip(one_spelling(cells), counts.tolist(), strict=True):
        found[word.casefold()] = found.get(word.casefold(), 0) + count
    return found
