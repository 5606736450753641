"""How records of rounds are written: as lines of JSON, as columns of an Arrow table and so of Parquet, and as a frame.

Names are those of `RoundRecord`; each of its figures is a key or a column of its own. A number that is not finite is
"nan", "inf" or "-inf" in a line; a figure that was not computed is left out, and null in a column.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import isfinite
from types import NoneType
from typing import Any

import numpy as np
import orjson
import pandas as pd
import pyarrow as pa

from wardround.training.round_record import RoundRecord

NUMBERS, PRICE = pa.list_(pa.int64()), pa.list_(pa.float64())
NAMES = pa.list_(pa.string())
TYPES: dict[str, pa.DataType] = {  # of every field but `figures`, in the order of the fields
    "arm": pa.string(),
    "seed": pa.int64(),
    "round": pa.int64(),
    "loss": pa.float64(),
    "update_norm": pa.float64(),
    "divergence": pa.float64(),
    "change": pa.float64(),
    "sites": NAMES,
    "dropped": NAMES,
    "bytes_down": pa.int64(),
    "bytes_up": pa.int64(),
    "settings": pa.map_(pa.string(), pa.float64()),
    "charges": pa.map_(pa.string(), PRICE),
    "site_charge": PRICE,
    "stopped": NAMES,
    "failed": pa.string(),
    "region_messages": NUMBERS,
    "region_bytes": NUMBERS,
    "exchanges": pa.int64(),
    "epochs": pa.map_(pa.string(), pa.int64()),
    "not_finite": NAMES,
    "engine": pa.string(),
    "seconds": pa.float64(),
}  # figures come last
DERIVED = ("variant",)  # a column for whoever reads the table; it follows from `arm`
MAY_BE_NONE = {"loss", "update_norm", "divergence", "change", "site_charge", "engine"}
DEFAULTS = vars(RoundRecord("", 0, 0))
FLOATS = [name for name, kind in TYPES.items() if kind == pa.float64()]
ROWS = 4096  # that are Python objects at a time


def to_line(record: RoundRecord) -> bytes:
    content = {**vars(record), **record.figures}
    del content["figures"]
    for name in (*FLOATS, *record.figures):
        number = content[name]
        if number is not None and not isfinite(number):
            content[name] = str(number)  # JSON has no such numbers
    if not all(map(isfinite, record.settings.values())):
        content["settings"] = {name: v if isfinite(v) else str(v) for name, v in record.settings.items()}
    return orjson.dumps(content, option=orjson.OPT_APPEND_NEWLINE)


def from_fields(content: Mapping[str, Any]) -> RoundRecord:
    """From fields that have been JSON, as in a checkpoint: its lists are tuples again. Other keys do not count."""
    return RoundRecord(**{name: _READ[name](content[name]) for name in TYPES if name in content})


def table_of_lines(lines: Sequence[bytes]) -> pa.Table:
    """Raises one of Python's or Arrow's errors where a line is no record."""
    parts = [_table([orjson.loads(line) for line in lines[at : at + ROWS]]) for at in range(0, len(lines), ROWS)]
    return pa.concat_tables([_table([]), *parts], promote_options="default")


def table_of(records: Iterable[RoundRecord]) -> pa.Table:
    return table_of_lines([to_line(record) for record in records])


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    columns = {name: _column(name, kind, rows) for name, kind in TYPES.items()}
    figures = dict.fromkeys(name for row in rows for name in row)
    columns |= {name: pa.array([_number(row.get(name)) for row in rows], pa.float64()) for name in figures}
    table = pa.table(columns)
    if empty := [name for name in TYPES if name not in MAY_BE_NONE and table[name].null_count]:
        raise ValueError(f"{empty[0]} is missing")
    return table


def _column(name: str, kind: pa.DataType, rows: list[dict[str, Any]]) -> pa.Array:
    """Takes the field out of the rows, in which only figures are left in the end."""
    if name in ("arm", "seed", "round"):
        values = [row.pop(name) for row in rows]
    else:
        default = DEFAULTS[name]
        values = [row.pop(name, default) for row in rows]
    if kind == pa.float64():
        values = list(map(_number, values))
    if not set(map(type, values)) <= _python_types(kind):  # Arrow would take 1.5 for 1 and a text for a list
        raise TypeError(f"{name} is of another type")
    if name == "settings":
        values = [[(key, _number(number)) for key, number in value.items()] for value in values]
    elif pa.types.is_map(kind):
        values = [list(value.items()) for value in values]
    return pa.array(values, kind)


def _python_types(kind: pa.DataType) -> set[type]:
    if pa.types.is_map(kind):
        return {dict}
    if pa.types.is_list(kind):
        return {list, tuple, NoneType}
    return {int} if kind == pa.int64() else {str, NoneType} if kind == pa.string() else {float, int, NoneType}


def _number(value: Any) -> Any:
    return float(value) if type(value) is str else value


def with_variant(table: pa.Table) -> pa.Table:
    variants = {arm: RoundRecord(arm, 0, 0).variant for arm in table["arm"].unique().to_pylist()}
    return table.add_column(1, "variant", pa.array([variants[arm] for arm in table["arm"].to_pylist()], pa.string()))


def records_of(table: pa.Table) -> Iterator[RoundRecord]:
    figures = [name for name in table.column_names if name not in TYPES and name not in DERIVED]
    for batch in table.to_batches(max_chunksize=ROWS):
        columns = [map(_READ[name], batch.column(name).to_pylist()) for name in TYPES]
        scored = [batch.column(name).to_pylist() for name in figures]
        of_rows: Iterable[tuple[Any, ...]] = zip(*scored, strict=True) if scored else [()] * len(batch)
        for values, row in zip(zip(*columns, strict=True), of_rows, strict=True):
            known = {name: value for name, value in zip(figures, row, strict=True) if value is not None}
            yield RoundRecord(**dict(zip(TYPES, values, strict=True)), figures=known)


def _same(value: Any) -> Any:
    return value


def _price(value: Any) -> Any:
    return None if value is None else (float(value[0]), float(value[1]), int(value[2]))


def _reader(name: str, kind: pa.DataType) -> Callable[[Any], Any]:
    if name == "charges":
        return lambda value: {site: _price(price) for site, price in dict(value).items()}
    if name == "site_charge":
        return _price
    return dict if pa.types.is_map(kind) else tuple if pa.types.is_list(kind) else _same


_READ = {name: _reader(name, kind) for name, kind in TYPES.items()}


def frame_of(table: pa.Table) -> pd.DataFrame:
    """For figures over rounds and seeds: what is None or not finite is NaN, so that means leave it out."""
    frame: pd.DataFrame = table.to_pandas(maps_as_pydicts="strict")
    for name, column in frame.items():
        if column.dtype == np.float64 and np.isinf(column.to_numpy()).any():
            frame[name] = column.where(np.isfinite(column.to_numpy()))
    return frame
