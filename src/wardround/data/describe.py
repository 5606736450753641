"""What a CSV file or a shipped source holds, for the eyes of whoever owns it."""

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd

from wardround.data.images.problems import Accepted
from wardround.data.records import Records, label_counts
from wardround.data.sources import SOURCES
from wardround.data.sources.describe import describe_file
from wardround.errors import DataError, StudyError, suggest
from wardround.settings import settings_of


def describe_data(data: str) -> dict[str, Any]:
    """`data` is a file's path, a folder of radiographs, or the name of a source that needs no settings."""
    if data in SOURCES:
        required = [name for name, setting in settings_of(SOURCES[data]).items() if setting.required]
        if required:
            remedy = "Give the path of a file, or run `wardround check STUDY` on a study that has them."
            raise StudyError(data, f"this source needs settings: {', '.join(required)}", remedy)
        return _describe_records(data, SOURCES[data]().load())
    path = Path(data)
    if not path.exists():
        raise DataError(data, "no such file or source", suggest(data, SOURCES, "Sources"))
    if path.is_dir() or path.suffix == ".npz":
        return _describe_records(path.name, SOURCES["chest-xray"](path=path, accept=get_args(Accepted)).load())
    table = describe_file(path)
    columns = [{str(key): value for key, value in row.items()} for row in table.to_dict("records")]
    about = {key: table.attrs[key] for key in ("rows", "problems", "notes")}
    return {"name": path.name, **about, "columns": columns}


def _describe_records(name: str, records: Records) -> dict[str, Any]:
    hospitals: dict[str, dict[str, Any]] = {
        hospital: {
            "rows": int((records.hospital == hospital).sum()),
            "classes": label_counts(records, records.hospital == hospital),
        }
        for hospital in records.hospitals
    }
    notes = [
        f"{hospital}: {content['rows']} rows, " + ", ".join(f"{c} {n}" for c, n in content["classes"].items())
        for hospital, content in hospitals.items()
    ]
    return {
        "name": name,
        "rows": len(records),
        "notes": [*notes, *_about_images(records), *records.notes],
        "hospitals": hospitals,
        "columns": _columns(records),
    }


def _about_images(records: Records) -> list[str]:
    if records.is_table:
        return []
    notes = [] if records.patient is None else [f"{len(np.unique(records.patient))} patients"]
    if records.boxes is not None:
        notes.append(f"{len(records.boxes)} bounding boxes on {records.boxes['row'].nunique()} images")
    for name in records.groups.columns:
        known = records.groups[name].dropna()
        if name == "age":
            notes.append(f"age: known of {len(known)} images, on average {known.astype(float).mean():.0f}")
        else:
            notes.append(f"{name}: " + ", ".join(f"{value} {count}" for value, count in known.value_counts().items()))
    return notes


def _columns(records: Records) -> list[dict[str, Any]]:
    table = records.features
    if not isinstance(table, pd.DataFrame):
        return [{"name": "image", "type": f"{table.dtype} {' x '.join(map(str, table.shape[1:]))}", "missing": 0}]
    return [
        {
            "name": column.name,
            "type": column.kind,
            **{
                f"missing at {hospital}": int(table[column.name][records.hospital == hospital].isna().sum())
                for hospital in _few(records)
            },
            "missing": int(table[column.name].isna().sum()),
            "distinct": int(table[column.name].nunique()),
        }
        for column in records.columns
    ]


def _few(records: Records) -> tuple[str, ...]:
    return records.hospitals if len(records.hospitals) <= 8 else ()
