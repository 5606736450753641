"""Words of a target that are probably another word misspelt, and numbers that are probably no names of classes.

Both would pass for classes of their own. They are refused only where the study declares neither `classes` nor, at that
hospital, `labels`: what is declared is meant.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from wardround.data.sources.csv.text_table import Cells

RARE = 0.1  # of the rows of the word that it is close to
MOST_NUMBERS = 4  # different ones that may be names of classes, as grades are; more are a count or a measurement
MOST_LINES = 5  # that are named
ROMAN = re.compile(r"[ivx]+")


@dataclass(frozen=True)
class Misspelling:
    word: str
    meant: str
    same_letters: bool  # they differ in accents, spaces and signs alone
    rows: int
    rows_meant: int


def misspelling(counts: Mapping[str, int]) -> Misspelling | None:
    """The rarest word that is close to a more frequent one. `counts` are the rows of each word, in lower case.

    Two words are close where they differ in accents, spaces and signs alone; or, if one has at most a tenth of the
    other's rows, by one letter that is wrong, missing, too many, or changed places with its neighbour. Words with
    digits and Roman numbers are no misspellings of each other: grade 2 is not grade 3.
    """
    by_rows = sorted(counts, key=lambda word: (counts[word], word))
    for place, word in enumerate(by_rows):
        for other in reversed(by_rows[place + 1 :]):
            same = _letters(word) == _letters(other)
            rare = counts[word] <= RARE * counts[other]
            if same or (rare and _are_names(word, other) and one_slip_apart(_letters(word), _letters(other))):
                return Misspelling(word, other, same, counts[word], counts[other])
    return None


def one_slip_apart(one: str, other: str) -> bool:
    """Damerau and Levenshtein's distance is 1."""
    short, long = sorted((one, other), key=len)
    if len(long) - len(short) > 1 or short == long:
        return False
    start = next((i for i, (a, b) in enumerate(zip(short, long, strict=False)) if a != b), len(short))
    rest, longer = short[start:], long[start:]
    if len(short) < len(long):
        return rest == longer[1:]
    swapped = rest[:2] == longer[1::-1] and rest[2:] == longer[2:]
    return rest[1:] == longer[1:] or swapped


def rows_of_words(sites: Mapping[str, Cells], words: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """How many rows have each word, at all hospitals together."""
    counts: dict[str, int] = {}
    for site, cells in sites.items():
        levels = np.bincount(cells.codes[cells.codes >= 0], minlength=cells.distinct).tolist()
        for word, count in zip(words[site], levels, strict=True):
            counts[word] = counts.get(word, 0) + count
    return counts


def lines_of(word: str, sites: Mapping[str, Cells], words: Mapping[str, Sequence[str]]) -> str:
    """In which lines of which files a word stands: what a person needs who must not be shown the word."""
    places = []
    for site, cells in sites.items():
        chosen = np.array([one == word for one in words[site]], dtype=bool)
        lines = cells.lines[np.append(chosen, False)[cells.codes]].tolist() if chosen.any() else []
        if lines:
            more = f" and {len(lines) - MOST_LINES} more" if len(lines) > MOST_LINES else ""
            named = ", ".join(map(str, lines[:MOST_LINES]))
            places.append(f"{'lines' if len(lines) > 1 else 'line'} {named}{more} at {site!r}")
    return "; ".join(places)


def _letters(word: str) -> str:
    """Without accents, spaces and signs."""
    plain = unicodedata.normalize("NFKD", word).casefold()
    return "".join(sign for sign in plain if sign.isalnum())


def _are_names(*words: str) -> bool:
    return all(len(word) > 1 and not any(map(str.isdigit, word)) for word in words) and not all(
        ROMAN.fullmatch(word) for word in words
    )
