"""A partition written to disk: one CSV per site for tables, one .npz per site for images."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from wardround.data.cohort import Cohort
from wardround.data.records import SIDES
from wardround.data.split import Split
from wardround.errors import RunError


def export_split(cohort: Cohort, splits: Sequence[Split], out: Path) -> dict[str, int]:
    """File names with their numbers of rows. A column `side` says where each row belongs; `label` is the class name."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunError(str(out), "is there already and not an empty folder", "Give --out a new folder.")
    out.mkdir(parents=True, exist_ok=True)
    return {name: rows for split in splits for name, rows in [_write(cohort, split, out)]}


def _write(cohort: Cohort, split: Split, out: Path) -> tuple[str, int]:
    rows = np.concatenate([getattr(split, side) for side in SIDES])
    side = np.repeat(SIDES, [len(getattr(split, name)) for name in SIDES])
    part = cohort.records.take(rows)
    label = np.array(part.classes, dtype=object)[part.target]
    if isinstance(part.features, pd.DataFrame):
        name = f"{split.site}.csv"
        table = part.features.assign(label=label, side=side)
        if part.patient is not None:
            table.insert(0, "patient", part.patient)
        table.to_csv(out / name, index=False)
    else:
        name = f"{split.site}.npz"
        sides = {f"{s}_images": part.features[side == s] for s in SIDES} | {
            f"{s}_labels": part.target[side == s] for s in SIDES
        }
        np.savez_compressed(out / name, **sides)
    return name, len(rows)
