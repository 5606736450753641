"""From the cells of a file to the table that a recipe prepares: the same text gives the same number as in training.

`Cells` decides what a text means, as in the CSV source. Two of its rules look at a whole column: which sign is the
decimal one, and whether day and month can be told apart. Here a file comes in blocks, so each block records its
`Notation`, and the whole is checked at the end.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Flag, auto

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wardround.bundles.predict.blocks import Block
from wardround.core.errors import DataError
from wardround.data.frames import type_name
from wardround.data.prepare import Encoded, Recipe
from wardround.data.records import Column
from wardround.data.sources.csv.columns import normalized_levels, spelling
from wardround.data.text_table import Cells, encode_cells

YEAR = 365.25 * 86_400  # seconds
YEAR_2000 = 946_684_800  # seconds from 1970 to 2000-01-01
CELLS = "Correct these cells, or leave them empty."


class Notation(Flag):
    """How the texts of one column are written."""

    NONE = 0
    COMMAS = auto()
    POINTS = auto()
    SLASHES = auto()  # dates such as 31/12/2020
    DAY_FIRST = auto()  # one of them has a first number above 12


@dataclass(frozen=True)
class ReadBlock:
    """A block's rows as a recipe takes them."""

    table: Encoded
    unseen: Mapping[str, np.ndarray]  # by column: rows with a level that no training row had
    notations: Mapping[str, Notation]  # by header
    further: np.ndarray  # (rows, columns that belong to the target); NaN where there is a gap


@dataclass(frozen=True)
class _Values:
    """One column of a block."""

    numbers: np.ndarray  # NaN where missing or text
    codes: np.ndarray | None = None  # place among the known levels; behind them all: unseen; -1: missing
    notation: Notation = Notation.NONE


def read_block(
    recipe: Recipe, block: Block, unrecorded: Collection[str] = (), further: Sequence[str] = ()
) -> ReadBlock:
    """`further` are columns of numbers that belong to the target, such as the exposure of a count."""
    shape = (block.rows, len(recipe.columns))
    # column by column in memory, because that is how they are filled
    numbers, codes = np.full(shape, np.nan, order="F"), np.full(shape, -1, order="F")
    missing = np.zeros(shape, dtype=bool, order="F")
    levels: list[tuple[str, ...]] = []
    unseen, notations = {}, {}
    for place, column in enumerate(recipe.columns):
        known = known_levels(recipe, column)
        array = block.columns.get(column.own_name)
        if array is None or column.name in unrecorded:
            array = pa.nulls(block.rows)
        values = _values(column, known, block, array, as_number=column.name not in recipe.layout.levels)
        numbers[:, place] = values.numbers
        if column.missing_codes:
            numbers[np.isin(values.numbers, column.missing_codes), place] = np.nan
        levels.append(known)
        if values.codes is None:
            missing[:, place] = np.isnan(numbers[:, place])
        else:
            codes[:, place] = values.codes
            missing[:, place] = values.codes < 0
            usable = recipe.layout.levels.get(column.name, known)
            strange = values.codes >= len(usable)  # levels that only fill gaps come after these
            if usable and strange.any():
                unseen[column.own_name] = strange
        if values.notation:
            notations[column.own_name] = values.notation
    table = Encoded(
        recipe.columns,
        numbers,
        codes,
        tuple(levels),
        missing,
        np.zeros(block.rows, np.int64),
        np.ones((1, shape[1]), bool),
    )
    beside = np.empty((block.rows, len(further)))
    for place, name in enumerate(further):
        own = _values(Column(name), (), block, block.columns[name], as_number=True)
        beside[:, place] = own.numbers
        notations |= {name: own.notation} if own.notation else {}
    return ReadBlock(table, unseen, notations, beside)


def known_levels(recipe: Recipe, column: Column) -> tuple[str, ...]:
    """Those with a number of their own, then the one that fills gaps, if it has none. Declared ones for codes."""
    if column.kind == "numeric":
        return ()
    levels = recipe.layout.levels.get(column.name)
    if levels is None:
        return column.levels or ()
    filled = recipe.fit.fill_level.get(column.name)
    return levels if filled is None or filled in levels else (*levels, filled)


def merge_notations(first: Mapping[str, Notation], second: Mapping[str, Notation]) -> dict[str, Notation]:
    """Of two parts of a file."""
    return {name: first.get(name, Notation.NONE) | second.get(name, Notation.NONE) for name in {**first, **second}}


def refuse_ambiguous(notations: Mapping[str, Notation], where: str) -> None:
    """What only the whole file can show."""
    for name, notation in notations.items():
        if Notation.COMMAS | Notation.POINTS in notation:
            problem = f"column {name!r}: both points and commas stand as decimal signs"
            raise DataError(where, problem, "Write all of its numbers with the same sign.")
        if Notation.SLASHES in notation and Notation.DAY_FIRST not in notation:
            problem = f"column {name!r}: day and month cannot be told apart"
            raise DataError(where, problem, "Write dates as yyyy-mm-dd.")


def _values(column: Column, known: Sequence[str], block: Block, array: pa.Array, as_number: bool) -> _Values:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_decimal(array.type):  # by way of its text, which has all its digits
        array = array.cast(pa.string())
    kind = array.type
    if pa.types.is_null(kind):
        empty = np.full(block.rows, np.nan)
        return _Values(empty, None if column.kind == "numeric" else np.full(block.rows, -1))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return _of_texts(column, known, block, array, as_number)
    if column.dates and (pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
        return _Values(_years(array))
    if column.dates or not _is_number(kind):
        expected = "dates" if column.dates else "numbers" if column.kind == "numeric" else "texts or numbers"
        problem = f"column {column.own_name!r} is of {type_name(kind)}, not {expected}"
        raise DataError(block.place(0), problem, f"Write it as {expected}.")
    return _of_numbers(column, known, array)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _of_numbers(column: Column, known: Sequence[str], array: pa.Array) -> _Values:
    numbers = _finite(np.asarray(array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)))
    if column.kind == "numeric":
        return _Values(numbers)
    distinct, places = np.unique(numbers, return_inverse=True)
    levels = [_level(number, known, pa.types.is_boolean(array.type)) for number in distinct.tolist()]
    return _Values(numbers if column.coded else np.full(len(array), np.nan), _codes(column, levels, known)[places])


def _of_texts(column: Column, known: Sequence[str], block: Block, array: pa.Array, as_number: bool) -> _Values:
    cells = cells_of(array, block.commas)
    if column.kind == "numeric" or as_number:
        parsed = cells.years if column.dates else cells.numbers
        if np.isnan(parsed).any():
            raise _unreadable(column, cells, np.isnan(parsed), block)
        numbers = _finite(cells.spread(parsed, np.nan))
        if column.kind == "numeric":
            return _Values(numbers, None, _date_notation(cells) if column.dates else _number_notation(cells))
    elif column.coded:
        numbers = _finite(cells.spread(cells.numbers, np.nan))
    else:
        numbers = np.full(block.rows, np.nan)
    levels = normalized_levels(cells) if column.coded else cells.levels
    return _Values(numbers, np.append(_codes(column, levels, known), -1)[cells.codes])  # code -1 reads the last entry


def _finite(numbers: np.ndarray) -> np.ndarray:
    """An infinite number is a gap."""
    return np.where(np.isinf(numbers), np.nan, numbers)


def cells_of(array: pa.Array, commas: bool) -> Cells:
    """Each distinct text is looked at once. In place of lines the rows are counted from 0."""
    encoded = array.cast(pa.large_string()).dictionary_encode()
    raw = pa.chunked_array([encoded.dictionary])
    cells = encode_cells(raw, np.arange(len(raw)), commas)
    codes = np.append(cells.codes, -1)[encoded.indices.fill_null(len(raw)).to_numpy()]
    return Cells(cells.texts, codes, np.arange(len(array)), commas)


def _codes(column: Column, levels: Sequence[str], known: Sequence[str]) -> np.ndarray:
    """The place of each level among the known ones; behind them all where it is none of them; -1 for a gap ("")."""
    spellings, places = dict(column.words), {level: place for place, level in enumerate(known)}
    read = [spellings.get(level.lower(), level) for level in levels]
    return np.array([places.get(level, len(known)) if level else -1 for level in read], dtype=np.int64)


def _level(number: float, known: Sequence[str], is_bool: bool) -> str:
    """A level for something that came as a number; "" for a gap."""
    if np.isnan(number):
        return ""
    if is_bool:  # written as true and false by some programs, as 1 and 0 by others
        word = "true" if number else "false"
        named = next((level for level in known if level.casefold() == word), None)
        if named is not None:
            return named
    return spelling("", number)


def _years(array: pa.Array) -> np.ndarray:
    """As a text of the date would give them: the clock of its own time zone, whole seconds."""
    if pa.types.is_timestamp(array.type):
        array = pc.local_timestamp(array) if array.type.tz else array
        array = pc.floor_temporal(array, unit="second")
    seconds = array.cast(pa.timestamp("s"), safe=False).cast(pa.int64()).cast(pa.float64())
    return np.asarray((np.asarray(seconds.to_numpy(zero_copy_only=False)) - YEAR_2000) / YEAR)


def _number_notation(cells: Cells) -> Notation:
    commas = Notation.COMMAS if cells.commas and cells.decimal_commas else Notation.NONE
    points = cells.commas and pc.any(pc.match_substring(cells.texts, ".")).as_py()
    return commas | Notation.POINTS if points else commas


def _date_notation(cells: Cells) -> Notation:
    slashed = cells.slashed_dates
    if not slashed:
        return Notation.NONE
    return Notation.SLASHES | (Notation.DAY_FIRST if any(first > 12 for first, _ in slashed) else Notation.NONE)


def _unreadable(column: Column, cells: Cells, bad: np.ndarray, block: Block) -> DataError:
    count, row = cells.count_and_first_line(bad)
    more = f" ({count:,} such in the {block.rows:,} rows that are read together)" if count > 1 else ""
    problem = f"column {column.own_name!r}: this is no {'date' if column.dates else 'number'}{more}"
    remedy = f"{CELLS} Dates are written as yyyy-mm-dd." if column.dates else CELLS
    return DataError(block.place(row), problem, remedy)
