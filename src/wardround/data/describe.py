"""What is in one hospital's file, for that hospital's own eyes: `wardround data describe FILE`.

Types are those that the csv source would give this file alone. Problems are listed for each column and for the file as
a whole; no value is shown that fewer than ten patients have, apart from the ends of a range.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd

from wardround.core.errors import DataError, StudyError, suggest
from wardround.core.notices import Notice, with_texts
from wardround.core.settings import settings_of
from wardround.data.checks.outliers import outliers
from wardround.data.imaging.arrow_tables import is_data_set
from wardround.data.imaging.problems import Accepted
from wardround.data.records import SPLIT_PARTS, Records
from wardround.data.signals.describe_signals import describe_signals, is_signals
from wardround.data.sources import SOURCES
from wardround.data.sources.csv.columns import ID_NAME, Shape, normalized_levels, shape, text_kind
from wardround.data.sources.csv.target_classes import MEANINGS
from wardround.data.split_files.manifest import is_split, sites_at
from wardround.data.split_files.read_split import read_split
from wardround.data.text_table import Cells, Separator, Table, looks_like_data, read_table

FEWEST_FOR_STATISTICS = 10  # a median of fewer values comes too close to telling one patient's
QUARTILES = ("lower_quartile", "median", "upper_quartile")
OF_ANY_QUESTION = ("yes", "y", "true", "1", "present", "abnormal", "ja", "oui")
THOUSANDS = re.compile(r"[+-]?[0-9]{1,3}(,[0-9]{3})+(\.[0-9]*)?")
TARGET_NAME = re.compile(
    r".*(target|outcome|result|label|class|diagnos\w*|disease|alive|surviv\w*|died|dead|death|mortality|event)s?(_.*)?|y",
    re.IGNORECASE,
)


def describe_file(path: Path, separator: Separator = "auto") -> pd.DataFrame:
    """A row per column. `attrs` holds `rows`, `duplicated_rows` (equal to an earlier row in every column) and
    `notices`: problems of the file as a whole, and columns that might be a target."""
    return describe_table(read_table(path, separator, _numbered_names))


def describe_table(table: Table) -> pd.DataFrame:
    """`describe_file` of a file that has been read."""
    described = pd.DataFrame([_describe(name, cells) for name, cells in table.items()])
    copies, copies_but_ids = _copies(table, described)
    rows = len(next(iter(table.values())).codes)
    described.attrs.update(
        rows=rows,
        duplicated_rows=copies,
        notices=[
            *_file_problems(table, rows, copies, copies_but_ids),
            *(notice for name, cells in table.items() for notice in _as_target(name, cells)),
        ],
    )
    return described


def _numbered_names(header: list[str], where: str) -> list[str]:
    """Missing and repeated names get their column's number, so that they can be described instead of refused.

    A first line that is a row of data holds a patient's values: none of them is taken for a name.
    """
    names = [cell.strip() for cell in header]
    if 2 * sum(looks_like_data([name]) for name in names) > len(names):
        return [f"column {i}" for i in range(1, len(names) + 1)]
    return [
        f"{name or '(no name)'} [column {i}]" if not name or name in names[: i - 1] else name
        for i, name in enumerate(names, 1)
    ]


def _describe(name: str, cells: Cells) -> dict[str, object]:
    own_shape = shape(cells)
    kind = _kind(name, cells, own_shape)
    row = {"name": name, "type": _shown(kind, cells), "missing": len(cells.codes) - cells.present}
    row |= {"distinct": cells.distinct, **dict.fromkeys(("min", "median", "max"), np.nan)}
    values = _finite(cells)
    if kind == "numeric" and len(values) >= FEWEST_FOR_STATISTICS:
        row |= {"min": values.min(), "median": np.median(values), "max": values.max()}
    return row | {"problems": "; ".join(_problems(name, cells, own_shape, kind))}


def _kind(name: str, cells: Cells, own_shape: Shape) -> str:
    """As `kind_of` decides it, but a column that cannot be used as it stands is shown, not refused."""
    if own_shape != "empty" and ID_NAME.fullmatch(name):
        return "id"
    if own_shape == "text":
        return text_kind(cells.distinct, cells.present)
    return {"numbers": "numeric", "dates": "date"}.get(own_shape, own_shape)


def _shown(kind: str, cells: Cells) -> str:
    """A column of two values is shown as binary."""
    levels = set(normalized_levels(cells)) if kind in ("numeric", "categorical") and cells.distinct < 10 else set()
    if len(levels) != 2:
        return kind
    numbers = "0/1" if levels == {"0", "1"} else "numbers"
    return f"binary ({'words' if kind == 'categorical' else numbers})"


def _finite(cells: Cells) -> np.ndarray:
    values = cells.spread(cells.numbers, np.nan)
    return np.asarray(values[np.isfinite(values)])


NOT_FEATURES = {
    "id": "looks like an identifier: not a feature",
    "free text": "looks like free text: not a feature",
    "date": "a date: a feature only if `types` names it",
}


def _problems(name: str, cells: Cells, own_shape: Shape, kind: str) -> Iterator[str]:
    missing, rows = len(cells.codes) - cells.present, len(cells.codes)
    if "[column " in name:
        yield "the header has no name here" if name.startswith("(no name)") else "the header repeats this name"
    if own_shape == "empty":
        yield "all values are missing"
    elif 2 * missing > rows:
        yield f'mostly missing ({missing} of {rows}): hardly recorded here; use `not_recorded`, or the type "ignore"'
    if cells.distinct == 1:
        yield "constant"
    commas = _decimal_commas(cells) if own_shape in ("text", "numbers and text") else ""
    if commas or kind in NOT_FEATURES:
        yield commas or NOT_FEATURES[kind]
    if own_shape == "unclear dates":
        yield "day and month cannot be told apart: write yyyy-mm-dd"
    if own_shape in ("numbers and text", "dates and text"):
        what, parsed = ("numbers", cells.numbers) if own_shape == "numbers and text" else ("dates", cells.years)
        bad, line = cells.count_and_first_line(np.isnan(parsed))
        yield f"{what} mixed with text: {bad} of {cells.present} values are not {what}, the first in line {line}"
    if own_shape == "numbers":
        yield from _problems_of_numbers(cells, kind)


def _problems_of_numbers(cells: Cells, kind: str) -> Iterator[str]:
    infinite = np.isinf(cells.numbers)
    if infinite.any():
        yield f"{cells.count_and_first_line(infinite)[0]} infinite values"
    distant = outliers(cells.numbers, _finite(cells))
    if kind == "numeric" and distant.any():
        count, line = cells.count_and_first_line(distant)
        yield f"{count} impossible-looking values, far from all others, the first in line {line}"


def _decimal_commas(cells: Cells) -> str:
    """Of texts in a file that is separated by commas, where a comma is never taken for a decimal sign."""
    read = np.isnan(replace(cells, commas=True).numbers)
    if cells.commas or read.mean() >= 0.5 or read.sum() >= np.isnan(cells.numbers).sum():
        return ""
    meant = "decimal commas"
    if all(THOUSANDS.fullmatch(level) for level in cells.levels if "," in level):
        meant += ", or with commas between thousands"
    return f"looks like numbers with {meant}: write points, or separate the file's cells by semicolons"


def _copies(table: Table, described: pd.DataFrame) -> tuple[int, int]:
    """Rows equal to an earlier one in every column, and in every column that is no identifier."""
    codes = pd.DataFrame({name: cells.codes for name, cells in table.items()})
    features = described.loc[described["type"] != "id", "name"].tolist()
    return int(codes.duplicated().sum()), int(codes[features].duplicated().sum()) if features else 0


def _file_problems(table: Table, rows: int, copies: int, copies_but_ids: int) -> Iterator[Notice]:
    if all(name == f"column {i}" for i, name in enumerate(table, 1)):
        yield Notice("header-is-data", "warning")
    if copies:
        yield Notice("file-copies", "warning", counts={"rows": copies, "of": rows})
    elif copies_but_ids:
        yield Notice("file-copies", "warning", counts={"rows": copies_but_ids}, details={"but_ids": True})


def _as_target(name: str, cells: Cells) -> Iterator[Notice]:
    """For a column whose words are known. Many a feature is yes or no: then its name must sound like a target."""
    if not 0 < cells.distinct < 10:
        return
    words = {word.casefold() for word in normalized_levels(cells)}
    pairs = {MEANINGS[word][0] for word in words if word in MEANINGS}
    if len(pairs) != 1 or not all(word in MEANINGS for word in words):
        return
    negative, positive = pairs.pop()
    if positive in OF_ANY_QUESTION and not TARGET_NAME.fullmatch(name):
        return
    yield Notice("may-be-target", "info", columns=(name,), classes=(negative, positive))


def describe_data(data: str) -> dict[str, Any]:
    """`data` is a file's path, a folder of radiographs, or the name of a source that needs no settings."""
    if data in SOURCES:
        if required := [name for name, setting in settings_of(SOURCES[data]).items() if setting.required]:
            remedy = "Give the path of a file, or run `wardround check STUDY` on a study that has them."
            raise StudyError(data, f"this source needs settings: {', '.join(required)}", remedy)
        return _describe_records(data, SOURCES[data]().load())
    path = Path(data)
    if not path.exists():
        raise DataError(data, "no such file or source", suggest(data, SOURCES, "Sources"))
    if is_split(path):
        described = _describe_records(path.name or path.absolute().name, read_split(path))
        return {**described, "summary": [*_about_split(path), *described["summary"]]}
    if is_signals(path):
        return describe_signals(path)
    if path.is_dir() or path.suffix == ".npz":
        if is_data_set(path):
            records = SOURCES["hugging-face"](path=path).load()
        else:
            records = SOURCES["images"](path=path, accept=get_args(Accepted)).load()
        return _describe_records(path.name or path.absolute().name, records)
    table = describe_file(path)
    columns = [{str(key): value for key, value in row.items()} for row in table.to_dict("records")]
    notices = with_texts(table.attrs["notices"])
    return {"name": path.name, "rows": table.attrs["rows"], "notices": notices, "columns": columns}


def _about_split(path: Path) -> list[str]:
    """From where it is, and how many rows each part has."""
    _, manifest, sites = sites_at(path)
    numbers = {name: value for name, value in manifest.settings.items() if type(value) in (int, float)}
    settings = ", ".join(f"{name} {value:g}" for name, value in numbers.items())
    parts = ", ".join(f"{sum(site.rows[part] for site in sites)} {part}" for part in SPLIT_PARTS)
    made = f"{manifest.source}, split by {manifest.partition}{f' ({settings})' if settings else ''}"
    whose = f"{len(sites)} sites" if len(sites) > 1 else f"{sites[0].name}, one of {len(manifest.sites)} sites"
    return [f"{made}, seed {manifest.seed}", f"{whose}: {parts} rows; each file has the hash that the manifest gives"]


def _describe_records(name: str, records: Records) -> dict[str, Any]:
    hospitals: dict[str, dict[str, Any]] = {
        hospital: {
            "rows": int((records.hospital == hospital).sum()),
            "classes": records.task.label_counts(records.target[records.hospital == hospital]),
            **_numbers(records, hospital),
        }
        for hospital in records.hospitals
    }
    by_hospital = [
        f"{hospital}: "
        + ", ".join(
            [f"{content['rows']} rows", *(f"{c} {n}" for c, n in content["classes"].items()), *_medians(content)]
        )
        for hospital, content in hospitals.items()
    ]
    return {
        "name": name,
        "rows": len(records),
        "summary": [*by_hospital, *_about_images(records)],
        "notices": with_texts(records.notices),
        "hospitals": hospitals,
        "columns": _columns(records),
    }


def _numbers(records: Records, hospital: str) -> dict[str, Any]:
    """Quartiles of each number that is predicted, where enough patients have one."""
    found = {}
    for own in records.by_outcome:
        values = own.task.sizes(own.target[own.hospital == hospital])
        if values is not None and len(values) >= FEWEST_FOR_STATISTICS:
            found[own.task.names[0]] = dict(zip(QUARTILES, np.percentile(values, [25, 50, 75]).tolist(), strict=True))
    return {"numbers": found} if found else {}


def _medians(content: dict[str, Any]) -> list[str]:
    return [
        f"{name}: median {own['median']:.4g} ({own['lower_quartile']:.4g} to {own['upper_quartile']:.4g})"
        for name, own in content.get("numbers", {}).items()
    ]


def _about_images(records: Records) -> list[str]:
    if records.is_table:
        return []
    lines = [] if records.patient is None else [f"{len(np.unique(records.patient))} patients"]
    if records.boxes is not None:
        lines.append(f"{len(records.boxes)} bounding boxes on {records.boxes['row'].nunique()} images")
    for name in records.groups.columns:
        known = records.groups[name].dropna()
        if name == "age":
            what = "recordings" if records.is_signals else "images"
            lines.append(f"age: known of {len(known)} {what}, on average {known.astype(float).mean():.0f}")
        else:
            lines.append(f"{name}: " + ", ".join(f"{value} {count}" for value, count in known.value_counts().items()))
    return lines


def _columns(records: Records) -> list[dict[str, Any]]:
    table = records.features
    if not isinstance(table, pd.DataFrame):
        what = "signals" if records.is_signals else "image"
        return [{"name": what, "type": f"{table.dtype} {' x '.join(map(str, table.shape[1:]))}", "missing": 0}]
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
