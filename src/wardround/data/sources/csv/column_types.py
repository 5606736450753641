"""What a column means: its type, over all the hospitals that are asked for together, so that it means one thing.

The rules, in their order:
* id           the name says so (id, ..._id, mrn, patient, ...)
* numeric      every present value is a number, at every hospital
* date         every present value is a date, at every hospital
* an error     numbers or dates at one place and text at another, or among them
* id           text, of at least 10 values, nearly all different
* categorical  text with at most 20 levels, or with at most one level per 20 values
* free text    any other text

Values are never shown. What the words of a target mean is decided in `vocabulary.py`.
"""

import re
from collections.abc import Mapping
from typing import Literal

import numpy as np

from wardround.core.errors import DataError
from wardround.data.sources.csv.text_table import Cells

Shape = Literal["empty", "numbers", "dates", "unclear dates", "numbers and text", "dates and text", "text"]
Kind = Literal["numeric", "date", "categorical", "id", "free text", "empty"]

FEW_LEVELS = 20
ID_NAME = re.compile(
    r"((.*[_\W])?(id|ids|mrn|uuid|guid|ssn))|patient|subject|pid|((first|last|full|sur)?[_\W]?name)"
    r"|(patient|subject|case|record|encounter|admission|visit|nhs|insurance)[_\W]?(id|no|nr|num|number|name|code)",
    re.IGNORECASE,
)


def shape(cells: Cells) -> Shape:
    """What the values of one column in one file look like."""
    if not cells.distinct:
        return "empty"
    numbers = np.mean(~np.isnan(cells.numbers))
    if numbers == 1:
        return "numbers"
    dates = np.mean(~np.isnan(cells.years))
    if cells.day_and_month_unclear and max(dates, len(cells.slashed_dates) / cells.distinct) > 0.5:
        return "unclear dates"
    if dates == 1:
        return "dates"
    if max(numbers, dates) > 0.5:  # most texts are numbers: the others are slips or marks such as <5, not categories
        return "numbers and text" if numbers >= dates else "dates and text"
    return "text"


def kind_of(name: str, sites: Mapping[str, Cells]) -> Kind:
    shapes = {site: shape(cells) for site, cells in sites.items()}
    present_shapes = set(shapes.values()) - {"empty"}
    if not present_shapes:
        return "empty"
    if ID_NAME.fullmatch(name):
        return "id"
    if present_shapes == {"numbers"}:
        return "numeric"
    if present_shapes == {"dates"}:
        return "date"
    if present_shapes == {"text"}:
        return text_kind(len({level for c in sites.values() for level in c.levels}), sum_present(sites))
    described = "; ".join(
        _describe(site, sites[site], shapes[site], present_shapes) for site in sites if sites[site].distinct
    )
    remedy = f'Correct the cells, or write `types = {{ "{name}" = "categorical" }}` (or "ignore").'
    if "unclear dates" in present_shapes:
        remedy = f'Write dates as yyyy-mm-dd, or write `types = {{ "{name}" = "ignore" }}`.'
    raise DataError(f"column {name!r}", described, remedy)


def text_kind(distinct: int, present: int) -> Kind:
    if present >= 10 and distinct >= 0.95 * present:
        return "id"
    return "categorical" if distinct <= max(FEW_LEVELS, 0.05 * present) else "free text"


def sum_present(sites: Mapping[str, Cells]) -> int:
    return sum(cells.present for cells in sites.values())


def refuse_unreadable(name: str, site: str, cells: Cells, as_dates: bool) -> None:
    """For a column that the study declares to be numbers or dates."""
    what, parsed = ("dates", cells.years) if as_dates else ("numbers", cells.numbers)
    where, remedy = f"column {name!r} at {site!r}", "Correct these cells or leave them empty, or declare another type."
    if as_dates and cells.day_and_month_unclear:
        raise DataError(where, "day and month cannot be told apart", "Write dates as yyyy-mm-dd.")
    if np.isnan(parsed).any():
        bad, line = cells.count_and_first_line(np.isnan(parsed))
        raise DataError(where, f"{bad} of {cells.present} values are not {what}, the first in line {line}", remedy)


def normalized_levels(cells: Cells) -> list[str]:
    """The levels, with one spelling per number, so that 1 and 1.0 are one level."""
    return [spelling(level, number) for level, number in zip(cells.levels, cells.numbers.tolist(), strict=True)]


def spelling(text: str, number: float) -> str:
    if np.isnan(number):
        return text
    return str(int(number)) if abs(number) < 1e15 and number == int(number) else str(number)


def _describe(site: str, cells: Cells, own_shape: Shape, all_shapes: set[Shape]) -> str:
    if own_shape in ("numbers", "dates"):
        return f"{own_shape} at {site!r}"
    if own_shape == "unclear dates":
        return f"dates at {site!r} in which day and month cannot be told apart"
    expected = "dates" if all_shapes & {"dates", "dates and text"} else "numbers"
    unreadable = np.isnan(cells.years if expected == "dates" else cells.numbers)
    bad, line = cells.count_and_first_line(unreadable)
    return f"{own_shape} at {site!r} ({bad} of {cells.present} values are not {expected}, the first in line {line})"
