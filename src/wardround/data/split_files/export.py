"""A partition written to disk: one CSV per site for tables, one .npz per site for images, and the manifest of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from wardround.core.atomic_files import PRIVATE_FILE
from wardround.core.errors import RunError
from wardround.data.cohort import Cohort
from wardround.data.imaging.npz import FLAGS
from wardround.data.records import SPLIT_PARTS, Records
from wardround.data.split import Split
from wardround.data.split_files.manifest import GROUP, IN_NPZ, Manifest, SiteRows, sha256_of, write_manifest


@dataclass(frozen=True)
class Origin:
    """Where the sites' rows came from."""

    source: str = ""
    partition: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0


NOWHERE = Origin()


def export_split(cohort: Cohort, splits: Sequence[Split], out: Path, origin: Origin = NOWHERE) -> dict[str, int]:
    """File names with their numbers of rows. In a table a column `split` says where each row belongs; `label` is the
    class name or the number; beside a count stands its exposure. Patients are numbered anew at each site."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunError(str(out), "is there already and not an empty folder", "Give --out a new folder.")
    out.mkdir(parents=True, exist_ok=True)
    records = cohort.records
    roles = _roles(records)
    sites = tuple(_write(records.take(split.rows), split, out, roles) for split in splits)
    features = records.features
    table = isinstance(features, pd.DataFrame)
    manifest = Manifest(
        origin.source,
        origin.partition,
        origin.settings,
        origin.seed,
        records.task,
        sites,
        records.outcome,
        records.synthetic,
        None if table else _shape(np.asarray(features)),
        records.columns,
        tuple(map(str, records.groups.columns)) if table else (),
        records.patient is not None,
        roles,
    )
    write_manifest(manifest, out)
    return {site.file: site.count for site in sites}


def _shape(images: np.ndarray) -> tuple[int, int, int]:
    channels, height, width = images.shape[1:]
    return channels, height, width


def _roles(records: Records) -> dict[str, str]:
    """What a table's further columns are called: as they are by nature, or with a line below where a feature has that
    name."""
    if not isinstance(records.features, pd.DataFrame):
        return {}
    taken, roles = set(map(str, records.features.columns)), {}
    patient = ["patient"] if records.patient is not None else []
    labels = list(records.task.written(records.target[:1]))
    for role in ("split", *patient, *labels, *(f"{GROUP}{name}" for name in records.groups.columns)):
        name = role
        while name in taken:
            name += "_"
        taken.add(name)
        roles[role] = name
    return roles


def _write(records: Records, split: Split, out: Path, roles: Mapping[str, str]) -> SiteRows:
    parts = np.repeat(SPLIT_PARTS, [len(getattr(split, part)) for part in SPLIT_PARTS])
    if isinstance(records.features, pd.DataFrame):
        name = f"{split.site}.csv"
        _table(records, parts, roles).to_csv(out / name, index=False)
    else:
        name = f"{split.site}.npz"
        np.savez_compressed(out / name, label_names=np.array(records.classes), **_arrays(records, parts))
    (out / name).chmod(PRIVATE_FILE)  # patients' rows
    return SiteRows(
        split.site,
        name,
        sha256_of(out / name),
        {part: len(getattr(split, part)) for part in SPLIT_PARTS},
        records.task.label_counts(records.target),
        _recorded(records),
    )


def _recorded(records: Records) -> tuple[str, ...]:
    """Columns that any hospital has whose rows are at this site."""
    every = tuple(column.name for column in records.columns)
    own = [records.recorded.get(hospital, every) for hospital in records.hospitals]
    return tuple(name for name in every if any(name in columns for columns in own))


def _table(records: Records, parts: np.ndarray, roles: Mapping[str, str]) -> pd.DataFrame:
    written = {**records.task.written(records.target), "split": parts}
    written |= {f"{GROUP}{name}": records.groups[name].to_numpy() for name in records.groups.columns}
    table = pd.DataFrame(records.features).assign(**{roles[role]: values for role, values in written.items()})
    if records.patient is not None:
        table.insert(0, roles["patient"], pd.factorize(records.patient)[0])
    return table


def _arrays(records: Records, parts: np.ndarray) -> dict[str, Any]:
    """Named as in MedMNIST's files, so that they can be read again: `train_images`, `val_labels`, `test_age` ..."""
    images = np.asarray(records.features)
    columns = {"images": images[:, 0] if images.shape[1] == 1 else np.moveaxis(images, 1, -1), "labels": records.target}
    if records.patient is not None:
        columns["patient_id"] = pd.factorize(records.patient)[0]
    for column, (name, yes, no) in FLAGS.items():
        # a flag has no third value: where there is one, all are left out
        if column in records.groups and records.groups[column].isin((yes, no)).all():
            columns[name] = (records.groups[column] == yes).to_numpy(dtype=np.uint8)
    if "age" in records.groups:
        columns["age"] = records.groups["age"].to_numpy(dtype=np.float32)
    return {f"{IN_NPZ[part]}_{name}": values[parts == part] for part in IN_NPZ for name, values in columns.items()}
