"""What a column means, over all hospitals together, so that it means one thing: its type, or the classes of a target.

The rules, in their order:
* id           the name says so (id, ..._id, mrn, patient, ...)
* numeric      every present value is a number, at every hospital
* date         every present value is a date, at every hospital
* an error     numbers or dates at one place and text at another, or among them
* id           text, of at least 10 values, nearly all different
* categorical  text with at most 20 levels, or with at most one level per 20 values
* free text    any other text

Values are never shown. The class names of a target are, which is why a target must first look like one.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np

from wardround.data.sources.table import Cells, to_number
from wardround.errors import DataError

Shape = Literal["empty", "numbers", "dates", "unclear dates", "numbers and text", "dates and text", "text"]
Kind = Literal["numeric", "date", "categorical", "id", "free text", "empty"]

FEW_LEVELS = 20
LONGEST_CLASS_NAME = 40
ID_NAME = re.compile(
    r"((.*[_\W])?(id|ids|mrn|uuid|guid|ssn))|patient|subject|pid|((first|last|full|sur)?[_\W]?name)"
    r"|(patient|subject|case|record|encounter|admission|visit|nhs|insurance)[_\W]?(id|no|nr|num|number|name|code)",
    re.IGNORECASE,
)
# (negative, positive): a word stands in one pair only, so that it has one meaning
PAIRS = (
    ("no", "yes"),
    ("n", "y"),
    ("false", "true"),
    ("0", "1"),
    ("negative", "positive"),
    ("neg", "pos"),
    ("absent", "present"),
    ("alive", "dead"),
    ("survived", "died"),
    ("healthy", "sick"),
    ("normal", "abnormal"),
    ("benign", "malignant"),
    ("control", "case"),
    ("nein", "ja"),
    ("non", "oui"),
)
MEANINGS = {word: (pair, label) for pair in PAIRS for label, word in enumerate(pair)}


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
    found = set(shapes.values()) - {"empty"}
    if not found:
        return "empty"
    if ID_NAME.fullmatch(name):
        return "id"
    if found == {"numbers"}:
        return "numeric"
    if found == {"dates"}:
        return "date"
    if found == {"text"}:
        return text_kind(len({level for c in sites.values() for level in c.levels}), sum_present(sites))
    described = "; ".join(_describe(site, sites[site], shapes[site], found) for site in sites if sites[site].distinct)
    remedy = f'Correct the cells, or write `types = {{ "{name}" = "categorical" }}` (or "ignore").'
    if "unclear dates" in found:
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


def one_spelling(cells: Cells) -> list[str]:
    """The levels, with one spelling per number, so that 1 and 1.0 are one level."""
    return [_spelling(level, number) for level, number in zip(cells.levels, cells.numbers.tolist(), strict=True)]


def _spelling(text: str, number: float) -> str:
    if np.isnan(number):
        return text
    return str(int(number)) if abs(number) < 1e15 and number == int(number) else str(number)


def read_target(
    name: str, sites: Mapping[str, Cells], positive: str | None, listed: Sequence[str] | None = None
) -> tuple[tuple[str, ...], dict[str, np.ndarray], list[str]]:
    """Class names (for two, the second is the positive one), a class number per row of every site, and notes."""
    words = {site: _words(cells) for site, cells in sites.items()}
    spellings: dict[str, str] = {}
    for site, cells in sites.items():
        for word, level in zip(words[site], cells.levels, strict=True):
            spellings.setdefault(word, level if level.casefold() == word else word)
    where = f"target {name!r}"
    _refuse_measurements_and_free_text(where, sites, spellings)
    wanted = None if positive is None else _spelling(positive.strip(), to_number(positive)).casefold()
    notes: list[str] = []
    if listed is not None:
        order = _as_listed(where, spellings, listed)
    elif all(word in MEANINGS for word in spellings):
        order, notes = _known_pairs(where, words, spellings, wanted)
    elif wanted is not None:
        order = _one_pair(where, spellings, wanted)
    else:
        order = _several(where, words, spellings)
    number = {word: label for label, group in enumerate(order) for word in group}
    classes = tuple(next((spellings[word] for word in group if word in spellings), group[0]) for group in order)
    labels = {s: c.spread([number[w] for w in words[s]], None).astype(np.int64) for s, c in sites.items()}
    return classes, labels, notes


Order = list[tuple[str, ...]]  # the words of each class, by class number; the first that occurs names it


def _words(cells: Cells) -> list[str]:
    return [word.casefold() for word in one_spelling(cells)]


def _refuse_measurements_and_free_text(where: str, sites: Mapping[str, Cells], spellings: Mapping[str, str]) -> None:
    levels = np.concatenate([cells.numbers for cells in sites.values()])
    numbers = levels[~np.isnan(levels)]
    present, distinct = sum_present(sites), len(spellings)
    remedy = "Choose a column with a few classes, or add one, such as a yes/no column made with a threshold."
    many_numbers = distinct > FEW_LEVELS and 2 * len(numbers) > len(levels)
    if many_numbers or np.isinf(numbers).any() or np.any(numbers != np.round(numbers)):
        raise DataError(where, f"looks like a measurement, not a class ({distinct} different values)", remedy)
    # A name or a remark must not pass for a class, because class names are shown.
    repeated_too_rarely = len(spellings.keys() - MEANINGS.keys()) > 2 and 2 * distinct > present
    if distinct > FEW_LEVELS or repeated_too_rarely or max(map(len, spellings)) > LONGEST_CLASS_NAME:
        raise DataError(where, f"looks like free text, not a class ({distinct} different values)", remedy)


def _known_pairs(
    where: str, words: Mapping[str, list[str]], spellings: Mapping[str, str], wanted: str | None
) -> tuple[Order, list[str]]:
    used = {site: list(dict.fromkeys(MEANINGS[word][0] for word in found)) for site, found in words.items()}
    pairs = list(dict.fromkeys(pair for site in used for pair in used[site]))
    if wanted is not None and (wanted not in MEANINGS or MEANINGS[wanted][0] not in pairs):
        raise _no_such_class(where, spellings.values())
    # The classes are named in the words of `positive`, or else of a pair of which both words occur.
    pairs.sort(key=lambda pair: (wanted not in pair, not all(word in spellings for word in pair)))
    order: Order = [tuple(pair[label] for pair in pairs) for label in (0, 1)]
    notes = []
    if len(pairs) > 1:
        said = ", ".join(f"{' and '.join(f'{b}/{a}' for a, b in used[site])} at {site!r}" for site in used)
        notes.append(f"{where}: {said}. These were taken to mean the same; please confirm that they do.")
    return order[::-1] if wanted in order[0] else order, notes


def _one_pair(where: str, spellings: Mapping[str, str], wanted: str) -> Order:
    if wanted not in spellings:
        raise _no_such_class(where, spellings.values())
    others = [word for word in spellings if word != wanted]
    if len(others) > 1:
        shown = _listed(spellings[word] for word in others)
        raise DataError(
            where,
            f"`positive` is given, but there are {len(others)} other classes: {shown}",
            "Write one word for all rows that are not positive, at every hospital, or leave `positive` out.",
        )
    return [(others[0] if others else f"not {spellings[wanted]}",), (wanted,)]


def _as_listed(where: str, spellings: Mapping[str, str], listed: Sequence[str]) -> Order:
    order: Order = [(_spelling(name.strip(), to_number(name)).casefold(),) for name in listed]
    unknown = spellings.keys() - {word for group in order for word in group}
    if len(order) < 3 or len(set(order)) < len(order):
        raise DataError(where, "`classes` must list three or more different classes", "For two, use `positive`.")
    if unknown:
        problem = f"{len(unknown)} classes are not in the study's list: {_listed(spellings[word] for word in unknown)}"
        raise DataError(where, problem, "Add them to `classes`, or correct the files.")
    return order


def _several(where: str, words: Mapping[str, list[str]], spellings: Mapping[str, str]) -> Order:
    shown = _listed(spellings.values())
    if len(spellings) < 3:
        problem = f"it is not known which class is the positive one: {shown}"
        raise DataError(where, problem, f'Write `positive = "{next(iter(spellings.values()))}"` or the other one.')
    if not any(set(found) == set(spellings) for found in words.values()):
        said = "; ".join(f"{_listed(spellings[word] for word in found)} at {site!r}" for site, found in words.items())
        problem = (
            f"the labels differ between the hospitals, and none has them all, so they may differ in meaning: {said}"
        )
        remedy = "Agree on one word for each class; if they mean the same everywhere, list them: `classes = [...]`."
        raise DataError(where, problem, remedy)
    numeric = all(re.fullmatch("-?[0-9]+", word) for word in spellings)
    return [(word,) for word in (sorted(spellings, key=int) if numeric else sorted(spellings))]


def _no_such_class(where: str, known: Iterable[str]) -> DataError:
    return DataError(where, "`positive` is not one of the classes", f"The classes are: {_listed(known)}.")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(repr(name) for name in names))


def _describe(site: str, cells: Cells, found: Shape, everywhere: set[Shape]) -> str:
    if found in ("numbers", "dates"):
        return f"{found} at {site!r}"
    if found == "unclear dates":
        return f"dates at {site!r} in which day and month cannot be told apart"
    expected = "dates" if everywhere & {"dates", "dates and text"} else "numbers"
    unreadable = np.isnan(cells.years if expected == "dates" else cells.numbers)
    bad, line = cells.count_and_first_line(unreadable)
    return f"{found} at {site!r} ({bad} of {cells.present} values are not {expected}, the first in line {line})"
