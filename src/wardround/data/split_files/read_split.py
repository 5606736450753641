"""A split on disk as rows again: each site is a hospital, in the manifest's order, with the split as it was written.

Rows are those that the split was made from, to the last bit, so that what is trained on them is too.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from wardround.core.errors import DataError
from wardround.data.imaging.npz import FLAGS, Archive
from wardround.data.records import SPLIT_PARTS, Records, short_hash
from wardround.data.split_files.manifest import FILE, GROUP, IN_NPZ, Manifest, SiteRows, checked_file, sites_at
from wardround.tasks import Task


def read_split(path: Path) -> Records:
    """`path` is the folder, or one site's file in it."""
    folder, manifest, sites = sites_at(path)
    read = _images if manifest.image is not None else _table
    parts = [read(checked_file(folder, site), site, manifest) for site in sites]
    return _together(parts, sites, manifest)


def _together(parts: Sequence[Records], sites: Sequence[SiteRows], manifest: Manifest) -> Records:
    first = parts[0]
    patients = [part.patient for part in parts if part.patient is not None]
    return Records(
        features=_features(parts),
        target=np.concatenate([part.target for part in parts]),
        classes=first.classes,
        hospital=np.concatenate([part.hospital for part in parts]),
        columns=manifest.columns,
        patient=np.concatenate(patients) if len(patients) == len(parts) else None,
        groups=_groups(parts),
        synthetic=manifest.synthetic,
        split=np.concatenate([part.split for part in parts if part.split is not None]),
        recorded={} if manifest.image else {site.name: site.recorded for site in sites},
        outcome=manifest.outcome,
        given_task=manifest.task,
    )


def _features(parts: Sequence[Records]) -> pd.DataFrame | np.ndarray:
    tables = [part.features for part in parts if isinstance(part.features, pd.DataFrame)]
    if tables:
        return pd.concat(tables, ignore_index=True)
    return np.concatenate([np.asarray(part.features) for part in parts])


def _groups(parts: Sequence[Records]) -> pd.DataFrame:
    """Those that every site has: a file of images may lack a flag."""
    groups = [part.groups for part in parts]
    shared = [name for name in groups[0] if all(name in own for own in groups)]
    return pd.concat([own[shared] for own in groups], ignore_index=True)


def _images(path: Path, site: SiteRows, manifest: Manifest) -> Records:
    archive = Archive(path)
    counts = {IN_NPZ[part]: site.rows[part] for part in SPLIT_PARTS}
    channels, *size = manifest.image or (0,)
    expected = {part: (count, *size, *([channels] if channels > 1 else [])) for part, count in counts.items()}
    if {part: member.shape for part, member in archive.parts().items()} != expected:
        raise _unfit(path, "its images are not as many, or not of the shape,")
    pixels = np.concatenate([archive.rows(f"{part}_images") for part in counts])
    pixels = pixels[:, np.newaxis] if channels == 1 else np.ascontiguousarray(np.moveaxis(pixels, 3, 1))
    labels, task = archive.column("labels", counts), manifest.task
    if labels is None or not _fits(labels, task):
        raise _unfit(path, "its labels are not those")
    groups = pd.DataFrame(index=pd.RangeIndex(len(labels)))
    for name, (flag, yes, no) in FLAGS.items():
        if (values := archive.values(flag, counts)) is not None:
            groups[name] = pd.Series(np.where(values.astype(bool), yes, no), dtype=object)
    if (ages := archive.values("age", counts)) is not None:
        groups["age"] = ages.astype(np.float64)
    numbers = archive.values("patient_id", counts) if manifest.patients else None
    parts = np.repeat(SPLIT_PARTS, list(counts.values()))
    return _rows(pixels, labels.astype(np.int64), groups, numbers, site, parts, task)


def _fits(labels: np.ndarray, task: Task) -> bool:
    if labels.dtype.kind not in "iub":
        return False
    if task.answers == "findings":
        return labels.shape[1:] == (len(task.names),) and bool(np.isin(labels, (-1, 0, 1)).all())
    return labels.ndim == 1 and bool(((labels >= 0) & (labels < len(task.names))).all())


def _cells(path: Path, site: SiteRows, manifest: Manifest) -> pd.DataFrame:
    """The file's cells as text, where its columns and rows are those of the manifest."""
    try:
        cells = pd.read_csv(path, dtype=str, keep_default_na=False, na_values=[""], encoding="utf-8")
    except (OSError, ValueError) as error:  # pandas' parser errors are ValueErrors
        raise _unfit(path, f"it cannot be read as CSV ({type(error).__name__}) and is not the table") from None
    wanted = {*(column.name for column in manifest.columns), *manifest.roles.values()}
    if set(cells.columns) != wanted or len(cells) != site.count:
        raise _unfit(path, "its columns or rows are not those")
    parts = cells[manifest.roles["split"]].to_numpy(object)
    if {part: int((parts == part).sum()) for part in SPLIT_PARTS} != dict(site.rows):
        raise _unfit(path, "its training, validation and test rows are not as many")
    return cells


def _table(path: Path, site: SiteRows, manifest: Manifest) -> Records:
    cells = _cells(path, site, manifest)
    task, roles = manifest.task, manifest.roles
    labels = [role for role in roles if role not in ("split", "patient") and not role.startswith(GROUP)]
    parts = cells[roles["split"]].to_numpy(object)
    features = pd.DataFrame(
        {
            column.name: _numbers(cells[column.name], path) if column.kind == "numeric" else _texts(cells[column.name])
            for column in manifest.columns
        }
    )
    groups = pd.DataFrame(
        {
            name: _numbers(cells[header], path) if name == "age" else _texts(cells[header])
            for name, header in ((name, roles[f"{GROUP}{name}"]) for name in manifest.groups)
        },
        index=pd.RangeIndex(len(cells)),
    )
    target = _target(task, {role: cells[roles[role]] for role in labels}, path)
    numbers = cells[roles["patient"]].to_numpy(object) if manifest.patients else None
    return _rows(features, target, groups, numbers, site, parts, task)


def _target(task: Task, labels: Mapping[str, pd.Series], path: Path) -> np.ndarray:
    if task.outcomes:
        columns = []
        for name, own in task.outcomes.items():
            read = _target(own, {"label": labels[f"label_{name}"], **{key: labels[key] for key in own.columns}}, path)
            columns.append(read.reshape(len(read), -1).astype(np.float64))
        return np.concatenate(columns, axis=1)
    if task.reads == "numbers":
        values = np.column_stack([_numbers(column, path) for column in labels.values()])
        return task.of_numbers(values)
    places = {name: place for place, name in enumerate(task.names)}
    classes = labels["label"].map(places)
    if classes.isna().any():
        raise _unfit(path, "its labels are not those")
    return classes.to_numpy(np.int64)


def _numbers(cells: pd.Series, path: Path) -> np.ndarray:
    try:
        return cells.to_numpy(dtype=np.float64, na_value=np.nan)
    except ValueError:
        raise _unfit(path, "a column of numbers has texts, and is not that") from None


def _texts(cells: pd.Series) -> pd.Series:
    return pd.Series([None if pd.isna(cell) else cell for cell in cells], dtype=object)


def _rows(
    features: pd.DataFrame | np.ndarray,
    target: np.ndarray,
    groups: pd.DataFrame,
    patients: np.ndarray | None,
    site: SiteRows,
    parts: np.ndarray,
    task: Task,
) -> Records:
    """Files number their patients each from 0, so that a number alone does not tell two sites' patients apart."""
    known = None
    if patients is not None:
        known = np.array([short_hash(f"{site.name}\x1f{number}") for number in patients.tolist()], dtype=object)
    return Records(
        features=features,
        target=target,
        classes=() if task.outcomes or task.reads == "numbers" else tuple(task.names),
        hospital=np.full(len(target), site.name, dtype=object),
        patient=known,
        groups=groups,
        split=parts.astype(object),
        given_task=task,
    )


def _unfit(path: Path, problem: str) -> DataError:
    remedy = "Write the split anew with `wardround data split`: file and manifest do not belong together."
    return DataError(str(path), f"{problem} that {FILE} gives", remedy)
