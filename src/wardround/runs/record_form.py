"""How records of rounds are written: as lines of JSON, as columns of an Arrow table and so of Parquet, and as a frame.

Names are those of `RoundRecord`; each of its figures is a key or a column of its own. A line leaves out what is empty,
0 or not there, as most is in most runs. A number that is not finite is "nan", "inf" or "-inf" in it.
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
    "compression_error": pa.float64(),
    "exchanges": pa.int64(),
    "epochs": pa.map_(pa.string(), pa.int64()),
    "not_finite": NAMES,
    "lengths": pa.map_(pa.string(), pa.float64()),
    "agreements": pa.map_(pa.string(), pa.float64()),
    "named": pa.map_(pa.string(), PRICE),
    "time": pa.float64(),
    "staleness": pa.map_(pa.string(), pa.int64()),
    "engine": pa.string(),
    "seconds": pa.float64(),
}  # figures come last
DERIVED = ("variant",)  # a column for whoever reads the table; it follows from `arm`
MAY_BE_NONE = {"loss", "update_norm", "divergence", "change", "compression_error", "site_charge", "time", "engine"}
DEFAULTS = vars(RoundRecord("", 0, 0))
REQUIRED = ("arm", "seed", "round")
MAY_BE_ZERO = {
    *REQUIRED,
    "loss",
    "update_norm",
    "divergence",
    "change",
    "compression_error",
    "time",
}  # which is not the same as not there
PAIRS = ("region_messages", "region_bytes")
ROWS = 4096  # that are Python objects at a time


def to_line(record: RoundRecord) -> bytes:
    content = {name: v for name, v in vars(record).items() if v or (name in MAY_BE_ZERO and v is not None)}
    for name in PAIRS:
        if content[name] == (0, 0):
            del content[name]
    content |= content.pop("figures", {})
    line = orjson.dumps(content, option=orjson.OPT_APPEND_NEWLINE)
    if b"null" in line:  # nothing is None: it stands for a number that JSON does not have
        return orjson.dumps(_with_text(content), option=orjson.OPT_APPEND_NEWLINE)
    return line


def _with_text(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_text(inner) for name, inner in value.items()}
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def from_fields(content: Mapping[str, Any]) -> RoundRecord:
    """From fields that have been JSON, as in a checkpoint: its lists are tuples again. Other keys do not count."""
    return RoundRecord(**{name: _READ[name](content[name]) for name in TYPES if name in content})


def table_of_lines(lines: Sequence[bytes]) -> pa.Table:
    """Raises one of Python's or Arrow's errors where a line is no record."""
    parts = [_table([orjson.loads(line) for line in lines[at : at + ROWS]]) for at in range(0, len(lines), ROWS)]
    return concatenated(parts)


def concatenated(parts: Iterable[pa.Table]) -> pa.Table:
    """One table; a figure that some parts have is null in the others."""
    return pa.concat_tables([_table([]), *parts], promote_options="default")


def table_of(records: Iterable[RoundRecord]) -> pa.Table:
    return table_of_lines([to_line(record) for record in records])


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    names = set[str]().union(*rows) if rows else set()
    columns = {name: _column(name, kind, rows, name in names) for name, kind in TYPES.items()}
    for name in sorted(names.difference(TYPES)):
        columns[name] = pa.array([_number(row.get(name)) for row in rows], pa.float64())
    table = pa.table(columns)
    if empty := [name for name in TYPES if name not in MAY_BE_NONE and table[name].null_count]:
        raise ValueError(f"{empty[0]} is missing")
    return table


def _column(name: str, kind: pa.DataType, rows: list[dict[str, Any]], used: bool) -> pa.Array:
    default = DEFAULTS[name]
    if not used:
        return _array(name, kind, [default]).take(np.zeros(len(rows), dtype=np.int64))
    if name in REQUIRED:
        return _array(name, kind, [row[name] for row in rows])
    return _array(name, kind, [row.get(name, default) for row in rows])


def _array(name: str, kind: pa.DataType, values: list[Any]) -> pa.Array:
    types = set(map(type, values))
    if kind == pa.float64() and str in types:
        values = list(map(_number, values))
        types = set(map(type, values))
    if not types <= _python_types(kind):  # Arrow would take 1.5 for 1 and a text for a list
        raise TypeError(f"{name} is of another type")
    if pa.types.is_map(kind) and kind.item_type == pa.float64():
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
