"""What is in one hospital's file, for that hospital's own eyes: `wardround data describe FILE`."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from wardround.data.sources.infer import ID_NAME, Shape, shape, text_kind
from wardround.data.sources.table import Cells, Separator, read_table

FEWEST_FOR_STATISTICS = 10  # a median of fewer values comes too close to telling one patient's


def describe_file(path: Path, separator: Separator = "auto") -> pd.DataFrame:
    """A row per column. `attrs` holds `rows` and `duplicated_rows` (equal to an earlier row in every column)."""
    table = read_table(path, separator, _numbered_names)
    codes = pd.DataFrame({name: cells.codes for name, cells in table.items()})
    described = pd.DataFrame([_describe(name, cells) for name, cells in table.items()])
    described.attrs.update(rows=len(codes), duplicated_rows=int(codes.duplicated().sum()))
    return described


def _numbered_names(header: list[str], where: str) -> list[str]:
    """Missing and repeated names get their column's number, so that they can be described instead of refused."""
    names = [cell.strip() for cell in header]
    return [
        f"{name or '(no name)'} [column {i}]" if not name or name in names[: i - 1] else name
        for i, name in enumerate(names, 1)
    ]


def _describe(name: str, cells: Cells) -> dict[str, object]:
    found = shape(cells)
    kind = _kind(name, cells, found)
    row = {"name": name, "type": kind, "missing": len(cells.codes) - cells.present, "distinct": cells.distinct}
    row |= dict.fromkeys(("min", "median", "max"), np.nan)
    values = cells.spread(cells.numbers, np.nan)
    values = values[np.isfinite(values)]
    if kind == "numeric" and len(values) >= FEWEST_FOR_STATISTICS:
        row |= {"min": values.min(), "median": np.median(values), "max": values.max()}
    return row | {"problems": "; ".join(_problems(name, cells, found, kind))}


def _kind(name: str, cells: Cells, found: Shape) -> str:
    """As `kind_of` decides it, but a column that cannot be used as it stands is shown, not refused."""
    if found != "empty" and ID_NAME.fullmatch(name):
        return "id"
    if found == "text":
        return text_kind(cells.distinct, cells.present)
    return {"numbers": "numeric", "dates": "date"}.get(found, found)


def _problems(name: str, cells: Cells, found: Shape, kind: str) -> Iterator[str]:
    if "[column " in name:
        yield "the header has no name here" if name.startswith("(no name)") else "the header repeats this name"
    if found == "empty":
        yield "all values are missing"
    if cells.distinct == 1:
        yield "constant"
    if kind == "id":
        yield "looks like an identifier: not a feature"
    if kind == "free text":
        yield "looks like free text: not a feature"
    if found == "unclear dates":
        yield "day and month cannot be told apart: write yyyy-mm-dd"
    if found in ("numbers and text", "dates and text"):
        what, parsed = ("numbers", cells.numbers) if found == "numbers and text" else ("dates", cells.years)
        bad, line = cells.count_and_first_line(np.isnan(parsed))
        yield f"{what} mixed with text: {bad} of {cells.present} values are not {what}, the first in line {line}"
    infinite = np.isinf(cells.numbers)
    if found == "numbers" and infinite.any():
        yield f"{cells.count_and_first_line(infinite)[0]} infinite values"
