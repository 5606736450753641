"""A partition written to disk: one CSV per site for tables, one .npz per site for images."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from wardround.core.errors import RunError
from wardround.data.cohort import Cohort
from wardround.data.records import SPLIT_PARTS, Records
from wardround.data.split import Split


def export_split(cohort: Cohort, splits: Sequence[Split], out: Path) -> dict[str, int]:
    """File names with their numbers of rows. In a table a column `split` says where each row belongs; `label` is the
    class name or the number; beside a count stands its exposure. Patients are numbered anew at each site."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunError(str(out), "is there already and not an empty folder", "Give --out a new folder.")
    out.mkdir(parents=True, exist_ok=True)
    return dict(_write(cohort, split, out) for split in splits)


def _write(cohort: Cohort, split: Split, out: Path) -> tuple[str, int]:
    parts = np.repeat(SPLIT_PARTS, [len(getattr(split, part)) for part in SPLIT_PARTS])
    records = cohort.records.take(split.rows)
    if isinstance(records.features, pd.DataFrame):
        name = f"{split.site}.csv"
        table = records.features.assign(**records.task.written(records.target), split=parts)
        if records.patient is not None:
            table.insert(0, "patient", pd.factorize(records.patient)[0])
        table.to_csv(out / name, index=False)
    else:
        name = f"{split.site}.npz"
        np.savez_compressed(out / name, label_names=np.array(records.classes), **_arrays(records, parts))
    return name, len(records)


def _arrays(records: Records, parts: np.ndarray) -> dict[str, Any]:
    """Named as in MedMNIST's files, so that they can be read again: `train_images`, `val_labels`, `test_age` ..."""
    images = np.asarray(records.features)
    columns = {"images": images[:, 0] if images.shape[1] == 1 else np.moveaxis(images, 1, -1), "labels": records.target}
    if records.patient is not None:
        columns["patient_id"] = pd.factorize(records.patient)[0]
    for column, name, yes, no in (("view", "view_ap", "AP", "PA"), ("sex", "sex_m", "male", "female")):
        # a flag has no third value: where there is one, all are left out
        if column in records.groups and records.groups[column].isin((yes, no)).all():
            columns[name] = (records.groups[column] == yes).to_numpy(dtype=np.uint8)
    if "age" in records.groups:
        columns["age"] = records.groups["age"].to_numpy(dtype=np.float32)
    short = dict(zip(SPLIT_PARTS, ("train", "val", "test"), strict=True))
    return {f"{short[part]}_{name}": values[parts == part] for part in short for name, values in columns.items()}
