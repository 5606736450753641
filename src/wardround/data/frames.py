"""Tables in memory in place of files: pandas' DataFrames, and others through the Arrow interface.

A table becomes the texts that its CSV file would have (`to_csv(index=False)`), so that from here on both are read and
checked alike, and a study gives the same numbers on either. What a CSV file would hold as a text that nobody can use,
such as a list or a duration, is an error. No message shows a value.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import date
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from wardround.core.errors import DataError, StudyError, refuse_strangers, shown
from wardround.core.in_memory import InMemory
from wardround.data.text_table import FIRST_LINE, Separator, Table, checked_names, encode_cells, read_table

PASS_AGAIN = 'Pass the DataFrames that it was run with: tables={"NAME": dataframe, ...}. A run folder has no rows.'
KINDS = "Make it numbers, texts, dates, or true and false; or leave the column out."
_DAY = 24 * 3600
_SCALARS: tuple[type[Any], ...] = (str, int, float, date, Decimal, np.generic, type(None), type(pd.NA), type(pd.NaT))


def is_frame(value: object) -> bool:
    """A table in memory: of pandas, or of whatever speaks Arrow's interface, such as polars."""
    return isinstance(value, pd.DataFrame) or hasattr(type(value), "__arrow_c_stream__")


def with_frames(raw: Mapping[str, Any], tables: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """A study with its DataFrames read, in [data] `files`. `tables` are those of which it has marks only, by site."""
    data = raw.get("data") if isinstance(raw, Mapping) else None
    files = data.get("files") if isinstance(data, Mapping) else None
    if not isinstance(data, Mapping) or not isinstance(files, Mapping):
        _refuse_tables(tables, {})
        return raw
    _refuse_objects(files)
    marks = {name: file for name, file in files.items() if InMemory.is_mark(file)}
    _refuse_tables(tables, marks)
    read = {name: frame_of(name, file) for name, file in files.items() if is_frame(file)}
    for name, table in (tables or {}).items():
        read[name] = table if isinstance(table, InMemory) else frame_of(name, table)
        if read[name].mark != marks[name]:
            raise StudyError(f"tables: {name}", "its rows are not those of the run", PASS_AGAIN)
    return {**raw, "data": {**data, "files": {**files, **read}}} if read else raw


def _refuse_objects(files: Mapping[Any, Any]) -> None:
    """What is neither a path nor a table, such as an array without names or a query that was not computed yet."""
    for name, file in files.items():
        if not (is_frame(file) or file is None or isinstance(file, (*_SCALARS, Path, InMemory, Mapping, list, tuple))):
            where = f"data: files: {name if isinstance(name, str) else shown(name)}"
            remedy = "Give a DataFrame, or the path of a file. A LazyFrame of polars becomes one by collect()."
            raise StudyError(where, f"expected a table, found {shown(file)}", remedy)


def _refuse_tables(tables: Mapping[str, Any] | None, marks: Mapping[str, Any]) -> None:
    if tables is not None and not isinstance(tables, Mapping):
        raise StudyError("tables", f"expected a dict, found {shown(tables)}", 'Write tables={"NAME": dataframe}.')
    refuse_strangers(tables or {}, marks, "tables", "DataFrame of the study", "DataFrames")


def frames_of(options: Mapping[str, Any]) -> dict[str, InMemory]:
    """The tables in memory among the settings of a source."""
    files = options.get("files")
    known = files if isinstance(files, Mapping) else {}
    return {name: file for name, file in known.items() if isinstance(file, InMemory)}


def file_table(file: Path | InMemory, separator: Separator) -> Table:
    """The columns of a hospital's or a party's table."""
    if isinstance(file, Path):
        return read_table(file, separator, checked_names)
    if file.columns is None:
        raise DataError(str(file), "was in memory when the study ran, and is not at hand now", PASS_AGAIN)
    return dict(file.columns)


def frame_of(name: object, value: Any) -> InMemory:
    """A table in memory, read as its CSV file would be."""
    where = f"DataFrame {name if isinstance(name, str) else shown(name)!r}"
    names, arrays = _columns(value, where)
    named = dict(zip(checked_names(names, where), arrays, strict=True))
    rows = max(map(len, arrays), default=0)
    if not rows:
        raise DataError(where, "has no rows" if names else "has no columns", "Give a row for each patient or visit.")
    lines = np.arange(FIRST_LINE, rows + FIRST_LINE)
    columns = {}
    for header, array in named.items():
        texts = pa.chunked_array([_texts(array, f"{where}, column {header!r}")], pa.large_string())
        columns[header] = encode_cells(texts, lines, commas=False, in_memory=True)
    return InMemory(str(name), _digest(columns), columns)


def _columns(value: Any, where: str) -> tuple[list[str], list[pa.Array]]:
    if not isinstance(value, pd.DataFrame):
        try:
            table = pa.table(value)
        except (pa.ArrowException, TypeError, ValueError, NotImplementedError):
            problem = f"expected a table, found {shown(value)}"
            raise DataError(where, problem, "Give a DataFrame with a row for each patient or visit.") from None
        return list(table.column_names), [column.combine_chunks() for column in table.columns]
    if isinstance(value.columns, pd.MultiIndex):
        remedy = 'Join them: df.columns = ["_".join(map(str, names)) for names in df.columns].'
        raise DataError(where, f"its columns have names on {value.columns.nlevels} levels (a MultiIndex)", remedy)
    if isinstance(value.index, pd.MultiIndex) or value.index.name is not None:
        problem = "its index has a name, and may hold what a study needs, such as the patients"
        remedy = "Make it columns with df.reset_index(), or leave it out with df.reset_index(drop=True)."
        raise DataError(where, problem, remedy)
    names = ["" if pd.api.types.is_scalar(name) and pd.isna(name) else str(name) for name in value.columns]
    places = f"{where}, row {{}} (counted from 0)".format
    return names, [as_array(value.iloc[:, place], name, places) for place, name in enumerate(names)]


def _digest(columns: Table) -> str:
    """Of names, order and texts: the same whatever kind of table they came in."""
    digest = sha256()
    for name, cells in columns.items():
        digest.update(f"{len(name)}:{name}, {len(cells.texts)} texts:".encode())
        lengths = pc.binary_length(cells.texts).to_numpy(zero_copy_only=False)
        digest.update(np.ascontiguousarray(lengths, dtype="<i8").tobytes())
        digest.update("".join(cells.levels).encode())
        digest.update(np.ascontiguousarray(cells.codes, dtype="<i8").tobytes())
    return digest.hexdigest()


def as_array(values: Any, name: str, where: Callable[[int], str]) -> pa.Array:
    """A column of Python's or pandas' values. Where numbers and texts are mixed, numbers become texts without loss."""
    try:
        array = pa.array(values, from_pandas=True)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        array = pa.array(_as_texts(values, name, where), pa.string())
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _as_texts(values: Any, name: str, where: Callable[[int], str]) -> Sequence[str | None]:
    texts = []
    for row, value in enumerate(values):
        if not isinstance(value, _SCALARS):
            problem = f"{name!r} holds an object of type {type(value).__name__}"
            raise DataError(where(row), problem, KINDS) from None
        text = None if value is None or pd.isna(value) else _as_text(value)
        if not _is_unicode(text):
            problem = f"the text in {name!r} has half of a letter in it, which cannot be written as UTF-8"
            raise DataError(where(row), problem, "Read the rows again with their right encoding.") from None
        texts.append(text)
    return texts


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else repr(float(value)) if isinstance(value, float) else str(value)


def _is_unicode(text: str | None) -> bool:
    """Not so with a lone surrogate, which programs leave that decode carelessly."""
    return text is None or not any("\ud800" <= letter <= "\udfff" for letter in text)


def type_name(kind: pa.DataType) -> str:
    """For messages. The type of a nested column names its fields, which may be a patient's data."""
    return "a nested type" if pa.types.is_nested(kind) else f"type {kind}"


def _texts(array: pa.Array, where: str) -> pa.LargeStringArray:
    """As a CSV file has them. Each distinct value is written once."""
    if pa.types.is_dictionary(array.type):  # a column of categories
        levels = array.dictionary
        if pa.types.is_string_view(levels.type):  # as polars has them; Arrow cannot take them by number
            array = pa.DictionaryArray.from_arrays(array.indices, levels.cast(pa.large_string()))
        array = array.dictionary_decode()
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), pa.large_string())
    encoded = array.dictionary_encode() if _can_be_encoded(array.type) else array
    if encoded is array:
        raise DataError(where, f"is of {type_name(array.type)}, which no feature can be", KINDS)
    return pa.array(_written(encoded.dictionary), pa.large_string()).take(encoded.indices)


def _can_be_encoded(kind: pa.DataType) -> bool:
    checks = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_string_view,
        pa.types.is_boolean,
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_decimal,
        pa.types.is_date,
        pa.types.is_timestamp,
    )
    return any(check(kind) for check in checks)


def _written(values: pa.Array) -> Sequence[str] | np.ndarray | pa.Array:
    """Distinct values as texts: numbers in the fewest digits that read back to the same bits."""
    kind = values.type
    if pa.types.is_boolean(kind):
        return [str(value) for value in values.to_pylist()]
    if pa.types.is_floating(kind):
        return np.asarray(values).astype(str)
    if pa.types.is_timestamp(kind):
        clock = pc.local_timestamp(values) if kind.tz else values  # the clock where it was written
        seconds = pc.floor_temporal(clock, unit="second").cast(pa.timestamp("s"), safe=False)
        days_only = not any(np.asarray(seconds.cast(pa.int64())) % _DAY)
        return [text[:10] if days_only else text for text in seconds.cast(pa.string()).to_pylist()]
    return values.cast(pa.large_string())
