"""What is known of recordings: a table with a row for each, read as a csv source reads its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from wardround.core.errors import DataError, suggest
from wardround.core.notices import Notice
from wardround.data.imaging.listing import groups, hospitals, patients
from wardround.data.records import Records
from wardround.data.signals.summaries import summary_table
from wardround.data.sources.csv.outcome import DeclaredOutcomes, Outcome, declared_target, source_facts
from wardround.data.sources.csv.target_classes import DeclaredClasses
from wardround.data.sources.signals.reading import Signals
from wardround.data.text_table import Cells, Table, encode_cells
from wardround.study.facts import SourceFacts

LABELS = "labels"  # the one table that outcomes are read from
KNOWN = {  # columns that say what is known of a recording, by their names in a table, without regard to case
    "hospital": ("hospital", "site"),
    "patient": ("patient", "patientid", "patient_id", "patient id", "subject", "subject_id"),
    "age": ("age",),
    "sex": ("sex", "gender"),
    "split": ("split",),
}
PARTS = {"train": "train", "training": "train", "val": "validation", "validation": "validation", "test": "test"}


def signal_facts(options: Mapping[str, Any]) -> SourceFacts:
    return replace(source_facts(options), same_rows=("summary",))


@dataclass(frozen=True)
class SignalOutcome:
    """What is predicted, in the words of a csv source."""

    target: str
    classes: tuple[str, ...] | None = None
    positive: str | None = None
    task: str | dict[str, Any] = ""

    @property
    def declared(self) -> DeclaredOutcomes:
        words = DeclaredClasses(self.positive, self.classes, {})
        return declared_target([LABELS], self.target, {}, self.task, words, {})


@dataclass(frozen=True)
class Known:
    """A row for each recording that has a target."""

    outcome: Outcome
    attributes: pd.DataFrame  # texts: hospital, patient, age, sex, split, as far as there are columns
    target: str
    rows: np.ndarray  # of the table
    notices: list[Notice] = field(default_factory=list)


def table_of(columns: Mapping[str, Sequence[str]]) -> Table:
    """Texts that come from elsewhere than a file of lines."""
    rows = len(next(iter(columns.values()), ()))
    lines = np.arange(2, rows + 2)
    return {
        name: encode_cells(pa.chunked_array([pa.array(list(cells), pa.large_string())]), lines, False, in_memory=True)
        for name, cells in columns.items()
    }


def column(table: Table, names: Sequence[str]) -> str | None:
    """The first column of one of these names, without regard to case."""
    return next((own for own in table if own.strip().lower() in names), None)


def texts(cells: Cells) -> np.ndarray:
    return np.asarray(cells.spread(cells.levels, ""), dtype=object)


def known_of(table: Table, where: str, outcome: SignalOutcome) -> Known:
    if outcome.target not in table:
        problem = f"there is no column {outcome.target!r}, which the study names as its target"
        raise DataError(where, problem, suggest(outcome.target, table, "Columns"))
    rows, notices = np.flatnonzero(table[outcome.target].codes >= 0), []
    if not len(rows):
        raise DataError(where, f"no row has a value in {outcome.target!r}", "Look at the table of labels.")
    if missing := len(table[outcome.target].codes) - len(rows):
        counts = {"rows": missing, "of": missing + len(rows)}
        notices.append(Notice("rows-without-target", "info", columns=(outcome.target,), counts=counts))
        table = {name: cells.take(rows) for name, cells in table.items()}
    return Known(
        outcome.declared.read({LABELS: table}), attributes_of(table, outcome.target), outcome.target, rows, notices
    )


def attributes_of(table: Table, target: str) -> pd.DataFrame:
    found = {key: column(table, names) for key, names in KNOWN.items()}
    rows = len(next(iter(table.values())).codes)
    own = {key: texts(table[name]) for key, name in found.items() if name is not None and name != target}
    return pd.DataFrame(own, index=pd.RangeIndex(rows), dtype=object)


def records_of(signals: Signals, rate: float | None, known: Known, hospital: str, summary: bool) -> Records:
    """`hospital` is the name of all rows where the table names none."""
    attributes = known.attributes
    if "hospital" not in attributes:
        attributes = attributes.assign(hospital=hospital)
    patient, of_patients = patients(attributes)
    group, of_ages = groups(attributes)
    read, values, channels = known.outcome, signals.values, signals.channels
    features, columns = summary_table(values, rate or 1.0, channels) if summary else (values, ())
    words = next(iter(read.vocabulary.values()), {})
    return Records(
        features=features,
        target=read.target,
        classes=read.classes,
        hospital=hospitals(attributes),
        columns=columns,
        patient=patient,
        groups=group,
        notes=(lengths(signals), *known.notices, *read.notices, *of_patients, *of_ages),
        split=_split(attributes),
        vocabulary=dict.fromkeys(dict.fromkeys(attributes["hospital"]), words) if words else {},
        outcome=known.target,
        given_task=read.task,
        channels=() if summary else channels,
        rate=None if summary else rate,
    )


def _split(attributes: pd.DataFrame) -> np.ndarray | None:
    if "split" not in attributes:
        return None
    parts = attributes["split"].str.strip().str.lower().map(PARTS)
    return None if parts.isna().any() else parts.to_numpy(object)


def lengths(signals: Signals) -> Notice:
    """How many recordings were cut to the study's length, are shorter, or have gaps."""
    missing = np.isnan(signals.values)
    samples = missing.shape[-1]
    ends = samples - np.argmax(~missing.all(axis=1)[:, ::-1], axis=1)
    within = np.arange(samples) < ends[:, None]
    counts = {
        "recordings": len(missing),
        "cut": signals.cut,
        "short": int((ends < samples).sum()),
        "gaps": int((missing & within[:, None]).any(axis=(1, 2)).sum()),
    }
    return Notice("signal-lengths", "info", counts=counts)


def labels_near(folder: Path, labels: Path | None) -> Path | None:
    """The table that the study names, or `labels.csv` in the folder."""
    if labels is not None:
        return labels
    usual = folder / "labels.csv"
    return usual if usual.is_file() else None
